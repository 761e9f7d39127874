"""That nothing of a sandbox is left, whichever way it comes to its end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from agent_env.bundle import SandboxProvider, SandboxSpec
from agent_env.errors import EnvBrokenError
from agent_env.sandbox import Sandbox, SandboxLostError, open_sandbox, sweep_sandboxes

OpenBox = Callable[..., AbstractAsyncContextManager[Sandbox]]
Saying = Callable[[str], Sequence[int]]
WaitGone = Callable[[str], None]

HOLD = """
import asyncio, os, sys
from pathlib import Path
from agent_env.bundle import SandboxProvider, SandboxSpec
from agent_env.sandbox import open_sandbox

async def main(provider, mark):
    spec = SandboxSpec(provider=SandboxProvider(provider))
    async with open_sandbox(spec) as box:
        await box.run(f"sleep {mark}.1 & (setsid nohup sleep {mark}.2 >/dev/null 2>&1 &) ; touch made; sleep 0.1")
        running = asyncio.create_task(box.run(f"sleep {mark}.3"))
        while (await box.run(f"pgrep -fx 'sleep {mark}.3'")).exit_code:
            pass
        FORK
        print("ready", flush=True)
        await running


END
"""
"""A process that has a sandbox open, with a command that runs, one in the background and a daemon."""

RUN = "asyncio.run(main(*sys.argv[1:]))"

CLOSE = """
loop = asyncio.new_event_loop()
task = loop.create_task(main(*sys.argv[1:]))
real = print
def print(word, flush):
    real(word, flush=flush)
    loop.stop()
loop.run_forever()
loop.close()
del task
import gc
gc.collect()
real("closed", flush=True)
sys.stdin.read()
"""
"""Closes the loop under the sandbox, and goes on."""


def left_files(place: Path) -> list[str]:
    """What is left of sandboxes in a place, beside what all processes share."""
    base = place / f"agent-env-sandboxes-{os.geteuid()}"
    return [path.name for path in base.iterdir() if not path.name.startswith(".new-")] if base.exists() else []


def holding(provider: str, mark: str, *, fork: str = "") -> subprocess.Popen[bytes]:
    """Start a process that holds a sandbox, and wait until it does."""
    script = HOLD.replace("END", RUN).replace("FORK", fork or "pass")
    command = [sys.executable, "-c", script, provider, mark]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


@pytest.fixture(params=["bwrap", "host"])
def provider(request: pytest.FixtureRequest) -> str:
    """Each kind of sandbox whose first process is ours."""
    request.getfixturevalue("open_jail" if request.param == "bwrap" else "open_host")
    return request.param


def own_threads() -> list[str]:
    """The threads that are there, but for those that anyio keeps for the next work."""
    return sorted(thread.name for thread in threading.enumerate() if "AnyIO" not in thread.name)


async def test_an_end_and_an_exception_leave_nothing(open_box: OpenBox, place: Path, saying: Saying, mark: str) -> None:
    """By the time the block is left: no process, no file, no descriptor, no thread, no task."""
    async with open_box() as box:  # what is made once for the process
        await box.run("true")
    before = (sorted(os.listdir("/proc/self/fd")), len(asyncio.all_tasks()), own_threads())

    async def raising() -> None:
        async with open_box() as box:
            await box.run(f"sleep {mark}.1 & (setsid nohup sleep {mark}.2 >/dev/null 2>&1 &) ; touch made; sleep 0.1")
            assert saying(f"sleep\0{mark}.1")
            assert saying(f"sleep\0{mark}.2")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await raising()
    assert saying(f"sleep\0{mark}.") == []
    assert left_files(place) == []
    assert (sorted(os.listdir("/proc/self/fd")), len(asyncio.all_tasks()), own_threads()) == before


async def test_a_lost_sandbox_says_so_and_leaves_nothing(
    open_box: OpenBox, place: Path, saying: Saying, wait_gone: WaitGone, mark: str
) -> None:
    """The first process killed from outside, by the kernel say: the call under way and those after it raise."""
    async with open_box() as box:
        await box.run(f"sleep {mark}.1 & (setsid nohup sleep {mark}.2 >/dev/null 2>&1 &) ; sleep 0.1")
        running = asyncio.create_task(box.run(f"sleep {mark}.3"))
        while not saying(f"sleep\0{mark}.3"):
            await box.run("true")
        first = _first_process(saying(f"sleep\0{mark}.3")[0])
        os.kill(first, signal.SIGKILL)
        with pytest.raises(SandboxLostError, match="the sandbox is lost: "):
            await running
        for calling in (box.run("true"), box.read_file("x"), box.write_file("x", "x")):
            with pytest.raises(EnvBrokenError):
                await calling
    wait_gone(f"sleep\0{mark}.")
    assert left_files(place) == []


def _first_process(pid: int) -> int:
    """Return the process that started a sandbox's command."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("step", range(0, 60, 3))
