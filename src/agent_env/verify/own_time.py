"""A timeout that counts what a verifier takes itself: its clock stands still while others hold the event loop up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import TracebackType

__all__ = ["OwnTime", "within_own_time"]

_TICKS = 8
_SHORTEST_S, _LONGEST_S = 0.01, 0.5


class OwnTime:
    """Bounds a block as `asyncio.timeout` does, on a clock that is not moved by a loop that is late.

    A loop that was held up for a minute finds the timeout of a plain `asyncio.timeout` passed before it takes in the
    answer that came meanwhile. Here time passes in ticks, each of them counted for what it should have taken.

        clock = OwnTime(5.0)
        async with clock:
            ...

    The block raises `TimeoutError` when the time is up. It may raise one of its own too: `expired()` tells them apart.
    """

    __slots__ = ("_clock", "_handle", "_left_s", "_tick_s")

    def __init__(self, timeout_s: float | None) -> None:
        """Set the time; it passes in the block.

        Args:
            timeout_s: Seconds; None is no bound.
        """
        self._clock = asyncio.timeout(None)
        self._left_s = timeout_s
        self._tick_s = min(max((timeout_s or 0.0) / _TICKS, _SHORTEST_S), _LONGEST_S)
        self._handle: asyncio.TimerHandle | None = None

    def expired(self) -> bool:
        """Whether the time was up."""
        return self._clock.expired()

    async def __aenter__(self) -> OwnTime:
        await self._clock.__aenter__()
        self._tick()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._handle is not None:
            self._handle.cancel()
        return await self._clock.__aexit__(kind, exc, trace)

    def _tick(self) -> None:
        if self._left_s is None:
            return
        loop = asyncio.get_running_loop()
        if self._left_s > 0:
            step_s = min(self._tick_s, self._left_s)
            self._left_s -= step_s
            self._handle = loop.call_later(step_s, self._tick)
        else:
            # In the next pass of the loop, so that what is there by now is taken in before.
            self._clock.reschedule(loop.time())


@asynccontextmanager
async def within_own_time(timeout_s: float | None, too_long: Callable[[], Exception]) -> AsyncGenerator[None]:
    """Bound a block, and say so in one's own words.

    Args:
        timeout_s: Seconds; None is no bound.
        too_long: Makes what is raised when the time is up. A `TimeoutError` of the block's own comes out as it is.
    """
    clock = OwnTime(timeout_s)
    try:
        async with clock:
            yield
    except TimeoutError:
        if not clock.expired():
            raise
        raise too_long() from None
