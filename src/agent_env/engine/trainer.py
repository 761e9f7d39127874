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
from agent_env.engine.model import Rope, Weights, causal_attention, hidden_states
from agent_env.engine.parameters import Parameters
from agent_env.errors import EngineError

__all__ = ["AdamSettings", "Batch", "Example", "ForwardBackwardResult", "Trainer"]

MICRO_BATCH_TOKENS = 16384
"""Tokens, padding included, that go through the model at once: bounds what autograd keeps."""


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

        Gradients add up until `optim_step`; an error leaves none of this request's."""
        vector = self.parameters.vector
        before = None if vector.grad is None else vector.grad.clone()
        try:
            return (yield from self._parts(batch))
        except BaseException:
            vector.grad = before
            raise

    def _parts(self, batch: Batch) -> Generator[None, None, ForwardBackwardResult]:
        logprobs: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(batch.examples)
        total = 0.0
        for part in _micro_batches([len(example.tokens) for example in batch.examples]):
            examples = [batch.examples[at] for at in part]
            with torch.set_grad_enabled(not batch.forward_only):
                flat, loss = self._part(examples, LOSSES[batch.loss], batch.settings)
            if loss is not None:
                total += float(loss.detach())
                if not batch.forward_only:
                    loss.backward()  # pyright: ignore[reportUnknownMemberType] - torch does not annotate it
            cuts = np.cumsum([len(example.tokens) for example in examples])[:-1]
            for at, values in zip(part, np.split(flat, cuts), strict=True):
                logprobs[at] = values
            yield
        if not batch.forward_only and self.parameters.vector.grad is None:
            # Every weight was zero. The step that follows is a step with a zero gradient, as in the hosted service.
            self.parameters.vector.grad = torch.zeros_like(self.parameters.vector)
        return ForwardBackwardResult(logprobs=logprobs, metrics={"loss:sum": total})

    def _part(
        self, examples: Sequence[Example], loss: Loss, settings: Mapping[str, float]
    ) -> tuple[NDArray[np.float32], Tensor | None]:
        """The targets' log-probabilities, one sequence after the other, and the loss if any token counts."""
        weights = self.parameters.weights()
        lengths = torch.tensor([len(example.tokens) for example in examples])
        longest = int(lengths.max())
        tokens = torch.zeros(len(examples), longest, dtype=torch.int64)
        for row, example in zip(tokens, examples, strict=True):
            row[: len(example.tokens)] = torch.from_numpy(example.tokens)
        positions = torch.arange(longest)
        valid = positions < lengths[:, None]
        states = hidden_states(self._architecture, weights, self._rope, tokens, positions[None, :], causal_attention)
        states = states[valid]
        targets = torch.from_numpy(np.concatenate([example.targets for example in examples]))
        inputs = {
            name: torch.from_numpy(np.concatenate([example.inputs[name] for example in examples]))
            for name in loss.inputs
        }
        counts = inputs[loss.inputs[0]] != 0
        logprobs = torch.empty(len(targets))
        with torch.no_grad():
            logprobs[~counts] = _target_logprobs(weights, states[~counts], targets[~counts])
        if not bool(counts.any()):
            return logprobs.numpy(), None
        counted = _target_logprobs(weights, states[counts], targets[counts])
        logprobs[counts] = counted.detach()
        return logprobs.numpy(), loss.total(
            counted, {name: values[counts] for name, values in inputs.items()}, settings
        )

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


def _target_logprobs(weights: Weights, states: Tensor, targets: Tensor) -> Tensor:
    return -F.cross_entropy(F.linear(states, weights.unembed), targets, reduction="none")


def _micro_batches(lengths: Sequence[int]) -> list[list[int]]:
    """Indices of examples that go together: of similar length, so that little is padding."""
    parts: list[list[int]] = []
    longest = 0
    for at in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        if not parts or (len(parts[-1]) + 1) * longest > MICRO_BATCH_TOKENS:
            parts.append([])
            longest = lengths[at]
        parts[-1].append(at)
    return parts
