"""One run on its way to the disk: what its sink has noted and the writer has not taken yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agent_env.outcome import EpisodeResult
from agent_env.runs._codec import column_text, encode
from agent_env.runs._totals import Totals, TotalsSoFar
from agent_env.runs.record import HeaderLike, SampledTokens

__all__ = ["Ended", "Noted", "Opened", "Part", "RunLog"]

_MESSAGE_CHARS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """How a run starts, ready for its columns."""

    task_id: str
    bundle_name: str
    bundle_version: str
    head: bytes
    """Params and tags, as JSON."""
    at_s: float

    @classmethod
    def of(cls, header: HeaderLike, at_s: float) -> Opened:
        """Take what a header says now; it may change later."""
        return cls(
            task_id=column_text(header.task_id),
            bundle_name=column_text(header.bundle_name),
            bundle_version=column_text(header.bundle_version),
            head=encode({"params": header.params, "tags": list(header.tags), "bundle_root": header.bundle_root}),
            at_s=at_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a run ended, ready for its columns."""

    state: str
    cut: str | None
    failure_kind: str | None
    failure_step: str | None
    failure_message: str | None
    scores: str
    at_s: float

    @classmethod
    def of(cls, result: EpisodeResult, at_s: float) -> Ended:
        """Take what an episode's result says."""
        failure = result.failure
        return cls(
            state=str(result.outcome),
            cut=None if result.cut is None else str(result.cut),
            failure_kind=None if failure is None else str(failure.kind),
            failure_step=None if failure is None else column_text(failure.step),
            failure_message=None if failure is None else column_text(failure.message),
            scores=encode({step: score.value for step, score in result.scores.items()}).decode("ascii"),
            at_s=at_s,
        )

    def shortened(self) -> Ended:
        """With no more of a message than its column has: for when no secret is in it, or a part of one would stay."""
        if self.failure_message is None or len(self.failure_message) <= _MESSAGE_CHARS:
            return self
        return replace(self, failure_message=column_text(self.failure_message, _MESSAGE_CHARS))


@dataclass(frozen=True, slots=True)
class Noted:
    """One event on its way."""

    line: bytes
    """All of it, as JSON."""
    text: str
    """What of it can be searched for."""

    @property
    def size_bytes(self) -> int:
        """About what it holds in memory."""
        return len(self.line) + len(self.text)


@dataclass(slots=True, kw_only=True)
class RunLog:
    """One run's state. The upper fields are guarded by the writer's lock, the lower ones are the writer thread's."""

    run_id: str
    group: str
    attempt: int
    labels: Mapping[str, Any]
    opened: Opened | None = None
    """What it started with, until the writer takes it."""
    ended: Ended | None = None
    """How it ended, until the writer takes it."""
    reward: float | None = None
    """Its reward, until the writer takes it."""
    events: list[Noted] = field(default_factory=list[Noted])
    """Its events, until the writer takes them."""
    sampled: dict[int, SampledTokens] = field(default_factory=dict[int, SampledTokens])
    """What its messages were sampled as, until the writer takes it."""
    totals: TotalsSoFar = field(default_factory=lambda: TotalsSoFar(0.0))
    last_at_s: float = 0.0

    key: int | None = None
    """Its row; None until it is written, and after its group was deleted: what it says then is dropped."""

    def take(self) -> Part:
        """Hand over what is new. The writer's lock is held."""
        part = Part(
            log=self,
            opened=self.opened,
            ended=self.ended,
            reward=self.reward,
            events=self.events,
            sampled=self.sampled,
            totals=self.totals.now(),
            last_at_s=self.last_at_s,
        )
        self.opened, self.ended, self.reward, self.events, self.sampled = None, None, None, [], {}
        return part


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What is new in a run since the writer last took from it."""

    log: RunLog
    opened: Opened | None
    ended: Ended | None
    reward: float | None
    events: list[Noted]
    sampled: Mapping[int, SampledTokens]
    totals: Totals
    last_at_s: float

    @property
    def first_seq(self) -> int:
        """The place in the run of the first of `events`."""
        return self.totals.events - len(self.events)
