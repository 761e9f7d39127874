"""A verifier's time: what counts against its timeout, and who waits for whom."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_env import EpisodeView, FailureKind
from agent_env.bundle import PythonRef
from agent_env.verify.function import call_function
from agent_env.verify.own_time import OwnTime
from agent_env.verify.step_failed import StepFailedError

MakeFunction = Callable[[str], PythonRef]


@pytest.fixture
def make_function(tmp_path: Path) -> MakeFunction:
    """Makes a verifier of a bundle, by its file's text."""
    made: list[PythonRef] = []

    def make(code: str) -> PythonRef:
        path = Path(f"v{len(made)}.py")
        (tmp_path / path).write_text(code)
        made.append(PythonRef(tmp_path, path, "score"))
        return made[-1]

    return make


def view() -> EpisodeView:
    """An episode in which nothing happened."""
    return EpisodeView(
        task_id="a", params={}, tags=(), messages=[], replies=[], calls=[], scores={}, cut=None, states={}
    )


async def scored(target: PythonRef, timeout_s: float | None = None) -> object:
    """What the verifier returns."""
    return await call_function(
        target,
        view(),
        timeout_s=timeout_s,
        raised=FailureKind.VERIFIER_RAISED,
        timed_out=FailureKind.VERIFIER_TIMEOUT,
    )


def hold_the_loop(seconds: float) -> None:
    """What no code should do on an event loop."""
    time.sleep(seconds)


async def test_a_loop_that_is_held_up_uses_up_nobody_s_time() -> None:
    """What came while the loop was held up is taken in, however long that was."""
    answered = asyncio.get_running_loop().create_future()
    clock = OwnTime(0.1)
    async with clock:
        threading.Timer(0.02, answered.get_loop().call_soon_threadsafe, [answered.set_result, 1]).start()
        hold_the_loop(0.3)
        assert await answered == 1
        hold_the_loop(0.3)
        await asyncio.sleep(0)
    assert not clock.expired()


async def test_time_that_is_used_up_is_used_up() -> None:
    """Although the loop is late now and then."""
    clock = OwnTime(0.05)
    with pytest.raises(TimeoutError):  # noqa: PT012 - it is the block that has the time
        async with clock:
            while True:
                await asyncio.sleep(0.001)
                hold_the_loop(0.002)
    assert clock.expired()


async def test_a_timeout_of_the_block_s_own_is_told_apart() -> None:
    """It says nothing of the time that the block has."""
    clock = OwnTime(5)
    with pytest.raises(TimeoutError, match="mine"):
        async with clock:
            raise TimeoutError("mine")
    assert not clock.expired()


async def test_without_a_bound_no_time_passes() -> None:
    """None is no bound; 0 is none left."""
    async with OwnTime(None):
        await asyncio.sleep(0.01)
    with pytest.raises(TimeoutError):
        async with OwnTime(0):
            await asyncio.sleep(1)


async def test_a_cancellation_is_no_timeout() -> None:
    """It comes out as what it is."""
    clock = OwnTime(5)

    async def wait() -> None:
        async with clock:
            await asyncio.sleep(5)

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not clock.expired()


@pytest.mark.parametrize(
    "code",
    [
        "import time\ndef score(episode):\n    time.sleep(0.05)\n    return 1\n",
        "import asyncio\nasync def score(episode):\n    await asyncio.sleep(0.05)\n    return 1\n",
    ],
)
async def test_a_verifier_is_scored_that_ended_while_the_loop_was_held_up(
    make_function: MakeFunction, code: str
) -> None:
    """In time by its own clock, whatever the other tasks of the loop do."""
    scoring = asyncio.create_task(scored(make_function(code), timeout_s=0.5))
    for _ in range(3):
        await asyncio.sleep(0.01)
        hold_the_loop(0.4)
    assert await scoring == 1


STUCK = (
    "import threading\nGO = threading.Event()\nSTARTED = threading.Semaphore(0)\n"
    "def score(episode):\n    STARTED.release()\n    GO.wait()\n    return 1\n"
)


async def started(target: PythonRef, count: int) -> None:
    """Wait until so many calls of a verifier are under way."""
    semaphore = vars(target.module())["STARTED"]
    for _ in range(count):
        assert await asyncio.to_thread(semaphore.acquire, timeout=50)


async def test_verifiers_that_wait_let_others_through(make_function: MakeFunction) -> None:
    """However many of them wait for something, the next one is scored."""
    stuck, quick = make_function(STUCK), make_function("def score(episode):\n    return 2\n")
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(scored(stuck)) for _ in range(9)]
        try:
            await started(stuck, 4)
            assert await scored(quick) == 2
            await started(stuck, 5)
        finally:
            vars(stuck.module())["GO"].set()
    assert [task.result() for task in tasks] == [1] * 9


async def test_async_verifiers_wait_for_nobody(make_function: MakeFunction) -> None:
    """They need no thread."""
    code = (
        "import asyncio\nSTARTED = []\n"
        "async def score(episode):\n    STARTED.append(1)\n"
        "    while len(STARTED) < 50:\n        await asyncio.sleep(0)\n    return 1\n"
    )
    target = make_function(code)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(scored(target)) for _ in range(50)]
    assert [task.result() for task in tasks] == [1] * 50


async def test_a_verifier_that_is_given_up_keeps_no_place(make_function: MakeFunction) -> None:
    """Those that took too long or were cancelled make way at once."""
    stuck, quick = make_function(STUCK), make_function("def score(episode):\n    return 2\n")
    try:
        under_way = 0
        while under_way < 8:  # on a busy machine one may be given up before its thread has come to call it
            with pytest.raises(StepFailedError, match=r"v0.py:score took longer than 0.01 s"):
                await scored(stuck, timeout_s=0.01)
            under_way += vars(stuck.module())["STARTED"].acquire(blocking=False)
        cancelled = [asyncio.create_task(scored(stuck)) for _ in range(4)]
        await started(stuck, 4)
        for task in cancelled:
            task.cancel()
        assert await scored(quick) == 2
    finally:
        vars(stuck.module())["GO"].set()
    assert all(task.cancelled() for task in cancelled)
