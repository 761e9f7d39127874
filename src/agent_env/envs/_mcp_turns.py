"""Turns to start a server: of many that are to start at once, a few do at a time.

A start is work for the machine's cores, half a second of it where the server imports an SDK. When all start at once, none is
ready before all are, each later than its own step may take, and the loop waits for them, too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from agent_env._loop_local import LoopLocal

__all__ = ["AT_ONCE", "turn_to_start"]

AT_ONCE = 2 * (os.cpu_count() or 1)
TURN_S = 1.0
"""Seconds after which the next may start all the same: what takes longer often waits itself."""

_turns = LoopLocal("agent_env_mcp_turns", lambda: asyncio.Semaphore(AT_ONCE))


@asynccontextmanager
async def turn_to_start() -> AsyncGenerator[Callable[[], None]]:
    """Wait for a turn.

    Yields:
        What ends the turn, when the server has started; else a time ends it, or the end of the block.
    """
    turns = _turns.get()
    await turns.acquire()
    is_over = False

    def end() -> None:
        nonlocal is_over
        if not is_over:
            is_over = True
            turns.release()

    late = asyncio.get_running_loop().call_later(TURN_S, end)
    try:
        yield end
    finally:
        late.cancel()
        end()
