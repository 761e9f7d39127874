"""`agent-env runs`: what is in a runs folder, for reading, for other programs, and out of the way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from agent_env._wording import counted
from agent_env.cli._called_as import called_as
from agent_env.cli._runs_folder import runs_argument, runs_folder
from agent_env.cli._runs_tables import groups_table, runs_table, trainings_table
from agent_env.cli._tables import new_console
from agent_env.cli.show import command as show_command
from agent_env.errors import UsageError
from agent_env.runs import Exported, GroupSummary, RunIndex, RunPage
from agent_env.runs.export import columns_of
from agent_env.runs.trainings import sum_up
from agent_env.runs.visible import one_line, visible

__all__ = ["command"]

_DEFAULT = "list"
_EXCERPT_CHARS = 160
_MOST = 100_000
"""Runs in one list, which is held in memory; `export` is not."""


class _Runs(click.Group):
    """Lists where no subcommand is named: `agent-env runs FOLDER`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)


_where = click.option("--where", help="Only runs of which this SQL expression is true, such as 'reward < 0.5'.")
_group = click.option("--group", default="", help="Only this group and those below it.")


@click.command("runs", cls=_Runs)
def command() -> None:
    """See, search, export and delete the runs of a folder; without a command, list its training runs and other groups.

    A condition (--where) is an SQL expression over the columns of a run: run_id, group, training, split, step, task_id,
    state, cut, failure_kind, reward, scores, labels, tools, messages, calls, duration_s, opened_at, ... (docs/runs.md has them all), such as
    "reward < 0.5 AND state = 'completed'" or "scores ->> '$.polite' = 0".
    """


