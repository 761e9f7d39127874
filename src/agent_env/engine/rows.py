"""Keys and values of the rows of a running batch, one padded buffer a layer."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from agent_env.engine.architecture import Architecture
from agent_env.engine.model import Attend

__all__ = ["RowCache"]

ROW_STEP = 64
TOKEN_STEP = 64


class RowCache:
    """Rows are kept together at the front, so that a step reads a slice and copies nothing."""

    def __init__(self, architecture: Architecture) -> None:
        self._architecture = architecture
        self._buffer = self._make(0, 0)
        self.lengths = np.empty(0, np.int64)
        """Tokens of each row whose keys and values are there."""

    def append(self, lengths: np.ndarray[tuple[int], np.dtype[np.int64]], capacity: int) -> None:
        """Add rows at the end, with room for `capacity` tokens."""
        self.lengths = np.concatenate([self.lengths, lengths])
        self._fit(len(self.lengths), capacity)

    def write(self, row: int, states: Tensor) -> None:
        """Copy remembered keys and values into a row."""
        self._buffer[:, :, row, :, : states.shape[3]] = states

    def read(self, row: int, length: int) -> Tensor:
        """A copy of a row's first keys and values, `[layers, 2, kv_heads, length, head_dim]`."""
        return self._buffer[:, :, row, :, :length].clone()

    def remove(self, row: int) -> None:
        """Take a row out; the last one takes its place."""
        last = len(self.lengths) - 1
        if row != last:
            length = int(self.lengths[last])
            self._buffer[:, :, row, :, :length] = self._buffer[:, :, last, :, :length]
            self.lengths[row] = self.lengths[last]
        self.lengths = self.lengths[:last].copy()

    def attend(self, first: int, end: int, positions: Tensor) -> Attend:
        """Attention of new tokens at `positions` of the rows from `first` to `end`, which it also keeps."""
        span = int(positions.max()) + 1
        self._fit(end, span)
        rows = torch.arange(first, end)[:, None]
        # [rows, 1, 1, new, span]: a token sees its own position and what goes before.
        seen = (torch.arange(span) <= positions[:, :, None])[:, None, None]
        kv_heads = self._architecture.kv_heads
        groups = self._architecture.heads // kv_heads
        single = positions.shape[1] == 1

        def mix(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys, values = self._buffer[layer]
            keys[rows, :, positions] = key
            values[rows, :, positions] = value
            keys, values = keys[first:end, :, :span], values[first:end, :, :span]
            # The heads that share a key head become more queries of it: no key is copied.
            query = query.unflatten(2, (kv_heads, groups)).permute(0, 2, 3, 1, 4)
            count, _, _, new, size = query.shape
            mask = (
                seen[:, :, 0] if single else seen.expand(-1, -1, groups, -1, -1).reshape(count, 1, groups * new, span)
            )
            mixed = F.scaled_dot_product_attention(
                query.reshape(count, kv_heads, groups * new, size), keys, values, attn_mask=mask
            )
            return mixed.view(count, kv_heads, groups, new, size).permute(0, 3, 1, 2, 4).flatten(2, 3)

        return mix

    def _fit(self, rows: int, tokens: int) -> None:
        """Grow the buffer; never shrink it while rows are there."""
        have_rows, have_tokens = self._buffer.shape[2], self._buffer.shape[4]
        if rows <= have_rows and tokens <= have_tokens:
            return
        grown = self._make(
            max(have_rows, -(-rows // ROW_STEP) * ROW_STEP), max(have_tokens, -(-tokens // TOKEN_STEP) * TOKEN_STEP)
        )
        grown[:, :, :have_rows, :, :have_tokens] = self._buffer
        self._buffer = grown

    def _make(self, rows: int, tokens: int) -> Tensor:
        architecture = self._architecture
        shape = (architecture.layers, 2, rows, architecture.kv_heads, tokens, architecture.head_dim)
        # Zero, not empty: a masked value that is not a number would still poison the sum.
        return torch.zeros(shape)
