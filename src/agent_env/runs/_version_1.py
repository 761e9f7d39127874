"""Tools and times of runs that were recorded by a version which did not keep them, from their events.

After a file of version 1 was brought up to date, whoever has it open for writing does this when nothing waits to be written.
"""

from __future__ import annotations

import sqlite3
import time

from agent_env.errors import RunIndexError
from agent_env.runs._codec import encode
from agent_env.runs._reading import events_of
from agent_env.runs._schema import immediate
from agent_env.runs._totals import TotalsSoFar

__all__ = ["fill_some_totals", "has_runs_without_totals"]

_SLICE_S = 0.05


def has_runs_without_totals(conn: sqlite3.Connection) -> bool:
    """Whether there are such runs."""
    return _next(conn) is not None


def fill_some_totals(conn: sqlite3.Connection) -> bool:
    """Fill them in for some runs.

    Returns:
        Whether there are more.

    Raises:
        sqlite3.Error: When it cannot be written.
    """
    until = time.monotonic() + _SLICE_S
    found: list[tuple[str, str, int]] = []
    key = _next(conn)
    while key is not None and time.monotonic() < until:
        found.append((*_totals(conn, key), key))
        key = _next(conn, after=key)
    with immediate(conn):
        conn.executemany("UPDATE runs SET tools = ?, times = ? WHERE key = ?", found)
        done = found[-1][2] if found and key is not None else None
        if done is None:
            conn.execute("DELETE FROM marks WHERE name IN ('totals_from', 'totals_to')")
        else:
            conn.execute(
                "INSERT INTO marks VALUES ('totals_from', ?) ON CONFLICT DO UPDATE SET value = max(value, excluded.value)",
                (done,),
            )
    return done is not None


def _next(conn: sqlite3.Connection, *, after: int = 0) -> int | None:
    """The next run without totals."""
    row = conn.execute(
        "SELECT min(key) FROM runs WHERE key > max(?, coalesce((SELECT value FROM marks WHERE name = 'totals_from'), 0))"
        " AND key <= (SELECT value FROM marks WHERE name = 'totals_to')",
        (after,),
    ).fetchone()
    return None if row[0] is None else int(row[0])


def _totals(conn: sqlite3.Connection, key: int) -> tuple[str, str]:
    opened_at_s, last_at_s = conn.execute(
        "SELECT opened_at_s, coalesce(ended_at_s, last_at_s) FROM runs WHERE key = ?", (key,)
    ).fetchone()
    totals = TotalsSoFar(opened_at_s)
    try:
        for event in events_of(conn, key):
            totals.note(event, last_at_s)
    except RunIndexError:
        return "{}", "{}"  # a damaged run is told of to whoever reads it
    totals.spend_until(last_at_s, last_at_s)
    now = totals.now()
    return encode(now.tools).decode("ascii"), encode(now.times).decode("ascii")
