"""One run on its way to the disk: what its sink has noted and the writer has not taken yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from agent_env.outcome import EpisodeResult
from agent_env.runs._codec import column_text, encode
from agent_env.runs.record import EventLike, HeaderLike

__all__ = ["Counts", "Ended", "Opened", "Part", "RunLog"]

_MESSAGE_CHARS = 2_000


class Counts(NamedTuple):
    """What a run has come to so far; all of it, not what is new."""

    events: int = 0
    messages: int = 0
    calls: int = 0
    call_errors: int = 0
    turns: int = 0

    def with_event(self, event: EventLike) -> Counts:
        """The counts after `event`."""
        events, messages, calls, call_errors, turns = self
        match event.kind:
            case "message":
                messages += _is_assistants(event.data.get("message"))
            case "call":
                calls += 1
            case "answer":
                call_errors += bool(event.data.get("is_error"))
            case "turn_started":
                turns += 1
            case _:
                pass
        return Counts(events + 1, messages, calls, call_errors, turns)


def _is_assistants(message: object) -> bool:
    """Whether the agent wrote it: hooks and trainers may put in others."""
    return (
        not isinstance(message, Mapping)
        or cast("Mapping[str, object]", message).get("role", "assistant") == "assistant"
    )


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
            failure_message=None if failure is None else column_text(failure.message, _MESSAGE_CHARS),
            scores=encode({step: score.value for step, score in result.scores.items()}).decode("ascii"),
            at_s=at_s,
        )


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
    lines: list[bytes] = field(default_factory=list[bytes])
    """Its events, until the writer takes them."""
    counts: Counts = field(default_factory=Counts)
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
            lines=self.lines,
            counts=self.counts,
            last_at_s=self.last_at_s,
        )
        self.opened, self.ended, self.reward, self.lines = None, None, None, []
        return part


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What is new in a run since the writer last took from it."""

    log: RunLog
    opened: Opened | None
    ended: Ended | None
    reward: float | None
    lines: list[bytes]
    counts: Counts
    last_at_s: float

    @property
    def first_seq(self) -> int:
        """The place in the run of the first of `lines`."""
        return self.counts.events - len(self.lines)

    @property
    def size_bytes(self) -> int:
        """What it holds, before compression."""
        return sum(map(len, self.lines)) + (0 if self.opened is None else len(self.opened.head))
