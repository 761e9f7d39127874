"""A JSON value in the form that all private copies of it share."""

from __future__ import annotations

import marshal
import math
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_env.bundle.json_text import read_json as read_strictly
from agent_env.universe.containers import Flat, Large, Packed, Untouched

__all__ = ["FrozenJson", "freeze", "read_json"]

_PLAIN_BYTES = 64_000
"""A whole universe up to this size is copied as plain dicts and lists: it takes half a millisecond."""
_RECORD_BYTES = 8_000
"""A part up to this size is copied as a whole when it is touched, plain: it takes 50 microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenJson:
    """A JSON value that nobody writes to, and of which private copies are made."""

    root: Any
    """A number, a text, a truth value, None, or an `Untouched`."""
    strings: frozenset[str] = field(repr=False)
    """All strings in it, interned: kept here, so that every copy is given these and has none of its own."""

    def private(self) -> Any:
        """Return a private copy: plain, or with what is large as `UniverseDict` and `UniverseList`."""
        return self.root.private() if isinstance(self.root, Untouched) else self.root


def read_json(path: Path) -> FrozenJson:
    """Read a file with one JSON value.

    Raises:
        OSError: When it cannot be read.
        ValueError: When it is no JSON, or none that can be used: a number that is not finite, a key that is there twice.
    """
    text = path.read_text(encoding="utf-8-sig")
    value = read_strictly(text)
    return freeze(value, record_bytes=_RECORD_BYTES if len(text) > _PLAIN_BYTES else sys.maxsize)


def freeze(value: Any, *, record_bytes: int = _RECORD_BYTES) -> FrozenJson:
    """Make the shared form of a JSON value.

    Args:
        value: Plain dicts, lists, texts, finite numbers, truth values and None.
        record_bytes: Up to this size, about, a part is packed as a whole; a larger one is split up.

    Raises:
        ValueError: When a number in it is not finite, or it is nested too deeply.
    """
    strings = _Strings()
    stack: list[_Part] = []
    done: Any = None
    if _has_children(value):
        stack.append(_Part(value, None))
    elif isinstance(value, str):
        done = strings.kept(value)
    else:
        done = value
    while stack:
        inner = stack[-1].advance(strings)
        if inner is not None:
            stack.append(inner)
            continue
        part = stack.pop()
        done = part.closed(record_bytes)
        if stack:
            stack[-1].put(part.key, done, part.size)
    if _has_children(done):
        done = Packed(marshal.dumps(done))
    return FrozenJson(root=done, strings=frozenset(strings.all))


def _is_dict(value: object) -> bool:
    return isinstance(value, dict)


def _has_children(value: object) -> bool:
    return isinstance(value, (dict, list))


class _Strings:
    """The strings of a value, each of them once."""

    def __init__(self) -> None:
        self.all: set[str] = set()

    def kept(self, text: str) -> str:
        text = sys.intern(text)
        self.all.add(text)
        return text


class _Part:
    """A dict or list on the way: the children that are done, and about how many bytes they take."""

    __slots__ = ("children", "done", "has_inner", "key", "size")

    def __init__(self, source: Any, key: str | None) -> None:
        is_dict = _is_dict(source)
        self.key = key
        """Its own, in the dict that it is in."""
        self.children: Any = iter(source.items() if is_dict else source)
        self.done: Any = {} if is_dict else []
        self.size = 5
        self.has_inner = False

    def advance(self, strings: _Strings) -> _Part | None:
        """Take children in until there is one that has children itself; return that, or None at the end."""
        is_dict = _is_dict(self.done)
        for child in self.children:
            key = None
            if is_dict:
                key, child = strings.kept(child[0]), child[1]
            if _has_children(child):
                return _Part(child, key)
            if isinstance(child, str):
                child = strings.kept(child)
                self.put(key, child, 5 + len(child))
            else:
                if isinstance(child, float) and not math.isfinite(child):
                    raise ValueError("a number in it is too large")
                self.put(key, child, 9)
        return None

    def put(self, key: str | None, child: Any, size: int) -> None:
        self.size += size
        self.has_inner = self.has_inner or _has_children(child) or isinstance(child, Untouched)
        if key is None:
            self.done.append(child)
        else:
            self.size += 5 + len(key)
            self.done[key] = child

    def closed(self, record_bytes: int) -> Any:
        """Return it as it is while it is small, and as `Untouched` when it is large."""
        if self.size <= record_bytes:
            return self.done
        if not self.has_inner:
            return Flat(self.done)
        pairs: Any = self.done.items() if _is_dict(self.done) else enumerate(self.done)
        for key, child in list(pairs):
            if _has_children(child):
                self.done[key] = Packed(marshal.dumps(child))
        return Large(self.done)
