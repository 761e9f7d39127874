"""The clients that an engine knows, and the ids that it gives out.

Every id begins with the mark of this process. An id with another mark was given out by an engine that has ended, and
the client is told so instead of waiting for it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from agent_env.engine.protocol import field
from agent_env.errors import EngineError

__all__ = ["GoneError", "Session", "Sessions"]


class GoneError(EngineError):
    """An id that is not known (any more): HTTP 404."""


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """One client."""

    session_id: str
    seen: float
    """Its last sign of life, on the monotonic clock."""


class Sessions:
    """The clients, for the event loop's thread."""

    def __init__(self, ttl_s: float) -> None:
        self._ttl_s = ttl_s
        self._mark = uuid4().hex[:12]
        self._made = 0
        self._by_id: dict[str, Session] = {}

    def create(self) -> Session:
        """A new client."""
        self._made += 1
        session = Session(session_id=f"{self._mark}-{self._made}", seen=time.monotonic())
        self._by_id[session.session_id] = session
        return session

    def of(self, document: Mapping[str, Any]) -> Session:
        """The client that a request names.

        Raises:
            GoneError: When it is not known.
        """
        session_id = field(document, "session_id", str)
        session = self._by_id.get(session_id)
        if session is None:
            raise self.gone("session", session_id)
        return session

    def finish(self, session_id: str) -> None:
        """Forget a client that has said it is done; what it asks after that is refused. Saying so again is no error.

        Raises:
            GoneError: When it is not a client of this process.
        """
        if self._by_id.pop(session_id, None) is None and not self.ours(session_id):
            raise self.gone("session", session_id)

    def knows(self, session_id: str) -> bool:
        """Whether the client is known."""
        return session_id in self._by_id

    def ours(self, name: str) -> bool:
        """Whether this process gave out an id."""
        return name.startswith(f"{self._mark}-")

    def gone(self, what: str, name: str) -> GoneError:
        """The error for an id that is not known."""
        if self.ours(name):
            return GoneError(f"{what} {name!r} is not known (any more); make a new client")
        return GoneError(
            f"{what} {name!r} is not of this engine process: the engine was started anew. Make a new ServiceClient "
            "and go on from a checkpoint (create_training_client_from_state_with_optimizer)"
        )

    def evict(self) -> None:
        """Forget the clients that gave no sign of life in a while."""
        oldest = time.monotonic() - self._ttl_s
        self._by_id = {key: session for key, session in self._by_id.items() if session.seen >= oldest}
