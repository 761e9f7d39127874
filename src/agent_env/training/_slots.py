"""Slots: how many episodes may be under way at once in a process, over training and evaluation together."""

from __future__ import annotations

import asyncio
from collections import deque
from weakref import WeakKeyDictionary

__all__ = ["Slot", "Slots", "any_taken", "slots_for"]


class Slot:
    """Permission for one episode to be under way. Giving it back twice is giving it back once."""

    __slots__ = ("_slots",)

    def __init__(self, slots: Slots | None) -> None:
        self._slots = slots

    def give_back(self) -> None:
        """Let the next one that waits have it."""
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.pass_on()


class Slots:
    """A bound on what is under way on one event loop; who waits longest is next. Not for threads."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def taken(self) -> int:
        """How many are taken."""
        return self._taken

    async def take(self) -> Slot:
        """Wait for a slot. Cancelled while it waits, it takes none."""
        if self._limit is None or self._taken < self._limit:
            self._taken += 1
            return Slot(self)
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was handed over in the same moment
                self.pass_on()
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise
        return Slot(self)

    def pass_on(self) -> None:
        """Hand a taken slot to the next that waits. Called by `Slot`."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._taken -= 1


_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, int | None], Slots]] = WeakKeyDictionary()


def slots_for(name: str, limit: int | None) -> Slots:
    """The slots that all group builders of one training share on the running loop.

    Args:
        name: Which training.
        limit: How many; None is no bound.
    """
    by_name = _by_loop.setdefault(asyncio.get_running_loop(), {})
    return by_name.setdefault((name, limit), Slots(limit))


def any_taken() -> bool:
    """Whether an episode of any training of this process is under way."""
    return any(slots.taken for by_name in list(_by_loop.values()) for slots in by_name.values())
