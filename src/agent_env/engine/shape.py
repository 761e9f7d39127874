"""The shape of the small random model that `build_model` makes, and how its tokenizer splits text."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from agent_env.errors import EngineError

__all__ = ["ModelShape", "Pretokenizer"]


class Pretokenizer(StrEnum):
    """Where the tokenizer may never merge across."""

    QWEN = "qwen"
    """Qwen's own rule: words, single digits, punctuation, line ends."""
    PHRASES = "phrases"
    """Only single digits, line ends and the words that are named: a repeated phrase becomes one token, which keeps
    conversations short enough for a model of a few hundred thousand parameters to learn them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The size of a Qwen3-shaped model."""

    hidden: int = 256
    """Width of the residual stream."""
    layers: int = 4
    """Transformer blocks."""
    heads: int = 4
    """Attention heads; the width of a head is `hidden // heads`."""
    kv_heads: int = 2
    """Key and value heads; a divisor of `heads`."""
    intermediate: int = 768
    """Width of a feed-forward layer."""
    vocabulary: int = 4096
    """Tokens that the tokenizer may learn, special tokens and the 256 bytes included; it may learn fewer."""
    context: int = 4096
    """Tokens of the longest sequence."""

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise EngineError(f"ModelShape: kv_heads {self.kv_heads} does not divide heads {self.heads}")
        if self.hidden % self.heads or self.hidden // self.heads % 2:
            raise EngineError(f"ModelShape: hidden {self.hidden} over heads {self.heads} is not an even whole number")
