"""Long work in a thread that ends with whoever waits for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from anyio import to_thread

from agent_env._cleanup import wait_until_done

__all__ = ["StoppedError", "in_thread"]

T = TypeVar("T")

_STOP_S = 30.0
"""Seconds that the thread has to notice that it is to stop."""


class StoppedError(Exception):
    """Nobody waits for the work any more."""


async def in_thread(work: Callable[[Callable[[], None]], T], *, what: str) -> T:
    """Do work in a thread. Cancelled, it has the thread stop and waits for that: what it still did would have no owner.

    Args:
        work: Is given a function to call now and then, which raises `StoppedError` when the work is to stop.
        what: What the work is, as the start of the sentence in the log when it does not stop.
    """
    stop = threading.Event()

    def check() -> None:
        if stop.is_set():
            raise StoppedError

    working = asyncio.create_task(to_thread.run_sync(work, check), name=what)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        stop.set()
        await wait_until_done(working, grace_s=_STOP_S, what=what)
        if working.done() and not working.cancelled():
            working.exception()  # of no interest any more
        raise
