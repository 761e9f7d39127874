"""Charts over the steps of a training run, as SVG drawn on the server: they work without a script, and follow the page's
colours. A line is told from another by its dashes and marks as well as by its colour.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache
from itertools import pairwise
from urllib.parse import urlencode

from markupsafe import Markup, escape

from agent_env.runs.explorer.measures import Measure
from agent_env.runs.explorer.plot import Plot, averaged, axes, path, room_for, svg, thinned, ticks
from agent_env.runs.explorer.points import StepPoint
from agent_env.runs.explorer.wording import number
from agent_env.runs.visible import visible

__all__ = [
    "Line",
    "Picture",
    "column_chart",
    "has_worst_alone",
    "is_thinned",
    "kind_mark",
    "legend_mark",
    "line_chart",
    "lines_of",
    "sparkline",
]

LOOKS = 6
"""How many ways of drawing a line there are."""
TREND = 80
"""Stretches whose means are drawn over a line of too many steps to be followed."""


class Picture(StrEnum):
    """How large a chart is."""

    WIDE = "wide"
    """Across the page."""
    NARROW = "narrow"
    """The same, on a phone."""
    SMALL = "small"
    """One of several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    width: int
    height: int
    left: int
    vertices: int
    """Points that a line has at most."""
    columns: int
    """Steps that can be clicked, at most."""


