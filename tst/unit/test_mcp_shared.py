"""A server that keeps no state is shared by all episodes of a process: one is started, however many are played."""

from __future__ import annotations

import asyncio
import json
import os
import select
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from agent_env.bundle import McpSpec
from agent_env.envs import EnvSession
from agent_env.envs.mcp import USUAL_PATIENCE, Patience, open_mcp_env
from agent_env.errors import EnvBrokenError, McpServerError

SERVERS = Path(__file__).with_name("mcp_servers")


def raw(*arguments: str, **fields: Any) -> McpSpec:
    """A shared server of `mcp_servers/raw.py`."""
    return McpSpec(command=(sys.executable, "-S", str(SERVERS / "raw.py"), *arguments), shared=True, **fields)


def is_there(pid: int) -> bool:
    """Whether a process has not ended."""
    with suppress(OSError):
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def wait_for_end(pid: int) -> None:
    """Wait until a process that is not ours has ended."""
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            assert select.select([handle], [], [], 30)[0], f"process {pid} is still there"
        finally:
            os.close(handle)


@asynccontextmanager
async def opened(
    spec: McpSpec, folder: Path | None = None, patience: Patience = USUAL_PATIENCE
) -> AsyncGenerator[EnvSession]:
    """Open an env as an episode does."""
    async with open_mcp_env("shop", spec, folder=folder, params={}, task_id="day-1", patience=patience) as env:
        yield env


async def pid_of(spec: McpSpec, patience: Patience = USUAL_PATIENCE) -> int:
    """Which server an episode that is opened now calls."""
    async with opened(spec, patience=patience) as env:
        return int((await env.call("act", {})).text)


async def test_episodes_side_by_side_and_one_after_the_other_share_a_server(tmp_path: Path) -> None:
    """It stays a while after the last one; one that is said to be another is another."""
    spec = raw("pid")
    async with opened(spec, tmp_path) as first, opened(spec) as second:
        pid = int((await first.call("act", {})).text)
        assert int((await second.call("act", {})).text) == pid
        assert first.state == tmp_path
        assert second.state is None
    assert await pid_of(spec) == pid
    assert await pid_of(raw("pid", environment={"A": "1"})) != pid


async def test_a_shared_server_knows_of_no_episode() -> None:
    """It starts in an empty folder of its own, without params."""
    async with opened(raw("folder")) as env:
        folder = (await env.call("act", {})).text
    assert "agent-env-universe-" in folder  # a name that the next start knows, where this process is killed
    async with opened(raw("environment")) as env:
        variables = json.loads((await env.call("act", {})).text)
    assert not variables.keys() & {"AGENT_ENV_TASK_ID", "AGENT_ENV_PARAMS", "AGENT_ENV_UNIVERSE"}


async def test_fifty_calls_of_as_many_episodes_are_under_way_at_once() -> None:
    """The server answers none of them before all have come."""
    spec = raw("answers_when_all_have_come")
    texts: list[str] = []

    async def play() -> None:
        async with opened(spec) as env:
            texts.append((await env.call("act", {"count": 50})).text)

    async with asyncio.TaskGroup() as group:
        for _ in range(50):
            group.create_task(play())
    assert texts == ["50 at once"] * 50


async def test_a_server_that_dies_fails_the_calls_under_way_and_is_started_again_for_the_next() -> None:
    """Each of the episodes that were in it hears why; a later one has a server again."""
    spec = raw("waits_for_three_and_ends")
    errors: list[str] = []

    async def play() -> None:
        async with opened(spec) as env:
            try:
                await env.call("act", {})
            except McpServerError as exc:
                errors.append(str(exc))
            with pytest.raises(McpServerError, match="exit code 9, before 'act' was called"):
                await env.call("act", {})

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(play())
    assert len(errors) == 3
    assert all("ended by itself with exit code 9, while it ran 'act'" in error for error in errors)
    async with opened(spec) as env:
        assert [tool.name for tool in env.tools] == ["act"]


async def test_a_call_that_hangs_fails_its_episode_alone_and_the_next_has_another_server() -> None:
    """Others go on in the server that they are in; it is not trusted with new ones."""
    spec = raw("hangs_on_one", call_timeout_s=1.0)
    async with opened(spec) as first, opened(spec) as second:
        pid = int((await second.call("act", {})).text)
        with pytest.raises(McpServerError, match="did not answer 'act' in 1 s"):
            await first.call("act", {"count": 1})
        assert int((await second.call("act", {})).text) == pid
        assert await pid_of(spec) != pid
        assert is_there(pid)
    assert not is_there(pid)


async def test_a_start_that_fails_fails_all_that_wait_for_it_and_is_tried_again_by_the_next(tmp_path: Path) -> None:
    """What is wrong may be gone by then."""
    missing = tmp_path / "there.txt"
    spec = raw("needs_file", str(missing))
    errors: list[str] = []

    async def play() -> None:
        try:
            await pid_of(spec)
        except EnvBrokenError as exc:
            errors.append(str(exc))

    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(play())
    assert len(errors) == 5
    assert all("ended by itself with exit code 8" in error for error in errors)
    missing.touch()
    assert await pid_of(spec)


async def test_one_that_is_cancelled_while_it_waits_does_not_end_the_start_for_the_others() -> None:
    """The first to come has started it, and is the first to go."""
    spec = raw("pid")
    first = asyncio.create_task(pid_of(spec))
    await asyncio.sleep(0.01)
    others = [asyncio.create_task(pid_of(spec)) for _ in range(3)]
    await asyncio.sleep(0.001)
    first.cancel()
    assert len({await other for other in others}) == 1
    assert first.cancelled() or not first.exception()


async def test_the_last_to_be_cancelled_while_it_waits_ends_the_server(tmp_path: Path) -> None:
    """A server that does not come to answer is not left behind."""
    told = tmp_path / "pid"
    os.mkfifo(told)
    task = asyncio.create_task(pid_of(raw("hangs_at_start_and_says_pid", str(told)), Patience(end_s=0.1)))
    pid = int(await asyncio.to_thread(told.read_text))
    assert is_there(pid)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not is_there(pid)


def test_a_shared_server_ends_with_the_loop() -> None:
    """It lingers for the next episode, and there is none any more."""
    pid = asyncio.run(pid_of(raw("pid")))
    assert not is_there(pid)


async def test_a_shared_server_ends_a_while_after_its_last_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    """The while is short here, and the next episode has another server."""
    await pid_of(raw("pid", environment={"B": "1"}))  # the SDK is imported by then
    monkeypatch.setattr("agent_env.envs._mcp_shared.LINGER_S", 0.0)
    pid = await pid_of(raw("pid"))
    await asyncio.to_thread(wait_for_end, pid)
    assert await pid_of(raw("pid")) != pid
