"""The first page: training runs, and groups that are no step of one; of both the one that wrote last first."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from agent_env.runs._reading import Reader, first_runs, moments, read_groups
from agent_env.runs.explorer.address import number_of, text_of
from agent_env.runs.explorer.points import states_of
from agent_env.runs.explorer.site import Site
from agent_env.runs.record import GroupSummary, RunState

__all__ = ["HomeView", "LatestMean", "Played", "TrainingSummary", "home_page"]

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
class Played:
    """What a run of a group says it was played with; empty where it does not say."""

    bundle: str
    model: str
    player: str


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
    played: Mapping[str, Played]
    """What was played in each of these groups, by name."""
    next_groups: int | None
    """Where the next of the groups start."""

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
        groups_offset=number_of(request, "groups_from"),
    )
    return site.answer(request, "home.html", view)


def view_home(reader: Reader, *, named: str = "", offset: int = 0, groups_offset: int = 0) -> HomeView:
    """The home page, from its `offset`th training run and its `groups_offset`th loose group on."""
    with reader.asking() as conn:
        trainings = _trainings(conn, named=named, offset=offset)
        total = conn.execute(
            "SELECT count(DISTINCT training) FROM groups WHERE training IS NOT NULL"
            " AND instr(lower(training), lower(?)) > 0",
            (named,),
        ).fetchone()[0]
        names = _loose_groups(conn, named=named, offset=groups_offset, limit=_GROUPS + 1)
        groups = read_groups(conn, names=names[:_GROUPS])
        played = _played(conn, names[:_GROUPS])
    return HomeView(
        named=named,
        trainings=tuple(trainings),
        total=total,
        first=offset,
        earlier=max(0, offset - _TRAININGS) if offset else None,
        later=offset + _TRAININGS if total > offset + _TRAININGS else None,
        groups=tuple(groups),
        played=played,
        next_groups=groups_offset + _GROUPS if len(names) > _GROUPS else None,
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


def _loose_groups(conn: sqlite3.Connection, *, named: str, offset: int, limit: int) -> list[str]:
    rows = conn.execute(
        "SELECT name FROM groups WHERE training IS NULL AND instr(lower(name), lower(?)) > 0"
        " ORDER BY last_at_s DESC, name LIMIT ? OFFSET ?",
        (named, limit, offset),
    )
    return [row[0] for row in rows]


def _played(conn: sqlite3.Connection, groups: Sequence[str]) -> dict[str, Played]:
    return {
        group: Played(
            bundle=f"{run.bundle_name} {run.bundle_version}".strip(),
            model=run.model,
            player=player if isinstance(player := run.labels.get("player"), str) else "",
        )
        for group, run in first_runs(conn, groups).items()
    }
