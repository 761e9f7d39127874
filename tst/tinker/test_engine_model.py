"""The model that the engine builds and runs: files, tokenizer, and the same logits as transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.tokenizer_utils import get_tokenizer
from transformers import AutoModelForCausalLM

from agent_env.engine import ModelShape, Pretokenizer, build_model
from agent_env.engine.architecture import load_architecture, load_tensors
from agent_env.engine.model import Rope, assemble, branching_attention, hidden_states
from agent_env.engine.tokenizer import token_bytes
from agent_env.errors import EngineError

SHAPE = ModelShape(hidden=32, layers=2, heads=4, kv_heads=2, intermediate=64, vocabulary=420, context=256)
TEXTS = [f"Block {at}: charge at {at * 7 % 90}, then discharge.\nThe price is é {at} öre.\n" for at in range(40)]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model, built once."""
    return build_model(tmp_path_factory.mktemp("built") / "model", TEXTS, seed=3, shape=SHAPE)


def test_same_texts_and_seed_give_the_same_files_and_another_seed_gives_others(model_dir: Path, tmp_path: Path) -> None:
    """A run on another machine starts from the same model."""
    again = build_model(tmp_path / "again", TEXTS, seed=3, shape=SHAPE)
    other = build_model(tmp_path / "other", TEXTS, seed=4, shape=SHAPE)
    names = sorted(path.name for path in model_dir.iterdir())
    assert "model.safetensors" in names
    assert [(again / name).read_bytes() for name in names] == [(model_dir / name).read_bytes() for name in names]
    assert (other / "model.safetensors").read_bytes() != (model_dir / "model.safetensors").read_bytes()


def test_a_folder_that_is_no_model_is_not_replaced(tmp_path: Path) -> None:
    """A mistyped path must not cost the user's files."""
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(EngineError, match=r"no config\.json"):
        build_model(tmp_path, TEXTS, shape=SHAPE)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("pretokenizer", "words"), [(Pretokenizer.QWEN, ()), (Pretokenizer.PHRASES, ("charge", "discharge"))]
)
def test_every_text_round_trips_and_the_byte_table_says_what_decoding_says(
    pretokenizer: Pretokenizer, words: tuple[str, ...], tmp_path: Path
) -> None:
    """Text that the tokenizer never saw keeps its bytes, and stop strings are matched on the same bytes."""
    built = build_model(tmp_path / "model", TEXTS, shape=SHAPE, pretokenizer=pretokenizer, words=words)
    tokenizer = get_tokenizer(str(built))
    table = token_bytes(built)
    assert table is not None
    for text in [
        "Zürich 東京 \U0001f600\t\r\n  x",
        "".join(map(chr, range(1, 300))),
        "<|im_start|>user\n<think>a</think>",
    ]:
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
        assert b"".join(table[token] for token in ids).decode() == text
    assert len(table) == load_architecture(built).vocabulary


def test_phrases_become_one_token_but_named_words_and_digits_stand_alone(tmp_path: Path) -> None:
    """What a small model chooses between is one token each; what always repeats is one token together."""
    texts = ["The battery of the house will now charge 12 units\n"] * 5
    built = build_model(
        tmp_path / "model", texts, shape=SHAPE, pretokenizer=Pretokenizer.PHRASES, words=["charge", "discharge"]
    )
    tokenizer = get_tokenizer(str(built))
    tokens = [tokenizer.decode([token]) for token in tokenizer.encode(texts[0], add_special_tokens=False)]
    assert tokens == ["The battery of the house will now ", "charge", " ", "1", "2", " units", "\n"]


