"""The text of each token, on real vocabularies and on stand-ins of other kinds: nothing of what was sampled is lost."""

from __future__ import annotations

import random
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tinker_cookbook.tokenizer_utils import TmlRenderersTokenizerAdapter, get_tokenizer

from agent_env.training._pieces import TokenPieces
from agent_env.training._tokenizer import shared_tokenizer

sys.path.insert(0, str(Path(__file__).parent))

from small_tokenizers import byte_tokenizer
from vocabularies import GPT_OSS, LLAMA3, QWEN3, QWEN3_5, Vocabulary, vocabulary_folder

TEXT = 'Größe 12,5 m² e\u0301 日本語 🙂 مرحبا \U0001d4b3\n\n\t {"a": [1, 2.50, null]}  x\x00y <|im_end|> </think> ▁ <0xE2> '
BYTE = re.compile(r"⟨0x([0-9A-F]{2})⟩")


def read_back(pieces: tuple[str, ...]) -> str:
    """The text of pieces, with their lone bytes put together."""
    parts = BYTE.split("".join(pieces))
    return b"".join(bytes.fromhex(part) if at % 2 else part.encode() for at, part in enumerate(parts)).decode()


@pytest.mark.parametrize("vocabulary", [QWEN3, QWEN3_5, LLAMA3, GPT_OSS], ids=lambda vocabulary: vocabulary.name)
@pytest.mark.parametrize("is_shared", [True, False])
def test_pieces_of_a_real_vocabulary_are_the_text(vocabulary: Vocabulary, *, is_shared: bool) -> None:
    """Special tokens as they are written, and the bytes of a character that several tokens make up one by one."""
    tokenizer = get_tokenizer(str(vocabulary_folder(vocabulary)))
    tokenizer = shared_tokenizer(tokenizer) if is_shared else tokenizer
    tokens = tokenizer.encode(TEXT, add_special_tokens=False)
    pieces = TokenPieces(tokenizer).of(tokens)
    assert len(pieces) == len(tokens)
    assert read_back(pieces) == tokenizer.decode(tokens)
    assert any(BYTE.search(piece) for piece in pieces)


@pytest.mark.parametrize("vocabulary", [QWEN3, QWEN3_5], ids=lambda vocabulary: vocabulary.name)
def test_whatever_is_sampled_has_its_bytes(vocabulary: Vocabulary) -> None:
    """Tokens at random, as untrained weights sample them: together their pieces are the bytes that they decode to."""
    tokenizer = get_tokenizer(str(vocabulary_folder(vocabulary)))
    draw, size = random.Random(3), len(tokenizer)
    pieces = TokenPieces(tokenizer)
    for _ in range(200):
        tokens = [draw.randrange(size) for _ in range(20)]
        parts = BYTE.split("".join(pieces.of(tokens)))
        read = b"".join(bytes.fromhex(part) if at % 2 else part.encode() for at, part in enumerate(parts))
        assert read.decode("utf-8", "replace") == tokenizer.decode(tokens)


def test_a_byte_for_a_token_is_a_byte_for_a_piece() -> None:
    """The smallest vocabulary that there is."""
    tokenizer = byte_tokenizer()
    tokens = tokenizer.encode("aé日", add_special_tokens=False)
    assert TokenPieces(tokenizer).of(tokens) == ("a", *(f"⟨0x{byte:02X}⟩" for byte in "é日".encode()))


@cache
def sentence_pieces() -> Any:
    """A vocabulary with a mark for a blank and names for bytes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    words = ["\u2581", *"abcdefghijklmnopqrstuvwxyzAdÄé0123456789.\n\t", "\u2581Add", "\u2581a", "dd"]
    scored = [("<unk>", 0.0), *((f"<0x{byte:02X}>", -20.0) for byte in range(256)), *((word, -5.0) for word in words)]
    tokenizer = Tokenizer(models.Unigram(list(dict(scored).items()), unk_id=0, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("<|im_end|>", special=True, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)


def test_a_vocabulary_with_a_mark_for_blanks_is_read() -> None:
    """The blank that decoding leaves out is there, and a byte that is named is a byte."""
    tokenizer = sentence_pieces()
    tokens = tokenizer.encode("Add 3 日<|im_end|>", add_special_tokens=False)
    assert TokenPieces(tokenizer).of(tokens) == (
        *(" Add", " ", "3", " "),
        *("⟨0xE6⟩", "⟨0x97⟩", "⟨0xA5⟩"),
        "<|im_end|>",
    )


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")  # the cookbook's call
def test_the_cookbooks_own_tokenizer_is_read() -> None:
    """Inkling's is no tokenizer of transformers: it says the bytes of its tokens itself."""
    tokenizer = TmlRenderersTokenizerAdapter("thinkingmachines/Inkling")
    pieces = TokenPieces(tokenizer).of(tokenizer.encode(TEXT))
    assert read_back(pieces) == TEXT
    assert any(BYTE.search(piece) for piece in pieces)


def test_a_tokenizer_that_only_decodes_says_what_its_tokens_decode_to() -> None:
    """After another token: at the start of a text this one leaves a blank out."""

    class Words:
        words = ("x", " one", " two", ".")

        def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
            return [at for at, word in enumerate(self.words) if word in text]

        def decode(self, tokens: list[int]) -> str:
            return "".join(self.words[token] for token in tokens).removeprefix(" ")

    assert TokenPieces(Words()).of([1, 2, 3, 9]) == (" one", " two", ".", "⟨9⟩")


def test_a_tokenizer_that_breaks_leaves_numbers() -> None:
    """A token without a text is still a token."""

    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    assert TokenPieces(Broken()).of([0, 5]) == ("⟨0⟩", "⟨5⟩")


@pytest.mark.parametrize("token", [-1, 151_700, 2**31, 10**30])
def test_a_number_beyond_the_vocabulary_is_shown_as_one(token: int) -> None:
    """A model's last layer may be larger than its vocabulary."""
    tokenizer = get_tokenizer(str(vocabulary_folder(QWEN3)))
    assert TokenPieces(tokenizer).of([token]) == (f"⟨{token}⟩",)
