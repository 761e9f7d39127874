"""Writing a batch: every statement that records runs, in one transaction of the writer thread.

A statement takes many rows: between two statements the thread may have to wait for the interpreter, and other processes
with it for the lock.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any

from agent_env.runs._codec import CODEC_ZSTD
from agent_env.runs._log import Ended, RunLog
from agent_env.runs._owner import Owner, this_process
from agent_env.runs._packing import PackedChunk, PackedHead, PackedPart
from agent_env.runs._schema import GROUPS_BELOW, bounds_below, immediate
from agent_env.runs.record import RECORD_VERSION, RunState, place_of

__all__ = [
    "Written",
    "close_writer",
    "dead_writers",
    "delete_runs",
    "delete_some_runs",
    "in_few",
    "mark_interrupted",
    "write_batch",
]

_SUMMED_AT_MOST = 20_000
"""Scored runs of a group that is added up again; of a larger one it would hold other writers up."""
_DELETE_AT_ONCE = 500
"""Runs a transaction deletes: other processes write in between."""
_ROWS = (64, 16, 4, 1)
"""How many rows a statement takes: few forms, so that each is prepared once."""

_TOTALS = "events, messages, calls, call_errors, turns, tools, times, prompt_tokens, sampled_tokens, last_at_s"
_END = "state, cut, failure_kind, failure_step, failure_message, scores, ended_at_s"
_INSERT_RUNS = f"""
INSERT INTO runs (key, run_id, record_version, group_key, writer_key, task_id, attempt, rollout, labels, bundle_name,
    bundle_version, opened_at_s, reward, {_TOTALS}, {_END}) VALUES {{values}}
"""
_SET_TOTALS = ", ".join(f"{name} = new.{name}" for name in _TOTALS.split(", "))
_SET_END = ", ".join(f"{name} = new.{name}" for name in _END.split(", "))
_UPDATE_GOING = (
    f"WITH new (key, {_TOTALS}) AS (VALUES {{values}}) UPDATE runs SET {_SET_TOTALS} FROM new WHERE runs.key = new.key"
)
_UPDATE_ENDED = f"""
WITH new (key, reward, {_TOTALS}, {_END}) AS (VALUES {{values}})
UPDATE runs SET {_SET_TOTALS}, {_SET_END}, reward = coalesce(new.reward, runs.reward) FROM new WHERE runs.key = new.key
"""
_UPDATE_REWARD = (
    "WITH new (key, reward) AS (VALUES {values}) UPDATE runs SET reward = new.reward FROM new WHERE runs.key = new.key"
)
# In two passes: the mean, then the squares of the differences to it.
_SUM_ANEW = """
UPDATE groups SET (shift, total, squares) = (
    SELECT mean, total(reward - mean), total((reward - mean) * (reward - mean))
    FROM runs, (SELECT avg(reward) AS mean FROM runs
        WHERE group_key = :group AND state = 'completed' AND reward IS NOT NULL)
    WHERE group_key = :group AND state = 'completed' AND reward IS NOT NULL
) WHERE key = :group AND scored BETWEEN 1 AND :most
"""
_LAST_ROLLOUTS = """
WITH new (group_key, task_id, attempt) AS (VALUES {values}) SELECT new.group_key, new.task_id, new.attempt,
    (SELECT coalesce(max(rollout) + 1, 0) FROM runs
        WHERE group_key = new.group_key AND task_id = new.task_id AND attempt = new.attempt)
