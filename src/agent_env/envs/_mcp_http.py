"""A server at a URL: the SDK's transport for streamable HTTP, bounded, and with the reason when it fails.

The SDK says of an HTTP error only that there was one. The status is noted here as it arrives, for the call that it belongs
to: the SDK sends a message in the context of the task that asked for it.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, cast

import anyio
import httpx2
from anyio import to_thread
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import INVALID_PARAMS
from pydantic_core import from_json

from agent_env.envs._mcp_streams import Reading, Streams, Writing
from agent_env.envs._mcp_watch import MAX_MESSAGE_BYTES, EndedError, Watch, is_too_much

if TYPE_CHECKING:
    from mcp.client._transport import ReadStream, WriteStream

__all__ = ["CallStatus", "HttpServer", "noted_status", "transport_error"]

_CONNECT_S = 10.0
_END_SESSION_S = 2.0
"""Seconds for telling the server that a session has ended."""
_MAX_EVENT_TEXTS = 50_000


@dataclass(slots=True)
class CallStatus:
    """The HTTP error that a call was answered with, where it was."""

    status: int = 0

    def is_error(self, code: int) -> bool:
        """Whether it says more than the JSON-RPC error that came with it: invalid params are answered with 400."""
        return self.status != 0 and (self.status != HTTPStatus.BAD_REQUEST or code != INVALID_PARAMS)

    def __str__(self) -> str:
        try:
            return f"HTTP {self.status} {HTTPStatus(self.status).phrase}"
        except ValueError:
            return f"HTTP {self.status}"


noted_status: ContextVar[CallStatus | None] = ContextVar("agent_env_mcp_status", default=None)


class HttpServer:
    """One session with a server at a URL; used once."""

    is_remote = True

    def __init__(self, url: str, headers: Mapping[str, str], watch: Watch) -> None:
        self._url = url
        self._headers = headers
        self._watch = watch

    @asynccontextmanager
    async def streams(self) -> AsyncGenerator[Streams]:
        """Open the streams of messages; nothing is sent yet.

        Raises:
            httpx2.HTTPError: When the connection fails while the block is open; in a group of exceptions.
        """
        client = httpx2.AsyncClient(
            headers={**self._headers, "accept-encoding": "identity"},
            # A call has a timeout of its own, and a stream for the server's messages may be silent for hours.
            timeout=httpx2.Timeout(None, connect=_CONNECT_S),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
            verify=_tls() if _tls.cache_info().currsize else await to_thread.run_sync(_tls),
            event_hooks={"request": [self._on_request], "response": [self._on_response]},
        )
        async with (
            client,
            streamable_http_client(self._url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
        ):
            reading, writing = streams
            yield _Incoming(reading, self._watch), _Outgoing(writing, self._watch)

    async def ending(self) -> str:
        """Say how the server ended, as what follows its name in a sentence."""
        return "closed the connection"

    async def _on_request(self, request: httpx2.Request) -> None:
        if self._watch.fault:
            raise EndedError
        if request.method == "DELETE":
            request.extensions["timeout"] = httpx2.Timeout(_END_SESSION_S).as_dict()

    async def _on_response(self, response: httpx2.Response) -> None:
        noted = noted_status.get()
        if noted is not None and response.status_code >= HTTPStatus.BAD_REQUEST and _asks(response.request):
            noted.status = response.status_code
        encoding = response.headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            raise self._watch.ended(f"compresses its answers ({encoding[:20]}) without being asked to")
        is_events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        stream = cast("httpx2.AsyncByteStream", response.stream)
        response.stream = (_Events if is_events else _Whole)(stream, self._watch)


@lru_cache(maxsize=1)
def _tls() -> ssl.SSLContext:
    """Takes 20 to 40 ms to make, and is the same for all."""
    return httpx2.create_ssl_context()


def _asks(request: httpx2.Request) -> bool:
    """Whether it is a call's, and not a notification or the stream for the server's own messages, which may fail."""
    return request.method == "POST" and "id" in from_json(request.content)


def transport_error(exc: BaseException) -> str | None:
    """Say what went wrong on the way to a server, as what follows its name; None for anything else."""
    said = " ".join(str(exc).split()).removesuffix(".") or type(exc).__name__
    if isinstance(exc, httpx2.ConnectTimeout):
        return f"cannot be reached: no connection in {_CONNECT_S:g} s"
    if isinstance(exc, httpx2.ConnectError | httpx2.ProxyError | httpx2.UnsupportedProtocol | httpx2.InvalidURL):
        return f"cannot be reached: {said}"
    if isinstance(exc, httpx2.HTTPError):
        return f"broke off the connection: {said}"
    return None


class _Whole(httpx2.AsyncByteStream):
    """A body that is read as a whole."""

    def __init__(self, inner: httpx2.AsyncByteStream, watch: Watch) -> None:
        self._inner = inner
        self._watch = watch

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = bytearray()
        async for chunk in self._inner:
            body += chunk
            if len(body) > MAX_MESSAGE_BYTES:
                raise self._watch.ended(f"sent a message of more than {MAX_MESSAGE_BYTES // 2**20} MiB")
        if is_too_much(bytes(body)):
            raise self._watch.ended("sent a message of too many values: have it send less at once")
        yield bytes(body)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Events(httpx2.AsyncByteStream):
    """A stream of events; how large one may be is the SDK's to check, how many values it may have is not."""

    def __init__(self, inner: httpx2.AsyncByteStream, watch: Watch) -> None:
        self._inner = inner
        self._watch = watch

    async def __aiter__(self) -> AsyncIterator[bytes]:
        quotes = 0
        async for chunk in self._inner:
            *before, last = chunk.replace(b"\r", b"").rsplit(b"\n\n", 1)
            quotes = _quotes(last) + (0 if before else quotes)
            if quotes > 2 * _MAX_EVENT_TEXTS:
                raise self._watch.ended("sent a message of too many values: have it send less at once")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


def _quotes(data: bytes) -> int:
    return data.count(b'"') - data.count(b'\\"')


class _Incoming(Reading):
    """What the server sends, seen by the watch first."""

    def __init__(self, inner: ReadStream[SessionMessage | Exception], watch: Watch) -> None:
        self._inner = inner
        self._watch = watch

    async def receive(self) -> SessionMessage | Exception:
        try:
            while True:
                item = await self._inner.receive()
                if isinstance(item, Exception):
                    self._watch.unasked(0, f"not understood: {str(item)[:200]}")
                elif self._watch.received(item.message):
                    return item
        except (anyio.EndOfStream, anyio.ClosedResourceError, EndedError):
            self._watch.over()
            raise anyio.EndOfStream from None

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Outgoing(Writing):
    """What goes to the server, seen by the watch first."""

    def __init__(self, inner: WriteStream[SessionMessage], watch: Watch) -> None:
        self._inner = inner
        self._watch = watch

    async def send(self, item: SessionMessage, /) -> None:
        self._watch.sent(item.message)
        await self._inner.send(item)

    async def aclose(self) -> None:
        await self._inner.aclose()
