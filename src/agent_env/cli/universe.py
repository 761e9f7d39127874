"""`agent-env universe`: what an episode changed in its universes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from agent_env._wording import counted
from agent_env.cli._runs_folder import runs_folder
from agent_env.errors import UsageError
from agent_env.runs import RunIndex
from agent_env.runs.visible import visible
from agent_env.universe import MISSING, StateChanges

__all__ = ["command"]


@click.group("universe")
def command() -> None:
    """See what an episode changed in its universes."""


@command.command("diff")
@click.argument("run")
@runs_folder
@click.option("--env", help="Only this env.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: the changes by env.")
def diff(run: str, folder: Path, env: str | None, *, as_json: bool) -> None:
    """Print what the agents changed in each env's universe in RUN: its id, or the start of it."""
    with RunIndex.open(folder, read_only=True) as index:
        found = index.find(run)
        states = {event.data["env"]: event.data for event in index.events(found.run_id) if event.kind == "state"}
    if env is not None and env not in states:
        raise UsageError(f"run {found.run_id} kept no state of env '{env}': it has {', '.join(states) or 'none'}")
    if not states:
        raise UsageError(
            f"run {found.run_id} kept no state: it ended before its verifiers, or its envs have no universe"
        )
    shown = states if env is None else {env: states[env]}
    if as_json:
        click.echo(json.dumps(shown, ensure_ascii=False, indent=2))
        return
    for name, data in shown.items():
        _print(name, data)


def _print(env: str, data: Mapping[str, Any]) -> None:
    if "error" in data:
        click.echo(visible(f"{env}: what was left cannot be told: {data['error']}"))
        return
    changes = StateChanges.from_json(data)
    count = len(changes.changes) + changes.left_out
    click.secho(f"{env}: {counted(count, 'change')}" if count else f"{env}: unchanged", bold=True)
    for change in changes.changes:
        colour = "green" if change.before is MISSING else "red" if change.after is MISSING else None
        click.secho(visible(f"  {change}"), fg=colour)
    if changes.left_out:
        click.echo(f"  and {changes.left_out} more, which the run did not keep")