_SIZES: Mapping[Picture, _Size] = {
    Picture.WIDE: _Size(width=1040, height=340, left=56, vertices=600, columns=120),
    Picture.NARROW: _Size(width=380, height=270, left=50, vertices=240, columns=48),
    Picture.SMALL: _Size(width=380, height=176, left=46, vertices=240, columns=48),
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """The steps of one split of one training run."""

    name: str
    """For the legend."""
    look: int
    """Which of the ways to draw it."""
    points: Sequence[StepPoint]

    @cached_property
    def by_step(self) -> Mapping[int, StepPoint]:
        """Its points by their steps."""
        return {point.step: point for point in self.points}

    @property
    def look_class(self) -> str:
        """The class that has its colour and its dashes."""
        return f"series-{self.look % LOOKS}"


def is_thinned(lines: Sequence[Line], picture: Picture) -> bool:
    """Whether a line of a chart has more steps than are drawn."""
    return any(len(line.points) > _SIZES[picture].vertices for line in lines)


def has_worst_alone(line: Line, picture: Picture) -> bool:
    """Whether a stacked chart has more steps than are drawn."""
    return len(line.points) > _SIZES[picture].columns


def lines_of(splits: Mapping[str, Sequence[StepPoint]], *, prefix: str = "", first_look: int = 0) -> list[Line]:
    """A line for each split."""
    return [
        Line(name=f"{prefix}{split}", look=first_look + index, points=points)
        for index, (split, points) in enumerate(splits.items())
    ]


def line_chart(
    lines: Sequence[Line], measure: Measure, picture: Picture, *, with_range: bool = False, task: str = ""
) -> Markup:
    """A measure over the steps; nothing where no step has it.

    Args:
        lines: Each by step.
        measure: What to draw. A reward has a band of one standard error.
        picture: How large.
        with_range: Whether a reward has a band from its least to its greatest value, too.
        task: Which task of a step is linked to; empty for all.
    """
    known = [(line, values) for line in lines if (values := _values(line, measure))]
    if not known:
        return Markup("")
    size = _SIZES[picture]
    plot = _plot(size, known, measure, with_range=with_range)
    parts = axes(plot, label=measure.heading.lower() if picture is Picture.WIDE else "", says=measure.axis)
    parts += _columns(plot, lines, known, measure, size.columns, task)
    for line, values in known:
        parts.append(f'<g class="{line.look_class}">')
        if measure is Measure.REWARD:
            parts += _bands(plot, line, size.vertices, with_range=with_range)
        parts += _line(plot, line, values, size)
        if picture is not Picture.SMALL:
            parts += _targets(plot, line, values, measure, size.columns, task)
        parts.append("</g>")
    label = f"{measure.heading} over training steps: {', '.join(line.name for line, _ in known)}"
    return svg(parts, kind="chart", width=size.width, height=size.height, label=visible(label))


def column_chart(line: Line, measure: Measure, kinds: Sequence[str], picture: Picture) -> Markup:
    """The shares of a step's runs by kind, stacked.

    Args:
        line: Its steps. Of many, each stretch has the one with the greatest share.
        measure: `FAILED` or `CUT`.
        kinds: All of them, the first below; what tells them apart is `kind-0`, `kind-1`, ...
        picture: How large.
    """
    values = _values(line, measure)
    if not values:
        return Markup("")
    size = _SIZES[picture]
    steps = _worst(values, size.columns)
    x_low, x_high = room_for(values[0][0], values[-1][0])
    gap = (x_high - x_low) / max(1, len(steps) - 1)
    plot = Plot(
        width=size.width,
        height=size.height,
        left=size.left,
        first=values[0][0],
        last=values[-1][0],
        x_low=x_low - gap / 2,
        x_high=x_high + gap / 2,
        y_low=0.0,
        y_high=_headroom(max(value for _, value in values)),
    )
    parts = axes(plot, label="", says=measure.axis)
    width = min(26.0, 0.72 * (plot.x(gap) - plot.x(0)))
    step_width = max(plot.x(gap) - plot.x(0), 1.0)
    for place, step in steps:
        point = line.by_step[step]
        tops = _stacked(point.failures if measure is Measure.FAILED else point.cuts, kinds, point.runs)
        middle = plot.x(place)
        parts.append(
            _column(
                plot, middle - step_width / 2, step_width, _address(point.group), f"step {step}: {measure.about(point)}"
            )
        )
        parts += [
            f'<rect {kind_fill(index)} x="{middle - width / 2:.1f}" width="{width:.1f}"'
            f' y="{plot.y(above):.1f}" height="{plot.y(below) - plot.y(above):.1f}"/>'
            for index, below, above in tops
        ]
        parts.append("</a>")
    return svg(
        parts, kind="chart", width=size.width, height=size.height, label=visible(f"{measure.heading}, {line.name}")
    )


def sparkline(values: Sequence[tuple[int, float]]) -> Markup:
    """The mean reward over the steps as a small line without axes."""
    if not values:
        return Markup("")
    shown = [values[place] for place in thinned(values, 130)]
    x_low, x_high = room_for(shown[0][0], shown[-1][0])
    y_low, y_high = room_for(min(mean for _, mean in shown), max(mean for _, mean in shown))
    width, height, edge = 132, 30, 3
    places = [
        (
            edge + (step - x_low) / (x_high - x_low) * (width - 2 * edge),
            height - edge - (mean - y_low) / (y_high - y_low) * (height - 2 * edge),
        )
        for step, mean in shown
    ]
    x, y = places[-1]
    label = f"mean reward from {number(shown[0][1])} to {number(shown[-1][1])}"
    return Markup(
        f'<svg class="spark" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}">'
        f'<polyline points="{path(places)}"/><circle cx="{x:.1f}" cy="{y:.1f}" r="2.4"/></svg>'
    )


def kind_fill(index: int) -> str:
    """What tells a kind of failure from another, as attributes: a colour, and from the second on a pattern."""
    look = index % LOOKS
    return f'class="kind-{look}"' if look == 0 else f'class="kind-{look}" fill="url(#kind-{look})"'


def kind_mark(index: int) -> Markup:
    """The same for its entry in the legend."""
    return Markup(
        f'<svg class="sample" viewBox="0 0 14 12" aria-hidden="true"><rect {kind_fill(index)} x="1" y="1" width="12" height="10"/></svg>'
    )


def legend_mark(line: Line) -> Markup:
    """How a line is drawn, for its entry in the legend."""
    return Markup(
        f'<svg class="sample {line.look_class}" viewBox="0 0 30 12" aria-hidden="true">'
        f'<line class="mean" x1="1" x2="29" y1="6" y2="6"/><path class="point" d="{_mark(line.look, 15, 6, 3.6)}"/></svg>'
    )


def _values(line: Line, measure: Measure) -> list[tuple[int, float]]:
    return [(point.step, value) for point in line.points if (value := measure.of(point)) is not None]


def _plot(
    size: _Size, known: Sequence[tuple[Line, Sequence[tuple[int, float]]]], measure: Measure, *, with_range: bool
) -> Plot:
    first, last = min(values[0][0] for _, values in known), max(values[-1][0] for _, values in known)
    x_low, x_high = room_for(first, last)
    if measure is Measure.REWARD:
        tops: list[float] = []
        bottoms: list[float] = []
        for line, _ in known:
            for point in line.points:
                if point.mean is not None:
                    se = point.se or 0.0
                    high, low = (point.high, point.low) if with_range else (None, None)
                    tops.append(point.mean + se if high is None else max(high, point.mean + se))
                    bottoms.append(point.mean - se if low is None else min(low, point.mean - se))
        y_low, y_high = room_for(min(bottoms), max(tops))
        gaps = ticks(y_low, y_high, 5)
        gap = gaps[1] - gaps[0] if len(gaps) > 1 else y_high - y_low
        y_low, y_high = math.floor(y_low / gap + 1e-9) * gap, math.ceil(y_high / gap - 1e-9) * gap
    else:
        y_low, y_high = 0.0, _headroom(max(value for _, values in known for _, value in values))
    return Plot(
        width=size.width,
        height=size.height,
        left=size.left,
        first=first,
        last=last,
        x_low=x_low,
        x_high=x_high,
        y_low=y_low,
        y_high=y_high,
    )


def _headroom(value: float) -> float:
    return 1.06 * value if value > 0 else 1.0


def _columns(
    plot: Plot,
    lines: Sequence[Line],
    known: Sequence[tuple[Line, Sequence[tuple[int, float]]]],
    measure: Measure,
    most: int,
    task: str,
) -> list[str]:
    """The height of the plot over each step, or over the ones that stand out: a link to it that says what is there."""
    _, values = max(known, key=lambda pair: len(pair[1]))
    steps = [values[place][0] for place in thinned(values, most)]
    edges = [plot.left, *[plot.x((a + b) / 2) for a, b in pairwise(steps)], plot.end]
    parts: list[str] = []
    for step, left, right in zip(steps, edges, edges[1:], strict=False):
        found = [(line, line.by_step[step]) for line in lines if step in line.by_step]
        words = "\n".join([f"step {step}", *[f"{line.name}: {measure.about(point)}" for line, point in found]])
        parts.append(_column(plot, left, right - left, _address(found[0][1].group, task), words))
        parts.append("</a>")
    return parts


def _column(plot: Plot, left: float, width: float, address: Markup, words: str) -> str:
    said = escape(visible(words))
    return (
        f'<a class="column" href="{address}" tabindex="-1"><title>{said}</title>'
        f'<rect class="target" x="{left:.1f}" width="{width:.1f}" y="{plot.top}" height="{plot.floor - plot.top}"/>'
    )


@lru_cache(maxsize=8192)  # every chart of a page links to the same steps
def _address(group: str, task: str = "") -> Markup:
    return escape(f"/group?{urlencode({'name': group, 'task': task} if task else {'name': group})}")


def _bands(plot: Plot, line: Line, most: int, *, with_range: bool) -> list[str]:
    points = [point for point in line.points if point.mean is not None]
    parts: list[str] = []
    if with_range and len(points) > 1:
        upper, lower = _envelope(plot, points, most // 2)
        parts.append(f'<polygon class="range" points="{path(upper + lower[::-1])}"/>')
    shown = [points[place] for place in thinned([(point.step, point.mean or 0.0) for point in points], most)]
    upper = [(plot.x(point.step), plot.y((point.mean or 0.0) + (point.se or 0.0))) for point in shown]
    lower = [(plot.x(point.step), plot.y((point.mean or 0.0) - (point.se or 0.0))) for point in shown]
    if len(shown) > 1:
        parts.append(f'<polygon class="band" points="{path(upper + lower[::-1])}"/>')
    else:
        (x, top), (_, bottom) = upper[0], lower[0]
        parts.append(f'<line class="whisker" x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>')
    return parts


def _envelope(
    plot: Plot, points: Sequence[StepPoint], stretches: int
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """The greatest and the least reward over the steps; of many steps, over stretches of them."""
    upper: list[tuple[float, float]] = []
    lower: list[tuple[float, float]] = []
    size = max(1, math.ceil(len(points) / stretches))
    for start in range(0, len(points), size):
        some = points[start : start + size]
        top = plot.y(max([point.high if point.high is not None else point.mean or 0.0 for point in some]))
        bottom = plot.y(min([point.low if point.low is not None else point.mean or 0.0 for point in some]))
        for x in {plot.x(some[0].step): None, plot.x(some[-1].step): None}:
            upper.append((x, top))
            lower.append((x, bottom))
    return upper, lower


def _line(plot: Plot, line: Line, values: Sequence[tuple[int, float]], size: _Size) -> list[str]:
    shown = [values[place] for place in thinned(values, size.vertices)]
    places = [(plot.x(step), plot.y(value)) for step, value in shown]
    if len(shown) < len(values):
        trend = [(plot.x(step), plot.y(value)) for step, value in averaged(values, TREND)]
        return [
            f'<polyline class="mean faint" points="{path(places)}"/>',
            f'<polyline class="mean trend" points="{path(trend)}"/>',
            f'<path class="point" d="{_mark(line.look, *places[-1], 3.4)}"/>',
        ]
    parts = [f'<polyline class="mean" points="{path(places)}"/>'] if len(places) > 1 else []
    marked = places if len(places) * 9 < size.width else places[-1:]
    radius = 3.4 if len(places) * 22 < size.width else 2.6
    parts += [f'<path class="point" d="{_mark(line.look, x, y, radius)}"/>' for x, y in marked]
    return parts


def _targets(
    plot: Plot, line: Line, values: Sequence[tuple[int, float]], measure: Measure, most: int, task: str
) -> list[str]:
    shown = [values[place] for place in thinned(values, most)]
    radius = min(10.0, max(4.0, plot.width / len(shown) / 2))
    parts: list[str] = []
    for step, value in shown:
        point = line.by_step[step]
        words = escape(visible(f"{line.name}, step {step}: {measure.about(point)}"))
        parts.append(
            f'<a href="{_address(point.group, task)}" tabindex="-1">'
            f'<title>{words}</title><circle class="target" cx="{plot.x(step):.1f}" cy="{plot.y(value):.1f}"'
            f' r="{radius:.1f}"/></a>'
        )
    return parts


def _worst(values: Sequence[tuple[int, float]], most: int) -> list[tuple[float, int]]:
    """Of each stretch its middle, and the step with the greatest value."""
    size = max(1, math.ceil(len(values) / most))
    found: list[tuple[float, int]] = []
    for start in range(0, len(values), size):
        some = values[start : start + size]
        found.append(((some[0][0] + some[-1][0]) / 2, max(some, key=lambda pair: pair[1])[0]))
    return found


def _stacked(found: Mapping[str, int], kinds: Sequence[str], runs: int) -> list[tuple[int, float, float]]:
    parts: list[tuple[int, float, float]] = []
    at = 0
    for index, kind in enumerate(kinds):
        n = found.get(kind, 0)
        if n:
            parts.append((index, at / runs, (at + n) / runs))
            at += n
    return parts


def _mark(look: int, x: float, y: float, r: float) -> str:
    """A mark of its own for each look: disc, square, triangle, diamond, triangle down, cross."""
    match look % LOOKS:
        case 0:
            return f"M{x - r:.1f},{y:.1f}a{r:.1f},{r:.1f} 0 1 0 {2 * r:.1f},0a{r:.1f},{r:.1f} 0 1 0 {-2 * r:.1f},0z"
        case 1:
            s = 0.9 * r
            return f"M{x - s:.1f},{y - s:.1f}h{2 * s:.1f}v{2 * s:.1f}h{-2 * s:.1f}z"
        case 2:
            return f"M{x:.1f},{y - 1.2 * r:.1f}l{1.15 * r:.1f},{2 * r:.1f}h{-2.3 * r:.1f}z"
        case 3:
            d = 1.3 * r
            return f"M{x:.1f},{y - d:.1f}l{d:.1f},{d:.1f}l{-d:.1f},{d:.1f}l{-d:.1f},{-d:.1f}z"
        case 4:
            return f"M{x:.1f},{y + 1.2 * r:.1f}l{1.15 * r:.1f},{-2 * r:.1f}h{-2.3 * r:.1f}z"
        case _:
            a, b = r, 0.4 * r
            return (
                f"M{x - b:.1f},{y - a:.1f}h{2 * b:.1f}v{a - b:.1f}h{a - b:.1f}v{2 * b:.1f}h{b - a:.1f}v{a - b:.1f}"
                f"h{-2 * b:.1f}v{b - a:.1f}h{b - a:.1f}v{-2 * b:.1f}h{a - b:.1f}z"
            )
