"""Making recorded changes of a database again.

Rows that change are taken out first and put in last, so that no unique value is there twice in between; triggers are away
meanwhile, for what they did is among the changes. A table whose SQL changes is built anew. Row ids that nobody has named
(of a table with another primary key, and rows that are new in it) may be others afterwards.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from agent_env.errors import UniverseError
from agent_env.universe.change import MISSING, Change, StateChanges, from_pointer, unmarked
from agent_env.universe.database_schema import PRAGMAS, Table, key_values, quoted, read_schema, reading
from agent_env.universe.still_there import check_still_there, not_the_same, not_there

__all__ = ["apply_to_database"]


def apply_to_database(changes: StateChanges, connection: sqlite3.Connection) -> None:
    """Make changes again, and commit them.

    Raises:
        UniverseError: When they do not fit the database.
    """
    try:
        with _in_one_transaction(connection), reading(connection) as cursor:
            _Work(cursor, changes).do()
    except (sqlite3.Error, OverflowError) as exc:
        raise not_the_same(exc) from exc


@contextmanager
def _in_one_transaction(connection: sqlite3.Connection) -> Generator[None]:
    level = connection.isolation_level
    connection.commit()
    connection.isolation_level = None
    try:
        (foreign_keys,) = tuple(connection.execute("PRAGMA foreign_keys").fetchone())
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("BEGIN")
        try:
            yield
        except BaseException:  # whatever it is: all of it, or nothing
            connection.rollback()
            raise
        connection.execute("COMMIT")
        connection.execute(f"PRAGMA foreign_keys = {int(foreign_keys)}")
    finally:
        connection.isolation_level = level


@dataclass(slots=True)
class _Row:
    """What changes in one row."""

    whole: Change | None = None
    columns: dict[str, Change] = field(default_factory=dict[str, Change])


class _Work:
    """The changes of one database, sorted by what they are about."""

    def __init__(self, cursor: sqlite3.Cursor, changes: StateChanges) -> None:
        self._cursor = cursor
        self._schema = read_schema(cursor)
        self._rows: dict[str, dict[str, _Row]] = {}
        self._entries: dict[str, _Row] = {}
        self._pragmas: list[tuple[str, Change]] = []
        for change in changes.changes:
            self._sort_in(change)

    def _sort_in(self, change: Change) -> None:
        segments = from_pointer(change.path)
        if len(segments) not in (2, 3) or (segments[0] == "sqlite_pragmas" and segments[1] not in PRAGMAS):
            raise UniverseError(f"the changes cannot be made again: '{change.path}' is no place in a database")
        if segments[0] == "sqlite_pragmas":
            self._pragmas.append((segments[1], change))
            return
        rows = self._entries if segments[0] == "sqlite_schema" else self._rows.setdefault(segments[0], {})
        row = rows.setdefault(segments[1], _Row())
        if len(segments) == 2:
            row.whole = change
        else:
            row.columns[segments[2]] = change

    def do(self) -> None:
        entries = {name: self._entry_after(name, row) for name, row in self._entries.items()}
        triggers = {name: entry for name, entry in self._schema.entries.items() if entry["type"] == "trigger"}
        self._drop(triggers)
        before = {name: self._schema.entries[name] for name in entries if name in self._schema.entries}
        self._drop({name: entry for name, entry in before.items() if entry["type"] in ("view", "index")})
        rebuilt = {
            name
            for name, entry in entries.items()
            if name in self._schema.tables and entry is not None and entry["type"] == "table"
        }
        kept = {name: self._changed_table(name) for name in rebuilt}
        lost = {
            name: entry
            for name, entry in self._schema.entries.items()
            if entry["type"] == "index" and entry["table"] in rebuilt and name not in entries
        }
        self._drop({name: entry for name, entry in before.items() if entry["type"] == "table"})
        self._create(entries, "table")
        self._schema = read_schema(self._cursor)
        for name, rows in kept.items():
            self._insert(self._table(name), rows)
        for name in self._rows.keys() - rebuilt:
            if name in self._schema.tables:
                self._change_rows(self._table(name))
            elif name not in entries:
                raise not_the_same(f"there is no table {name}")
        still = {name: entry for name, entry in triggers.items() if name not in entries and self._has(entry)}
        for kind in ("index", "view", "trigger"):
            self._create(lost | still | entries, kind)
        for name, change in self._pragmas:
            check_still_there(change, self._cursor.execute(f"PRAGMA {name}").fetchone()[0])
            self._cursor.execute(f"PRAGMA {name} = {int(change.after)}")

    def _has(self, entry: Mapping[str, Any]) -> bool:
        """Whether what a trigger is on is still there."""
        return entry["table"] in self._schema.entries

    def _table(self, name: str) -> Table:
        try:
            return self._schema.tables[name]
        except KeyError:
            raise not_the_same(f"there is no table {name}") from None

    def _entry_after(self, name: str, row: _Row) -> Mapping[str, Any] | None:
        """Return what the schema says of something afterwards; None when it is gone."""
        after = _after(row, self._schema.entries.get(name, MISSING))
        return None if after is MISSING else after

    def _drop(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        for name, entry in entries.items():
            self._cursor.execute(f"DROP {entry['type'].upper()} main.{quoted(name)}")

    def _create(self, entries: Mapping[str, Mapping[str, Any] | None], kind: str) -> None:
        for entry in entries.values():
            if entry is not None and entry["type"] == kind:
                self._cursor.execute(entry["sql"])

    def _changed_table(self, name: str) -> list[tuple[Any, Mapping[str, Any]]]:
        """Return all rows of a table as they are afterwards, with their row ids."""
        table = self._table(name)
        rows = {table.segment(row, rowid): (rowid, row) for rowid, row in self._select(table, "", ())}
        for key, change in self._rows.get(name, {}).items():
            rowid, now = rows.get(key, (None, MISSING))
            after = _after(change, now)
            if after is MISSING:
                rows.pop(key)
            else:
                rows[key] = (rowid if now is not MISSING else _named_rowid(table, key), after)
        return list(rows.values())

    def _change_rows(self, table: Table) -> None:
        new: list[tuple[Any, Mapping[str, Any]]] = []
        gone: list[tuple[str, Sequence[Any]]] = []
        for key, change in self._rows[table.name].items():
            where, values = _where(table, key)
            found = next(iter(self._select(table, where, values)), None)
            after = _after(change, MISSING if found is None else found[1])
            if found is not None:
                gone.append((where, values))
            if after is not MISSING:
                new.append((_named_rowid(table, key) if found is None else found[0], after))
        for where, values in gone:
            self._cursor.execute(f"DELETE FROM {table.at} {where}", values)
        self._insert(table, new)

    def _select(self, table: Table, where: str, values: Sequence[Any]) -> Iterable[tuple[Any, Mapping[str, Any]]]:
        columns = ", ".join(f"+{quoted(column)}" for column in table.columns)
        sql = f"SELECT {table.rowid or 'NULL'}, {columns} FROM {table.at} {where}"
        for rowid, *row in self._cursor.execute(sql, values).fetchall():
            yield rowid, dict(zip(table.columns, row, strict=True))

    def _insert(self, table: Table, rows: Iterable[tuple[Any, Mapping[str, Any]]]) -> None:
        for rowid, row in sorted(rows, key=lambda one: (one[0] is None, one[0] or 0)):
            named = dict(row) if rowid is None or table.has_rowid_column else {table.rowid: rowid, **row}
            names = ", ".join(name if name == table.rowid else quoted(name) for name in named)
            marks, values = _bound(named.values())
            self._cursor.execute(f"INSERT INTO {table.at} ({names}) VALUES ({marks})", values)


def _bound(values: Iterable[Any]) -> tuple[str, list[Any]]:
    """Return values as SQL has them: a text that is no UTF-8 is made of its bytes."""
    marks: list[str] = []
    bound: list[Any] = []
    for value in values:
        is_odd = isinstance(value, str) and not value.isascii() and any("\ud800" <= one <= "\udfff" for one in value)
        marks.append("CAST(? AS TEXT)" if is_odd else "?")
        bound.append(value.encode("utf-8", "surrogateescape") if is_odd else value)
    return ", ".join(marks), bound


def _where(table: Table, key: str) -> tuple[str, Sequence[Any]]:
    """Return the condition that a row's key stands for."""
    values = key_values(key)
    if table.key and len(values) == len(table.key) and not isinstance(values[0], dict):
        parts = [_bound([value]) for value in values]
        terms = [f"{quoted(column)} IS {mark}" for column, (mark, _) in zip(table.key, parts, strict=True)]
        return f"WHERE {' AND '.join(terms)}", [value for _, bound in parts for value in bound]
    return f"WHERE {table.rowid} = ?", [_named_rowid(table, key)]


def _named_rowid(table: Table, key: str) -> Any:
    """Return the row id that a key is, or None when it is another one."""
    value, *more = key_values(key)
    if isinstance(value, dict):
        return cast("Any", value)["$rowid"]
    return value if not table.key and not more else None


def _after(row: _Row, now: Any) -> Any:
    """Return what a row is afterwards, or `MISSING`."""
    if row.whole is not None:
        check_still_there(row.whole, now)
        return row.whole.after if row.whole.after is MISSING else unmarked(row.whole.after)
    if now is MISSING:
        raise not_there(next(iter(row.columns.values())))
    after = dict(now)
    for column, change in row.columns.items():
        check_still_there(change, after.get(column, MISSING))
        if change.after is MISSING:
            del after[column]
        else:
            after[column] = unmarked(change.after)
    return after
