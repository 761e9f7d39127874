"""The charts of a training run, alone or with a second one over it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from markupsafe import Markup

from agent_env.runs.explorer.charts import (
    Line,
    Picture,
    column_chart,
    has_worst_alone,
    is_thinned,
    line_chart,
    lines_of,
)
from agent_env.runs.explorer.measures import Measure
from agent_env.runs.explorer.points import StepPoint, by_split

__all__ = ["Chart", "DrawnSteps"]

_SMALL = (
    Measure.MESSAGES,
    Measure.CALLS,
    Measure.SECONDS,
    Measure.SAMPLED_TOKENS,
    Measure.PROMPT_TOKENS,
)


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
class DrawnSteps:
    """What is drawn of a training run. Each picture is drawn when it is first asked for, and kept."""

    name: str
    points: tuple[StepPoint, ...]
    other: str | None
    """The training run that is laid over it."""
    other_points: tuple[StepPoint, ...]
    split: str
    """Whose failures and cuts are drawn by kind."""
    with_range: bool
    """Whether the reward has its least and greatest value."""

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

    @cached_property
    def wide(self) -> Markup:
        """The reward over the steps."""
        return line_chart(self.lines, Measure.REWARD, Picture.WIDE, with_range=self.with_range)

    @cached_property
    def narrow(self) -> Markup:
        """The same for a phone."""
        return line_chart(self.lines, Measure.REWARD, Picture.NARROW, with_range=self.with_range)

    @cached_property
    def thinning(self) -> str:
        """How steps that are too many to be drawn were thinned, in words."""
        words: list[str] = []
        if is_thinned(self.lines, Picture.SMALL):
            words.append("Thin lines keep the lowest and the highest step of each stretch, thick ones are their means.")
        if self.other is None and has_worst_alone(self.lines[0], Picture.SMALL):
            words.append("Bars are the worst step of each stretch.")
        return " ".join(words)

    @cached_property
    def missing(self) -> str:
        """What the split whose failures and cuts are drawn by kind has none of, in words."""
        points = self.splits[self.split]
        if self.other is not None:
            return ""
        is_whole, is_uncut = (not any(point.failed for point in points), not any(point.cut for point in points))
        verbs = [verb for verb, is_so in (("failed", is_whole), ("was cut", is_uncut)) if is_so]
        return f"No run of {self.split} {' or '.join(verbs)}." if verbs else ""

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
        if not kinds:
            return Chart(title=measure.heading, drawing=Markup(""))
        return Chart(
            title=measure.heading,
            drawing=column_chart(chosen[0], measure, [kind for kind, _ in kinds], Picture.SMALL),
            kinds=tuple(kinds),
            of=self.split,
        )
