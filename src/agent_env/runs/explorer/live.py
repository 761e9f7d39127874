"""Telling pages that what they show has changed, as server-sent events.

One look at the index serves everyone who watches: however many pages are open, it is looked at every half second at
most, and not at all while none is.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import anyio
from anyio.to_thread import run_sync
from starlette.datastructures import Headers, QueryParams
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from agent_env.errors import RunIndexError
from agent_env.runs._reading import dead_json
from agent_env.runs._schema import connect_reader, identity_of
from agent_env.runs.explorer.watched import Subject, stamp_of, subject_of

__all__ = ["Live"]

_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store, no-transform",
    "x-accel-buffering": "no",  # a proxy that keeps events back until a buffer is full makes nothing live
}
_UNREADABLE = "unreadable"
"""The stamp of everything while the index cannot be read."""
_PAGE_CHARS = 4_000


class _Version(NamedTuple):
    """What of the index was looked at."""

    identity: tuple[int, int]
    data: int
    """SQLite's own count, for one connection."""
    dead: str
    """The writers that died, which writes nothing."""


class Live:
    """Answers `/live?page=`: an event each time that what the page shows has changed."""

    def __init__(
        self, file: Path, *, every_s: float = 0.5, beat_s: float = 15.0, longest_s: float = 1800.0, most: int = 64
    ) -> None:
        """Watch an index.

        Args:
            file: The index.
            every_s: How often it is looked at, while someone watches.
            beat_s: After so long without an event a comment is sent: it keeps a proxy from closing the stream, and finds
                out that whoever watched is gone.
            longest_s: A stream ends after so long; the browser opens another one.
            most: Streams at once. One more is told to come back later.
        """
        self._file = file
        self._every_s, self._beat_s, self._longest_s, self._most = every_s, beat_s, longest_s, most
        self._watched: Counter[Subject] = Counter()
        self._stamps: dict[Subject, str] = {}
        self._looked_at_s = 0.0
        self._version: _Version | None = None
        """What the stamps are of."""
        self._conn: sqlite3.Connection | None = None
        self._lock = anyio.Lock()
        self._stopped = anyio.Event()

    @property
    def streams(self) -> int:
        """How many are open."""
        return self._watched.total()

    def stop(self) -> None:
        """End all streams, and open no more."""
        self._stopped.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        query = QueryParams(scope.get("query_string", b"").decode("latin-1"))
        page = query.get("page", "")
        subject = subject_of(page) if len(page) <= _PAGE_CHARS else None
        refusal = self._refusal(scope, subject)
        if subject is None or refusal is not None:
            await (refusal or Response(status_code=404))(scope, receive, send)
            return
        seen = Headers(scope=scope).get("last-event-id") or query.get("seen", "")
        with self._watching(subject):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_until_gone, receive, tasks.cancel_scope)
                await self._stream(send, subject, seen)
                tasks.cancel_scope.cancel()

    def _refusal(self, scope: Scope, subject: Subject | None) -> Response | None:
        """The answer where there is nothing to stream."""
        if subject is None:
            return PlainTextResponse("There is no such page to watch.\n", 404)
        if self.streams >= self._most or self._stopped.is_set():
            return PlainTextResponse("Too many pages are open.\n", 503, headers={"retry-after": "10"})
        return Response(headers=_HEADERS) if scope["method"] == "HEAD" else None

    async def _stream(self, send: Send, subject: Subject, seen: str) -> None:
        raw = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        await _write(send, "retry: 2000\n\n")
        ends_at_s = time.monotonic() + self._longest_s
        beat_at_s = time.monotonic() + self._beat_s
        while not self._stopped.is_set() and time.monotonic() < ends_at_s:
            stamp = await self._stamp(subject)
            if stamp and not seen:
                seen = stamp  # it does not know what it shows: from now on
            if stamp and stamp != seen:
                seen = stamp
                await _write(send, f"id: {stamp}\nevent: changed\ndata: {stamp}\n\n")
                beat_at_s = time.monotonic() + self._beat_s
            elif time.monotonic() >= beat_at_s:
                await _write(send, ": still here\n\n")
                beat_at_s = time.monotonic() + self._beat_s
            with anyio.move_on_after(self._every_s):
                await self._stopped.wait()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _stamp(self, subject: Subject) -> str:
        """The subject's stamp, at most `every_s` old; empty before the first look."""
        async with self._lock:
            if subject not in self._stamps or time.monotonic() - self._looked_at_s >= self._every_s:
                await run_sync(self._look)
                self._looked_at_s = time.monotonic()
        return self._stamps.get(subject, "")

    def _look(self) -> None:
        """Bring the stamps up to date. Cheap while nothing is written."""
        try:
            self._bring_up_to_date()
        except (RunIndexError, sqlite3.Error, OSError):
            # Damaged, replaced or gone: its pages say how. It is opened anew at the next look.
            self._close()
            self._stamps = dict.fromkeys(self._watched, _UNREADABLE)

    def _bring_up_to_date(self) -> None:
        identity = identity_of(self._file)
        if self._version is not None and self._version.identity != identity:
            self._close()
        conn = self._conn = self._conn or connect_reader(self._file)
        version = _Version(identity, conn.execute("PRAGMA data_version").fetchone()[0], dead_json(conn))
        if version != self._version:
            self._stamps.clear()
            self._version = version
        for subject in list(self._watched):
            if subject not in self._stamps:
                self._stamps[subject] = stamp_of(conn, subject)

    def _close(self) -> None:
        conn, self._conn, self._version = self._conn, None, None
        self._stamps.clear()
        if conn is not None:
            conn.close()

    @contextmanager
    def _watching(self, subject: Subject) -> Generator[None]:
        self._watched[subject] += 1
        try:
            yield
        finally:
            self._watched[subject] -= 1
            if not self._watched[subject]:
                del self._watched[subject]
                self._stamps.pop(subject, None)
            if not self._watched and not self._lock.locked():
                self._close()


async def _until_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    """Wait until whoever asked is gone, and end the answer then."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def _write(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
