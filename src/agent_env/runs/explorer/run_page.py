"""One run: how it ended, and its conversation, a page of it at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from agent_env.runs._reading import Reader, read_summary
from agent_env.runs.conversation import Item, conversation
from agent_env.runs.explorer.address import number_of, text_of
from agent_env.runs.explorer.heat import heat_span
from agent_env.runs.explorer.item_rows import item_rows
from agent_env.runs.explorer.neighbours import Neighbours
from agent_env.runs.explorer.rollouts import Rollout
from agent_env.runs.explorer.run_drawing import duration_bar, shaded, times_bar
from agent_env.runs.explorer.run_reading import (
    after_last,
    has_sampled,
    neighbouring_runs,
    read_events,
    read_head,
    read_last,
    read_sampled_of,
    rollouts_of,
)
from agent_env.runs.explorer.site import Site
from agent_env.runs.record import GroupPlace, RunEvent, RunState, RunSummary, SampledTokens, place_of

__all__ = ["RunView", "run_page"]

_EVENTS = 200
_BEFORE = 12
"""Events shown before the one that a link leads to."""
_STARTS = frozenset({"message", "turn_started", "step_started"})
"""Where a page may begin and end: a call is on the page of its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What a reader looks for first, wherever in the run it is."""

    scores: tuple[Item, ...]
    failure: Item | None
    states: tuple[Item, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPart:
    """One run: its summary and a page of its events. What the page has as JSON."""

    run: RunSummary
    params: Mapping[str, Any]
    tags: tuple[str, ...]
    damage: str
    """Why params and tags cannot be read; empty where they can."""
    neighbours: Neighbours
    rollouts: tuple[Rollout, ...]
    """Of the same task in the same group."""
    events: tuple[RunEvent, ...]
    first: int
    next_event: int | None
    has_tokens: bool
    """Whether the record has the tokens that messages were sampled as."""
    tokens: Mapping[int, SampledTokens]
    """By message of the played agent, where they are asked for."""


@dataclass(frozen=True, kw_only=True)
class RunView:
    """What the page of a run draws."""

    part: RunPart
    at: int | None
    """The event that a link led to."""
    is_shaded: bool
    """Whether messages are shown as their tokens."""
    last_events: tuple[RunEvent, ...]

    @property
    def run(self) -> RunSummary:
        """The run."""
        return self.part.run

    @cached_property
    def items(self) -> list[Item]:
        """The events as a conversation."""
        is_whole = self.part.next_event is None and self.run.state is not RunState.RUNNING
        return conversation(self.part.events, is_whole=is_whole)

    @property
    def rows(self) -> list[Sequence[Item]]:
        """The items in rows. While the run is under way each has its own: what is new is put after what is there."""
        return [[item] for item in self.items] if self.run.state is RunState.RUNNING else item_rows(self.items)

    @cached_property
    def ending(self) -> Ending:
        """The run's scores, failure and states, with the events that tell of them."""
        items = conversation(self.last_events, is_whole=False)
        failures = [item for item in items if item.look == "failure" and item.title.startswith("failed")]
        return Ending(
            scores=tuple(item for item in items if item.look == "score"),
            failure=failures[-1] if failures and self.run.failure is not None else None,
            states=tuple(item for item in items if item.look == "state"),
        )

    def told(self, step: str) -> Item | None:
        """The last event that tells of a score."""
        return next((item for item in reversed(self.ending.scores) if item.title == step), None)

    @property
    def place(self) -> GroupPlace | None:
        """The step of a training run that it is of."""
        return place_of(self.run.group)

    @property
    def tail(self) -> int:
        """From where on the conversation may still change while the run is under way."""
        starts = [event.seq for event in self.part.events if event.kind in _STARTS]
        return starts[-1] if starts else self.part.first

    @property
    def others(self) -> Mapping[str, Any]:
        """Labels that have no name of their own on the page."""
        return {
            name: value for name, value in self.run.labels.items() if name not in {"policy_step", "model", "renderer"}
        }

    @property
    def reward_span(self) -> tuple[float, float]:
        """What the colours of the rollouts' rewards span."""
        rewards = [rollout.reward for rollout in self.part.rollouts if rollout.reward is not None]
        return heat_span(min(rewards, default=None), max(rewards, default=None))

    @property
    def rival(self) -> Rollout | None:
        """The rollout to compare this one with: the scored one whose reward is the furthest from its own."""
        own = self.run.reward or 0.0
        others = [other for other in self.part.rollouts if other.run_id != self.run.run_id and other.score is not None]
        return max(others, key=lambda other: abs((other.score or 0.0) - own), default=None)

    def is_bare(self, item: Item) -> bool:
        """Whether a message only asks for the calls that follow it."""
        return item.look == "assistant" and not (item.text or item.sections or self.shade(item))

    @property
    def times_bar(self) -> Markup:
        """Where the run's seconds went."""
        return times_bar(self.run)

    @cached_property
    def _longest_s(self) -> float:
        return max((item.duration_s or 0.0 for item in self.items if item.look == "call"), default=0.0)

    def bar(self, item: Item) -> Markup:
        """How long a call took beside the longest on the page."""
        return duration_bar(item.duration_s, self._longest_s)

    def shade(self, item: Item) -> Markup:
        """A message as its tokens; empty where there are none to show."""
        tokens = None if item.message is None else self.part.tokens.get(item.message)
        return Markup("") if tokens is None else shaded(tokens)


