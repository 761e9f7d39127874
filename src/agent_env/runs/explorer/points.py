"""The steps of a training run as points in a chart, read from what the index counts per group."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agent_env.errors import UsageError
from agent_env.runs._reading import dead_json, moments
from agent_env.runs.record import RunState

__all__ = ["Neighbours", "StepPoint", "Steps", "by_split", "first_text", "read_steps", "shift_lost"]

_POINTS = """
SELECT key, name, split, step, scored, shift, total, squares, finished, messages, calls, seconds, counted,
    prompt_tokens, sampled_tokens,
    (SELECT min(reward) FROM runs WHERE group_key = groups.key AND state = 'completed' AND reward IS NOT NULL),
    (SELECT max(reward) FROM runs WHERE group_key = groups.key AND state = 'completed' AND reward IS NOT NULL),
    first_at_s, last_at_s
FROM groups WHERE training = ? ORDER BY split, step
"""
_COUNTS = """
SELECT group_key, what, kind, n FROM tallies WHERE n > 0 AND group_key BETWEEN ? AND ?
"""
_COUNTS_APART = """
SELECT t.group_key, t.what, t.kind, t.n FROM groups g JOIN tallies t ON t.group_key = g.key
WHERE g.training = ? AND t.n > 0
"""


_NOTHING: dict[str, int] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """A step of one split, as a chart has it. The means are of its completed runs."""

    group: str
    split: str
    step: int
    runs: int
    """All of them, however they stand: what the shares of failures and cuts are of."""
    scored: int
    """What `mean` is the mean of."""
    mean: float | None
    se: float | None
    low: float | None
    """The least reward."""
    high: float | None
    """The greatest reward."""
    messages: float | None = None
    calls: float | None = None
    seconds: float | None = None
    prompt_tokens: float | None = None
    sampled_tokens: float | None = None
    failures: Mapping[str, int] = field(default_factory=dict[str, int])
    """Failed runs by kind."""
    cuts: Mapping[str, int] = field(default_factory=dict[str, int])
    """Cut runs by reason."""

    @property
    def failed(self) -> int:
        """How many runs failed."""
        return sum(self.failures.values())

    @property
    def cut(self) -> int:
        """How many runs were cut."""
        return sum(self.cuts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """The names or ids before and after; None at the ends."""

    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of a training run."""

    points: tuple[StepPoint, ...]
    """By split and step."""
    states: Mapping[RunState, int]
    """How many of its runs stand how; every state is there."""
    first_at_s: float
    last_at_s: float


def read_steps(conn: sqlite3.Connection, training: str) -> Steps:
    """Every step of a training run.

    Raises:
        UsageError: When there is no such training run.
    """
    cursor = conn.cursor()
    cursor.row_factory = None  # plain tuples: there may be thousands of rows
    rows = cursor.execute(_POINTS, (training,)).fetchall()
    if not rows:
        raise UsageError(f"no training run {training!r}: the first page lists them")
    counts = _counts(cursor, training, [row[0] for row in rows])
    states = dict.fromkeys(RunState, 0)
    points: list[StepPoint] = []
    for key, name, split, step, scored, shift, total, squares, finished, *sums in rows:
        messages, calls, seconds, counted, prompt_tokens, sampled_tokens, low, high, _, _ = sums
        mean, se = moments(scored, shift, total, squares)
        found = counts.get(key, {})
        for state, n in found.get("state", _NOTHING).items():
            states[RunState(state)] += n
        points.append(
            StepPoint(
                group=name,
                split=split,
                step=step,
                runs=sum(found.get("state", _NOTHING).values()),
                scored=scored,
                mean=mean,
                se=se,
                low=low,
                high=high,
                messages=messages / finished if finished else None,
                calls=calls / finished if finished else None,
                seconds=seconds / finished if finished else None,
                prompt_tokens=prompt_tokens / counted if counted else None,
                sampled_tokens=sampled_tokens / counted if counted else None,
                failures=found.get("failure", _NOTHING),
                cuts=found.get("cut", _NOTHING),
            )
        )
    shift_lost(conn, training, states)
    return Steps(
        points=tuple(points),
        states=states,
        first_at_s=min(row[-2] for row in rows),
        last_at_s=max(row[-1] for row in rows),
    )


def shift_lost(conn: sqlite3.Connection, training: str, states: dict[RunState, int]) -> None:
    """Count the runs that were under way in a process that died as what they are: interrupted."""
    dead = dead_json(conn)
    if dead == "[]":
        return
    lost = conn.execute(
        "SELECT count(*) FROM runs WHERE state = 'running' AND writer_key IN (SELECT value FROM json_each(?))"
        " AND group_key IN (SELECT key FROM groups WHERE training = ?)",
        (dead, training),
    ).fetchone()[0]
    states[RunState.RUNNING] -= lost
    states[RunState.INTERRUPTED] += lost


def by_split(points: Iterable[StepPoint]) -> dict[str, list[StepPoint]]:
    """The points of each split: `train` first, then the others by name."""
    splits: dict[str, list[StepPoint]] = {}
    for point in points:
        splits.setdefault(point.split, []).append(point)
    return dict(sorted(splits.items(), key=lambda item: (item[0] != "train", item[0])))


def first_text(rows: sqlite3.Cursor) -> str | None:
    """The first row's first column."""
    row = rows.fetchone()
    return None if row is None else row[0]


def _counts(cursor: sqlite3.Cursor, training: str, keys: Sequence[int]) -> dict[int, dict[str, dict[str, int]]]:
    if not keys:
        return {}
    low, high = min(keys), max(keys)
    # The steps of one training run mostly lie side by side: reading on is faster than seeking each.
    if high - low < 3 * len(keys):
        rows = cursor.execute(_COUNTS, (low, high))
    else:
        rows = cursor.execute(_COUNTS_APART, (training,))
    counts: dict[int, dict[str, dict[str, int]]] = {}
    for key, what, kind, n in rows:
        counts.setdefault(key, {}).setdefault(what, {})[kind] = n
    return counts
