# ruff: noqa: D103 - their names say what they do
"""A server as the official SDK makes them: on stdio, or with `http` as its argument on a free port, which it prints."""

from __future__ import annotations

import base64
import socket
import sys
from collections.abc import Callable
from typing import Any

import anyio
import mcp_types as types
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

Arguments = dict[str, Any]
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n not much of a picture").decode()
NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
POINT = {
    "$defs": {"Point": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
    "type": "object",
    "properties": {"point": {"$ref": "#/$defs/Point"}},
    "required": ["point"],
    "title": "PointArguments",
}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
TOTAL = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}

TOOLS = [
    types.Tool(name="add", description="Add two numbers.", input_schema=NUMBERS),
    types.Tool(name="image", description="A picture.", input_schema=NOTHING),
    types.Tool(name="sound", description="A sound.", input_schema=NOTHING),
    types.Tool(name="total", description="A structured total.", input_schema=NUMBERS, output_schema=TOTAL),
    types.Tool(name="files", description="Embedded resources and a link.", input_schema=NOTHING),
    types.Tool(name="refuse", description="An answer that is an error.", input_schema=NOTHING),
    types.Tool(name="nothing", description="An answer with nothing in it.", input_schema=NOTHING),
    types.Tool(name="long", description="A long text.", input_schema=NOTHING),
    types.Tool(name="move.point", description="A name with a dot, a schema with a reference.", input_schema=POINT),
    types.Tool(name="wait", description="Answer when every call that is wanted has come.", input_schema=NUMBERS),
]
PER_PAGE = 5
waiting = 0
all_here = anyio.Event()


async def list_tools(
    _: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    start = int(params.cursor) if params is not None and params.cursor else 0
    end = start + PER_PAGE
    return types.ListToolsResult(tools=TOOLS[start:end], next_cursor=str(end) if end < len(TOOLS) else None)


async def call_tool(_: ServerRequestContext[Any], params: types.CallToolRequestParams) -> types.CallToolResult:
    arguments = params.arguments or {}
    if params.name == "wait":
        return await wait_for_all(arguments["a"])
    return ANSWERS[params.name](arguments)


def files(_: Arguments) -> types.CallToolResult:
    text = types.TextResourceContents(uri="file:///notes.txt", mime_type="text/plain", text="the notes")
    blob = types.BlobResourceContents(uri="file:///data.bin", blob=PIXEL)
    link = types.ResourceLink(name="manual", uri="https://example.com/manual", description="the manual")
    return of(types.EmbeddedResource(resource=text), types.EmbeddedResource(resource=blob), link)


async def wait_for_all(count: int) -> types.CallToolResult:
    global waiting
    waiting += 1
    if waiting == count:
        all_here.set()
    await all_here.wait()
    return said(f"{count} at once")


def of(*blocks: Any) -> types.CallToolResult:
    return types.CallToolResult(content=list(blocks))


def said(text: str) -> types.CallToolResult:
    return of(types.TextContent(text=text))


ANSWERS: dict[str, Callable[[Arguments], types.CallToolResult]] = {
    "add": lambda arguments: said(str(arguments["a"] + arguments["b"])),
    "image": lambda _: of(types.TextContent(text="before"), types.ImageContent(data=PIXEL, mime_type="image/png")),
    "sound": lambda _: of(types.AudioContent(data=PIXEL, mime_type="audio/wav")),
    "total": lambda arguments: types.CallToolResult(
        content=[], structured_content={"total": arguments["a"] + arguments["b"]}
    ),
    "files": files,
    "refuse": lambda _: types.CallToolResult(content=[types.TextContent(text="no such order")], is_error=True),
    "nothing": lambda _: of(),
    "long": lambda _: said("x" * 2_000_000),
    "move.point": lambda _: said("moved"),
}


async def over_stdio(server: Server[Any]) -> None:
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def over_http(server: Server[Any], *, as_json: bool) -> None:
    # Of a socket that does not say TCP, the loop leaves Nagle's algorithm on.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(100)
        sys.stdout.write(f"{listening.getsockname()[1]}\n")
        sys.stdout.flush()
        app = server.streamable_http_app(json_response=as_json)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


if __name__ == "__main__":
    made = Server("good", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    if "http" in sys.argv:
        over_http(made, as_json="json" in sys.argv)
    else:
        anyio.run(over_stdio, made)
