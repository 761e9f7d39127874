"""`agent-env show`: one run's conversation in the terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from agent_env.cli._called_as import called_as
from agent_env.cli._runs_folder import runs_folder
from agent_env.runs import RunEvent, RunIndex, RunRecord, RunState, RunSummary
from agent_env.runs.conversation import Item, each_item, step_durations
from agent_env.runs.export import columns_of
from agent_env.runs.play_script import play_script
from agent_env.runs.record import short_model
from agent_env.runs.visible import one_line, visible

__all__ = ["command"]

_COLOURS = {
    "call": "magenta",
    "tool": "magenta",
    "assistant": "cyan",
    "score": "green",
    "failure": "red",
    "cut": "yellow",
}
_CHANGE_COLOURS = {"added": "green", "removed": "red", "changed": None}
_CHANGES = 200
"""Changes of a state that are printed; `agent-env universe diff` prints all."""


@click.command("show")
@click.argument("run")
@runs_folder
@click.option("--json", "as_json", is_flag=True, help="Print the record as JSON: the run, then every event.")
@click.option("--script", "as_script", is_flag=True, help="Print its calls as a file for `agent-env play --script`.")
def command(run: str, folder: Path, *, as_json: bool, as_script: bool) -> None:
    """Print the conversation of RUN: its id, or the start of it."""
    if as_json and as_script:
        raise click.UsageError("--json and --script: leave one of them out")
    with RunIndex.open(folder, read_only=True) as index:
        record = index.read(run, limit=1)
        # A run may be larger than memory: what is printed is read again each time, some events at a time.
        events = partial(index.events, record.run.run_id)
        if as_script:
            click.echo(play_script(record.run, events(), bundle_root=record.bundle_root), nl=False)
        elif as_json:
            _print_json(record, events())
        else:
            _print_conversation(record, events)


def _print_json(record: RunRecord, events: Iterable[RunEvent]) -> None:
    """Print one JSON object, event by event."""
    run = columns_of(record.run) | {"params": record.params, "tags": record.tags, "bundle_root": record.bundle_root}
    click.echo(f'{{\n "run": {_indented(run, " ")},\n "events": [', nl=False)
    separator = "\n  "
    for event in events:
        click.echo(f"{separator}{_indented(asdict(event), '  ')}", nl=False)
        separator = ",\n  "
    click.echo("]\n}" if separator == "\n  " else "\n ]\n}")


def _indented(value: object, indent: str) -> str:
    return json.dumps(value, indent=1).replace("\n", f"\n{indent}")


def _print_conversation(record: RunRecord, events: Callable[[], Iterable[RunEvent]]) -> None:
    durations = step_durations(events())
    _print_run(record)
    is_whole = record.run.state is not RunState.RUNNING
    for item in each_item(events(), durations=durations, is_whole=is_whole):
        _print_item(item, record.run.opened_at_s)
    click.echo()
    _print_end(record.run)


def _print_run(record: RunRecord) -> None:
    run = record.run
    click.secho(one_line(run.task_id, 500), bold=True)
    labels = dict(run.labels) | ({"model": short_model(run.model)} if run.model else {})
    facts = {
        "run": run.run_id,
        "group": f"{run.group}, rollout {run.rollout}" + (f", try {run.attempt + 1}" if run.attempt else ""),
        "bundle": f"{run.bundle_name} {run.bundle_version}",
        "tags": ", ".join(record.tags),
        "params": json.dumps(record.params, ensure_ascii=False) if record.params else "",
        **{name: str(value) for name, value in labels.items()},
    }
    width = max(len(one_line(name, 30)) for name in facts)
    for name, value in facts.items():
        if value:
            click.echo(f"{one_line(name, 30):<{width}}  {one_line(value, 160)}")


def _print_item(item: Item, opened_at_s: float) -> None:
    at = f"+{max(0.0, item.at_s - opened_at_s):.2f} s"
    notes = [item.note, item.error_kind, _duration(item.duration_s)]
    if item.sampled_tokens is not None:
        notes.append(f"{item.sampled_tokens} tokens")
    note = one_line(" · ".join(filter(None, notes)))
    if item.look == "step":
        click.secho(f"\n{at:>10}  {one_line(item.title)}  {note}", dim=True)
        return
    click.echo()
    title = click.style(one_line(item.title), bold=True, fg="red" if item.is_error else _COLOURS.get(item.look))
    click.echo(f"{at:>10}  {title}" + (f"  {note}" if note else ""))
    _print_text(item.text)
    _print_changes(item)
    for section in item.sections:
        click.secho(f"{'':>10}  {one_line(section.title)}:", dim=True)
        _print_text(section.text, is_error=section.is_error)


def _print_changes(item: Item) -> None:
    for change in item.changes[:_CHANGES]:
        for line in visible(str(change)).splitlines():
            click.secho(f"{'':>12}{line}", fg=_CHANGE_COLOURS[change.kind])
    more = len(item.changes) - _CHANGES
    if more > 0:
        click.echo(f"{'':>12}and {more} more: `{called_as()} universe diff` prints them")
    if item.left_out:
        click.echo(f"{'':>12}and {item.left_out} more, which the run did not keep")


def _print_text(text: str, *, is_error: bool = False) -> None:
    if lines := visible(text).splitlines():  # all at once: each print is flushed
        click.echo("\n".join([click.style(f"{'':>12}{line}", fg="red" if is_error else None) for line in lines]))


def _print_end(run: RunSummary) -> None:
    words: list[str] = [run.state.value]
    if run.cut:
        words.append(f"cut: {run.cut.replace('_', ' ')}")
    words += _numbers(run.scores.items())
    if run.reward is not None:
        words.append(f"reward {run.reward:.6g}")
    words.append(
        f"{run.messages} messages, {run.calls} calls ({run.call_errors} with an error), {run.duration_s:.1f} s"
    )
    if run.sampled_tokens is not None:
        words.append(f"{run.sampled_tokens} tokens sampled")
    click.secho(visible(" · ".join(words)), bold=True)
    times = [f"{name} {_duration(seconds)}" for name, seconds in run.times.items() if seconds >= 0.001]
    if times:
        click.echo(f"time: {', '.join(times)}")
    if run.failure is not None:
        where = f" in {run.failure.step}" if run.failure.step else ""
        click.secho(one_line(f"failed{where} ({run.failure.kind}): {run.failure.message}", 500), fg="red")


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.1f} s"


def _numbers(scores: Iterable[tuple[str, Any]]) -> list[str]:
    return [f"{name} {value:.6g}" if isinstance(value, int | float) else f"{name} {value}" for name, value in scores]
