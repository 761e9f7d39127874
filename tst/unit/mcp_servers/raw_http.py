# ruff: noqa: D103 - their names say what they do
"""Servers at a URL without the SDK, most of them bad: the first argument says what one does. It prints its port.

It handshakes and lists the tool `act`; `at_start:` before a behaviour has it come with the first request, `at_list:` with
the second, and not with a call.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ACT = {"name": "act", "description": "Do it.", "inputSchema": {"type": "object", "properties": {}}}
RESULTS: dict[str, Any] = {
    "initialize": {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "raw", "version": "1"},
    },
    "tools/list": {"tools": [ACT]},
    "tools/call": {"content": [{"type": "text", "text": "done"}]},
}
NAME, _, ARGUMENT = sys.argv[1].removeprefix("at_start:").removeprefix("at_list:").partition(":")
AT = {"at_start": "initialize", "at_list": "tools/list"}.get(sys.argv[1].partition(":")[0], "tools/call")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 2**16

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.reply(405, b"")

    def do_DELETE(self) -> None:
        if NAME == "hangs_at_end":
            threading.Event().wait()
        self.reply(200, b"")

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method = message.get("method")
        if method == AT:
            BEHAVIOURS[NAME](self, message)
        elif method in RESULTS:
            self.answer(message)
        else:
            self.reply(400 if NAME == "refuses_notifications" else 202, b"")

    def answer(self, message: dict[str, Any], **more: Any) -> None:
        result = {"jsonrpc": "2.0", "id": message["id"], "result": RESULTS[message["method"]], **more}
        self.reply(200, json.dumps(result).encode())

    def reply(self, status: int, body: bytes, *, kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.send_header("mcp-session-id", "session-1")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def begin(self, kind: str) -> None:
        """Begin an answer without a length."""
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


def with_status(handler: Handler, _: dict[str, Any]) -> None:
    handler.reply(int(ARGUMENT), b"<html>no</html>", kind="text/html")


def with_error(handler: Handler, message: dict[str, Any]) -> None:
    status, code = ARGUMENT.split(",")
    error = {"jsonrpc": "2.0", "id": message["id"], "error": {"code": int(code), "message": "the reason"}}
    handler.reply(int(status), json.dumps(error).encode())


def redirects(handler: Handler, _: dict[str, Any]) -> None:
    handler.reply(307, b"", location="http://elsewhere.invalid/mcp?token=1")


def hangs(handler: Handler, _: dict[str, Any]) -> None:
    threading.Event().wait()


def breaks_off(handler: Handler, message: dict[str, Any]) -> None:
    handler.begin("text/event-stream" if ARGUMENT == "events" else "application/json")
    handler.chunk(b"event: message\n" if ARGUMENT == "events" else b'{"jsonrpc"')
    handler.connection.close()
    handler.close_connection = True


def ends(handler: Handler, message: dict[str, Any]) -> None:
    os._exit(1)


def ends_stream(handler: Handler, message: dict[str, Any]) -> None:
    handler.begin("text/event-stream")
    handler.chunk(b": nothing\n\n")
    handler.chunk(b"")


def floods(handler: Handler, message: dict[str, Any]) -> None:
    handler.begin("text/event-stream" if ARGUMENT == "events" else "application/json")
    start = b"event: message\ndata: " if ARGUMENT == "events" else b""
    handler.chunk(start + b'{"jsonrpc": "2.0", "id": 1, "result": {"content": "')
    while True:
        handler.chunk(b"x" * 65536)


def log(level: str, said: str) -> bytes:
    params = {"level": level, "data": said}
    note = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": params})
    return b"event: message\ndata: " + note.encode() + b"\n\n"


def floods_notifications(handler: Handler, message: dict[str, Any]) -> None:
    handler.begin("text/event-stream")
    while True:
        handler.chunk(log("info", "on"))


def many_values(handler: Handler, message: dict[str, Any]) -> None:
    content = {"content": [{"type": "text", "text": "x"}] * 30_000}
    body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": content}).encode()
    if ARGUMENT == "events":
        handler.reply(200, b"event: message\ndata: " + body + b"\n\n", kind="text/event-stream")
    else:
        handler.reply(200, body)


def logs(handler: Handler, message: dict[str, Any]) -> None:
    """Logs before it breaks off."""
    handler.reply(200, log("error", "disk full"), kind="text/event-stream")


def repeats_key(handler: Handler, message: dict[str, Any]) -> None:
    """Says in an error of the protocol what it was sent."""
    said = f"unknown key {handler.headers.get('authorization')}"
    error = {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32600, "message": said}}
    handler.reply(200, json.dumps(error).encode())


def forgets_once(handler: Handler, message: dict[str, Any]) -> None:
    forgotten.append(message)
    if len(forgotten) == 1:
        handler.reply(404, b"<html>no</html>", kind="text/html")
    else:
        handler.answer(message)


forgotten: list[dict[str, Any]] = []
BEHAVIOURS: dict[str, Callable[[Handler, dict[str, Any]], None]] = {
    "answers": lambda handler, message: handler.answer(message),
    "refuses_notifications": with_error,
    "hangs_at_end": lambda handler, message: handler.answer(message),
    "status": with_status,
    "error": with_error,
    "redirects": redirects,
    "hangs": hangs,
    "breaks_off": breaks_off,
    "ends": ends,
    "ends_stream": ends_stream,
    "floods": floods,
    "floods_notifications": floods_notifications,
    "many_values": many_values,
    "logs": logs,
    "repeats_key": repeats_key,
    "forgets_once": forgets_once,
    "wrong_id": lambda handler, message: handler.answer(message, id=99),
    "not_json": lambda handler, _: handler.reply(200, b"hello"),
    "html": lambda handler, _: handler.reply(200, b"<html></html>", kind="text/html"),
    "accepted": lambda handler, _: handler.reply(202, b""),
    "compressed": lambda handler, _: handler.reply(200, b"x", content_encoding="gzip"),
    "key": lambda handler, message: handler.answer(
        message, result={"content": [{"type": "text", "text": handler.headers.get("authorization", "none")}]}
    ),
}


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass


if __name__ == "__main__":
    with Server(("127.0.0.1", 0), Handler) as server:
        if len(sys.argv) > 2:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(sys.argv[3], sys.argv[2])
            server.socket = context.wrap_socket(server.socket, server_side=True)
        sys.stdout.write(f"{server.server_address[1]}\n")
        sys.stdout.flush()
        server.serve_forever()
