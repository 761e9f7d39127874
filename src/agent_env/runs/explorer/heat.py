"""The colours of rewards: from low to high, the same on every page."""

from __future__ import annotations

from markupsafe import Markup

from agent_env.runs.explorer.wording import number

__all__ = ["heat", "heat_key", "heat_span"]

_HEATS = 10
_NOISE = 1e-9
"""What a reward may be beside 0 and 1 by rounding, as a sum of weights that is 1.0000000000000002."""


def heat_span(low: float | None, high: float | None) -> tuple[float, float]:
    """What the colours span where these are the least and the greatest reward: 0 to 1, or those two where one is elsewhere."""
    if low is None or high is None or (low >= -_NOISE and high <= 1 + _NOISE):
        return 0.0, 1.0
    return low, high


def heat(value: float | None, low: float, high: float) -> str:
    """The class of a reward's colour: `heat-0` (low) to `heat-10` (high); none where the two are as good as one."""
    if value is None or high - low <= _NOISE * max(abs(low), abs(high)):
        return "heat-none"
    return f"heat-{round(_HEATS * min(1.0, max(0.0, (value - low) / (high - low))))}"


def heat_key(low: float, high: float) -> Markup:
    """What the colours say."""
    boxes = "".join(
        f'<rect class="heat-{step}" x="{step * 12}" y="0" width="12" height="12"/>' for step in range(_HEATS + 1)
    )
    label = f"colours from {number(low)} to {number(high)}"
    return Markup(
        f'<span class="heat-key"><span aria-hidden="true">{number(low)}</span>'
        f'<svg viewBox="0 0 132 12" width="132" height="12" role="img" aria-label="{label}">{boxes}</svg>'
        f'<span aria-hidden="true">{number(high)}</span></span>'
    )
