"""Groups and runs as tables of the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from agent_env.cli._tables import new_table
from agent_env.runs import GroupSummary, RunState, RunSummary
from agent_env.runs.trainings import TrainingTotals
from agent_env.runs.visible import one_line, visible

__all__ = ["groups_table", "runs_table", "trainings_table"]

_NAME_CHARS = 40
_WHY_CHARS = 60
_STYLES: Mapping[RunState, str] = {RunState.FAILED: "red", RunState.INTERRUPTED: "yellow", RunState.RUNNING: "blue"}


def trainings_table(trainings: Sequence[TrainingTotals]) -> Table:
    """A row for each training run: its steps, what the last step of each split earned, how its runs ended."""
    table = new_table()
    table.add_column("training", overflow="fold", no_wrap=max(len(one.name) for one in trainings) <= _NAME_CHARS)
    table.add_column("steps", justify="right", no_wrap=True)
    table.add_column("runs", justify="right", no_wrap=True)
    table.add_column("latest mean reward")
    table.add_column("outcomes")
    table.add_column("last write", justify="right", no_wrap=True)
    for training in trainings:
        table.add_row(
            Text(visible(training.name)),
            str(training.steps),
            str(training.runs),
            Text(visible(_latest(training))),
            _outcomes(training),
            _ago(training.last_at_s),
        )
    return table


def groups_table(groups: Sequence[GroupSummary]) -> Table:
    """A row for each group: its runs, what they earned, how they ended."""
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
            _mean(group.reward_mean, group.reward_se),
            _outcomes(group),
            _ago(group.last_at_s),
        )
    return table


def runs_table(runs: Sequence[RunSummary], *, with_group: bool) -> Table:
    """A row for each run: its task, how it ended, what it earned.

    Args:
        runs: In the order of the rows.
        with_group: Whether they are of several groups.
    """
    table = new_table()
    table.add_column("run", no_wrap=True)
    if with_group:
        table.add_column("group", overflow="fold")
    table.add_column("task", overflow="fold")
    table.add_column("rollout", justify="right", no_wrap=True)
    table.add_column("outcome")
    table.add_column("reward", justify="right", no_wrap=True)
    table.add_column("scores")
    table.add_column("calls", justify="right", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    for run in runs:
        table.add_row(*_run_cells(run, with_group=with_group))
    return table


def _run_cells(run: RunSummary, *, with_group: bool) -> Iterable[str | Text]:
    yield run.run_id[:12]
    if with_group:
        yield Text(visible(run.group))
    yield Text(visible(run.task_id))
    yield f"{run.rollout}" + (f" (try {run.attempt + 1})" if run.attempt else "")
    yield _outcome(run)
    yield "" if run.reward is None else f"{run.reward:.6g}"
    yield Text(visible(", ".join(f"{name} {value:.6g}" for name, value in run.scores.items())))
    yield str(run.calls)
    yield f"{run.duration_s:.1f}"


def _outcome(run: RunSummary) -> Text:
    text = Text(str(run.state), style=_STYLES.get(run.state, ""))
    if run.failure is not None:
        text.append(visible(f" ({run.failure.kind}: {one_line(run.failure.message, _WHY_CHARS)})"))
    if run.cut:
        text.append(visible(f", cut ({run.cut})"))
    return text


def _outcomes(group: GroupSummary | TrainingTotals) -> Text:
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


def _latest(training: TrainingTotals) -> str:
    return ", ".join(
        f"{split} {_mean(latest.reward_mean, latest.reward_se)}"
        + (f" (step {latest.step})" if latest.step != training.last_step else "")
        for split, latest in training.latest.items()
    )


def _mean(mean: float | None, se: float | None) -> str:
    if mean is None:
        return ""
    return f"{mean:.3f}" if se is None else f"{mean:.3f} ± {se:.3f}"


def _ago(at_s: float) -> str:
    seconds = max(0.0, time.time() - at_s)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
