"""The explorer as an ASGI app: read-only pages over one run index, each also as `.json`."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from agent_env.errors import RunIndexError, UsageError
from agent_env.runs._reading import Reader
from agent_env.runs._schema import FILE_NAME, connect_reader
from agent_env.runs.explorer.guard import Guard
from agent_env.runs.explorer.render import as_html, as_json
from agent_env.runs.explorer.views import view_group, view_home, view_run, view_training
from agent_env.runs.record import RunState

__all__ = ["build_app"]

_STATIC = {"explorer.css": "text/css", "icon.svg": "image/svg+xml"}
_LARGEST = 2**53


def build_app(folder: Path) -> ASGIApp:
    """Make the explorer of the runs in `folder`.

    Raises:
        RunIndexError: When there is no run index in it, or it cannot be read.
    """
    file = folder / FILE_NAME
    connect_reader(file).close()
    pages = _Pages(Reader(file), folder.resolve().name)
    routes: list[Route] = []
    for path, page in {
        "/": pages.home,
        "/training": pages.training,
        "/group": pages.group,
        "/run/{run_id}": pages.run,
    }.items():
        routes.append(Route("/index.json" if path == "/" else f"{path}.json", page, name=f"{page.__name__}.json"))
        routes.append(Route(path, page))
    routes += [
        Route("/run/{run_id}/{seq:int}", pages.event),
        *(Route(f"/static/{name}", _asset(name, kind)) for name, kind in _STATIC.items()),
    ]
    return Guard(
        Starlette(
            routes=routes,
            exception_handlers={
                UsageError: pages.not_found,
                RunIndexError: pages.unreadable,
                HTTPException: pages.refused,
                Exception: pages.broken,
            },
        )
    )


class _Pages:
    # The handlers are plain functions: Starlette runs them in threads, so that SQLite never stalls the server's loop.

    def __init__(self, reader: Reader, title: str) -> None:
        self._reader = reader
        self._title = title

    def home(self, request: Request) -> Response:
        after = request.query_params.get("groups_after", "")
        return self._answer(request, "home.html", view_home(self._reader, offset=_number(request, "from"), after=after))

    def training(self, request: Request) -> Response:
        name = request.query_params.get("name", "")
        return self._answer(
            request, "training.html", view_training(self._reader, name, offset=_number(request, "from"))
        )

    def group(self, request: Request) -> Response:
        asked = request.query_params.get("state") or None
        if asked is not None and asked not in list(RunState):
            raise HTTPException(400, f"No outcome is called like this. There are: {', '.join(RunState)}.")
        view = view_group(
            self._reader,
            request.query_params.get("name", ""),
            state=None if asked is None else RunState(asked),
            after=request.query_params.get("after") or None,
        )
        return self._answer(request, "group.html", view)

    def run(self, request: Request) -> Response:
        view = view_run(self._reader, request.path_params["run_id"], first=_number(request, "from"))
        return self._answer(request, "run.html", view)

    def event(self, request: Request) -> Response:
        seq = request.path_params["seq"]
        view = view_run(self._reader, request.path_params["run_id"], first=min(seq, _LARGEST))
        if not view.events:
            raise UsageError(f"no event {seq} in run {view.run.run_id}")
        return Response(as_json(view.events[0]), media_type="application/json")

    def not_found(self, request: Request, exc: Exception) -> Response:
        return self._error(request, 404, "Not found", str(exc))

    def unreadable(self, request: Request, exc: Exception) -> Response:
        return self._error(request, 503, "The run index cannot be read", str(exc))

    def refused(self, request: Request, exc: Exception) -> Response:
        status, detail = (exc.status_code, exc.detail) if isinstance(exc, HTTPException) else (400, "")
        return self._error(request, status, "Not found" if status == 404 else "Not understood", detail)

    def broken(self, request: Request, exc: Exception) -> Response:
        del exc  # uvicorn logs it
        return self._error(
            request, 500, "The explorer failed", "Its terminal says how. This is a bug: please report it."
        )

    def _answer(self, request: Request, template: str, view: object) -> Response:
        if request.url.path.endswith(".json"):
            return Response(as_json(view), media_type="application/json")
        query = request.url.query
        path = "/index" if request.url.path == "/" else request.url.path
        json_url = f"{path}.json?{query}" if query else f"{path}.json"
        return Response(
            as_html(template, view=view, folder=self._title, json_url=json_url).encode(), media_type="text/html"
        )

    def _error(self, request: Request, status: int, title: str, detail: str) -> Response:
        if request.url.path.endswith(".json"):
            return Response(as_json({"error": title, "detail": detail}), status, media_type="application/json")
        page = as_html("error.html", title=title, detail=detail, folder=self._title, json_url="")
        return Response(page.encode(), status, media_type="text/html")


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name) or "0"
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise HTTPException(400, f"{name} must be a whole number.")
    return int(text)


def _asset(name: str, kind: str) -> Callable[[Request], Response]:
    # Read once, by a name of ours: no path of a request reaches the file system.
    body = files("agent_env.runs.explorer").joinpath("static", name).read_bytes()

    def asset(request: Request) -> Response:
        del request
        return Response(body, media_type=kind, headers={"cache-control": "max-age=300"})

    return asset
