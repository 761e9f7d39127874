from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import openai  # noqa: F401 - it takes a second to import, which is not to come out of a test's short timeout
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from agent_env import Bundle, load_bundle
from agent_env.bundle import ModelSpec

Answer = Callable[[Request], Response | Awaitable[Response]]


def reply(
    content: str | None = "Fine.",
    *calls: tuple[str, str],
    finish_reason: str | None = None,
    **message: Any,
) -> dict[str, Any]:
    """The body of an answer: what the model says, and its calls as name and arguments."""
    said: dict[str, Any] = {"role": "assistant", "content": content, **message}
    if calls:
        said["tool_calls"] = [
            {"id": f"c{place}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for place, (name, arguments) in enumerate(calls)
        ]
    reason = finish_reason or ("tool_calls" if calls else "stop")
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "model": "small-001",
        "choices": [{"index": 0, "message": said, "finish_reason": reason}],
        "usage": {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15},
    }


class Server:
    """An HTTP server on loopback, in a thread; whoever tests says what it answers."""

    def __init__(self) -> None:
        self.endpoint: Endpoint | None = None
        app = Starlette(routes=[Route("/v1/chat/completions", self._chat, methods=["POST"])])
        # Connections that are left open are to be seen: the server closes none within a test.
        config = uvicorn.Config(app, log_level="critical", lifespan="off", timeout_keep_alive=600)
        self._server = uvicorn.Server(config)
        self._socket = socket.socket(proto=socket.IPPROTO_TCP)  # else asyncio leaves Nagle on
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen(2048)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="endpoint")

    @property
    def port(self) -> int:
        return self._socket.getsockname()[1]

    @property
    def open_connections(self) -> int:
        return len(self._server.server_state.connections)

    async def _chat(self, request: Request) -> Response:
        assert self.endpoint is not None
        return await self.endpoint.chat(request)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join()
        self._socket.close()


class Endpoint:
    """An OpenAI-compatible endpoint, whose answers a test says."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.connections: set[tuple[str, int]] = set()
        """Every connection that a question came over."""
        self.answers: list[Answer] = []
        """What the next questions get, one each; the last one goes on."""
        self.under_way = threading.Semaphore(0)
        """Released when a question that hangs has arrived."""
        self.given_up = threading.Semaphore(0)
        """Released when whoever asked a question that hangs has gone."""

    reply = staticmethod(reply)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}/v1"

    def spec(self, **fields: Any) -> ModelSpec:
        return ModelSpec(**{"model": "small", "base_url": self.base_url, **fields})

    def says(self, *bodies: dict[str, Any]) -> None:
        """Answer with these, one after the other."""
        for body in bodies:
            self.sends(json.dumps(body).encode())

    def fails(self, status: int, body: object = "", **headers: str) -> None:
        """Answer with an error once, which may be tried again at once."""
        named = {"retry-after-ms": "1", **{name.replace("_", "-"): value for name, value in headers.items()}}
        text = body if isinstance(body, str) else None
        self.answers.append(
            lambda _: Response(text, status, named) if text is not None else JSONResponse(body, status, named)
        )

    def sends(self, body: bytes) -> None:
        """Answer with these bytes and the status 200."""
        self.answers.append(lambda _: Response(body, media_type="application/json"))

    def hangs(self) -> None:
        """Take the next questions and never answer."""

        async def until_gone(request: Request) -> Response:
            self.under_way.release()
            while (await request.receive())["type"] != "http.disconnect":
                pass
            self.given_up.release()
            return Response()

        self.answers.append(until_gone)

    def drips(self) -> None:
        """Begin an answer, and go on with it for ever."""

        async def blanks() -> AsyncIterator[bytes]:
            while True:
                yield b" " * 100
                await asyncio.sleep(0.01)

        self.answers.append(lambda _: StreamingResponse(blanks(), media_type="application/json"))

    def floods(self, chunks: int) -> None:
        """Answer with megabytes."""

        async def blanks() -> AsyncIterator[bytes]:
            for _ in range(chunks):
                yield b" " * (1 << 20)

        self.answers.append(lambda _: StreamingResponse(blanks(), media_type="application/json"))

    async def chat(self, request: Request) -> Response:
        assert request.client is not None
        self.connections.add((request.client.host, request.client.port))
        self.bodies.append(await request.json())
        self.headers.append(request.headers)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        said = answer(request)
        return said if isinstance(said, Response) else await said

    @property
    def open_connections(self) -> int:
        return self._server.open_connections


@pytest.fixture(scope="session")
def server() -> Generator[Server]:
    """The server of all endpoints."""
    with Server() as running:
        yield running


@pytest.fixture
def endpoint(server: Server) -> Endpoint:
    """An endpoint that the test tells what to answer."""
    server.endpoint = Endpoint(server)
    return server.endpoint


SHOP = {
    "bundle.yaml": """\
