"""`agent-env init`: a small bundle to begin with."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from agent_env.cli._called_as import called_as

__all__ = ["command"]


@click.command("init")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--name", help="The bundle's name; the folder's where not given.")
def command(folder: Path, name: str | None) -> None:
    """Write a small bundle into FOLDER, a new or empty one: it validates, plays, and has a test."""
    from agent_env.bundle.scaffold import write_scaffold

    made = write_scaffold(folder, name=name)
    where = shlex.quote(str(made.folder))
    click.echo(f"{made.folder}: bundle {made.name}, {len(made.files)} files; README.md says what to change first\n")
    for line, what in (
        (f"{called_as()} play {where} {made.first_task}", "play a task by hand"),
        (f"{called_as()} play {where} --gold", "play every task's solution"),
        (f"python -m pytest {where}", "run the bundle's own test"),
    ):
        click.echo(f"  {line:<44}  {what}")
