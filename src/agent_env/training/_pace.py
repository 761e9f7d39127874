"""One piece of work a pass of the event loop: what is ready at the same time is not all done before anything else.

A loop runs all that is ready before it looks at anything else. Where hundreds of rollouts are ready at once, as when they
start together or a model server answers a batch, each with a millisecond of rendering to do, whatever else the loop has to
do would wait for all of them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from weakref import WeakKeyDictionary

__all__ = ["paced"]


class _Pace:
    """Who may go on in which pass of one loop: first come, first served."""

    __slots__ = ("_is_taken", "_waiting")

    def __init__(self) -> None:
        self._is_taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_taken:
            self._is_taken = True
            loop.call_soon(self._next, loop)
            return
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting.append(waiter)
        await waiter

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the next one go on, in the loop's next pass; this is called again in it."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():  # else whoever waited was cancelled
                waiter.set_result(None)
                loop.call_soon(self._next, loop)
                return
        self._is_taken = False


_by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _Pace] = WeakKeyDictionary()


async def paced() -> None:
    """Wait for a pass of the loop in which nobody else goes on from here; the caller then does a millisecond's work.

    Returns at once when nobody has gone on in this pass. Nothing has to be given back.
    """
    loop = asyncio.get_running_loop()
    pace = _by_loop.get(loop)
    if pace is None:
        pace = _by_loop[loop] = _Pace()
    await pace.wait(loop)