name: shop
version: "1.0"
envs:
  store: {python: "envs/store.py:Store", universe: universes/store.json}
agents:
  clerk: {kind: played, system_prompt: "You keep the shop.", envs: [store]}
  guest: {kind: scripted, python: "agents/guest.py:say"}
players:
  best: players/best.py:play
  broken: players/best.py:broken
""",
    "envs/store.py": """\
from typing import Literal

from agent_env import Env, ToolAnswer, ToolError, tool
from agent_env.errors import EnvBrokenError


class Store(Env):
    @tool
    def sell(self, count: int, to: str | None = None, colour: Literal["red", "blue"] = "red", tags: list[str] = []) -> str:
        \"""Sell some of the stock.

        Args:
            count: How many.
            to: Who buys them.
            colour: Which ones.
            tags: What else to note.
        \"""
        print("a bundle prints")
        if count > self.state["stock"]:
            raise ToolError(f"only {self.state['stock']} are left")
        self.state["stock"] -= count
        self.state["sold"].append({"count": count, "to": to, "colour": colour, "tags": tags})
        return f"{self.state['stock']} are left"

    @tool
    def close_shop(self) -> ToolAnswer:
        \"""Close the shop.\"""
        self.state["closed"] = True
        return ToolAnswer("closed", ends_turn=True)

    @tool
    def burn(self) -> None:
        \"""Burn the shop down.\"""
        raise EnvBrokenError("the shop is gone")

    @tool
    def shout(self) -> str:
        \"""Shout.\"""
        return "red: \\x1b[31mred"
""",
    "universes/store.json": '{"stock": 10, "sold": [], "closed": false}',
    "verifiers/sold.py": """\
def score(episode):
    sold = sum(sale["count"] for sale in episode.state()["sold"])
    return {"score": sold == episode.params["count"], "explanation": f"sold {sold}", "metrics": {"sold": sold}}
""",
    "agents/guest.py": """\
def say(turn):
    lines = ["I want some.", "And now?", "Good bye."]
    return lines[turn.turn] if turn.turn < len(lines) else None
""",
    "players/best.py": """\
import json


def play(turn):
    if turn.messages[-1]["role"] == "tool":
        return {"role": "assistant", "content": "Sold."}
    arguments = json.dumps({"count": turn.params["count"]})
    return {"role": "assistant", "content": "", "tool_calls": [{"name": "sell", "arguments": arguments}]}


def broken(turn):
    raise KeyError("bug")
""",
    "tasks/three.yaml": """\
id: three
tags: [easy]
params: {count: 3}
prompt: Sell {{ params.count }}.
verify: {python: verifiers/sold.py}
gold:
  - calls: [{tool: sell, arguments: {count: 3, to: Ann}}]
    reply: Three are sold.
""",
    "tasks/closing.yaml": """\
id: closing
tags: [easy]
params: {count: 2}
prompt: [Sell one., "Sell another, and close."]
verify: {python: verifiers/sold.py}
gold:
  - calls: [{tool: sell, arguments: {count: 1}}]
    reply: One is sold.
  - calls: [{tool: sell, arguments: {count: 1}}, {tool: close_shop}, {tool: sell, arguments: {count: 1}}]
""",
    "tasks/talk.yaml": """\
id: talk
tags: [hard]
params: {count: 5}
prompt: {by: guest}
verify: {python: verifiers/sold.py}
gold:
  - calls: [{tool: sell, arguments: {count: 5}}]
    reply: Here they are.
""",
    "tasks/free.yaml": """\
id: free
tags: [hard]
params: {count: 0}
prompt: Do nothing.
verify: {python: verifiers/sold.py}
""",
    "evals/easy.yaml": "tags: [easy]\n",
}


@pytest.fixture
def shop_dir(tmp_path: Path) -> Path:
    """A folder with a bundle: three tasks with gold, one of several turns and one that another agent leads; one without."""
    root = tmp_path / "shop"
    for name, text in SHOP.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def shop(shop_dir: Path) -> Bundle:
    """That bundle."""
    return load_bundle(shop_dir)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback is asked directly, also where the machine has a proxy."""
    monkeypatch.setenv("NO_PROXY", "*")
