"""MCP servers at a URL, by streamable HTTP: the official SDK's, and bad ones, in processes of their own on the loopback."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_env.bundle import McpSpec
from agent_env.envs import EnvSession, ToolAnswer
from agent_env.envs.mcp import open_mcp_env
from agent_env.errors import EnvBrokenError, McpServerError

SERVERS = Path(__file__).with_name("mcp_servers")
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a server of a script in `mcp_servers`; its `port` is an attribute of the process."""
    with ExitStack() as stack:

        def start(script: str, *arguments: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, str(SERVERS / script), *arguments]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
            stack.callback(process.kill)
            assert process.stdout is not None
            process.port = int(process.stdout.readline())  # pyright: ignore[reportAttributeAccessIssue]
            return process

        yield start


def at(process: subprocess.Popen[bytes], **fields: Any) -> McpSpec:
    """The server in a process."""
    return McpSpec(url=f"http://127.0.0.1:{process.port}/mcp", **fields)  # pyright: ignore[reportAttributeAccessIssue]


@asynccontextmanager
async def opened(spec: McpSpec, folder: Path | None = None) -> AsyncGenerator[EnvSession]:
    """Open an env as an episode does."""
    async with open_mcp_env("shop", spec, folder=folder, params={}, task_id="day-1") as env:
        yield env


async def answer(spec: McpSpec, calls: int = 1) -> ToolAnswer:
    """What a server's tool answers."""
    async with opened(spec) as env:
        for _ in range(calls - 1):
            await env.call("act", {})
        return await env.call("act", {})


async def failure(spec: McpSpec, kind: type[EnvBrokenError] = McpServerError) -> str:
    """The one line that comes of calling a server's tool."""
    with pytest.raises(kind) as caught:
        await answer(spec)
    message = str(caught.value)
    assert message.startswith("the MCP server of env 'shop' ")
    assert "\n" not in message
    return message.removeprefix("the MCP server of env 'shop' ")


@pytest.mark.parametrize("mode", [(), ("json",)])
async def test_a_server_at_a_url_is_called_as_one_that_was_started(
    start: Start, tmp_path: Path, mode: tuple[str, ...]
) -> None:
    """It answers with events, or with one JSON text; each episode has a session of its own."""
    server = start("good.py", "http", *mode)
    async with opened(at(server), tmp_path) as env, opened(at(server)) as other:
        assert len(env.tools) == 10
        assert env.state == tmp_path
        assert other.state is None
        assert (await env.call("add", {"a": 1, "b": 2})).text == "3"
        assert (await other.call("total", {"a": 1, "b": 2})).text == '{"total":3}'
        assert (await env.call("image", {})).content[0]["type"] == "image"
        assert (await env.call("refuse", {})).is_error
        assert "characters left out" in (await env.call("long", {})).text


async def test_fifty_episodes_share_a_session(start: Start) -> None:
    """The server answers none of their calls before all have come."""
    spec = at(start("good.py", "http"), shared=True)
    texts: list[str] = []

    async def play() -> None:
        async with opened(spec) as env:
            texts.append((await env.call("wait", {"a": 50, "b": 0})).text)

    async with asyncio.TaskGroup() as group:
        for _ in range(50):
            group.create_task(play())
    assert texts == ["50 at once"] * 50


