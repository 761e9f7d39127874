"""What a database consists of, and how its rows are named and read: what comparing and changing it have in common."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, cast

from agent_env.errors import UniverseError

__all__ = ["PRAGMAS", "Kind", "Schema", "Table", "key_segment", "key_values", "quoted", "read_schema", "reading"]

PRAGMAS = ("user_version", "application_id")
"""Numbers that a database keeps for whoever uses it."""


class Kind(StrEnum):
    """What a table is."""

    ROWS = "rows"
    """Its rows have row ids."""
    KEYS = "keys"
    """WITHOUT ROWID."""
    VIRTUAL = "virtual"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table, as far as its rows are compared."""

    name: str
    kind: Kind
    root: int
    """The page that its tree begins at; 0 for a virtual table."""
    columns: tuple[str, ...]
    """Those that are stored, not generated."""
    key: tuple[str, ...]
    """Columns of the primary key."""
    rowid: str
    """The name that the row id goes by; empty when there is none."""
    has_rowid_column: bool
    """Whether a column is the row id under another name."""
    shadows: tuple[str, ...] = ()
    """Tables that a virtual table keeps its content in."""

    @property
    def at(self) -> str:
        """Its name in SQL; a temporary table of the same name would hide it."""
        return f"main.{quoted(self.name)}"

    def segment(self, row: Mapping[str, Any], rowid: Any) -> str:
        """Return what names a row in a pointer."""
        values = [row[column] for column in self.key if column in row]
        if not values or len(values) != len(self.key):
            return key_segment([rowid])
        # SQLite lets a primary key be NULL, more than once.
        return key_segment(values) if None not in values else json.dumps({"$rowid": rowid})


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """What a database consists of."""

    tables: Mapping[str, Table]
    entries: Mapping[str, Mapping[str, Any]]
    """What `sqlite_schema` says, by name: the type, the table, the SQL. SQLite's own and those of others are not in it."""
    roots: Mapping[str, int]
    """The page that each tree begins at, by the name of the table or index: all of them."""


def quoted(name: str) -> str:
    """Return a name as SQL has it."""
    return '"' + name.replace('"', '""') + '"'


def key_segment(values: Sequence[Any]) -> str:
    """Return a key as a segment of a pointer: a text as it is unless it could be taken for JSON, all else as JSON."""
    if len(values) == 1 and isinstance(values[0], str) and _json_of(values[0]) is _NO_JSON and _is_utf8(values[0]):
        return values[0]
    parts = [{"$hex": value.hex()} if isinstance(value, bytes) else value for value in values]
    is_utf8 = all(_is_utf8(value) for value in values if isinstance(value, str))
    return json.dumps(parts[0] if len(parts) == 1 else parts, separators=(",", ":"), ensure_ascii=not is_utf8)


def _is_utf8(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= one <= "\udfff" for one in text)


def key_values(segment: str) -> list[Any]:
    """Return the values of the key that a segment names.

    Raises:
        ValueError: When it names none.
    """
    found = _json_of(segment)
    if found is _NO_JSON:
        return [segment]
    return [_hex_of(value) for value in (cast("Any", found) if isinstance(found, list) else [found])]


_NO_JSON: Any = object()


def _json_of(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return _NO_JSON


def _hex_of(value: Any) -> Any:
    is_hex = isinstance(value, dict) and "$hex" in value
    return bytes.fromhex(cast("Any", value)["$hex"]) if is_hex else cast("Any", value)


@contextmanager
def reading(connection: sqlite3.Connection) -> Generator[sqlite3.Cursor]:
    """Give a cursor that reads what is there, whatever an env has set; a text that is no UTF-8 has surrogates in it."""
    factory = connection.text_factory
    connection.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
    try:
        with closing(connection.cursor()) as cursor:
            cursor.row_factory = None
            yield cursor
    finally:
        connection.text_factory = factory


_SHADOW = re.compile(r"_(data|idx|content|docsize|config|segments|segdir|stat|node|rowid|parent)$")
"""How the modules that come with SQLite name the tables that they keep a virtual table's content in."""


def read_schema(cursor: sqlite3.Cursor) -> Schema:
    """Read what a database consists of.

    Args:
        cursor: One of `reading`.

    Raises:
        sqlite3.Error: When it cannot be read.
        UniverseError: When it has a table whose rows cannot be named.
    """
    found = cursor.execute("SELECT type, name, tbl_name, rootpage, sql FROM main.sqlite_master").fetchall()
    own = [one for one in found if not one[1].startswith("sqlite_") and one[4] is not None]
    shadows: dict[str, list[str]] = {name: [] for kind, name, _, _, sql in own if kind == "table" and _is_virtual(sql)}
    for _, name, _, _, _ in own:
        tail = _SHADOW.search(name)
        if tail is not None and name[: tail.start()] in shadows:
            shadows[name[: tail.start()]].append(name)
    hidden = {name for names in shadows.values() for name in names}
    seen = [one for one in own if one[1] not in hidden and one[2] not in hidden]
    return Schema(
        tables={
            name: _table(cursor, name, root or 0, None if name not in shadows else tuple(shadows[name]))
            for kind, name, _, root, _ in seen
            if kind == "table"
        },
        entries={name: {"type": kind, "table": table, "sql": sql} for kind, name, table, _, sql in seen},
        roots={name: root for _, name, _, root, _ in found if root},
    )


def _is_virtual(sql: str) -> bool:
    return sql.lstrip().upper().startswith("CREATE VIRTUAL")


def _table(cursor: sqlite3.Cursor, name: str, root: int, shadows: tuple[str, ...] | None) -> Table:
    """Read what a table consists of.

    Args:
        cursor: One of `reading`.
        name: Its name.
        root: Its root page.
        shadows: The tables that it is kept in, when it is a virtual one.
    """
    described = cursor.execute(f"PRAGMA main.table_xinfo({quoted(name)})").fetchall()
    columns = [column for _, column, _, _, _, _, hidden in described if hidden == 0]
    key = sorted((place, column, declared.upper()) for _, column, declared, _, _, place, _ in described if place)
    taken = {column.lower() for _, column, *_ in described}
    rowid = next((one for one in ("rowid", "_rowid_", "oid") if one not in taken), "")
    kind = Kind.ROWS if shadows is None else Kind.VIRTUAL
    try:
        cursor.execute(f"SELECT {rowid or 1} FROM main.{quoted(name)} LIMIT 0").fetchall()
    except sqlite3.OperationalError:
        if shadows is not None:
            raise
        kind, rowid = Kind.KEYS, ""
    if not rowid and not key:
        raise UniverseError(f"the table {name} cannot be compared: its columns have all names that a row id has")
    return Table(
        name=name,
        kind=kind,
        root=root,
        columns=tuple(columns),
        key=tuple(column for _, column, _ in key),
        rowid=rowid,
        has_rowid_column=kind is Kind.ROWS and [one for *_, one in key] == ["INTEGER"],
        shadows=shadows or (),
    )
