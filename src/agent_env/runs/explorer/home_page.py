"""The first page: training runs, the one that wrote last first, and groups that are no step of one."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from agent_env.runs._reading import Reader, dead_json, read_groups
from agent_env.runs.explorer.address import number_of, text_of
from agent_env.runs.explorer.points import StepPoint, points_of
from agent_env.runs.explorer.site import Site
from agent_env.runs.record import GroupSummary, RunState

__all__ = ["HomeView", "TrainingSummary", "home_page"]

_TRAININGS = 50
_GROUPS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSummary:
    """A training run: all groups whose names start with it and fit."""

    name: str
    groups: int
    runs: int
    states: Mapping[RunState, int]
    last_step: int
    first_at_s: float
    last_at_s: float
    points: tuple[StepPoint, ...]
    """Of the split that the home page draws: `train`, or the first there is."""

    @property
    def latest(self) -> StepPoint | None:
        """The last step with a scored run."""
        return next((point for point in reversed(self.points) if point.mean is not None), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeView:
    """Training runs, and groups that are no step of one."""

    trainings: tuple[TrainingSummary, ...]
    groups: tuple[GroupSummary, ...]
    next_trainings: int | None
    next_groups: str | None


def home_page(site: Site, request: Request) -> Response:
    """Answer `/`."""
    view = view_home(site.reader, offset=number_of(request, "from"), after=text_of(request, "groups_after"))
    return site.answer(request, "home.html", view)


def view_home(reader: Reader, *, offset: int, after: str) -> HomeView:
    """The home page, from its `offset`th training run and the loose group after `after` on."""
    with reader.asking() as conn:
        trainings = _trainings(conn, offset=offset, limit=_TRAININGS + 1)
        names = _loose_groups(conn, after=after, limit=_GROUPS + 1)
        groups = read_groups(conn, names=names[:_GROUPS])
    return HomeView(
        trainings=tuple(trainings[:_TRAININGS]),
        groups=tuple(groups),
        next_trainings=offset + _TRAININGS if len(trainings) > _TRAININGS else None,
        next_groups=names[_GROUPS - 1] if len(names) > _GROUPS else None,
    )


def _trainings(conn: sqlite3.Connection, *, offset: int, limit: int) -> list[TrainingSummary]:
    rows = conn.execute(
        "SELECT training, count(*) AS n, max(step) AS last_step, min(first_at_s) AS first_at_s, max(last_at_s) AS last_at_s"
        " FROM groups WHERE training IS NOT NULL GROUP BY training ORDER BY 5 DESC, training LIMIT ? OFFSET ?",
        (limit, offset),
    ).fetchall()
    return [
        TrainingSummary(
            name=row["training"],
            groups=row["n"],
            runs=sum(states.values()),
            states=states,
            last_step=row["last_step"],
            first_at_s=row["first_at_s"],
            last_at_s=row["last_at_s"],
            points=_headline(points_of(conn, row["training"])),
        )
        for row in rows
        for states in [_states_of(conn, row["training"])]
    ]


def _loose_groups(conn: sqlite3.Connection, *, after: str, limit: int) -> list[str]:
    rows = conn.execute(
        "SELECT name FROM groups WHERE training IS NULL AND name > ? ORDER BY name LIMIT ?", (after, limit)
    )
    return [row[0] for row in rows]


def _headline(points: Sequence[StepPoint]) -> tuple[StepPoint, ...]:
    splits = [point.split for point in points]
    shown = "train" if "train" in splits else splits[0]
    return tuple(point for point in points if point.split == shown)


def _states_of(conn: sqlite3.Connection, training: str) -> dict[RunState, int]:
    states = dict.fromkeys(RunState, 0)
    for kind, n in conn.execute(
        "SELECT kind, sum(n) FROM tallies WHERE what = 'state'"
        " AND group_key IN (SELECT key FROM groups WHERE training = ?) GROUP BY kind",
        (training,),
    ):
        states[RunState(kind)] = n
    lost = conn.execute(
        "SELECT count(*) FROM runs WHERE state = 'running' AND writer_key IN (SELECT value FROM json_each(?))"
        " AND group_key IN (SELECT key FROM groups WHERE training = ?)",
        (dead_json(conn), training),
    ).fetchone()[0]
    states[RunState.RUNNING] -= lost
    states[RunState.INTERRUPTED] += lost
    return states
