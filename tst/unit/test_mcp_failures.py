"""Servers that die, hang, flood or answer badly: each fails the episode with one line that says which and why."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import sys
import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_env.bundle import McpSpec
from agent_env.envs import EnvSession
from agent_env.envs.mcp import USUAL_PATIENCE, Patience, open_mcp_env
from agent_env.errors import McpServerError

RAW = Path(__file__).with_name("mcp_servers") / "raw.py"
BRIEF = Patience(end_s=0.1, term_s=0.1, status_s=0.1)
"""For servers that stay until they are killed: however long they are waited for, the outcome is the same."""
STAYS = ("closes_stdout",)


def raw(*arguments: str, **fields: Any) -> McpSpec:
    """A server of `mcp_servers/raw.py`."""
    return McpSpec(command=(sys.executable, "-S", str(RAW), *arguments), **fields)


@asynccontextmanager
async def opened(spec: McpSpec, folder: Path, patience: Patience = USUAL_PATIENCE) -> AsyncGenerator[EnvSession]:
    """Open an env as an episode does."""
    async with open_mcp_env("shop", spec, folder=folder, params={}, task_id="day-1", patience=patience) as env:
        yield env


async def failure(spec: McpSpec, folder: Path, patience: Patience = USUAL_PATIENCE) -> McpServerError:
    """What comes of calling a server's tool."""

    async def play() -> None:
        async with opened(spec, folder, patience) as env:
            await env.call("act", {})

    with pytest.raises(McpServerError) as caught:
        await play()
    message = str(caught.value)
    assert message.startswith("the MCP server of env 'shop' ")
    assert "\n" not in message
    return caught.value


BAD = {
    "wrong_id": "answered a request that was never made (id 10)",
    "text_result": "wrote a line on its standard output that is no message of the protocol, while it ran 'act'",
    "cut_json": "is no message of the protocol (Invalid JSON: EOF while parsing",
    "batch": "wrote a line on its standard output that is no message of the protocol",
    "deep": "is no message of the protocol (Invalid JSON: recursion limit exceeded",
    "no_content": "answered 'act' with something that is no result: content: Field required",
    "bad_block": "answered 'act' with something that is no result: content.0",
    "bad_image": "answered 'act' with an image whose data is not base64",
    "wants_input": "answered 'act' with something that is no result",
    "null_error": "could not read a message of ours: Parse error, while it ran 'act'",
    "many_values": "wrote a message of too many values: have it send less at once",
    "floods_a_line": "wrote a line of more than 8 MiB on its standard output",
    "floods_lines": "wrote without end what nobody had asked for",
    "floods_answers": "wrote without end what nobody had asked for",
    "floods_text": "wrote without end what nobody had asked for",
    "is_killed": "was killed by SIGKILL, while it ran 'act'",
    "closes_stdout": "closed its standard output, while it ran 'act'",
}


