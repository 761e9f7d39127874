"""Telling what is raised to stop us from what code raises itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator

import pytest

from agent_env._cancellation import stops_us


class Forever:
    """Waits for what does not come."""

    def __await__(self) -> Generator[None, None, None]:
        while True:
            yield


async def told(code: Callable[[], Awaitable[object]], said: list[bool]) -> None:
    """Run code, and note of what it raises whether it stops us."""
    task = asyncio.current_task()
    try:
        await code()
    except BaseException as exc:  # noqa: BLE001 - what is tested
        said.append(stops_us(exc, task))


async def forever() -> None:
    """As a tool that waits."""
    await Forever()


@pytest.mark.parametrize("exc", [asyncio.CancelledError(), GeneratorExit(), SystemExit(1), ValueError()])
async def test_what_code_raises_itself_does_not_stop_us(exc: BaseException) -> None:
    """Nobody has cancelled the task or closed the coroutine."""

    async def raises() -> None:
        raise exc

    said: list[bool] = []
    await told(raises, said)
    assert said == [False]


async def test_a_cancellation_that_was_asked_for_stops_us() -> None:
    """Also where it arrives in the midst of the code."""
    said: list[bool] = []
    task = asyncio.create_task(told(forever, said))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert said == [True]


async def test_a_coroutine_that_is_closed_is_stopped() -> None:
    """By another task, or by none."""
    said: list[bool] = []

    async def close() -> None:
        running.close()

    running = told(forever, said)
    running.send(None)
    await asyncio.create_task(close())
    running = told(forever, said)
    running.send(None)
    await asyncio.to_thread(running.close)
    assert said == [True, True]


async def test_ctrl_c_stops_us_in_the_main_thread_only() -> None:
    """Python raises it nowhere else."""
    task = asyncio.current_task()
    assert stops_us(KeyboardInterrupt(), task)
    assert not await asyncio.to_thread(stops_us, KeyboardInterrupt(), task)
