"""What a model is told of arguments that do not fit: a line for each parameter, with what was expected and what was got.

Bounded, whatever the arguments are: so many lines, so many characters in each. What does not fit is found elsewhere, by a
tool's types (`arguments.py`) or by its JSON Schema (`parameter_check.py`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from agent_env._wording import clipped, in_line
from agent_env.bundle import closest

__all__ = [
    "LINE_CHARS",
    "MAX_FORMS",
    "MAX_LINES",
    "Fault",
    "fault_lines",
    "first_lines",
    "listed",
    "short",
    "shown",
    "unknown_parameters",
]

_SHOWN_CHARS = 60
"""How much of a value is repeated to the model."""
_PER_PARAMETER = 3
"""How many places inside one parameter are named."""
MAX_LINES = 10
"""How many parameters are named, and how many of the values that one might have."""
LINE_CHARS = 500
_NAME_CHARS = 100
_LISTED_NAMES = 30
_GUESSED = 3
"""For how many unknown names the nearest known one is looked for: that takes the longest of all."""
_GUESSED_FROM = 50
MAX_FORMS = 10
"""How many ways of being right are said of one place."""
_ENCODER = json.JSONEncoder(ensure_ascii=True, default=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that does not fit."""

    place: Sequence[str | int]
    """Where in the arguments; empty where a parameter is missing."""
    missing: Sequence[str] = ()
    """Names that are not there; where there are none, something else was expected."""
    expected: str = ""
    value: Any = None
    """What was got."""
    key: str | None = None
    """A key at the place that there may not be."""
    known: str = ""
    """The keys that there may be."""

    @property
    def parameter(self) -> str:
        """The parameter that it is in."""
        return str(self.place[0]) if self.place else self.missing[0]


def fault_lines(faults: Iterable[Fault], *, notes: Mapping[str, str] | None = None, are_all: bool = True) -> list[str]:
    """A line for each parameter that does not fit.

    Args:
        faults: What does not fit.
        notes: What else to say of a parameter.
        are_all: Whether there are no more of them than these.
    """
    by_parameter: dict[str, dict[tuple[str | int, ...], list[Fault]]] = {}
    for fault in faults:
        by_parameter.setdefault(fault.parameter, {}).setdefault(tuple(fault.place), []).append(fault)
    lines: list[str] = []
    for name, places in islice(by_parameter.items(), MAX_LINES):
        parts = [_said(place, found) for place, found in islice(places.items(), _PER_PARAMETER)]
        if more := len(places) - len(parts):
            parts.append(f"and {more:,} more" if are_all else "and more")
        note = f" ({notes[name]})" if notes and name in notes else ""
        lines.append("; ".join(parts) + note)
    return [*lines, *(f"{name}: does not fit" for name in islice(by_parameter, MAX_LINES, None))]


def _said(place: Sequence[str | int], faults: Sequence[Fault]) -> str:
    others = [fault for fault in faults if not fault.missing]
    if not others:
        missing = list(dict.fromkeys(name for fault in faults for name in fault.missing))
        return f"{_path_text(place)}: missing {listed(missing)}" if place else f"{short(missing[0])}: missing"
    first = others[0]
    if first.key is not None:
        return f"{_path_text((*place, first.key))}: expected {first.expected}, known: {first.known}"
    expected = dict.fromkeys(fault.expected for fault in others)
    return f"{_path_text(place)}: expected {' or '.join(islice(expected, MAX_FORMS))}, got {shown(first.value)}"


def unknown_parameters(names: Sequence[str], parameters: Sequence[str]) -> list[str]:
    """A line for each name that is no parameter: which one may be meant, or which there are."""
    lines: list[str] = []
    known = listed(parameters) or "it has none"
    for name in names:
        may_guess = len(lines) < _GUESSED and len(name) <= _NAME_CHARS
        near = closest(name, parameters[:_GUESSED_FROM]) if may_guess else None
        fix = f"did you mean {near}?" if near else f"known: {known}"
        lines.append(f"{short(name)}: there is no such parameter, {fix}")
    return lines


def first_lines(lines: Sequence[str]) -> list[str]:
    """The first of the lines, none of them long, and how many more there are."""
    first = [clipped(line, LINE_CHARS) for line in lines[:MAX_LINES]]
    more = len(lines) - len(first)
    return [*first, f"and {more:,} more"] if more else first


def short(text: str) -> str:
    """A name, or a pattern, as it is repeated to the model: the start of it, when it is long, and in one line."""
    return clipped(in_line(text[: _NAME_CHARS + 1]), _NAME_CHARS)


def listed(names: Sequence[str]) -> str:
    """Names with commas between them; of many, the first and how many more there are."""
    text = ", ".join(short(name) for name in names[:_LISTED_NAMES])
    more = len(names) - _LISTED_NAMES
    return f"{text} and {more:,} more" if more > 0 else text


def _path_text(place: Sequence[str | int]) -> str:
    """A place in the arguments, as a model would write it: `rooms[2].name`."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{short(part)}" if text else short(part)
    return text


def shown(value: Any) -> str:
    """A value as it is repeated to the model: the start of it, when it is long."""
    text = ""
    for part in _ENCODER.iterencode(value):
        text += part
        if len(text) > _SHOWN_CHARS:
            break
    return clipped(text, _SHOWN_CHARS)
