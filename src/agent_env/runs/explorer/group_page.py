"""A step of a training run, or any other group: its tasks by rollouts."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from itertools import groupby

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from agent_env.errors import UsageError
from agent_env.runs._reading import Reader, read_groups, read_page
from agent_env.runs.explorer.address import text_of
from agent_env.runs.explorer.points import Neighbours, first_text
from agent_env.runs.explorer.site import Site
from agent_env.runs.record import GroupSummary, RunState, RunSummary

__all__ = ["GroupView", "TaskRuns", "group_page"]

_RUNS = 200


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


def group_page(site: Site, request: Request) -> Response:
    """Answer `/group?name=`."""
    asked = text_of(request, "state") or None
    if asked is not None and asked not in list(RunState):
        raise HTTPException(400, f"No outcome is called like this. There are: {', '.join(RunState)}.")
    view = view_group(
        site.reader,
        text_of(request, "name"),
        state=None if asked is None else RunState(asked),
        after=text_of(request, "after") or None,
    )
    return site.answer(request, "group.html", view)


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
            neighbours = _neighbouring_groups(conn, training=place.training, split=place.split, step=place.step)
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


def _neighbouring_groups(conn: sqlite3.Connection, *, training: str, split: str, step: int) -> Neighbours:
    place = (training, split, step)
    sql = "SELECT name FROM groups WHERE training = ? AND split = ? AND step {} ? ORDER BY step {} LIMIT 1"
    return Neighbours(
        before=first_text(conn.execute(sql.format("<", "DESC"), place)),
        after=first_text(conn.execute(sql.format(">", "ASC"), place)),
    )
