"""What is different between two states, as values that a run keeps: a JSON Pointer, what was there, and what is there now.

In a change a state's values are JSON. What is none in a state becomes: a tuple a list; a `Decimal` a number; a date or a
time its ISO text; a `Path`, a `UUID` its text; an enum member its value; a key that is no text the text that `json.dumps`
makes of it. Bytes, a number that is not finite and a text with half of a surrogate pair become an object with one key:
`{"$base64": ...}`, `{"$number": "NaN"}`, `{"$text": ...}`. Anything else (a set, an object) cannot be compared.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, time
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, Final, cast
from uuid import UUID

from agent_env._wording import clipped
from agent_env.errors import UniverseError
from agent_env.universe.containers import Flat, Large, Packed

__all__ = [
    "MISSING",
    "Change",
    "ChangeLimits",
    "Missing",
    "StateChanges",
    "TooLargeError",
    "Values",
    "from_pointer",
    "key_text",
    "opened",
    "to_pointer",
    "unmarked",
]


class Missing(Enum):
    """The kind of `MISSING`."""

    MISSING = "missing"

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


MISSING: Final = Missing.MISSING
"""What a change has as `before` where nothing was, and as `after` where nothing is."""

_SHOWN_CHARS = 200
_MOST_BITS = 8192
"""A longer whole number is one that Python refuses to write in decimals, and so to put into JSON."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference."""

    path: str
    """Where: a JSON Pointer (RFC 6901), such as `/orders/#W1/status`; empty for the whole state."""
    before: Any
    """A JSON value, or `MISSING`."""
    after: Any
    """A JSON value, or `MISSING`."""

    def __str__(self) -> str:
        where = self.path or "the whole state"
        if self.before is MISSING:
            return f"{where} is new: {_shown(self.after)}"
        if self.after is MISSING:
            return f"{where} is gone: {_shown(self.before)}"
        return f"{where}: {_shown(self.before)} is now {_shown(self.after)}"

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON object. `before` or `after` is not in it where there is nothing."""
        sides = {"before": self.before, "after": self.after}
        return {"path": self.path} | {name: side for name, side in sides.items() if side is not MISSING}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Change:
        """Return what `as_json` was made from."""
        return cls(value["path"], value.get("before", MISSING), value.get("after", MISSING))


def _shown(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):  # deeper than json goes
        text = "..."
    return clipped(text, _SHOWN_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeLimits:
    """How much of a difference is kept; what is beyond is counted."""

    changes: int = 10_000
    """Changes."""
    total_bytes: int = 4_000_000
    """Bytes, about, that the values of all changes take as JSON."""
    file_bytes: int = 256_000
    """Bytes up to which a file's content is kept; of a longer one its size and SHA-256 are."""
    depth: int = 200
    """How deeply a value may be nested to be kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChanges:
    """What is different between two states, bounded."""

    changes: tuple[Change, ...] = ()
    """In the order of their paths."""
    left_out: int = 0
    """Changes beyond a limit."""
    not_kept: tuple[str, ...] = ()
    """Paths of the changes in which a file is told by its size and hash only."""

    @property
    def is_whole(self) -> bool:
        """Whether these are all changes, with all that is needed to make them again."""
        return not (self.left_out or self.not_kept)

    def __bool__(self) -> bool:
        return bool(self.changes or self.left_out)

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        found: dict[str, Any] = {"changes": [change.as_json() for change in self.changes]}
        if self.left_out:
            found["left_out"] = self.left_out
        if self.not_kept:
            found["not_kept"] = list(self.not_kept)
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StateChanges:
        """Return what `as_json` was made from."""
        return cls(
            changes=tuple(map(Change.from_json, value["changes"])),
            left_out=value.get("left_out", 0),
            not_kept=tuple(value.get("not_kept", ())),
        )


def to_pointer(segments: Iterable[str]) -> str:
    """Return a JSON Pointer."""
    return "".join("/" + segment.replace("~", "~0").replace("/", "~1") for segment in segments)


def from_pointer(pointer: str) -> tuple[str, ...]:
    """Return a JSON Pointer's segments.

    Raises:
        ValueError: When it is none.
    """
    if not pointer:
        return ()
    if not pointer.startswith("/"):
        raise ValueError(f"'{pointer}' is no JSON Pointer: it starts with a slash, as in '/orders/#W1'")
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/"))


# The base classes see the storage itself.
_dict: Any = dict
_list: Any = list


def opened(value: Any) -> Any:
    """Return a dict or list to look into, without touching any child; anything else as the JSON value it stands for.

    A child may be `Untouched`: two that are the same object are equal, and `opened` looks into one.

    Raises:
        TypeError: When it is nothing that a JSON state may hold.
    """
    kind = cast("Any", type)(value)
    if kind is dict or kind is list or kind in _SCALARS:
        return value
    if kind is Packed:
        return value.private()
    if kind is Large or kind is Flat:
        return value.entries
    if isinstance(value, (dict, list)):
        return cast("Any", value)
    if isinstance(value, tuple):
        return _list(value)
    if isinstance(value, Mapping):
        return _dict(value)
    return _scalar(value)


_SCALARS: Final = frozenset({str, int, float, bool, type(None), bytes})


def _scalar(value: Any) -> Any:
    """Return a text, number, truth value, None or bytes for what stands for one.

    Raises:
        TypeError: When nothing of these stands for it.
    """
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Enum):
        return _scalar(value.value)
    for kind in (str, int, float):
        if isinstance(value, kind):
            return cast("Any", kind)(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(cast("Any", value))
    if isinstance(value, Decimal):
        return int(value) if value.is_finite() and value == value.to_integral_value() else float(value)
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (PurePath, UUID)):
        return str(value)
    raise TypeError(f"{_article(type(value).__name__)} is no JSON value")


def _article(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def key_text(key: Any) -> str:
    """Return a dict's key as the text that it is in JSON; half of a surrogate pair is written as an escape.

    Raises:
        TypeError: When it is none.
    """
    key = key if type(key) is str else _scalar(key)
    if isinstance(key, bytes):
        raise TypeError("a key of bytes is no JSON key")
    text = key if isinstance(key, str) else json.dumps(key)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


class TooLargeError(Exception):
    """A value does not fit the limits."""


class Values:
    """Makes the JSON of values that changes keep, and counts what it takes."""

    def __init__(self, limits: ChangeLimits) -> None:
        self._depth = limits.depth
        self.left_bytes = limits.total_bytes

    def kept(self, value: Any) -> Any:
        """Return a value as plain JSON.

        Raises:
            TooLargeError: When it takes more than is left, or is nested too deeply.
            UniverseError: When something in it is no JSON value.
        """
        holder: list[Any] = [value]
        todo: list[_Place] = [(holder, 0, 0)]
        left_bytes = self.left_bytes
        while todo:
            left_bytes -= self._keep(todo.pop(), todo, left_bytes)
        self.left_bytes = left_bytes
        return holder[0]

    def _keep(self, place: _Place, todo: list[_Place], left_bytes: int) -> int:
        """Put the JSON of the value at a place there, but for its children's, and return about how many bytes it takes."""
        holder, key, depth = place
        inner = _opened(holder[key])
        if not (_is_a(dict, inner) or _is_a(list, inner)):
            holder[key] = _marked(inner)
            taken = len(inner) if isinstance(inner, (str, bytes)) else 8
        else:
            taken = 2 + 6 * len(inner)
            if depth >= self._depth or taken > left_bytes:
                raise TooLargeError
            made = _spread(inner)
            is_dict = _is_a(dict, made)
            taken += sum(map(len, made)) if is_dict else 0
            holder[key] = {"$object": made} if is_dict and _is_marked(made) else made
            todo += [(made, at, depth + 1) for at in (made if is_dict else range(len(made)))]
        if taken > left_bytes:
            raise TooLargeError
        return taken


