"""Plain text encoded word by word: the tokens are the Rust part's own."""

from __future__ import annotations

import random
import string
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agent_env.training._words import Words

sys.path.insert(0, str(Path(__file__).parent))

from small_tokenizers import byte_tokenizer
from vocabularies import GPT_OSS, LLAMA3, QWEN3, QWEN3_5, Vocabulary, vocabulary_folder

SOURCES = [path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("test_builder_*.py"))]
QWEN = r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def rust_of(vocabulary: Vocabulary) -> Any:
    """The Rust part of a vocabulary's tokenizer."""
    return PreTrainedTokenizerFast.from_pretrained(str(vocabulary_folder(vocabulary))).backend_tokenizer


@pytest.mark.parametrize("splits_special", [False, True])
@pytest.mark.parametrize("vocabulary", [QWEN3, QWEN3_5, LLAMA3, GPT_OSS], ids=lambda vocabulary: vocabulary.name)
def test_the_tokens_of_plain_text_are_the_rust_parts(vocabulary: Vocabulary, *, splits_special: bool) -> None:
    """Pieces of real text, random characters and added tokens: whatever is encoded here is encoded alike, also from memory."""
    rust = rust_of(vocabulary)
    words = Words.of(rust)
    assert words is not None
    draw = random.Random(5)
    added = [token.content for token in rust.get_added_tokens_decoder().values()]
    texts = [text[at : at + draw.randrange(900)] for text in SOURCES for at in range(0, len(text), 400)]
    letters = string.printable[:95] + "\t\n\r" + "   \n\n''sStT0123<é"
    for _ in range(4000):
        text = "".join(draw.choices(letters, k=draw.randrange(60)))
        texts += [text, f"{draw.choice(added)}{text}{draw.choice(added)}{draw.choice(added)[:-1]}{text[:9]}"]
    texts += [f"<tool_response>\n{text}\n</tool_response><|im_end|>" for text in texts]
    rust.encode_special_tokens = splits_special
    found = [words.encode(text, splits_special=splits_special) for text in texts * 2]
    for text, tokens in zip(texts * 2, found, strict=True):
        if tokens is not None:
            assert tokens == rust.encode(text, add_special_tokens=False).ids, text
    assert sum(tokens is not None for tokens in found) > len(found) / 4


@pytest.mark.parametrize("text", ["naïve", "日本", "a\x00b", "a\x1cb", "a\x0cb", "\x7f", "a\u2028b"])
def test_what_is_not_plain_is_left_to_the_rust_part(text: str) -> None:
    """Other letters, and control characters."""
    words = Words.of(rust_of(QWEN3))
    assert words is not None
    assert words.encode(text, splits_special=False) is None


def test_a_text_full_of_new_words_is_left_to_the_rust_part_and_learned_bit_by_bit() -> None:
    """To learn all of its words would take longer than to encode it."""
    words = Words.of(rust_of(QWEN3))
    assert words is not None
    text = " ".join(f"wörd{at}" for at in range(3)) + " ".join(
        "".join(pair) * 3 for pair in zip(string.ascii_lowercase * 2, string.ascii_uppercase * 2, strict=True)
    )
    text = text.encode("ascii", "ignore").decode()
    encoded = [words.encode(text, splits_special=False) is not None for _ in range(20)]
    assert encoded[0] is False
    assert encoded[-1] is True
    assert encoded == sorted(encoded)


def made(pattern: str | None = QWEN, **parts: Any) -> Any:
    """A tokenizer of bytes that cuts texts by an expression."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: at for at, letter in enumerate(alphabet)}, merges=[]))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if pattern is not None:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer


def test_a_tokenizer_of_words_has_them() -> None:
    """As those below are made, but for one thing each."""
    assert Words.of(made()) is not None
    assert Words.of(made(normalizer=normalizers.NFC())) is not None


UNLIKE: dict[str, Callable[[], Any]] = {
    "another normalizer": lambda: made(normalizer=normalizers.Lowercase()),
    "bytes alone": lambda: byte_tokenizer().backend_tokenizer,
    "nothing before": lambda: made(None),
    "a space before the text": lambda: made(
        pre_tokenizer=pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(QWEN), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=True)]
        )
    ),
    "what is between the words": lambda: made(
        pre_tokenizer=pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(QWEN), "removed"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    ),
    "another model": lambda: made(model=models.WordLevel({"a": 0, "?": 1}, unk_token="?")),
    "chance": lambda: made(model=models.BPE(vocab={"a": 0}, merges=[], dropout=0.5)),
    "the start of a line": lambda: made(r"^a|\s+|\S"),
    "a repetition of a repetition": lambda: made(r"\p{N}{1,3}+|\s+|\S"),
    "a set in a set": lambda: made(r"[a[bc]]+|\s+|\S"),
    "a class that is not known here": lambda: made(r"\p{Han}+|\s+|\S"),
    "a look behind": lambda: made(r"(?<=a)b|\s+|\S"),
}


@pytest.mark.parametrize("unlike", UNLIKE)
def test_a_tokenizer_that_is_made_up_in_another_way_is_left_to_itself(unlike: str) -> None:
    """Whatever it does more or otherwise."""
    assert Words.of(UNLIKE[unlike]()) is None


def test_an_expression_that_leaves_something_out_is_left_to_the_rust_part() -> None:
    """What is between two words is a piece of its own there."""
    words = Words.of(made(r"\p{L}+|\p{N}+|[^\p{L}\p{N}_]+"))
    assert words is None or words.encode("a_b", splits_special=False) is None


def test_added_tokens_are_cut_out_first() -> None:
    """The leftmost and longest, wherever it stands; the special ones not where they are read as text."""
    tokenizer = made()
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in ("END", "ENDED", "a b")])
    tokenizer.add_special_tokens([AddedToken("STOP", special=True, normalized=False)])
    words = Words.of(tokenizer)
    assert words is not None
    for text in ("the END", "ENDED", "ENDEND", "a b", "ENDa bSTOP", "xSTOPx STOPENDED", "EN D"):
        for splits in (False, True):
            tokenizer.encode_special_tokens = splits
            assert words.encode(text, splits_special=splits) == tokenizer.encode(text).ids, (text, splits)


@pytest.mark.parametrize("more", [{"lstrip": True}, {"rstrip": True}, {"single_word": True}])
def test_a_token_that_takes_more_than_itself_leaves_all_to_the_rust_part(more: dict[str, bool]) -> None:
    """The blanks beside it, or only where it is a word."""
    tokenizer = made()
    tokenizer.add_tokens([AddedToken("END", special=False, normalized=False, **more)])
    assert Words.of(tokenizer) is None
