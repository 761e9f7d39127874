"""Forward, backward and the optimizer of one training run."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from agent_env.engine.architecture import Architecture
from agent_env.engine.losses import LOSSES, Loss
from agent_env.engine.model import Rope, Weights, branching_attention, hidden_states
from agent_env.engine.packing import packs
from agent_env.engine.parameters import Parameters
from agent_env.errors import EngineError

__all__ = ["AdamSettings", "Batch", "Example", "ForwardBackwardResult", "Trainer"]

MICRO_BATCH_TOKENS = 4096
"""Tokens, padding included, that go through the model at once: bounds what autograd keeps. More is not faster."""
MICRO_BATCH_LOGITS = 2**27
"""The same bound for a large vocabulary, in numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One datum: position `i` of `tokens` predicts `targets[i]`."""

    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]
    inputs: Mapping[str, NDArray[np.float32]]
    """The loss's per-token inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One forward or forward_backward request."""

    examples: Sequence[Example]
    loss: str
    settings: Mapping[str, float]
    forward_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardBackwardResult:
    """What a request answers."""

    logprobs: Sequence[NDArray[np.float32]]
    """Of each example's targets, in the request's order."""
    metrics: Mapping[str, float]
    """Each key ends in `:` and how the client joins the parts of a split request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamSettings:
    """The client's `adam_params` of one step."""

    learning_rate: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    grad_clip_norm: float
    """The longest gradient; 0 does not clip."""


