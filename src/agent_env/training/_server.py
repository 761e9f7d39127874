"""The server that a job trains on: whether one is there, and a clear line when it is not or refuses.

Not while a job is under way on a server of the user's: a break in the connection is the SDK's to wait out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from typing import Any

from agent_env.engine import EngineHandle
from agent_env.errors import EngineError, TrainingError, UsageError

__all__ = ["check_server", "ending_with", "explained"]

CHECK_ENGINE_EVERY_S = 0.5
CONNECT_S = 10.0


async def check_server(base_url: str) -> None:
    """Ask the server for anything at all: the SDK asks one that is not there for minutes, and says nothing.

    Raises:
        UsageError: When `base_url` is no address of a server.
        TrainingError: When nothing answers there.
    """
    httpx: Any = import_module("httpx")  # tinker brings it

    try:
        async with httpx.AsyncClient(timeout=CONNECT_S) as client:
            await client.get(f"{base_url.rstrip('/')}/api/v1/healthz")
    except (httpx.UnsupportedProtocol, httpx.InvalidURL) as exc:
        raise UsageError(f"--base-url {base_url}: {exc}; write http://HOST:PORT or https://HOST") from exc
    except (httpx.ConnectError, httpx.ConnectTimeout) as exc:
        raise TrainingError(
            f"{base_url}: no server answers there ({exc or 'timed out'}); start it, or correct --base-url"
        ) from exc
    except httpx.HTTPError:
        return  # something is there; what it says is the SDK's to judge


@asynccontextmanager
async def ending_with(engine: EngineHandle) -> AsyncGenerator[None]:
    """Leave the block with an error soon after the engine's process has ended: the SDK would ask it on and on.

    Raises:
        EngineError: When the engine ended, instead of what the block raised.
    """
    inside = asyncio.current_task()
    assert inside is not None
    before = inside.cancelling()
    ended = False

    async def watch() -> None:
        nonlocal ended
        while engine.exit_code() is None:  # noqa: ASYNC110 - a process, which only polling works for on every system
            await asyncio.sleep(CHECK_ENGINE_EVERY_S)
        # Ctrl-C in a terminal reaches the engine too: then the block is being left already.
        if inside.cancelling() == before:
            ended = True
            inside.cancel()

    watcher = asyncio.create_task(watch(), name="whether the engine is there")
    try:
        yield
    except asyncio.CancelledError as exc:
        if ended and inside.uncancel() <= before:
            raise _ended(engine) from exc
        raise
    except Exception as exc:  # whatever the SDK made of a server that went
        if engine.exit_code() is not None:
            raise _ended(engine) from exc
        raise
    finally:
        watcher.cancel()
        await asyncio.wait([watcher])


def _ended(engine: EngineHandle) -> EngineError:
    return EngineError(
        f"the embedded engine ended with code {engine.exit_code()} ({engine.log_path} may say why);"
        " the same command goes on from the last checkpoint"
    )


@contextmanager
def explained(server: str) -> Generator[None]:
    """Turn what the SDK and the cookbook raise on purpose into one clear line.

    Raises:
        TrainingError: For each of them, naming the `server` where it is what refused.
    """
    tinker: Any = import_module("tinker")
    cookbook: Any = import_module("tinker_cookbook.exceptions")
    try:
        yield
    except tinker.TinkerError as exc:
        raise TrainingError(f"{server}: {_one_line(exc)}; the same command goes on where it stopped") from exc
    except cookbook.TinkerCookbookError as exc:
        raise TrainingError(f"tinker-cookbook: {_one_line(exc)}") from exc


def _one_line(exc: Exception) -> str:
    return " ".join(str(exc).split()) or type(exc).__name__
