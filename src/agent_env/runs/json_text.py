"""JSON values as text for people: laid out, in a line, and what typing has changed in a call's arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from agent_env.runs.visible import one_line

__all__ = ["Retyped", "brief", "pretty", "retyped"]

_LINE_CHARS = 100
_LAID_OUT_CHARS = 1_000_000
"""A longer value is written in one line: laying it out takes seconds, and nobody reads it whole."""
_RETYPED = 50
"""Differences that are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retyped:
    """A value in a call's arguments that the tool's schema made another of than the text says."""

    path: str
    """Where: names and positions with dots between."""
    written: str | None
    """What the model wrote, as JSON; None where it wrote nothing."""
    typed: str | None
    """What the tool got, as JSON; None where it got nothing."""


def pretty(value: object, indent: int = 0) -> str:
    """Write JSON for people: what fits in a line is in one."""
    try:
        line = json.dumps(value, ensure_ascii=False)
        if len(line) > _LAID_OUT_CHARS:
            return line
        return _laid_out(value, line, indent)
    except RecursionError:
        return "… (nested too deeply to be shown)"


def brief(arguments: object, limit: int = 200) -> str:
    """Write a call's arguments in one line of at most `limit` characters, as `name=value` where they have names."""
    if arguments is None:
        return ""
    if not isinstance(arguments, Mapping):
        return one_line(_line(arguments), limit)
    parts: list[str] = []
    chars = 0
    for name, value in cast("Mapping[object, object]", arguments).items():
        parts.append(f"{name}={_line(value)}")
        chars += len(parts[-1])
        if chars > limit:
            break
    return one_line(", ".join(parts), limit)


def retyped(raw: str, arguments: object) -> tuple[Retyped, ...]:
    """Say where a call's arguments differ from the JSON that the model wrote; nothing where that is no JSON object."""
    if len(raw) > _LAID_OUT_CHARS:
        return ()
    found: list[Retyped] = []
    try:
        written: object = json.loads(raw)
        if isinstance(written, Mapping) and isinstance(arguments, Mapping):
            _compare("", cast("object", written), cast("object", arguments), found)
    except (ValueError, RecursionError):
        return ()
    return tuple(found)


def _laid_out(value: object, line: str, indent: int) -> str:
    if len(line) + indent <= _LINE_CHARS or not value or not isinstance(value, Mapping | list):
        return line
    inner = " " * (indent + 2)
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        parts = [f"{inner}{json.dumps(key, ensure_ascii=False)}: {_inside(item, indent + 2)}" for key, item in items]
        opening, closing = "{", "}"
    else:
        parts = [inner + _inside(item, indent + 2) for item in cast("Sequence[object]", value)]
        opening, closing = "[", "]"
    return "\n".join([opening, ",\n".join(parts), " " * indent + closing])


def _inside(value: object, indent: int) -> str:
    return _laid_out(value, json.dumps(value, ensure_ascii=False), indent)


def _line(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "…"


def _compare(path: str, written: object, typed: object, found: list[Retyped]) -> None:
    if len(found) >= _RETYPED or json.dumps(written) == json.dumps(typed):
        return
    inside = f"{path}." if path else ""
    if isinstance(written, Mapping) and isinstance(typed, Mapping):
        one, other = cast("Mapping[str, Any]", written), cast("Mapping[str, Any]", typed)
        for name in dict.fromkeys((*one, *other)):
            _compare_parts(f"{inside}{name}", one, other, name, found)
        return
    if isinstance(written, list) and isinstance(typed, list):
        items, others = cast("list[Any]", written), cast("list[Any]", typed)
        if len(items) == len(others):
            for at, (left, right) in enumerate(zip(items, others, strict=True)):
                _compare(f"{inside}{at}", left, right, found)
            return
    found.append(Retyped(path=path, written=_line(cast("object", written)), typed=_line(cast("object", typed))))


def _compare_parts(
    path: str, written: Mapping[str, Any], typed: Mapping[str, Any], name: str, found: list[Retyped]
) -> None:
    if name in written and name in typed:
        _compare(path, written[name], typed[name], found)
    elif len(found) < _RETYPED:
        found.append(
            Retyped(
                path=path,
                written=_line(written[name]) if name in written else None,
                typed=_line(typed[name]) if name in typed else None,
            )
        )