class Trainer:
    """One training run: parameters, their gradient so far, and the optimizer's state."""

    def __init__(self, architecture: Architecture, rope: Rope, parameters: Parameters) -> None:
        self._architecture = architecture
        self._rope = rope
        self.parameters = parameters
        # Adam as Tinker documents it: the same as torch.optim.AdamW.
        self.optimizer = torch.optim.AdamW([parameters.vector])

    def forward_backward(self, batch: Batch) -> Generator[None, None, ForwardBackwardResult]:
        """Do one request, yielding between parts so that sampling goes on in between.

        Gradients add up until `optim_step`; an error leaves none of this request's.
        """
        vector = self.parameters.vector
        before = None if vector.grad is None else vector.grad.clone()
        try:
            return (yield from self._parts(batch))
        except BaseException:  # also GeneratorExit: it may be dropped between two parts
            vector.grad = before
            raise

    def _parts(self, batch: Batch) -> Generator[None, None, ForwardBackwardResult]:
        logprobs: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(batch.examples)
        total = 0.0
        limit = min(MICRO_BATCH_TOKENS, MICRO_BATCH_LOGITS // self._architecture.vocabulary)
        for pack in packs([example.tokens for example in batch.examples], limit):
            examples = [batch.examples[at] for at in pack.members]
            with torch.set_grad_enabled(not batch.forward_only):
                part, loss = self._part(examples, pack.prefix, LOSSES[batch.loss], batch.settings)
            if loss is not None:
                total += float(loss.detach())
                if not batch.forward_only:
                    loss.backward()  # pyright: ignore[reportUnknownMemberType] - torch does not annotate it
            for at, values in zip(pack.members, part, strict=True):
                logprobs[at] = values
            yield
        if not batch.forward_only and self.parameters.vector.grad is None:
            # Every weight was zero: a gradient of zero, which is not the same as none.
            self.parameters.vector.grad = torch.zeros_like(self.parameters.vector)
        return ForwardBackwardResult(logprobs=logprobs, metrics={"loss:sum": total})

    def _part(
        self, examples: Sequence[Example], prefix: int, loss: Loss, settings: Mapping[str, float]
    ) -> tuple[list[NDArray[np.float32]], Tensor | None]:
        """The targets' log-probabilities of examples with a common prefix, and the loss if any token counts."""
        weights = self.parameters.weights()
        length = max(len(example.tokens) for example in examples) - prefix
        # One row: the common tokens, then what follows them in each example, padded to the same length.
        tokens = np.zeros(prefix + len(examples) * length, np.int64)
        tokens[:prefix] = examples[0].tokens[:prefix]
        places: list[NDArray[np.int64]] = []
        for at, example in enumerate(examples):
            begin, own = prefix + at * length, len(example.tokens) - prefix
            tokens[begin : begin + own] = example.tokens[prefix:]
            places.append(np.concatenate([np.arange(prefix), np.arange(begin, begin + own)]))
        after = np.arange(prefix, prefix + length)
        positions = np.concatenate([np.arange(prefix), np.tile(after, len(examples))])
        attend = branching_attention(prefix, len(examples))
        rows, where = torch.from_numpy(tokens)[None], torch.from_numpy(positions)[None]
        states = hidden_states(self._architecture, weights, self._rope, rows, where, attend)[0]
        place = torch.from_numpy(np.concatenate(places))
        targets = torch.from_numpy(np.concatenate([example.targets for example in examples]))
        inputs = {
            name: torch.from_numpy(np.concatenate([example.inputs[name] for example in examples]))
            for name in loss.inputs
        }
        counts = inputs[loss.inputs[0]] != 0
        logprobs = torch.empty(len(targets))
        logprobs[~counts] = _uncounted_logprobs(weights, states, place[~counts], targets[~counts])
        total = None
        if bool(counts.any()):
            logits = F.linear(states[place[counts]], weights.unembed)
            counted = -F.cross_entropy(logits, targets[counts], reduction="none")
            logprobs[counts] = counted.detach()
            total = loss.total(counted, {name: values[counts] for name, values in inputs.items()}, settings)
        ends = np.cumsum([len(example.tokens) for example in examples])[:-1]
        return np.split(logprobs.numpy(), ends), total

    def optim_step(self, adam: AdamSettings) -> dict[str, float]:
        """Move the parameters by the gradient so far, and forget the gradient.

        Raises:
            EngineError: When there is no gradient, or it is not finite (it is forgotten then).
        """
        vector = self.parameters.vector
        if vector.grad is None:
            raise EngineError("optim_step: no forward_backward since the last step (or it failed), nothing to apply")
        norm = float(torch.linalg.vector_norm(vector.grad))
        if not np.isfinite(norm):
            vector.grad = None
            raise EngineError(
                f"optim_step: the gradient's norm is {norm}: an advantage, weight or log-probability of this batch is "
                "not finite, or the learning rate is too high. The weights are as they were before"
            )
        if 0 < adam.grad_clip_norm < norm:
            vector.grad.mul_(adam.grad_clip_norm / norm)
        self.optimizer.param_groups[0].update(
            lr=adam.learning_rate,
            betas=(adam.beta1, adam.beta2),
            eps=adam.eps,
            weight_decay=adam.weight_decay,
        )
        self.optimizer.step()
        vector.grad = None
        return {"grad_norm": norm}

    def state(self) -> dict[str, Tensor]:
        """The optimizer's state, by name. Empty before the first step."""
        found: dict[str, Tensor] = self.optimizer.state[self.parameters.vector]
        return {name: torch.as_tensor(value) for name, value in found.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take up the state that `state` gave."""
        if state:
            self.optimizer.state[self.parameters.vector] = {name: tensor.clone() for name, tensor in state.items()}


@torch.no_grad()
def _uncounted_logprobs(weights: Weights, states: Tensor, place: Tensor, targets: Tensor) -> Tensor:
    """Log-probabilities of targets that no gradient is needed of; a place that several examples share costs once."""
    used, which = place.unique(return_inverse=True)
    logprobs = torch.empty(len(targets))
    rows = max(1, MICRO_BATCH_LOGITS // len(weights.unembed))
    for begin in range(0, len(used), rows):
        part = torch.log_softmax(F.linear(states[used[begin : begin + rows]], weights.unembed), dim=-1)
        inside = (which >= begin) & (which < begin + rows)
        logprobs[inside] = part[which[inside] - begin, targets[inside]]
    return logprobs
