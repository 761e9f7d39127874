"""Byte-level BPE tokenizers: learning one from texts with Qwen's special tokens, and the bytes of each token.

Stop strings are matched on bytes, so the engine needs no tokenizer object at run time; a fast tokenizer is not
thread-safe anyway (huggingface/transformers#47085).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from agent_env._optional import TRAINER, require
from agent_env.engine.shape import Pretokenizer
from agent_env.errors import EngineError

__all__ = [
    "END_OF_TEXT",
    "END_OF_TURN",
    "MARKUP_TOKENS",
    "QWEN_PATTERN",
    "SPECIAL_TOKENS",
    "byte_of_character",
    "learn_tokenizer",
    "token_bytes",
]

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
"""Qwen's control tokens, in its order."""

MARKUP_TOKENS = (
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
"""Tokens that Qwen adds without calling them special: decoding keeps them."""

END_OF_TEXT = "<|endoftext|>"
END_OF_TURN = "<|im_end|>"

QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pre-tokenizer of Qwen's published `tokenizer.json`."""

CHAT_TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def learn_tokenizer(
    texts: Iterable[str], *, vocabulary: int, pretokenizer: Pretokenizer, words: Sequence[str], context: int, out: Path
) -> int:
    """Learn a byte-level BPE from `texts` and write it to `out` as a directory that `AutoTokenizer` reads.

    Args:
        texts: What to learn from; any bytes can be encoded afterwards, learned or not.
        vocabulary: Most tokens to have, special tokens and bytes included.
        pretokenizer: Where merges stop.
        words: With `PHRASES`, words that are cut out wherever they stand, also inside a longer one: with `charge` named,
            `discharge` is `dis` and `charge`.
        context: Tokens of the longest sequence, for the tokenizer's own limit.
        out: An existing directory.

    Returns:
        The number of tokens, which is also the number of rows that the model's embedding needs.

    Raises:
        EngineError: When `vocabulary` has no room for the bytes and the special tokens.
    """
    tokenizers: Any = require("tokenizers", install=TRAINER, feature="The embedded engine")
    fixed = [*SPECIAL_TOKENS, *MARKUP_TOKENS]
    if vocabulary < 256 + len(fixed):
        raise EngineError(f"vocabulary {vocabulary}: needs at least {256 + len(fixed)} (256 bytes, special tokens)")
    if words and pretokenizer is not Pretokenizer.PHRASES:
        raise EngineError("words are for Pretokenizer.PHRASES; Qwen's pre-tokenizer has no place for them")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = _pretokenizer(tokenizers, pretokenizer, words)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary - len(fixed),
        min_frequency=2,
        show_progress=False,
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(_without_special_tokens(texts, fixed), trainer=trainer)
    tokenizer.add_special_tokens([tokenizers.AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([tokenizers.AddedToken(token, special=False) for token in MARKUP_TOKENS])
    tokenizer.save(str(out / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": END_OF_TURN,
        "pad_token": END_OF_TEXT,
        "unk_token": None,
        "additional_special_tokens": [token for token in SPECIAL_TOKENS if token != END_OF_TEXT],
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return int(tokenizer.get_vocab_size(with_added_tokens=True))


def _without_special_tokens(texts: Iterable[str], fixed: Sequence[str]) -> Iterable[str]:
    """The texts between special tokens: no merge is spent on a token's own spelling."""
    for text in texts:
        rest = text
        for token in fixed:
            rest = rest.replace(token, "\0")
        yield from (part for part in rest.split("\0") if part)


def _pretokenizer(tokenizers: Any, kind: Pretokenizer, words: Sequence[str]) -> Any:
    pre: Any = tokenizers.pre_tokenizers
    if kind is Pretokenizer.QWEN:
        splits = [pre.Split(tokenizers.Regex(QWEN_PATTERN), behavior="isolated")]
    else:
        splits = [pre.Split(tokenizers.Regex(r"[0-9]|[\r\n]+"), behavior="isolated")]
        # Each split works on the pieces of the one before, so a word is also cut out of a longer one that is named.
        splits += [pre.Split(word, behavior="isolated") for word in sorted(set(words), key=lambda w: (-len(w), w))]
    return pre.Sequence([*splits, pre.ByteLevel(add_prefix_space=False, use_regex=False)])


def token_bytes(model_dir: Path) -> list[bytes] | None:
    """What each token id decodes to, or None where the tokenizer is not byte-level.

    Raises:
        EngineError: When the directory has no `tokenizer.json`.
    """
    path = model_dir / "tokenizer.json"
    if not path.exists():
        raise EngineError(f"{path}: not there; the model's directory must hold its tokenizer too")
    document: Any = json.loads(path.read_text(encoding="utf-8"))
    if "ByteLevel" not in json.dumps(document.get("decoder")):
        return None
    vocabulary: dict[str, int] = document["model"]["vocab"]
    added: list[dict[str, Any]] = document["added_tokens"]
    table = [b""] * (1 + max([*vocabulary.values(), *(int(token["id"]) for token in added)]))
    byte_of = byte_of_character()
    for text, number in vocabulary.items():
        table[number] = bytes(byte_of[character] for character in text if character in byte_of)
    for token in added:
        table[int(token["id"])] = str(token["content"]).encode()
    return table


def byte_of_character() -> dict[str, int]:
    """The byte that each printable stand-in character means, as GPT-2's encoder defines it.

    Printable Latin-1 characters mean themselves; the other bytes are numbered from U+0100 on.
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return table | {chr(256 + at): byte for at, byte in enumerate(others)}
