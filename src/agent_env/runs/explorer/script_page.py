"""A run as a test case: a text, for `agent-env play --script`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response

from agent_env.runs._reading import read_summary
from agent_env.runs.explorer.run_reading import after_last, read_events, read_head
from agent_env.runs.explorer.site import Site
from agent_env.runs.play_script import play_script
from agent_env.runs.record import RunEvent, RunSummary

__all__ = ["script_page"]

_AT_ONCE = 1_000


def script_page(site: Site, request: Request) -> Response:
    """Answer `/run/ID/script`."""
    with site.reader.asking() as conn:
        run = read_summary(conn, request.path_params["run_id"])
        bundle_root = read_head(conn, run).bundle_root
        text = play_script(run, _all_events(conn, run), bundle_root=bundle_root)
    return Response(text.encode(), media_type="text/plain")


def _all_events(conn: sqlite3.Connection, run: RunSummary) -> Iterator[RunEvent]:
    first = 0
    while found := read_events(conn, run, first=first, limit=_AT_ONCE):
        yield from found
        first = after_last(found, first)
