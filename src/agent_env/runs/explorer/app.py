"""The explorer as an ASGI app: its addresses. Every page is read-only, and `.json` too.

A page is a module with a function that is given the site and the request. They are plain functions: Starlette runs
them in threads, so that SQLite never stalls the server's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.resources import files
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from agent_env.errors import RunIndexError, UsageError
from agent_env.runs._schema import FILE_NAME
from agent_env.runs.explorer.access import Access
from agent_env.runs.explorer.compare_page import compare_page
from agent_env.runs.explorer.event_page import event_page
from agent_env.runs.explorer.group_page import group_page
from agent_env.runs.explorer.guard import Guard
from agent_env.runs.explorer.home_page import home_page
from agent_env.runs.explorer.live import Live
from agent_env.runs.explorer.run_page import run_page
from agent_env.runs.explorer.script_page import script_page
from agent_env.runs.explorer.search_page import search_page
from agent_env.runs.explorer.site import Site
from agent_env.runs.explorer.task_page import task_page
from agent_env.runs.explorer.training_page import training_page

__all__ = ["build_app"]

Page = Callable[[Site, Request], Response]

_PAGES: Mapping[str, Page] = {
    "/": home_page,
    "/training": training_page,
    "/group": group_page,
    "/task": task_page,
    "/search": search_page,
    "/run/{run_id}": run_page,
    "/compare": compare_page,
    "/run/{run_id}/{seq:int}": event_page,
}
"""Each answers `.json` too."""
_PARTS: Mapping[str, Page] = {
    "/run/{run_id}/script": script_page,
}
"""Answers of another kind."""
_STATIC = {
    "explorer.css": "text/css",
    "keys.js": "text/javascript",
    "live.js": "text/javascript",
    "run.css": "text/css",
    "run.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


def build_app(folder: Path, *, access: Access | None = None, live: Live | None = None) -> ASGIApp:
    """Make the explorer of the runs in `folder`.

    Args:
        folder: The runs folder.
        access: Who may read; None for this machine alone.
        live: What tells pages of changes; None makes one.

    Raises:
        RunIndexError: When there is no run index in it, or it cannot be read.
    """
    site = Site(folder)
    routes: list[Route] = []
    for path, page in _PAGES.items():
        routes += [_route(f"{name}.json", page, site) for name in (("/", "/index") if path == "/" else (path,))]
        routes.append(_route(path, page, site))
    routes.append(Route("/live", live or Live(folder / FILE_NAME)))
    routes += [_route(path, part, site) for path, part in _PARTS.items()]
    routes += [Route(f"/static/{name}", _asset(name, kind)) for name, kind in _STATIC.items()]
    return Guard(
        Starlette(
            routes=routes,
            exception_handlers={
                UsageError: site.not_found,
                RunIndexError: site.unreadable,
                HTTPException: site.refused,
                Exception: site.broken,
            },
        ),
        access or Access(),
    )


def _route(path: str, page: Page, site: Site) -> Route:
    return Route(path, partial(_answer, page, site), name=path)


def _answer(page: Page, site: Site, request: Request) -> Response:
    site.watch(request)
    return page(site, request)


def _asset(name: str, kind: str) -> Callable[[Request], Response]:
    # Read once, by a name of ours: no path of a request reaches the file system.
    body = files("agent_env.runs.explorer").joinpath("static", name).read_bytes()

    def asset(request: Request) -> Response:
        del request
        return Response(body, media_type=kind, headers={"cache-control": "max-age=300"})

    return asset
