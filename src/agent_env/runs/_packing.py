"""What is new in a run, made ready for its columns: without secrets, and compressed, before the transaction starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agent_env.runs._codec import CODEC_RAW, CODEC_ZSTD, chunk_ends, encode
from agent_env.runs._log import Ended, Opened, Part, RunLog
from agent_env.runs._mask import Mask
from agent_env.runs._tokens import pack_tokens, size_of
from agent_env.runs._totals import Totals
from agent_env.runs._words import as_pairs, words_of

__all__ = ["PackedChunk", "PackedHead", "PackedPart", "pack_part"]

_SMALL_BYTES = 200
"""A head that is smaller than this is not worth compressing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedHead:
    """What a run starts with."""

    group: str
    task_id: str
    bundle_name: str
    bundle_version: str
    labels: str
    codec: int
    body: bytes
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedChunk:
    """Some events of a run, in order."""

    first_seq: int
    count: int
    raw_bytes: int
    """Before compression."""
    body: bytes
    words: str
    """What the search index is given; empty where there is nothing to search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedPart:
    """What is new in a run."""

    log: RunLog
    head: PackedHead | None
    ended: Ended | None
    reward: float | None
    totals: Totals
    tools: str
    times: str
    chunks: Sequence[PackedChunk]
    tokens: Sequence[tuple[int, bytes]]
    """The how-manieth message, and its tokens."""
    last_at_s: float
    size_bytes: int
    """What it was said to take while it waited."""


def pack_part(part: Part, pack: Callable[[bytes], bytes], mask: Mask) -> PackedPart:
    """Clean and compress a part."""
    size = sum(noted.size_bytes for noted in part.events) + sum(map(size_of, part.sampled.values()))
    return PackedPart(
        log=part.log,
        head=None if part.opened is None else _head(part.log, part.opened, pack, mask),
        ended=None if part.ended is None else mask.ended(part.ended).shortened(),
        reward=part.reward,
        totals=part.totals,
        tools=_json(part.totals.tools, mask),
        times=_json(part.totals.times, mask),
        chunks=_chunks(part, pack, mask),
        tokens=[(message, pack_tokens(mask.tokens(tokens), pack)) for message, tokens in part.sampled.items()],
        last_at_s=part.last_at_s,
        size_bytes=size + (0 if part.opened is None else len(part.opened.head)),
    )


def _head(log: RunLog, opened: Opened, pack: Callable[[bytes], bytes], mask: Mask) -> PackedHead:
    body = mask.json(opened.head)
    is_small = len(body) < _SMALL_BYTES
    return PackedHead(
        group=mask.text(log.group),
        task_id=mask.text(opened.task_id),
        bundle_name=mask.text(opened.bundle_name),
        bundle_version=mask.text(opened.bundle_version),
        labels=_json(log.labels, mask),
        codec=CODEC_RAW if is_small else CODEC_ZSTD,
        body=body if is_small else pack(body),
        at_s=opened.at_s,
    )


def _chunks(part: Part, pack: Callable[[bytes], bytes], mask: Mask) -> list[PackedChunk]:
    chunks: list[PackedChunk] = []
    start = 0
    for end in chunk_ends([len(noted.line) for noted in part.events]):
        events = part.events[start:end]
        body = b"\n".join([noted.line for noted in events])
        cleaned = mask.json(body)
        if cleaned == body:
            words = as_pairs(mask.text("\n".join([noted.text for noted in events if noted.text])))
        else:  # of a text that was noted, a secret may be cut or written otherwise
            words = words_of(cleaned, CODEC_RAW)
        chunks.append(
            PackedChunk(
                first_seq=part.first_seq + start,
                count=end - start,
                raw_bytes=len(body),
                body=pack(cleaned),
                words=words,
            )
        )
        start = end
    return chunks


def _json(value: object, mask: Mask) -> str:
    return mask.json(encode(value)).decode("ascii")
