"""No process of an MCP server is left, whatever ends it: its env, a failure, a cancellation, `kill -9` of AgentEnv."""

from __future__ import annotations

import asyncio
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest

from agent_env.bundle import McpSpec
from agent_env.envs import EnvSession
from agent_env.envs._mcp_turns import AT_ONCE
from agent_env.envs.mcp import USUAL_PATIENCE, Patience, open_mcp_env
from agent_env.errors import McpServerError

RAW = Path(__file__).with_name("mcp_servers") / "raw.py"
BRIEF = Patience(end_s=0.1, term_s=0.1, status_s=0.1)
"""For servers that end only when they are killed: however long they are waited for, the outcome is the same."""


class Marked:
    """A server whose processes can be told by a variable in their environment."""

    def __init__(self, *arguments: str, **fields: float) -> None:
        self.mark = uuid4().hex
        command = (sys.executable, "-S", str(RAW), *arguments)
        self.spec = McpSpec(command=command, environment={"MARK": self.mark}, **fields)

    def left(self) -> list[int]:
        """Processes that carry the mark."""
        found: list[int] = []
        for name in os.listdir("/proc"):
            with suppress(OSError):
                if name.isdigit() and f"MARK={self.mark}\0".encode() in Path("/proc", name, "environ").read_bytes():
                    found.append(int(name))
        return found


def are_there(pids: list[int]) -> list[int]:
    """Those of the processes that have not ended."""
    there: list[int] = []
    for pid in pids:
        with suppress(OSError):
            if Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] not in "ZX":
                there.append(pid)
    return there


def wait_for_end(pids: list[int]) -> None:
    """Wait until processes that are not ours have ended."""
    for pid in pids:
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                assert select.select([handle], [], [], 30)[0], f"process {pid} is still there"
            finally:
                os.close(handle)


@asynccontextmanager
async def opened(server: Marked, folder: Path, patience: Patience = USUAL_PATIENCE) -> AsyncGenerator[EnvSession]:
    """Open an env as an episode does."""
    async with open_mcp_env("shop", server.spec, folder=folder, params={}, task_id="day-1", patience=patience) as env:
        yield env


async def pids_of(env: EnvSession) -> list[int]:
    """The processes that a server names in its answer."""
    return [int(pid) for pid in (await env.call("act", {})).text.split()]


@pytest.mark.parametrize("how", ["", "stubborn"])
async def test_what_a_server_has_started_ends_with_its_env(tmp_path: Path, how: str) -> None:
    """A child, a grandchild, and one that has left the group and lost its parent; also when none heeds SIGTERM."""
    server = Marked("starts_others", how)
    async with opened(server, tmp_path, BRIEF) as env:
        pids = await pids_of(env)
        assert are_there(pids) == pids
        assert len(pids) == 4
    assert are_there(pids) == []
    assert server.left() == []


async def test_what_a_server_has_started_ends_with_the_server(tmp_path: Path) -> None:
    """The server has ended by itself; the env is still open."""
    server = Marked("starts_others_and_ends")
    async with opened(server, tmp_path) as env:
        pids = await pids_of(env)
        await asyncio.to_thread(wait_for_end, pids)
        with pytest.raises(McpServerError, match="ended by itself with exit code 7"):
            await env.call("act", {})
    assert server.left() == []


async def test_a_server_that_heeds_nothing_is_killed(tmp_path: Path) -> None:
    """It goes on after its input has ended, and ignores SIGTERM; it is waited for as long as any."""
    server = Marked("stays")
    async with opened(server, tmp_path) as env:
        pids = await pids_of(env)
    assert are_there(pids) == []
    assert server.left() == []


async def test_a_server_that_outlives_its_input_is_told_to_end_before_it_is_killed(tmp_path: Path) -> None:
    """SIGTERM comes when its time to end by itself is over, and it may still do what it has to."""
    patience = Patience(end_s=0.0, term_s=30.0)
    async with opened(Marked("ends_when_told"), tmp_path, patience):
        pass
    assert os.listdir(tmp_path) == ["told.txt"]


async def test_a_server_that_ends_in_its_time_is_not_told_to(tmp_path: Path) -> None:
    """The end of its input is all that it hears."""
    patience = Patience(end_s=30.0, term_s=0.0)
    async with opened(Marked("ends_when_told", "with_its_input"), tmp_path, patience):
        pass
    assert os.listdir(tmp_path) == ["ended.txt"]


@pytest.mark.parametrize("behaviour", ["floods_a_line", "floods_text", "hangs", "is_killed", "closes_stdout"])
async def test_nothing_is_left_of_a_server_that_failed(tmp_path: Path, behaviour: str) -> None:
    """Also of one that writes on and on, for it is read until it ends."""
    server = Marked(behaviour, call_timeout_s=0.3)
    async with opened(server, tmp_path, BRIEF) as env:
        with pytest.raises(McpServerError):
            await env.call("act", {})
    assert server.left() == []


