"""`agent-env import`: other projects' tasks, made into a bundle."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path

import click

from agent_env._wording import counted
from agent_env.cli._called_as import called_as
from agent_env.importers import ImportedBundle
from agent_env.importers.tau2 import Customer, import_tau2

__all__ = ["command"]


@click.group("import")
def command() -> None:
    """Make a bundle of another project's tasks."""


@command.command("tau2")
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option(
    "--user",
    type=click.Choice([str(kind) for kind in Customer]),
    default=str(Customer.NONE),
    help="Who the clerk talks with: nobody (one turn, the brief is the prompt), or a model that is told the brief.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def tau2(source: Path, target: Path, user: str, *, as_json: bool) -> None:
    """Make a bundle in TARGET of the retail tasks of the tau2-bench checkout at SOURCE."""
    made = import_tau2(source, target, user=Customer(user))
    if as_json:
        click.echo(json.dumps(asdict(made) | {"root": str(made.root)}, indent=2))
        return
    _print(made, target)


def _print(made: ImportedBundle, target: Path) -> None:
    evals = ", ".join(f"{name} {count}" for name, count in made.evals.items())
    click.echo(f"{target}: {counted(made.tasks, 'task')} ({evals})")
    for note in made.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(f"check it: {called_as()} validate {shlex.quote(str(target))}")