FROM new
"""
_INSERT_CHUNKS = "INSERT INTO chunks (key, run_key, first_seq, count, raw_bytes, codec, body) VALUES {values}"
_INSERT_HEADS = "INSERT INTO heads (run_key, codec, body) VALUES {values}"
_INSERT_TOKENS = "INSERT OR REPLACE INTO tokens (run_key, message, codec, body) VALUES {values}"


@dataclass(slots=True)
class _Change:
    """All that a batch has of one run."""

    log: RunLog
    last: PackedPart
    """The newest part: its totals hold."""
    head: PackedHead | None = None
    ended: Ended | None = None
    reward: float | None = None
    chunks: list[PackedChunk] = field(default_factory=list[PackedChunk])
    tokens: dict[int, bytes] = field(default_factory=dict[int, bytes])
    key: int | None = None

    @property
    def totals(self) -> tuple[Any, ...]:
        """The values of `_TOTALS`."""
        part = self.last
        found = part.totals
        return (
            *(found.events, found.messages, found.calls, found.call_errors, found.turns),
            *(part.tools, part.times, found.prompt_tokens, found.sampled_tokens, part.last_at_s),
        )

    @property
    def end(self) -> tuple[Any, ...]:
        """The values of `_END`."""
        if (ended := self.ended) is None:
            return (RunState.RUNNING, None, None, None, None, "{}", None)
        return (
            *(ended.state, ended.cut, ended.failure_kind, ended.failure_step, ended.failure_message),
            *(ended.scores, ended.at_s),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What came of a batch."""

    writer_key: int
    words: Sequence[tuple[int, str]]
    """For the search index: each chunk's key, and the words in it."""


def write_batch(conn: sqlite3.Connection, writer_key: int | None, batch: Sequence[PackedPart]) -> Written:
    """Write a batch, all of it or nothing.

    Args:
        conn: The connection to write on.
        writer_key: The key of this process; None makes one.
        batch: What is new, in the order in which it was taken.

    Raises:
        sqlite3.Error: When it cannot be written; nothing is then.
    """
    changes = _changes(batch)
    with immediate(conn):
        if writer_key is None:
            writer_key = _register(conn)
        groups = _group_keys(conn, changes)
        _insert_runs(conn, writer_key, [change for change in changes if change.head is not None], groups)
        _update_runs(conn, [change for change in changes if change.head is None])
        written = [change for change in changes if change.key is not None]
        words = _write_bodies(conn, written)
        conn.execute(
            "UPDATE writers SET last_write_at_s = ?, chunks_to = max(chunks_to, ?) WHERE key = ?",
            (time.time(), words[-1][0] if words else 0, writer_key),
        )
        newest: dict[int, float] = {}
        for change in written:
            key = groups[change.log.group]
            newest[key] = max(change.last.last_at_s, newest.get(key, 0.0))
        conn.executemany(
            "UPDATE groups SET last_at_s = max(last_at_s, ?) WHERE key = ?",
            [(at_s, key) for key, at_s in newest.items()],
        )
    for change in changes:  # only now: what a rolled back transaction numbered does not exist
        change.log.key = change.key
    return Written(writer_key=writer_key, words=words)


def mark_interrupted(conn: sqlite3.Connection) -> None:
    """Give the runs of dead processes their end.

    Raises:
        sqlite3.Error: When it cannot be written.
    """
    dead = dead_writers(conn)
    if not dead:
        return
    with immediate(conn):
        for key in dead:
            close_writer(conn, key)


def dead_writers(conn: sqlite3.Connection) -> list[int]:
    """The keys of the processes that died with the index open."""
    rows = conn.execute(
        "SELECT key, pid, started, boot, pid_space, last_write_at_s FROM writers WHERE closed_at_s IS NULL"
    )
    return [
        int(key)
        for key, pid, started, boot, pid_space, last_write_at_s in rows
        if not Owner(pid=pid, started=started, boot=boot, pid_space=pid_space).is_alive(last_write_at_s=last_write_at_s)
    ]


def close_writer(conn: sqlite3.Connection, writer_key: int) -> None:
    """Say that a process writes no more; what it left under way is interrupted. Inside a transaction."""
    conn.execute(
        "UPDATE runs SET state = ?, ended_at_s = last_at_s WHERE writer_key = ? AND state = 'running'",
        (RunState.INTERRUPTED, writer_key),
    )
    conn.execute("UPDATE writers SET closed_at_s = last_write_at_s WHERE key = ?", (writer_key,))


def delete_some_runs(conn: sqlite3.Connection, group: str, *, opened_before_s: float = math.inf) -> int:
    """Delete some runs of `group` and of the groups below it, and the groups that have none left.

    Args:
        conn: The connection to write on.
        group: The group's name.
        opened_before_s: Only runs that were opened before this time.

    Returns:
        How many runs; 0 when none was left.

    Raises:
        sqlite3.Error: When it cannot be written.
    """
    with immediate(conn):
        keys = conn.execute(
            f"SELECT key FROM runs WHERE group_key IN ({GROUPS_BELOW}) AND opened_at_s < :before LIMIT :most",
            {**bounds_below(group), "before": opened_before_s, "most": _DELETE_AT_ONCE},
        ).fetchall()
        return _delete(conn, [key for (key,) in keys])


