"""A group's tasks by rollouts: those that a filter leaves, in an order, a page at a time.

Of a group of some thousand runs all is read that is counted here. Of a larger one the tasks come by name unless another order
is asked for, so that what is read is the page and not the group.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from agent_env.errors import UsageError
from agent_env.runs._reading import dead_json, mean_of, moments, variance_of
from agent_env.runs._search import runs_with
from agent_env.runs.explorer.group_filter import GroupFilter, Sort, Where, where_of
from agent_env.runs.explorer.placed_group import PlacedGroup
from agent_env.runs.explorer.rollouts import ROLLOUT_COLUMNS, Rollout, rollout_of
from agent_env.runs.explorer.site import Site
from agent_env.runs.explorer.wording import plural
from agent_env.runs.visible import visible

__all__ = ["Matched", "TaskPage", "TaskRow", "read_tasks", "task_means"]

_TASKS = 100
_CELLS = 48
"""Rollouts that a row shows; the others are behind a link."""
_ROLLOUTS = 480
"""Rollouts on a page of one task."""
_SEARCH_S = 2.0
"""Looking for a text stops after this long."""
_CUT = "The search stopped where its time was over: older runs were not looked through."


class _Count(NamedTuple):
    """The runs of one task, counted. The sums are of the difference to the group's `shift`."""

    task: str
    runs: int
    scored: int
    total: float
    squares: float

    @property
    def mean(self) -> float:
        """The mean above `shift`; 0 where none is scored."""
        return self.total / self.scored if self.scored else 0.0

    @property
    def variance(self) -> float:
        """Of the rewards; 0 where none is scored."""
        return variance_of(self.scored, self.total, self.squares) if self.scored else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """The runs that a filter leaves, counted."""

    tasks: int
    runs: int
    scored: int
    mean: float | None
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
    def name_id(self) -> str:
        """An id for its row, so that it is found again when others come between: a name may have any sign in it."""
        return f"t{blake2b(self.task.encode('utf-8', 'replace'), digest_size=8).hexdigest()}"

    @property
    def extremes(self) -> tuple[Rollout, Rollout] | None:
        """The best and the worst of the rollouts, where they differ."""
        scored = [(rollout.score, rollout) for rollout in self.rollouts if rollout.score is not None]
        if not scored:
            return None
        best, worst = max(scored, key=lambda pair: pair[0]), min(scored, key=lambda pair: pair[0])
        return None if best[0] == worst[0] else (best[1], worst[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Searched:
    """The runs that have a text."""

    run_ids: tuple[str, ...] = ()
    problem: str = ""
    """Why they are not all of them; empty where they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPage:
    """Some tasks of a group."""

    sort: Sort
    matched: Matched
    problem: str
    """Why the filter's text was not looked for in all runs; empty where it was."""
    rows: tuple[TaskRow, ...]
    earlier: int | None
    later: int | None
    """Where the page before and the page after start."""


def read_tasks(
    site: Site,
    conn: sqlite3.Connection,
    group: PlacedGroup,
    asked: GroupFilter,
    *,
    tools: Sequence[str],
    sort: Sort | None,
    offset: int,
) -> TaskPage:
    """Read some tasks in order, with their rollouts that a filter leaves.

    Args:
        site: What remembers what takes long.
        conn: What to ask.
        group: Whose tasks.
        asked: The filter.
        tools: The names of the tools that its runs called.
        sort: The order; None for the one that suits the group.
        offset: The place of the first task, or with one task that of its first rollout.
    """
    if sort is None:
        sort = Sort.TASK if group.is_large else Sort.SPREAD
    searched = _runs_with_text(site, group.summary.name, asked.text)
    where = where_of(
        group.key,
        asked,
        dead=dead_json(conn),
        tools=[tool for tool in tools if visible(tool) == asked.tool] or [asked.tool],
        found=searched.run_ids,
    )
    if group.is_large and sort is Sort.TASK and not asked.is_on:
        counts, matched = _counts_by_name(conn, group, where, offset)
    else:
        counts = _all_counts(site, conn, group, where)
        matched = _matched(counts, group.shift)
        _put_in_order(conn, group, counts, sort)
        counts = counts if asked.task else counts[offset : offset + _TASKS + 1]
    if asked.task:
        rows = _rows(conn, group, where, counts, first=offset, most=_ROLLOUTS)
        size, has_more = _ROLLOUTS, any(row.more for row in rows)
    else:
        rows = _rows(conn, group, where, counts[:_TASKS], first=0, most=_CELLS)
        size, has_more = _TASKS, len(counts) > _TASKS
    return TaskPage(
        sort=sort,
        matched=matched,
        problem=searched.problem,
        rows=tuple(rows),
        earlier=max(0, offset - size) if offset else None,
        later=offset + size if has_more else None,
    )


def _runs_with_text(site: Site, group: str, text: str) -> _Searched:
    if not text:
        return _Searched()

    def ask() -> _Searched:
        with site.reader.asking() as conn:
            found = runs_with(conn, text, group=group, limit_s=_SEARCH_S)
        problem = "" if found.is_all else _CUT
        if found.is_all and found.waiting:
            problem = f"{plural(found.waiting, 'piece')} of runs written just now cannot be found yet."
        return _Searched(run_ids=found.run_ids, problem=problem)

    try:
        return site.memory.get(("text", group, text), ask)
    except UsageError as exc:
        return _Searched(problem=str(exc))


def _all_counts(site: Site, conn: sqlite3.Connection, group: PlacedGroup, where: Where) -> list[_Count]:
    if not group.is_large:
        return _counts(conn, where, group.shift)

    def ask() -> tuple[_Count, ...]:
        with site.reader.asking() as fresh:
            return tuple(_counts(fresh, where, group.shift))

    return list(site.memory.get(("counts", where.sql, json.dumps(where.values)), ask))


def _counts_by_name(
    conn: sqlite3.Connection, group: PlacedGroup, where: Where, offset: int
) -> tuple[list[_Count], Matched]:
    """Some tasks by name and one more, and all runs counted, without reading each."""
    names = conn.execute(
        f"SELECT DISTINCT r.task_id FROM runs r WHERE {where.sql} ORDER BY r.task_id LIMIT :limit OFFSET :offset",
        {**where.values, "limit": _TASKS + 1, "offset": offset},
    ).fetchall()
    tasks = conn.execute(f"SELECT count(DISTINCT r.task_id) FROM runs r WHERE {where.sql}", where.values).fetchone()
    among = Where(
        sql=f"{where.sql} AND r.task_id IN (SELECT value FROM json_each(:tasks))",
        values={**where.values, "tasks": json.dumps([name[0] for name in names])},
    )
    whole = group.summary
    matched = Matched(tasks=tasks[0], runs=whole.runs, scored=whole.scored, mean=whole.reward_mean, se=whole.reward_se)
    return _counts(conn, among, group.shift), matched


def _counts(conn: sqlite3.Connection, where: Where, shift: float) -> list[_Count]:
    """Each task's runs, by name."""
    cursor = conn.cursor()
    cursor.row_factory = None  # plain tuples: there may be thousands of rows
    rows = cursor.execute(
        "SELECT r.task_id, count(*), count(r.reward) FILTER (WHERE r.state = 'completed'),"
        " total(r.reward - :shift) FILTER (WHERE r.state = 'completed'),"
        " total((r.reward - :shift) * (r.reward - :shift)) FILTER (WHERE r.state = 'completed')"
        f" FROM runs r WHERE {where.sql} GROUP BY r.task_id ORDER BY r.task_id",
        {**where.values, "shift": shift},
    )
    return [_Count(*row) for row in rows]


def _matched(counts: Sequence[_Count], shift: float) -> Matched:
    scored = sum([count.scored for count in counts])
    mean, se = moments(scored, shift, sum([count.total for count in counts]), sum([count.squares for count in counts]))
    return Matched(tasks=len(counts), runs=sum([count.runs for count in counts]), scored=scored, mean=mean, se=se)


def _put_in_order(conn: sqlite3.Connection, group: PlacedGroup, counts: list[_Count], sort: Sort) -> None:
    """Sort tasks that come by name. Where no rollout is scored there is nothing to sort by: those come last."""
    match sort:
        case Sort.TASK:
            pass
        case Sort.MEAN:
            counts.sort(key=lambda count: (count.scored == 0, count.mean))
        case Sort.SPREAD:
            counts.sort(key=lambda count: (count.scored == 0, -round(count.variance, 12), count.mean))
        case Sort.CHANGE:
            before = _means_before(conn, group, counts)
            counts.sort(
                key=lambda count: (
                    count.scored == 0 or count.task not in before,
                    group.shift + count.mean - before.get(count.task, 0.0),
                )
            )


def _rows(
    conn: sqlite3.Connection, group: PlacedGroup, where: Where, counts: Sequence[_Count], *, first: int, most: int
) -> list[TaskRow]:
    before = _means_before(conn, group, counts)
    rows: list[TaskRow] = []
    for count in counts:
        found = conn.execute(
            f"SELECT {ROLLOUT_COLUMNS} FROM runs r WHERE {where.sql} AND r.task_id = :this"
            " ORDER BY r.attempt, r.rollout LIMIT :limit OFFSET :offset",
            {**where.values, "this": count.task, "limit": most, "offset": first},
        ).fetchall()
        rows.append(
            TaskRow(
                task=count.task,
                runs=count.runs,
                scored=count.scored,
                mean=mean_of(count.scored, group.shift, count.total) if count.scored else None,
                spread=math.sqrt(count.variance) if count.scored else None,
                before=before.get(count.task),
                rollouts=tuple([rollout_of(row) for row in found]),
                more=max(0, count.runs - first - len(found)),
            )
        )
    return rows


def task_means(conn: sqlite3.Connection, group: str, tasks: Sequence[str] | None = None) -> dict[str, float]:
    """The mean reward of each task of a group that has one; of all of them, or of some."""
    among = "" if tasks is None else " AND task_id IN (SELECT value FROM json_each(:tasks))"
    rows = conn.execute(
        "SELECT task_id, avg(reward) FROM runs WHERE group_key = (SELECT key FROM groups WHERE name = :group)"
        f"{among} AND state = 'completed' AND reward IS NOT NULL GROUP BY task_id",
        {"group": group, "tasks": json.dumps(tasks)},
    )
    return dict(rows.fetchall())


def _means_before(conn: sqlite3.Connection, group: PlacedGroup, counts: Sequence[_Count]) -> dict[str, float]:
    """The means of these tasks in the step before."""
    return {} if group.before is None else task_means(conn, group.before.name, [count.task for count in counts])
