"""What comes before and after: a step of a training run, a run of a group."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

__all__ = ["Neighbours", "first_text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """The names or ids before and after; None at the ends."""

    before: str | None
    after: str | None


def first_text(rows: sqlite3.Cursor) -> str | None:
    """The first row's first column."""
    row = rows.fetchone()
    return None if row is None else row[0]
