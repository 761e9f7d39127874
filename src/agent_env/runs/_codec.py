"""Text and bytes of a record: any value an episode hands over becomes JSON, events become compressed chunks.

An episode is not stopped by what a model or a tool wrote: what JSON has no word for is written in the nearest way.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import zstandard

from agent_env.errors import RunIndexError

__all__ = [
    "CHUNK_BYTES",
    "CHUNK_EVENTS",
    "CODEC_RAW",
    "CODEC_ZSTD",
    "chunk_ends",
    "column_text",
    "decode",
    "encode",
    "packer",
    "unpack",
]

CHUNK_BYTES = 256 * 1024
"""A chunk is closed when its events reach this size, so that a page of a long run is a few chunks."""
CHUNK_EVENTS = 64
"""A chunk has at most this many events."""
CODEC_RAW = 0
"""A body that is not compressed."""
CODEC_ZSTD = 1
_MOST_BYTES = 1 << 30
"""What an event can come to: SQLite takes no larger body."""

# What holds itself is met as a RecursionError: to look out for it costs as much again as to write.
_JSON = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":"))

_DEPTH = 100


def encode(value: object) -> bytes:
    """Write `value` as one line of JSON in ASCII.

    ASCII keeps lone surrogates and control characters apart from the bytes they would break. NaN and the infinities
    become the strings "NaN", "Infinity" and "-Infinity"; an object that JSON does not know becomes its `repr`.
    """
    try:
        text = _JSON.encode(value)
    except (TypeError, ValueError, RecursionError):
        text = _JSON.encode(_plain(value, 0))
    return text.encode("ascii")


def decode(body: bytes | str) -> Any:
    """Read what `encode` wrote.

    Raises:
        RunIndexError: When it is something else.
    """
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as exc:  # what was just not too deep to be written may be for who reads it
        raise RunIndexError(f"a record in the run index is damaged: {exc}") from exc


def column_text(text: str, limit: int | None = None) -> str:
    """Make `text` fit a column: lone surrogates escaped, at most `limit` characters."""
    if limit is not None and len(text) > limit:
        text = text[: limit - 1] + "…"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def chunk_ends(sizes: Sequence[int]) -> Iterator[int]:
    """Where chunks end, of events of these sizes: the place after the last event of each."""
    first = size = 0
    for at, more in enumerate(sizes):
        if at > first and (at - first >= CHUNK_EVENTS or size + more > CHUNK_BYTES):
            yield at
            first, size = at, 0
        size += more
    if sizes:
        yield len(sizes)


def packer() -> Callable[[bytes], bytes]:
    """What compresses; for one thread."""
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress


def unpack(body: bytes, codec: int = CODEC_ZSTD) -> bytes:
    """Decompress what a `packer` made.

    Raises:
        RunIndexError: When it is something else.
    """
    if codec == CODEC_RAW:
        return body
    try:
        # The size stands in the body itself: one that is damaged may ask for any amount of memory.
        if codec != CODEC_ZSTD or not 0 <= zstandard.frame_content_size(body) <= _MOST_BYTES:
            raise RunIndexError(f"a record in the run index is damaged: no body of {len(body)} bytes looks like this")
        return zstandard.ZstdDecompressor().decompress(body)
    except zstandard.ZstdError as exc:
        raise RunIndexError(f"a record in the run index is damaged: {exc}") from exc


def _plain(value: object, depth: int) -> object:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if depth < _DEPTH:
        if isinstance(value, Mapping):
            items = cast("Mapping[object, object]", value).items()
            return {key if isinstance(key, str) else str(key): _plain(item, depth + 1) for key, item in items}
        if isinstance(value, list | tuple | set | frozenset):
            return [_plain(item, depth + 1) for item in cast("Iterable[object]", value)]
    return _repr(value)


def _repr(value: object) -> str:
    try:
        return repr(value)[:10_000]
    except Exception:  # noqa: BLE001 -- a broken __repr__ in a bundle's object must not stop its episode
        return f"<{type(value).__name__}>"
