"""What each page shows, as a frozen value: the template draws it, and `.json` is it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from agent_env.errors import UsageError
from agent_env.runs._reading import Reader, read_groups, read_page, read_record
from agent_env.runs.conversation import Item, conversation
from agent_env.runs.explorer.charts import splits_of
from agent_env.runs.explorer.queries import (
    Neighbours,
    StepPoint,
    TrainingSummary,
    list_trainings,
    loose_groups,
    neighbouring_groups,
    neighbouring_runs,
    points_of,
)
from agent_env.runs.record import GroupSummary, RunEvent, RunState, RunSummary

__all__ = [
    "GroupView",
    "HomeView",
    "RunView",
    "TaskRuns",
    "TrainingView",
    "view_group",
    "view_home",
    "view_run",
    "view_training",
]

_TRAININGS = 50
_GROUPS = 100
_RUNS = 200
_EVENTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeView:
    """Training runs, and groups that are no step of one."""

    trainings: tuple[TrainingSummary, ...]
    groups: tuple[GroupSummary, ...]
    next_trainings: int | None
    next_groups: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingView:
    """One training run: every step for the chart, some for the table, the latest first."""

    name: str
    points: tuple[StepPoint, ...]
    groups: tuple[GroupSummary, ...]
    next_page: int | None

    @property
    def splits(self) -> list[str]:
        """The splits with a line in the chart, in the order of their colours."""
        return splits_of(self.points)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRuns:
    """The rollouts of one task on a page."""

    runs: tuple[RunSummary, ...]

    @property
    def mean(self) -> float | None:
        """Of the completed ones with a reward."""
        rewards = [run.reward for run in self.runs if run.reward is not None and run.state is RunState.COMPLETED]
        return sum(rewards) / len(rewards) if rewards else None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """One group: its counts and a page of its runs."""

    group: GroupSummary
    neighbours: Neighbours
    state: RunState | None
    """The filter."""
    runs: tuple[RunSummary, ...]
    next_page: str | None
    reward_low: float
    reward_high: float
    """What the colours of the rewards span: 0 to 1, or more where the page has more."""

    @property
    def tasks(self) -> list[TaskRuns]:
        """The page's runs by task."""
        return [TaskRuns(runs=tuple(runs)) for _, runs in groupby(self.runs, key=lambda run: run.task_id)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """One run: its summary and a page of its conversation."""

    run: RunSummary
    params: Mapping[str, Any]
    tags: tuple[str, ...]
    neighbours: Neighbours
    events: tuple[RunEvent, ...]
    first: int
    next_event: int | None

    @property
    def items(self) -> list[Item]:
        """The events as a conversation."""
        is_whole = self.next_event is None and self.run.state is not RunState.RUNNING
        return conversation(self.events, is_whole=is_whole)


def view_home(reader: Reader, *, offset: int, after: str) -> HomeView:
    """The home page, from its `offset`th training run and the loose group after `after` on."""
    with reader.asking() as conn:
        trainings = list_trainings(conn, offset=offset, limit=_TRAININGS + 1)
        names = loose_groups(conn, after=after, limit=_GROUPS + 1)
        groups = read_groups(conn, names=names[:_GROUPS])
    return HomeView(
        trainings=tuple(trainings[:_TRAININGS]),
        groups=tuple(groups),
        next_trainings=offset + _TRAININGS if len(trainings) > _TRAININGS else None,
        next_groups=names[_GROUPS - 1] if len(names) > _GROUPS else None,
    )


def view_training(reader: Reader, name: str, *, offset: int) -> TrainingView:
    """A training run's page.

    Raises:
        UsageError: When there is no such training run.
    """
    with reader.asking() as conn:
        points = points_of(conn, name)
        if not points:
            raise UsageError(f"no training run {name!r}")
        latest = sorted(points, key=lambda point: (-point.step, point.split != "train", point.split))
        shown = latest[offset : offset + _GROUPS]
        groups = read_groups(conn, names=[point.group for point in shown])
    return TrainingView(
        name=name,
        points=tuple(points),
        groups=tuple(groups),
        next_page=offset + _GROUPS if len(latest) > offset + _GROUPS else None,
    )


def view_group(reader: Reader, name: str, *, state: RunState | None, after: str | None) -> GroupView:
    """A group's page.

    Raises:
        UsageError: When there is no such group.
    """
    with reader.asking() as conn:
        groups = read_groups(conn, names=[name])
        if not groups:
            raise UsageError(f"no group {name!r}")
        place = groups[0].place
        neighbours = Neighbours(before=None, after=None)
        if place is not None:
            neighbours = neighbouring_groups(conn, training=place.training, split=place.split, step=place.step)
        page = read_page(conn, name, state=state, after=after, limit=_RUNS)
    rewards = [run.reward for run in page.runs if run.reward is not None]
    return GroupView(
        group=groups[0],
        neighbours=neighbours,
        state=state,
        runs=page.runs,
        next_page=page.next_page,
        reward_low=min([0.0, *rewards]),
        reward_high=max([1.0, *rewards]),
    )


def view_run(reader: Reader, run_id: str, *, first: int) -> RunView:
    """A run's page, from its `first`th event on.

    Raises:
        UsageError: When there is no such run.
    """
    with reader.asking() as conn:
        record = read_record(conn, run_id, first=first, limit=_EVENTS)
        neighbours = neighbouring_runs(conn, record.run)
    return RunView(
        run=record.run,
        params=record.params,
        tags=record.tags,
        neighbours=neighbours,
        events=record.events,
        first=first,
        next_event=record.next_event,
    )
