"""A task over the steps of one split: how its rollouts changed, and any two of them to compare."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from functools import cached_property

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from agent_env.errors import UsageError
from agent_env.runs._reading import dead_json, moments
from agent_env.runs.explorer.address import number_of, text_of
from agent_env.runs.explorer.charts import Picture, line_chart, lines_of
from agent_env.runs.explorer.heat import heat_span
from agent_env.runs.explorer.measures import Measure
from agent_env.runs.explorer.points import StepPoint
from agent_env.runs.explorer.rollouts import ROLLOUT_COLUMNS, Rollout, rollout_of
from agent_env.runs.explorer.site import Site

__all__ = ["StepRow", "TaskSteps", "TaskView", "task_page"]

_STEPS = 50
_CELLS = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """The task in one step."""

    point: StepPoint
    rollouts: tuple[Rollout, ...]

    @property
    def more(self) -> int:
        """Rollouts that are not among them."""
        return self.point.runs - len(self.rollouts)


@dataclass(frozen=True, kw_only=True)
class TaskSteps:
    """A task in every step that played it. Each picture is drawn when it is first asked for, and kept."""

    task: str
    split: str
    keys: tuple[int, ...]
    """The groups' keys, by step."""
    points: tuple[StepPoint, ...]

    @cached_property
    def wide(self) -> Markup:
        """Its rewards over the steps."""
        return self._picture(Picture.WIDE)

    @cached_property
    def narrow(self) -> Markup:
        """The same for a phone."""
        return self._picture(Picture.NARROW)

    def _picture(self, picture: Picture) -> Markup:
        lines = lines_of({self.split: self.points})
        return line_chart(lines, Measure.REWARD, picture, with_range=True, task=self.task)


@dataclass(frozen=True, kw_only=True)
class TaskView:
    """A task: every step for the chart, some for the table, the latest first."""

    training: str
    split: str
    task: str
    splits: tuple[str, ...]
    """The splits of the training run that played it."""
    points: tuple[StepPoint, ...]
    """By step, with the counts and the rewards of this task alone."""
    drawn: TaskSteps = field(metadata={"json": False})
    """The points as pictures."""
    rows: tuple[StepRow, ...]
    first: int
    earlier: int | None
    later: int | None
    """Where the page before and the page after start."""

    @property
    def asked(self) -> dict[str, object]:
        """What the address asks for, but for the page."""
        return {"training": self.training, "split": self.split, "task": self.task}

    @property
    def runs(self) -> int:
        """All its rollouts."""
        return sum(point.runs for point in self.points)

    @property
    def scored(self) -> int:
        """Those with a reward."""
        return sum(point.scored for point in self.points)

    @cached_property
    def span(self) -> tuple[float, float]:
        """What the colours of the rewards span: 0 to 1, or all of its rewards where they are elsewhere."""
        low = min((point.low for point in self.points if point.low is not None), default=None)
        high = max((point.high for point in self.points if point.high is not None), default=None)
        return heat_span(low, high)

    @cached_property
    def chosen(self) -> tuple[str | None, str | None]:
        """What is compared unless something else is chosen: the best and the worst of the latest step that has both."""
        scored = [[rollout for rollout in row.rollouts if rollout.score is not None] for row in self.rows]
        for rollouts in scored:
            best = max(rollouts, key=lambda rollout: rollout.score or 0.0, default=None)
            worst = min(rollouts, key=lambda rollout: rollout.score or 0.0, default=None)
            if best is not None and worst is not None and best.score != worst.score:
                return best.run_id, worst.run_id
        every = [rollout.run_id for row in self.rows for rollout in row.rollouts]
        return (every[1], every[0]) if len(every) > 1 else (None, None)


def task_page(site: Site, request: Request) -> Response:
    """Answer `/task?training=&split=&task=`."""
    view = view_task(
        site,
        text_of(request, "training"),
        text_of(request, "split"),
        text_of(request, "task"),
        offset=number_of(request, "from"),
    )
    return site.answer(request, "task.html", view)


