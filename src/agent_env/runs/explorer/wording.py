"""Numbers, times and names as a page says them to people."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

__all__ = [
    "MINUS",
    "ago",
    "clock",
    "count",
    "duration",
    "moment",
    "number",
    "percent",
    "plural",
    "short_count",
    "short_number",
    "signed",
    "since",
    "tally",
]

MINUS = "\u2212"
NONE = "\u2013"
"""What stands where there is no number."""
_NOISE = 1e-9
"""What is nearer to zero comes from rounding, as in the standard error of equal rewards."""
_LARGE = 1e7
"""From here on a number is written with its power of ten."""


def number(value: float | None) -> str:
    """A reward or score: three decimals, none where it is large."""
    if value is None:
        return NONE
    if abs(value) < _NOISE:
        value = 0.0
    if 1000 <= abs(value) < _LARGE:
        return f"{value:,.0f}".replace("-", MINUS).replace(",", "\u202f")
    if value != 0 and not 0.001 <= abs(value) < 1000:
        return f"{value:.3g}".replace("-", MINUS)
    text = f"{value:.3f}"
    return "0.000" if text == "-0.000" else text.replace("-", MINUS)


def signed(value: float) -> str:
    """A difference of rewards."""
    text = number(value)
    return text if value < 0 or text in {"0.000", NONE} else f"+{text}"


def short_number(value: float) -> str:
    """A reward where there is little room: two decimals, none where it is large."""
    if abs(value) < _NOISE:
        return "0.00"
    if 100 <= abs(value) < _LARGE:
        return f"{value:.0f}".replace("-", MINUS)
    if not 0.01 <= abs(value) < 100:
        return f"{value:.2g}".replace("-", MINUS)
    return f"{value:.2f}".replace("-", MINUS)


def count(n: int) -> str:
    """How many: digits in groups of three."""
    return f"{n:,}".replace(",", "\u202f")  # a narrow space, as groups of digits are told apart in print


def short_count(value: float) -> str:
    """About how many, where there is little room: `1.2k`, `34M`."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 0.9995:
            return f"{value / size:.3g}{unit}".replace("-", MINUS)
    return f"{value:.3g}".replace("-", MINUS)


def percent(share: float) -> str:
    """A share of 1 in hundredths; what is there at all is never said to be 0."""
    hundredths = 100 * share
    if 0 < hundredths < 0.1:
        return "<\u202f0.1\u202f%"
    if 99.9 < hundredths < 100:
        return ">\u202f99.9\u202f%"
    return f"{hundredths:.0f}\u202f%" if hundredths == round(hundredths) else f"{hundredths:.1f}\u202f%"


def duration(seconds: float) -> str:
    """How long."""
    if 0 < seconds < 0.0005:
        return "<\u202f1\u202fms"
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f}\u202fms"
    if seconds < 59.95:
        return f"{seconds:.1f}\u202fs"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}\u202fmin {whole % 60}\u202fs"
    return f"{whole // 3600}\u202fh {whole % 3600 // 60}\u202fmin"


def since(seconds: float) -> str:
    """How long after the start: `+1.2 s`, and `+0 ms` at once."""
    return f"+{duration(0.0 if seconds < 0.0005 else seconds)}"


def clock(seconds: float) -> str:
    """How long, on an axis."""
    if 0 < abs(seconds) < 0.1:
        return f"{seconds * 1000:.3g}\u202fms"
    if abs(seconds) < 60 or seconds % 1:
        return f"{seconds:.3g}\u202fs"
    if seconds % 60:
        return f"{seconds:.0f}\u202fs"
    return f"{seconds / 60:.0f}\u202fmin" if seconds < 3600 or seconds % 3600 else f"{seconds / 3600:.0f}\u202fh"


def ago(at_s: float, now_s: float) -> str:
    """How long ago."""
    seconds = max(0.0, now_s - at_s)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f}\u202f{unit} ago"
    return "just now" if seconds < 5 else f"{seconds:.0f}\u202fs ago"


def moment(at_s: float) -> str:
    """When, by the clock of the machine that shows it."""
    try:
        return datetime.fromtimestamp(at_s).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")
    except (ValueError, OverflowError, OSError):  # a time that no clock shows, from a file of an older version
        return NONE


def plural(n: int, one: str, many: str | None = None) -> str:
    """`1 run`, `3 runs`."""
    return f"{count(n)} {one if n == 1 else many or one + 's'}"


def tally(kinds: Mapping[str, int]) -> str:
    """`2 mcp died, 1 verifier raised`."""
    return ", ".join(f"{count(n)} {kind.replace('_', ' ')}" for kind, n in kinds.items())
