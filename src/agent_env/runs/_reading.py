"""Reading the run index: connections lent out a question at a time, and the questions that `RunIndex` answers."""

from __future__ import annotations

import json
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from agent_env.errors import RunIndexError, UsageError
from agent_env.runs._batch import dead_writers
from agent_env.runs._codec import decode, unpack
from agent_env.runs._schema import connect_reader, identity_of, saying
from agent_env.runs._tokens import unpack_tokens
from agent_env.runs.record import (
    GroupSummary,
    RunEvent,
    RunFailure,
    RunRecord,
    RunState,
    RunSummary,
    SampledTokens,
    ToolCount,
    place_of,
)

__all__ = [
    "EXTREMES",
    "Reader",
    "around_damage",
    "chunks_from",
    "dead_json",
    "ended_now",
    "event_of",
    "events_of",
    "first_runs",
    "head_of",
    "is_corrupt",
    "lost_by_group",
    "mean_of",
    "moments",
    "read_groups",
    "read_record",
    "read_sampled",
    "read_summary",
    "record_of",
    "runs_by_key",
    "sampled_of",
    "stands",
    "state_now",
    "states_now",
    "summary_of",
    "variance_of",
]

_LIMIT_S = 10.0
_PAGE_BYTES = 4 << 20
_ROUNDING = 1e-12
"""What a difference of sums is of them, at most, where it comes from rounding."""

T = TypeVar("T")

_DEAD = "SELECT value FROM json_each(:dead)"
_NO_DEAD = "[]"
"""What `dead_json` says where every writer lives."""


def _is_lost(dead: str = _DEAD) -> str:
    """Whether a run, of `runs r`, was under way in a process that died: it is interrupted, though the file does not say so."""
    return f"r.state = 'running' AND r.writer_key IN ({dead})"


def state_now(dead: str = _DEAD) -> str:
    """How a run stands, of `runs r`. `dead` has the writers that died, as SQL; `:dead` is what `dead_json` says."""
    return f"CASE WHEN {_is_lost(dead)} THEN 'interrupted' ELSE r.state END"


def ended_now(dead: str = _DEAD) -> str:
    """When a run ended, of `runs r`: an interrupted one when it last wrote. `dead` is as in `state_now`."""
    return f"CASE WHEN {_is_lost(dead)} THEN r.last_at_s ELSE r.ended_at_s END"


def stands(state: RunState, dead: str) -> str:
    """Whether a run, of `runs r`, stands like this. `dead` is what `dead_json` says, and the value of `:dead`."""
    if dead != _NO_DEAD:
        if state is RunState.RUNNING:
            return f"r.state = 'running' AND NOT ({_is_lost()})"
        if state is RunState.INTERRUPTED:
            return f"(r.state = 'interrupted' OR {_is_lost()})"
    return f"r.state = '{state}'"  # a stretch of an index, in order


_RUN = f"""
SELECT r.key, r.run_id, g.name AS group_name, r.task_id, r.rollout, r.attempt, r.labels, r.bundle_name, r.bundle_version,
    {state_now()} AS state,
    r.cut, r.failure_kind, r.failure_step, r.failure_message, r.scores, r.reward,
    r.events, r.messages, r.calls, r.call_errors, r.turns, r.tools, r.times, r.prompt_tokens, r.sampled_tokens,
    r.opened_at_s, {ended_now()} AS ended_at_s, r.last_at_s
FROM runs r JOIN groups g ON g.key = r.group_key
"""

EXTREMES = """
(SELECT min(reward) FROM runs WHERE group_key = groups.key AND state = 'completed' AND reward IS NOT NULL) AS reward_min,
(SELECT max(reward) FROM runs WHERE group_key = groups.key AND state = 'completed' AND reward IS NOT NULL) AS reward_max
"""
"""The least and the greatest reward of a row of `groups`, each read from the end of an index."""


