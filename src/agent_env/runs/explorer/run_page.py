"""One run: its summary and its conversation, a page of it at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from agent_env.errors import UsageError
from agent_env.runs._reading import Reader, read_record
from agent_env.runs.conversation import Item, conversation
from agent_env.runs.explorer.address import LARGEST, number_of
from agent_env.runs.explorer.points import Neighbours, first_text
from agent_env.runs.explorer.render import as_json
from agent_env.runs.explorer.site import Site
from agent_env.runs.record import RunEvent, RunState, RunSummary

__all__ = ["RunView", "event_page", "run_page"]

_EVENTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """One run: its summary and a page of its conversation."""

    run: RunSummary
    params: Mapping[str, Any]
    tags: tuple[str, ...]
    neighbours: Neighbours
    events: tuple[RunEvent, ...]
    first: int
    next_event: int | None

    @property
    def items(self) -> list[Item]:
        """The events as a conversation."""
        is_whole = self.next_event is None and self.run.state is not RunState.RUNNING
        return conversation(self.events, is_whole=is_whole)


def run_page(site: Site, request: Request) -> Response:
    """Answer `/run/ID`."""
    view = view_run(site.reader, request.path_params["run_id"], first=number_of(request, "from"))
    return site.answer(request, "run.html", view)


def event_page(site: Site, request: Request) -> Response:
    """Answer `/run/ID/N`: one event, whole, as JSON.

    Raises:
        UsageError: When the run has no such event.
    """
    seq = request.path_params["seq"]
    view = view_run(site.reader, request.path_params["run_id"], first=min(seq, LARGEST))
    if not view.events:
        raise UsageError(f"no event {seq} in run {view.run.run_id}")
    return Response(as_json(view.events[0]), media_type="application/json")


def view_run(reader: Reader, run_id: str, *, first: int) -> RunView:
    """A run's page, from its `first`th event on.

    Raises:
        UsageError: When there is no such run.
    """
    with reader.asking() as conn:
        record = read_record(conn, run_id, first=first, limit=_EVENTS)
        neighbours = _neighbouring_runs(conn, record.run)
    return RunView(
        run=record.run,
        params=record.params,
        tags=record.tags,
        neighbours=neighbours,
        events=record.events,
        first=first,
        next_event=record.next_event,
    )


def _neighbouring_runs(conn: sqlite3.Connection, run: RunSummary) -> Neighbours:
    place = (run.group, run.task_id, run.attempt, run.rollout)
    sql = (
        "SELECT run_id FROM runs WHERE group_key = (SELECT key FROM groups WHERE name = ?)"
        " AND (task_id, attempt, rollout) {0} (?, ?, ?) ORDER BY task_id {1}, attempt {1}, rollout {1} LIMIT 1"
    )
    return Neighbours(
        before=first_text(conn.execute(sql.format("<", "DESC"), place)),
        after=first_text(conn.execute(sql.format(">", "ASC"), place)),
    )
