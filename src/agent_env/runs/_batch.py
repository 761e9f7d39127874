"""Writing a batch: every statement that records runs, in one transaction of the writer thread."""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent_env.runs._codec import chunks_of, encode
from agent_env.runs._log import Ended, Opened, Part
from agent_env.runs._owner import Owner, this_process
from agent_env.runs._schema import immediate
from agent_env.runs.record import RECORD_VERSION, RunState, place_of

__all__ = [
    "PackedPart",
    "close_writer",
    "dead_writers",
    "delete_some_runs",
    "mark_interrupted",
    "pack_part",
    "write_batch",
]

_DELETE_AT_ONCE = 500
"""Runs a transaction deletes: other processes write in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedPart:
    """A part whose bodies are compressed, so that the transaction only writes."""

    part: Part
    head: bytes | None
    chunks: list[tuple[int, int, int, bytes]]
    """Of each chunk: the first event's place, how many events, their size before compression, the body."""


def pack_part(part: Part, pack: Callable[[bytes], bytes]) -> PackedPart:
    """Compress a part."""
    chunks: list[tuple[int, int, int, bytes]] = []
    seq = part.first_seq
    for lines in chunks_of(part.lines):
        body = b"\n".join(lines)
        chunks.append((seq, len(lines), len(body), pack(body)))
        seq += len(lines)
    return PackedPart(part=part, head=None if part.opened is None else pack(part.opened.head), chunks=chunks)


def write_batch(conn: sqlite3.Connection, writer_key: int | None, batch: Sequence[PackedPart]) -> int:
    """Write a batch, all of it or nothing.

    Returns:
        The writer's key, made here when `writer_key` is None.

    Raises:
        sqlite3.Error: When it cannot be written; nothing is then.
    """
    keys: dict[str, int | None] = {}
    with immediate(conn):
        if writer_key is None:
            writer_key = _register(conn)
        else:
            conn.execute("UPDATE writers SET last_write_at_s = ? WHERE key = ?", (time.time(), writer_key))
        groups: dict[str, float] = {}
        for packed in batch:
            log = packed.part.log
            key = keys.get(log.run_id, log.key)
            if packed.part.opened is not None:
                key = _insert(conn, writer_key, packed, packed.part.opened)
            elif key is None or not _update(conn, key, packed.part):
                keys[log.run_id] = None
                continue
            keys[log.run_id] = key
            groups[log.group] = max(packed.part.last_at_s, groups.get(log.group, 0.0))
            conn.executemany(
                "INSERT INTO chunks (run_key, first_seq, count, raw_bytes, codec, body) VALUES (?, ?, ?, ?, 1, ?)",
                [(key, *chunk) for chunk in packed.chunks],
            )
        conn.executemany(
            "UPDATE groups SET last_at_s = max(last_at_s, ?) WHERE name = ?",
            [(at_s, group) for group, at_s in groups.items()],
        )
    for packed in batch:  # only now: what a rolled back transaction numbered does not exist
        packed.part.log.key = keys[packed.part.log.run_id]
    return writer_key


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
    # '0' follows '/': the names from 'group/' up to 'group0' are those below it.
    below = (group, f"{group}/", f"{group}0")
    with immediate(conn):
        deleted = conn.execute(
            "DELETE FROM runs WHERE key IN (SELECT r.key FROM runs r JOIN groups g ON g.key = r.group_key"
            " WHERE (g.name = ? OR (g.name >= ? AND g.name < ?)) AND r.opened_at_s < ? LIMIT ?)",
            (*below, opened_before_s, _DELETE_AT_ONCE),
        ).rowcount
        if deleted < _DELETE_AT_ONCE:
            keys = conn.execute(
                "SELECT key FROM groups g WHERE (name = ? OR (name >= ? AND name < ?))"
                " AND NOT EXISTS (SELECT 1 FROM runs WHERE group_key = g.key)",
                below,
            ).fetchall()
            conn.executemany("DELETE FROM tallies WHERE group_key = ?", keys)
            conn.executemany("DELETE FROM groups WHERE key = ?", keys)
    return deleted


