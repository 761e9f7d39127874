"""What a server may write, whatever the transport: answers to what was asked, and not too much of anything else."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from mcp_types import INVALID_REQUEST, PARSE_ERROR, JSONRPCError, JSONRPCMessage, JSONRPCRequest, JSONRPCResponse

from agent_env.envs._mcp_tail import Tail

__all__ = ["MAX_MESSAGE_BYTES", "EndedError", "Watch", "is_too_much"]

MAX_MESSAGE_BYTES = 8 * 2**20
"""The largest message. The text of an answer is cut at 100,000 characters in any case; this is for its images."""
_MAX_TEXTS = 50_000
_MAX_BARE_BYTES = 512 * 1024
"""How many texts, and how much beside texts, a message may have: the SDK reads it in one go, on the loop of all episodes."""
_SMALL_BYTES = 256 * 1024
_UNASKED_PER_MINUTE = 10_000
_UNASKED_BYTES_PER_MINUTE = 64 * 2**20
"""How much that answers nothing a server may write: notifications, requests, lines that are no messages."""
_MINUTE_S = 60.0
_SHOWN_CHARS = 200


class EndedError(Exception):
    """Nothing more is read of this server; its `Watch` says why."""


class Watch:
    """Sees every message, and says when a server has done what no server may do.

    Args:
        tail: Where what it says beside the protocol is kept.
    """

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self.fault = ""
        """What it did, as what follows its name in a sentence."""
        self.is_over = False
        """Whether nothing more comes of it."""
        self.when_over: Callable[[], None] = lambda: None
        self._asked: set[int] = set()
        self._last_id = 0
        self._unasked = 0
        self._unasked_bytes = 0
        self._minute_began = monotonic()

    def over(self) -> None:
        """Take note that nothing more comes."""
        self.is_over = True
        self.when_over()

    def ended(self, fault: str) -> EndedError:
        """Take note of what the server did, and return what to raise."""
        self.fault = self.fault or fault
        return EndedError()

    def sent(self, message: JSONRPCMessage) -> None:
        """Take note of a message to the server."""
        if isinstance(message, JSONRPCRequest) and isinstance(message.id, int):
            self._asked.add(message.id)
            self._last_id = max(self._last_id, message.id)

    def received(self, message: JSONRPCMessage, size_bytes: int = 0) -> bool:
        """Take note of a message from the server; return whether it is for the session.

        Raises:
            EndedError: When it is none that a server may send.
        """
        if isinstance(message, JSONRPCError) and message.id is None:
            said = message.error.message[:_SHOWN_CHARS]
            if message.error.code in (PARSE_ERROR, INVALID_REQUEST):
                raise self.ended(f"could not read a message of ours: {said}")
            self.unasked(size_bytes, f"an error that answers no request: {said}")
            return False
        if isinstance(message, JSONRPCResponse | JSONRPCError):
            number = _number(message.id)
            if number is None or not 0 < number <= self._last_id:
                raise self.ended(f"answered a request that was never made (id {str(message.id)[:20]})")
            if number in self._asked:
                self._asked.remove(number)
                return True
        self.unasked(size_bytes)
        return True

    def unasked(self, size_bytes: int, line: str = "") -> None:
        """Count something that answers nothing.

        Args:
            size_bytes: How much it is.
            line: What to keep of it, where the session is not told.

        Raises:
            EndedError: When it is too much.
        """
        if line:
            self.tail.line(line)
        now = monotonic()
        if now - self._minute_began > _MINUTE_S:
            self._minute_began, self._unasked, self._unasked_bytes = now, 0, 0
        self._unasked += 1
        self._unasked_bytes += size_bytes
        if self._unasked > _UNASKED_PER_MINUTE or self._unasked_bytes > _UNASKED_BYTES_PER_MINUTE:
            raise self.ended("wrote without end what nobody had asked for")


def _number(given: int | str | None) -> int | None:
    """A request's id as we wrote it: some servers answer with the text of it."""
    if isinstance(given, str):
        return int(given) if given.isdecimal() and len(given) < 20 else None
    return given


def is_too_much(message: bytes) -> bool:
    """Whether reading a message would hold up the loop: it has very many values. A long text is read quickly."""
    if len(message) <= _SMALL_BYTES:
        return False
    plain = message.replace(b"\\\\", b"").replace(b'\\"', b"")
    return plain.count(b'"') > 2 * _MAX_TEXTS or sum(map(len, plain.split(b'"')[::2])) > _MAX_BARE_BYTES
