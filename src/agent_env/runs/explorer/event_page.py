"""One event of a run: all of it, or a piece of one of its texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from agent_env.errors import UsageError
from agent_env.runs._reading import read_summary
from agent_env.runs.conversation import Item, conversation
from agent_env.runs.explorer.address import LARGEST, number_of, text_of
from agent_env.runs.explorer.run_reading import read_events
from agent_env.runs.explorer.site import Site
from agent_env.runs.record import RunEvent, RunSummary

__all__ = ["EventView", "event_page"]

_PIECE_CHARS = 100_000
"""Of a long text, what is shown at once of the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventView:
    """One event, or a piece of one of its texts."""

    run: RunSummary
    event: RunEvent
    part: str
    """The text that is shown in pieces; empty for the whole event."""
    start: int
    """Where in that text the piece begins, in characters."""
    text: str
    """The piece."""
    chars: int
    """How long the text is."""

    @property
    def end(self) -> int:
        """Where the piece ends."""
        return self.start + len(self.text)

    @property
    def before(self) -> int:
        """Where the piece before it begins."""
        return max(0, self.start - _PIECE_CHARS)

    @property
    def items(self) -> list[Item]:
        """The event as it is in the conversation."""
        return conversation((self.event,), is_whole=False)


def event_page(site: Site, request: Request) -> Response:
    """Answer `/run/ID/N`: one event, or with `part=` a piece of one of its texts.

    Raises:
        UsageError: When the run has no such event, or the event no such text.
    """
    seq = min(request.path_params["seq"], LARGEST)
    with site.reader.asking() as conn:
        run = read_summary(conn, request.path_params["run_id"])
        events = read_events(conn, run, first=seq, limit=1)
    if not events:
        raise UsageError(f"no event {seq} in run {run.run_id}")
    if request.url.path.endswith(".json"):
        return site.answer(request, "event.html", events[0])
    part, start = text_of(request, "part"), number_of(request, "from")
    text = _texts(events[0]).get(part, "")
    if part and not text:
        raise UsageError(f"event {seq} of run {run.run_id} has no text called {part!r}")
    view = EventView(
        run=run, event=events[0], part=part, start=start, text=text[start : start + _PIECE_CHARS], chars=len(text)
    )
    return site.answer(request, "event.html", view)


def _texts(event: RunEvent) -> Mapping[str, str]:
    texts: dict[str, str] = {}
    for item in conversation((event,), is_whole=False):
        texts |= {"text": item.text} | {section.name: section.text for section in item.sections}
        if item.changes:
            texts["changes"] = "\n".join(map(str, item.changes))
    return texts
