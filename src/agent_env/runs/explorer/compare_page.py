"""Two runs side by side: what each did, call beside call, and what it came to."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from agent_env.runs._reading import Reader, read_summary
from agent_env.runs.explorer.address import number_of, text_of
from agent_env.runs.explorer.aligned import Likeness, Move, Row, align, is_move, moves_of
from agent_env.runs.explorer.run_reading import after_last, read_events
from agent_env.runs.explorer.site import Site
from agent_env.runs.record import GroupPlace, RunEvent, RunSummary, place_of

__all__ = ["CompareView", "compare_page"]

_MOVES = 150
"""Moves of each run on a page."""
_EVENTS = 480
_PAGES = 8
"""How many times so many events are read for a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two, and where its moves go on."""

    run: RunSummary
    first: int
    next_event: int | None
    """None where these are its last moves so far."""


@dataclass(frozen=True, kw_only=True)
class CompareView:
    """Two runs, and their moves in rows."""

    left: Side
    right: Side
    rows: tuple[Row, ...]

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """How many rows are how."""
        found = Counter(str(row.likeness) for row in self.rows)
        return {str(likeness): found[str(likeness)] for likeness in Likeness}

    @cached_property
    def first_difference(self) -> int | None:
        """The number of the first row that is not the same on both sides, from 1."""
        for number, row in enumerate(self.rows, start=1):
            if row.likeness is not Likeness.SAME or row.answers_differ:
                return number
        return None

    @property
    def scores(self) -> list[str]:
        """The names of the scores that either has."""
        return list(dict.fromkeys((*self.left.run.scores, *self.right.run.scores)))

    @property
    def is_first(self) -> bool:
        """Whether it begins where the runs do."""
        return not (self.left.first or self.right.first)

    @property
    def place(self) -> GroupPlace | None:
        """The step of a training run that both are of; None where they are of two."""
        return place_of(self.left.run.group) if self.left.run.group == self.right.run.group else None


def compare_page(site: Site, request: Request) -> Response:
    """Answer `/compare?left=&right=`.

    Raises:
        HTTPException: When one of the two is not said.
        UsageError: When there is no such run.
    """
    left, right = text_of(request, "left"), text_of(request, "right")
    if not left or not right:
        raise HTTPException(400, "Two runs are compared: name them, as in /compare?left=RUN&right=RUN.")
    view = view_compare(
        site.reader,
        left,
        right,
        left_first=number_of(request, "left_from"),
        right_first=number_of(request, "right_from"),
    )
    return site.answer(request, "compare.html", view)


def view_compare(reader: Reader, left: str, right: str, *, left_first: int = 0, right_first: int = 0) -> CompareView:
    """Two runs, from an event of each on.

    Raises:
        UsageError: When there is no such run.
    """
    with reader.asking() as conn:
        one, left_moves = _side(conn, read_summary(conn, left), left_first)
        other, right_moves = _side(conn, read_summary(conn, right), right_first)
    return CompareView(left=one, right=other, rows=tuple(align(left_moves, right_moves)))


def _side(conn: sqlite3.Connection, run: RunSummary, first: int) -> tuple[Side, list[Move]]:
    events: list[RunEvent] = []
    at, count = first, 0
    for _ in range(_PAGES):
        found = read_events(conn, run, first=at, limit=_EVENTS)
        if not found:
            break
        events += found
        at = after_last(found, at)
        count += sum(map(is_move, found))
        if count > _MOVES:
            break
    moves = moves_of(events)
    next_event = at if at < run.event_count else None
    if len(moves) > _MOVES:
        next_event = moves[_MOVES].seq
    elif next_event is not None and moves and not moves[-1].is_answered:
        next_event = moves.pop().seq
    return Side(run=run, first=first, next_event=next_event), moves[:_MOVES]