@command.command("list")
@runs_argument
@_group
@_where
@click.option(
    "--limit", type=click.IntRange(1, _MOST), default=100, show_default=True, help="Lines to list, the newest."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def list_(folder: Path, group: str, where: str | None, limit: int, *, as_json: bool) -> None:
    """List what is in FOLDER (default: ./runs): a line for each training run, and for each other group of runs.

    With --group TRAINING its groups, with --group GROUP the runs of a group, with --where the runs that it is true of.
    """
    with RunIndex.open(folder, read_only=True) as index:
        below: Sequence[GroupSummary] = _groups_below(index, group) if where is None else ()
        if below or (not group and where is None):
            _list_groups(folder, group, below, limit=limit, as_json=as_json)
            return
        page = index.select(where, group=group, limit=limit)
    if group and where is None and not page.runs and not page.damaged:
        raise UsageError(f"no group '{one_line(group)}' in {folder}: `{called_as()} runs {folder}` lists them")
    _list_runs(page, as_json=as_json)


def _groups_below(index: RunIndex, name: str) -> Sequence[GroupSummary]:
    """The groups below a name, and none where it is that of a group, and of no training run: its runs are meant."""
    if not name:
        return index.groups()
    groups = [group for group in index.groups(name) if group.name == name or group.name.startswith(f"{name}/")]
    is_group = any(group.name == name for group in groups)
    is_training = any(group.place is not None and group.place.training == name for group in groups)
    return [] if is_group and not is_training else groups


def _list_groups(folder: Path, name: str, groups: Sequence[GroupSummary], *, limit: int, as_json: bool) -> None:
    """List training runs as a line each, and other groups; of a training run that is named, its groups."""
    inner = f"{name}/" if name else ""
    stepped = [group for group in groups if group.place is not None and group.place.training.startswith(inner)]
    trainings = sum_up(stepped)
    names = {group.name for group in stepped}
    others = [group for group in groups if group.name not in names]
    newest = {group.name for group in sorted(others, key=lambda group: -group.last_at_s)[:limit]}
    shown = [group for group in others if group.name in newest]
    if as_json:
        told = [asdict(training) | {"cut": training.cut} for training in trainings[:limit]]
        click.echo(json.dumps({"trainings": told, "groups": [_plain(group) for group in shown]}, indent=1))
    elif not groups:
        click.echo(f"{folder}: no runs yet")
    else:
        console = new_console()
        if trainings:
            console.print(trainings_table(trainings[:limit]))
        if trainings and shown:
            console.print()
        if shown:
            console.print(groups_table(shown))
        console.print(f"{called_as()} explore {folder}", style="dim", markup=False, highlight=False)
    more = max(0, len(trainings) - limit) + len(others) - len(shown)
    if more:
        click.echo(f"{more} more, which wrote earlier: --limit lists them", err=True)


def _plain(group: GroupSummary) -> dict[str, Any]:
    return asdict(group) | {"cut": group.cut}


def _list_runs(page: RunPage, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([columns_of(run) for run in page.runs], indent=1))
    elif not page.runs:
        click.echo("no run is like that")
    else:
        new_console().print(runs_table(page.runs, with_group=len({run.group for run in page.runs}) > 1))
        if page.next_page is not None:
            click.echo(f"there are more: --limit lists them, `{called_as()} runs export` writes them all", err=True)
    if page.damaged:
        click.echo(f"{counted(page.damaged, 'run')} cannot be read: a part of the index is damaged", err=True)


command.add_command(show_command)


@command.command("search")
@click.argument("text")
@runs_folder
@_group
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Runs to list.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
def search(text: str, folder: Path, group: str, limit: int, *, as_json: bool) -> None:
    """Find TEXT in prompts, messages, calls, answers, explanations and failures, the newest first.

    All words must be in one of them; "quotes" ask for words in a row, an asterisk for a beginning: refund*.
    """
    with RunIndex.open(folder, read_only=True) as index:
        page = index.search(text, group=group, limit=limit)
    if as_json:
        click.echo(
            json.dumps([columns_of(hit.run) | {"seq": hit.seq, "excerpt": hit.excerpt} for hit in page.hits], indent=1)
        )
    for hit in () if as_json else page.hits:
        where = click.style(hit.run.run_id[:12], bold=True)
        click.echo(f"{where}  {one_line(hit.run.task_id, 60)}  {visible(hit.run.group)}, event {hit.seq}")
        click.echo(f"    {one_line(hit.excerpt, _EXCERPT_CHARS)}")
    if not page.hits and not as_json:
        click.echo("nothing found")
    if page.next_page is not None:
        click.echo("there may be more: --limit looks further", err=True)
    if page.waiting:
        click.echo(f"{counted(page.waiting, 'part')} of runs not searched: written a moment ago", err=True)
    if page.damaged:
        click.echo(f"{counted(len(page.damaged), 'run')} could not be looked through: damaged", err=True)


@command.command("export")
@runs_argument
@click.option(
    "--to", "file", type=click.Path(path_type=Path, dir_okay=False), required=True, help="A .jsonl or .parquet file."
)
@_group
@_where
@click.option("--events/--no-events", default=True, show_default=True, help="Also every message, call, answer, score.")
@click.option("--tokens", is_flag=True, help="Also what the messages were sampled as.")
def export(folder: Path, file: Path, group: str, where: str | None, *, events: bool, tokens: bool) -> None:
    """Write the runs of FOLDER (default: ./runs) to a file, a line or a row each, the oldest first."""
    with RunIndex.open(folder, read_only=True) as index:
        match file.suffix:
            case ".jsonl":
                done = index.export_jsonl(file, where, group=group, events=events, tokens=tokens)
            case ".parquet":
                done = index.export_parquet(file, where, group=group, events=events, tokens=tokens)
            case _:
                raise UsageError(f"{file}: the name says the form: write --to NAME.jsonl or --to NAME.parquet")
    click.echo(f"{file}: {counted(done.runs, 'run')}")
    _say_left_out(done)


def _say_left_out(done: Exported) -> None:
    for run_id in done.damaged:
        click.echo(f"left out, because it is damaged: run {run_id}", err=True)
    if done.unreadable:
        click.echo(f"left out, because a part of the index is damaged: {counted(done.unreadable, 'run')}", err=True)


@command.command("delete")
@runs_argument
@_group
@_where
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(folder: Path, group: str, where: str | None, *, yes: bool) -> None:
    """Delete runs of FOLDER (default: ./runs) for good: those of --group, those that --where is true of, or both.

    The file keeps its size, and the words of deleted runs stay in its search index, until `agent-env runs vacuum`.
    """
    if not group and where is None:
        raise click.UsageError("say which runs: --group NAME, --where CONDITION, or both; --where true is all of them")
    with RunIndex.open(folder, read_only=True) as index:  # never makes an index where there is none
        count = index.count(where, group=group)
    if not count:
        click.echo("no run is like that")
        return
    if not yes:
        click.confirm(f"Delete {counted(count, 'run')} of {folder} for good?", abort=True)
    with RunIndex.open(folder) as index:
        deleted = index.delete(where or "true", group=group)
    click.echo(f"deleted {counted(deleted, 'run')}")


@command.command("vacuum")
@runs_argument
def vacuum(folder: Path) -> None:
    """Give the room of deleted runs in FOLDER (default: ./runs) back to the disk.

    Takes as much room again meanwhile, and holds up whoever writes: not for while a training is under way.
    """
    RunIndex.open(folder, read_only=True).close()
    with RunIndex.open(folder) as index:
        done = index.vacuum()
    click.echo(f"{_megabytes(done.before_bytes)} before, {_megabytes(done.after_bytes)} now")
    if not done.is_search_rebuilt:
        click.echo("the words of deleted runs are still in the search index: other processes are writing", err=True)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