async def play_on(server: Marked, folder: Path) -> None:
    """An episode that does not come to its end."""
    async with opened(server, folder) as env:
        await env.call("act", {})
        await asyncio.Event().wait()


async def test_nothing_is_left_after_a_cancellation_while_the_process_is_started(tmp_path: Path) -> None:
    """It is cancelled after each number of passes of the loop in which the process and its pipes come to be."""
    server = Marked("pid")
    for passes in range(16):
        task = asyncio.create_task(play_on(server, tmp_path))
        for _ in range(passes):
            await asyncio.sleep(0)
        await cancelled(task)
        assert server.left() == []


@pytest.mark.parametrize("behaviour", ["hangs", "hangs_at_start", "starts_others", "ends_at_start"])
async def test_nothing_is_left_after_a_cancellation_wherever_it_comes(tmp_path: Path, behaviour: str) -> None:
    """It is cancelled after some times, from the start to a call that hangs."""
    server = Marked(behaviour)
    for delay_s in (0.001, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15):
        task = asyncio.create_task(play_on(server, tmp_path))
        await asyncio.sleep(delay_s)
        await cancelled(task)
        assert server.left() == []


async def cancelled(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for it; it may have failed before."""
    task.cancel()
    with suppress(asyncio.CancelledError, McpServerError):
        await task


async def test_nothing_is_left_when_it_is_cancelled_again_while_it_closes(tmp_path: Path) -> None:
    """A server that heeds nothing is waited for; meanwhile the task is cancelled again and again."""
    server = Marked("stays")
    is_open = asyncio.Event()

    async def play() -> None:
        async with opened(server, tmp_path, BRIEF):
            is_open.set()

    task = asyncio.create_task(play())
    await is_open.wait()
    while not task.done():
        task.cancel()
        await asyncio.sleep(0.01)
    assert task.cancelled()
    assert server.left() == []


def test_nothing_is_left_when_the_loop_ends_while_it_closes(tmp_path: Path) -> None:
    """The end of a loop cancels every task, also those that only see to the end of others."""
    server = Marked("stays")

    async def play(is_open: asyncio.Event) -> None:
        async with opened(server, tmp_path, BRIEF):
            is_open.set()

    async def main() -> None:
        is_open = asyncio.Event()
        tasks.add(asyncio.create_task(play(is_open)))
        await is_open.wait()
        await asyncio.sleep(0.05)

    tasks: set[asyncio.Task[None]] = set()
    asyncio.run(main())
    assert all(task.done() for task in tasks)
    assert server.left() == []


async def test_a_server_that_takes_leave_is_read_to_its_end(tmp_path: Path) -> None:
    """It writes 20 MB that nobody asked for before it does the last thing that it has to do."""
    async with opened(Marked("takes_leave"), tmp_path, Patience(end_s=30.0)):
        pass
    assert os.listdir(tmp_path) == ["left.txt"]


PARENT = """
import asyncio, sys
from pathlib import Path
from agent_env.bundle import McpSpec
from agent_env.envs.mcp import Patience, open_mcp_env

async def play(behaviour):
    spec = McpSpec(command=(sys.executable, "-S", sys.argv[1], behaviour, "stubborn"))
    brief = Patience(end_s=0.1, term_s=0.1)
    async with open_mcp_env("shop", spec, folder=Path(sys.argv[2]), params={}, task_id="day-1", patience=brief) as env:
        print((await env.call("act", {})).text, flush=True)
        await asyncio.Event().wait()

async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(play("starts_others"))
        group.create_task(play("stays"))

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_process_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    """AgentEnv has no time to clean up: `kill -9`. Servers that heed nothing, and what they have started, end all the same."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(RAW), str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert parent.stdout is not None
    with parent, parent.stdout as lines:
        pids = [int(pid) for _ in range(2) for pid in lines.readline().split()]
        assert len(pids) == 5
        supervisors = {parent_of(pids[0]), parent_of(pids[-1])}
        parent.send_signal(number)
    wait_for_end([*pids, *supervisors])
    assert are_there([*pids, *supervisors]) == []


def parent_of(pid: int) -> int:
    """The process that a server's is a child of."""
    return int(Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize(
    ("number", "said"),
    [(signal.SIGKILL, "was killed, and what watches over it too"), (signal.SIGTERM, "was killed by SIGTERM")],
)
async def test_a_server_ends_with_what_watches_over_it(tmp_path: Path, number: signal.Signals, said: str) -> None:
    """Were the supervisor killed, nobody could end what the server has started; the server itself the kernel ends."""
    server = Marked("pid")
    async with opened(server, tmp_path, Patience(end_s=0.0)) as env:
        (pid,) = await pids_of(env)
        os.kill(parent_of(pid), number)
        await asyncio.to_thread(wait_for_end, [pid])
        with pytest.raises(McpServerError, match=said):
            await env.call("act", {})
    assert server.left() == []


async def test_what_is_in_a_servers_group_ends_also_when_what_watches_over_it_is_killed(tmp_path: Path) -> None:
    """Only what has left the group is out of reach then."""
    async with opened(Marked("starts_others"), tmp_path) as env:
        *pids, detached = await pids_of(env)
        os.kill(parent_of(pids[0]), signal.SIGKILL)
    await asyncio.to_thread(wait_for_end, pids)
    os.kill(detached, signal.SIGKILL)


async def test_a_server_has_a_session_of_its_own(tmp_path: Path) -> None:
    """Ctrl-C in the terminal is for AgentEnv, which ends its servers in order."""
    async with opened(Marked("pid"), tmp_path) as env:
        (pid,) = await pids_of(env)
        assert os.getsid(pid) == pid
        assert os.getsid(parent_of(pid)) == parent_of(pid)


async def test_opening_and_closing_leaves_no_file_descriptor(tmp_path: Path) -> None:
    """Sockets and pipes are closed, after an answer as after a failure."""
    async with opened(Marked("pid"), tmp_path):
        pass
    before = sorted(os.listdir("/proc/self/fd"))
    for behaviour in ("pid", "ends", "ends_at_start"):
        with suppress(McpServerError):
            async with opened(Marked(behaviour), tmp_path) as env:
                await env.call("act", {})
    assert sorted(os.listdir("/proc/self/fd")) == before


async def test_sixty_four_episodes_have_a_server_each(tmp_path: Path) -> None:
    """All are there at once; called and ended side by side, they leave no process, file descriptor or task."""
    server = Marked("pid")
    async with opened(server, tmp_path):
        pass
    before = (sorted(os.listdir("/proc/self/fd")), len(asyncio.all_tasks()))
    pids: list[int] = []
    all_are_there = asyncio.Event()

    async def play() -> None:
        async with opened(server, tmp_path) as env:
            first = await pids_of(env)
            pids.extend(first)
            if len(pids) == 64:
                all_are_there.set()
            await all_are_there.wait()
            assert await pids_of(env) == first

    async with asyncio.TaskGroup() as group:
        for _ in range(64):
            group.create_task(play())
    assert len(set(pids)) == 64
    assert are_there(pids) == []
    assert server.left() == []
    assert (sorted(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())) == before


async def passes() -> None:
    """Have the loop go around often enough for what waits for nothing else."""
    for _ in range(20):
        await asyncio.sleep(0)


@asynccontextmanager
async def starting(folder: Path) -> AsyncGenerator[list[asyncio.Task[None]]]:
    """As many servers as may start at once, none of which comes to be ready."""
    async with opened(Marked("pid"), folder):
        pass  # the SDK is imported by then
    server = Marked("hangs_at_start")
    tasks = [asyncio.create_task(play_on(server, folder)) for _ in range(AT_ONCE)]
    await passes()
    assert len(server.left()) >= AT_ONCE
    try:
        yield tasks
    finally:
        for task in tasks:
            await cancelled(task)


async def test_of_many_servers_a_few_start_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one starts when one of them is ready, or is given up."""
    monkeypatch.setattr("agent_env.envs._mcp_turns.TURN_S", 1000.0)
    server = Marked("pid")

    async def play() -> None:
        async with opened(server, tmp_path):
            pass

    async with starting(tmp_path) as others:
        task = asyncio.create_task(play())
        await passes()
        assert server.left() == []
        await cancelled(others[0])
        await task


async def test_servers_that_take_long_to_start_do_not_keep_others_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They often wait themselves; a while after they have begun the next ones do."""
    monkeypatch.setattr("agent_env.envs._mcp_turns.TURN_S", 0.05)
    async with starting(tmp_path) as others, opened(Marked("pid"), tmp_path):
        assert not any(task.done() for task in others)


@pytest.fixture
def many_open_files() -> Iterator[None]:
    """So many that the next one has a number above 1,023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        nothing = -1
        while nothing < 1024:
            nothing = os.open(os.devnull, os.O_RDONLY)
            stack.callback(os.close, nothing)
        yield


@pytest.mark.usefixtures("many_open_files")
async def test_a_server_is_started_however_many_files_are_open(tmp_path: Path) -> None:
    """A thousand episodes have thousands open; some system calls take no number above 1,023."""
    server = Marked("pid")
    async with opened(server, tmp_path) as env:
        (pid,) = await pids_of(env)
    assert are_there([pid]) == []
    assert server.left() == []


def test_a_loop_in_another_thread_can_open_a_server(tmp_path: Path) -> None:
    """Nothing hangs on signals or on the main thread."""
    server = Marked("pid")
    seen: list[list[int]] = []

    async def play() -> None:
        async with opened(server, tmp_path) as env:
            seen.append(await pids_of(env))

    thread = threading.Thread(target=lambda: asyncio.run(play()))
    thread.start()
    thread.join()
    assert len(seen) == 1
    assert server.left() == []