@pytest.mark.parametrize("behaviour", BAD)
async def test_a_bad_answer_fails_the_episode_and_says_what_is_bad(tmp_path: Path, behaviour: str) -> None:
    """Whatever comes in place of an answer, it is said in one line, and nothing waits for a timeout."""
    error = await failure(raw(behaviour), tmp_path, BRIEF if behaviour in STAYS else USUAL_PATIENCE)
    assert BAD[behaviour] in str(error)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("refuses", "-32601"), "answered 'act' with a protocol error: the reason"),
        (("refuses", "-32700"), "answered 'act' with a protocol error: the reason"),
        (("refuses", "-32600"), "answered 'act' with a protocol error: the reason"),
        (("refuses", "-32042"), "asks for what AgentEnv does not offer to servers: the reason"),
        (("structured", '{"structuredContent": {"n": 1.5}}'), "does not fit its output schema: n: expected an integer"),
        (("structured", "{}"), "with no structured content, which its output schema says it has"),
        (("needs_no_handshake_and_wants_input", "discover"), "asks for input to 'act'"),
    ],
)
async def test_an_answer_that_no_model_could_help_fails_the_episode(
    tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    """An error of the protocol, and an answer that the server's own schema forbids."""
    assert said in str(await failure(raw(*arguments), tmp_path))


async def test_a_server_that_ends_in_a_call_is_said_with_its_exit_code_and_its_stderr(tmp_path: Path) -> None:
    """The last line is in the message, all of it in the details, which go into the run."""
    error = await failure(raw("ends"), tmp_path)
    assert str(error) == (
        "the MCP server of env 'shop' ended by itself with exit code 4, while it ran 'act'; "
        "it said last: ValueError: the database is gone"
    )
    assert error.details == (
        "The end of what the MCP server of env 'shop' said:\n"
        "Traceback (most recent call last):\nValueError: the database is gone"
    )
    assert pickle.loads(pickle.dumps(error)).details == error.details


async def test_a_server_that_ends_between_two_calls_is_noticed_by_the_second(tmp_path: Path) -> None:
    """What it had answered before is an answer."""
    async with opened(raw("answers_and_ends"), tmp_path) as env:
        assert (await env.call("act", {})).text == "the last one"
        with pytest.raises(McpServerError, match="ended by itself with exit code 5"):
            await env.call("act", {})
        with pytest.raises(McpServerError, match="ended by itself with exit code 5, before 'act' was called"):
            await env.call("act", {})


async def test_a_server_that_reads_no_more_is_noticed(tmp_path: Path) -> None:
    """It has closed its standard input, and stays."""
    async with opened(raw("closes_stdin"), tmp_path, BRIEF) as env:
        assert (await env.call("act", {})).text == "the last one"
        with pytest.raises(McpServerError, match="does not read what is sent to it, while it ran 'act'"):
            await env.call("act", {})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ends_at_start",), "ended by itself with exit code 3, before it had answered initialize; it said last: ValueError"),
        (("lists_on_and_on",), "lists its tools without end: 0 tools on 101 pages, and goes on"),
        (("lists_in_a_circle",), "lists its tools without end: 2 tools on 2 pages, and goes on"),
        (("lists_nonsense",), "answered tools/list with something that is no result: tools.0.inputSchema"),
        (("has_no_tools",), "answered tools/list with an error: Method not found"),
        (("other_version",), "cannot be used: Unsupported protocol version from the server: 1999-01-01"),
        (("needs_no_handshake",), "answered initialize with an error: no"),
    ],
)  # fmt: skip
async def test_a_server_that_cannot_be_opened_says_why(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    """It ends at its start, or its list of tools has no end or is none."""
    assert said in str(await failure(raw(*arguments), tmp_path))


async def test_a_call_that_takes_too_long_fails_the_episode_and_is_cancelled_at_the_server(tmp_path: Path) -> None:
    """The server hears of it by the protocol's notification."""
    error = await failure(raw("records", call_timeout_s=0.2), tmp_path)
    assert "did not answer 'act' in 0.2 s" in str(error)
    *_, call, cancelled = [json.loads(line) for line in (tmp_path / "received.jsonl").read_text().splitlines()]
    assert call["method"] == "tools/call"
    assert cancelled["method"] == "notifications/cancelled"
    assert cancelled["params"]["requestId"] == call["id"]


async def test_a_server_that_does_not_read_a_large_call_does_not_hold_it_up(tmp_path: Path) -> None:
    """The pipe to it is full, and the call ends in its time all the same."""
    async with opened(raw("goes_deaf", call_timeout_s=0.2), tmp_path, BRIEF) as env:
        for _ in range(2):
            with pytest.raises(McpServerError, match=r"did not answer 'act' in 0\.2 s"):
                await env.call("act", {"text": "x" * 1_000_000})


@pytest.mark.parametrize("behaviour", ["hangs_at_start", "hangs_in_list"])
async def test_a_start_that_takes_too_long_carries_what_the_server_said(tmp_path: Path, behaviour: str) -> None:
    """The caller's timeout cancels it; the server's stderr is in a note of the cancellation."""
    told = tmp_path / "told"
    os.mkfifo(told)

    async def open_in(clock: asyncio.Timeout) -> None:
        async with clock, opened(raw(behaviour, str(told)), tmp_path):
            pass

    clock = asyncio.timeout(None)
    task = asyncio.create_task(open_in(clock))
    await asyncio.to_thread(told.read_text)
    for _ in range(10):  # in which the loop reads what is there to be read
        await asyncio.sleep(0)
    clock.reschedule(0)
    with pytest.raises(TimeoutError) as caught:
        await task
    cancellation = caught.value.__cause__
    assert isinstance(cancellation, asyncio.CancelledError)
    assert cancellation.__notes__ == ["The end of what the MCP server of env 'shop' said:\nwaiting for a lock"]


@pytest.mark.parametrize("behaviour", ["floods_a_line", "floods_lines", "floods_text", "floods_stderr"])
async def test_a_flood_takes_a_bounded_amount_of_memory(tmp_path: Path, behaviour: str) -> None:
    """A line without end, lines without end, and 300 MB of stderr are read into some 20 MB."""
    async with opened(raw(behaviour), tmp_path) as env:
        tracemalloc.start()
        try:
            if behaviour == "floods_stderr":
                await env.call("act", {})
            else:
                with pytest.raises(McpServerError):
                    await env.call("act", {})
            _, most_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert most_bytes < 40_000_000


async def test_a_call_that_is_cancelled_leaves_the_server_to_the_next(tmp_path: Path) -> None:
    """Cancelled in a call, an env can be called again; a late answer to the first is no answer to the second."""
    async with opened(raw("hangs"), tmp_path) as env:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await env.call("act", {})
        assert (await env.call("act", {"count": 1})).text == "not yet"
