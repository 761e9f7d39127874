"""What every request and answer passes: the host it names, its method, and the headers that keep a page to itself."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Guard"]

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:;"
    " base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Guard:
    """Lets a browser on this machine read, and nobody else.

    A page of another site can make a browser ask this server, and with a name that it points at 127.0.0.1 (DNS rebinding)
    read the answer: so the Host header must name this machine.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        await self._answering(scope)(scope, receive, _with_headers(send))

    def _answering(self, scope: Scope) -> ASGIApp:
        host = Headers(scope=scope).get("host", "")
        if _without_port(host) not in _LOOPBACK:
            return PlainTextResponse("The explorer answers to localhost only.\n", status_code=403)
        if scope["method"] not in {"GET", "HEAD"}:
            return PlainTextResponse("The explorer is read-only.\n", status_code=405, headers={"allow": "GET, HEAD"})
        return self._app


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            _add(message)
        await send(message)

    return sending


def _add(message: MutableMapping[str, Any]) -> None:
    headers = MutableHeaders(raw=list(message.get("headers", [])))
    for name, value in _HEADERS.items():
        headers[name] = value
    headers.setdefault("cache-control", "no-store")
    message["headers"] = headers.raw