def delete_runs(conn: sqlite3.Connection, keys: Sequence[int]) -> int:
    """Delete runs by their keys, and the groups that have none left.

    Returns:
        How many there were.

    Raises:
        sqlite3.Error: When it cannot be written.
    """
    with immediate(conn):
        return _delete(conn, keys)


def _delete(conn: sqlite3.Connection, keys: Sequence[int]) -> int:
    some = str(list(keys))
    groups = conn.execute(
        "SELECT DISTINCT group_key FROM runs WHERE key IN (SELECT value FROM json_each(?))", (some,)
    ).fetchall()
    deleted = conn.execute("DELETE FROM runs WHERE key IN (SELECT value FROM json_each(?))", (some,)).rowcount
    _sum_anew(conn, {key for (key,) in groups})
    _delete_empty(conn, [key for (key,) in groups])
    return deleted


def _sum_anew(conn: sqlite3.Connection, groups: Iterable[int]) -> None:
    """Add the rewards of groups up again, after some were taken away: a far larger one had eaten the digits of the others."""
    conn.executemany(_SUM_ANEW, [{"group": key, "most": _SUMMED_AT_MOST} for key in groups])


def _delete_empty(conn: sqlite3.Connection, groups: Iterable[int]) -> None:
    empty = [
        (key,)
        for key in groups
        if conn.execute("SELECT 1 FROM runs WHERE group_key = ? LIMIT 1", (key,)).fetchone() is None
    ]
    conn.executemany("DELETE FROM tallies WHERE group_key = ?", empty)
    conn.executemany("DELETE FROM groups WHERE key = ?", empty)


def _register(conn: sqlite3.Connection) -> int:
    owner = this_process()
    now = time.time()
    key = conn.execute(
        "INSERT INTO writers (pid, started, boot, pid_space, opened_at_s, last_write_at_s) VALUES (?, ?, ?, ?, ?, ?)",
        (owner.pid, owner.started, owner.boot, owner.pid_space, now, now),
    ).lastrowid
    assert key is not None
    return key


def _changes(batch: Iterable[PackedPart]) -> list[_Change]:
    """The batch run by run: what could not be written before may have several parts of one."""
    changes: dict[str, _Change] = {}
    for part in batch:
        change = changes.setdefault(part.log.run_id, _Change(part.log, part))
        change.last = part
        change.head = change.head or part.head
        change.ended = part.ended or change.ended
        change.reward = change.reward if part.reward is None else part.reward
        change.chunks += part.chunks
        change.tokens |= dict(part.tokens)
    return list(changes.values())


def _insert_runs(
    conn: sqlite3.Connection, writer_key: int, changes: Sequence[_Change], groups: Mapping[str, int]
) -> None:
    if not changes:
        return
    heads = [(change, change.head) for change in changes if change.head is not None]
    places = [(groups[change.log.group], head.task_id, change.log.attempt) for change, head in heads]
    rollouts = {tuple(row[:3]): int(row[3]) for row in in_few(conn, _LAST_ROLLOUTS, list(dict.fromkeys(places)))}
    key = int(conn.execute("SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'runs'").fetchone()[0])
    rows: list[tuple[Any, ...]] = []
    taken: Counter[tuple[Any, ...]] = Counter()
    for (change, head), place in zip(heads, places, strict=True):
        key += 1
        change.key = key
        rows.append(
            (
                *(key, change.log.run_id, RECORD_VERSION, place[0], writer_key, head.task_id, change.log.attempt),
                *(rollouts[place] + taken[place], head.labels, head.bundle_name, head.bundle_version, head.at_s),
                *(change.reward, *change.totals, *change.end),
            )
        )
        taken[place] += 1
    in_few(conn, _INSERT_RUNS, rows)
    in_few(conn, _INSERT_HEADS, [(change.key, head.codec, head.body) for change, head in heads])


