"""Training runs' requests. For the event loop's thread; the compute thread trains."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from agent_env.engine import protocol
from agent_env.engine.checkpoints import CheckpointKind, CheckpointStore, CheckpointUri, RunRecord
from agent_env.engine.compute import Compute
from agent_env.engine.futures import Futures, Reply
from agent_env.engine.parameters import LoraSettings
from agent_env.engine.protocol import field as read
from agent_env.engine.runs import BaseModel, RunQueue, TrainingRun, new_record, same_model
from agent_env.engine.sample_requests import SampleRequests
from agent_env.engine.sessions import Session, Sessions
from agent_env.errors import EngineError

__all__ = ["RunRequests", "lora_fields"]

T = TypeVar("T")

MISSING_REQUEST_S = 60.0
"""How long a run's requests wait for an earlier one that has not come."""


@dataclass(slots=True, kw_only=True, eq=False)
class Run:
    """A training run and its queue."""

    session: Session
    run: TrainingRun
    queue: RunQueue = field(default_factory=RunQueue)


class RunRequests:
    """The training runs of all clients."""

    def __init__(
        self,
        base: BaseModel,
        store: CheckpointStore,
        compute: Compute,
        sessions: Sessions,
        futures: Futures,
        samplers: SampleRequests,
    ) -> None:
        self._base = base
        self._store = store
        self._compute = compute
        self._sessions = sessions
        self._futures = futures
        self._samplers = samplers
        self._loop = asyncio.get_running_loop()
        self._runs: dict[str, Run] = {}

    def create_model(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """A new run from the base model."""
        self._base.check_name(read(document, "base_model", str))
        _check_optimizer(document)
        return self._new_run(document, _lora(document.get("lora_config")), lambda run: run.create())

    def load_weights(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """A new run from a checkpoint, or a checkpoint into a run that is there."""
        if document.get("model_id") is not None:

            def begin(run: Run) -> Generator[None, None, Reply]:
                uri = CheckpointUri.parse(read(document, "path", str))
                optimizer = read(document, "optimizer", bool)
                yield from _once(lambda: run.run.load(self._store, uri, optimizer=optimizer))
                return Reply.json({})

            return self._queue(document, begin)
        uri = CheckpointUri.parse(read(document, "path", str))
        optimizer = read(document, "optimizer", bool)
        _check_optimizer(document)
        record = same_model(self._base, self._store.run(uri.run_id), uri)
        self._store.saved_at(uri)
        if record.training != self._base.training:
            raise EngineError(
                f"{uri}: was trained with --training {record.training}, this engine runs with --training "
                f"{self._base.training}"
            )
        lora = LoraSettings(**record.lora)
        return self._new_run(document, lora, lambda run: run.load(self._store, uri, optimizer=optimizer))

    def _new_run(
        self, document: Mapping[str, Any], lora: LoraSettings, make: Callable[[TrainingRun], None]
    ) -> Mapping[str, Any]:
        session = self._sessions.of(document)
        run_id = f"{session.session_id}:train:{read(document, 'model_seq_id', int)}"
        accepted = {"request_id": f"{run_id}:0", "model_id": run_id}
        if run_id in self._runs:
            return accepted
        record = new_record(run_id, self._base, lora, _metadata(document), time.time())
        self._store.add_run(record)
        run = self._runs[run_id] = Run(session=session, run=TrainingRun(self._base, record))

        def work() -> Generator[None, None, Reply]:
            yield from _once(lambda: make(run.run))
            return Reply.json({"model_id": run_id})

        future = self._futures.add(f"{run_id}:0")
        self._compute.train(work(), self._futures.from_thread(future, _as_it_is))
        return accepted

    def _run(self, run_id: str) -> Run:
        run = self._runs.get(run_id)
        if run is None:
            raise self._sessions.gone("model", run_id)
        return run

    def get_info(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """What a run trains."""
        record = self._run(read(document, "model_id", str)).run.record
        return {
            "model_id": record.run_id,
            "model_name": record.base_model,
            "model_data": {"arch": "qwen3", "model_name": record.base_model, "tokenizer_id": record.base_model},
            **lora_fields(record),
        }

    def forward_backward(self, message: Any) -> Mapping[str, Any]:
        """Queue a forward or forward_backward."""

        def begin(run: Run) -> Generator[None, None, Reply]:
            architecture = self._base.architecture
            # Read in its turn, so that a refused request counts as one and does not hold up the next.
            batch = protocol.parse_forward_backward(
                message, vocabulary=architecture.vocabulary, context=architecture.context
            )
            result = yield from run.run.trainer.forward_backward(batch)
            return protocol.forward_backward_reply(result)

        return self._queue({"model_id": message.model_id, "seq_id": message.seq_id}, begin)

    def optim_step(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Queue an optimizer step."""

        def begin(run: Run) -> Generator[None, None, Reply]:
            adam = protocol.adam_settings(document)
            metrics = yield from _once(lambda: run.run.trainer.optim_step(adam))
            return Reply.json({"metrics": metrics})

        return self._queue(document, begin)

    def save_weights(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Queue writing a checkpoint to train on from."""
        return self._save(document, CheckpointKind.TRAINING)

    def save_weights_for_sampler(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Queue writing a checkpoint to sample from, or, without a name, a sampler of the weights as they are."""
        if document.get("path") is not None:
            return self._save(document, CheckpointKind.SAMPLER)

        def begin(run: Run) -> Generator[None, None, Reply]:
            kind = document.get("kind", "snapshot")
            if kind != "snapshot":
                raise EngineError(f"kind {kind!r} is not supported: the embedded engine samples from snapshots alone")
            sampler_id = self._samplers.sampler_id(run.session, document)
            weights = yield from _once(run.run.snapshot)
            # Before the answer, which goes the same way.
            self._loop.call_soon_threadsafe(self._samplers.add_snapshot, run.session, sampler_id, weights)
            return Reply.json({"sampling_session_id": sampler_id})

        return self._queue(document, begin)

    def _save(self, document: Mapping[str, Any], kind: CheckpointKind) -> Mapping[str, Any]:
        def begin(run: Run) -> Generator[None, None, Reply]:
            uri = CheckpointUri.parse(f"tinker://{run.run.record.run_id}/{kind}/{read(document, 'path', str)}")
            metadata = _metadata(document)
            ttl_s = read(document, "ttl_seconds", int, None)
            # A sampler's checkpoint has no `overwrite` in the protocol: saving it again replaces it.
            overwrite = kind is CheckpointKind.SAMPLER or bool(document.get("overwrite"))
            yield from _once(
                lambda: run.run.save(self._store, uri, user_metadata=metadata, ttl_s=ttl_s, overwrite=overwrite)
            )
            return Reply.json({"path": str(uri)})

        return self._queue(document, begin)

    def _queue(
        self, document: Mapping[str, Any], begin: Callable[[Run], Generator[None, None, Reply]]
    ) -> Mapping[str, Any]:
        """Queue a request of a run in its turn, once."""
        run_id, seq_id = read(document, "model_id", str), read(document, "seq_id", int)
        run = self._run(run_id)
        request_id = f"{run_id}:{seq_id}"
        if run.queue.knows(seq_id):
            return {"request_id": request_id}
        future = self._futures.add(request_id)
        settle = self._futures.from_thread(future, _as_it_is)
        run.queue.put(
            seq_id,
            lambda: self._compute.train(begin(run), settle),
            lambda error: self._futures.fail(future, error),
        )
        return future.accepted

    def evict(self) -> None:
        """Forget the runs of clients that have gone, and fail requests that wait for one that never came."""
        self._runs = {key: run for key, run in self._runs.items() if self._sessions.knows(run.session.session_id)}
        for run in self._runs.values():
            run.queue.fail_stuck(MISSING_REQUEST_S)


def lora_fields(record: RunRecord) -> dict[str, Any]:
    """How answers say what a run trains."""
    if record.training != "lora":
        return {"is_lora": False, "lora_rank": None}
    return {"is_lora": True, "lora_rank": record.lora["rank"]}


def _as_it_is(reply: Reply) -> Reply:
    return reply


def _once(action: Callable[[], T]) -> Generator[None, None, T]:
    """Work without parts."""
    yield from ()
    return action()


def _metadata(document: Mapping[str, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in read(document, "user_metadata", dict, {}).items()}


def _check_optimizer(document: Mapping[str, Any]) -> None:
    optimizer = read(document, "optimizer_config", dict, {}).get("type", "adamw")
    if optimizer != "adamw":
        raise EngineError(f"optimizer_config {optimizer!r} is not supported: the embedded engine has adamw alone")


def _lora(config: Any) -> LoraSettings:
    if config is None:
        return LoraSettings(rank=32)
    if not isinstance(config, dict):
        raise EngineError(f"lora_config {config!r}: not an object")
    known = {"rank", "seed", "train_attn", "train_mlp", "train_unembed"}
    unknown = sorted(str(name) for name in config if name not in known)
    if unknown:
        raise EngineError(f"lora_config: {unknown[0]!r} is not supported by the embedded engine")
    return LoraSettings(
        rank=read(config, "rank", int),
        seed=read(config, "seed", int, None),
        train_attn=bool(config.get("train_attn", True)),
        train_mlp=bool(config.get("train_mlp", True)),
        train_unembed=bool(config.get("train_unembed", True)),
    )
