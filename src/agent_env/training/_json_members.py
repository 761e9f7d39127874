"""A JSON object that a model wrote, taken apart without being read: the text of each of its members."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import cast

from agent_env._wording import clipped, in_line

__all__ = ["NoObjectError", "after_blanks", "members_of"]

_BLANK = re.compile(r"\s*")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SCALAR = re.compile(r"[^\s,\]}]+")
_INSIDE = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
"""A string that does not end goes on to the end, and not one from each quote in it."""


class NoObjectError(Exception):
    """A text is no JSON object; `name` is what it says under that key, for all that can be told."""

    def __init__(self, why: str, name: str = "") -> None:
        super().__init__(why)
        self.name = name


def after_blanks(text: str, at: int) -> int:
    """Where the blanks end that begin at a place, if any do."""
    found = _BLANK.match(text, at)
    return found.end() if found else at


def members_of(text: str) -> dict[str, str]:
    """The text of each member of a JSON object. What is inside of them is not checked, only where they end.

    Raises:
        NoObjectError: When the text is no object.
    """
    if not text.startswith("{"):
        raise NoObjectError("it is no JSON object")
    members: dict[str, str] = {}
    twice = ""
    at = after_blanks(text, 1)
    last = len(text) - 1
    if at == last and text[at] == "}":
        return members
    while True:
        key = _STRING.match(text, at)
        colon = after_blanks(text, key.end()) if key else at
        if key is None or text[colon : colon + 1] != ":":
            raise NoObjectError(f"no valid JSON, a key is missing at character {at + 1}", _named(members))
        start = after_blanks(text, colon + 1)
        end = _value_end(text, start)
        name = _decoded(key[0])
        if name in members:
            twice = key[0][:60]
        if end is None:
            what = f"the value of {in_line(key[0][:60])} does not end"
            raise NoObjectError(f"no valid JSON, {what}", _named(members))
        members[name] = text[start:end]
        at = after_blanks(text, end)
        if at == last and text[at] == "}":
            if twice:
                raise NoObjectError(f"the key {in_line(twice)} is written twice", _named(members))
            return members
        if text[at : at + 1] != ",":
            what = (
                "it is cut off" if at == len(text) else f"'{in_line(clipped(text[at : at + 31], 30))}' is not expected"
            )
            raise NoObjectError(f"no valid JSON, {what} at character {at + 1}", _named(members))
        at = after_blanks(text, at + 1)


def _value_end(text: str, start: int) -> int | None:
    if text[start : start + 1] == '"':
        found = _STRING.match(text, start)
        return found.end() if found else None
    if text[start : start + 1] not in ("{", "["):
        found = _SCALAR.match(text, start)
        return found.end() if found else None
    depth = 0
    for found in _INSIDE.finditer(text, start):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(found[0], 0)
        if depth == 0:
            return found.end()
    return None


def _decoded(quoted: str) -> str:
    try:
        return cast("str", json.loads(quoted))
    except ValueError:  # an escape that JSON does not have
        return quoted


def _named(members: Mapping[str, str]) -> str:
    return _decoded(members["name"]) if members.get("name", "").startswith('"') else ""
