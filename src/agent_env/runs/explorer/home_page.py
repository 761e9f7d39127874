"""The first page: training runs, the one that wrote last first, and groups that are no step of one."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from agent_env.runs._reading import Reader, moments, read_groups
from agent_env.runs.explorer.address import number_of, text_of
from agent_env.runs.explorer.points import states_of
from agent_env.runs.explorer.site import Site
from agent_env.runs.record import GroupSummary, RunState

__all__ = ["HomeView", "LatestMean", "TrainingSummary", "home_page"]

_TRAININGS = 25
_GROUPS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class LatestMean:
    """The last step that has a scored run."""

    group: str
    step: int
    scored: int
    mean: float
    se: float | None


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
    split: str
    """Which split the next two are of: `train`, or the first there is."""
    line: tuple[tuple[int, float], ...]
    """Step and mean reward."""
    latest: LatestMean | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeView:
    """Training runs, and groups that are no step of one."""

    named: str
    """What the names of the training runs have in them; empty for all."""
    trainings: tuple[TrainingSummary, ...]
    total: int
    """All training runs that are so named."""
    first: int
    earlier: int | None
    later: int | None
    """Where the page of training runs before and the one after start."""
    groups: tuple[GroupSummary, ...]
    next_groups: str | None
    """The name after which the next of the groups come."""

    @property
    def asked(self) -> dict[str, object]:
        """What the address asks for."""
        return {"named": self.named}


def home_page(site: Site, request: Request) -> Response:
    """Answer `/`."""
    view = view_home(
        site.reader,
        named=text_of(request, "named"),
        offset=number_of(request, "from"),
        after=text_of(request, "groups_after"),
    )
    return site.answer(request, "home.html", view)


def view_home(reader: Reader, *, named: str = "", offset: int = 0, after: str = "") -> HomeView:
    """The home page, from its `offset`th training run and the loose group after `after` on."""
    with reader.asking() as conn:
        trainings = _trainings(conn, named=named, offset=offset)
        total = conn.execute(
            "SELECT count(DISTINCT training) FROM groups WHERE training IS NOT NULL"
            " AND instr(lower(training), lower(?)) > 0",
            (named,),
        ).fetchone()[0]
        names = _loose_groups(conn, named=named, after=after, limit=_GROUPS + 1)
        groups = read_groups(conn, names=names[:_GROUPS])
    return HomeView(
        named=named,
        trainings=tuple(trainings),
        total=total,
        first=offset,
        earlier=max(0, offset - _TRAININGS) if offset else None,
        later=offset + _TRAININGS if total > offset + _TRAININGS else None,
        groups=tuple(groups),
        next_groups=names[_GROUPS - 1] if len(names) > _GROUPS else None,
    )


def _trainings(conn: sqlite3.Connection, *, named: str, offset: int) -> list[TrainingSummary]:
    rows = conn.execute(
        "SELECT training, count(*) AS n, max(step) AS last_step, min(first_at_s) AS first_at_s,"
        " max(last_at_s) AS last_at_s, coalesce(max(CASE split WHEN 'train' THEN split END), min(split)) AS split"
        " FROM groups WHERE training IS NOT NULL AND instr(lower(training), lower(?)) > 0"
        " GROUP BY training ORDER BY last_at_s DESC, training LIMIT ? OFFSET ?",
        (named, _TRAININGS, offset),
    ).fetchall()
    return [_training(conn, row) for row in rows]


def _training(conn: sqlite3.Connection, row: sqlite3.Row) -> TrainingSummary:
    states = states_of(conn, row["training"])
    cursor = conn.cursor()
    cursor.row_factory = None  # plain tuples: there may be thousands of rows
    steps = cursor.execute(
        "SELECT step, shift + total / scored, name, scored, shift, total, squares FROM groups"
        " WHERE training = ? AND split = ? AND scored > 0 ORDER BY step",
        (row["training"], row["split"]),
    ).fetchall()
    latest = None
    if steps:
        step, _, group, scored, *sums = steps[-1]
        mean, se = moments(scored, *sums)
        latest = LatestMean(group=group, step=step, scored=scored, mean=0.0 if mean is None else mean, se=se)
    return TrainingSummary(
        name=row["training"],
        groups=row["n"],
        runs=sum(states.values()),
        states=states,
        last_step=row["last_step"],
        first_at_s=row["first_at_s"],
        last_at_s=row["last_at_s"],
        split=row["split"],
        line=tuple([step[:2] for step in steps]),
        latest=latest,
    )


def _loose_groups(conn: sqlite3.Connection, *, named: str, after: str, limit: int) -> list[str]:
    rows = conn.execute(
        "SELECT name FROM groups WHERE training IS NULL AND name > ? AND instr(lower(name), lower(?)) > 0"
        " ORDER BY name LIMIT ?",
        (after, named, limit),
    )
    return [row[0] for row in rows]
