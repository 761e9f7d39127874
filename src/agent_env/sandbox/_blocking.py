"""Blocking work of a sandbox, in a thread that nobody leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from anyio import to_thread

from agent_env._cleanup import wait_until_done

__all__ = ["in_thread"]

T = TypeVar("T")

_GRACE_S = 130.0


async def in_thread(function: Callable[[], T], *, what: str) -> T:
    """Run a function in a thread, and wait for its end also when this is cancelled: what follows builds on it.

    Args:
        function: Bounded in time by itself.
        what: What it does, for the log.
    """
    doing = asyncio.create_task(to_thread.run_sync(function), name=what)
    try:
        await wait_until_done(doing, grace_s=_GRACE_S, what=what)
    except asyncio.CancelledError:
        if doing.done() and not doing.cancelled():
            doing.exception()  # of no interest any more
        raise
    return await doing
