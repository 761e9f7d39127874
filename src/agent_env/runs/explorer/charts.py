"""Charts as SVG, drawn on the server: they work without a script and follow the page's colours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from markupsafe import Markup, escape

from agent_env.runs.explorer.points import StepPoint
from agent_env.runs.visible import visible

__all__ = ["heat", "number", "reward_chart", "sparkline", "splits_of"]

_CLICKABLE = 200
"""Points that get a circle and a link; of a longer series, every so many."""
_COLOURS = 4
_MINUS = "\u2212"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """Where the plot lies in the picture, and which values it spans."""

    width: int
    height: int
    left: int = 52
    right: int = 14
    top: int = 12
    bottom: int = 44
    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        span = self.x_high - self.x_low
        return self.left + (value - self.x_low) / span * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        span = self.y_high - self.y_low
        return self.height - self.bottom - (value - self.y_low) / span * (self.height - self.top - self.bottom)


def reward_chart(points: Sequence[StepPoint], *, width: int, height: int) -> Markup:
    """The mean reward over the steps, a line per split with a band of one standard error.

    Args:
        points: By split and step. Those with no scored run leave no mark.
        width: Of the picture, in its own pixels; the page scales it.
        height: As `width`.
    """
    series = _by_split([point for point in points if point.mean is not None])
    if not series:
        return Markup("")
    frame = _frame(series, width=width, height=height)
    parts = [_axes(frame)]
    for index, (split, line) in enumerate(series.items()):
        parts.append(_series(frame, index % _COLOURS, split, line))
    return Markup(
        '<svg class="chart" viewBox="0 0 {} {}" role="img" aria-label="Mean reward over training steps">{}</svg>'
    ).format(width, height, Markup("").join(parts))


def sparkline(points: Sequence[StepPoint]) -> Markup:
    """The mean reward over the steps as a small line without axes."""
    known = [(point.step, point.mean) for point in points if point.mean is not None]
    if not known:
        return Markup("")
    low_x, high_x = _spread(known[0][0], known[-1][0])
    low_y, high_y = _spread(min(mean for _, mean in known), max(mean for _, mean in known))
    width, height, edge = 132, 30, 3
    places = [
        (
            edge + (step - low_x) / (high_x - low_x) * (width - 2 * edge),
            height - edge - (mean - low_y) / (high_y - low_y) * (height - 2 * edge),
        )
        for step, mean in known
    ]
    x, y = places[-1]
    label = f"mean reward from {number(known[0][1])} to {number(known[-1][1])}"
    return Markup(
        '<svg class="spark" viewBox="0 0 {} {}" role="img" aria-label="{}"><polyline points="{}"/>'
        '<circle cx="{:.1f}" cy="{:.1f}" r="2.4"/></svg>'
    ).format(width, height, label, _path(places), x, y)


_NOISE = 1e-9
"""What is nearer to zero comes from rounding, as in the standard error of equal rewards."""


def number(value: float | None) -> str:
    """A reward or score for people: three decimals, fewer digits where it is large."""
    if value is None:
        return "\u2013"
    if abs(value) < _NOISE:
        value = 0.0
    if value != 0 and not 0.001 <= abs(value) < 1000:
        return f"{value:.3g}"
    text = f"{value:.3f}"
    return "0.000" if text == "-0.000" else text.replace("-", _MINUS)


def heat(value: float | None, low: float, high: float) -> str:
    """The class of a cell's colour: `heat-0` (low) to `heat-10` (high)."""
    if value is None or high <= low:
        return "heat-none"
    return f"heat-{round(10 * min(1.0, max(0.0, (value - low) / (high - low))))}"


def splits_of(points: Sequence[StepPoint]) -> list[str]:
    """The splits that the chart draws, in the order of their colours."""
    return list(_by_split([point for point in points if point.mean is not None]))


def _by_split(points: Sequence[StepPoint]) -> Mapping[str, list[StepPoint]]:
    series: dict[str, list[StepPoint]] = {}
    for point in sorted(points, key=lambda point: (point.split != "train", point.split, point.step)):
        series.setdefault(point.split, []).append(point)
    return series


