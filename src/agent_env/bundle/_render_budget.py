"""What writing one text from a template may cost: counted as steps, so that it is the same on every machine.

Covers what is counted, and how large a value may be. Where a template does its work is in `_metered_templates.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

__all__ = [
    "CHARS_A_STEP",
    "MAX_CHARS",
    "MAX_STEPS",
    "VIEWS",
    "TooMuchError",
    "counted",
    "held",
    "quadratic",
    "rendering",
    "spend",
    "weigh",
]

MAX_STEPS = 2_000_000
"""A step is a part of the template that is gone through, an item that a loop or a filter goes through, or some characters
that are handled in one go: 0.1 to 0.3 microseconds."""
CHARS_A_STEP = 16
MAX_CHARS = 10_000_000
"""How long a text may be that a template makes, and how large a list with all that is in it, written out."""
_COMPARISONS_A_STEP = 64
_MAX_DEPTH = 200
_SOME = 20
"""For how many characters a number or an object counts."""
_LEAVES = frozenset((float, bool, type(None)))
_EMPTY: dict[str, str] = {}
VIEWS = (type(_EMPTY.keys()), type(_EMPTY.values()), type(_EMPTY.items()))
"""What a mapping is gone through with."""

_steps_left: ContextVar[list[int]] = ContextVar("agent_env_template_steps")


class TooMuchError(Exception):
    """A template does too much. `what` goes on after "the template", `fix` says what to write instead."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix


@contextmanager
def rendering(steps: int = MAX_STEPS) -> Generator[None]:
    """Count what one text takes, from its template's first parse to its last character."""
    token = _steps_left.set([steps])
    try:
        yield
    finally:
        _steps_left.reset(token)


def spend(steps: int) -> None:
    """Take steps off what is left.

    Raises:
        TooMuchError: When no more are left.
    """
    left = _steps_left.get()
    left[0] -= steps
    if left[0] < 0:
        raise TooMuchError(f"does more than {MAX_STEPS:,} steps", "have it loop over less")


def held(size: int) -> None:
    """Check the size of something that is about to be made, and pay for it.

    Raises:
        TooMuchError: When it is too large.
    """
    if size > MAX_CHARS:
        raise TooMuchError(f"makes a text or a list of more than {MAX_CHARS:,} characters", "have it make less")
    spend(size // CHARS_A_STEP + 1)


def quadratic(one: int, other: int) -> None:
    """Pay for comparing each character of one text with each of another."""
    spend(one * other // _COMPARISONS_A_STEP)


def counted(iterable: Iterable[Any], cost: int = 1) -> Iterator[Any]:
    """Go through something, and pay for each item."""
    return _counted(iter(iterable), cost)


def _counted(items: Iterator[Any], cost: int) -> Iterator[Any]:
    for item in items:
        spend(cost)
        yield item


def weigh(value: Any) -> int:
    """Return how many characters a value would be written out, and pay for looking.

    Raises:
        TooMuchError: When it is too large, or too deep.
    """
    if isinstance(value, str):
        held(len(value))
        return len(value)
    if type(value) in _LEAVES:
        return _SOME
    size = 0
    level: Collection[Any] = (value,)
    for _ in range(_MAX_DEPTH):
        spend(2 * len(level))
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                size += len(item) + 2
            elif isinstance(item, list | tuple):
                below += cast("Iterable[Any]", item)
            elif type(item) in _LEAVES:
                size += _SOME
            else:
                size += _with_inside(item, below)
            if size + len(below) > MAX_CHARS:
                held(size + len(below))
        if not below:
            held(size)
            return size
        size += 2 * len(below)
        level = below
    raise TooMuchError(f"makes lists in lists, more than {_MAX_DEPTH} deep", "have it make them flatter")


def _with_inside(item: object, inside: list[Any]) -> int:
    """Return what a value weighs that may hold others, without them, and add those to `inside`."""
    if isinstance(item, int):
        return item.bit_length() // 3 + 1
    if isinstance(item, Mapping):
        inside += cast("Mapping[Any, Any]", item)
        inside += cast("Mapping[Any, Any]", item).values()
    elif isinstance(item, (set, frozenset, *VIEWS)):
        inside += cast("Iterable[Any]", item)
    else:
        return _SOME
    return 0
