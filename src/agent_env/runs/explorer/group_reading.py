"""What the page of a group reads of the index.

Of a group of some thousand runs all is read that is counted here. Of a larger one the tasks come by name unless another order
is asked for, so that what is read is the page and not the group.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent_env.errors import UsageError
from agent_env.runs._reading import dead_json, read_groups
from agent_env.runs.explorer.group_filter import GroupFilter, Sort, Where, where_of
from agent_env.runs.explorer.points import Neighbours, first_text
from agent_env.runs.explorer.rollouts import ROLLOUT_COLUMNS, Rollout, rollout_of
from agent_env.runs.record import GroupSummary
from agent_env.runs.visible import visible

__all__ = ["Matched", "Page", "ScoreMean", "Step", "TaskRow", "read_step"]

_LARGE = 20_000
"""Runs from which on a group's tasks come by name."""
_TASKS = 100
_CELLS = 48
"""Rollouts that a row shows; the others are behind a link."""
_ROLLOUTS = 480
"""Rollouts on a page of one task."""
_SEEN = 2_000
"""Runs that are looked through for the names of tools."""

_COUNTED = """
count(*) AS runs,
count(*) FILTER (WHERE r.state = 'completed' AND r.reward IS NOT NULL) AS scored,
total(r.reward - :shift) FILTER (WHERE r.state = 'completed') AS sum,
total((r.reward - :shift) * (r.reward - :shift)) FILTER (WHERE r.state = 'completed') AS squares
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """The runs that a filter leaves, counted."""

    tasks: int
    runs: int
    scored: int
    mean: float | None
    se: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreMean:
    """What one verify step said, over the completed runs that it scored."""

    step: str
    scored: int
    mean: float
    se: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A task and its rollouts that a filter leaves."""

    task: str
    runs: int
    scored: int
    mean: float | None
    spread: float | None
    """The standard deviation of its rewards: what a group-relative trainer learns from."""
    before: float | None
    """Its mean in the step before; None where it was not played there."""
    rollouts: tuple[Rollout, ...]
    more: int
    """Rollouts that are not among them."""

    @property
    def extremes(self) -> tuple[Rollout, Rollout] | None:
        """The best and the worst of the rollouts, where they differ."""
        scored = [(rollout.score, rollout) for rollout in self.rollouts if rollout.score is not None]
        if not scored:
            return None
        best, worst = max(scored, key=lambda pair: pair[0]), min(scored, key=lambda pair: pair[0])
        return None if best[0] == worst[0] else (best[1], worst[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some tasks of a group."""

    sort: Sort
    matched: Matched
    scores: tuple[ScoreMean, ...]
    tools: tuple[str, ...]
    rows: tuple[TaskRow, ...]
    earlier: int | None
    later: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A group and what is around it."""

    key: int
    shift: float
    """Near its rewards: sums of squares do not cancel when they are of the difference to it."""
    group: GroupSummary
    before_key: int | None
    before: GroupSummary | None
    neighbours: Neighbours
    siblings: Mapping[str, str]
    other_group: str | None

    def read_page(self, conn: sqlite3.Connection, asked: GroupFilter, *, sort: Sort | None, offset: int) -> Page:
        """Read the tasks from the `offset`th on, in order, with their rollouts that `asked` leaves."""
        is_large = self.group.runs > _LARGE
        if sort is None:
            sort = Sort.TASK if is_large else Sort.SPREAD
        tools = _tools(conn, self.key)
        where = where_of(
            self.key,
            asked,
            dead=dead_json(conn),
            tools=[tool for tool in tools if visible(tool) == asked.tool] or [asked.tool],
            found=(),
        )
        matched = _matched(conn, where, self.shift)
        if asked.task:
            tasks, first, most = [asked.task] if matched.tasks else [], offset, _ROLLOUTS
        else:
            tasks, first, most = self._tasks(conn, where, sort, offset), 0, _CELLS
        rows = self._rows(conn, where, tasks[:_TASKS], first=first, most=most)
        size = _ROLLOUTS if asked.task else _TASKS
        has_more = bool(rows and rows[0].more) if asked.task else len(tasks) > _TASKS
        return Page(
            sort=sort,
            matched=matched,
            scores=() if is_large else _scores(conn, where),
            tools=tuple(tools),
            rows=tuple(rows),
            earlier=max(0, offset - size) if offset else None,
            later=offset + size if has_more else None,
        )

    def _tasks(self, conn: sqlite3.Connection, where: Where, sort: Sort, offset: int) -> list[str]:
        """The names of a page of tasks and of one more."""
        values = {**where.values, "shift": self.shift, "before": self.before_key, "limit": _TASKS + 1, "offset": offset}
        if sort is Sort.TASK:
            sql = f"SELECT DISTINCT r.task_id FROM runs r WHERE {where.sql} ORDER BY r.task_id"
        else:
            sql = f"SELECT task_id FROM ({_by_task(where)}) t ORDER BY {_ORDERS[sort]}, task_id"
        return [row[0] for row in conn.execute(f"{sql} LIMIT :limit OFFSET :offset", values)]

    def _rows(
        self, conn: sqlite3.Connection, where: Where, tasks: Sequence[str], *, first: int, most: int
    ) -> list[TaskRow]:
        among = f"{where.sql} AND r.task_id IN (SELECT value FROM json_each(:tasks))"
        values = {**where.values, "tasks": json.dumps(tasks), "shift": self.shift}
        counts = {row["task_id"]: row for row in conn.execute(_by_task(Where(sql=among, values={})), values)}
        before = self._before(conn, tasks)
        rows: list[TaskRow] = []
        for task in tasks:
            found = conn.execute(
                f"SELECT {ROLLOUT_COLUMNS} FROM runs r WHERE {where.sql} AND r.task_id = :this"
                " ORDER BY r.attempt, r.rollout LIMIT :limit OFFSET :offset",
                {**where.values, "this": task, "limit": most, "offset": first},
            ).fetchall()
            counted = counts[task]
            mean, variance = _mean_and_variance(counted, self.shift)
            rows.append(
                TaskRow(
                    task=task,
                    runs=counted["runs"],
                    scored=counted["scored"],
                    mean=mean,
                    spread=None if variance is None else math.sqrt(variance),
                    before=before.get(task),
                    rollouts=tuple([rollout_of(row) for row in found]),
                    more=max(0, counted["runs"] - first - len(found)),
                )
            )
        return rows

    def _before(self, conn: sqlite3.Connection, tasks: Sequence[str]) -> dict[str, float]:
        """The means of these tasks in the step before."""
        if self.before_key is None:
            return {}
        rows = conn.execute(
            "SELECT task_id, avg(reward) FROM runs WHERE group_key = ? AND task_id IN (SELECT value FROM json_each(?))"
            " AND state = 'completed' AND reward IS NOT NULL GROUP BY task_id",
            (self.before_key, json.dumps(tasks)),
        )
        return dict(rows.fetchall())


_VARIANCE = "squares / scored - (sum / scored) * (sum / scored)"
_ORDERS: Mapping[Sort, str] = {
    Sort.SPREAD: f"scored = 0, round({_VARIANCE}, 12) DESC, sum / scored",
    Sort.MEAN: "scored = 0, sum / scored",
    Sort.CHANGE: "scored = 0, :shift + sum / scored - (SELECT avg(b.reward) FROM runs b WHERE b.group_key = :before"
    " AND b.task_id = t.task_id AND b.state = 'completed') NULLS LAST, sum / scored",
}


def read_step(conn: sqlite3.Connection, name: str, *, other: str = "") -> Step:
    """A group and what is around it.

    Args:
        conn: What to ask.
        name: The group's.
        other: A training run whose group of the same split and step is looked for.

    Raises:
        UsageError: When there is no such group.
    """
    groups = read_groups(conn, names=[name])
    if not groups:
        raise UsageError(f"no group {name!r}: the first page lists the training runs, and each its groups")
    place = groups[0].place
    key, shift = tuple(conn.execute("SELECT key, coalesce(shift, 0) FROM groups WHERE name = ?", (name,)).fetchone())
    neighbours = Neighbours(before=None, after=None)
    siblings: dict[str, str] = {}
    other_group = None
    if place is not None:
        neighbours = _neighbours(conn, place.training, place.split, place.step)
        siblings = dict(
            conn.execute(
                "SELECT split, name FROM groups WHERE training = ? AND step = ? AND split <> ?"
                " ORDER BY split <> 'train', split",
                (place.training, place.step, place.split),
            ).fetchall()
        )
        other_group = first_text(
            conn.execute(
                "SELECT name FROM groups WHERE training = ? AND split = ? AND step = ?",
                (other, place.split, place.step),
            )
        )
    before = read_groups(conn, names=[neighbours.before])[0] if neighbours.before is not None else None
    before_key = None
    if before is not None:
        before_key = conn.execute("SELECT key FROM groups WHERE name = ?", (before.name,)).fetchone()[0]
    return Step(
        key=key,
        shift=shift,
        group=groups[0],
        before_key=before_key,
        before=before,
        neighbours=neighbours,
        siblings=siblings,
        other_group=other_group,
    )


def _neighbours(conn: sqlite3.Connection, training: str, split: str, step: int) -> Neighbours:
    place = (training, split, step)
    sql = "SELECT name FROM groups WHERE training = ? AND split = ? AND step {} ? ORDER BY step {} LIMIT 1"
    return Neighbours(
        before=first_text(conn.execute(sql.format("<", "DESC"), place)),
        after=first_text(conn.execute(sql.format(">", "ASC"), place)),
    )


def _by_task(where: Where) -> str:
    return f"SELECT r.task_id, {_COUNTED} FROM runs r WHERE {where.sql} GROUP BY r.task_id"


def _matched(conn: sqlite3.Connection, where: Where, shift: float) -> Matched:
    row = conn.execute(
        f"SELECT count(DISTINCT r.task_id) AS tasks, {_COUNTED} FROM runs r WHERE {where.sql}",
        {**where.values, "shift": shift},
    ).fetchone()
    mean, variance = _mean_and_variance(row, shift)
    return Matched(
        tasks=row["tasks"],
        runs=row["runs"],
        scored=row["scored"],
        mean=mean,
        se=_standard_error(variance, row["scored"]),
    )


def _scores(conn: sqlite3.Connection, where: Where) -> tuple[ScoreMean, ...]:
    rows = conn.execute(
        "SELECT j.key AS step, count(*) AS n, avg(j.value) AS mean, avg(j.value * j.value) AS squares, min(j.id)"
        f" FROM runs r, json_each(r.scores) j WHERE {where.sql} AND r.state = 'completed'"
        " GROUP BY j.key ORDER BY 5",
        where.values,
    ).fetchall()
    if len(rows) < 2:
        return ()
    return tuple(
        ScoreMean(
            step=row["step"],
            scored=row["n"],
            mean=row["mean"],
            se=_standard_error(max(0.0, row["squares"] - row["mean"] ** 2), row["n"]),
        )
        for row in rows
    )


def _tools(conn: sqlite3.Connection, group_key: int) -> list[str]:
    rows = conn.execute(
        "SELECT DISTINCT j.key FROM (SELECT tools FROM runs WHERE group_key = ? LIMIT ?) r, json_each(r.tools) j"
        " ORDER BY 1",
        (group_key, _SEEN),
    )
    return [row[0] for row in rows]


def _mean_and_variance(row: sqlite3.Row, shift: float) -> tuple[float | None, float | None]:
    n = row["scored"]
    if n == 0:
        return None, None
    mean = row["sum"] / n
    return shift + mean, max(0.0, row["squares"] / n - mean * mean)


def _standard_error(variance: float | None, n: int) -> float | None:
    return None if variance is None or n < 2 else math.sqrt(variance / (n - 1))
