"""The forward pass of a dense Qwen3 model, over plain tensors.

One function serves training and sampling, so that the log-probabilities of both agree. It is our own because with a
model this small the modules of `transformers` take longer than the arithmetic; a test pins that it gives the same
logits as `Qwen3ForCausalLM`. Projections that read the same input are one matrix here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from agent_env.engine.architecture import Architecture

__all__ = ["Attend", "Rope", "Weights", "assemble", "causal_attention", "hidden_states"]


class LayerWeights(NamedTuple):
    """One transformer block."""

    attention_norm: Tensor
    qkv: Tensor
    """Query, key and value projections, stacked."""
    qk_norm: Tensor
    """`[heads + kv_heads, head_dim]`: the norm's weight of every query and key head."""
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    """Gate and up projections, stacked."""
    down: Tensor


class Weights(NamedTuple):
    """Everything that a forward pass multiplies with."""

    embed: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    unembed: Tensor


class Rope(NamedTuple):
    """Rotary tables, `[context, 1, head_dim]`."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, architecture: Architecture) -> Rope:
        """The tables of a model, as `Qwen3RotaryEmbedding` computes them."""
        steps = torch.arange(0, architecture.head_dim, 2, dtype=torch.float32) / architecture.head_dim
        frequencies = 1.0 / (architecture.rope_theta**steps)
        angles = torch.arange(architecture.context, dtype=torch.float32)[:, None] * frequencies[None, :]
        angles = torch.cat([angles, angles], dim=-1)[:, None, :]
        return cls(angles.cos(), angles.sin())


Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""`(layer, query, key, value) -> mixed values`; query `[rows, new, heads, head_dim]`, key and value with `kv_heads`."""


def assemble(architecture: Architecture, tensors: Mapping[str, Tensor]) -> Weights:
    """Stack named weights into what the forward pass uses. Differentiable."""

    def layer(at: int) -> LayerWeights:
        def part(name: str) -> Tensor:
            return tensors[f"layers.{at}.{name}.weight"]

        projections = [part("self_attn.q_proj"), part("self_attn.k_proj"), part("self_attn.v_proj")]
        norms = [
            part("self_attn.q_norm").expand(architecture.heads, -1),
            part("self_attn.k_norm").expand(architecture.kv_heads, -1),
        ]
        return LayerWeights(
            attention_norm=part("input_layernorm"),
            qkv=torch.cat(projections),
            qk_norm=torch.cat(norms),
            out=part("self_attn.o_proj"),
            mlp_norm=part("post_attention_layernorm"),
            gate_up=torch.cat([part("mlp.gate_proj"), part("mlp.up_proj")]),
            down=part("mlp.down_proj"),
        )

    embed = tensors["embed_tokens.weight"]
    return Weights(
        embed=embed,
        layers=tuple(layer(at) for at in range(architecture.layers)),
        norm=tensors["norm.weight"],
        unembed=tensors.get("lm_head.weight", embed),
    )


def hidden_states(
    architecture: Architecture, weights: Weights, rope: Rope, tokens: Tensor, positions: Tensor, attend: Attend
) -> Tensor:
    """Run the transformer.

    Args:
        architecture: The model's numbers.
        weights: Its weights.
        rope: Its rotary tables.
        tokens: `[rows, new]` token ids.
        positions: `[rows, new]` or `[1, new]`, each token's place in its sequence.
        attend: Mixes values over the sequence; it may keep keys and values for later.

    Returns:
        `[rows, new, hidden]`, normalized: multiply with `weights.unembed` for logits.
    """
    heads, kv_heads, size, eps = (
        architecture.heads,
        architecture.kv_heads,
        architecture.head_dim,
        architecture.norm_eps,
    )
    width = (architecture.hidden,)
    cos, sin = rope.cos[positions], rope.sin[positions]
    x = F.embedding(tokens, weights.embed)
    for at, layer in enumerate(weights.layers):
        mixed = F.linear(F.rms_norm(x, width, layer.attention_norm, eps), layer.qkv).unflatten(-1, (-1, size))
        qk, value = mixed[..., : heads + kv_heads, :], mixed[..., heads + kv_heads :, :]
        qk = F.rms_norm(qk, (size,), None, eps) * layer.qk_norm
        first, second = qk.chunk(2, dim=-1)
        qk = qk * cos + torch.cat([-second, first], dim=-1) * sin
        values = attend(at, qk[..., :heads, :], qk[..., heads:, :], value)
        x = x + F.linear(values.flatten(-2), layer.out)
        gate, up = F.linear(F.rms_norm(x, width, layer.mlp_norm, eps), layer.gate_up).chunk(2, dim=-1)
        x = x + F.linear(F.silu(gate) * up, layer.down)
    return F.rms_norm(x, width, weights.norm, eps)


def causal_attention(_layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention over whole sequences that begin at position 0. Padding at the end needs no mask."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
