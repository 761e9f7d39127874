"""What the engine reads of a model's directory: its shape, and its weights as named tensors.

Covers Qwen3's dense models in Hugging Face layout. Anything else is refused, and the message says what.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from agent_env.errors import EngineError

__all__ = ["Architecture", "load_architecture", "load_tensors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The numbers that the forward pass needs."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    """Tokens of the longest sequence."""
    rope_theta: float
    norm_eps: float
    tied: bool
    """Whether the output layer is the embedding."""
    end_tokens: frozenset[int]
    """Token ids at which sampling stops where a request names no stop."""


def load_architecture(model_dir: Path) -> Architecture:
    """Read `config.json`.

    Raises:
        EngineError: When there is none, or the model is not one that the engine can run.
    """
    path = model_dir / "config.json"
    if not path.exists():
        raise EngineError(f"{path}: not there; give a model's directory (agent_env.engine.build_model makes one)")
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    rope: dict[str, Any] = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", "default")
    unsupported = {
        "model_type": config.get("model_type") != "qwen3",
        "hidden_act": config.get("hidden_act", "silu") != "silu",
        "attention_bias": bool(config.get("attention_bias")),
        "use_sliding_window": bool(config.get("use_sliding_window")),
        "rope_parameters": kind != "default",
        "quantization_config": config.get("quantization_config") is not None,
    }
    for name, bad in unsupported.items():
        if bad:
            raise EngineError(
                f"{path}: {name} {config.get(name)!r} is not supported; the embedded engine runs dense Qwen3 models"
            )
    ends = config.get("eos_token_id")
    heads = int(config["num_attention_heads"])
    return Architecture(
        hidden=int(config["hidden_size"]),
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
        vocabulary=int(config["vocab_size"]),
        context=int(config["max_position_embeddings"]),
        rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
        norm_eps=float(config["rms_norm_eps"]),
        tied=bool(config.get("tie_word_embeddings")),
        end_tokens=frozenset(int(end) for end in (ends if isinstance(ends, list) else [ends]) if end is not None),
    )


def load_tensors(model_dir: Path, architecture: Architecture) -> Mapping[str, Tensor]:
    """Read every weight, as float32, under its Hugging Face name without the `model.` prefix.

    Raises:
        EngineError: When there are no safetensors, or a weight is missing.
    """
    files = sorted(model_dir.glob("*.safetensors"))
    if not files:
        raise EngineError(f"{model_dir}: holds no *.safetensors; the embedded engine reads no other weights")
    found: dict[str, Tensor] = {}
    for file in files:
        found |= {name.removeprefix("model."): tensor.to(torch.float32) for name, tensor in load_file(file).items()}
    wanted = tensor_names(architecture)
    missing = [name for name in wanted if name not in found]
    if missing:
        raise EngineError(f"{model_dir}: the weight {missing[0]!r} is missing (and {len(missing) - 1} more)")
    return {name: found[name] for name in wanted}


def tensor_names(architecture: Architecture) -> list[str]:
    """The names of all weights, in the order of the forward pass."""
    names = ["embed_tokens.weight"]
    for layer in range(architecture.layers):
        names += [f"layers.{layer}.{part}.weight" for part in LAYER_PARTS]
    names.append("norm.weight")
    if not architecture.tied:
        names.append("lm_head.weight")
    return names


LAYER_PARTS = (
    "input_layernorm",
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.q_norm",
    "self_attn.k_norm",
    "self_attn.o_proj",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
