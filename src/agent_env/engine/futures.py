"""Answers that are not there yet: every long request gets an id, and the client asks for the answer by it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_env.errors import EngineError

__all__ = ["Future", "Futures", "Reply"]

FETCHED_TTL_S = 30.0
"""How long an answer is kept after it was fetched: a client whose connection broke asks again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The body of an answer."""

    body: bytes
    media_type: str = "application/json"

    @classmethod
    def json(cls, document: Mapping[str, Any]) -> Reply:
        """An answer as JSON."""
        return cls(body=json.dumps(document, separators=(",", ":")).encode())

    @classmethod
    def failure(cls, message: str, *, by_client: bool) -> Reply:
        """An answer that says what went wrong; the SDK raises RequestFailedError with it."""
        return cls.json({"error": message, "category": "user" if by_client else "server"})


@dataclass(slots=True, kw_only=True, eq=False)
class Future:
    """One request under way or answered."""

    request_id: str
    accepted: Mapping[str, Any]
    """What the request itself was answered; a repeated request gets it again."""
    reply: Reply | None = None
    expires: float | None = None
    """When it may be forgotten, on the monotonic clock; None while it is under way."""
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self, timeout_s: float) -> Reply | None:
        """The answer, or None when it is not there in time."""
        if self.reply is None:
            try:
                async with asyncio.timeout(timeout_s):
                    await self.ready.wait()
            except TimeoutError:
                return None
        self.expires = min(self.expires or 0.0, time.monotonic() + FETCHED_TTL_S)
        return self.reply


class Futures:
    """All requests that are under way, and the answered ones for a while. For the event loop's thread."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._loop = asyncio.get_running_loop()
        self._by_id: dict[str, Future] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def find(self, request_id: str) -> Future | None:
        """The request of that id, if it is still known."""
        return self._by_id.get(request_id)

    def add(self, request_id: str, accepted: Mapping[str, Any] | None = None) -> Future:
        """Begin a request."""
        future = Future(request_id=request_id, accepted={"request_id": request_id, **(accepted or {})})
        self._by_id[request_id] = future
        return future

    def resolve(self, future: Future, reply: Reply) -> None:
        """Give the answer. Only the first one counts."""
        if future.reply is None:
            future.reply = reply
            future.expires = time.monotonic() + self._ttl_s
            future.ready.set()

    def fail(self, future: Future, error: BaseException) -> None:
        """Give an error as the answer."""
        if isinstance(error, EngineError):
            self.resolve(future, Reply.failure(str(error), by_client=True))
        else:
            message = f"the engine failed: {type(error).__name__}: {error}"
            self.resolve(future, Reply.failure(message, by_client=False))

    def from_thread(self, future: Future, encode: Callable[[Any], Reply]) -> Callable[[Any], None]:
        """What another thread tells a result, or the error that the work raised, to.

        Args:
            future: The request.
            encode: Makes an answer of a result; called in the event loop's thread.
        """

        def settle(result: Any) -> None:
            if isinstance(result, BaseException):
                self.fail(future, result)
            else:
                self.resolve(future, encode(result))

        def tell(result: Any) -> None:
            try:
                self._loop.call_soon_threadsafe(settle, result)
            except RuntimeError:
                # The server is ending; nobody waits for the answer.
                if not self._loop.is_closed():
                    raise

        return tell

    def evict(self) -> None:
        """Forget answers whose time is over."""
        now = time.monotonic()
        self._by_id = {
            key: future for key, future in self._by_id.items() if future.expires is None or future.expires > now
        }