class Reader:
    """Read-only connections to one index. Each question sees one moment of it, and holds up no writer."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._free: list[tuple[sqlite3.Connection, tuple[int, int]]] = []
        self._is_closed = False

    @contextmanager
    def asking(self, *, limit_s: float = _LIMIT_S) -> Generator[sqlite3.Connection]:
        """Lend a connection for one question of any number of statements.

        Raises:
            UsageError: When what is asked for is no text, such as an argument of the command line that is no UTF-8.
            RunIndexError: When the index cannot be read, or the answer takes longer than `limit_s`.
        """
        conn, identity = self._take()
        until = time.monotonic() + limit_s
        try:
            with saying(self._file):
                conn.set_progress_handler(lambda: time.monotonic() > until, 20_000)
                conn.execute("BEGIN")
                yield conn
        except UnicodeEncodeError as exc:
            conn.close()
            raise UsageError(f"{exc.object[:80]!a} has characters that are no text: nothing is called so") from exc
        except BaseException:
            conn.close()
            raise
        conn.execute("ROLLBACK")
        with self._lock:
            if not self._is_closed:
                self._free.append((conn, identity))
                return
        conn.close()

    def close(self) -> None:
        """Close the connections that are not lent out; the others when they come back."""
        with self._lock:
            self._is_closed = True
            free, self._free = self._free, []
        for conn, _ in free:
            conn.close()

    def _take(self) -> tuple[sqlite3.Connection, tuple[int, int]]:
        with self._lock:
            if self._is_closed:
                raise RunIndexError(f"{self._file.parent}: the run index is closed")
            free, self._free = self._free, []
        try:
            identity = identity_of(self._file)
        except OSError:
            identity = (0, 0)
        fresh = [pair for pair in free if pair[1] == identity]
        for conn, was in free:
            if was != identity:
                conn.close()
        taken = fresh.pop() if fresh else None
        with self._lock:
            self._free += fresh
        return taken if taken is not None else (_rows_by_name(connect_reader(self._file)), identity)


def read_groups(
    conn: sqlite3.Connection, *, prefix: str = "", names: Sequence[str] | None = None
) -> list[GroupSummary]:
    """Count every group whose name starts with `prefix`, by name; or those with one of `names`, in their order."""
    where = "name >= :prefix AND name < :end" if prefix else "true"
    bounds = {"prefix": prefix, "end": prefix + "\U0010ffff"}
    if names is not None:
        where, bounds = "name IN (SELECT value FROM json_each(:names))", {"names": json.dumps(names)}
    rows = conn.execute(f"SELECT groups.*, {EXTREMES} FROM groups WHERE {where} ORDER BY name", bounds).fetchall()
    tallies: dict[int, dict[str, dict[str, int]]] = {}
    for key, what, kind, n in conn.execute(
        f"SELECT group_key, what, kind, n FROM tallies WHERE n > 0 AND group_key IN (SELECT key FROM groups WHERE {where})",
        bounds,
    ):
        tallies.setdefault(key, {}).setdefault(what, {})[kind] = n
    lost = lost_by_group(conn)
    groups = [_group(row, tallies.get(row["key"], {}), lost.get(row["key"], 0)) for row in rows]
    if names is not None:
        places = {name: place for place, name in enumerate(names)}
        groups.sort(key=lambda group: places[group.name])
    return groups


def first_runs(conn: sqlite3.Connection, groups: Sequence[str]) -> dict[str, RunSummary]:
    """Of each group the first run that an index has of it, for what all of them say: to look for the newest would read them all."""
    keys = conn.execute(
        "SELECT (SELECT key FROM runs WHERE group_key = groups.key LIMIT 1) FROM groups"
        " WHERE name IN (SELECT value FROM json_each(?))",
        (json.dumps(groups),),
    )
    runs, _ = runs_by_key(conn, [key for (key,) in keys if key is not None])
    return {run.group: run for run in runs.values()}


def read_summary(conn: sqlite3.Connection, run_id: str) -> RunSummary:
    """One run's summary, by its id or the start of it.

    Raises:
        UsageError: When no run, or more than one, has such an id.
    """
    return summary_of(_run_row(conn, run_id))


def runs_by_key(conn: sqlite3.Connection, keys: Sequence[int]) -> tuple[dict[int, RunSummary], int]:
    """Runs by their keys, in that order; and how many of them cannot be read and are left out.

    Those that were deleted are left out too, and not counted.
    """
    found: dict[int, RunSummary] = {}
    damaged = 0
    rows, unreadable = around_damage(keys, partial(_rows_of, conn))
    for row in rows:
        try:
            found[row["key"]] = summary_of(row)
        except RunIndexError:
            damaged += 1
    return {key: found[key] for key in keys if key in found}, damaged + unreadable


def is_corrupt(exc: sqlite3.Error) -> bool:
    """Whether a part of the file says something else than SQLite wrote."""
    return getattr(exc, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_CORRUPT


def read_record(conn: sqlite3.Connection, run_id: str, *, first: int = 0, limit: int = 200) -> RunRecord:
    """One run, by its id or the start of it, and its events from the place `first` on.

    Raises:
        UsageError: When no run, or more than one, has such an id.
        RunIndexError: When what is asked for is damaged.
    """
    row = _run_row(conn, run_id)
    return record_of(conn, row["key"], summary_of(row), first=first, limit=limit)


def record_of(conn: sqlite3.Connection, key: int, run: RunSummary, *, first: int = 0, limit: int = 200) -> RunRecord:
    """The run with this key, whose summary is `run`, and its events from the place `first` on.

    Raises:
        RunIndexError: When what is asked for is damaged.
    """
    head = head_of(conn, key)
    events: list[RunEvent] = []
    size = 0
    for first_seq, _, raw_bytes, codec, body in chunks_from(conn, key, first):
        if len(events) >= limit or (events and size + raw_bytes > _PAGE_BYTES):
            break
        size += raw_bytes
        lines = unpack(body, codec).split(b"\n")
        events += [event_of(seq, line) for seq, line in enumerate(lines, first_seq) if seq >= first]
    events = events[:limit]
    last = events[-1].seq + 1 if events else first
    return RunRecord(
        run=run,
        params=head.get("params", {}),
        tags=tuple(head.get("tags", ())),
        bundle_root=head.get("bundle_root", ""),
        events=tuple(events),
        next_event=last if last < run.event_count and events else None,
    )


def head_of(conn: sqlite3.Connection, key: int) -> Mapping[str, Any]:
    """What the run with this key was opened with: `params`, `tags`, `bundle_root`, each where it was said.

    Raises:
        RunIndexError: When it is damaged.
    """
    row = conn.execute("SELECT body, codec FROM heads WHERE run_key = ?", (key,)).fetchone()
    head: object = {} if row is None else decode(unpack(*row))
    if not isinstance(head, dict):
        raise RunIndexError(f"a record in the run index is damaged: what a run was opened with is {head!r:.80}")
    return cast("dict[str, Any]", head)


def chunks_from(conn: sqlite3.Connection, key: int, first: int) -> sqlite3.Cursor:
    """The chunks of the run with this key, from the one that has the event `first` on.

    Returns:
        Rows of the first event's place, how many events, their size before compression, codec and body.
    """
    return conn.execute(
        "SELECT first_seq, count, raw_bytes, codec, body FROM chunks WHERE run_key = ? AND first_seq >= coalesce("
        "(SELECT max(first_seq) FROM chunks WHERE run_key = ? AND first_seq <= ?), 0) ORDER BY first_seq",
        (key, key, first),
    )


def events_of(conn: sqlite3.Connection, key: int) -> Generator[RunEvent]:
    """Go through the events of the run with this key.

    Raises:
        RunIndexError: When one is damaged.
    """
    chunks = conn.execute("SELECT first_seq, codec, body FROM chunks WHERE run_key = ? ORDER BY first_seq", (key,))
    for first_seq, codec, body in chunks:
        for seq, line in enumerate(unpack(body, codec).split(b"\n"), first_seq):
            yield event_of(seq, line)


def read_sampled(
    conn: sqlite3.Connection, run_id: str, *, first_message: int = 0, limit: int = 200
) -> dict[int, SampledTokens]:
    """What some of a run's messages were sampled as, by message.

    Raises:
        UsageError: When no run, or more than one, has such an id.
        RunIndexError: When what was kept is damaged.
    """
    return sampled_of(conn, _run_row(conn, run_id)["key"], first_message=first_message, limit=limit)


def sampled_of(conn: sqlite3.Connection, key: int, *, first_message: int, limit: int) -> dict[int, SampledTokens]:
    """What some messages of the run with this key were sampled as, by message.

    Raises:
        RunIndexError: When what was kept is damaged.
    """
    rows = conn.execute(
        "SELECT message, body FROM tokens WHERE run_key = ? AND message >= ? ORDER BY message LIMIT ?",
        (key, first_message, limit),
    )
    return {message: unpack_tokens(body) for message, body in rows}


def dead_json(conn: sqlite3.Connection) -> str:
    """The writers that died, as JSON for `json_each`."""
    return json.dumps(dead_writers(conn))


def lost_by_group(conn: sqlite3.Connection, *, training: str | None = None) -> dict[int, int]:
    """How many runs were under way in processes that died, by their group's key: of one training run, or of all."""
    dead = dead_json(conn)
    if dead == _NO_DEAD:
        return {}
    among = "true" if training is None else "r.group_key IN (SELECT key FROM groups WHERE training = :training)"
    rows = conn.execute(
        f"SELECT r.group_key, count(*) FROM runs r WHERE {_is_lost()} AND {among} GROUP BY r.group_key",
        {"dead": dead, "training": training},
    )
    return dict(rows.fetchall())


