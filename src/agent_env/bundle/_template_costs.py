"""What the filters, tests, methods and operators of templates cost, by what they are given: paid before they do anything."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

from agent_env.bundle._render_budget import CHARS_A_STEP, MAX_CHARS, VIEWS, TooMuchError, held, quadratic, spend, weigh

__all__ = ["checked", "length_of", "owner_of", "pay_call", "pay_filter", "pay_operation", "pay_test", "texts_in"]

_MAX_BITS = 20_000
"""How large a whole number may be: Python writes out numbers of up to 4,300 digits."""
_MAX_PRECISION = 1_000
_SHALLOW = frozenset(
    (
        *("attr", "batch", "count", "d", "default", "first", "items", "last", "length", "list", "map", "random"),
        *("reject", "rejectattr", "reverse", "select", "selectattr", "slice"),
    )
)
"""Filters that do not look into the items of what they are given."""
_SLOW = {"pprint": 20, "title": 1, "truncate": 1, "urlencode": 1, "wordcount": 1, "wordwrap": 2}
"""Filters that take long for a character: the steps for one."""
_COMPARING = frozenset(
    (
        *("!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le", "lessthan", "lt"),
        "ne",
    )
)
_PADDING = frozenset(("center", "expandtabs", "ljust", "rjust", "zfill"))
_TRIMMING = frozenset(("lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip"))
"""They compare each character with each of those they are given."""
_BRACES = re.compile(r"\{[^{}]*:([^{}]*)(\{?)")
_PERCENTS = re.compile(r"%(?:\([^)%]{0,100}\))?[^a-zA-Z%*]*(\*?)")
_NUMBER = re.compile(r"[0-9]+")
_CALL_STEPS = 20


def pay_test(name: str, args: tuple[Any, ...], named: tuple[Any, ...]) -> None:
    """Pay for `x is name(...)`."""
    spend(1)
    if name in _COMPARING:
        weigh([*args, *named])


def pay_filter(name: str, args: tuple[Any, ...], named: tuple[Any, ...]) -> None:
    """Pay for `x|name(...)`."""
    value, others = (args[0] if args else None), (*args[1:], *named)
    if name in _SHALLOW:
        spend((1 + length_of(value)) * (1 + texts_in(others) // CHARS_A_STEP))
        size = 0
    else:
        size = weigh(value)
        spend(size * _SLOW.get(name, 0))
    grows = _GROWING.get(name)
    if grows is not None:
        grows(value, size, others)


def _pay_wrapping(value: Any, size: int, others: tuple[Any, ...]) -> None:
    longest = max(map(len, str(value).split()), default=0)  # which is cut again and again
    quadratic(longest, longest // max(1, _widths(others)))
    held(size * (1 + texts_in(others)))


def _pay_sum(value: Any, size: int, others: tuple[Any, ...]) -> None:
    is_of_lists = any(isinstance(other, list | tuple | str) for other in others)
    spend(length_of(value) * (size if is_of_lists else 1))


_GROWING: Mapping[str, Callable[[Any, int, tuple[Any, ...]], object]] = {
    "batch": lambda value, size, others: held(_widths(others)),
    "center": lambda value, size, others: held(size + _widths(others)),
    "format": lambda value, size, others: _pay_formatting(str(value), others, "%"),
    "indent": lambda value, size, others: held(
        size + (str(value).count("\n") + 1) * (_widths(others) + texts_in(others))
    ),
    "join": lambda value, size, others: held(size + (length_of(value) + 1) * texts_in(others)),
    "replace": lambda value, size, others: _pay_replacing(str(value), others),
    "round": lambda value, size, others: _widths(others, most=_MAX_PRECISION),
    "slice": lambda value, size, others: held(_widths(others)),
    "striptags": lambda value, size, others: quadratic(size, str(value).count("<")),
    "sum": _pay_sum,
    "tojson": lambda value, size, others: held(size * (1 + _widths(others))),
    "trim": lambda value, size, others: quadratic(size, texts_in(others)),
    "wordwrap": _pay_wrapping,
}
"""Filters that may make much of little, or take long for it; called with the value, its size, and the arguments."""


def pay_call(function: object, args: tuple[Any, ...], named: tuple[Any, ...]) -> None:
    """Pay for `function(...)`: what a method of a text or a list may make of it."""
    spend(_CALL_STEPS)
    owner, name = owner_of(function), getattr(function, "__name__", None)
    others = (*args, *named)
    if isinstance(owner, str):
        _pay_text_method(owner, str(name), others)
    elif isinstance(owner, list | tuple | Mapping) and name in ("count", "index", "copy"):
        weigh(cast("object", owner))


def _pay_text_method(owner: str, name: str, others: tuple[Any, ...]) -> None:
    match name:
        case "startswith" | "endswith":
            spend(1)
        case "replace":
            _pay_replacing(owner, others)
        case "join":
            held(weigh(others) + len(owner) * sum(map(length_of, others)))
        case "translate":
            held(len(owner) * (1 + weigh(others)))
        case "format" | "format_map":
            _pay_formatting(owner, others, "{")
        case "expandtabs":
            held(len(owner) * (1 + _widths(others)))
        case _ if name in _PADDING:
            held(len(owner) + _widths(others))
        case _ if name in _TRIMMING:
            held(len(owner))
            quadratic(len(owner), texts_in(others))
        case _:
            held(len(owner))


def owner_of(function: object) -> object:
    """Return what a method is of; None where it is no method."""
    method = getattr(function, "__wrapped__", function)  # the sandbox wraps those that format a text
    return getattr(method, "__self__", None)


def pay_operation(operator: str, left: Any, right: Any) -> None:
    """Pay for `left operator right`, of `+`, `*`, `**` and `%`."""
    spend(1)
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() + right.bit_length()
        _check_bits({"**": left.bit_length() * max(right, 0), "%": 0}.get(operator, bits))
    elif operator == "+":
        held(length_of(left) + length_of(right))
    elif operator == "*":
        value, times = (right, left) if isinstance(left, int) else (left, right)
        if isinstance(times, int) and length_of(value):
            held(weigh(value) * max(times, 0))
    elif operator == "%" and isinstance(left, str):
        _pay_formatting(left, (right,), "%")


def checked(value: object) -> object:
    """Check what came of a filter or a call, and return it."""
    if isinstance(value, int):
        _check_bits(value.bit_length())
    else:
        held(length_of(value))
    return value


def length_of(value: Any) -> int:
    """Return how many characters or items something has; 0 where that cannot be told."""
    return len(cast("list[Any]", value)) if isinstance(value, (str, list, tuple, dict, range, *VIEWS)) else 0


def texts_in(values: Iterable[Any]) -> int:
    """Return how many characters the texts among some values have."""
    return sum(len(value) for value in values if isinstance(value, str))


def _check_bits(bits: int) -> None:
    if bits > _MAX_BITS:
        raise TooMuchError(f"makes a number of more than {_MAX_BITS:,} bits", "have it calculate with smaller numbers")


def _widths(values: Iterable[Any], *, most: int = MAX_CHARS) -> int:
    widths = [value for value in values if isinstance(value, int)]
    if any(abs(width) > most for width in widths):
        raise TooMuchError(f"asks for a width or precision of more than {most:,}", "write a smaller one")
    return sum(max(0, width) for width in widths)


def _pay_replacing(text: str, others: tuple[Any, ...]) -> None:
    lengths = [len(other) for other in others if isinstance(other, str)] or [0]
    times = len(text) // max(1, min(lengths)) + 1
    held(len(text) + times * max(lengths))


def _pay_formatting(text: str, values: tuple[Any, ...], mark: str) -> None:
    held(len(text))
    fields = [found.groups() for found in _BRACES.finditer(text)] if mark == "{" else []
    fields += [(found[0], found[1]) for found in _PERCENTS.finditer(text)] if mark == "%" else []
    if any(taken for _, taken in fields):
        raise TooMuchError("takes the width of a format from a value", "write the width in the format itself")
    numbers = (number for spec, _ in fields for number in _NUMBER.findall(spec))
    widths = sum(_widths([int(number[:9])]) for number in numbers)
    held(len(text) + widths + text.count(mark) * weigh(values))
