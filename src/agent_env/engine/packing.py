"""Which examples of a training request go through the model together, and what they share.

The rollouts of a group begin with the same prompt, and the conversations of a bundle with the same system prompt. A
causal model computes the same states for a common beginning, so it is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Pack", "packs"]

SHORTEST_PREFIX = 32
"""A shorter common beginning is not worth an attention of its own."""
STAYS_COMMON = 0.9
"""How much of the common beginning must be left for one more example to join."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """Examples that go through the model at once."""

    members: Sequence[int]
    """Their places in the request."""
    prefix: int
    """Tokens at the beginning that are the same in all; less than the shortest has."""


def packs(sequences: Sequence[NDArray[np.int64]], limit_tokens: int) -> list[Pack]:
    """Put sequences together: those that begin alike first, then those of similar length.

    Args:
        sequences: Token ids, at least one each.
        limit_tokens: Most tokens of a pack, padding included; a longer sequence is a pack of its own.
    """
    # Big-endian bytes sort as the numbers do, so sequences that begin alike are neighbours.
    order = sorted(range(len(sequences)), key=lambda at: sequences[at].astype(">i8").tobytes())
    found: list[Pack] = []
    alone: list[int] = []
    for members, prefix in _families(sequences, order):
        if prefix:
            found += _split(sequences, members, prefix, limit_tokens)
        else:
            alone += members
    return found + _split(sequences, alone, 0, limit_tokens)


def _families(sequences: Sequence[NDArray[np.int64]], order: Sequence[int]) -> list[tuple[list[int], int]]:
    """Neighbours with a common beginning, and its length."""
    families: list[tuple[list[int], int]] = []
    for at in order:
        if families:
            members, prefix = families[-1]
            common = _common(sequences[members[-1]], sequences[at])
            if common >= max(SHORTEST_PREFIX, STAYS_COMMON * prefix):
                members.append(at)
                families[-1] = (members, min(prefix, common) if prefix else common)
                continue
        families.append(([at], 0))
    return families


def _common(first: NDArray[np.int64], second: NDArray[np.int64]) -> int:
    """The length of the common beginning that leaves each at least one token."""
    length = min(len(first), len(second)) - 1
    differ = np.flatnonzero(first[:length] != second[:length])
    return int(differ[0]) if len(differ) else length


def _split(
    sequences: Sequence[NDArray[np.int64]], members: Sequence[int], prefix: int, limit_tokens: int
) -> list[Pack]:
    """Parts of at most `limit_tokens`, of similar length, so that little is padding."""
    parts: list[list[int]] = []
    longest = 0
    for at in sorted(members, key=lambda member: (-len(sequences[member]), member)):
        if not parts or prefix + (len(parts[-1]) + 1) * longest > limit_tokens:
            parts.append([])
            longest = len(sequences[at]) - prefix
        parts[-1].append(at)
    return [Pack(members=part, prefix=prefix) for part in parts]
