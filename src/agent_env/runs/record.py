"""What the run index keeps of an episode, as frozen values, and what it accepts from one.

Covers reading (`RunSummary`, `RunRecord`, `GroupSummary`, `SearchHit`) and the shapes that a sink is handed (`HeaderLike`, `EventLike`).
Not how any of it lies on disk. A record may come from another version of AgentEnv: outcomes, cut reasons and failure
kinds are plain text here, equal to the members of `agent_env.outcome`, and an unknown one is no error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any, Protocol

__all__ = [
    "RECORD_VERSION",
    "TIMES",
    "EventLike",
    "GroupPlace",
    "GroupSummary",
    "HeaderLike",
    "RunEvent",
    "RunFailure",
    "RunOrder",
    "RunPage",
    "RunRecord",
    "RunState",
    "RunSummary",
    "SampledTokens",
    "SearchHit",
    "SearchPage",
    "ToolCount",
    "Vacuumed",
    "place_of",
    "short_model",
]

RECORD_VERSION = 1
"""The version of one run's record, kept with each run: for the day when a reader has to tell two apart."""

TIMES = ("model", "tools", "env", "verify", "other")
"""What a run's seconds are told apart by: see `RunSummary.times`."""

_MODEL_PARTS = 2
"""A small model of our own is in a folder `model` in that of its training."""
_PLACE = re.compile(r"(?P<training>.+)/(?P<split>[^/]+)/step-(?P<step>[0-9]{1,12})")


class HeaderLike(Protocol):
    """What a run starts with, as `agent_env.episode.RunHeader` has it."""

    @property
    def task_id(self) -> str:
        """The task that is played."""
        ...

    @property
    def bundle_name(self) -> str:
        """The bundle it is of."""
        ...

    @property
    def bundle_version(self) -> str:
        """That bundle's version."""
        ...

    @property
    def params(self) -> Mapping[str, Any]:
        """The task's params."""
        ...

    @property
    def tags(self) -> Sequence[str]:
        """The task's tags."""
        ...

    @property
    def bundle_root(self) -> str:
        """The bundle's folder."""
        ...


class EventLike(Protocol):
    """One thing that happened in an episode, as `agent_env.episode.Event` has it."""

    @property
    def kind(self) -> str:
        """What happened."""
        ...

    @property
    def at_s(self) -> float:
        """When, in Unix seconds."""
        ...

    @property
    def step(self) -> str:
        """The id of the task's step it happened in."""
        ...

    @property
    def turn(self) -> int | None:
        """The turn it happened in, from 0, if any."""
        ...

    @property
    def data(self) -> Mapping[str, Any]:
        """The rest, by kind."""
        ...


class RunState(StrEnum):
    """How a run stands: an episode's three outcomes, and two more for the time before it has one."""

    COMPLETED = "completed"
    FAILED = "failed"
    ABANDONED = "abandoned"
    RUNNING = "running"
    """Under way in a process that is alive."""
    INTERRUPTED = "interrupted"
    """It was under way when its process died or closed the index."""


