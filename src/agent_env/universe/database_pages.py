"""Which rows of a database may have changed, told by which of its pages have: comparing need not read what is the same.

Reads what the file format (https://www.sqlite.org/fileformat2.html) says of b-trees: which pages belong to which table, and
which row ids a leaf page of a table may hold. What is not understood is None: then everything is compared.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

__all__ = ["EVERY_ROW", "Image", "NotUnderstoodError", "Range", "Tree", "merged"]

Range = tuple[int, int]
"""Row ids from after the first up to the second."""
EVERY_ROW: Range = (-(2**63) - 1, 2**63 - 1)

_TABLE_INTERIOR, _TABLE_LEAF, _INDEX_INTERIOR, _INDEX_LEAF = 5, 13, 2, 10
_LOCK_BYTE = 2**30
"""Where a page lies that SQLite never uses."""


class NotUnderstoodError(Exception):
    """The pages are not what the file format says."""


@dataclass(frozen=True, slots=True)
class Tree:
    """The b-tree of a table or index."""

    is_table: bool
    """Whether its rows have row ids; otherwise it is an index, or a table WITHOUT ROWID."""
    leaves: Mapping[int, Range]
    """Leaf pages, and of a table the row ids that each may hold."""
    others: frozenset[int]
    """The pages above the leaves."""

    def is_untouched(self, changed: set[int]) -> bool:
        """Whether none of its pages is among these."""
        return changed.isdisjoint(self.leaves) and changed.isdisjoint(self.others)

    def touched(self, changed: set[int], other: Tree) -> Iterator[Range]:
        """Yield the row ids of leaves that have changed, or that the other form of the tree does not have."""
        for page, rows in self.leaves.items():
            if page in changed or page not in other.leaves:
                yield rows


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Return the same row ids as few ranges, in order."""
    found: list[Range] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


@dataclass(slots=True)
class Image:
    """The pages of a database in memory."""

    address: int
    """Where they begin. They are there as long as this is used."""
    size: int
    """Bytes."""
    page_bytes: int = field(init=False)
    _usable: int = field(init=False)
    """Bytes of a page that are not set aside at its end."""

    def __post_init__(self) -> None:
        if self.size < 512:
            raise NotUnderstoodError
        header = ctypes.string_at(self.address, 100)
        (page_bytes,) = struct.unpack_from(">H", header, 16)
        self.page_bytes = 65536 if page_bytes == 1 else page_bytes
        if self.page_bytes < 512 or self.size % self.page_bytes:
            raise NotUnderstoodError
        self._usable = self.page_bytes - header[20]

    def page(self, number: int) -> bytes:
        """Return a page's content."""
        if not 1 <= number <= self.size // self.page_bytes:
            raise NotUnderstoodError
        return ctypes.string_at(self.address + (number - 1) * self.page_bytes, self.page_bytes)

    def tree(self, root: int) -> Tree:
        """Return the tree at a root page."""
        level: list[tuple[int, Range]] = [(root, EVERY_ROW)]
        others: set[int] = set()
        while True:
            kind = self.page(level[0][0])[_start(level[0][0])]
            if kind in (_TABLE_LEAF, _INDEX_LEAF):
                # All leaves are as deep as the first one: none needs to be read.
                return Tree(kind == _TABLE_LEAF, dict(level), frozenset(others))
            if kind not in (_TABLE_INTERIOR, _INDEX_INTERIOR) or len(others) > self.size // self.page_bytes:
                raise NotUnderstoodError
            others.update(page for page, _ in level)
            level = [below for page, rows in level for below in self._below(page, rows, kind)]

    def _below(self, number: int, rows: Range, kind: int) -> Iterator[tuple[int, Range]]:
        page, start = self.page(number), _start(number)
        if page[start] != kind:
            raise NotUnderstoodError
        (cells,) = struct.unpack_from(">H", page, start + 3)
        low, high = rows
        for at in struct.unpack_from(f">{cells}H", page, start + 12):
            (child,) = struct.unpack_from(">I", page, at)
            key = high
            if kind == _TABLE_INTERIOR:
                key = _signed(_varint(page, at + 4)[0])
            yield child, (low, key)
            low = key if kind == _TABLE_INTERIOR else low
        (last,) = struct.unpack_from(">I", page, start + 8)
        yield last, (low, high)

    def free_pages(self) -> set[int]:
        """Return the pages that are not in use."""
        found: set[int] = set()
        (trunk,) = struct.unpack_from(">I", self.page(1), 32)
        while trunk:
            if trunk in found:
                raise NotUnderstoodError
            found.add(trunk)
            page = self.page(trunk)
            trunk, count = struct.unpack_from(">II", page)
            if count > self.page_bytes // 4 - 2:
                raise NotUnderstoodError
            found.update(struct.unpack_from(f">{count}I", page, 8))
        return found

    def bookkeeping_pages(self) -> set[int]:
        """Return the first page, which is the schema's, and those that hold neither rows nor what is left of long ones."""
        pages = self.size // self.page_bytes
        found = {1, _LOCK_BYTE // self.page_bytes + 1}
        if struct.unpack_from(">I", self.page(1), 52)[0]:  # of an auto-vacuum database: where each page belongs
            found.update(range(2, pages + 1, self._usable // 5 + 1))
        return found

    def overflow_rows(self, tree: Tree) -> dict[int, int]:
        """Return, of a table, the pages that hold what does not fit into its leaves, with the row each belongs to."""
        found: dict[int, int] = {}
        longest = self._usable - 35
        for number in tree.leaves:
            page, start = self.page(number), _start(number)
            (cells,) = struct.unpack_from(">H", page, start + 3)
            for at in struct.unpack_from(f">{cells}H", page, start + 8):
                size, at_row = _varint(page, at)
                if size > longest:
                    row, at_content = _varint(page, at_row)
                    at_next = at_content + self._local_bytes(size)
                    self._follow(struct.unpack_from(">I", page, at_next)[0], _signed(row), found)
        return found

    def _local_bytes(self, size: int) -> int:
        """Return how much of a row's content is in the leaf, when not all of it is."""
        least = (self._usable - 12) * 32 // 255 - 23
        local = least + (size - least) % (self._usable - 4)
        return local if local <= self._usable - 35 else least

    def _follow(self, number: int, row: int, found: dict[int, int]) -> None:
        while number:
            if number in found:
                raise NotUnderstoodError
            found[number] = row
            (number,) = struct.unpack_from(">I", self.page(number))


def _start(number: int) -> int:
    """Return where a page's b-tree begins: the first page has the header of the file before it."""
    return 100 if number == 1 else 0


def _varint(page: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and where the next thing begins."""
    value = 0
    for index in range(8):
        byte = page[at + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + index + 1
    return value << 8 | page[at + 8], at + 9


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value
