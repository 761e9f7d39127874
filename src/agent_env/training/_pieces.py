"""The text of each token of a vocabulary, for whoever looks at what was sampled.

A vocabulary names its tokens in a way of its own: bytes as stand-in characters (GPT-2's way, which Qwen, Llama 3, DeepSeek
and most others have), or text with a mark for a blank and names for bytes (SentencePiece's). Which one it is, is found out
by reading a text's tokens back, not by the tokenizer's name. Where neither reads it back, a token is what it decodes to.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agent_env.engine.tokenizer import byte_of_character

__all__ = ["TokenPieces"]

_PROBES = ("Add 3.\n\tÄ é ☃ 日本 🎈", " a  b\n\n12")
_BLANK = "\u2581"
_NAMED_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LONE_BYTES = {0xDC00 + byte: f"⟨0x{byte:02X}⟩" for byte in range(0x80, 0x100)}
"""For bytes that are no whole character, as Python's `surrogateescape` has them."""


class TokenPieces:
    """The pieces of one tokenizer's tokens. Each is found out once; any thread may ask."""

    def __init__(self, tokenizer: Any) -> None:
        """Args: a tokenizer that threads may share. It is asked for nothing before the first token is."""
        self._known = _Known(tokenizer)

    def of(self, tokens: Iterable[int]) -> tuple[str, ...]:
        """The text of each token: bytes that are no whole character as `⟨0xE2⟩`, and a token that the tokenizer does not
        know, or breaks on, as `⟨151999⟩`. Never raises for what a tokenizer may do.
        """
        return tuple(map(self._known.__getitem__, tokens))


class _Known(dict[int, str]):
    """Pieces by token; one that is not there yet is looked up."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._read: Callable[[int], str | None] | None = None

    def __missing__(self, token: int) -> str:
        try:
            if self._read is None:
                self._read = _reading(self._tokenizer)
            piece = self._read(token)
        except Exception:  # noqa: BLE001 - a tokenizer of anyone's; a token without a text is still a token
            piece = None
        if piece is None:
            piece = f"⟨{token}⟩"
        self[token] = piece
        return piece


def _reading(tokenizer: Any) -> Callable[[int], str | None]:
    """How this tokenizer's tokens are read."""
    for way in (_as_stand_ins, _as_text, _as_own_bytes):
        try:
            bytes_of = way(tokenizer)
            if all(_reads_back(tokenizer, bytes_of, probe) for probe in _PROBES):
                return lambda token, bytes_of=bytes_of: _text(bytes_of(token))
        except Exception:  # noqa: BLE001 - it has not what the way needs: the next one
            continue
    return _as_decoded(tokenizer)


def _reads_back(tokenizer: Any, bytes_of: Callable[[int], bytes | None], text: str) -> bool:
    """Whether the tokens of a text are the text again. Some vocabularies put a blank before it, which is no matter."""
    read = b"".join(bytes_of(token) or b"" for token in tokenizer.encode(text, add_special_tokens=False))
    return read.decode("utf-8", "replace") in (text, f" {text}")


def _as_stand_ins(tokenizer: Any) -> Callable[[int], bytes | None]:
    byte_of, added = byte_of_character(), _added(tokenizer)

    def bytes_of(token: int) -> bytes | None:
        if (text := added.get(token)) is not None:
            return text.encode("utf-8", "surrogatepass")
        named = tokenizer.convert_ids_to_tokens(token)
        return None if named is None else bytes(map(byte_of.__getitem__, named))

    return bytes_of


def _as_text(tokenizer: Any) -> Callable[[int], bytes | None]:
    added = _added(tokenizer)

    def bytes_of(token: int) -> bytes | None:
        if (text := added.get(token)) is not None:
            return text.encode("utf-8", "surrogatepass")
        named = tokenizer.convert_ids_to_tokens(token)
        if named is None:
            return None
        if (byte := _NAMED_BYTE.fullmatch(named)) is not None:
            return bytes.fromhex(byte[1])
        return named.replace(_BLANK, " ").encode()

    return bytes_of


def _as_own_bytes(tokenizer: Any) -> Callable[[int], bytes | None]:
    """As the cookbook's Inkling tokenizer says them itself."""
    inner = tokenizer.tml_tokenizer
    return lambda token: bytes(inner.decode_bytes([token]))


def _added(tokenizer: Any) -> Mapping[int, str]:
    """The tokens that were put beside the vocabulary, special ones among them: they are named by their text."""
    return {token: str(getattr(added, "content", added)) for token, added in tokenizer.added_tokens_decoder.items()}


def _as_decoded(tokenizer: Any) -> Callable[[int], str | None]:
    """What a token decodes to after another one: at the start of a text some tokenizers leave a blank out."""
    before = list(tokenizer.encode("x", add_special_tokens=False))[-1:]
    start = str(tokenizer.decode(before))
    return lambda token: str(tokenizer.decode([*before, token])).removeprefix(start)


def _text(read: bytes | None) -> str | None:
    return None if read is None else read.decode("utf-8", "surrogateescape").translate(_LONE_BYTES)
