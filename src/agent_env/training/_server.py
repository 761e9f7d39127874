"""The server that a job trains on: whether one is there, and a clear line when it is not or refuses.

Not while a job is under way on a server of the user's: a break in the connection is the SDK's to wait out.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib import import_module
from typing import Any

from agent_env.engine import EngineHandle
from agent_env.errors import EngineError, TrainingError, UsageError

__all__ = ["check_server", "ending_with", "explained"]

CHECK_ENGINE_EVERY_S = 0.5
CONNECT_S = 10.0
HELD_UP_S = 5.0
"""How long the event loop may take to hear that the engine has ended."""
INTERRUPT_EVERY_S = 0.1
"""Two signals in one moment are one."""


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

    For the main thread: where the SDK holds the event loop up, as it does while it begins a session, it is interrupted.

    Raises:
        EngineError: When the engine ended, instead of what the block raised.
    """
    inside = asyncio.current_task()
    assert inside is not None
    before = inside.cancelling()
    watch = _Watch(engine, asyncio.get_running_loop(), inside)
    watch.start()
    try:
        yield
    except (asyncio.CancelledError, KeyboardInterrupt) as exc:
        # An interrupt that was raised in the block may leave it as the cancellation that asyncio's runner made of the first.
        if watch.has_interrupted:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            while inside.cancelling() > before:
                inside.uncancel()
            raise _ended(engine) from exc
        if isinstance(exc, asyncio.CancelledError) and watch.has_ended and inside.uncancel() <= before:
            raise _ended(engine) from exc
        raise
    except Exception as exc:  # whatever the SDK made of a server that went
        if engine.exit_code() is not None:
            raise _ended(engine) from exc
        raise
    finally:
        watch.is_over.set()


class _Watch(threading.Thread):
    """Waits for the end of an engine. A thread, because the event loop may be held up by whoever waits for the engine."""

    def __init__(self, engine: EngineHandle, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        super().__init__(name="whether the engine is there", daemon=True)
        self.is_over = threading.Event()
        self.has_ended = False
        """The task was cancelled because the engine had ended."""
        self.has_interrupted = False
        """The main thread was interrupted because it did not hear of that."""
        self._engine = engine
        self._loop = loop
        self._task = task
        self._before = task.cancelling()
        self._told = threading.Event()

    def run(self) -> None:
        while self._engine.exit_code() is None:
            if self.is_over.wait(CHECK_ENGINE_EVERY_S):
                return
        with suppress(RuntimeError):  # the loop is closed: the block was left in this moment
            self._loop.call_soon_threadsafe(self._cancel)
            if not self._told.wait(HELD_UP_S) and not self.is_over.is_set():
                self.has_interrupted = True
                for _ in range(2):  # asyncio's runner takes the first for a wish to be cancelled
                    # A real signal: `_thread.interrupt_main` does not wake a thread that waits for a lock.
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                    time.sleep(INTERRUPT_EVERY_S)

    def _cancel(self) -> None:
        self._told.set()
        # Ctrl-C in a terminal reaches the engine too: then the block is being left already.
        if not self.has_interrupted and self._task.cancelling() == self._before:
            self.has_ended = True
            self._task.cancel()


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