def view_task(site: Site, training: str, split: str, task: str, *, offset: int = 0) -> TaskView:
    """A task's page.

    Raises:
        UsageError: When no step of the split played such a task.
    """
    steps = site.memory.get(("task", training, split, task), lambda: _steps(site, training, split, task))
    latest = list(zip(steps.keys, steps.points, strict=True))[::-1]
    with site.reader.asking() as conn:
        dead = dead_json(conn)
        rows = [
            StepRow(point=point, rollouts=_rollouts(conn, key, task, dead))
            for key, point in latest[offset : offset + _STEPS]
        ]
        splits = _splits(conn, training, task)
    return TaskView(
        training=training,
        split=split,
        task=task,
        splits=tuple(splits),
        points=steps.points,
        drawn=steps,
        rows=tuple(rows),
        first=offset,
        earlier=max(0, offset - _STEPS) if offset else None,
        later=offset + _STEPS if len(latest) > offset + _STEPS else None,
    )


def _steps(site: Site, training: str, split: str, task: str) -> TaskSteps:
    with site.reader.asking() as conn:
        found = _points(conn, training, split, task)
    if not found:
        raise UsageError(
            f"no step of split {split!r} of training run {training!r} played a task {task!r}: its page lists the steps"
        )
    return TaskSteps(
        task=task, split=split, keys=tuple([key for key, _ in found]), points=tuple([point for _, point in found])
    )


def _points(conn: sqlite3.Connection, training: str, split: str, task: str) -> list[tuple[int, StepPoint]]:
    """The task in each step, with the group's key."""
    cursor = conn.cursor()
    cursor.row_factory = None  # plain tuples: there may be thousands of rows
    groups = {
        key: (name, step)
        for key, name, step in cursor.execute(
            "SELECT key, name, step FROM groups WHERE training = ? AND split = ?", (training, split)
        )
    }
    if not groups:
        return []
    # One walk over the index of the task's runs is faster than a seek for each step.
    shift = cursor.execute(
        "SELECT coalesce((SELECT reward FROM runs WHERE task_id = ? AND reward IS NOT NULL LIMIT 1), 0.0)", (task,)
    ).fetchone()[0]
    rows = cursor.execute(
        "SELECT group_key, count(*), count(score), total(score - :shift), total((score - :shift) * (score - :shift)),"
        " min(score), max(score)"
        " FROM (SELECT group_key, CASE state WHEN 'completed' THEN reward END AS score FROM runs INDEXED BY runs_over_steps"
        " WHERE task_id = :task AND group_key BETWEEN :low AND :high) GROUP BY group_key",
        {"task": task, "shift": shift, "low": min(groups), "high": max(groups)},
    )
    found: list[tuple[int, StepPoint]] = []
    for key, runs, scored, total, squares, low, high in rows:
        if key in groups:
            name, step = groups[key]
            mean, se = moments(scored, shift, total, squares)
            point = StepPoint(
                group=name, split=split, step=step, runs=runs, scored=scored, mean=mean, se=se, low=low, high=high
            )
            found.append((key, point))
    return sorted(found, key=lambda pair: pair[1].step)


def _rollouts(conn: sqlite3.Connection, group_key: int, task: str, dead: str) -> tuple[Rollout, ...]:
    rows = conn.execute(
        f"SELECT {ROLLOUT_COLUMNS} FROM runs r WHERE r.group_key = :group AND r.task_id = :task"
        " ORDER BY r.attempt, r.rollout LIMIT :limit",
        {"group": group_key, "task": task, "dead": dead, "limit": _CELLS},
    )
    return tuple([rollout_of(row) for row in rows])


def _splits(conn: sqlite3.Connection, training: str, task: str) -> list[str]:
    rows = conn.execute(
        "SELECT DISTINCT split FROM groups WHERE training = ? ORDER BY split <> 'train', split", (training,)
    )
    return [
        split
        for (split,) in map(tuple, rows.fetchall())
        if conn.execute(
            "SELECT 1 FROM groups g CROSS JOIN runs r ON r.task_id = ? AND r.group_key = g.key"
            " WHERE g.training = ? AND g.split = ? LIMIT 1",
            (task, training, split),
        ).fetchone()
    ]
