"""The engine behind the routes: sessions, training runs, samplers and answers, for the event loop's thread."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from agent_env.engine.checkpoints import CheckpointStore
from agent_env.engine.compute import Compute
from agent_env.engine.futures import Future, Futures, Reply
from agent_env.engine.options import EngineOptions
from agent_env.engine.protocol import field as read
from agent_env.engine.run_requests import RunRequests
from agent_env.engine.runs import BaseModel
from agent_env.engine.sample_requests import SampleRequests
from agent_env.engine.sessions import Sessions

__all__ = ["Service"]


class Service:
    """Everything that the routes call. Made inside the event loop."""

    def __init__(
        self,
        base: BaseModel,
        store: CheckpointStore,
        compute: Compute,
        options: EngineOptions,
        *,
        stop_strings: bool,
    ) -> None:
        self._base = base
        self.store = store
        self._sessions = Sessions(options.session_ttl_s)
        self._futures = Futures(options.result_ttl_s)
        self.samples = SampleRequests(
            base,
            store,
            compute,
            self._sessions,
            self._futures,
            stop_strings=stop_strings,
            snapshot_bytes=options.snapshot_bytes,
        )
        self.runs = RunRequests(base, store, compute, self._sessions, self._futures, self.samples)

    def create_session(self) -> dict[str, Any]:
        """A new client."""
        return {"session_id": self._sessions.create().session_id}

    def heartbeat(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """A client's sign of life."""
        self._sessions.of(document).seen = time.monotonic()
        return {}

    def finish(self, session_id: str) -> dict[str, Any]:
        """A client is done: what is kept for it goes with the next eviction."""
        self._sessions.finish(session_id)
        return {}

    def capabilities(self) -> dict[str, Any]:
        """What is served here."""
        model = {
            "model_name": self._base.name,
            "max_context_length": self._base.architecture.context,
            "trainable": True,
            "sampleable": True,
        }
        return {"supported_models": [model]}

    def future(self, document: Mapping[str, Any]) -> Future | Reply:
        """The request that a client asks for, or the answer that it is of an engine that has ended.

        Raises:
            GoneError: When its answer is no longer kept.
        """
        request_id = read(document, "request_id", str)
        future = self._futures.find(request_id)
        if future is not None:
            return future
        gone = self._sessions.gone("request", request_id)
        if self._sessions.ours(request_id):
            raise gone
        return Reply.failure(str(gone), by_client=True)

    def evict(self) -> None:
        """Forget what nobody has asked for in a while."""
        self._futures.evict()
        self._sessions.evict()
        self.samples.evict()
        self.runs.evict()
