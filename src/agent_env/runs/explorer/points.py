"""The steps of a training run as points in a chart, read from what the index counts per group."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agent_env.errors import UsageError
from agent_env.runs._reading import EXTREMES, lost_by_group, moments, states_now
from agent_env.runs.record import RunState

__all__ = ["StepPoint", "Steps", "by_split", "read_steps", "states_of"]

_POINTS = f"""
SELECT key, name, split, step, scored, shift, total, squares, finished, messages, calls, seconds, counted,
    prompt_tokens, sampled_tokens, {EXTREMES},
    first_at_s, last_at_s
FROM groups WHERE training = ? ORDER BY split, step
"""
_KINDS = "SELECT group_key, what, kind, n FROM tallies WHERE n > 0 AND what <> 'state' AND group_key BETWEEN ? AND ?"
_RUNS = "SELECT group_key, sum(n) FROM tallies WHERE what = 'state' AND group_key BETWEEN ? AND ? GROUP BY group_key"
_MINE = "group_key IN (SELECT key FROM groups WHERE training = ?)"


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
class Steps:
    """The steps of a training run."""

    points: tuple[StepPoint, ...]
    """By split and step."""
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
    runs, failures, cuts = _counts(cursor, training, [row[0] for row in rows])
    points: list[StepPoint] = []
    for key, name, split, step, scored, shift, total, squares, finished, *sums in rows:
        messages, calls, seconds, counted, prompt_tokens, sampled_tokens, low, high, _, _ = sums
        mean, se = moments(scored, shift, total, squares)
        points.append(
            StepPoint(
                group=name,
                split=split,
                step=step,
                runs=runs.get(key, 0),
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
                failures=failures.get(key, _NOTHING),
                cuts=cuts.get(key, _NOTHING),
            )
        )
    return Steps(
        points=tuple(points),
        first_at_s=min(row[-2] for row in rows),
        last_at_s=max(row[-1] for row in rows),
    )


def states_of(conn: sqlite3.Connection, training: str) -> dict[RunState, int]:
    """How many runs of a training run stand how; every state is there."""
    written = conn.execute(
        f"SELECT kind, sum(n) FROM tallies WHERE what = 'state' AND {_MINE} GROUP BY kind", (training,)
    )
    return states_now(dict(written.fetchall()), sum(lost_by_group(conn, training=training).values()))


def by_split(points: Iterable[StepPoint]) -> dict[str, list[StepPoint]]:
    """The points of each split: `train` first, then the others by name."""
    splits: dict[str, list[StepPoint]] = {}
    for point in points:
        splits.setdefault(point.split, []).append(point)
    return dict(sorted(splits.items(), key=lambda item: (item[0] != "train", item[0])))


_Kinds = dict[int, dict[str, int]]


def _counts(cursor: sqlite3.Cursor, training: str, keys: Sequence[int]) -> tuple[dict[int, int], _Kinds, _Kinds]:
    """By group: how many runs, how many failed of each kind, and how many were cut for each reason."""
    bounds: tuple[object, ...] = (min(keys), max(keys))
    # The steps of one training run mostly lie side by side: reading on is faster than seeking each.
    is_apart = max(keys) - min(keys) > 3 * len(keys)
    if is_apart:
        bounds = (training,)
    kinds, runs = [sql.replace("group_key BETWEEN ? AND ?", _MINE) if is_apart else sql for sql in (_KINDS, _RUNS)]
    failures: _Kinds = {}
    cuts: _Kinds = {}
    for key, what, kind, n in cursor.execute(kinds, bounds):
        (failures if what == "failure" else cuts).setdefault(key, {})[kind] = n
    return dict(cursor.execute(runs, bounds).fetchall()), failures, cuts
