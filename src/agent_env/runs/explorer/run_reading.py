"""What the page of one run reads of the index. A damaged part of a run is told and gone round: the rest is still read."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_env.errors import RunIndexError
from agent_env.runs._codec import unpack
from agent_env.runs._reading import chunks_from, dead_json, event_of, head_of, sampled_of
from agent_env.runs.explorer.neighbours import Neighbours, first_text
from agent_env.runs.explorer.rollouts import ROLLOUT_COLUMNS, Rollout, rollout_of
from agent_env.runs.record import RunEvent, RunSummary, SampledTokens

__all__ = [
    "DAMAGED",
    "Head",
    "after_last",
    "has_sampled",
    "neighbouring_runs",
    "read_events",
    "read_head",
    "read_last",
    "read_sampled_of",
    "rollouts_of",
]

DAMAGED = "damaged"
"""The kind of the event that stands for some that cannot be read (`events`: how many, `why`)."""

_PAGE_BYTES = 2 << 20
"""Events of a page, as they are before they are compressed."""
_LAST = 64
"""Events at the end of a run among which its scores and its failure are."""
_ROLLOUTS = 200
"""Rollouts beside the one that is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a run was opened with."""

    params: Mapping[str, Any]
    tags: tuple[str, ...]
    bundle_root: str
    damage: str
    """Why it cannot be read; empty where it can."""


def read_head(conn: sqlite3.Connection, run: RunSummary) -> Head:
    """Read a run's params and tags."""
    try:
        head = head_of(conn, _key(conn, run))
    except RunIndexError as exc:
        return Head(params={}, tags=(), bundle_root="", damage=str(exc))
    return Head(
        params=head.get("params", {}),
        tags=tuple(head.get("tags", ())),
        bundle_root=head.get("bundle_root", ""),
        damage="",
    )


def read_events(conn: sqlite3.Connection, run: RunSummary, *, first: int, limit: int) -> list[RunEvent]:
    """Read events from the place `first` on: at most `limit`, fewer where they are large, at least one where there is one."""
    events: list[RunEvent] = []
    size = 0
    for first_seq, count, raw_bytes, codec, body in chunks_from(conn, _key(conn, run), first):
        if len(events) >= limit or (events and size + raw_bytes > _PAGE_BYTES):
            break
        size += raw_bytes
        try:
            found = [event_of(seq, line) for seq, line in enumerate(unpack(body, codec).split(b"\n"), first_seq)]
        except (RunIndexError, MemoryError) as exc:
            data = {"events": count, "why": str(exc) or type(exc).__name__}
            found = [RunEvent(seq=first_seq, kind=DAMAGED, at_s=run.opened_at_s, step="", turn=None, data=data)]
            events += found
            continue
        events += [event for event in found if event.seq >= first]
    return events[:limit]


def read_last(conn: sqlite3.Connection, run: RunSummary) -> list[RunEvent]:
    """Read a run's last events, where its scores and its failure are: some dozens, fewer where they are large."""
    rows = conn.execute(
        "SELECT first_seq, count, raw_bytes FROM chunks WHERE run_key = ? ORDER BY first_seq DESC", (_key(conn, run),)
    )
    first, count, size = run.event_count, 0, 0
    for first_seq, events, raw_bytes in rows:
        if count and size + raw_bytes > _PAGE_BYTES:
            break
        first, count, size = first_seq, count + events, size + raw_bytes
        if count >= _LAST:
            break
    return read_events(conn, run, first=first, limit=count)


def rollouts_of(conn: sqlite3.Connection, run: RunSummary) -> list[Rollout]:
    """The rollouts of the run's task in its group, some around it where there are very many."""
    group_key = conn.execute("SELECT key FROM groups WHERE name = ?", (run.group,)).fetchone()[0]
    first = conn.execute(
        "SELECT count(*) FROM runs WHERE group_key = ? AND task_id = ? AND (attempt, rollout) < (?, ?)",
        (group_key, run.task_id, run.attempt, run.rollout),
    ).fetchone()[0]
    rows = conn.execute(
        f"SELECT {ROLLOUT_COLUMNS} FROM runs r WHERE r.group_key = :group AND r.task_id = :task"
        " ORDER BY r.attempt, r.rollout LIMIT :limit OFFSET :offset",
        {
            "dead": dead_json(conn),
            "group": group_key,
            "task": run.task_id,
            "limit": _ROLLOUTS,
            "offset": max(0, first - _ROLLOUTS // 2),
        },
    )
    return [rollout_of(row) for row in rows]


def has_sampled(conn: sqlite3.Connection, run: RunSummary) -> bool:
    """Whether the record has tokens of the run's messages."""
    found = conn.execute("SELECT EXISTS (SELECT 1 FROM tokens WHERE run_key = ?)", (_key(conn, run),))
    return bool(found.fetchone()[0])


def read_sampled_of(conn: sqlite3.Connection, run: RunSummary, messages: Sequence[int]) -> dict[int, SampledTokens]:
    """Read what some messages of the run were sampled as; nothing of them where it cannot be read."""
    if not messages:
        return {}
    first = min(messages)
    try:
        return sampled_of(conn, _key(conn, run), first_message=first, limit=max(messages) - first + 1)
    except RunIndexError:
        return {}


def after_last(events: Sequence[RunEvent], first: int) -> int:
    """The place of the event that comes after these."""
    if not events:
        return first
    last = events[-1]
    return last.seq + (last.data["events"] if last.kind == DAMAGED else 1)


def neighbouring_runs(conn: sqlite3.Connection, run: RunSummary) -> Neighbours:
    """The runs before and after in the group's list: the task's rollouts, then the next task's."""
    place = (run.group, run.task_id, run.attempt, run.rollout)
    sql = (
        "SELECT run_id FROM runs WHERE group_key = (SELECT key FROM groups WHERE name = ?)"
        " AND (task_id, attempt, rollout) {0} (?, ?, ?) ORDER BY task_id {1}, attempt {1}, rollout {1} LIMIT 1"
    )
    return Neighbours(
        before=first_text(conn.execute(sql.format("<", "DESC"), place)),
        after=first_text(conn.execute(sql.format(">", "ASC"), place)),
    )


def _key(conn: sqlite3.Connection, run: RunSummary) -> int:
    return int(conn.execute("SELECT key FROM runs WHERE run_id = ?", (run.run_id,)).fetchone()[0])
