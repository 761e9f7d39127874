"""A small random model with its tokenizer, built here in seconds: nothing is downloaded."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from agent_env._optional import TRAINER, require
from agent_env.engine.shape import ModelShape, Pretokenizer
from agent_env.engine.tokenizer import END_OF_TEXT, END_OF_TURN, learn_tokenizer
from agent_env.errors import EngineError

__all__ = ["build_model"]


def build_model(
    out_dir: Path,
    texts: Iterable[str],
    *,
    seed: int = 0,
    shape: ModelShape = ModelShape(),  # noqa: B008 - a frozen value
    pretokenizer: Pretokenizer = Pretokenizer.QWEN,
    words: Sequence[str] = (),
) -> Path:
    """Write a Qwen3-shaped model with random weights, and a tokenizer learned from `texts`, to `out_dir`.

    The same texts, seed and settings give the same files. The directory is a Hugging Face model directory:
    `transformers` and tinker-cookbook's `get_tokenizer` read it. A directory that is there is replaced whole.

    Args:
        out_dir: The model's directory; its parent is made where it is missing.
        texts: What the tokenizer learns from.
        seed: Of the weights.
        shape: The model's size.
        pretokenizer: Where the tokenizer never merges across.
        words: With `Pretokenizer.PHRASES`, words that stand alone.

    Returns:
        `out_dir`.

    Raises:
        EngineError: When the shape or the vocabulary is impossible, the model cannot be written, or `out_dir` is there
            and is no model's directory.
        MissingExtraError: When torch, transformers or tokenizers is not installed.
    """
    if out_dir.exists() and not (out_dir / "config.json").exists() and any(out_dir.iterdir()):
        raise EngineError(f"{out_dir}: has files but no config.json, so it is not a model's directory to replace")
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out_dir.name}-", dir=out_dir.parent) as scratch:
        made = Path(scratch) / "model"
        made.mkdir()
        rows = learn_tokenizer(
            texts,
            vocabulary=shape.vocabulary,
            pretokenizer=pretokenizer,
            words=words,
            context=shape.context,
            out=made,
        )
        _write_weights(made, shape, rows=rows, seed=seed)
        if out_dir.exists():
            shutil.rmtree(out_dir)
        made.rename(out_dir)
    return out_dir


def _write_weights(out: Path, shape: ModelShape, *, rows: int, seed: int) -> None:
    """Write `config.json` and the weights, as `Qwen3ForCausalLM` names and begins them.

    Without `transformers`: importing it takes longer than the rest.
    """
    torch: Any = require("torch", install=TRAINER, feature="The embedded engine")
    safetensors: Any = require("safetensors.torch", install=TRAINER, feature="The embedded engine")
    size = shape.hidden // shape.heads
    tokens: Any = json.loads((out / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    ids = {token["content"]: token["id"] for token in tokens}
    # Wide enough that a shallow, narrow model starts with something to tell tokens apart by.
    spread = 0.02 if shape.hidden >= 512 else 0.05
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "dtype": "float32",
        "vocab_size": rows,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": size,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "use_sliding_window": False,
        # Small and random: the embedding is better off on its own than tied to the output.
        "tie_word_embeddings": False,
        "initializer_range": spread,
        "bos_token_id": None,
        "eos_token_id": ids[END_OF_TURN],
        "pad_token_id": ids[END_OF_TEXT],
    }
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    generator = torch.Generator().manual_seed(seed)

    def matrix(to: int, of: int) -> Any:
        return torch.empty(to, of).normal_(0.0, spread, generator=generator)

    weights: dict[str, Any] = {"model.embed_tokens.weight": matrix(rows, shape.hidden)}
    for layer in range(shape.layers):
        parts = {
            "input_layernorm": torch.ones(shape.hidden),
            "self_attn.q_proj": matrix(shape.heads * size, shape.hidden),
            "self_attn.k_proj": matrix(shape.kv_heads * size, shape.hidden),
            "self_attn.v_proj": matrix(shape.kv_heads * size, shape.hidden),
            "self_attn.q_norm": torch.ones(size),
            "self_attn.k_norm": torch.ones(size),
            "self_attn.o_proj": matrix(shape.hidden, shape.heads * size),
            "post_attention_layernorm": torch.ones(shape.hidden),
            "mlp.gate_proj": matrix(shape.intermediate, shape.hidden),
            "mlp.up_proj": matrix(shape.intermediate, shape.hidden),
            "mlp.down_proj": matrix(shape.hidden, shape.intermediate),
        }
        weights |= {f"model.layers.{layer}.{name}.weight": tensor for name, tensor in parts.items()}
    weights["model.norm.weight"] = torch.ones(shape.hidden)
    weights["lm_head.weight"] = matrix(rows, shape.hidden)
    try:
        safetensors.save_file(weights, str(out / "model.safetensors"), metadata={"format": "pt"})
    except import_module("safetensors").SafetensorError as exc:  # a full disk is no OSError here
        raise EngineError(f"{out.parent.parent}: the model cannot be written ({exc}); free some space there") from exc
