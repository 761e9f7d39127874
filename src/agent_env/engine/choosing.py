"""Drawing the next token of every row of a batch, each by its own settings.

Each row has a 64-bit key; its n-th draw depends on that key and n alone, so a seeded request gives the same tokens
whatever else is in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Choice", "RowSettings", "choose", "row_key"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSettings:
    """How the rows of a batch draw, one entry a row."""

    temperatures: NDArray[np.float32]
    """0 takes the likeliest token."""
    top_ks: NDArray[np.int64]
    """-1 keeps all."""
    top_ps: NDArray[np.float32]
    keys: NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was drawn, one entry a row."""

    tokens: Tensor
    logprobs: Tensor
    """Of the model itself: before temperature, top_k and top_p, as the trainer computes them."""


def row_key(seed: int, sample: int) -> int:
    """The key of one sample of a request."""
    return int(_mix(np.array([(seed * 0x9E3779B97F4A7C15 + sample) % 2**64], dtype=np.uint64))[0])


def choose(logits: Tensor, settings: RowSettings, draws: NDArray[np.int64]) -> Choice:
    """Draw one token a row.

    Args:
        logits: `[rows, vocabulary]`.
        settings: The rows' settings.
        draws: How many tokens each row has drawn before.
    """
    logprobs = torch.log_softmax(logits, dim=-1)
    greedy = settings.temperatures == 0
    if greedy.all():
        tokens = logits.argmax(dim=-1)
    else:
        scaled = logprobs
        if (settings.temperatures != 1).any():
            safe = np.where(greedy, np.float32(1), settings.temperatures)
            scaled = torch.log_softmax(logits / torch.from_numpy(safe)[:, None], dim=-1)
        probabilities = scaled.exp().double()
        if (settings.top_ks > 0).any() or (settings.top_ps < 1).any():
            probabilities = _cut(probabilities, settings)
        sums = probabilities.cumsum(dim=-1)
        uniform = torch.from_numpy(_uniform(settings.keys, draws))[:, None] * sums[:, -1:]
        tokens = torch.searchsorted(sums, uniform, right=True).squeeze(-1)
        # Rounding may leave the last sum short of the draw; the last token that can be drawn is meant.
        tokens = torch.minimum(tokens, torch.searchsorted(sums, sums[:, -1:].contiguous()).squeeze(-1))
        if greedy.any():
            tokens = torch.where(torch.from_numpy(greedy), logits.argmax(dim=-1), tokens)
    return Choice(tokens=tokens, logprobs=logprobs.gather(1, tokens[:, None]).squeeze(1))


def _cut(probabilities: Tensor, settings: RowSettings) -> Tensor:
    """Zero what top_k and top_p leave out; top_k first, then the smallest set that reaches top_p of what is left."""
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    size = probabilities.shape[-1]
    top_ks = torch.from_numpy(np.where(settings.top_ks > 0, settings.top_ks, size))[:, None]
    ordered = ordered.masked_fill(torch.arange(size) >= top_ks, 0.0)
    before = ordered.cumsum(dim=-1) - ordered
    limit = torch.from_numpy(settings.top_ps.astype(np.float64))[:, None] * ordered.sum(dim=-1, keepdim=True)
    # top_p 1 keeps all, whatever rounding says; the likeliest token always stays.
    out = (before >= limit) & (limit < ordered.sum(dim=-1, keepdim=True))
    out[:, 0] = False
    return torch.zeros_like(probabilities).scatter(1, order, ordered.masked_fill(out, 0.0))


def _uniform(keys: NDArray[np.uint64], draws: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number in [0, 1) a row."""
    bits = _mix(keys + draws.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
