"""`agent-env validate`: everything that is wrong with a bundle, a line each."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path

import click

from agent_env._wording import counted
from agent_env.bundle import Bundle
from agent_env.bundle.load import BundleSource, in_order, read_bundle
from agent_env.bundle.validate import check_source
from agent_env.cli._progress import progress_bar
from agent_env.episode.rehearsal import Rehearsal, rehearse
from agent_env.errors import Problem

__all__ = ["command"]


@click.command("validate")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--no-play", is_flag=True, help="Do not play the reference solutions.")
@click.option("--no-code", is_flag=True, help="Check the files only: import and run none of the bundle's Python.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(path: Path, *, no_play: bool, no_code: bool, as_json: bool) -> None:
    """Check the bundle at PATH: its files, its Python, its prompts for every task, and that each gold scores what it claims.

    A bundle's Python runs with your rights; --no-code checks without it. Prints each problem on a line of its own, as
    FILE:LINE: what is wrong, what to write instead. Exits with 1 when there is one, with 2 when there is no bundle.
    """
    source = read_bundle(path)
    bundle, rehearsal = source.bundle, Rehearsal()
    with redirect_stdout(sys.stderr):  # what the bundle's own files print while they are imported and played
        problems = check_source(source, run_code=not no_code)
        if bundle is not None and not (problems or no_code or no_play):
            rehearsal = _rehearse(bundle, source)
            problems = in_order(rehearsal.problems)
    if as_json:
        _print_json(bundle, problems, rehearsal)
    else:
        for problem in problems:
            click.echo(str(problem))
        for note in rehearsal.notes:
            click.echo(f"note: {note}", err=True)
    if problems or bundle is None:
        raise click.exceptions.Exit(1)
    if not as_json:
        evals = len(bundle.evals) - 1  # `all` is not the bundle's
        parts = [counted(len(bundle.tasks), "task"), counted(evals, "eval"), counted(len(bundle.envs), "env")]
        played = f"; {counted(rehearsal.played, 'gold')} played" if rehearsal.played else ""
        click.echo(f"ok: {', '.join(parts)}{played}{'; its Python was not run' if no_code else ''}")


def _rehearse(bundle: Bundle, source: BundleSource) -> Rehearsal:
    document = source.document
    lines = {} if document is None else {name: document.line(("envs", name)) for name in bundle.envs}
    total = sum(task.gold is not None for task in bundle.tasks.values())
    with progress_bar("playing gold", total) as advance:
        return asyncio.run(rehearse(bundle, env_lines=lines, progress=lambda done, _: advance(done)))


def _print_json(bundle: Bundle | None, problems: list[Problem], rehearsal: Rehearsal) -> None:
    listed = [
        {"path": problem.path.as_posix(), "line": problem.line, "what": problem.what, "fix": problem.fix}
        for problem in problems
    ]
    counts = {"tasks": len(bundle.tasks), "evals": len(bundle.evals), "envs": len(bundle.envs)} if bundle else {}
    played = {"gold_played": rehearsal.played, "constant": rehearsal.constant, "not_played": rehearsal.asks_models}
    played |= {
        "refused": rehearsal.refused,
        "other_turns": rehearsal.other_turns,
        "unshown_skills": rehearsal.unshown_skills,
        "nowhere": [asdict(place) for place in rehearsal.nowhere],
    }
    click.echo(json.dumps({"ok": not problems, **counts, **played, "problems": listed}, indent=2))
