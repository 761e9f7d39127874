"""Who listens to an episode: everything that happens in it, as it happens.

Covers the protocol, the values it is handed, and a sink that keeps nothing. Not where runs are stored: `agent_env.runs`
has a sink of this shape.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from agent_env.outcome import EpisodeResult

__all__ = ["EpisodeSink", "Event", "EventKind", "NullSink", "RunHeader", "new_run_id"]


class EventKind(StrEnum):
    """What happened; in brackets what `Event.data` has."""

    STEP_STARTED = "step_started"
    """A step has begun (`kind`: `deploy_env`, `deploy_agent`, `add_skills`, `prompt`, `run`, `verify`)."""
    STEP_ENDED = "step_ended"
    """The step is over, well or not (`duration_s`)."""
    TURN_STARTED = "turn_started"
    """An agent was prompted (`agent`, `kind`: `played`, `scripted` or `model`, `system_prompt`, `prompt`, `tools`: `name`, `description`, `parameters` each)."""
    MESSAGE = "message"
    """The agent said something (`message`, and `index`: which of its messages it is, from 0; where it is known, in tokens,
    `prompt_tokens`: what it was sampled from, and `sampled_tokens`: what it is). Or a trainer's hook did (`message`)."""
    CALL = "call"
    """A tool call is about to run (`call_id`, `tool`, `arguments`, `raw`: the text the model wrote, or None)."""
    ANSWER = "answer"
    """What the call came to (`call_id`, `tool`, `text`, `is_error`, `ends_turn`, `content`, `duration_s`; of an error also
    `error_kind`, an `agent_env.envs.Refusal`; of one that the tool raised `traceback`, and `raised_at`: `path` in the bundle and
    `line`)."""
    AGENT_SAID = "agent_said"
    """An agent that is not the played one said something (`agent`, `message`, `duration_s`; the first time in a
    turn of its own `heard`, and `system_prompt` where it is new; of a model also `model`, `usage`, `finish_reason`)."""
    AGENT_CALLED = "agent_called"
    """Such an agent called a tool (`agent`, `call_id`, `tool`, `arguments`, `text`, `is_error`, `duration_s`; of an error also `error_kind`)."""
    TURN_ENDED = "turn_ended"
    """The agent's turn is over (`reply`: its text, empty where it ended with a call; None where a cut or a failure ended it)."""
    CUT = "cut"
    """The trainer ended the episode (`reason`)."""
    STATE = "state"
    """What the agents left of an env's universe (`env`, `changes`: a list of `path`, `before`, `after`; `left_out`: how many
    more there are; `universe`: a hash of what it was; or `error`: why they cannot be told). Before the verifiers that come after the last prompt."""
    SCORE = "score"
    """A verifier scored (`value`, `explanation`, `metrics`; of a judge also `judge`: `prompt`, `answers`, `model`, `usage`)."""
    SKIPPED = "skipped"
    """A verifier was not run (`reason`): a judge that nobody allowed."""
    FAILURE = "failure"
    """Something broke (`kind`, `message`, `traceback`; `place`, `path` in the bundle and `line`, where its code had a part)."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened in an episode."""

    kind: EventKind
    at_s: float
    """When, in Unix seconds."""
    step: str
    """The id of the task's step it happened in; empty before the first."""
    turn: int | None
    """The turn it happened in, from 0; None outside of turns."""
    data: Mapping[str, Any]
    """The rest, by kind: JSON values. Read it at once or copy it: it may hold what the caller goes on using."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """What an episode is of, known before it starts."""

    task_id: str
    bundle_name: str
    bundle_version: str
    params: Mapping[str, Any]
    tags: tuple[str, ...]
    bundle_root: str = ""
    """The bundle's folder, absolute: where `agent-env rescore` looks for its verifiers."""


class EpisodeSink(Protocol):
    """Takes down one episode.

    It is called on the event loop and returns at once. Whatever it raises ends the episode as abandoned and comes out
    of the call that was under way: an episode that cannot be recorded is not played on.
    """

    @property
    def run_id(self) -> str:
        """The episode's id, unique among all runs."""
        ...

    def opened(self, header: RunHeader) -> None:
        """Take down what the episode is of: once, before all else."""
        ...

    def event(self, event: Event) -> None:
        """Take down one thing that happened."""
        ...

    def ended(self, result: EpisodeResult) -> None:
        """Take down how it ended: once, after all else and after everything the episode held was given back."""
        ...


class NullSink:
    """Keeps nothing: for an episode that nobody records."""

    __slots__ = ("_run_id",)

    def __init__(self, run_id: str | None = None) -> None:
        """Args: the episode's id; None makes one."""
        self._run_id = run_id or new_run_id()

    @property
    def run_id(self) -> str:
        """The episode's id."""
        return self._run_id

    def opened(self, header: RunHeader) -> None:
        """Drop it."""

    def event(self, event: Event) -> None:
        """Drop it."""

    def ended(self, result: EpisodeResult) -> None:
        """Drop it."""


def new_run_id() -> str:
    """Make an id of 26 hex digits that no other run has; ids made later sort after those made earlier.

    12 digits are the time in milliseconds (enough until the year 10889), 14 are random.
    """
    return f"{time.time_ns() // 1_000_000:012x}{os.urandom(7).hex()}"
