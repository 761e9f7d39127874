"""Answers that are not there yet: every long request gets an id, and the client asks for the answer by it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Future", "Futures", "Reply"]


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
    resolved_at: float | None = None
    _ready: asyncio.Event = field(default_factory=asyncio.Event)

    def resolve(self, reply: Reply) -> None:
        """Give the answer. Only the first one counts."""
        if self.reply is None:
            self.reply = reply
            self.resolved_at = time.monotonic()
            self._ready.set()

    async def wait(self, timeout_s: float) -> Reply | None:
        """The answer, or None when it is not there in time."""
        if self.reply is None:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._ready.wait()
            except TimeoutError:
                return None
        return self.reply


class Futures:
    """All requests that are under way, and the answered ones for a while. For the event loop's thread."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
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

    def evict(self) -> None:
        """Forget answers whose time to live is over."""
        oldest = time.monotonic() - self._ttl_s
        for future in list(self._by_id.values()):
            if future.resolved_at is not None and future.resolved_at < oldest:
                del self._by_id[future.request_id]
