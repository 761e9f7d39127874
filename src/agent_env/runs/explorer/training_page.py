"""A training run: its charts over the steps, alone or with a second one over it, and its steps as a table."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from agent_env.runs._reading import first_runs, read_groups
from agent_env.runs._schema import bounds_below
from agent_env.runs.explorer.address import number_of, text_of
from agent_env.runs.explorer.drawn_steps import DrawnSteps
from agent_env.runs.explorer.drops import Drop, largest_drops, with_tasks
from agent_env.runs.explorer.points import StepPoint, Steps, by_split, read_steps, states_of
from agent_env.runs.explorer.site import Site
from agent_env.runs.record import GroupSummary, RunState

__all__ = ["TrainingView", "training_page"]

_GROUPS = 100
_OTHERS = 50
_CHOICES = 1000
"""Training runs that can be chosen to be laid over this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingView:
    """One training run: every step for the charts, some for the table, the latest first."""

    name: str
    points: tuple[StepPoint, ...]
    other: str | None
    """The training run that is laid over it."""
    other_points: tuple[StepPoint, ...]
    drawn: DrawnSteps = field(metadata={"json": False})
    """The points as pictures."""
    drops: tuple[Drop, ...]
    """Where the reward fell the most."""
    states: Mapping[RunState, int]
    model: str
    """What the newest run's labels say."""
    renderer: str
    bundle: str
    first_at_s: float
    last_at_s: float
    choices: tuple[str, ...]
    """The other training runs."""
    other_groups: tuple[GroupSummary, ...]
    """Groups that are filed below it and are no step of it, as evaluations before and after it are."""
    groups: tuple[GroupSummary, ...]
    first: int
    earlier: int | None
    later: int | None
    """Where the table's page before and the page after start."""

    @property
    def asked(self) -> dict[str, object]:
        """What the address asks for, but for the page."""
        asked: dict[str, object] = {"name": self.name, "with": self.other}
        if self.drawn.split != next(iter(self.drawn.splits)):
            asked["split"] = self.drawn.split
        if self.drawn.with_range is not (self.other is None):
            asked["range"] = "yes" if self.drawn.with_range else "no"
        return asked

    @property
    def runs(self) -> int:
        """All its episodes."""
        return sum(self.states.values())

    @property
    def latest(self) -> list[StepPoint]:
        """The last scored step of each split."""
        found: list[StepPoint] = []
        for points in self.drawn.splits.values():
            scored = [point for point in points if point.mean is not None]
            found += scored[-1:]
        return found


def training_page(site: Site, request: Request) -> Response:
    """Answer `/training?name=`, with `with=` for a second one over it."""
    view = view_training(
        site,
        text_of(request, "name"),
        other=text_of(request, "with"),
        split=text_of(request, "split"),
        with_range={"yes": True, "no": False}.get(text_of(request, "range")),
        offset=number_of(request, "from"),
    )
    return site.answer(request, "training.html", view)


def view_training(
    site: Site, name: str, *, other: str = "", split: str = "", with_range: bool | None = None, offset: int = 0
) -> TrainingView:
    """A training run's page.

    Args:
        site: What to ask.
        name: Whose it is.
        other: The training run to lay over it; empty for none.
        split: Whose failures and cuts are drawn by kind; empty or unknown for the first.
        with_range: Whether the least and the greatest reward are drawn; None for where they do not hide each other.
        offset: The place of the table's first step, the latest first.

    Raises:
        UsageError: When there is no such training run.
    """
    steps = _steps(site, name)
    other = "" if other == name else other
    over = _steps(site, other) if other else None
    shows_range = over is None if with_range is None else with_range
    drawn = site.memory.get(
        ("drawn", name, other, split, shows_range),
        lambda: _drawn(name, steps, other, over, split=split, with_range=shows_range),
    )
    latest = sorted(steps.points, key=lambda point: (-point.step, point.split != "train", point.split))
    shown = latest[offset : offset + _GROUPS]
    with site.reader.asking() as conn:
        groups = read_groups(conn, names=[point.group for point in shown])
        other_groups = read_groups(conn, names=_other_groups(conn, name))
        choices = _other_trainings(conn, name)
        newest = _newest(conn, latest[0].group)
        states = states_of(conn, name)
    return TrainingView(
        name=name,
        points=steps.points,
        other=other or None,
        other_points=() if over is None else over.points,
        drawn=drawn,
        drops=site.memory.get(("drops", name), lambda: _drops(site, steps)),
        states=states,
        **newest,
        first_at_s=steps.first_at_s,
        last_at_s=steps.last_at_s,
        choices=tuple(choices),
        other_groups=tuple(other_groups),
        groups=tuple(groups),
        first=offset,
        earlier=max(0, offset - _GROUPS) if offset else None,
        later=offset + _GROUPS if len(latest) > offset + _GROUPS else None,
    )


def _steps(site: Site, name: str) -> Steps:
    def ask() -> Steps:
        with site.reader.asking() as conn:
            return read_steps(conn, name)

    return site.memory.get(("steps", name), ask)


def _drops(site: Site, steps: Steps) -> tuple[Drop, ...]:
    with site.reader.asking() as conn:
        return tuple([with_tasks(conn, drop) for drop in largest_drops(by_split(steps.points).values())])


def _drawn(name: str, steps: Steps, other: str, over: Steps | None, *, split: str, with_range: bool) -> DrawnSteps:
    splits = by_split(steps.points)
    return DrawnSteps(
        name=name,
        points=steps.points,
        other=other or None,
        other_points=() if over is None else over.points,
        split=split if split in splits else next(iter(splits)),
        with_range=with_range,
    )


def _other_groups(conn: sqlite3.Connection, name: str) -> list[str]:
    rows = conn.execute(
        "SELECT name FROM groups WHERE training IS NULL AND name >= :below AND name < :beyond ORDER BY name LIMIT :limit",
        {**bounds_below(name), "limit": _OTHERS},
    )
    return [row[0] for row in rows]


def _other_trainings(conn: sqlite3.Connection, name: str) -> list[str]:
    # One seek for each name: a training run may have thousands of steps.
    rows = conn.execute(
        "WITH RECURSIVE seen (last) AS (SELECT min(training) FROM groups UNION ALL"
        " SELECT (SELECT min(training) FROM groups WHERE training > last) FROM seen WHERE last IS NOT NULL LIMIT ?)"
        " SELECT last FROM seen WHERE last IS NOT NULL",
        (_CHOICES,),
    )
    return [row[0] for row in rows if row[0] != name]


def _newest(conn: sqlite3.Connection, group: str) -> dict[str, str]:
    run = first_runs(conn, [group]).get(group)
    if run is None:
        return {"model": "", "renderer": "", "bundle": ""}
    return {"model": run.model, "renderer": run.renderer, "bundle": f"{run.bundle_name} {run.bundle_version}"}
