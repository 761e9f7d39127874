"""JSON as text for people: laid out, in a line, and what typing has changed in a call's arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from agent_env.runs.visible import one_line

__all__ = ["Retyped", "brief", "pretty", "relaid", "retyped"]

_LINE_CHARS = 100
_LAID_OUT_CHARS = 1_000_000
"""A longer value is written in one line: laying it out takes seconds, and nobody reads it whole."""
_RELAID_CHARS = 8_000
_DEEPEST = 50
_RETYPED = 50
"""Differences that are told."""

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s\[\]{},:"]+|[\[\]{}]')


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


def relaid(text: str) -> str:
    """Lay out a text that is a JSON object or list: each name, number and text in it stays as it is written.

    Empty where it is something else, is long, or fits in a line.
    """
    if not _LINE_CHARS < len(text) <= _RELAID_CHARS or text[:1] not in {"{", "["}:
        return ""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return ""
    tokens = (found[0] for found in _TOKEN.finditer(text))
    node = _node(next(tokens), tokens, 0)
    laid_out = "" if node is None else _node_text(node, 0)
    return laid_out if len(laid_out) <= _RELAID_CHARS else ""


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


@dataclass(frozen=True, slots=True)
class _Node:
    """A list or object as it is written."""

    opening: str
    children: list[tuple[str, _Node | str]]
    """Of each the name, with quotes, which is empty in a list."""

    @property
    def closing(self) -> str:
        return "}" if self.opening == "{" else "]"

    def line(self) -> str:
        parts = (
            f"{name}: " * bool(name) + (child if isinstance(child, str) else child.line())
            for name, child in self.children
        )
        return self.opening + ", ".join(parts) + self.closing


def _node(token: str, tokens: Iterator[str], depth: int) -> _Node | None:
    """Read a list or object from its opening on; None where it is too deep."""
    if depth > _DEEPEST:
        return None
    node = _Node(token, [])
    while (token := next(tokens)) not in {"]", "}"}:
        name = ""
        if node.opening == "{":
            name, token = token, next(tokens)
        child: _Node | str | None = _node(token, tokens, depth + 1) if token in {"{", "["} else token
        if child is None:
            return None
        node.children.append((name, child))
    return node


def _node_text(node: _Node | str, indent: int) -> str:
    if isinstance(node, str):
        return node
    line = node.line()
    if len(line) + indent <= _LINE_CHARS or not node.children:
        return line
    inner = " " * (indent + 2)
    parts = [f"{inner}{f'{name}: ' if name else ''}{_node_text(child, indent + 2)}" for name, child in node.children]
    return "\n".join([node.opening, ",\n".join(parts), " " * indent + node.closing])


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
