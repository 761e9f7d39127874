"""One piece of work a pass of the loop."""

from __future__ import annotations

import asyncio

from agent_env.training._pace import paced


async def passes_of(count: int) -> list[int]:
    """In which pass of the loop each of `count` tasks that start together went on."""
    loop = asyncio.get_running_loop()
    passed = 0
    went_on: list[int] = []

    def next_pass() -> None:
        nonlocal passed
        passed += 1
        if len(went_on) < count:
            loop.call_soon(next_pass)

    async def work() -> None:
        await paced()
        went_on.append(passed)

    loop.call_soon(next_pass)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(work())
    return went_on


async def test_what_is_ready_at_once_goes_on_one_a_pass() -> None:
    """A hundred tasks go on in a hundred passes, in the order they came."""
    went_on = await passes_of(100)
    assert went_on == sorted(went_on)
    assert max(went_on.count(one) for one in went_on) == 1


async def test_whoever_is_alone_does_not_wait() -> None:
    """Alone it goes on in the pass it came in."""
    assert await passes_of(1) == [1]


async def test_whoever_is_cancelled_holds_nobody_up() -> None:
    """Tasks that are cancelled while they wait, or in the moment they may go on, leave the others their passes."""
    went_on: list[int] = []

    async def work(at: int) -> None:
        await paced()
        went_on.append(at)

    tasks = [asyncio.create_task(work(at)) for at in range(10)]
    await asyncio.sleep(0)
    for at in (1, 2, 5, 9):
        tasks[at].cancel()
        await asyncio.sleep(0)
    await asyncio.wait(tasks)
    assert went_on == [at for at in range(10) if not tasks[at].cancelled()]
    assert not tasks[8].cancelled()
    assert len(await passes_of(3)) == 3
