"""The steps of a training run as points in a chart, read from the counts that the index keeps per group."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from agent_env.runs._reading import moments

__all__ = ["Neighbours", "StepPoint", "first_text", "points_of"]


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
class Neighbours:
    """The names or ids before and after; None at the ends."""

    before: str | None
    after: str | None


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


def first_text(rows: sqlite3.Cursor) -> str | None:
    """The first row's first column."""
    row = rows.fetchone()
    return None if row is None else row[0]
