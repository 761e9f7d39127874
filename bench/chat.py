"""What asking a model costs beside the model: questions over loopback to a server that answers at once.

One after the other, and hundreds at the same moment; and for how long the event loop was held up meanwhile. Prints a table.

python bench/chat.py
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time

import uvicorn
from rich.console import Console
from rich.table import Table
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from agent_env.bundle import ModelSpec
from agent_env.chat import open_chat

ANSWER = {"choices": [{"message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}]}
MESSAGES = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Is it so? " * 200}]
AT_ONCE = (100, 500, 1000)


async def answer(request: Request) -> JSONResponse:
    await request.body()
    return JSONResponse(ANSWER)


def serve() -> None:
    listening = socket.socket(proto=socket.IPPROTO_TCP)  # without it asyncio leaves Nagle on, which takes 40 ms
    listening.bind(("127.0.0.1", 0))
    listening.listen(2048)
    print(listening.getsockname()[1], flush=True)
    app = Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])
    uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listening])


class Watch:
    """The longest time between two passes of the loop."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def run(self) -> None:
        """Watch, until cancelled."""
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            self.longest_s = max(self.longest_s, now - last)
            last = now


async def measure(port: int) -> Table:
    table = Table("questions", "all of them, s", "one, ms", "loop held up, ms", box=None)
    spec = ModelSpec(model="none", base_url=f"http://127.0.0.1:{port}/v1")
    watch = Watch()
    watching = asyncio.create_task(watch.run())

    def row(name: str, began: float, count: int) -> None:
        took = time.perf_counter() - began
        table.add_row(name, f"{took:.2f}", f"{1000 * took / count:.2f}", f"{1000 * watch.longest_s:.0f}")
        watch.longest_s = 0.0

    async with open_chat() as chat:
        began = time.perf_counter()
        await chat.complete(spec, MESSAGES)
        row("the first, with the SDK's import", began, 1)
        began = time.perf_counter()
        for _ in range(200):
            await chat.complete(spec, MESSAGES)
        row("200, one after the other", began, 200)
        for count in AT_ONCE:
            began = time.perf_counter()
            async with asyncio.TaskGroup() as asking:
                for _ in range(count):
                    asking.create_task(chat.complete(spec, MESSAGES))
            row(f"{count} at once", began, count)
    watching.cancel()
    return table


def main() -> None:
    command = [sys.executable, __file__, "serve"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            Console().print(asyncio.run(measure(int(server.stdout.readline()))))
        finally:
            server.terminate()


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["serve"] else main()
