"""What every chart is drawn on: scales, axes with round numbers, and thinning that hides no step that stands out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

__all__ = ["Plot", "averaged", "axes", "path", "room_for", "svg", "thinned", "ticks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Where in a picture the values lie, and which they span."""

    width: int
    height: int
    left: int
    right: int = 12
    top: int = 10
    bottom: int = 38
    first: int
    """The least step that there is."""
    last: int
    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        """Where a step lies."""
        return self.left + (value - self.x_low) / (self.x_high - self.x_low) * (self.width - self.left - self.right)

    def y(self, value: float) -> float:
        """Where a value lies."""
        inner = self.height - self.top - self.bottom
        return self.height - self.bottom - (value - self.y_low) / (self.y_high - self.y_low) * inner

    @property
    def floor(self) -> int:
        """Where the plot ends below."""
        return self.height - self.bottom

    @property
    def end(self) -> int:
        """Where the plot ends on the right."""
        return self.width - self.right


def room_for(low: float, high: float) -> tuple[float, float]:
    """A span that has a length, also around a single value."""
    if high - low > 1e-9 * max(1.0, abs(low), abs(high)):
        return low, high
    room = max(0.5, abs(low) * 0.05)
    return low - room, high + room


def ticks(low: float, high: float, about: int, *, least: float = 0.0) -> list[float]:
    """Round numbers from `low` to `high`, `about` as many, at least `least` apart."""
    rough = max((high - low) / about, least)
    power = 10.0 ** math.floor(math.log10(rough))
    gap = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
    first = math.ceil(low / gap - 1e-9)
    return [round(index * gap, 12) for index in range(first, math.floor(high / gap + 1e-9) + 1)]


def axes(plot: Plot, *, label: str, says: Callable[[float], str]) -> list[str]:
    """Lines and numbers of both axes.

    Args:
        plot: What to draw on.
        label: What the values are; drawn along the axis of a large picture, empty where the caption says it.
        says: How a value is written.
    """
    is_large = plot.height > 240
    parts: list[str] = []
    for value in ticks(plot.y_low, plot.y_high, 5 if is_large else 4):
        y = plot.y(value)
        parts.append(
            f'<line class="grid-line" x1="{plot.left}" x2="{plot.end}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick" x="{plot.left - 7}" y="{y + 4:.1f}" text-anchor="end">{escape(says(value))}</text>'
        )
    parts += [
        f'<text class="tick" x="{plot.x(value):.1f}" y="{plot.floor + 16}" text-anchor="middle">{int(value)}</text>'
        for value in ticks(plot.x_low, plot.x_high, max(2, plot.width // 90), least=1.0)
        if plot.first <= value <= plot.last
    ]
    middle_y = (plot.top + plot.floor) / 2
    parts.append(
        f'<line class="axis" x1="{plot.left}" x2="{plot.end}" y1="{plot.floor}" y2="{plot.floor}"/>'
        f'<text class="label" x="{(plot.left + plot.end) / 2:.1f}" y="{plot.height - 5}" text-anchor="middle">'
        "training step</text>"
    )
    if label:
        parts.append(
            f'<text class="label" x="12" y="{middle_y}" text-anchor="middle" transform="rotate(-90 12 {middle_y})">'
            f"{escape(label)}</text>"
        )
    return parts


def thinned(values: Sequence[tuple[int, float]], most: int) -> list[int]:
    """Which of these points to draw: of each stretch the lowest and the highest, so that every dip stays.

    Args:
        values: Step and value, by step.
        most: About how many to keep.

    Returns:
        Their places, in order. The first and the last are always among them.
    """
    if len(values) <= most:
        return list(range(len(values)))
    only = [value for _, value in values]
    size = math.ceil(len(only) / max(1, most // 2))
    kept = {0, len(only) - 1}
    for start in range(0, len(only), size):
        stretch = only[start : start + size]
        kept |= {start + stretch.index(min(stretch)), start + stretch.index(max(stretch))}
    return sorted(kept)


def averaged(values: Sequence[tuple[int, float]], stretches: int) -> list[tuple[float, float]]:
    """The mean step and the mean value of each of about so many stretches."""
    size = math.ceil(len(values) / stretches)
    found: list[tuple[float, float]] = []
    for start in range(0, len(values), size):
        some = values[start : start + size]
        found.append((sum([step for step, _ in some]) / len(some), sum([value for _, value in some]) / len(some)))
    return found


def path(places: Sequence[tuple[float, float]]) -> str:
    """Corners, as SVG writes them."""
    return " ".join([f"{x:.1f},{y:.1f}" for x, y in places])


def svg(parts: Sequence[str], *, kind: str, width: int, height: int, label: str) -> Markup:
    """Parts that are safe as a picture that may hold links."""
    return Markup(
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="group" aria-label="{escape(label)}">'
        f"{''.join(parts)}</svg>"
    )
