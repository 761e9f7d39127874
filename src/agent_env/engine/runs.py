"""Training runs: one client's parameters, and its requests in the order of their numbers.

Requests arrive out of order (a split forward_backward sends its first part last) and may arrive twice; they run
strictly by `seq_id`, each once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from agent_env.engine.architecture import Architecture
from agent_env.engine.checkpoints import CheckpointKind, CheckpointStore, CheckpointUri, RunRecord
from agent_env.engine.model import Rope, Weights, assemble
from agent_env.engine.options import Training
from agent_env.engine.parameters import LoraSettings, Parameters, merged_weights
from agent_env.engine.trainer import Trainer
from agent_env.errors import EngineError

__all__ = ["BaseModel", "RunQueue", "TrainingRun", "checkpoint_weights", "new_record", "same_model"]

MAX_WAITING = 4096
"""Requests of one run that may wait for an earlier one."""


class BaseModel:
    """The model that every run starts from."""

    def __init__(self, name: str, architecture: Architecture, tensors: dict[str, Tensor], training: Training) -> None:
        self.name = name
        self.architecture = architecture
        self.tensors = tensors
        self.training = training
        self.rope = Rope.of(architecture)
        self.weights: Weights = assemble(architecture, tensors)
        self.size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())

    def check_name(self, name: str) -> str:
        """The name itself.

        Raises:
            EngineError: When it is another model's.
        """
        if name != self.name:
            raise EngineError(f"base_model {name!r} is not served here; this engine serves {self.name!r}")
        return name


def checkpoint_weights(base: BaseModel, store: CheckpointStore, uri: CheckpointUri) -> Weights:
    """The model's weights as a checkpoint has them.

    Raises:
        EngineError: When there is no such checkpoint, or it is of another model.
    """
    run = same_model(base, store.run(uri.run_id), uri)
    named, _ = store.load(uri)
    parameters = Parameters(base.architecture, base.tensors, Training(run.training), LoraSettings(**run.lora))
    with torch.no_grad():
        vector = parameters.flat(named, str(uri))
        return merged_weights(
            base.architecture, base.tensors, parameters.training, parameters.lora, parameters.named(vector)
        )


def same_model(base: BaseModel, run: RunRecord | None, uri: CheckpointUri) -> RunRecord:
    """The run of a checkpoint, if it is one of this engine's model."""
    if run is None:
        raise EngineError(f"{uri}: this engine knows no run {uri.run_id!r}; is this its state directory?")
    if run.base_model != base.name:
        raise EngineError(f"{uri}: is of the model {run.base_model!r}, this engine serves {base.name!r}")
    return run


class TrainingRun:
    """One run's parameters and optimizer. Its methods run in the compute thread."""

    def __init__(self, base: BaseModel, record: RunRecord) -> None:
        self.base = base
        self.record = record
        self._trainer: Trainer | None = None

    @property
    def trainer(self) -> Trainer:
        """The trainer.

        Raises:
            EngineError: When making the run failed.
        """
        if self._trainer is None:
            raise EngineError(f"{self.record.run_id}: could not be made (an earlier request says why)")
        return self._trainer

    def create(self) -> None:
        """Make the parameters: the base model's."""
        self._trainer = Trainer(self.base.architecture, self.base.rope, self._parameters())

    def load(self, store: CheckpointStore, uri: CheckpointUri, *, optimizer: bool) -> None:
        """Take the parameters from a checkpoint, and the optimizer's state where it is asked for."""
        named, state = store.load(uri)
        if optimizer and state is None:
            raise EngineError(
                f"{uri}: holds no optimizer state; it was saved for sampling. Load a checkpoint under weights/, "
                "or use create_training_client_from_state without the optimizer"
            )
        trainer = Trainer(self.base.architecture, self.base.rope, self._parameters())
        with torch.no_grad():
            trainer.parameters.vector.copy_(trainer.parameters.flat(named, str(uri)))
        if optimizer and state is not None:
            trainer.restore(state)
        self._trainer = trainer

    def save(
        self,
        store: CheckpointStore,
        uri: CheckpointUri,
        *,
        user_metadata: dict[str, str],
        ttl_s: int | None,
        overwrite: bool,
    ) -> None:
        """Write a checkpoint."""
        trainer = self.trainer
        named = trainer.parameters.named(trainer.parameters.vector.detach())
        optimizer = trainer.state() if uri.kind is CheckpointKind.TRAINING else None
        store.save(uri, named, optimizer, user_metadata=user_metadata, ttl_s=ttl_s, overwrite=overwrite)

    def snapshot(self) -> Weights:
        """The weights as they are now, to sample from while training goes on."""
        with torch.no_grad():
            weights = self.trainer.parameters.weights()
        # In full training they are partly views of the parameters. An adapted model's are made anew or never change.
        return _copied(weights) if self.record.training == Training.FULL else weights

    def _parameters(self) -> Parameters:
        lora = LoraSettings(**self.record.lora)
        return Parameters(self.base.architecture, self.base.tensors, Training(self.record.training), lora)


def _copied(weights: Weights) -> Weights:
    return Weights(
        embed=weights.embed.clone(),
        layers=tuple(type(layer)(*(tensor.clone() for tensor in layer)) for layer in weights.layers),
        norm=weights.norm.clone(),
        unembed=weights.unembed.clone(),
    )


def new_record(
    run_id: str, base: BaseModel, lora: LoraSettings, user_metadata: dict[str, str], started: float
) -> RunRecord:
    """What is noted of a new run."""
    return RunRecord(
        run_id=run_id,
        base_model=base.name,
        training=base.training.value,
        lora=asdict(lora),
        user_metadata=user_metadata,
        started=started,
    )


@dataclass(slots=True, kw_only=True, eq=False)
class _Waiting:
    begin: Callable[[], object]
    fail: Callable[[EngineError], object]


class RunQueue:
    """Puts a run's requests in the order of their numbers, from 1."""

    def __init__(self) -> None:
        self._next = 1
        self._waiting: dict[int, _Waiting] = {}
        self._since = time.monotonic()
        """When the last request had its turn, or the first one began to wait."""

    def knows(self, seq_id: int) -> bool:
        """Whether the request has come before."""
        return 1 <= seq_id < self._next or seq_id in self._waiting

    def put(self, seq_id: int, begin: Callable[[], object], fail: Callable[[EngineError], object]) -> None:
        """Call `begin` as soon as every earlier number had its turn, or `fail` when one does not come.

        Raises:
            EngineError: When the number is none, or too many wait.
        """
        if seq_id < 1:
            raise EngineError(f"seq_id {seq_id}: must be at least 1")
        if len(self._waiting) >= MAX_WAITING:
            raise EngineError(f"{MAX_WAITING} requests wait for request {self._next} of this run, which has not come")
        if not self._waiting:
            self._since = time.monotonic()
        self._waiting[seq_id] = _Waiting(begin=begin, fail=fail)
        while self._next in self._waiting:
            self._next += 1
            self._since = time.monotonic()
            self._waiting.pop(self._next - 1).begin()

    def fail_stuck(self, after_s: float) -> None:
        """Fail what has waited too long for an earlier request, and count it as done."""
        if self._waiting and time.monotonic() - self._since > after_s:
            error = EngineError(
                f"request {self._next} of this run has not come in {after_s:g} s, and requests run in order: make a "
                "new training client from a checkpoint"
            )
            for waiting in self._waiting.values():
                waiting.fail(error)
            self._next = max(self._waiting) + 1
            self._waiting.clear()