_Place = tuple[Any, Any, int]
"""A dict or list, a key in it, and how deep it is."""


def _is_a(kind: type, value: object) -> bool:
    return isinstance(value, kind)


def _opened(value: Any) -> Any:
    try:
        return opened(value)
    except TypeError as exc:
        raise UniverseError(f"the state cannot be compared: {exc}") from None


def _spread(inner: Any) -> Any:
    """Return a plain dict or list of the same children, untouched ones among them."""
    if isinstance(inner, list):
        return _list(_list.__iter__(inner))
    try:
        made = {key_text(key): child for key, child in _dict.items(inner)}
    except TypeError as exc:
        raise UniverseError(f"the state cannot be compared: {exc}") from None
    if len(made) != len(inner):
        raise UniverseError("the state cannot be compared: two keys of a dict are the same text in JSON")
    return made


def _is_marked(value: Mapping[str, Any]) -> bool:
    return len(value) == 1 and next(iter(value)).startswith("$")


def _marked(value: Any) -> Any:
    """Return a scalar as JSON that any store can hold."""
    if isinstance(value, bytes):
        return {"$base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$number": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise TooLargeError
    if isinstance(value, str) and not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return {"$text": json.dumps(value)}
    return value


def unmarked(value: Any) -> Any:
    """Return the value that a change keeps as JSON: bytes are bytes again."""
    holder: list[Any] = [value]
    todo: list[tuple[Any, Any]] = [(holder, 0)]
    while todo:
        target, key = todo.pop()
        inner = target[key]
        if isinstance(inner, Mapping):
            made: Any = dict(cast("Mapping[str, Any]", inner))
            if _is_marked(made):
                (mark, content) = next(iter(made.items()))
                made = _MARKS[mark](content) if mark in _MARKS else made
            target[key] = made
            if isinstance(made, dict):
                todo += [(made, at) for at in cast("Any", made)]
        elif isinstance(inner, (list, tuple)):
            target[key] = made = _list(inner)
            todo += [(made, at) for at in range(len(made))]
    return holder[0]


_MARKS: Final[Mapping[str, Any]] = {
    "$base64": base64.b64decode,
    "$number": float,
    "$text": json.loads,
    "$object": dict,
}