def _update_runs(conn: sqlite3.Connection, changes: Sequence[_Change]) -> None:
    """Say how runs go on. Those that were deleted meanwhile are left without a key."""
    keys = [change.log.key for change in changes if change.log.key is not None]
    if not keys:
        return
    states: dict[int, str] = dict(
        conn.execute(
            "SELECT key, state FROM runs WHERE key IN (SELECT value FROM json_each(?))", (str(keys),)
        ).fetchall()
    )
    found = [change for change in changes if change.log.key in states]
    for change in found:
        change.key = change.log.key
    going = [change for change in found if change.ended is None]
    # A run that another process took for dead goes on as running when it writes again.
    revived = [(change.key,) for change in going if states[change.log.key or 0] == RunState.INTERRUPTED]
    conn.executemany("UPDATE runs SET state = 'running', ended_at_s = NULL WHERE key = ?", revived)
    in_few(conn, _UPDATE_GOING, [(change.key, *change.totals) for change in going])
    rewarded = str([change.key for change in found if change.reward is not None])
    changed = conn.execute(
        "SELECT DISTINCT group_key FROM runs WHERE key IN (SELECT value FROM json_each(?)) AND reward IS NOT NULL",
        (rewarded,),
    ).fetchall()
    ended = [(change.key, change.reward, *change.totals, *change.end) for change in found if change.ended is not None]
    in_few(conn, _UPDATE_ENDED, ended)
    in_few(conn, _UPDATE_REWARD, [(change.key, change.reward) for change in going if change.reward is not None])
    _sum_anew(conn, {key for (key,) in changed})


def _write_bodies(conn: sqlite3.Connection, changes: Iterable[_Change]) -> list[tuple[int, str]]:
    # A key is never used again, not even that of a deleted chunk: the search index may still have its words.
    key = int(
        conn.execute(
            "SELECT max(coalesce((SELECT max(key) FROM chunks), 0),"
            " coalesce((SELECT value FROM marks WHERE name = 'last_chunk_deleted'), 0))"
        ).fetchone()[0]
    )
    chunks: list[tuple[Any, ...]] = []
    words: list[tuple[int, str]] = []
    tokens: list[tuple[Any, ...]] = []
    for change in changes:
        for chunk in change.chunks:
            key += 1
            chunks.append((key, change.key, chunk.first_seq, chunk.count, chunk.raw_bytes, CODEC_ZSTD, chunk.body))
            words.append((key, chunk.words))
        tokens += [(change.key, message, CODEC_ZSTD, body) for message, body in change.tokens.items()]
    in_few(conn, _INSERT_CHUNKS, chunks)
    in_few(conn, _INSERT_TOKENS, tokens)
    return words


def _group_keys(conn: sqlite3.Connection, changes: Iterable[_Change]) -> dict[str, int]:
    """The keys of the groups of a batch, by name; those of new runs are made where they are not there."""
    keys: dict[str, int] = {}
    for change in changes:
        group = change.log.group
        if group in keys:
            continue
        name = group if change.head is None else change.head.group
        found = conn.execute("SELECT key FROM groups WHERE name = ?", (name,)).fetchone()
        if found is not None:
            keys[group] = int(found[0])
        elif change.head is not None:
            keys[group] = _new_group(conn, name, change.head.at_s)
    return keys


def _new_group(conn: sqlite3.Connection, name: str, at_s: float) -> int:
    place = place_of(name)
    where = (None, None, None) if place is None else (place.training, place.split, place.step)
    key = conn.execute(
        "INSERT INTO groups (name, training, split, step, first_at_s, last_at_s) VALUES (?, ?, ?, ?, ?, ?)",
        (name, *where, at_s, at_s),
    ).lastrowid
    assert key is not None
    return key


def in_few(conn: sqlite3.Connection, sql: str, rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Run a statement with `{values}` in it over all rows, many at a time.

    Raises:
        sqlite3.Error: When one of them fails.
    """
    found: list[tuple[Any, ...]] = []
    at = 0
    for size in _ROWS:
        while len(rows) - at >= size:
            values = list(chain.from_iterable(rows[at : at + size]))
            found += conn.execute(_with_rows(sql, size, len(rows[at])), values).fetchall()
            at += size
    return found


@lru_cache(maxsize=100)
def _with_rows(sql: str, rows: int, columns: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return sql.format(values=", ".join([row] * rows))