def states_now(written: Mapping[str, int], lost: int) -> dict[RunState, int]:
    """How many runs stand how, every state there, where of those that are written as under way so many are lost."""
    states = {state: written.get(state, 0) for state in RunState}
    states[RunState.RUNNING] -= lost
    states[RunState.INTERRUPTED] += lost
    return states


def summary_of(row: sqlite3.Row) -> RunSummary:
    """A row of `_RUN` as a value.

    Raises:
        RunIndexError: When a part of it is damaged.
    """
    try:
        return _summary_of(row)
    except (ValueError, TypeError, AttributeError) as exc:
        raise RunIndexError(f"run {row['run_id']}: its record is damaged: {exc}") from exc


def _summary_of(row: sqlite3.Row) -> RunSummary:
    kind = row["failure_kind"]
    failure = (
        None
        if kind is None
        else RunFailure(kind=kind, step=row["failure_step"] or "", message=row["failure_message"] or "")
    )
    return RunSummary(
        run_id=row["run_id"],
        group=row["group_name"],
        task_id=row["task_id"],
        rollout=row["rollout"],
        attempt=row["attempt"],
        labels=dict(decode(row["labels"])),
        bundle_name=row["bundle_name"],
        bundle_version=row["bundle_version"],
        state=RunState(row["state"]),
        cut=row["cut"],
        failure=failure,
        scores=dict(decode(row["scores"])),
        reward=row["reward"],
        event_count=row["events"],
        messages=row["messages"],
        calls=row["calls"],
        call_errors=row["call_errors"],
        turns=row["turns"],
        tools={tool: ToolCount(calls=calls, errors=errors) for tool, (calls, errors) in decode(row["tools"]).items()},
        times=dict(decode(row["times"])),
        prompt_tokens=row["prompt_tokens"],
        sampled_tokens=row["sampled_tokens"],
        opened_at_s=row["opened_at_s"],
        ended_at_s=row["ended_at_s"],
        last_at_s=row["last_at_s"],
    )