def _frame(series: Mapping[str, Sequence[StepPoint]], *, width: int, height: int) -> _Frame:
    steps = [point.step for line in series.values() for point in line]
    tops = [_mean(point) + (point.se or 0) for line in series.values() for point in line]
    bottoms = [_mean(point) - (point.se or 0) for line in series.values() for point in line]
    x_low, x_high = _spread(min(steps), max(steps))
    y_low, y_high = _spread(min(bottoms), max(tops))
    ticks = _ticks(y_low, y_high, 5)
    gap = ticks[1] - ticks[0]
    return _Frame(
        width=width,
        height=height,
        x_low=x_low,
        x_high=x_high,
        y_low=math.floor(y_low / gap) * gap,
        y_high=math.ceil(y_high / gap) * gap,
    )


def _axes(frame: _Frame) -> Markup:
    bottom, right = frame.height - frame.bottom, frame.width - frame.right
    parts: list[Markup] = []
    for value in _ticks(frame.y_low, frame.y_high, 5):
        y = frame.y(value)
        parts.append(
            Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(frame.left, right, y, y)
            + Markup('<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
                frame.left - 7, y + 4, f"{value:.6g}".replace("-", _MINUS)
            )
        )
    parts += [
        Markup('<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
            frame.x(value), bottom + 17, int(value)
        )
        for value in _ticks(frame.x_low, frame.x_high, 8 if frame.width > 500 else 5)
        if value == int(value)
    ]
    middle_y = (frame.top + bottom) / 2
    parts.append(
        Markup('<line class="axis" x1="{}" x2="{}" y1="{}" y2="{}"/>').format(frame.left, right, bottom, bottom)
        + Markup('<text class="label" x="{}" y="{}" text-anchor="middle">training step</text>').format(
            (frame.left + right) / 2, frame.height - 7
        )
        + Markup('<text class="label" x="12" y="{}" text-anchor="middle" transform="rotate(-90 12 {})">').format(
            middle_y, middle_y
        )
        + Markup("mean reward</text>")
    )
    return Markup("").join(parts)


def _series(frame: _Frame, colour: int, split: str, line: Sequence[StepPoint]) -> Markup:
    upper = [(frame.x(point.step), frame.y(_mean(point) + (point.se or 0))) for point in line]
    lower = [(frame.x(point.step), frame.y(_mean(point) - (point.se or 0))) for point in line]
    middle = [(frame.x(point.step), frame.y(_mean(point))) for point in line]
    parts = [Markup('<g class="series-{}">').format(colour)]
    if len(line) > 1:
        parts.append(Markup('<polygon class="band" points="{}"/>').format(_path(upper + lower[::-1])))
        parts.append(Markup('<polyline class="mean" points="{}"/>').format(_path(middle)))
    else:
        parts.append(
            Markup('<line class="whisker" x1="{0:.1f}" x2="{0:.1f}" y1="{1:.1f}" y2="{2:.1f}"/>').format(
                upper[0][0], upper[0][1], lower[0][1]
            )
        )
    every = max(1, math.ceil(len(line) / _CLICKABLE))
    radius = 3.4 if len(line) <= 60 else 2.2 if len(line) <= 150 else 1.2
    for point, (x, y) in list(zip(line, middle, strict=True))[::every]:
        about = f"{split}, step {point.step}: {number(point.mean)}"
        about += "" if point.se is None else f" ± {number(point.se)}"
        about += f", {point.scored} scored"
        # Many of them: plain formatting is ten times as fast as Markup's, and only two of the values are text.
        place = f'cx="{x:.1f}" cy="{y:.1f}"'
        parts.append(
            Markup(
                f'<a href="/group?{escape(urlencode({"name": point.group}))}"><circle class="target" {place} r="11"/>'
                f'<circle class="point" {place} r="{radius}"/><title>{escape(visible(about))}</title></a>'
            )
        )
    parts.append(Markup("</g>"))
    return Markup("").join(parts)


def _mean(point: StepPoint) -> float:
    return 0.0 if point.mean is None else point.mean


def _path(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _spread(low: float, high: float) -> tuple[float, float]:
    if high - low > 1e-9 * max(1.0, abs(low), abs(high)):
        return low, high
    room = max(0.5, abs(low) * 0.05)
    return low - room, high + room


def _ticks(low: float, high: float, about: int) -> list[float]:
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    gap = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / gap - 1e-9)
    return [round(index * gap, 12) for index in range(first, math.floor(high / gap + 1e-9) + 1)]
