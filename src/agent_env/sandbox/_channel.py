"""Our end of the socket to the first process of a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from agent_env.errors import SandboxLostError
from agent_env.sandbox._inside.wire import pack, unpack
from agent_env.sandbox.contract import MAX_FILE_BYTES

__all__ = ["Channel"]

_MAX_MESSAGE_BYTES = MAX_FILE_BYTES + 2**20


class Channel(asyncio.Protocol):
    """Requests and their answers, several at a time. What comes from the other end is not trusted to make sense."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._waiting: dict[bytes, asyncio.Future[list[bytes]]] = {}
        self._last_key = 0
        self._is_over = False
        self.is_ready: asyncio.Future[bytes] = self._loop.create_future()
        """Done when the other end has said so, with the code that it had to make for itself; an error when it has ended before."""
        self.has_ended = asyncio.Event()
        self.was_lost = False
        """Whether the other end went before it was told to."""
        self.why_lost: Callable[[], str] = lambda: "it has ended"
        """Asked when the other end is gone."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            size = int.from_bytes(self._received[:4], "big")
            if size > _MAX_MESSAGE_BYTES:
                self._lose("its first process answers nonsense")
                return
            if len(self._received) < 4 + size:
                return
            fields = unpack(bytes(self._received[4 : 4 + size]))
            del self._received[: 4 + size]
            self._take(fields)

    def _take(self, fields: list[bytes]) -> None:
        key, answer = fields[:1], fields[1:]
        if key == [b"0"]:
            if not self.is_ready.done():
                self.is_ready.set_result(answer[1] if len(answer) > 1 else b"")
            return
        waiting = self._waiting.pop(key[0], None) if key else None
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self.was_lost = self.was_lost or not self._is_over
        self.has_ended.set()
        self._fail("")  # what the other end said last tells more than how the socket broke

    def _lose(self, why: str) -> None:
        self.was_lost = True
        self._fail(why)
        self.close()

    def _fail(self, why: str) -> None:
        if not self._waiting and self.is_ready.done():
            return
        lost = SandboxLostError(f"the sandbox is lost: {why or self.why_lost()}")
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(lost)
        if not self.is_ready.done():
            self.is_ready.set_exception(lost)
            self.is_ready.exception()  # nobody may wait for it any more

    @property
    def is_open(self) -> bool:
        """Whether a request may have an answer."""
        return not (self._is_over or self._transport is None or self._transport.is_closing() or self.has_ended.is_set())

    def send_raw(self, data: bytes) -> None:
        """Send what is no message; nothing where the other end is gone."""
        if self._transport is not None and self.is_open:
            self._transport.write(data)

    def post(self, *fields: bytes) -> None:
        """Send a message that has no answer; nothing where the other end is gone."""
        self.send_raw(pack(*fields))

    async def ask(self, what: bytes, *fields: bytes, within_s: float) -> list[bytes]:
        """Send a request and return its answer.

        Args:
            what: The method.
            fields: Its fields after the id.
            within_s: Seconds after which the sandbox counts as lost.

        Raises:
            SandboxLostError: When the other end is gone, or does not answer.
        """
        if not self.is_open:
            raise SandboxLostError(f"the sandbox is lost: {self.why_lost()}")
        self._last_key += 1
        key = str(self._last_key).encode()
        waiting = self._waiting[key] = self._loop.create_future()
        clock = asyncio.timeout(within_s)
        try:
            self.post(what, key, *fields)
            async with clock:
                return await waiting
        except TimeoutError:
            if not clock.expired():
                raise
            raise SandboxLostError(f"the sandbox is lost: it does not answer within {within_s:g} s") from None
        finally:
            if self._waiting.pop(key, None) is not None:
                self.post(b"kill", key)  # nobody waits for it any more

    def end(self) -> None:
        """Have the other end notice that it is over."""
        if self._transport is not None and self.is_open:
            self._is_over = True
            self._transport.write_eof()

    def close(self) -> None:
        """Give the socket back, whatever is in it."""
        self._is_over = True
        if self._transport is not None:
            self._transport.abort()