class RunOrder(StrEnum):
    """Which runs come first."""

    NEWEST = "newest"
    """Those that were opened last."""
    OLDEST = "oldest"
    """Those that were opened first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """One thing that happened in a run."""

    seq: int
    """Its place in the run, from 0."""
    kind: str
    at_s: float
    """Unix seconds."""
    step: str
    turn: int | None
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailure:
    """What broke a run. The traceback is in the run's `failure` event."""

    kind: str
    step: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCount:
    """How often a run's agent called one tool."""

    calls: int
    errors: int
    """Calls that came to an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """The tokens that one message was sampled as."""

    ids: tuple[int, ...]
    """By the vocabulary of the model that the run's labels name; -1 where the token is part of a secret."""
    logprobs: tuple[float, ...] | None
    """The natural logarithm of each token's probability when it was sampled; None where the trainer gave none."""
    pieces: tuple[str, ...]
    """The text of each; bytes that are no whole character as `⟨0xE2⟩`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run in a list: everything but its params and its events."""

    run_id: str
    group: str
    task_id: str
    rollout: int
    """Its place among the runs of this task in this group, from 0, in the order they were opened."""
    attempt: int
    """0, or how many times the trainer had tried this rollout before."""
    labels: Mapping[str, Any]
    bundle_name: str
    bundle_version: str
    state: RunState
    cut: str | None
    """A `CutReason`, when the trainer ended the episode."""
    failure: RunFailure | None
    scores: Mapping[str, float]
    """By verify step id."""
    reward: float | None
    """What the trainer got for it; None until `RunSink.set_reward`."""
    event_count: int
    messages: int
    calls: int
    call_errors: int
    turns: int
    tools: Mapping[str, ToolCount] = field(default_factory=dict[str, ToolCount])
    """The played agent's calls by tool, in the order of the first. Of more than 100 names the rest is under `…`."""
    times: Mapping[str, float] = field(default_factory=dict[str, float])
    """Where its seconds went: `model` (waiting for the played agent's messages), `tools` (its calls), `env` (set-up and `run`
    steps), `verify`, `other` (other agents, prompts, what is between). What did not happen is left out."""
    prompt_tokens: int | None = None
    """What its messages were sampled from, summed over the messages; None where nobody counted."""
    sampled_tokens: int | None = None
    """What its messages are, in tokens; None where nobody counted."""
    opened_at_s: float
    """Unix seconds."""
    ended_at_s: float | None
    """Unix seconds; None while it is under way. For an interrupted run, when it last wrote."""
    last_at_s: float
    """When it last wrote, in Unix seconds."""

    @property
    def duration_s(self) -> float:
        """From open to end, or to the last word of it."""
        return max(0.0, (self.ended_at_s or self.last_at_s) - self.opened_at_s)

    @property
    def place(self) -> GroupPlace | None:
        """Where its group stands in a training run; None where the group's name has another form."""
        return place_of(self.group)

    @property
    def policy_step(self) -> int | None:
        """The trainer's step whose weights played, by the label `policy_step`; None where it does not say."""
        step = self.labels.get("policy_step")
        return step if type(step) is int and abs(step) < 2**63 else None

    @property
    def model(self) -> str:
        """The model that played, by the label `model`, as the trainer calls it; empty where it does not say."""
        return self._label("model")

    @property
    def renderer(self) -> str:
        """What wrote its conversation as tokens, by the label `renderer`; empty where it does not say."""
        return self._label("renderer")

    def _label(self, name: str) -> str:
        value = self.labels.get(name)
        return value if isinstance(value, str) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """A place where a text was found."""

    run: RunSummary
    seq: int
    """The event it is in."""
    excerpt: str
    """Some words around it, on one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchPage:
    """Some places where a text was found, those that were written last first; of a run the last one."""

    hits: tuple[SearchHit, ...]
    next_page: str | None
    """Pass it as `after` to look further; None when all was looked through. There may be one with few hits or none: a search
    stops where its time is over."""
    waiting: int
    """Chunks of events whose words are not in the search index yet, usually what was written in the last second; counted up
    to 10,000."""
    damaged: tuple[str, ...]
    """Runs that could not be looked through, by id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage:
    """Some runs of a list."""

    runs: tuple[RunSummary, ...]
    next_page: str | None
    """Pass it as `after` for the next page; None on the last one."""
    damaged: int = 0
    """Runs that should be on this page and cannot be read: a part of the file is damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run, and a page of its events."""

    run: RunSummary
    params: Mapping[str, Any]
    tags: tuple[str, ...]
    bundle_root: str
    """The bundle's folder when it was played; empty where the record does not say."""
    events: tuple[RunEvent, ...]
    next_event: int | None
    """Pass it as `first` for the next page; None when these are the last so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuumed:
    """What came of tidying an index up."""

    before_bytes: int
    after_bytes: int
    is_search_rebuilt: bool
    """Whether the search index was made anew: not while other processes write runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlace:
    """Where a group stands in a training run, read from its name `<training>/<split>/step-<step>`."""

    training: str
    split: str
    """`train`, `eval`, or what the trainer calls it."""
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSummary:
    """The runs that are filed under one name, counted."""

    name: str
    place: GroupPlace | None
    """None where the name has another form."""
    runs: int
    states: Mapping[RunState, int]
    """How many runs stand how; every state is there."""
    scored: int
    """Completed runs with a reward: what `reward_mean` is the mean of."""
    reward_mean: float | None
    reward_se: float | None
    """The standard error of that mean; None under two scored runs."""
    reward_min: float | None = None
    reward_max: float | None = None
    """The least and the greatest of those rewards."""
    finished: int = 0
    """Completed runs, scored or not: what the means below are of."""
    messages_mean: float | None = None
    calls_mean: float | None = None
    call_errors_mean: float | None = None
    turns_mean: float | None = None
    duration_s_mean: float | None = None
    """Seconds from open to end."""
    prompt_tokens_mean: float | None = None
    """Over the completed runs whose tokens were counted, as is the next."""
    sampled_tokens_mean: float | None = None
    failures: Mapping[str, int] = field(default_factory=dict[str, int])
    """Failed runs by kind of failure."""
    cuts: Mapping[str, int] = field(default_factory=dict[str, int])
    """Cut runs by reason."""
    first_at_s: float
    """When its first run was opened, in Unix seconds."""
    last_at_s: float
    """When one of its runs last wrote, in Unix seconds."""

    @property
    def cut(self) -> int:
        """How many runs were cut."""
        return sum(self.cuts.values())


def place_of(group: str) -> GroupPlace | None:
    """Read a group's name; None when it is not of the form `<training>/<split>/step-<step>`."""
    found = _PLACE.fullmatch(group)
    if found is None:
        return None
    return GroupPlace(training=found["training"], split=found["split"], step=int(found["step"]))


def short_model(name: str) -> str:
    """A model's name for people: of one that is a folder on a disk, as a trainer calls those, the last parts of the path."""
    path = PurePosixPath(name)
    if not path.is_absolute() or len(path.parts) <= 1 + _MODEL_PARTS:
        return name
    return "/".join(("…", *path.parts[-_MODEL_PARTS:]))
