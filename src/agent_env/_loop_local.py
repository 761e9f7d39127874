"""What each event loop has for itself: a limiter, a semaphore, a table of what is under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from anyio.lowlevel import RunVar

__all__ = ["LoopLocal"]

T = TypeVar("T")


class LoopLocal(Generic[T]):
    """A value for each event loop, made when it is asked for first."""

    __slots__ = ("_make", "_values")

    def __init__(self, name: str, make: Callable[[], T]) -> None:
        self._values: RunVar[T] = RunVar(name)
        self._make = make

    def get(self) -> T:
        """Return the value of the loop that is running."""
        try:
            return self._values.get()
        except LookupError:
            made = self._make()
            self._values.set(made)
            return made