async def test_cancelled_at_any_await_it_leaves_nothing(
    open_box: OpenBox, place: Path, wait_gone: WaitGone, mark: str, step: int
) -> None:
    """Also while it is being opened, and cancelled again while it is being closed."""

    async def use() -> None:
        async with open_box() as box:
            await box.run(f"sleep {mark}.1 & sleep {mark}.2")

    using = asyncio.create_task(use())
    for _ in range(step):
        await asyncio.sleep(0.001)
    using.cancel()
    await asyncio.sleep(0)
    using.cancel()
    with pytest.raises(asyncio.CancelledError):
        await using
    # What a second cancellation has cut off ends by itself.
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()} or {asyncio.create_task(asyncio.sleep(0))})
    wait_gone(f"sleep\0{mark}.")
    assert left_files(place) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_killed_process_leaves_no_process_and_the_next_removes_its_files(
    provider: str, place: Path, wait_gone: WaitGone, mark: str, number: signal.Signals
) -> None:
    """However it is told to end."""
    process = holding(provider, mark)
    with process:
        assert len(left_files(place)) == 1
        process.send_signal(number)
    wait_gone(f"sleep\0{mark}.")
    asyncio.run(_open_and_close())
    assert left_files(place) == []


async def _open_and_close() -> None:
    async with open_sandbox(SandboxSpec(provider=SandboxProvider.HOST)):
        pass
    await sweep_sandboxes()


def test_a_process_that_was_forked_does_not_keep_a_sandbox(provider: str, wait_gone: WaitGone, mark: str) -> None:
    """It has our end of the socket too, and goes on when we are killed."""
    fork = "if os.fork() == 0: os.close(1), os.close(2), sys.stdin.read(), os._exit(0)"
    process = holding(provider, mark, fork=fork)
    with process:
        process.kill()
        process.wait()
        wait_gone(f"sleep\0{mark}.")


def test_a_loop_that_is_closed_under_it_leaves_no_process(provider: str, wait_gone: WaitGone, mark: str) -> None:
    """Nobody leaves the block: the socket goes with the loop."""
    script = HOLD.replace("END", CLOSE).replace("FORK", "pass")
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script, provider, mark],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert process.stdout.readline() == b"closed\n"
        wait_gone(f"sleep\0{mark}.")
        assert process.poll() is None


async def test_opening_sweeps_what_is_left_and_nothing_that_is_in_use(place: Path, open_host: OpenBox) -> None:
    """Of dead processes with this user, at the first sandbox of a process; folders in the making are left for a while."""
    async with open_host():
        base = place / f"agent-env-sandboxes-{os.geteuid()}"
        (used,) = left_files(place)
        dead, making = base / "1-00000000", base / ".new-1-00000000"
        for folder in (dead, making):
            (folder / "1" / "work").mkdir(parents=True)
            (folder / "lock").touch()
        (dead / "1" / "work").chmod(0)
        assert await sweep_sandboxes() == 1
        assert left_files(place) == [used]
        assert making.exists()
    assert left_files(place) == []


async def test_sandboxes_of_a_process_share_a_folder_that_goes_with_the_last(place: Path, open_host: OpenBox) -> None:
    """In whatever order they are closed."""
    async with open_host():
        async with open_host():
            assert len(left_files(place)) == 1
        assert len(left_files(place)) == 1
    assert left_files(place) == []