async def test_headers_are_filled_in_from_the_environment(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is in no bundle and in no message."""
    monkeypatch.setenv("SHOP_KEY", "secret-123")
    headers = {"Authorization": "Bearer ${SHOP_KEY}"}
    assert (await answer(at(start("raw_http.py", "key"), headers=headers))).text == "Bearer secret-123"
    message = await failure(at(start("raw_http.py", "repeats_key"), headers=headers))
    assert "Bearer ${SHOP_KEY}" in message
    assert "secret-123" not in message


async def test_a_header_or_url_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key with the end of its line still on it is a common one; its value is not in the message."""
    monkeypatch.setenv("SHOP_KEY", "secret-123\n")
    spec = McpSpec(url="https://shop.invalid/", headers={"Authorization": "Bearer ${SHOP_KEY}"})
    message = await failure(spec, EnvBrokenError)
    assert message.startswith("cannot be reached: its header Authorization holds characters that no HTTP header can")
    assert "secret" not in message
    assert "write one that starts with https://" in await failure(McpSpec(url="shop.example/mcp"), EnvBrokenError)
    missing = McpSpec(url="https://${NO_SUCH_HOST}/", headers={"Authorization": "${NO_SUCH_KEY}"})
    assert await failure(missing, EnvBrokenError) == (
        "needs what is not set in the environment: NO_SUCH_HOST (in url), NO_SUCH_KEY (in headers.Authorization): "
        "set it and start again"
    )


AT_START = {
    "status:401": "answered initialize with HTTP 401 Unauthorized: see the headers of its env in the bundle",
    "status:403": "answered initialize with HTTP 403 Forbidden: see the headers of its env in the bundle",
    "status:404": "answered initialize with HTTP 404 Not Found: see the url of its env in the bundle",
    "status:500": "answered initialize with HTTP 500 Internal Server Error",
    "error:400,-32600": "answered initialize with HTTP 400 Bad Request",
    "redirects": "answered initialize with an error: Redirect to http://elsewhere.invalid/mcp not followed",
    "html": "answered initialize with an error: Unexpected content type: text/html",
    "not_json": "answered initialize with something that is no message of the protocol",
    "ends": "broke off the connection: ",
    "breaks_off": "broke off the connection: ",
}
IN_CALL = {
    "status:401": "answered 'act' with HTTP 401 Unauthorized: see the headers of its env in the bundle",
    "status:404": "answered 'act' with HTTP 404 Not Found: it does not know the session any more",
    "status:429": "answered 'act' with HTTP 429 Too Many Requests",
    "status:500": "answered 'act' with HTTP 500 Internal Server Error",
    "error:500,-32603": "answered 'act' with HTTP 500 Internal Server Error",
    "redirects": "answered 'act' with a protocol error: Redirect to http://elsewhere.invalid/mcp not followed",
    "hangs": "did not answer 'act' in 0.5 s",
    "ends": "broke off the connection: ",
    "breaks_off": "broke off the connection: ",
    "breaks_off:events": "gave no answer to 'act': SSE stream ended without a response",
    "ends_stream": "gave no answer to 'act': SSE stream ended without a response",
    "floods": "sent a message of more than 8 MiB, while it ran 'act'",
    "floods:events": "gave no answer to 'act': SSE stream failed",
    "many_values": "sent a message of too many values: have it send less at once",
    "many_values:events": "sent a message of too many values: have it send less at once",
    "logs": "gave no answer to 'act': SSE stream ended without a response; it said last: [error] disk full",
    "wrong_id": "answered a request that was never made (id 99)",
    "not_json": "answered 'act' with something that is no message of the protocol",
    "html": "answered 'act' with a protocol error: Unexpected content type: text/html",
    "accepted": "answered 'act' with a protocol error: server answered a request with 202 Accepted",
    "compressed": "compresses its answers (gzip) without being asked to",
}


@pytest.mark.parametrize("behaviour", AT_START)
async def test_a_server_that_cannot_be_opened_says_why(start: Start, behaviour: str) -> None:
    """What the HTTP server answers to the first request is said in one line."""
    message = await failure(at(start("raw_http.py", f"at_start:{behaviour}")))
    assert message.startswith(AT_START[behaviour])


@pytest.mark.parametrize("behaviour", IN_CALL)
async def test_a_call_that_gets_no_answer_fails_the_episode_and_says_why(start: Start, behaviour: str) -> None:
    """Whatever comes in place of an answer is said in one line."""
    timeout_s = 0.5 if behaviour == "hangs" else 30.0
    message = await failure(at(start("raw_http.py", behaviour), call_timeout_s=timeout_s))
    assert message.startswith(IN_CALL[behaviour])


@pytest.mark.parametrize("behaviour", ["error", "refuses_notifications"])
async def test_the_status_that_is_said_is_that_of_the_request(start: Start, behaviour: str) -> None:
    """The stream for the server's own messages is answered with 405, a notification with 400: neither is why it fails."""
    message = await failure(at(start("raw_http.py", f"at_list:{behaviour}:200,-32601")))
    assert message == "answered tools/list with an error: the reason"


@pytest.mark.parametrize("behaviour", ["error:200,-32602", "error:400,-32602", "error:200,-32603"])
async def test_an_error_that_is_the_calls_is_an_answer(start: Start, behaviour: str) -> None:
    """The protocol has invalid params come with the status 400."""
    given = await answer(at(start("raw_http.py", behaviour)))
    assert given.is_error
    assert given.text == "the reason"


async def test_nobody_there_is_said(start: Start) -> None:
    """No host of that name, and none that listens: the URL is in the bundle, the reason in the message."""
    server = start("raw_http.py", "answers")
    spec = at(server)
    server.kill()
    server.wait()
    assert (await failure(spec)).startswith("cannot be reached: ")
    assert (await failure(McpSpec(url="http://no-such-host.invalid/"))).startswith("cannot be reached: ")


def make_certificate(key: Path, certificate: Path) -> None:
    """Make a key and a certificate that is signed with it."""
    made = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=127.0.0.1",
    ]
    command = ["openssl", "req", "-x509", *made, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
async def test_a_certificate_that_nobody_vouches_for_is_not_taken(start: Start, tmp_path: Path) -> None:
    """A server on TLS with a certificate of its own making."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    make_certificate(key, certificate)
    server = start("raw_http.py", "answers", str(key), str(certificate))
    spec = McpSpec(url=f"https://127.0.0.1:{server.port}/mcp")  # pyright: ignore[reportAttributeAccessIssue]
    message = await failure(spec)
    assert message.startswith("cannot be reached: ")
    assert "CERTIFICATE_VERIFY_FAILED" in message


async def test_notifications_without_end_fail_the_episode(start: Start) -> None:
    """They are counted, as on a pipe."""
    message = await failure(at(start("raw_http.py", "floods_notifications")))
    assert message.startswith("wrote without end what nobody had asked for, while it ran 'act'")


@pytest.mark.parametrize("behaviour", ["floods", "floods:events"])
async def test_a_flood_takes_a_bounded_amount_of_memory(start: Start, behaviour: str) -> None:
    """An answer without end is not kept."""
    spec = at(start("raw_http.py", behaviour))
    async with opened(spec) as env:
        tracemalloc.start()
        try:
            with pytest.raises(McpServerError):
                await env.call("act", {})
            _, most_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert most_bytes < 60_000_000


async def test_a_server_that_does_not_hear_of_the_end_does_not_hold_it_up(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of a session is told to it, and waited for no longer than two seconds: nothing is left and logged."""
    assert (await answer(at(start("raw_http.py", "hangs_at_end")))).text == "done"
    assert [record for record in caplog.records if record.name.startswith("agent_env")] == []


@pytest.mark.parametrize("behaviour", ["at_start:hangs", "hangs"])
async def test_a_cancellation_leaves_no_connection(start: Start, behaviour: str) -> None:
    """Cancelled at many moments, from the start to a call that hangs."""
    spec = at(start("raw_http.py", behaviour))
    await cancelled(asyncio.create_task(answer(spec)), 0.3)
    before = sorted(os.listdir("/proc/self/fd"))
    for delay_s in (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1):
        await cancelled(asyncio.create_task(answer(spec)), delay_s)
    assert sorted(os.listdir("/proc/self/fd")) == before


async def cancelled(task: asyncio.Task[ToolAnswer], delay_s: float) -> None:
    """Cancel a task after some time, and wait for its end."""
    await asyncio.sleep(delay_s)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_session_that_the_server_forgot_is_begun_anew_by_the_next_episode(start: Start) -> None:
    """A shared session ends when the server is started again: the episode fails, the next one plays."""
    spec = at(start("raw_http.py", "forgets_once"), shared=True)
    async with opened(spec) as first, opened(spec) as second:
        with pytest.raises(McpServerError, match="does not know the session any more"):
            await first.call("act", {})
        assert (await second.call("act", {})).text == "done"
    assert (await answer(spec)).text == "done"
