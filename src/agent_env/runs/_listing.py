"""Lists of runs, a page at a time. What cannot be read is left out and counted: the others are listed all the same."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from agent_env.errors import UsageError
from agent_env.runs._reading import Reader, dead_json, runs_by_key, stands
from agent_env.runs._where import Condition, keys_where
from agent_env.runs.record import RunOrder, RunPage, RunState, RunSummary

__all__ = ["Listed", "count", "go_through", "read_page", "select_page"]

_COUNTED_AT_ONCE = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Some runs with their keys."""

    keys: list[int]
    runs_by_key: dict[int, RunSummary]
    damaged: int
    """How many could not be read and are left out."""

    @property
    def runs(self) -> list[RunSummary]:
        """The runs, in order."""
        return list(self.runs_by_key.values())


def read_page(
    conn: sqlite3.Connection,
    group: str,
    *,
    state: RunState | None = None,
    task_id: str | None = None,
    after: str | None = None,
    limit: int = 100,
) -> RunPage:
    """List some runs of a group, by task, attempt and rollout."""
    where = ["g.name = :group"]
    dead = dead_json(conn)
    values: dict[str, Any] = {"group": group, "dead": dead, "limit": limit + 1}
    if state is not None:
        where.append(stands(state, dead))
    if task_id is not None:
        where.append("r.task_id = :task")
        values["task"] = task_id
    if after is not None:
        last = conn.execute("SELECT task_id, attempt, rollout FROM runs WHERE run_id = ?", (after,)).fetchone()
        if last is None:
            raise UsageError(f"no run {after!r} to go on from: start at the first page again")
        where.append("(r.task_id, r.attempt, r.rollout) > (:task_id, :attempt, :rollout)")
        values |= {"task_id": last[0], "attempt": last[1], "rollout": last[2]}
    runs: list[RunSummary] = []
    damaged = 0
    while len(runs) <= limit:
        # The keys come from an index, which is whole where the runs themselves are not.
        rows = conn.execute(
            "SELECT r.key, r.task_id, r.attempt, r.rollout FROM runs r JOIN groups g ON g.key = r.group_key"
            f" WHERE {' AND '.join(where)} ORDER BY r.task_id, r.attempt, r.rollout LIMIT :limit",
            values,
        ).fetchall()
        found, unreadable = runs_by_key(conn, [row[0] for row in rows])
        runs += found.values()
        damaged += unreadable
        if len(rows) <= limit or not unreadable:
            break
        if "task_id" not in values:
            where.append("(r.task_id, r.attempt, r.rollout) > (:task_id, :attempt, :rollout)")
        values |= {"task_id": rows[-1][1], "attempt": rows[-1][2], "rollout": rows[-1][3]}
    more = len(runs) > limit
    return RunPage(runs=tuple(runs[:limit]), next_page=runs[limit - 1].run_id if more else None, damaged=damaged)


def select_page(
    conn: sqlite3.Connection, condition: Condition, *, order: RunOrder, limit: int, after: str | None = None
) -> RunPage:
    """List some runs that a condition is true of.

    Raises:
        UsageError: When the condition cannot be used, or `after` is no run of this index.
    """
    if after is not None and not (after.isascii() and after.isdecimal() and len(after) < 19):
        raise UsageError(f"after={after[:40]!r} is from no page of this list: start at the first page again")
    found = _list(conn, condition, order=order, limit=limit + 1, after=None if after is None else int(after))
    if len(found.keys) <= limit:
        return RunPage(runs=tuple(found.runs), next_page=None, damaged=found.damaged)
    shown = set(found.keys[:limit])
    runs = [run for key, run in found.runs_by_key.items() if key in shown]
    return RunPage(runs=tuple(runs), next_page=str(found.keys[limit - 1]), damaged=found.damaged)


def go_through(reader: Reader, condition: Condition, *, size: int) -> Generator[Listed]:
    """All the runs that a condition is true of, the oldest first, `size` at a time.

    Each page is a question of its own, so that no writer is held up. Runs that are filed meanwhile are left out.

    Raises:
        UsageError: When the condition cannot be used.
        RunIndexError: When the index cannot be read.
    """
    with reader.asking() as conn:
        until = int(conn.execute("SELECT coalesce(max(key), 0) FROM runs").fetchone()[0])
    after = 0
    while True:
        with reader.asking(limit_s=60.0) as conn:
            found = _list(conn, condition, order=RunOrder.OLDEST, limit=size, after=after, until=until)
        yield found
        if len(found.keys) < size:
            return
        after = found.keys[-1]


def count(reader: Reader, condition: Condition) -> int:
    """How many runs a condition is true of. Raises as `go_through` does."""
    total, after = 0, 0
    while True:
        with reader.asking(limit_s=60.0) as conn:
            keys, _ = keys_where(conn, condition, order=RunOrder.OLDEST, limit=_COUNTED_AT_ONCE, after=after)
        total += len(keys)
        if len(keys) < _COUNTED_AT_ONCE:
            return total
        after = keys[-1]


def _list(
    conn: sqlite3.Connection,
    condition: Condition,
    *,
    order: RunOrder,
    limit: int,
    after: int | None = None,
    until: int | None = None,
) -> Listed:
    keys, unreadable = keys_where(conn, condition, order=order, limit=limit, after=after, until=until)
    runs, damaged = runs_by_key(conn, keys)
    return Listed(keys=keys, runs_by_key=runs, damaged=damaged + unreadable)
