"""Every command and every option is in the docs, on a page that names its command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from agent_env.cli import root

ROOT = Path(__file__).parents[2]
PAGES = [path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))]


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """Those below a group, with their whole names."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for inner in command.list_commands(context):
        found = command.get_command(context, inner)
        assert found is not None
        yield from commands(found, f"{name} {inner}")


@pytest.mark.parametrize(("name", "command"), list(commands(root, "agent-env")))
def test_a_command_and_its_options_are_documented(name: str, command: click.Command) -> None:
    """Where the command is named, and the option by one of its names."""
    pages = [page for page in PAGES if re.search(rf"{name}\b", page)]
    assert pages, f"no page of the docs names {name}"
    for option in command.params:
        if isinstance(option, click.Option):
            names = [*option.opts, *option.secondary_opts]
            assert any(re.search(rf"{re.escape(one)}(?![\w-])", page) for one in names for page in pages), (
                f"no page that names {name} has its {option.opts[-1]}"
            )
