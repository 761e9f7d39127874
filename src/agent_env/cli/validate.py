"""`agent-env validate`: check a bundle and list every problem."""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path

import click

from agent_env.bundle.load import read_bundle
from agent_env.bundle.validate import check_source

__all__ = ["command"]


@click.command("validate")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(path: Path, as_json: bool) -> None:  # noqa: FBT001 - click passes a flag as a boolean
    """Check the bundle at PATH: its files, its Python, its prompts for every task.

    Prints each problem on a line of its own, as FILE:LINE: what is wrong, what to write instead. Exits with 1 when
    there is one, with 2 when there is no bundle.
    """
    source = read_bundle(path)
    with redirect_stdout(sys.stderr):  # what the bundle's own files print while they are imported
        problems = check_source(source)
    bundle = source.bundle
    if as_json:
        listed = [
            {"path": problem.path.as_posix(), "line": problem.line, "what": problem.what, "fix": problem.fix}
            for problem in problems
        ]
        counts = {"tasks": len(bundle.tasks), "evals": len(bundle.evals), "envs": len(bundle.envs)} if bundle else {}
        click.echo(json.dumps({"ok": not problems, **counts, "problems": listed}, indent=2))
    else:
        for problem in problems:
            click.echo(str(problem))
    if problems or bundle is None:
        raise click.exceptions.Exit(1)
    if not as_json:
        evals = len(bundle.evals) - 1  # `all` is not the bundle's
        click.echo(
            f"ok: {_count(len(bundle.tasks), 'task')}, {_count(evals, 'eval')}, {_count(len(bundle.envs), 'env')}"
        )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
