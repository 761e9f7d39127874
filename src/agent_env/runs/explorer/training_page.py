"""A training run: its charts over the steps, alone or with a second one over it, and its steps as a table."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from agent_env.runs._codec import decode
from agent_env.runs._reading import Reader, read_groups
from agent_env.runs.explorer.address import number_of, text_of
from agent_env.runs.explorer.charts import Line, Picture, column_chart, line_chart, lines_of
from agent_env.runs.explorer.measures import Measure
from agent_env.runs.explorer.points import StepPoint, by_split, read_steps
from agent_env.runs.explorer.site import Site
from agent_env.runs.record import GroupSummary, RunState

__all__ = ["Chart", "Drop", "TrainingView", "training_page"]

_GROUPS = 100
_CHOICES = 1000
"""Training runs that can be chosen to be laid over this one."""
_DROPS = 3
_CLEAR = 3.0
"""A drop of fewer standard errors than this is taken for chance."""
_SMALL = (
    Measure.MESSAGES,
    Measure.CALLS,
    Measure.SECONDS,
    Measure.SAMPLED_TOKENS,
    Measure.PROMPT_TOKENS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """A step whose mean reward is clearly below that of the step before."""

    group: str
    split: str
    step: int
    before: float
    after: float
    errors: float
    """How many standard errors of the difference it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One of the small charts."""

    title: str
    drawing: Markup
    kinds: tuple[tuple[str, int], ...] = ()
    """Where it is stacked: each kind and how many runs it had in all."""
    of: str = ""
    """Which split it is of, where it is of one."""


@dataclass(frozen=True, kw_only=True)
class TrainingView:
    """One training run: every step for the charts, some for the table, the latest first."""

    name: str
    points: tuple[StepPoint, ...]
    other: str | None
    """The training run that is laid over it."""
    other_points: tuple[StepPoint, ...]
    split: str
    """Whose failures and cuts are drawn by kind."""
    with_range: bool
    """Whether the reward has its least and greatest value."""
    states: Mapping[RunState, int]
    model: str
    """What the newest run's labels say."""
    renderer: str
    bundle: str
    first_at_s: float
    last_at_s: float
    drops: tuple[Drop, ...]
    choices: tuple[str, ...]
    """The other training runs."""
    groups: tuple[GroupSummary, ...]
    first: int
    next_page: int | None

    @property
    def asked(self) -> dict[str, object]:
        """What the address asks for."""
        asked: dict[str, object] = {"name": self.name, "with": self.other}
        if self.split != next(iter(self.splits), ""):
            asked["split"] = self.split
        if not self.with_range:
            asked["range"] = "no"
        return asked

    @property
    def runs(self) -> int:
        """All its episodes."""
        return sum(self.states.values())

    @property
    def last_step(self) -> int:
        """The greatest step."""
        return max(point.step for point in self.points)

    @cached_property
    def splits(self) -> dict[str, list[StepPoint]]:
        """The points by split."""
        return by_split(self.points)

    @cached_property
    def lines(self) -> list[Line]:
        """A line for each split of each of the two."""
        if self.other is None:
            return lines_of(self.splits)
        own = lines_of(self.splits, prefix=f"{self.name} · ")
        return own + lines_of(by_split(self.other_points), prefix=f"{self.other} · ", first_look=len(own))

    @property
    def latest(self) -> list[StepPoint]:
        """The last scored step of each split."""
        found: list[StepPoint] = []
        for points in self.splits.values():
            scored = [point for point in points if point.mean is not None]
            found += scored[-1:]
        return found

    def reward(self, picture: str) -> Markup:
        """The reward over the steps."""
        return line_chart(self.lines, Measure.REWARD, Picture(picture), with_range=self.with_range)

    @cached_property
    def charts(self) -> list[Chart]:
        """The small charts that have something to show."""
        found = [self._shares(Measure.FAILED), self._shares(Measure.CUT)]
        found += [
            Chart(title=measure.heading, drawing=line_chart(self.lines, measure, Picture.SMALL)) for measure in _SMALL
        ]
        return [chart for chart in found if chart.drawing]

    def _shares(self, measure: Measure) -> Chart:
        chosen = [line for line in self.lines if line.points[0].split == self.split]
        totals: dict[str, int] = {}
        for point in chosen[0].points:
            for kind, n in (point.failures if measure is Measure.FAILED else point.cuts).items():
                totals[kind] = totals.get(kind, 0) + n
        kinds = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
        if self.other is not None:
            return Chart(title=measure.heading, drawing=line_chart(chosen, measure, Picture.SMALL), of=self.split)
        return Chart(
            title=measure.heading,
            drawing=column_chart(chosen[0], measure, [kind for kind, _ in kinds], Picture.SMALL),
            kinds=tuple(kinds),
            of=self.split,
        )


