"""`agent-env runs`: the groups of runs in a folder."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from agent_env.cli._tables import new_console, new_table
from agent_env.runs import GroupSummary, RunIndex, RunState
from agent_env.runs.visible import visible

__all__ = ["command"]

_NAME_CHARS = 40
_STYLES = {RunState.FAILED: "red", RunState.INTERRUPTED: "yellow", RunState.RUNNING: "blue"}


@click.command("runs")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list instead of a table.")
def command(folder: Path, *, as_json: bool) -> None:
    """List the groups of runs in FOLDER (default: ./runs) with counts and rewards."""
    with RunIndex.open(folder, read_only=True) as index:
        groups = index.groups()
    if as_json:
        click.echo(json.dumps([_plain(group) for group in groups], indent=1))
    elif not groups:
        click.echo(f"{folder}: no runs yet")
    else:
        console = new_console()
        console.print(_table(groups))
        console.print(f"agent-env explore {folder}", style="dim", markup=False, highlight=False)


def _plain(group: GroupSummary) -> dict[str, Any]:
    return asdict(group) | {"cut": group.cut}


def _table(groups: list[GroupSummary]) -> Table:
    table = new_table()
    longest = max(len(group.name) for group in groups)
    table.add_column("group", overflow="fold", no_wrap=longest <= _NAME_CHARS)
    table.add_column("runs", justify="right", no_wrap=True)
    table.add_column("mean reward", justify="right", no_wrap=True)
    table.add_column("outcomes")
    table.add_column("last write", justify="right", no_wrap=True)
    for group in groups:
        table.add_row(
            Text(visible(group.name)),
            str(group.runs),
            _reward(group),
            _outcomes(group),
            _ago(group.last_at_s),
        )
    return table


def _outcomes(group: GroupSummary) -> Text:
    text = Text()
    for state, n in group.states.items():
        if not n:
            continue
        kinds = ""
        if state is RunState.FAILED and group.failures:
            kinds = f" ({', '.join(f'{count} {kind}' for kind, count in group.failures.items())})"
        text.append(", " if text else "")
        text.append(visible(f"{n} {state}{kinds}"), style=_STYLES.get(state))
    if group.cut:
        text.append(f", {group.cut} cut")
    return text


def _reward(group: GroupSummary) -> str:
    if group.reward_mean is None:
        return ""
    if group.reward_se is None:
        return f"{group.reward_mean:.3f}"
    return f"{group.reward_mean:.3f} ± {group.reward_se:.3f}"


def _ago(at_s: float) -> str:
    seconds = max(0.0, time.time() - at_s)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
