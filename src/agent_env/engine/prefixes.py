"""Keys and values of token sequences that were computed before, found again by the longest common beginning.

The rollouts of a group share a prompt, and a rollout's next prompt extends its last one token for token: both are
found here. Bounded in bytes; what was used longest ago goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Prefix", "PrefixStore"]

BLOCK = 16
"""Tokens between two places at which a sequence can be found."""


@dataclass(slots=True, eq=False)
class Prefix:
    """One remembered sequence."""

    owner: Hashable
    """The weights that computed it."""
    tokens: NDArray[np.int64]
    states: Tensor
    """`[layers, 2, kv_heads, tokens, head_dim]`: keys and values."""
    marks: list[int]
    """The hash of each whole number of blocks."""

    @property
    def size_bytes(self) -> int:
        """What it takes."""
        return self.states.numel() * self.states.element_size()


class PrefixStore:
    """Remembered sequences of all weights."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._prefixes: OrderedDict[int, Prefix] = OrderedDict()
        self._by_mark: dict[tuple[Hashable, int], Prefix] = {}

    def find(self, owner: Hashable, tokens: NDArray[np.int64]) -> tuple[Prefix, int] | None:
        """The sequence with the longest common beginning, and that beginning's length; None below one block."""
        for mark in reversed(list(_marks(tokens))):
            prefix = self._by_mark.get((owner, mark))
            if prefix is not None:
                common = min(len(prefix.tokens), len(tokens))
                differ = np.flatnonzero(prefix.tokens[:common] != tokens[:common])
                length = int(differ[0]) if len(differ) else common
                if length:
                    self._prefixes.move_to_end(id(prefix))
                    return prefix, length
        return None

    def add(self, owner: Hashable, tokens: NDArray[np.int64], states: Tensor) -> None:
        """Remember a sequence. `states` must not be changed afterwards."""
        prefix = Prefix(owner, tokens, states, list(_marks(tokens)))
        if not prefix.marks or prefix.size_bytes > self._limit_bytes:
            return
        contained = self.find(owner, tokens)
        if contained is not None and contained[1] == len(contained[0].tokens):
            # The new one serves whoever would have found it.
            self._forget(contained[0])
        self._prefixes[id(prefix)] = prefix
        self._used_bytes += prefix.size_bytes
        for mark in prefix.marks:
            self._by_mark[owner, mark] = prefix
        while self._used_bytes > self._limit_bytes:
            self._forget(next(iter(self._prefixes.values())))

    def drop(self, owner: Hashable) -> None:
        """Forget everything that some weights computed."""
        for prefix in [prefix for prefix in self._prefixes.values() if prefix.owner == owner]:
            self._forget(prefix)

    def _forget(self, prefix: Prefix) -> None:
        del self._prefixes[id(prefix)]
        self._used_bytes -= prefix.size_bytes
        for mark in prefix.marks:
            if self._by_mark.get((prefix.owner, mark)) is prefix:
                del self._by_mark[prefix.owner, mark]


def _marks(tokens: NDArray[np.int64]) -> Iterator[int]:
    mark = 0
    data = tokens.tobytes()
    step = BLOCK * tokens.itemsize
    for end in range(step, len(data) + 1, step):
        mark = hash((mark, data[end - step : end]))
        yield mark
