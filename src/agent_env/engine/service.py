"""What the server knows: sessions, training runs, samplers. For the event loop's thread; the compute thread works.

Every id carries the mark of this process. An id with another mark was given out by an engine that has ended, and the
client is told so.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from uuid import uuid4

from agent_env.engine import protocol
from agent_env.engine.checkpoints import CheckpointKind, CheckpointStore, CheckpointUri
from agent_env.engine.compute import Compute, SamplerSource
from agent_env.engine.futures import Future, Futures, Reply
from agent_env.engine.options import EngineOptions
from agent_env.engine.parameters import LoraSettings
from agent_env.engine.protocol import field as read
from agent_env.engine.runs import (
    BaseModel,
    RunQueue,
    TrainingRun,
    checkpoint_weights,
    new_record,
    same_model,
)
from agent_env.engine.sampler import SampleJob
from agent_env.errors import EngineError

__all__ = ["GoneError", "Service"]

T = TypeVar("T")

MAX_SNAPSHOTS = 32
"""Samplers of one session whose weights are in memory alone; the one used longest ago goes first."""


class GoneError(EngineError):
    """An id that is not known (any more): HTTP 404."""


@dataclass(slots=True, kw_only=True, eq=False)
class Sampler:
    """Something to sample from."""

    sampler_id: str
    session_id: str
    source: SamplerSource
    model_path: str | None


@dataclass(slots=True, kw_only=True, eq=False)
class Run:
    """A training run and its queue."""

    session_id: str
    run: TrainingRun
    queue: RunQueue = field(default_factory=RunQueue)
    requests: dict[int, Future] = field(default_factory=dict[int, Future])
    """By `seq_id`, so that a repeated request runs once."""


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """One client."""

    session_id: str
    seen: float
    snapshots: OrderedDict[str, None] = field(default_factory=OrderedDict[str, None])


class Service:
    """The engine behind the routes."""

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
        self._compute = compute
        self._options = options
        self._stop_strings = stop_strings
        self._mark = uuid4().hex[:12]
        self._loop = asyncio.get_running_loop()
        self._sessions: dict[str, Session] = {}
        self._runs: dict[str, Run] = {}
        self._samplers: dict[str, Sampler] = {}
        self._jobs: dict[str, SampleJob] = {}
        self.futures = Futures(options.result_ttl_s)

    # Sessions

    def create_session(self) -> dict[str, Any]:
        """A new client."""
        session_id = f"{self._mark}-{len(self._sessions)}-{uuid4().hex[:8]}"
        self._sessions[session_id] = Session(session_id=session_id, seen=time.monotonic())
        return {"type": "create_session", "session_id": session_id}

    def heartbeat(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """A client's sign of life."""
        self._session(document).seen = time.monotonic()
        return {"type": "session_heartbeat"}

    def evict(self) -> None:
        """Forget what nobody has asked for in a while."""
        self.futures.evict()
        oldest = time.monotonic() - self._options.session_ttl_s
        for session in [session for session in self._sessions.values() if session.seen < oldest]:
            del self._sessions[session.session_id]
            self._runs = {key: run for key, run in self._runs.items() if run.session_id != session.session_id}
            self._samplers = {
                key: sampler for key, sampler in self._samplers.items() if sampler.session_id != session.session_id
            }

    def _session(self, document: Mapping[str, Any]) -> Session:
        session_id = read(document, "session_id", str)
        session = self._sessions.get(session_id)
        if session is None:
            raise self._gone("session", session_id)
        return session

    def _gone(self, what: str, name: str) -> GoneError:
        if name.startswith(self._mark):
            return GoneError(f"{what} {name!r} is not known (any more); make a new client")
        return GoneError(
            f"{what} {name!r} is not of this engine process: the engine was started anew. Make a new ServiceClient "
            "and go on from a checkpoint (create_training_client_from_state_with_optimizer)"
        )

    def capabilities(self) -> dict[str, Any]:
        """What is served here."""
        model = {
            "model_name": self._base.name,
            "max_context_length": self._base.architecture.context,
            "trainable": True,
            "sampleable": True,
        }
        return {"supported_models": [model]}

    # Training runs

    def create_model(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """A new run from the base model."""
        base_model = read(document, "base_model", str)
        if base_model != self._base.name:
            raise EngineError(f"base_model {base_model!r} is not served here; this engine serves {self._base.name!r}")
        optimizer = read(document, "optimizer_config", dict, {}).get("type", "adamw")
        if optimizer != "adamw":
            raise EngineError(f"optimizer_config {optimizer!r} is not supported: the embedded engine has adamw alone")
        return self._new_run(document, _lora(document.get("lora_config")), lambda run: run.create())

    def load_weights(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """A new run from a checkpoint, or a checkpoint into a run that is there."""
        uri = CheckpointUri.parse(read(document, "path", str))
        optimizer = read(document, "optimizer", bool)
        record = same_model(self._base, self.store.run(uri.run_id), uri)
        if document.get("model_id") is not None:

            def begin(run: Run) -> Generator[None, None, Reply]:
                yield from _once(lambda: run.run.load(self.store, uri, optimizer=optimizer))
                return Reply.json({})

            return self._train(document, begin)
        if record.training != self._base.training:
            raise EngineError(
                f"{uri}: was trained with --training {record.training}, this engine runs with --training "
                f"{self._base.training}"
            )
        return self._new_run(
            document, LoraSettings(**record.lora), lambda run: run.load(self.store, uri, optimizer=optimizer)
        )

    def _new_run(
        self, document: Mapping[str, Any], lora: LoraSettings, make: Callable[[TrainingRun], None]
    ) -> Mapping[str, Any]:
        session = self._session(document)
        run_id = f"{session.session_id}:train:{read(document, 'model_seq_id', int)}"
        if run_id in self._runs:
            return self._runs[run_id].requests[0].accepted
        metadata = {str(key): str(value) for key, value in (document.get("user_metadata") or {}).items()}
        record = new_record(run_id, self._base, lora, metadata, time.time())
        self.store.add_run(record)
        run = Run(session_id=session.session_id, run=TrainingRun(self._base, record))
        self._runs[run_id] = run
        future = run.requests[0] = self.futures.add(f"{run_id}:0", {"model_id": run_id})

        def work() -> Generator[None, None, Reply]:
            yield from _once(lambda: make(run.run))
            return Reply.json({"model_id": run_id})

        self._compute.train(work(), self._resolver(future))
        return future.accepted

    def run(self, run_id: str) -> Run:
        """A run of a client.

        Raises:
            GoneError: When there is none.
        """
        run = self._runs.get(run_id)
        if run is None:
            raise self._gone("model", run_id)
        return run

    def get_info(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """What a run trains."""
        record = self.run(read(document, "model_id", str)).run.record
        return {"type": "get_info", "model_id": record.run_id, "model_name": record.base_model} | {
            "model_data": {"arch": "qwen3", "model_name": record.base_model, "tokenizer_id": record.base_model},
            **lora_fields(record.training, record.lora),
        }

    def forward_backward(self, message: Any) -> Mapping[str, Any]:
        """Queue a forward or forward_backward."""

        def begin(run: Run) -> Generator[None, None, Reply]:
            architecture = self._base.architecture
            # Read in its turn, so that a refused request counts as one and the next is not held up.
            batch = protocol.parse_forward_backward(
                message, vocabulary=architecture.vocabulary, context=architecture.context
            )
            result = yield from run.run.trainer.forward_backward(batch)
            return protocol.forward_backward_reply(result)

        return self._train({"model_id": message.model_id, "seq_id": message.seq_id}, begin)

    def optim_step(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Queue an optimizer step."""

        def begin(run: Run) -> Generator[None, None, Reply]:
            adam = protocol.adam_settings(document)
            metrics = yield from _once(lambda: run.run.trainer.optim_step(adam))
            return Reply.json({"metrics": metrics})

        return self._train(document, begin)

    def save_weights(self, document: Mapping[str, Any], kind: CheckpointKind) -> Mapping[str, Any]:
        """Queue writing a checkpoint."""

        def begin(run: Run) -> Generator[None, None, Reply]:
            uri = CheckpointUri.parse(f"tinker://{run.run.record.run_id}/{kind}/{read(document, 'path', str)}")
            metadata = {str(key): str(value) for key, value in (document.get("user_metadata") or {}).items()}
            ttl_s = read(document, "ttl_seconds", int, None)
            # A sampler's checkpoint has no `overwrite` in the protocol: saving it again replaces it.
            overwrite = kind is CheckpointKind.SAMPLER or read(document, "overwrite", bool, False)  # noqa: FBT003
            yield from _once(
                lambda: run.run.save(self.store, uri, user_metadata=metadata, ttl_s=ttl_s, overwrite=overwrite)
            )
            return Reply.json({"path": str(uri)})

        return self._train(document, begin)

    def save_snapshot(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Queue a sampler of the weights as they are then, in memory alone."""
        kind = document.get("kind", "snapshot")
        if kind != "snapshot":
            raise EngineError(f"kind {kind!r} is not supported: the embedded engine samples from snapshots alone")
        run_id = read(document, "model_id", str)
        session = self._sessions[self.run(run_id).session_id]
        sampler_id = f"{session.session_id}:sample:{read(document, 'sampling_session_seq_id', int)}"

        def begin(run: Run) -> Generator[None, None, Reply]:
            weights = yield from _once(run.run.snapshot)
            source = SamplerSource(owner=sampler_id, load=lambda: weights)
            self._loop.call_soon_threadsafe(self._add_snapshot, session, sampler_id, source)
            return Reply.json({"sampling_session_id": sampler_id})

        return self._train(document, begin)

    def _add_snapshot(self, session: Session, sampler_id: str, source: SamplerSource) -> None:
        self._samplers[sampler_id] = Sampler(
            sampler_id=sampler_id, session_id=session.session_id, source=source, model_path=None
        )
        session.snapshots[sampler_id] = None
        while len(session.snapshots) > MAX_SNAPSHOTS:
            self._samplers.pop(session.snapshots.popitem(last=False)[0], None)

    def _train(
        self, document: Mapping[str, Any], begin: Callable[[Run], Generator[None, None, Reply]]
    ) -> Mapping[str, Any]:
        """Queue a request of a run in its turn, once."""
        run_id, seq_id = read(document, "model_id", str), read(document, "seq_id", int)
        run = self.run(run_id)
        known = run.requests.get(seq_id)
        if known is not None:
            return known.accepted
        if seq_id < 1:
            raise EngineError(f"seq_id {seq_id}: must be at least 1")
        future = self.futures.add(f"{run_id}:{seq_id}")
        run.requests[seq_id] = future
        run.queue.put(seq_id, lambda: self._compute.train(begin(run), self._resolver(future)))
        return future.accepted

    # Samplers

    def create_sampler(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Something to sample from: the base model or a checkpoint."""
        session = self._session(document)
        sampler_id = f"{session.session_id}:sample:{read(document, 'sampling_session_seq_id', int)}"
        path = read(document, "model_path", str, None)
        base_model = read(document, "base_model", str, None)
        if path is None:
            if base_model != self._base.name:
                raise EngineError(
                    f"base_model {base_model!r} is not served here; this engine serves {self._base.name!r}"
                )
            source = SamplerSource(owner=f"base:{self._base.name}", load=lambda: self._base.weights)
        else:
            source = self._checkpoint_source(CheckpointUri.parse(path))
        self._samplers[sampler_id] = Sampler(
            sampler_id=sampler_id, session_id=session.session_id, source=source, model_path=path
        )
        return {"type": "create_sampling_session", "sampling_session_id": sampler_id}

    def _checkpoint_source(self, uri: CheckpointUri) -> SamplerSource:
        same_model(self._base, self.store.run(uri.run_id), uri)
        # With the time, so that a checkpoint that was replaced is not sampled from what was there before.
        owner = f"{uri}@{self.store.saved_at(uri)}"
        return SamplerSource(owner=owner, load=lambda: checkpoint_weights(self._base, self.store, uri))

    def sampler(self, sampler_id: str) -> dict[str, Any]:
        """What a sampler is."""
        sampler = self._sampler(sampler_id)
        return {"sampler_id": sampler_id, "base_model": self._base.name, "model_path": sampler.model_path}

    def _sampler(self, sampler_id: str) -> Sampler:
        sampler = self._samplers.get(sampler_id)
        if sampler is None:
            raise self._gone("sampling session", sampler_id)
        session = self._sessions[sampler.session_id]
        if sampler_id in session.snapshots:
            session.snapshots.move_to_end(sampler_id)
        return sampler

    def sample(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Queue a sample request."""
        sampler = self._sampler(read(document, "sampling_session_id", str))
        request_id = f"{sampler.sampler_id}:{read(document, 'seq_id', int)}"
        known = self.futures.find(request_id)
        if known is not None:
            return known.accepted
        architecture = self._base.architecture
        job = protocol.parse_sample(
            document,
            vocabulary=architecture.vocabulary,
            context=architecture.context,
            end_tokens=architecture.end_tokens,
            stop_strings=self._stop_strings,
        )
        ids = [f"{request_id}:{sample}" for sample in range(job.samples)]
        future = self.futures.add(request_id, {"sample_sequence_ids": ids})
        self._jobs[request_id] = job
        self._compute.sample(sampler.source, job, self._resolver(future))
        return future.accepted

    def cancel(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Stop a sample request that nobody waits for any more."""
        request_id = read(document, "request_id", str)
        job = self._jobs.pop(request_id, None)
        future = self.futures.find(request_id)
        if job is not None and future is not None:
            job.cancelled = True
            future.resolve(Reply.failure("cancelled by the client", by_client=True))
        return {}

    # Answers

    def future(self, request_id: str) -> Future | Reply:
        """A request, or the answer that it is of an engine that has ended.

        Raises:
            GoneError: When its answer is no longer kept.
        """
        future = self.futures.find(request_id)
        if future is not None:
            return future
        gone = self._gone("request", request_id)
        if request_id.startswith(self._mark):
            raise gone
        return Reply.failure(str(gone), by_client=True)

    def _resolver(self, future: Future) -> Callable[[Any], None]:
        """What the compute thread tells a result to."""

        def resolve(result: Any) -> None:
            self._jobs.pop(future.request_id, None)
            match result:
                case Reply():
                    future.resolve(result)
                case SampleJob():
                    future.resolve(protocol.sample_reply(result))
                case _:
                    future.resolve(Reply.failure(_message(result), by_client=isinstance(result, EngineError)))

        return lambda result: _tell(self._loop, resolve, result)


def _tell(loop: asyncio.AbstractEventLoop, resolve: Callable[[Any], None], result: Any) -> None:
    try:
        loop.call_soon_threadsafe(resolve, result)
    except RuntimeError:
        if not loop.is_closed():
            raise


def _message(result: Any) -> str:
    if isinstance(result, EngineError):
        return str(result)
    return f"the engine failed: {type(result).__name__}: {result}"


def _once(action: Callable[[], T]) -> Generator[None, None, T]:
    """Work without parts."""
    yield from ()
    return action()


def _lora(config: Any) -> LoraSettings:
    if config is None:
        return LoraSettings(rank=32)
    if not isinstance(config, dict):
        raise EngineError(f"lora_config {config!r}: not an object")
    known = {"rank", "seed", "train_attn", "train_mlp", "train_unembed"}
    if unknown := sorted(set(config) - known):
        raise EngineError(f"lora_config: {unknown[0]!r} is not supported by the embedded engine")
    return LoraSettings(**config)


def lora_fields(training: str, lora: Mapping[str, Any]) -> dict[str, Any]:
    """How answers say what is trained."""
    if training != "lora":
        return {"is_lora": False, "lora_rank": None}
    return {"is_lora": True, "lora_rank": lora["rank"]}
