"""A tokenizer that every thread may use at once, and that costs what its Rust part costs.

transformers' fast tokenizers are not thread-safe: `split_special_tokens`, which Qwen's renderers set for what a message says
and not for its frame, is written to the shared Rust tokenizer before each encoding, and raises `Already borrowed` while
another thread encodes. Here each setting has a Rust tokenizer of its own, which is never written to. And of a short text,
such as a message's frame, transformers' way there and back costs more than the encoding: short ones are remembered. Plain text
is encoded word by word where the tokenizer does so (`_words.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from agent_env.training._words import Words

__all__ = ["shared_tokenizer"]

_SHORT_CHARS = 128
_REMEMBERED = 4096
_SAID = 64
_SAID_TOKENS = 1024
_PROBES = ("", " a\n\n", "<|im_start|>user\nÄ é 12<think></s>", "<|im_end|>\n<tool_call>{}</tool_call>  x")


def shared_tokenizer(tokenizer: Any) -> Any:
    """Return `tokenizer` in a form that threads can share; itself where it has no Rust part, or does more than call it.

    Args:
        tokenizer: As transformers or the cookbook made it. It is not changed, and others may go on using it.
    """
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        return tokenizer
    shared = _SharedTokenizer(tokenizer)
    for settings in ({}, {"add_special_tokens": False}, {"add_special_tokens": False, "split_special_tokens": True}):
        if any(shared.encode(text, **settings) != tokenizer.encode(text, **settings) for text in _PROBES):
            return tokenizer
    return shared


class _SharedTokenizer:
    """What renderers call of a tokenizer. All else is the tokenizer's own, on a Rust part that nobody else has."""

    def __init__(self, tokenizer: Any) -> None:
        plain = _rust(tokenizer, splits_special=False)
        splitting = _rust(tokenizer, splits_special=True)
        self._original = tokenizer
        self._tokenizer = copy.copy(tokenizer)
        self._tokenizer._tokenizer = plain
        self._splits = bool(getattr(tokenizer, "split_special_tokens", False))
        words = Words.of(plain)
        self._encoders: Mapping[bool, Callable[[str, bool], list[int]]] = {
            splits: _encoder(rust, words, splits_special=splits) for splits, rust in ((False, plain), (True, splitting))
        }
        self._cleans_up = bool(getattr(tokenizer, "clean_up_tokenization_spaces", True))
        self._short = lru_cache(maxsize=_REMEMBERED)(self._encoded)
        self._said = lru_cache(maxsize=_SAID)(plain.decode)

    def encode(
        self, text: str, *, add_special_tokens: bool = True, split_special_tokens: bool | None = None, **more: Any
    ) -> list[int]:
        """Return the tokens of a text."""
        splits = self._splits if split_special_tokens is None else split_special_tokens
        if more or type(text) is not str:  # padding, truncation and the like are written to the Rust part
            return self._original.encode(
                text, add_special_tokens=add_special_tokens, split_special_tokens=splits, **more
            )
        if len(text) <= _SHORT_CHARS:
            return list(self._short(text, add_special_tokens, splits))
        return self._encoded(text, add_special_tokens, splits)

    def decode(self, token_ids: Any, skip_special_tokens: bool = False, **more: Any) -> Any:  # noqa: FBT001, FBT002 - theirs
        """Return the text of tokens. A message is asked for more than once: for its parts, and for its calls as written."""
        is_plain = type(token_ids) is list and not more and not self._cleans_up and len(token_ids) <= _SAID_TOKENS
        if not is_plain or not all(type(token) is int for token in token_ids):
            return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens, **more)
        return self._said(tuple(token_ids), skip_special_tokens)

    def _encoded(self, text: str, add_special_tokens: bool, splits_special: bool) -> list[int]:  # noqa: FBT001 - of a cache
        return self._encoders[splits_special](text, add_special_tokens)

    def __call__(self, *args: Any, **settings: Any) -> Any:
        return self._original(*args, **settings)

    def __len__(self) -> int:
        return len(self._tokenizer)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # not there yet, as while it is unpickled
            raise AttributeError(name)
        return getattr(self._tokenizer, name)


def _rust(tokenizer: Any, *, splits_special: bool) -> Any:
    rust = copy.deepcopy(tokenizer.backend_tokenizer)
    rust.no_truncation()
    rust.no_padding()
    rust.encode_special_tokens = splits_special
    return rust


def _encoder(rust: Any, words: Words | None, *, splits_special: bool) -> Callable[[str, bool], list[int]]:
    def whole(text: str, special: bool) -> list[int]:  # noqa: FBT001 - of a callable
        if not hasattr(rust, "encode_batch_fast"):  # before tokenizers 0.20
            return rust.encode(text, add_special_tokens=special).ids
        # Without the offsets, which nobody asks for here, it takes a tenth less.
        return rust.encode_batch_fast([text], add_special_tokens=special)[0].ids

    def encode(text: str, special: bool) -> list[int]:  # noqa: FBT001 - of a callable
        tokens = None if special or words is None else words.encode(text, splits_special=splits_special)
        return whole(text, special) if tokens is None else tokens

    return encode