@pytest.mark.parametrize(
    "name", ["qwen3", "qwen3_disable_thinking", "qwen3_instruct", "qwen3_5", "qwen3_5_disable_thinking", "role_colon"]
)
def test_the_cookbooks_renderers_run_on_the_built_tokenizer(name: str, model_dir: Path) -> None:
    """Qwen's special tokens are single tokens, so the real renderers build prompts and find where to stop."""
    tokenizer = get_tokenizer(str(model_dir))
    renderer = get_renderer(name, tokenizer)
    prompt = renderer.build_generation_prompt([{"role": "user", "content": "charge"}])
    assert prompt.length > 0
    assert renderer.get_stop_sequences()
    reply = tokenizer.encode("hold<|im_end|>" if name != "role_colon" else "hold\n\nUser:", add_special_tokens=False)
    message, _ = renderer.parse_response(reply)
    assert message["content"] == "hold"
    special = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>"]
    assert all(len(tokenizer.encode(token, add_special_tokens=False)) == 1 for token in special)


@pytest.mark.parametrize("tied", [False, True])
def test_the_forward_pass_gives_the_logits_of_transformers(model_dir: Path, tmp_path: Path, *, tied: bool) -> None:
    """Our own forward pass is faster, not different: padded, branching from a common beginning, or neither."""
    config = json.loads((model_dir / "config.json").read_text()) | {"tie_word_embeddings": tied}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(model_dir / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if not (tied and name == "lm_head.weight")}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    reference = AutoModelForCausalLM.from_pretrained(str(tmp_path))
    architecture = load_architecture(tmp_path)
    assert architecture.tied is tied
    weights = assemble(architecture, load_tensors(tmp_path, architecture))
    rope = Rope.of(architecture)
    tokens = torch.randint(0, architecture.vocabulary, (3, 40), generator=torch.Generator().manual_seed(0))
    tokens[:, :24] = tokens[:1, :24]
    with torch.no_grad():
        wanted = reference(tokens).logits
        flat = torch.arange(40).repeat(3)[None]
        alone = hidden_states(architecture, weights, rope, tokens.view(1, -1), flat, branching_attention(0, 3))
        packed = torch.cat([tokens[0, :24], tokens[:, 24:].reshape(-1)])[None]
        places = torch.cat([torch.arange(24), torch.arange(24, 40).repeat(3)])[None]
        branched = hidden_states(architecture, weights, rope, packed, places, branching_attention(24, 3))
    assert torch.allclose((alone @ weights.unembed.T).view(3, 40, -1), wanted, atol=2e-5)
    logits = branched @ weights.unembed.T
    assert torch.allclose(logits[0, :24], wanted[0, :24], atol=2e-5)
    assert torch.allclose(logits[0, 24:].view(3, 16, -1), wanted[:, 24:], atol=2e-5)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "llama"}, "model_type"),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rope_parameters"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ],
)
def test_a_model_that_the_engine_cannot_run_is_refused_by_name(
    change: dict[str, object], named: str, model_dir: Path, tmp_path: Path
) -> None:
    """Running it all the same would give wrong numbers without a word."""
    config = json.loads((model_dir / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(EngineError, match=named):
        load_architecture(tmp_path)


def test_an_impossible_shape_is_refused(tmp_path: Path) -> None:
    """The error comes before anything is built."""
    with pytest.raises(EngineError, match="kv_heads"):
        replace(SHAPE, kv_heads=3)
    with pytest.raises(EngineError, match="vocabulary 100"):
        build_model(tmp_path / "model", TEXTS, shape=replace(SHAPE, vocabulary=100))


def test_importing_the_engine_imports_no_torch() -> None:
    """The command line and the training module import it at once."""
    code = "import sys, agent_env.engine; print([m for m in ('torch', 'transformers', 'tinker') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_model_that_cannot_be_written_is_said_in_a_line(tmp_path: Path) -> None:
    """As on a full disk; here a limit on a file's size stands in for it. Nothing half made is left."""
    code = (
        "import pathlib, resource, sys\n"
        "from agent_env.engine import build_model\n"
        "from agent_env.errors import EngineError\n"
        "import torch, safetensors.torch\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))\n"
        "try:\n    build_model(pathlib.Path(sys.argv[1]), ['a text'])\n"
        "except EngineError as exc:\n    print(exc)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "model")], capture_output=True, text=True, timeout=60, check=True
    )
    assert "the model cannot be written" in done.stdout
    assert "free some space there" in done.stdout
    assert list(tmp_path.iterdir()) == []
