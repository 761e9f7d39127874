"""Servers that all episodes of a process share: one for each event loop and what a bundle says of it.

It is started by the first episode, and ends a while after the last one has left it, or with the loop. One that something
went wrong with is left to the episodes that are in it, and the next episode starts another.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from agent_env._loop_local import LoopLocal
from agent_env.envs._mcp_connection import Connection

__all__ = ["shared_connection"]

LINGER_S = 10.0
"""Seconds that a server stays with no episode in it: the next one is often not far."""


class _Shared:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.users = 0
        self.ending: asyncio.TimerHandle | None = None


_servers = LoopLocal("agent_env_shared_mcp_servers", dict[str, _Shared])


@asynccontextmanager
async def shared_connection(key: str, make: Callable[[], Connection]) -> AsyncGenerator[Connection]:
    """Use the connection that all with the same key share.

    Args:
        key: What is said of the server, so that another server has another.
        make: Makes the connection, where there is none that is fit for use.

    Raises:
        EnvBrokenError: When it cannot be opened.
    """
    servers = _servers.get()
    shared = servers.get(key)
    if shared is None or not shared.connection.is_fit:
        shared = servers[key] = _Shared(make())
    if shared.ending is not None:
        shared.ending.cancel()
        shared.ending = None
    shared.users += 1
    try:
        await shared.connection.opened()
        yield shared.connection
    finally:
        shared.users -= 1
        if not shared.users:
            await _left(servers, key, shared)


async def _left(servers: dict[str, _Shared], key: str, shared: _Shared) -> None:
    """Nobody is in it any more."""

    def end() -> None:
        if servers.get(key) is shared:
            del servers[key]
        shared.connection.stop()

    if shared.connection.is_fit and shared.connection.is_open:
        shared.ending = asyncio.get_running_loop().call_later(LINGER_S, end)
    else:
        end()
        await shared.connection.close()
