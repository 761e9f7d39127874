"""How an episode ended and what it scored: frozen values that every layer shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

__all__ = [
    "CutReason",
    "EpisodeResult",
    "Failure",
    "FailureKind",
    "FailureRule",
    "Outcome",
    "Party",
    "Place",
    "Score",
    "Skipped",
]


class Outcome(StrEnum):
    """How an episode ended."""

    COMPLETED = "completed"
    """Every step ran; the scores count. Also after a cut."""
    FAILED = "failed"
    """A step broke: no reward is made of it."""
    ABANDONED = "abandoned"
    """Given up by its owner before the end."""


class CutReason(StrEnum):
    """Why the trainer ended an episode before the agent did."""

    TOKEN_LIMIT = "token_limit"
    """Sampling stopped at the length limit."""
    CONTEXT_OVERFLOW = "context_overflow"
    """The conversation and the next reply do not fit the context."""
    PARSE_FAILURE = "parse_failure"
    """The sampled tokens have no message boundary."""
    PROMPT_OVER_BUDGET = "prompt_over_budget"
    """The first prompt is already too long."""
    MESSAGE_LIMIT = "message_limit"
    """The agent wrote `max_messages` messages and was not done."""
    RUNNER_LIMIT = "runner_limit"
    """A limit of the trainer's rollout runner (turns, tokens, tool calls)."""
    TIMEOUT = "timeout"
    """The rollout's time was up."""


class Party(StrEnum):
    """Whose a failure is."""

    BUNDLE = "bundle"
    MACHINE = "machine"
    MODEL_SERVER = "model_server"


class FailureRule(NamedTuple):
    """What follows from a kind of failure."""

    may_retry: bool
    """Whether playing the task again may go better."""
    whose: Party
    """Who is to look at it."""


class FailureKind(StrEnum):
    """What broke. One vocabulary for runs, counts and retries; a failed episode never has a valid reward."""

    ENV_START = "env_start"
    """An env could not be started."""
    ENV_BROKEN = "env_broken"
    """An env broke while a tool ran."""
    MCP_DIED = "mcp_died"
    """An MCP server died, hung, flooded or answered badly."""
    SANDBOX_LOST = "sandbox_lost"
    """A sandbox went away, or no longer did what it was told."""
    UNIVERSE = "universe"
    """The private copy of the state could not be made."""
    PROMPT = "prompt"
    """A prompt could not be written."""
    RUN_STEP = "run_step"
    """A `run` step raised."""
    STEP_TIMEOUT = "step_timeout"
    """A step, or what a trainer bounds, took longer than its timeout."""
    VERIFIER_RAISED = "verifier_raised"
    """A verifier raised."""
    VERIFIER_TIMEOUT = "verifier_timeout"
    """A verifier took longer than its timeout."""
    SCORE_INVALID = "score_invalid"
    """A verifier returned no finite number."""
    AGENT = "agent"
    """An agent broke, or cannot be played: a player that raised, one that is not the played one, a trainer's rollout."""
    MODEL_SERVER = "model_server"
    """The endpoint of a model that plays an agent, or judges, could not be reached or answered badly."""

    @property
    def rule(self) -> FailureRule:
        """What follows from this kind of failure."""
        return _RULES[self]


_RULES: Mapping[FailureKind, FailureRule] = {
    FailureKind.ENV_START: FailureRule(may_retry=True, whose=Party.BUNDLE),
    FailureKind.ENV_BROKEN: FailureRule(may_retry=True, whose=Party.MACHINE),
    FailureKind.MCP_DIED: FailureRule(may_retry=True, whose=Party.BUNDLE),
    FailureKind.SANDBOX_LOST: FailureRule(may_retry=True, whose=Party.MACHINE),
    FailureKind.UNIVERSE: FailureRule(may_retry=True, whose=Party.MACHINE),
    FailureKind.PROMPT: FailureRule(may_retry=False, whose=Party.BUNDLE),
    FailureKind.RUN_STEP: FailureRule(may_retry=True, whose=Party.BUNDLE),
    FailureKind.STEP_TIMEOUT: FailureRule(may_retry=True, whose=Party.MACHINE),
    FailureKind.VERIFIER_RAISED: FailureRule(may_retry=False, whose=Party.BUNDLE),
    FailureKind.VERIFIER_TIMEOUT: FailureRule(may_retry=True, whose=Party.MACHINE),
    FailureKind.SCORE_INVALID: FailureRule(may_retry=False, whose=Party.BUNDLE),
    FailureKind.AGENT: FailureRule(may_retry=False, whose=Party.BUNDLE),
    FailureKind.MODEL_SERVER: FailureRule(may_retry=True, whose=Party.MODEL_SERVER),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A line of a bundle's file."""

    path: Path
    """The file, relative to the bundle's folder."""
    line: int
    """From 1."""

    def __str__(self) -> str:
        return f"{self.path.as_posix()}:{self.line}"

    def as_json(self) -> dict[str, str | int]:
        """Return it for a run: `path` and `line`."""
        return {"path": self.path.as_posix(), "line": self.line}

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Place:
        """Read what `as_json` wrote."""
        return cls(path=Path(written["path"]), line=written["line"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What broke an episode, and where."""

    kind: FailureKind
    step: str
    """The step's id."""
    message: str
    """One line for a person."""
    traceback: str = ""
    """The Python traceback, where there is one."""
    place: Place | None = None
    """Where in the bundle it came from: the innermost line of its code or templates; None where none had a part in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What one verify step said."""

    step: str
    """The verify step's id."""
    value: float
    """A finite number; booleans are 1.0 and 0.0."""
    explanation: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    weight: float | None = None
    """What the verify step says that it counts in the reward; None where it does not say."""
    required: bool = False
    """A gate: below 1 the whole reward is at most 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A verify step that was left out, because whoever plays the task does not allow it. It has no score, not even 0."""

    step: str
    """The verify step's id."""
    reason: str
    """Why it was left out, and how to have it run; goes on after a colon."""
    weight: float | None = None
    """As in `Score`."""
    required: bool = False
    """As in `Score`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeResult:
    """How an episode ended."""

    outcome: Outcome
    run_id: str
    scores: Mapping[str, Score]
    """By verify step id, in the order they ran."""
    failure: Failure | None = None
    """The first failure, when the outcome is `failed`."""
    cut: CutReason | None = None
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """`messages`, `tool_calls`, `tool_errors`, `turns`: counts over the episode."""
    skipped: Mapping[str, Skipped] = field(default_factory=dict[str, Skipped])
    """Verify steps that were left out, by id: model judges, where they are not allowed."""
