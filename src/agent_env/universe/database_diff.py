"""Where two databases differ: `/table/<key>/<column>`, by primary key.

A row's key is its primary key, and its row id when it has none: as text or, where that could be taken for something else,
as JSON; of several columns it is a JSON array. Compared is what a connection sees: also what its open transaction has
written. Tables, indexes, views and triggers are `/sqlite_schema/<name>`, and `/sqlite_pragmas/` has `user_version` and
`application_id`. A virtual table is compared by its rows. Not compared are SQLite's own tables, temporary ones, attached
databases and generated columns.

Of copies that share their pages, only the rows that are in pages which were written to are read.
"""

from __future__ import annotations

import sqlite3
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

from agent_env.universe.database import DatabaseImage, PrivateDatabase
from agent_env.universe.database_pages import EVERY_ROW, Image, NotUnderstoodError, Range, Tree, merged
from agent_env.universe.database_schema import PRAGMAS, Kind, Schema, Table, read_schema, reading
from agent_env.universe.diff import Found, Rules, find_differences

__all__ = ["DatabaseState", "database_differences"]

_ROWS = 500
"""Rows that are fetched at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseState:
    """A database as it is now."""

    connection: sqlite3.Connection
    """What it is read through; an open transaction stays open."""
    private: PrivateDatabase | None = None
    """The copy that this connection is of; None when it is another database."""
    is_original: bool = False
    """Whether nobody has written to the copy."""


def database_differences(
    before: DatabaseState, after: DatabaseState, rules: Rules, *, check: Callable[[], None]
) -> Iterator[Found]:
    """Yield where two databases differ, and what is there, by table and key.

    Args:
        before: A database.
        after: The other one.
        rules: What counts as a difference.
        check: Called before each some hundred rows; what it raises ends the comparison.

    Raises:
        sqlite3.Error: When a database cannot be read.
        UniverseError: As `differences` does.
    """
    with ExitStack() as stack:
        cursors = [stack.enter_context(reading(state.connection)) for state in (before, after)]
        sides = [_Side(state, cursor) for state, cursor in zip((before, after), cursors, strict=True)]
        ranges = _ranges(sides)
        names = sorted({*sides[0].schema.tables, *sides[1].schema.tables, *_EXTRAS})
        for name in names:
            if name in _EXTRAS:
                trees = [_EXTRAS[name](side) for side in sides]
            else:
                trees = _rows_of(sides, name, ranges.get(name, []), check)
            yield from find_differences({name: trees[0]}, {name: trees[1]}, rules)


class _Side:
    """One of the two databases that are compared."""

    def __init__(self, state: DatabaseState, cursor: sqlite3.Cursor) -> None:
        self.state = state
        self.cursor = cursor
        self.schema = read_schema(cursor)

    def pragma(self, name: str) -> int:
        return self.cursor.execute(f"PRAGMA main.{name}").fetchone()[0]


_EXTRAS: Mapping[str, Callable[[_Side], Mapping[str, Any]]] = {
    "sqlite_schema": lambda side: side.schema.entries,
    "sqlite_pragmas": lambda side: {name: side.pragma(name) for name in PRAGMAS},
}
"""What is compared beside the tables, under names that no table may have."""

Rows = dict[str, dict[str, Any]]
"""Rows by their keys."""


def _rows_of(sides: Sequence[_Side], name: str, ranges: Sequence[Range], check: Callable[[], None]) -> list[Rows]:
    before, after = (side.schema.tables.get(name) for side in sides)
    if before is None or after is None:
        return [_all_rows(sides[0], before, check), _all_rows(sides[1], after, check)]
    if sides[0].schema.entries[name] != sides[1].schema.entries[name]:
        ranges = [EVERY_ROW]  # a new column has its default in all rows, and no page is written to for it
    return _differing_rows(sides, before, after, ranges, check)


def _all_rows(side: _Side, table: Table | None, check: Callable[[], None]) -> Rows:
    if table is None:
        return {}
    return _by_key(table, chain.from_iterable(_chunks(side, table, [EVERY_ROW], check)))


def _differing_rows(
    sides: Sequence[_Side], before: Table, after: Table, ranges: Sequence[Range], check: Callable[[], None]
) -> list[Rows]:
    """Return the rows that differ, of both sides; of a few that do not, when reading finds it out too late."""
    tables = (before, after)
    streams = [_chunks(side, table, ranges, check) for side, table in zip(sides, tables, strict=True)]
    if before.columns == after.columns and before.rowid and after.rowid:
        found = _unequal_rows(*streams)
    else:
        found = _unaligned_rows(*streams)
    return [_by_key(table, rows) for table, rows in zip(tables, found, strict=True)]


def _chunks(side: _Side, table: Table, ranges: Sequence[Range], check: Callable[[], None]) -> Iterator[list[Any]]:
    """Yield rows, row id first, in the order of their ids or keys."""
    # The sign keeps the values as they are, and converters that are declared for a column away from them.
    columns = ", ".join(f'+"{name}"' for name in (column.replace('"', '""') for column in table.columns))
    if table.rowid:
        sql = f"SELECT {table.rowid}, {columns} FROM {table.at} WHERE {table.rowid} BETWEEN ? AND ? ORDER BY 1"
        queries = [(sql, (start + 1, end)) for start, end in ranges]
    else:
        order = ", ".join(f'"{name}"' for name in (column.replace('"', '""') for column in table.key)) or "1"
        queries = [(f"SELECT NULL, {columns} FROM {table.at} ORDER BY {order}", ())] if ranges else []
    for sql, parameters in queries:
        side.cursor.execute(sql, parameters)
        check()
        while rows := side.cursor.fetchmany(_ROWS):
            yield rows
            check()


def _unequal_rows(before: Iterator[list[Any]], after: Iterator[list[Any]]) -> tuple[list[Any], list[Any]]:
    """Return the rows that are not on both sides, both of which are in the order of their row ids."""
    found: tuple[list[Any], list[Any]] = ([], [])
    one: list[Any] | None = next(before, None)
    two: list[Any] | None = next(after, None)
    while one is not None and two is not None:
        if one == two:
            one, two = next(before, None), next(after, None)
            continue
        at, its = 0, 0
        while at < len(one) and its < len(two):
            row, other = one[at], two[its]
            if row[0] <= other[0]:
                at += 1
            if other[0] <= row[0]:
                its += 1
            if row != other:
                if row[0] <= other[0]:
                    found[0].append(row)
                if other[0] <= row[0]:
                    found[1].append(other)
        one = one[at:] or next(before, None)
        two = two[its:] or next(after, None)
    found[0].extend(chain(one or (), chain.from_iterable(before)))
    found[1].extend(chain(two or (), chain.from_iterable(after)))
    return found


def _unaligned_rows(before: Iterator[list[Any]], after: Iterator[list[Any]]) -> tuple[list[Any], list[Any]]:
    """Return all rows but those of the equal chunks at the beginning."""
    one, two = next(before, None), next(after, None)
    while one is not None and one == two:
        one, two = next(before, None), next(after, None)
    return list(chain(one or (), chain.from_iterable(before))), list(chain(two or (), chain.from_iterable(after)))


def _by_key(table: Table, rows: Any) -> Rows:
    found: Rows = {}
    for rowid, *values in rows:
        row = dict(zip(table.columns, values, strict=True))
        found[table.segment(row, rowid)] = row
    return found


def _ranges(sides: Sequence[_Side]) -> Mapping[str, list[Range]]:
    """Return, by table, the row ids that may differ: all, when it is not known which."""
    images = {None if side.state.private is None else side.state.private.image for side in sides}
    everything = {name: [EVERY_ROW] for side in sides for name in side.schema.tables}
    image = images.pop()
    if images or image is None:
        return everything
    found: dict[str, list[Range]] = {}
    for side in sides:
        touched = {} if side.state.is_original else _touched(side, image)
        if touched is None:
            return everything
        for name, ranges in touched.items():
            found[name] = merged([*found.get(name, []), *ranges])
    return found


class _Original:
    """What is known of an image: which page belongs to which tree."""

    def __init__(self, image: DatabaseImage) -> None:
        shared = image.shared
        assert shared is not None
        self._shared = shared  # whose memory is read
        self.pages = Image(shared.address, shared.size)
        made = image.private()
        try:
            with reading(made.connection) as cursor:
                self.schema = read_schema(cursor)
        finally:
            made.connection.end()
            made.release()
        self.trees = {name: self.pages.tree(root) for name, root in self.schema.roots.items()}
        known = self.pages.free_pages() | self.pages.bookkeeping_pages()
        for tree in (*self.trees.values(), self.pages.tree(1)):
            known |= tree.others
            known.update(tree.leaves)
        self.known = frozenset(known)
        """All pages but those that hold what does not fit into leaves."""
        self._overflow: dict[int, tuple[str, int]] | None = None

    def overflow(self) -> Mapping[int, tuple[str, int]]:
        """Return those other pages that belong to a row with a row id, with its table and that."""
        if self._overflow is None:
            self._overflow = {
                page: (name, row)
                for name, tree in self.trees.items()
                if tree.is_table
                for page, row in self.pages.overflow_rows(tree).items()
            }
        return self._overflow


_originals: WeakKeyDictionary[DatabaseImage, _Original | None] = WeakKeyDictionary()
_originals_lock = threading.Lock()


def _original(image: DatabaseImage) -> _Original | None:
    with _originals_lock:
        if image not in _originals:
            try:
                _originals[image] = _Original(image)
            except _UNREADABLE:
                _originals[image] = None
        return _originals[image]


_UNREADABLE = (NotUnderstoodError, struct.error, IndexError)


def _touched(side: _Side, image: DatabaseImage) -> dict[str, list[Range]] | None:
    """Return, by table, the row ids that a copy may have other rows at than the image; None when it is not known."""
    private = side.state.private
    if private is None or private.pages is None or private.connection.is_replaced:
        return None
    original = _original(image)
    if original is None or side.pragma("page_size") != original.pages.page_bytes:
        return None
    if side.state.connection.in_transaction and not (side.pragma("cache_spill") and private.pages.flush()):
        return None
    size = side.pragma("page_count") * original.pages.page_bytes
    changed = private.pages.changed(size, original.pages.page_bytes)
    try:
        return _touched_by(changed, original, side.schema, Image(private.pages.address, size))
    except _UNREADABLE:
        return None


def _touched_by(changed: set[int], original: _Original, schema: Schema, now: Image) -> dict[str, list[Range]]:
    last = original.pages.size // original.pages.page_bytes
    long_rows = {page for page in changed if page <= last and page not in original.known}
    overflow: Mapping[int, tuple[str, int]] = original.overflow() if long_rows else {}
    found: dict[str, list[Range]] = {}
    for page in long_rows & overflow.keys():
        name, row = overflow[page]
        found.setdefault(name, []).append((row - 1, row))
    # What is left of them belongs to an index, or to a table that is one.
    is_index_touched = not long_rows <= overflow.keys()
    for name, root in schema.roots.items():
        before = original.trees.get(name)
        if before is None:
            found[name] = [EVERY_ROW]
        elif root == original.schema.roots[name] and before.is_untouched(changed):
            if is_index_touched and not before.is_table:
                found[name] = [EVERY_ROW]
        else:
            found.setdefault(name, []).extend(_touched_in(changed, before, now.tree(root)))
    for name, table in schema.tables.items():
        if table.kind is Kind.VIRTUAL and (not table.shadows or found.keys() & set(table.shadows)):
            found[name] = [EVERY_ROW]
    return found


def _touched_in(changed: set[int], before: Tree, after: Tree) -> Iterator[Range]:
    if before.is_table and after.is_table:
        yield from before.touched(changed, after)
        yield from after.touched(changed, before)
    else:
        yield EVERY_ROW
