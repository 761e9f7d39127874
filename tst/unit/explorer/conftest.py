"""Runs to look at, and pages as elements to find things in."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_env.episode.sink import Event, EventKind, RunHeader
from agent_env.outcome import CutReason, EpisodeResult, Failure, Outcome, Score
from agent_env.runs import RunIndex, RunSink
from agent_env.runs.explorer import build_app

_VOID = {"area", "br", "col", "embed", "hr", "img", "input", "link", "meta", "wbr", "circle", "line", "rect"}


@dataclass
class Element:
    """An element of a page."""

    tag: str
    attributes: dict[str, str]
    children: list[Element | str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All text in it, with a blank between elements, and runs of blanks as one."""
        parts = [child if isinstance(child, str) else child.text for child in self.children]
        return " ".join(" ".join(parts).split())

    @property
    def raw_text(self) -> str:
        """All text in it, as it is."""
        return "".join(child if isinstance(child, str) else child.raw_text for child in self.children)

    def all(self, tag: str = "", **wanted: str) -> list[Element]:
        """Every element in it of a tag, whose attributes are as wanted; a class is one of several."""
        found: list[Element] = []
        for child in self.children:
            if isinstance(child, str):
                continue
            if (not tag or child.tag == tag) and all(child._has(name, value) for name, value in wanted.items()):
                found.append(child)
            found += child.all(tag, **wanted)
        return found

    def one(self, tag: str = "", **wanted: str) -> Element:
        """The only such element."""
        found = self.all(tag, **wanted)
        assert len(found) == 1, f"{len(found)} elements {tag} {wanted}"
        return found[0]

    def _has(self, name: str, value: str) -> bool:
        name = name.rstrip("_").replace("_", "-")
        had = self.attributes.get(name)
        return had is not None and (value in had.split() if name == "class" else value == had)

    def __getitem__(self, name: str) -> str:
        return self.attributes[name]


class _Reading(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in _VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        if any(element.tag == tag for element in self.open):
            while self.open.pop().tag != tag:
                pass

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parsed(html: str) -> Element:
    """A page as elements."""
    reading = _Reading()
    reading.feed(html)
    return reading.root


class Told:
    """A run, told event by event."""

    def __init__(self, sink: RunSink) -> None:
        self.sink = sink
        self.events = 0

    @property
    def run_id(self) -> str:
        return self.sink.run_id

    def say(self, kind: EventKind | str, step: str = "prompt", /, at_s: float | None = None, **data: Any) -> int:
        """Record an event, and return its place."""
        event = Event(kind=kind, at_s=at_s or time.time(), step=step, turn=0, data=data)  # type: ignore[arg-type]
        self.sink.event(event)
        self.events += 1
        return self.events - 1

    def call(self, tool: str, arguments: Any, text: str = "done", **more: Any) -> int:
        """Record a call with its answer, and return the call's place."""
        raw = more.pop("raw", None)
        call_id = f"call-{self.events}"
        place = self.say(EventKind.CALL, call_id=call_id, tool=tool, arguments=arguments, raw=raw)
        self.say(EventKind.ANSWER, call_id=call_id, tool=tool, text=text, **{"is_error": False, **more})
        return place

    def says(self, text: str, **more: Any) -> int:
        """Record what the agent says."""
        return self.say(EventKind.MESSAGE, message={"role": "assistant", "content": text}, **more)

    def ended(
        self,
        reward: float | None = None,
        *,
        scores: Mapping[str, float] | None = None,
        failure: Failure | None = None,
        cut: CutReason | None = None,
    ) -> None:
        """End the run."""
        outcome = Outcome.COMPLETED if failure is None else Outcome.FAILED
        given = {name: Score(step=name, value=value) for name, value in (scores or {}).items()}
        self.sink.ended(EpisodeResult(outcome=outcome, run_id=self.run_id, scores=given, failure=failure, cut=cut))
        if reward is not None:
            self.sink.set_reward(reward)


Tell = Callable[..., Told]
Look = Callable[..., Awaitable[Element]]


@pytest.fixture
def index(tmp_path: Path) -> Generator[RunIndex]:
    """The index of the test's folder, open for writing."""
    with RunIndex.open(tmp_path) as made:
        yield made


@pytest.fixture
def tell(index: RunIndex) -> Tell:
    """Opens a run: `tell(group, task, **header)`."""

    def opened(
        group: str = "g", task: str = "t", *, attempt: int = 0, labels: Mapping[str, Any] | None = None, **header: Any
    ) -> Told:
        sink = index.run(group, attempt=attempt, labels=labels)
        known = {"bundle_name": "shop", "bundle_version": "1.0", "params": {}, "tags": ()}
        sink.opened(RunHeader(task_id=task, **{**known, **header}))
        return Told(sink)

    return opened


@pytest.fixture
async def explorer(index: RunIndex, tmp_path: Path) -> AsyncGenerator[httpx.AsyncClient]:
    """Asks the explorer of the test's folder."""
    transport = httpx.ASGITransport(app=build_app(tmp_path))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8470") as made:
        yield made


@pytest.fixture
def look(explorer: httpx.AsyncClient, index: RunIndex) -> Look:
    """Gets a page as elements, after all that was told is written."""

    async def page(path: str, **query: Any) -> Element:
        index.flush()
        answer = await explorer.get(path, params=query or None)
        assert answer.status_code == 200, answer.text
        return parsed(answer.text)

    return page
