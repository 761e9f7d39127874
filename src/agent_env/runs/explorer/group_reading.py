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
from hashlib import blake2b
from typing import NamedTuple

from agent_env.errors import UsageError
from agent_env.runs._reading import dead_json, moments, read_groups
from agent_env.runs._search import runs_with
from agent_env.runs.explorer.group_filter import GroupFilter, Sort, Where, where_of
from agent_env.runs.explorer.neighbours import Neighbours, first_text
from agent_env.runs.explorer.rollouts import ROLLOUT_COLUMNS, Rollout, rollout_of
from agent_env.runs.explorer.site import Site
from agent_env.runs.explorer.wording import plural
from agent_env.runs.record import GroupSummary
from agent_env.runs.visible import visible

__all__ = ["Matched", "Page", "ScoreMean", "Searched", "Step", "TaskRow", "read_step"]

_LARGE = 20_000
"""Runs from which on a group's tasks come by name."""
_TASKS = 100
_CELLS = 48
"""Rollouts that a row shows; the others are behind a link."""
_ROLLOUTS = 480
"""Rollouts on a page of one task."""
_SEARCH_S = 2.0
"""Looking for a text stops after this long."""
_CUT = "The search stopped where its time was over: older runs were not looked through."
_SEEN = 1_000
"""Runs that are looked through for the names of tools."""


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
        return max(0.0, self.squares / self.scored - self.mean**2) if self.scored else 0.0


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
class Searched:
    """The runs that have a text."""

    run_ids: tuple[str, ...] = ()
    problem: str = ""
    """Why they are not all of them; empty where they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Some tasks of a group."""

    sort: Sort
    matched: Matched
    scores: tuple[ScoreMean, ...]
    tools: tuple[str, ...]
    searched: Searched
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

    def read_page(
        self, site: Site, conn: sqlite3.Connection, asked: GroupFilter, *, sort: Sort | None, offset: int
    ) -> Page:
        """Read the tasks from the `offset`th on, in order, with their rollouts that `asked` leaves."""
        is_large = self.group.runs > _LARGE
        if sort is None:
            sort = Sort.TASK if is_large else Sort.SPREAD
        tools = _tools(conn, self.key)
        searched = self._with_text(site, asked.text)
        where = where_of(
            self.key,
            asked,
            dead=dead_json(conn),
            tools=[tool for tool in tools if visible(tool) == asked.tool] or [asked.tool],
            found=searched.run_ids,
        )
        if is_large and sort is Sort.TASK and not asked.is_on:
            counts, matched = self._counts_by_name(conn, where, offset)
        else:
            counts = self._all_counts(site, conn, where)
            matched = _matched(counts, self.shift)
            self._put_in_order(conn, counts, sort)
            counts = counts if asked.task else counts[offset : offset + _TASKS + 1]
        if asked.task:
            rows = self._rows(conn, where, counts, first=offset, most=_ROLLOUTS)
            size, has_more = _ROLLOUTS, any(row.more for row in rows)
        else:
            rows = self._rows(conn, where, counts[:_TASKS], first=0, most=_CELLS)
            size, has_more = _TASKS, len(counts) > _TASKS
        return Page(
            sort=sort,
            matched=matched,
            scores=() if is_large else _scores(conn, self.key),
            tools=tuple(tools),
            searched=searched,
            rows=tuple(rows),
            earlier=max(0, offset - size) if offset else None,
            later=offset + size if has_more else None,
        )

    def _with_text(self, site: Site, text: str) -> Searched:
        """The group's runs that have a text."""
        if not text:
            return Searched()

        def ask() -> Searched:
            with site.reader.asking() as conn:
                found = runs_with(conn, text, group=self.group.name, limit_s=_SEARCH_S)
            problem = "" if found.is_all else _CUT
            if found.is_all and found.waiting:
                problem = f"{plural(found.waiting, 'piece')} of runs written just now cannot be found yet."
            return Searched(run_ids=found.run_ids, problem=problem)

        try:
            return site.memory.get(("text", self.group.name, text), ask)
        except UsageError as exc:
            return Searched(problem=str(exc))

    def _all_counts(self, site: Site, conn: sqlite3.Connection, where: Where) -> list[_Count]:
        if self.group.runs <= _LARGE:
            return _counts(conn, where, self.shift)

        def ask() -> tuple[_Count, ...]:
            with site.reader.asking() as fresh:
                return tuple(_counts(fresh, where, self.shift))

        return list(site.memory.get(("counts", where.sql, json.dumps(where.values)), ask))

    def _counts_by_name(self, conn: sqlite3.Connection, where: Where, offset: int) -> tuple[list[_Count], Matched]:
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
        group = self.group
        matched = Matched(
            tasks=tasks[0], runs=group.runs, scored=group.scored, mean=group.reward_mean, se=group.reward_se
        )
        return _counts(conn, among, self.shift), matched

    def _put_in_order(self, conn: sqlite3.Connection, counts: list[_Count], sort: Sort) -> None:
        """Sort tasks that come by name. Where no rollout is scored there is nothing to sort by: those come last."""
        match sort:
            case Sort.TASK:
                pass
            case Sort.MEAN:
                counts.sort(key=lambda count: (count.scored == 0, count.mean))
            case Sort.SPREAD:
                counts.sort(key=lambda count: (count.scored == 0, -round(count.variance, 12), count.mean))
            case Sort.CHANGE:
                before = self._before(conn, [count.task for count in counts])
                counts.sort(
                    key=lambda count: (
                        count.scored == 0 or count.task not in before,
                        self.shift + count.mean - before.get(count.task, 0.0),
                    )
                )

    def _rows(
        self, conn: sqlite3.Connection, where: Where, counts: Sequence[_Count], *, first: int, most: int
    ) -> list[TaskRow]:
        before = self._before(conn, [count.task for count in counts])
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
                    mean=self.shift + count.mean if count.scored else None,
                    spread=math.sqrt(count.variance) if count.scored else None,
                    before=before.get(count.task),
                    rollouts=tuple([rollout_of(row) for row in found]),
                    more=max(0, count.runs - first - len(found)),
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


def _scores(conn: sqlite3.Connection, group_key: int) -> tuple[ScoreMean, ...]:
    rows = conn.execute(
        "SELECT j.key AS step, count(*) AS n, avg(j.value) AS mean, avg(j.value * j.value) AS squares, min(j.id)"
        " FROM runs r, json_each(r.scores) j WHERE r.group_key = ? AND r.state = 'completed' GROUP BY j.key ORDER BY 5",
        (group_key,),
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


def _standard_error(variance: float | None, n: int) -> float | None:
    return None if variance is None or n < 2 else math.sqrt(variance / (n - 1))
