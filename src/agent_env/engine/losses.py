"""The built-in losses, each a sum over tokens.

Formulas from Tinker's documentation, "Loss Functions": cross_entropy, importance_sampling, ppo and cispo. A token
whose weight or advantage is zero adds nothing to any of them, so the trainer leaves such tokens out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from agent_env.errors import EngineError

__all__ = ["LOSSES", "Loss", "loss_settings"]

CLIP_LOW, CLIP_HIGH = 0.8, 1.2
"""Bounds of the probability ratio where a request names none. Not checked against the hosted service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One loss."""

    inputs: tuple[str, ...]
    """Per-token inputs besides `target_tokens`; the first one is zero where a token does not count."""
    settings: Mapping[str, float]
    """What `loss_fn_config` may set, with the values where it does not."""
    total: Callable[[Tensor, Mapping[str, Tensor], Mapping[str, float]], Tensor]
    """`(log-probabilities of the targets, inputs, settings) -> sum`, all flat."""


def cross_entropy(logprobs: Tensor, inputs: Mapping[str, Tensor], _settings: Mapping[str, float]) -> Tensor:
    """`-sum(weights * log p(target))`."""
    return -(logprobs * inputs["weights"]).sum()


def importance_sampling(logprobs: Tensor, inputs: Mapping[str, Tensor], _settings: Mapping[str, float]) -> Tensor:
    """`-sum(p / q * advantage)` with `q` the probability that the sampler gave the token."""
    return -(torch.exp(logprobs - inputs["logprobs"]) * inputs["advantages"]).sum()


def ppo(logprobs: Tensor, inputs: Mapping[str, Tensor], settings: Mapping[str, float]) -> Tensor:
    """`-sum(min(r * advantage, clip(r) * advantage))` with `r = p / q`."""
    ratio = torch.exp(logprobs - inputs["logprobs"])
    clipped = ratio.clamp(settings["clip_low_threshold"], settings["clip_high_threshold"])
    return -torch.minimum(ratio * inputs["advantages"], clipped * inputs["advantages"]).sum()


def cispo(logprobs: Tensor, inputs: Mapping[str, Tensor], settings: Mapping[str, float]) -> Tensor:
    """`-sum(stop_gradient(clip(p / q)) * log p * advantage)`."""
    ratio = torch.exp(logprobs - inputs["logprobs"])
    clipped = ratio.clamp(settings["clip_low_threshold"], settings["clip_high_threshold"]).detach()
    return -(clipped * logprobs * inputs["advantages"]).sum()


CLIPS = {"clip_low_threshold": CLIP_LOW, "clip_high_threshold": CLIP_HIGH}
LOSSES: Mapping[str, Loss] = {
    "cross_entropy": Loss(inputs=("weights",), settings={}, total=cross_entropy),
    "importance_sampling": Loss(inputs=("advantages", "logprobs"), settings={}, total=importance_sampling),
    "ppo": Loss(inputs=("advantages", "logprobs"), settings=CLIPS, total=ppo),
    "cispo": Loss(inputs=("advantages", "logprobs"), settings=CLIPS, total=cispo),
}


def loss_settings(name: str, config: Mapping[str, float | str]) -> dict[str, float]:
    """The settings of a loss, from `loss_fn_config`.

    Raises:
        EngineError: When the loss or a setting is not supported.
    """
    if name not in LOSSES:
        raise EngineError(f"loss_fn {name!r} is not supported; the embedded engine has {', '.join(LOSSES)}")
    loss = LOSSES[name]
    settings = dict(loss.settings)
    for key, value in config.items():
        if key not in settings or isinstance(value, str):
            known = ", ".join(settings) or "none"
            raise EngineError(f"loss_fn_config {key!r}={value!r} is not supported by {name}; known settings: {known}")
        settings[key] = value
    return settings
