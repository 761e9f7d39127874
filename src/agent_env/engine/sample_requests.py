"""Samplers, and the requests to them. For the event loop's thread; the compute thread samples."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent_env.engine import protocol
from agent_env.engine.checkpoints import CheckpointStore, CheckpointUri
from agent_env.engine.compute import Compute, SamplerSource
from agent_env.engine.futures import Futures, Reply
from agent_env.engine.model import Weights
from agent_env.engine.protocol import field as read
from agent_env.engine.runs import BaseModel, checkpoint_weights, same_model
from agent_env.engine.sampler import SampleJob
from agent_env.engine.sessions import Session, Sessions
from agent_env.errors import EngineError

__all__ = ["BusyError", "SampleRequests"]

MAX_UNDER_WAY = 16384
"""Sample requests; the SDK itself keeps to 2,000 a client."""


class BusyError(EngineError):
    """Too much is under way: HTTP 429, and the SDK comes again later."""


@dataclass(slots=True, kw_only=True, eq=False)
class Sampler:
    """Something to sample from."""

    sampler_id: str
    session_id: str
    source: SamplerSource
    model_path: str | None


class SampleRequests:
    """The samplers of all clients."""

    def __init__(
        self,
        base: BaseModel,
        store: CheckpointStore,
        compute: Compute,
        sessions: Sessions,
        futures: Futures,
        *,
        stop_strings: bool,
        snapshot_bytes: int,
    ) -> None:
        self._base = base
        self._store = store
        self._compute = compute
        self._sessions = sessions
        self._futures = futures
        self._stop_strings = stop_strings
        self._max_snapshots = max(2, snapshot_bytes // base.size_bytes)
        self._samplers: dict[str, Sampler] = {}
        self._snapshots: OrderedDict[str, None] = OrderedDict()
        self._jobs: dict[str, SampleJob] = {}

    def create(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """A sampler of the base model or of a checkpoint."""
        session = self._sessions.of(document)
        sampler_id = self.sampler_id(session, document)
        path = read(document, "model_path", str, None)
        if path is None:
            name = self._base.check_name(read(document, "base_model", str))
            source = SamplerSource(owner=f"base:{name}", load=lambda: self._base.weights)
        else:
            source = self._checkpoint_source(CheckpointUri.parse(path))
        self._add(Sampler(sampler_id=sampler_id, session_id=session.session_id, source=source, model_path=path))
        return {"sampling_session_id": sampler_id}

    def sampler_id(self, session: Session, document: Mapping[str, Any]) -> str:
        """The id of the sampler that a request asks for."""
        return f"{session.session_id}:sample:{read(document, 'sampling_session_seq_id', int)}"

    def add_snapshot(self, session: Session, sampler_id: str, weights: Weights) -> None:
        """A sampler of weights that are in memory alone; of too many, the one used longest ago goes."""
        source = SamplerSource(owner=sampler_id, load=lambda: weights)
        self._add(Sampler(sampler_id=sampler_id, session_id=session.session_id, source=source, model_path=None))
        self._snapshots[sampler_id] = None
        while len(self._snapshots) > self._max_snapshots:
            self._samplers.pop(self._snapshots.popitem(last=False)[0], None)

    def _add(self, sampler: Sampler) -> None:
        self._samplers[sampler.sampler_id] = sampler

    def _checkpoint_source(self, uri: CheckpointUri) -> SamplerSource:
        same_model(self._base, self._store.run(uri.run_id), uri)
        # With the time, so that a checkpoint that was replaced is not sampled from what was there before.
        owner = f"{uri}@{self._store.saved_at(uri)}"
        return SamplerSource(owner=owner, load=lambda: checkpoint_weights(self._base, self._store, uri))

    def info(self, sampler_id: str) -> dict[str, Any]:
        """What a sampler is."""
        sampler = self._sampler(sampler_id)
        return {"sampler_id": sampler_id, "base_model": self._base.name, "model_path": sampler.model_path}

    def _sampler(self, sampler_id: str) -> Sampler:
        sampler = self._samplers.get(sampler_id)
        if sampler is None:
            raise self._sessions.gone("sampling session", sampler_id)
        if sampler_id in self._snapshots:
            self._snapshots.move_to_end(sampler_id)
        return sampler

    def sample(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Queue a sample request."""
        sampler = self._sampler(read(document, "sampling_session_id", str))
        request_id = f"{sampler.sampler_id}:{read(document, 'seq_id', int)}"
        known = self._futures.find(request_id)
        if known is not None:
            return known.accepted
        if len(self._jobs) >= MAX_UNDER_WAY:
            raise BusyError(f"{MAX_UNDER_WAY} sample requests are under way")
        job = protocol.parse_sample(
            document,
            vocabulary=self._base.architecture.vocabulary,
            context=self._base.architecture.context,
            end_tokens=self._base.architecture.end_tokens,
            stop_strings=self._stop_strings,
        )
        ids = [f"{request_id}:{sample}" for sample in range(job.samples)]
        future = self._futures.add(request_id, {"sample_sequence_ids": ids})
        self._jobs[request_id] = job

        def encode(result: SampleJob) -> Reply:
            self._jobs.pop(request_id, None)
            return protocol.sample_reply(result)

        self._compute.sample(sampler.source, job, self._futures.from_thread(future, encode))
        return future.accepted

    def cancel(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Stop a sample request that nobody waits for any more."""
        request_id = read(document, "request_id", str)
        job = self._jobs.pop(request_id, None)
        future = self._futures.find(request_id)
        if job is not None and future is not None:
            job.cancelled = True
            self._futures.resolve(future, Reply.failure("cancelled by the client", by_client=True))
        return {}

    def evict(self) -> None:
        """Forget the samplers of clients that have gone, and requests that have ended."""
        self._samplers = {
            key: sampler for key, sampler in self._samplers.items() if self._sessions.knows(sampler.session_id)
        }
        self._snapshots = OrderedDict((key, None) for key in self._snapshots if key in self._samplers)
        under_way = {key: self._futures.find(key) for key in self._jobs}
        self._jobs = {key: job for key, job in self._jobs.items() if (found := under_way[key]) and not found.reply}