def _register(conn: sqlite3.Connection) -> int:
    owner = this_process()
    now = time.time()
    key = conn.execute(
        "INSERT INTO writers (pid, started, boot, pid_space, opened_at_s, last_write_at_s) VALUES (?, ?, ?, ?, ?, ?)",
        (owner.pid, owner.started, owner.boot, owner.pid_space, now, now),
    ).lastrowid
    assert key is not None
    return key


def _insert(conn: sqlite3.Connection, writer_key: int, packed: PackedPart, opened: Opened) -> int:
    part = packed.part
    log = part.log
    group_key = _group_key(conn, log.group, opened.at_s)
    ended = part.ended or _under_way()
    key = conn.execute(
        "INSERT INTO runs (run_id, record_version, group_key, writer_key, task_id, attempt, rollout, state, cut, reward,"
        " failure_kind, failure_step, failure_message, scores, labels, bundle_name, bundle_version,"
        " events, messages, calls, call_errors, turns, opened_at_s, ended_at_s, last_at_s)"
        " VALUES (?, ?, ?, ?, ?, ?, (SELECT coalesce(max(rollout) + 1, 0) FROM runs"
        " WHERE group_key = ? AND task_id = ? AND attempt = ?),"
        " ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *(log.run_id, RECORD_VERSION, group_key, writer_key, opened.task_id, log.attempt),
            *(group_key, opened.task_id, log.attempt),
            *(ended.state, ended.cut, part.reward),
            *(ended.failure_kind, ended.failure_step, ended.failure_message, ended.scores),
            *(encode(log.labels).decode("ascii"), opened.bundle_name, opened.bundle_version),
            *part.counts,
            *(opened.at_s, None if part.ended is None else ended.at_s, part.last_at_s),
        ),
    ).lastrowid
    assert key is not None
    conn.execute("INSERT INTO heads VALUES (?, 1, ?)", (key, packed.head))
    return key


def _group_key(conn: sqlite3.Connection, group: str, at_s: float) -> int:
    place = place_of(group)
    conn.execute(
        "INSERT INTO groups (name, training, split, step, first_at_s, last_at_s) VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT DO NOTHING",
        (
            group,
            None if place is None else place.training,
            None if place is None else place.split,
            None if place is None else place.step,
            at_s,
            at_s,
        ),
    )
    return int(conn.execute("SELECT key FROM groups WHERE name = ?", (group,)).fetchone()[0])


def _update(conn: sqlite3.Connection, key: int, part: Part) -> bool:
    # A run that another process took for dead goes on as running when it writes again.
    found = conn.execute(
        "UPDATE runs SET events = ?, messages = ?, calls = ?, call_errors = ?, turns = ?, last_at_s = ?,"
        " ended_at_s = CASE state WHEN 'interrupted' THEN NULL ELSE ended_at_s END,"
        " state = CASE state WHEN 'interrupted' THEN 'running' ELSE state END WHERE key = ?",
        (*part.counts, part.last_at_s, key),
    ).rowcount
    if not found:
        return False
    if (ended := part.ended) is not None:
        conn.execute(
            "UPDATE runs SET state = ?, cut = ?, failure_kind = ?, failure_step = ?, failure_message = ?, scores = ?,"
            " ended_at_s = ? WHERE key = ?",
            (
                *(ended.state, ended.cut, ended.failure_kind, ended.failure_step, ended.failure_message),
                *(ended.scores, ended.at_s, key),
            ),
        )
    if part.reward is not None:
        conn.execute("UPDATE runs SET reward = ? WHERE key = ?", (part.reward, key))
    return True


def _under_way() -> Ended:
    return Ended(
        state=RunState.RUNNING,
        cut=None,
        failure_kind=None,
        failure_step=None,
        failure_message=None,
        scores="{}",
        at_s=0.0,
    )
