"""A text found in the messages, calls and answers of all runs, or of some: the newest first."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from agent_env.errors import UsageError
from agent_env.runs._search import search
from agent_env.runs.explorer.address import text_of
from agent_env.runs.explorer.marking import Marker
from agent_env.runs.explorer.site import Site
from agent_env.runs.record import SearchHit

__all__ = ["SearchView", "search_page"]

_HITS = 30
_LIMIT_S = 1.5
"""After this long the page shows what was found, and a link that looks further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchView:
    """What was found."""

    q: str
    group: str
    """Where it was looked for: this group and those below it; empty for all."""
    hits: tuple[SearchHit, ...]
    after: str | None
    """Where the page started; None for the first."""
    next_page: str | None
    waiting: int
    """Pieces of runs that cannot be found yet: they were written just now."""
    damaged: tuple[str, ...]
    """Runs that could not be looked through, by id."""
    problem: str
    """Why nothing was looked for; empty where it was."""

    @property
    def asked(self) -> dict[str, object]:
        """What the address asks for, but for the page."""
        return {"q": self.q, "group": self.group}

    @property
    def mark(self) -> Marker:
        """What marks the words in an excerpt."""
        return Marker(self.q)


def search_page(site: Site, request: Request) -> Response:
    """Answer `/search?q=`."""
    view = view_search(
        site, text_of(request, "q").strip(), group=text_of(request, "group"), after=text_of(request, "after") or None
    )
    return site.answer(request, "search.html", view)


def view_search(site: Site, q: str, *, group: str = "", after: str | None = None) -> SearchView:
    """The page of a search.

    Args:
        site: What to ask.
        q: What to look for.
        group: Only in this group and those below it; empty for all.
        after: `next_page` of the page before.
    """
    if not q:
        return _nothing(q, group, "")
    try:
        with site.reader.asking() as conn:
            found = search(conn, q, group=group, after=after, limit=_HITS, limit_s=_LIMIT_S)
    except UsageError as exc:
        return _nothing(q, group, str(exc))
    return SearchView(
        q=q,
        group=group,
        hits=found.hits,
        after=after,
        next_page=found.next_page,
        waiting=found.waiting,
        damaged=found.damaged,
        problem="",
    )


def _nothing(q: str, group: str, problem: str) -> SearchView:
    return SearchView(q=q, group=group, hits=(), after=None, next_page=None, waiting=0, damaged=(), problem=problem)
