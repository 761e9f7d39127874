"""Encoding plain text word by word, each word once: the tokens that the Rust part makes, in a fifth of its time.

A byte-level tokenizer cuts a text into words by an expression, and encodes each word for itself. Most of what tools say is
made of words that were said before. Here the same expression cuts the text, and the tokens of its words are looked up; those
of a new word are what the tokenizer's own model makes of it. Only for printable ASCII, where expressions mean the same in every
engine, and for tokenizers made up like this, whose added tokens are cut out of a text first; everything else is left to the Rust
part. Before any of it is used, it is seen to make the same tokens of every pair of characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, product
from typing import Any

__all__ = ["Words"]

_PRINTABLE = "".join(map(chr, range(32, 127)))
_IS_PLAIN = re.compile(r"[\t\n\r -~]*").fullmatch
_NEW_AT_ONCE = 24
"""New words that a text may have: each takes as long as twenty in the Rust part."""
_LEARNED_OF_MORE = 4
"""New words that are learned of a text with more, which is the Rust part's to encode."""
_MOST_WORDS = 50_000
"""Words that are known, at most: some 10 MB."""
_LONGEST = 64
"""Characters of a word that is kept."""
_SAME_IN_ASCII = frozenset({None, "NFC", "NFD", "NFKC", "NFKD"})
"""Normalizers that leave ASCII as it is."""


class Words:
    """The words of one tokenizer. Threads may share it."""

    @classmethod
    def of(cls, rust: Any) -> Words | None:
        """Return the words of a Rust tokenizer; None where it is made up in another way."""
        expression, added = _expression(rust), list(rust.get_added_tokens_decoder().items())
        if expression is None or any(token.lstrip or token.rstrip or token.single_word for _, token in added):
            return None
        words = cls(rust, expression, added)
        pairs = "".join(map("".join, product(_PRINTABLE + "\t\n\r", repeat=2)))
        is_same = (
            words._encoded(pairs, splits_special=False, new=len(pairs))
            == rust.encode(pairs, add_special_tokens=False).ids
        )
        return words if is_same else None

    def __init__(self, rust: Any, expression: re.Pattern[str], added: Sequence[tuple[int, Any]]) -> None:
        """Args: the tokenizer, the expression by which it cuts a text of ASCII, and its added tokens with their ids."""
        from tokenizers.pre_tokenizers import ByteLevel

        byte_level: Any = ByteLevel(add_prefix_space=False, use_regex=False)
        self._cut: Callable[[str], list[str]] = expression.findall
        self._model = rust.model
        self._bytes: Callable[[str], list[tuple[str, Any]]] = byte_level.pre_tokenize_str
        self._added = {token.content: at for at, token in added}
        self._marks = {content[:1] for content in self._added}
        self._at_added = {
            splits_special: _alternatives(token.content for _, token in added if not (splits_special and token.special))
            for splits_special in (False, True)
        }
        """By whether special tokens are read as text: cuts a text at added tokens, which comes before all else."""
        self._known: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str, *, splits_special: bool) -> list[int] | None:
        """Return a text's tokens; None where that is the Rust part's to do.

        Args:
            text: The text.
            splits_special: Whether special tokens are read as text.
        """
        return None if _IS_PLAIN(text) is None else self._encoded(text, splits_special=splits_special, new=_NEW_AT_ONCE)

    def _encoded(self, text: str, *, splits_special: bool, new: int) -> list[int] | None:
        if not any(mark in text for mark in self._marks):
            return self._tokens(text, new=new)
        tokens: list[int] = []
        for at, part in enumerate(self._at_added[splits_special].split(text)):
            if at % 2:
                tokens.append(self._added[part])
                continue
            found = self._tokens(part, new=new)
            if found is None:
                return None
            tokens += found
        return tokens

    def _tokens(self, text: str, *, new: int) -> list[int] | None:
        words = self._cut(text)
        if "".join(words) != text:
            return None  # the expression leaves something out
        known = self._known
        try:
            return list(chain.from_iterable(map(known.__getitem__, words)))
        except KeyError:
            unknown = [word for word in dict.fromkeys(words) if word not in known]
        if len(unknown) > new:
            for word in unknown[:_LEARNED_OF_MORE]:
                self._learn(word)
            return None
        tokens = {word: self._learn(word) for word in unknown}
        return [token for word in words for token in tokens.get(word) or known[word]]

    def _learn(self, word: str) -> tuple[int, ...]:
        ((encoded, _),) = self._bytes(word)
        tokens = tuple(token.id for token in self._model.tokenize(encoded))
        if len(word) <= _LONGEST and len(self._known) < _MOST_WORDS:
            self._known[word] = tokens
        return tokens


def _alternatives(texts: Iterable[str]) -> re.Pattern[str]:
    """Return an expression that finds any of some texts, the longest where there are several, as a group."""
    longest_first = sorted(texts, key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")


def _expression(rust: Any) -> re.Pattern[str] | None:
    """Return the expression by which a byte-level tokenizer cuts texts of ASCII; None where it does more, or other things."""
    from tokenizers.models import BPE

    if (
        not isinstance(rust.model, BPE)
        or rust.model.dropout
        or _state(rust.normalizer).get("type") not in _SAME_IN_ASCII
    ):
        return None
    match _state(rust.pre_tokenizer):
        case {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
            ],
        }:
            return _in_ascii(pattern)
        case _:
            return None


def _in_ascii(pattern: str) -> re.Pattern[str] | None:
    """Return an expression of the tokenizer's engine as one of Python's that finds the same in ASCII.

    None where it has more in it than sets, alternatives, single repetitions and looks ahead: what is written alike may mean
    another thing there, as `^` and `{1,3}+` do.
    """
    parts: list[str] = []
    is_in_set = False
    at = 0
    while at < len(pattern):
        found = (_IN_SET if is_in_set else _OUTSIDE).match(pattern, at)
        if found is None:
            return None
        at, part = found.end(), found[0]
        among = _IN_ASCII.get(part, "")
        if part.startswith("\\p"):
            parts.append(among if is_in_set else f"[{among}]" if among else "[^\\s\\S]")
        else:
            parts.append(part)
        is_in_set = part.startswith("[") or (is_in_set and part != "]")
    return re.compile("".join(parts))


_IN_ASCII = {
    "\\p{L}": "A-Za-z",
    "\\p{Lu}": "A-Z",
    "\\p{Ll}": "a-z",
    "\\p{Lt}": "",
    "\\p{Lm}": "",
    "\\p{Lo}": "",
    "\\p{M}": "",
    "\\p{N}": "0-9",
}
_CLASS = "|".join(map(re.escape, _IN_ASCII))
_IN_SET = re.compile(rf"{_CLASS}|\\[rntsS]|[\w /'\]-]", re.ASCII)
_OUTSIDE = re.compile(
    rf"{_CLASS}|\\[rntsS]|[\w '|)]|\[\^?|\(\?(?:i:|:|!|=)|(?:[?*+]|\{{\d+(?:,\d*)?\}})(?![?*+{{])", re.ASCII
)


def _state(part: Any) -> dict[str, Any]:
    return {} if part is None else json.loads(part.__getstate__())
