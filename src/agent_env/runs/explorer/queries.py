"""Every question the explorer asks of the run index that `RunIndex` does not answer itself.

Each reads counts that the index keeps per group, or walks an index: none grows with the number of runs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent_env.runs._reading import dead_json, moments
from agent_env.runs.record import RunState, RunSummary

__all__ = [
    "Neighbours",
    "StepPoint",
    "TrainingSummary",
    "list_trainings",
    "loose_groups",
    "neighbouring_groups",
    "neighbouring_runs",
    "points_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPoint:
    """A group in a chart."""

    group: str
    split: str
    step: int
    scored: int
    mean: float | None
    se: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSummary:
    """A training run: all groups whose names start with it and fit."""

    name: str
    groups: int
    runs: int
    states: Mapping[RunState, int]
    last_step: int
    first_at_s: float
    last_at_s: float
    points: tuple[StepPoint, ...]
    """Of the split that the home page draws: `train`, or the first there is."""

    @property
    def latest(self) -> StepPoint | None:
        """The last step with a scored run."""
        return next((point for point in reversed(self.points) if point.mean is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """The names or ids before and after; None at the ends."""

    before: str | None
    after: str | None


def list_trainings(conn: sqlite3.Connection, *, offset: int, limit: int) -> list[TrainingSummary]:
    """Training runs, the one that wrote last first."""
    rows = conn.execute(
        "SELECT training, count(*) AS n, max(step) AS last_step, min(first_at_s) AS first_at_s, max(last_at_s) AS last_at_s"
        " FROM groups WHERE training IS NOT NULL GROUP BY training ORDER BY 5 DESC, training LIMIT ? OFFSET ?",
        (limit, offset),
    ).fetchall()
    return [
        TrainingSummary(
            name=row["training"],
            groups=row["n"],
            runs=sum(states.values()),
            states=states,
            last_step=row["last_step"],
            first_at_s=row["first_at_s"],
            last_at_s=row["last_at_s"],
            points=_headline(points_of(conn, row["training"])),
        )
        for row in rows
        for states in [_states_of(conn, row["training"])]
    ]


def points_of(conn: sqlite3.Connection, training: str) -> list[StepPoint]:
    """Every group of a training run, by split and step."""
    rows = conn.execute(
        "SELECT name, split, step, scored, shift, total, squares FROM groups WHERE training = ? ORDER BY split, step",
        (training,),
    )
    points: list[StepPoint] = []
    for name, split, step, scored, shift, total, squares in rows:
        mean, se = moments(scored, shift, total, squares)
        points.append(StepPoint(group=name, split=split, step=step, scored=scored, mean=mean, se=se))
    return points


def loose_groups(conn: sqlite3.Connection, *, after: str, limit: int) -> list[str]:
    """The names of groups that are no step of a training run, by name."""
    rows = conn.execute(
        "SELECT name FROM groups WHERE training IS NULL AND name > ? ORDER BY name LIMIT ?", (after, limit)
    )
    return [row[0] for row in rows]


def neighbouring_groups(conn: sqlite3.Connection, *, training: str, split: str, step: int) -> Neighbours:
    """The steps of the same split before and after."""
    place = (training, split, step)
    sql = "SELECT name FROM groups WHERE training = ? AND split = ? AND step {} ? ORDER BY step {} LIMIT 1"
    return Neighbours(
        before=_first(conn.execute(sql.format("<", "DESC"), place)),
        after=_first(conn.execute(sql.format(">", "ASC"), place)),
    )


def neighbouring_runs(conn: sqlite3.Connection, run: RunSummary) -> Neighbours:
    """The runs before and after in the group's list."""
    place = (run.group, run.task_id, run.attempt, run.rollout)
    sql = (
        "SELECT run_id FROM runs WHERE group_key = (SELECT key FROM groups WHERE name = ?)"
        " AND (task_id, attempt, rollout) {0} (?, ?, ?) ORDER BY task_id {1}, attempt {1}, rollout {1} LIMIT 1"
    )
    return Neighbours(
        before=_first(conn.execute(sql.format("<", "DESC"), place)),
        after=_first(conn.execute(sql.format(">", "ASC"), place)),
    )


def _headline(points: Sequence[StepPoint]) -> tuple[StepPoint, ...]:
    splits = [point.split for point in points]
    shown = "train" if "train" in splits else splits[0]
    return tuple(point for point in points if point.split == shown)


def _states_of(conn: sqlite3.Connection, training: str) -> dict[RunState, int]:
    states = dict.fromkeys(RunState, 0)
    for kind, n in conn.execute(
        "SELECT kind, sum(n) FROM tallies WHERE what = 'state'"
        " AND group_key IN (SELECT key FROM groups WHERE training = ?) GROUP BY kind",
        (training,),
    ):
        states[RunState(kind)] = n
    lost = conn.execute(
        "SELECT count(*) FROM runs WHERE state = 'running' AND writer_key IN (SELECT value FROM json_each(?))"
        " AND group_key IN (SELECT key FROM groups WHERE training = ?)",
        (dead_json(conn), training),
    ).fetchone()[0]
    states[RunState.RUNNING] -= lost
    states[RunState.INTERRUPTED] += lost
    return states


def _first(rows: sqlite3.Cursor) -> str | None:
    row = rows.fetchone()
    return None if row is None else row[0]
