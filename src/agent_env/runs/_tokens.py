"""Sampled tokens as bytes: numbers as little-endian arrays, pieces as JSON, all of it compressed."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Mapping
from typing import Any, Literal

from agent_env.errors import RunIndexError, UsageError
from agent_env.runs._codec import decode, encode, unpack
from agent_env.runs.record import SampledTokens

__all__ = ["checked_tokens", "masked_tokens", "pack_tokens", "size_of", "unpack_tokens"]

_HEAD = struct.Struct("<IB")
"""How many tokens, and whether their log-probs follow."""


def checked_tokens(tokens: SampledTokens) -> SampledTokens:
    """The tokens, where each has all that the others have.

    Raises:
        UsageError: When there are not as many pieces or log-probs as ids, or an id is no 32-bit number.
    """
    logprobs = tokens.logprobs
    if len(tokens.pieces) != len(tokens.ids) or (logprobs is not None and len(logprobs) != len(tokens.ids)):
        count = "no" if logprobs is None else len(logprobs)
        raise UsageError(
            f"sampled tokens: {len(tokens.ids)} ids, {len(tokens.pieces)} pieces, {count} log-probs: give one of each a token"
        )
    if any(not -1 <= token < 2**31 for token in tokens.ids):
        raise UsageError("sampled tokens: an id is a number from 0 to 2147483647")
    return tokens


def size_of(tokens: SampledTokens) -> int:
    """About how many bytes it takes to keep them."""
    return 8 * len(tokens.ids) + sum(map(len, tokens.pieces))


def masked_tokens(tokens: SampledTokens, secrets: Mapping[str, str]) -> SampledTokens:
    """The tokens without those that spell a secret value."""
    text = "".join(tokens.pieces)
    if not any(value in text for value in secrets):
        return tokens
    ids, pieces = list(tokens.ids), list(tokens.pieces)
    ends: list[int] = []
    for piece in tokens.pieces:
        ends.append((ends[-1] if ends else 0) + len(piece))
    for value, name in secrets.items():
        start = text.find(value)
        while start >= 0:
            stop = start + len(value)
            hit = [at for at, end in enumerate(ends) if end > start and end - len(tokens.pieces[at]) < stop]
            for at in hit:
                ids[at], pieces[at] = -1, f"⟨{name}⟩" if at == hit[0] else ""
            start = text.find(value, stop)
    return SampledTokens(ids=tuple(ids), logprobs=tokens.logprobs, pieces=tuple(pieces))


def pack_tokens(tokens: SampledTokens, pack: Callable[[bytes], bytes]) -> bytes:
    """Write them as bytes."""
    logprobs = b"" if tokens.logprobs is None else _bytes_of(array("f", tokens.logprobs))
    head = _HEAD.pack(len(tokens.ids), tokens.logprobs is not None)
    return pack(head + _bytes_of(array("i", tokens.ids)) + logprobs + encode(tokens.pieces))


def unpack_tokens(body: bytes) -> SampledTokens:
    """Read what `pack_tokens` wrote.

    Raises:
        RunIndexError: When it is something else.
    """
    raw = unpack(body)
    try:
        count, has_logprobs = _HEAD.unpack_from(raw)
        start = _HEAD.size + 4 * count
        ids = _array("i", raw[_HEAD.size : start])
        logprobs = tuple(_array("f", raw[start : start + 4 * count])) if has_logprobs else None
        pieces = tuple(decode(raw[start + 4 * count * has_logprobs :]))
    except (struct.error, ValueError) as exc:
        raise RunIndexError(f"a record in the run index is damaged: {exc}") from exc
    return SampledTokens(ids=tuple(int(token) for token in ids), logprobs=logprobs, pieces=pieces)


def _bytes_of(numbers: array[int] | array[float]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def _array(kind: Literal["i", "f"], raw: bytes) -> array[Any]:
    numbers: array[Any] = array(kind)
    numbers.frombytes(raw)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