def run_page(site: Site, request: Request) -> Response:
    """Answer `/run/ID`."""
    at = number_of(request, "at") if text_of(request, "at") else None
    view = view_run(
        site.reader,
        request.path_params["run_id"],
        first=number_of(request, "from"),
        at=at,
        is_shaded=text_of(request, "tokens") == "1",
    )
    return site.answer(request, "run.html", view.part if request.url.path.endswith(".json") else view)


def view_run(reader: Reader, run_id: str, *, first: int = 0, at: int | None = None, is_shaded: bool = False) -> RunView:
    """A run's page, from its `first`th event on, or around the event `at`.

    Raises:
        UsageError: When there is no such run.
    """
    with reader.asking() as conn:
        run = read_summary(conn, run_id)
        head = read_head(conn, run)
        if at is not None:
            first = max(0, min(at, run.event_count) - _BEFORE)
        events = read_events(conn, run, first=first, limit=_EVENTS)
        events = _from_a_start(events, at) if at is not None else events
        first = events[0].seq if at is not None and events else first
        is_last = after_last(events, first) >= run.event_count
        events = events if is_last else _to_a_start(events)
        last_events = events if is_last and first == 0 else read_last(conn, run)
        messages = [item.message for item in conversation(events, is_whole=False) if item.message is not None]
        has_tokens = has_sampled(conn, run)
        tokens = read_sampled_of(conn, run, messages) if is_shaded else {}
        neighbours = neighbouring_runs(conn, run)
        rollouts = rollouts_of(conn, run)
    part = RunPart(
        run=run,
        params=head.params,
        tags=head.tags,
        damage=head.damage,
        neighbours=neighbours,
        rollouts=tuple(rollouts),
        events=tuple(events),
        first=first,
        next_event=None if is_last or not events else after_last(events, first),
        has_tokens=has_tokens,
        tokens=tokens,
    )
    return RunView(part=part, at=at, is_shaded=is_shaded, last_events=tuple(last_events))


def _from_a_start(events: Sequence[RunEvent], at: int) -> Sequence[RunEvent]:
    """Leave out events before the nearest place to begin a page at that is not after `at`."""
    for index, event in enumerate(events):
        if event.seq > at:
            break
        if event.kind in _STARTS:
            return events[index:]
    return events


def _to_a_start(events: Sequence[RunEvent]) -> Sequence[RunEvent]:
    """Leave out the events at the end that belong with what follows."""
    for index in range(len(events) - 1, len(events) // 2, -1):
        if events[index].kind in _STARTS:
            return events[:index]
    return events