def training_page(site: Site, request: Request) -> Response:
    """Answer `/training?name=`, with `with=` for a second one over it."""
    view = view_training(
        site.reader,
        text_of(request, "name"),
        other=text_of(request, "with"),
        split=text_of(request, "split"),
        with_range=text_of(request, "range") != "no",
        offset=number_of(request, "from"),
    )
    return site.answer(request, "training.html", view)


def view_training(
    reader: Reader, name: str, *, other: str = "", split: str = "", with_range: bool = True, offset: int = 0
) -> TrainingView:
    """A training run's page.

    Args:
        reader: What asks the index.
        name: Whose it is.
        other: The training run to lay over it; empty for none.
        split: Whose failures and cuts are drawn by kind; empty or unknown for the first.
        with_range: Whether the least and the greatest reward are drawn.
        offset: The place of the table's first step, the latest first.

    Raises:
        UsageError: When there is no such training run.
    """
    with reader.asking() as conn:
        steps = read_steps(conn, name)
        over = read_steps(conn, other) if other and other != name else None
        latest = sorted(steps.points, key=lambda point: (-point.step, point.split != "train", point.split))
        shown = latest[offset : offset + _GROUPS]
        groups = read_groups(conn, names=[point.group for point in shown])
        choices = _other_trainings(conn, name)
        newest = _newest(conn, latest[0].group)
    splits = by_split(steps.points)
    return TrainingView(
        name=name,
        points=steps.points,
        other=None if over is None else other,
        other_points=() if over is None else over.points,
        split=split if split in splits else next(iter(splits)),
        with_range=with_range,
        states=steps.states,
        **newest,
        first_at_s=steps.first_at_s,
        last_at_s=steps.last_at_s,
        drops=tuple(_drops(splits)),
        choices=tuple(choices),
        groups=tuple(groups),
        first=offset,
        next_page=offset + _GROUPS if len(latest) > offset + _GROUPS else None,
    )


def _other_trainings(conn: sqlite3.Connection, name: str) -> list[str]:
    # One seek for each name: a training run may have thousands of steps.
    rows = conn.execute(
        "WITH RECURSIVE names (name) AS (SELECT min(training) FROM groups UNION ALL"
        " SELECT (SELECT min(training) FROM groups WHERE training > name) FROM names WHERE name IS NOT NULL LIMIT ?)"
        " SELECT name FROM names WHERE name IS NOT NULL",
        (_CHOICES,),
    )
    return [row[0] for row in rows if row[0] != name]


def _newest(conn: sqlite3.Connection, group: str) -> dict[str, str]:
    """What the first run of a group says it was played with."""
    row = conn.execute(
        "SELECT labels, bundle_name, bundle_version FROM runs"
        " WHERE group_key = (SELECT key FROM groups WHERE name = ?) LIMIT 1",
        (group,),
    ).fetchone()
    labels: Mapping[str, object] = {} if row is None else decode(row["labels"])
    return {
        "model": str(labels.get("model", "")),
        "renderer": str(labels.get("renderer", "")),
        "bundle": "" if row is None else f"{row['bundle_name']} {row['bundle_version']}",
    }


def _drops(splits: Mapping[str, Sequence[StepPoint]]) -> list[Drop]:
    """The steps whose mean fell by the most, where chance alone would hardly do it; the greatest first."""
    found = [drop for points in splits.values() for drop in _falls(points)]
    return sorted(found, key=lambda drop: drop.after - drop.before)[:_DROPS]


def _falls(points: Sequence[StepPoint]) -> Generator[Drop]:
    scored = [point for point in points if point.mean is not None and point.se is not None]
    for earlier, later in pairwise(scored):
        before, after = earlier.mean or 0.0, later.mean or 0.0
        error = math.hypot(earlier.se or 0.0, later.se or 0.0)
        if error > 0 and before - after >= _CLEAR * error:
            yield Drop(
                group=later.group,
                split=later.split,
                step=later.step,
                before=before,
                after=after,
                errors=(before - after) / error,
            )