def around_damage(keys: Sequence[int], ask: Callable[[Sequence[int]], list[T]]) -> tuple[list[T], int]:
    """What `ask` answers for some keys, and for how many of them it cannot because a part of the file is damaged.

    Raises:
        sqlite3.Error: When it cannot be read for another reason.
    """
    try:
        return ask(keys), 0
    except sqlite3.DatabaseError as exc:
        if not is_corrupt(exc):
            raise
    if len(keys) == 1:
        return [], 1
    # A page of the file that is damaged has some of them: the others are read all the same.
    halves = [around_damage(half, ask) for half in (keys[: len(keys) // 2], keys[len(keys) // 2 :])]
    return [row for rows, _ in halves for row in rows], sum(damaged for _, damaged in halves)


def _rows_of(conn: sqlite3.Connection, keys: Sequence[int]) -> list[sqlite3.Row]:
    sql = f"{_RUN} WHERE r.key IN (SELECT value FROM json_each(:keys))"
    return conn.execute(sql, {"keys": json.dumps(keys), "dead": dead_json(conn)}).fetchall()


def _run_row(conn: sqlite3.Connection, run_id: str) -> sqlite3.Row:
    if not run_id:
        raise UsageError("a run's id, or the start of it, is needed")
    rows = conn.execute(
        f"{_RUN} WHERE r.run_id >= :id AND r.run_id < :end ORDER BY r.run_id LIMIT 6",
        {"id": run_id, "end": run_id + "\U0010ffff", "dead": dead_json(conn)},
    ).fetchall()
    if not rows:
        raise UsageError(f"no run {run_id!r}: `agent-env runs` lists the groups, the explorer lists every run")
    if len(rows) > 1 and rows[0]["run_id"] != run_id:
        some = ", ".join(row["run_id"] for row in rows[:5])
        raise UsageError(
            f"several runs start with {run_id!r} ({some}{', …' if len(rows) > 5 else ''}): write more of it"
        )
    return rows[0]


def event_of(seq: int, line: bytes) -> RunEvent:
    """A line of a chunk as a value.

    Raises:
        RunIndexError: When it is damaged.
    """
    fields = decode(line)
    try:
        return RunEvent(
            seq=seq,
            kind=fields["kind"],
            at_s=fields["at_s"],
            step=fields["step"],
            turn=fields["turn"],
            data=fields["data"],
        )
    except (LookupError, TypeError) as exc:
        raise RunIndexError(f"a record in the run index is damaged: event {seq} has no {exc}") from exc


def _group(row: sqlite3.Row, tallies: Mapping[str, Mapping[str, int]], lost: int) -> GroupSummary:
    states = states_now(tallies.get("state", {}), lost)
    mean, se = moments(row["scored"], row["shift"], row["total"], row["squares"])
    return GroupSummary(
        name=row["name"],
        place=place_of(row["name"]),
        runs=sum(states.values()),
        states=states,
        scored=row["scored"],
        reward_mean=mean,
        reward_se=se,
        reward_min=row["reward_min"],
        reward_max=row["reward_max"],
        finished=row["finished"],
        messages_mean=_mean(row["messages"], row["finished"]),
        calls_mean=_mean(row["calls"], row["finished"]),
        call_errors_mean=_mean(row["call_errors"], row["finished"]),
        turns_mean=_mean(row["turns"], row["finished"]),
        duration_s_mean=_mean(row["seconds"], row["finished"]),
        prompt_tokens_mean=_mean(row["prompt_tokens"], row["counted"]),
        sampled_tokens_mean=_mean(row["sampled_tokens"], row["counted"]),
        failures=dict(tallies.get("failure", {})),
        cuts=dict(tallies.get("cut", {})),
        first_at_s=row["first_at_s"],
        last_at_s=row["last_at_s"],
    )


def moments(n: int, shift: float | None, total: float, squares: float) -> tuple[float | None, float | None]:
    """The mean and its standard error, from sums of `reward - shift` and of its square."""
    if n == 0 or shift is None:
        return None, None
    mean = mean_of(n, shift, total)
    if n == 1:
        return mean, None
    return mean, math.sqrt(variance_of(n, total, squares) / (n - 1))


def mean_of(n: int, shift: float, total: float) -> float:
    """The mean of `n` numbers, from the sum of their differences to `shift`; 0 where it is nearer to 0 than sums are exact."""
    mean = shift + total / n
    return 0.0 if abs(mean) <= _ROUNDING * abs(shift) else mean


def variance_of(n: int, total: float, squares: float) -> float:
    """The variance of `n` numbers, from the sum of their differences to any number and of the squares of those."""
    variance = squares / n - (total / n) ** 2
    # Of equal numbers the two cancel but for their last digits, whose root would be shown as a spread.
    return variance if variance > _ROUNDING * squares / n else 0.0


def _mean(total: float, n: int) -> float | None:
    return total / n if n else None


def _rows_by_name(conn: sqlite3.Connection) -> sqlite3.Connection:
    conn.row_factory = sqlite3.Row
    return conn
