"""An index to record into, and an episode's worth of things to record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_env.episode.sink import Event, EventKind, RunHeader
from agent_env.outcome import EpisodeResult, Outcome, Score
from agent_env.runs import RunIndex, RunSink


@pytest.fixture
def index(tmp_path: Path) -> Iterator[RunIndex]:
    """An index in a folder of its own."""
    with RunIndex.open(tmp_path / "runs") as opened:
        yield opened


@pytest.fixture
def begin() -> Callable[..., RunSink]:
    """Opens a run."""

    def opened(index: RunIndex, group: str = "g", task: str = "day-1", **labels: Any) -> RunSink:
        sink = index.run(group, labels=labels)
        header = RunHeader(
            task_id=task, bundle_name="gridsim", bundle_version="1.0", params={"hour": 3}, tags=("short",)
        )
        sink.opened(header)
        return sink

    return opened


@pytest.fixture
def tell() -> Callable[..., None]:
    """Tells a sink of one event."""

    def told(sink: RunSink, kind: EventKind, data: Mapping[str, Any], at_s: float | None = None) -> None:
        sink.event(Event(kind, time.time() if at_s is None else at_s, "prompt", 0, data))

    return told


@pytest.fixture
def say(tell: Callable[..., None]) -> Callable[..., None]:
    """Has the agent say something."""

    def said(sink: RunSink, text: str, **more: Any) -> None:
        tell(sink, EventKind.MESSAGE, {"message": {"role": "assistant", "content": text}, **more})

    return said


@pytest.fixture
def end() -> Callable[..., None]:
    """Ends a run."""

    def ended(
        sink: RunSink, reward: float | None = None, scores: Mapping[str, float] | None = None, **more: Any
    ) -> None:
        values = {step: Score(step=step, value=value) for step, value in (scores or {}).items()}
        sink.ended(EpisodeResult(run_id=sink.run_id, scores=values, **({"outcome": Outcome.COMPLETED} | more)))
        if reward is not None:
            sink.set_reward(reward)

    return ended


@pytest.fixture
def record(begin: Callable[..., RunSink], say: Callable[..., None], end: Callable[..., None]) -> Callable[..., RunSink]:
    """Records a whole run in which the agent says some texts."""

    def recorded(
        index: RunIndex,
        group: str = "g",
        *,
        task: str = "day-1",
        texts: Sequence[str] = ("hello",),
        reward: float | None = None,
        labels: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> RunSink:
        sink = begin(index, group, task, **(labels or {}))
        for text in texts:
            say(sink, text)
        end(sink, reward, **more)
        return sink

    return recorded
