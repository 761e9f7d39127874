"""The forward pass of a dense Qwen3 model, over plain tensors.

One function serves training and sampling, so that the log-probabilities of both agree. It is our own because with a
model this small the modules of `transformers` take longer than the arithmetic; a test pins that it gives the same
logits as `Qwen3ForCausalLM`. Projections that read the same input are one matrix here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from agent_env.engine.architecture import Architecture

__all__ = ["Attend", "Rope", "Weights", "assemble", "branching_attention", "hidden_states"]


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
    """Negative in the first half: the second half of a vector, moved there, is subtracted."""

    @classmethod
    def of(cls, architecture: Architecture) -> Rope:
        """The tables of a model, as `Qwen3RotaryEmbedding` computes them."""
        steps = torch.arange(0, architecture.head_dim, 2, dtype=torch.float32) / architecture.head_dim
        frequencies = 1.0 / (architecture.rope_theta**steps)
        angles = torch.arange(architecture.context, dtype=torch.float32)[:, None] * frequencies[None, :]
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        return cls(torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1))


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
        # Split and not sliced: the gradient of a slice is a whole tensor of zeros around it.
        qk, value = mixed.split([heads + kv_heads, kv_heads], dim=-2)
        qk = F.rms_norm(qk, (size,), None, eps) * layer.qk_norm
        qk = torch.addcmul(qk * cos, qk.roll(size // 2, dims=-1), sin)
        query, key = qk.split([heads, kv_heads], dim=-2)
        values = attend(at, query, key, value)
        x = x + F.linear(values.flatten(-2), layer.out)
        gate, up = F.linear(F.rms_norm(x, width, layer.mlp_norm, eps), layer.gate_up).chunk(2, dim=-1)
        x = x + F.linear(F.silu(gate) * up, layer.down)
    return F.rms_norm(x, width, weights.norm, eps)


def branching_attention(prefix: int, branches: int) -> Attend:
    """Attention over sequences that begin alike, with the common beginning there once.

    The one row holds `prefix` common tokens, then `branches` continuations of equal length, each of which sees the
    beginning and itself. Padding at the end of a continuation needs no mask: nothing sees it.
    """

    def mix(_layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if not prefix:
            return _branches(branches, query, key, value)
        (q0, q1), (k0, k1), (v0, v1) = (
            tensor.split([prefix, tensor.shape[1] - prefix], dim=1) for tensor in (query, key, value)
        )
        common = F.scaled_dot_product_attention(
            q0.transpose(1, 2), _repeated(k0, q0), _repeated(v0, q0), is_causal=True
        )
        kv_heads, size = key.shape[2], key.shape[3]
        # [kv_heads, branches, queries a key head, length, size]
        q = q1[0].unflatten(1, (kv_heads, -1)).unflatten(0, (branches, -1)).permute(2, 0, 3, 1, 4)
        groups, length = q.shape[2], q.shape[3]
        k, v = (tensor[0].unflatten(0, (branches, -1)).permute(2, 0, 1, 3) for tensor in (k1, v1))
        # The common keys are multiplied with every continuation's queries at once: that is what sharing saves.
        flat = q.reshape(kv_heads, -1, size) * size**-0.5
        far = (flat @ k0[0].permute(1, 2, 0)).view(kv_heads, branches, groups * length, prefix)
        near = flat.view(kv_heads, branches, groups * length, size) @ k.transpose(-1, -2)
        later = torch.ones(length, length, dtype=torch.bool).triu(1).repeat(groups, 1)
        shares = torch.cat([far, near.masked_fill(later, -torch.inf)], dim=-1).softmax(dim=-1)
        far_shares, near_shares = shares.split([prefix, length], dim=-1)
        from_common = far_shares.reshape(kv_heads, -1, prefix) @ v0[0].transpose(0, 1)
        mixed = from_common.view(kv_heads, branches, -1, size) + near_shares @ v
        own = mixed.view(kv_heads, branches, groups, length, size).permute(1, 3, 0, 2, 4)
        return torch.cat([common.transpose(1, 2), own.reshape(1, branches * length, -1, size)], dim=1)

    return mix


def _branches(branches: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention within each of `branches` sequences of equal length."""
    q, k, v = (tensor[0].unflatten(0, (branches, -1)) for tensor in (query, key, value))
    mixed = F.scaled_dot_product_attention(q.transpose(1, 2), _repeated(k, q), _repeated(v, q), is_causal=True)
    return mixed.transpose(1, 2).flatten(0, 1)[None]


def _repeated(keys: Tensor, query: Tensor) -> Tensor:
    """`[rows, heads, length, size]`: a key head once for each query head that it serves."""
    return keys.transpose(1, 2).repeat_interleave(query.shape[2] // keys.shape[2], dim=1)
