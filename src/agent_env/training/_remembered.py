"""What was rendered before and may be asked for again: rollouts of a group start alike, and make many of the same calls."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

__all__ = ["Remembered", "key_of"]

T = TypeVar("T")

_MOST_TOKENS = 500_000
"""Some 20 MB."""


def key_of(messages: Iterable[Mapping[str, object]]) -> Hashable | None:
    """What tells messages of text from others; None where there is more than text: an image is not told by what it prints as."""
    key: list[str] = []
    for message in messages:
        key.append("")
        for name, value in message.items():
            if not isinstance(value, str):
                return None
            key += (name, value)
    return tuple(key)


class Remembered(Generic[T]):
    """The values that were asked for last, up to so many tokens in all. Threads may share it."""

    def __init__(self, most_tokens: int = _MOST_TOKENS) -> None:
        self._most_tokens = most_tokens
        self._values: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._tokens = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable | None) -> T | None:
        """Return what is known for a key; nothing for None."""
        with self._lock:
            found = None if key is None else self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: Hashable | None, value: T, *, tokens: int) -> None:
        """Remember a value, and forget what nobody has asked for longest. One that is larger than all is not kept."""
        if key is None or tokens > self._most_tokens:
            return
        with self._lock:
            _, before = self._values.pop(key, (None, 0))
            self._values[key] = (value, tokens)
            self._tokens += tokens - before
            while self._tokens > self._most_tokens:
                self._tokens -= self._values.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._values.clear()
            self._tokens = 0
