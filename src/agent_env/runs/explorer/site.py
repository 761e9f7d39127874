"""What every page has from the explorer it is a page of: the index to ask, and the way to answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from agent_env.runs._reading import Reader
from agent_env.runs._schema import FILE_NAME, connect_reader
from agent_env.runs.explorer.memory import Memory
from agent_env.runs.explorer.render import as_html, as_json
from agent_env.runs.explorer.watched import stamp_of, subject_of

__all__ = ["Site"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePage:
    """What a page has to say to be told of changes."""

    address: str
    seen: str
    """The stamp of what it shows."""


class Site:
    """The explorer of one runs folder."""

    def __init__(self, folder: Path) -> None:
        """Look whether the folder can be read.

        Raises:
            RunIndexError: When there is no run index in it, or it cannot be read.
        """
        file = folder / FILE_NAME
        connect_reader(file).close()
        self._reader = Reader(file)
        self._memory = Memory(file)
        self._title = folder.resolve().name

    @property
    def reader(self) -> Reader:
        """What asks the index."""
        return self._reader

    @property
    def memory(self) -> Memory:
        """What was asked before."""
        return self._memory

    def close(self) -> None:
        """Let go of the index."""
        self._reader.close()
        self._memory.close()

    def answer(self, request: Request, template: str, view: object) -> Response:
        """Answer with a view: drawn by its template, or as it is where the address ends in `.json`."""
        if request.url.path.endswith(".json"):
            return Response(as_json(view), media_type="application/json")
        query = request.url.query
        path = "/index" if request.url.path == "/" else request.url.path
        json_url = f"{path}.json?{query}" if query else f"{path}.json"
        live = getattr(request.state, "live", None)
        page = as_html(template, view=view, folder=self._title, json_url=json_url, live=live)
        return Response(page.encode(), media_type="text/html")

    def watch(self, request: Request) -> None:
        """Note what the page is of, and how that stands before the page reads it: what changes from now on it is told."""
        address = f"{request.url.path}?{request.url.query}" if request.url.query else request.url.path
        subject = subject_of(address)
        if subject is not None:
            with self._reader.asking() as conn:
                request.state.live = LivePage(address=address, seen=stamp_of(conn, subject))

    def not_found(self, request: Request, exc: Exception) -> Response:
        """Answer that what was asked for is not there."""
        return self._error(request, 404, "Not found", str(exc))

    def unreadable(self, request: Request, exc: Exception) -> Response:
        """Answer that the index does not answer."""
        return self._error(request, 503, "The run index cannot be read", str(exc))

    def refused(self, request: Request, exc: Exception) -> Response:
        """Answer that the address makes no sense."""
        status, detail = (exc.status_code, exc.detail) if isinstance(exc, HTTPException) else (400, "")
        return self._error(request, status, "Not found" if status == 404 else "Not understood", detail)

    def broken(self, request: Request, exc: Exception) -> Response:
        """Answer that we have a bug."""
        del exc  # uvicorn logs it
        return self._error(
            request, 500, "The explorer failed", "Its terminal says how. This is a bug: please report it."
        )

    def _error(self, request: Request, status: int, title: str, detail: str) -> Response:
        if request.url.path.endswith(".json"):
            return Response(as_json({"error": title, "detail": detail}), status, media_type="application/json")
        page = as_html("error.html", title=title, detail=detail, folder=self._title, json_url="")
        return Response(page.encode(), status, media_type="text/html")
