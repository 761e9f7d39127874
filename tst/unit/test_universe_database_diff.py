"""What an episode changed in a database: by rows, whatever way it went about it, and made again from what was kept."""

from __future__ import annotations

import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent_env.bundle import UniverseKind, UniverseSpec
from agent_env.errors import UniverseError
from agent_env.universe import MISSING, ChangeLimits, StateChanges, apply, compare, open_universe, shared_pages

SCHEMA = """
CREATE TABLE orders (id INTEGER PRIMARY KEY, user TEXT, status TEXT, total REAL, note BLOB);
CREATE INDEX by_user ON orders (user);
CREATE TABLE users (id TEXT PRIMARY KEY, name TEXT NOT NULL, about TEXT, level);
CREATE TABLE log (at, what);
CREATE TABLE pairs (a INTEGER, b TEXT, n REAL, PRIMARY KEY (a, b)) WITHOUT ROWID;
CREATE TABLE texts (k TEXT PRIMARY KEY, body TEXT) WITHOUT ROWID;
CREATE VIEW open_orders AS SELECT * FROM orders WHERE status = 'open';
"""


def write(path: Path, *, rows: int = 50, more: str = "") -> UniverseSpec:
    """A small shop."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SCHEMA + more)
        for at in range(rows):
            connection.execute(
                "INSERT INTO orders VALUES (?, ?, 'open', ?, ?)", (at, f"u{at % 7}", at * 1.5, b"\xff\0")
            )
            connection.execute(
                "INSERT INTO users VALUES (?, ?, ?, ?)", (f"u{at}", f"Name {at}", "a" * (at % 10) * 90, at)
            )
            connection.execute("INSERT INTO log VALUES (?, ?)", (at, "began"))
            connection.execute("INSERT INTO pairs VALUES (?, ?, ?)", (at % 5, f"p{at}", at))
        connection.commit()
    return UniverseSpec(path=path, kind=UniverseKind.SQLITE)


def everything(connection: sqlite3.Connection) -> dict[str, Any]:
    """A database as a JSON tree, read in the plainest way."""
    found: dict[str, Any] = {}
    names = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'")
    for name, sql in names.fetchall():
        if "WITHOUT ROWID" in sql:
            rows = connection.execute(f'SELECT * FROM "{name}"').fetchall()
            found[name] = sorted(rows, key=repr)
        else:
            rows = connection.execute(f'SELECT rowid, * FROM "{name}" ORDER BY rowid').fetchall()
            found[name] = [row if "PRIMARY KEY" not in sql else row[1:] for row in rows]
            found[name].sort(key=repr)
    return found


def as_lists(changes: StateChanges) -> list[tuple[str, Any, Any]]:
    """Changes in the shortest form."""
    return [(change.path, change.before, change.after) for change in changes.changes]


async def test_changes_are_told_by_table_key_and_column(tmp_path: Path) -> None:
    """Rows by their primary key, new and gone ones as a whole; blobs as base64; what is not committed counts."""
    async with open_universe(write(tmp_path / "u.db")) as copy:
        assert not await copy.changes()
        db = copy.state
        db.execute("UPDATE orders SET status = 'sent', total = 4 WHERE id = 3")
        db.execute("UPDATE orders SET total = CAST(total AS INTEGER) WHERE id = 4")  # the same number
        db.execute("DELETE FROM users WHERE id = 'u7'")
        db.commit()
        db.execute("INSERT INTO pairs VALUES (9, 'x/y~', 1)")
        db.execute("INSERT INTO log VALUES (?, 'ended')", (b"\xfe",))
        db.execute("UPDATE orders SET note = x'00' WHERE id = 5")
        db.execute("PRAGMA user_version = 7")
        assert db.in_transaction
        changes = await copy.changes()
        assert db.in_transaction
        assert as_lists(changes) == [
            ("/log/51", MISSING, {"at": {"$base64": "/g=="}, "what": "ended"}),
            ("/orders/3/status", "open", "sent"),
            ("/orders/3/total", 4.5, 4.0),
            ("/orders/5/note", {"$base64": "/wA="}, {"$base64": "AA=="}),
            ('/pairs/[9,"x~1y~0"]', MISSING, {"a": 9, "b": "x/y~", "n": 1.0}),
            ("/sqlite_pragmas/user_version", 0, 7),
            ("/users/u7", {"id": "u7", "name": "Name 7", "about": "a" * 630, "level": 7}, MISSING),
        ]
        assert changes.is_whole
        db.rollback()
        assert [path for path, _, _ in as_lists(await copy.changes())] == [
            "/orders/3/status",
            "/orders/3/total",
            "/users/u7",
        ]


async def test_reading_changes_nothing_of_the_connection(tmp_path: Path) -> None:
    """Neither what the env has set, nor a cursor that is half read, nor a transaction that can be rolled back."""
    async with open_universe(write(tmp_path / "u.db")) as copy:
        db = copy.state
        db.row_factory = sqlite3.Row
        db.text_factory = lambda text: f"<{text.decode()}>"
        db.execute("UPDATE orders SET status = 'sent' WHERE id = 1")
        half = db.execute("SELECT id FROM orders ORDER BY id")
        assert half.fetchone()["id"] == 0
        assert as_lists(await copy.changes()) == [("/orders/1/status", "open", "sent")]
        assert half.fetchone()["id"] == 1
        assert db.execute("SELECT user FROM orders").fetchone()["user"] == "<u0>"
        assert len(half.fetchall()) == 48
        half.close()
        assert as_lists(await copy.changes()) == [("/orders/1/status", "open", "sent")]
        db.rollback()
        assert not await copy.changes()
        assert db.execute("PRAGMA integrity_check").fetchone()[0] == "<ok>"


async def test_texts_and_keys_of_any_kind(tmp_path: Path) -> None:
    """A text that is no UTF-8, one with NUL, keys that look like numbers, are NULL, blobs, or have slashes."""
    more = "CREATE TABLE odd (k PRIMARY KEY, v TEXT); INSERT INTO odd VALUES (CAST(x'62ff' AS TEXT), 'a');"
    keys = ["1", 1, 1.5, "1.5", b"\x01", "a/b~c", "", "null", None, None, "[1]", '"q"', "ü", "x'01'"]
    async with open_universe(write(tmp_path / "u.db", more=more)) as copy:
        db = copy.state
        db.executemany("INSERT INTO odd VALUES (?, 'a')", [(key,) for key in keys])
        db.execute("UPDATE odd SET v = CAST(x'ff00fe' AS TEXT) WHERE k = 'null'")
        db.execute("UPDATE odd SET v = 'a' || char(0) || 'b' WHERE k = ''")
        db.execute("INSERT INTO odd VALUES (CAST(x'61ff' AS TEXT), 'b')")
        db.execute("UPDATE odd SET v = 'b' WHERE k = CAST(x'62ff' AS TEXT)")
        changes = await copy.changes()
        assert len(changes.changes) == len({change.path for change in changes.changes}) == len(keys) + 2
        assert json.dumps(changes.as_json(), ensure_ascii=False).encode()
        again = StateChanges.from_json(json.loads(json.dumps(changes.as_json())))
    async with open_universe(copy.spec) as fresh:
        apply(again, fresh.state)
        assert (await fresh.changes()).changes == changes.changes


async def test_schema_changes(tmp_path: Path) -> None:
    """Tables, columns, indexes, views and triggers that are new, gone or another; and made again."""
    spec = write(tmp_path / "u.db")
    async with open_universe(spec) as copy:
        db = copy.state
        db.executescript("""
            CREATE TABLE fresh (id INTEGER PRIMARY KEY, x);
            INSERT INTO fresh VALUES (1, 'a'), (2, NULL);
            DROP TABLE log;
            DROP INDEX by_user;
            ALTER TABLE users ADD COLUMN age INTEGER DEFAULT 3;
            UPDATE users SET age = 4 WHERE id = 'u1';
            CREATE TRIGGER sent AFTER UPDATE ON orders BEGIN INSERT INTO fresh(x) VALUES (new.id); END;
            UPDATE orders SET status = 'sent' WHERE id = 9;
        """)
        changes = await copy.changes()
        told = {path: (before, after) for path, before, after in as_lists(changes)}
        assert told["/fresh/1"] == (MISSING, {"id": 1, "x": "a"})
        assert told["/fresh/3"] == (MISSING, {"id": 3, "x": 9})
        assert told["/log/1"] == ({"at": 0, "what": "began"}, MISSING)
        assert told["/users/u1/age"] == (MISSING, 4)
        assert told["/users/u2/age"] == (MISSING, 3)
        assert told["/sqlite_schema/by_user"][1] is MISSING
        assert told["/sqlite_schema/fresh"][1]["type"] == "table"
        assert "age INTEGER" in told["/sqlite_schema/users/sql"][1]
        wanted = everything(db)
    async with open_universe(spec) as fresh:
        apply(changes, fresh.state)
        assert everything(fresh.state) == wanted
        assert (await fresh.changes()).changes == changes.changes


ODD_SCHEMA = """
CREATE TABLE "odd ""name"" / ~" ("a b" INTEGER PRIMARY KEY, "q""q" TEXT UNIQUE, 'select' REAL);
CREATE TABLE made (id INTEGER PRIMARY KEY, n INTEGER, twice INT AS (n * 2), stored INT AS (n * 3) STORED) STRICT;
CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, n);
CREATE TABLE named (rowid TEXT, _rowid_ TEXT, n);
CREATE TABLE all_named (rowid TEXT, _rowid_ TEXT, oid TEXT PRIMARY KEY);
CREATE TABLE nocase (k TEXT PRIMARY KEY COLLATE NOCASE, v) WITHOUT ROWID;
CREATE TABLE backwards (k INTEGER PRIMARY KEY DESC, v);
CREATE TABLE child (id INTEGER PRIMARY KEY, of REFERENCES counted (id) ON DELETE CASCADE);
CREATE TABLE noted (what);
CREATE TRIGGER note AFTER UPDATE ON counted BEGIN INSERT INTO noted VALUES (new.n); END;
CREATE TRIGGER note_gone AFTER DELETE ON counted BEGIN INSERT INTO noted VALUES ('gone'); END;
CREATE VIRTUAL TABLE docs USING fts5 (title, body);
CREATE VIRTUAL TABLE old_docs USING fts4 (title, body);
CREATE VIRTUAL TABLE places USING rtree (id, west, east);
CREATE TABLE docs_archive (title);
"""


async def test_schemas_of_every_kind(tmp_path: Path) -> None:
    """Names with quotes, generated columns, virtual tables, triggers, foreign keys, and columns that are called rowid."""
    spec = write(tmp_path / "u.db", more=ODD_SCHEMA)
    with closing(sqlite3.connect(spec.path)) as connection:
        connection.executescript("""
            INSERT INTO "odd ""name"" / ~" VALUES (1, 'one', 1), (2, 'two', 2);
            INSERT INTO made (id, n) VALUES (1, 1);
            INSERT INTO counted (n) VALUES (1), (2), (3), (4);
            INSERT INTO named VALUES ('a', 'b', 1), ('a', 'b', 1);
            INSERT INTO all_named VALUES ('a', 'b', 'c');
            INSERT INTO nocase VALUES ('a', 1), ('B', 2);
            INSERT INTO backwards VALUES (5, 1), (3, 2);
            INSERT INTO child VALUES (1, 2);
            INSERT INTO docs VALUES ('first', 'some words'), ('second', 'other words');
            INSERT INTO old_docs VALUES ('first', 'some words');
            INSERT INTO places VALUES (1, 1.5, 2.5);
            INSERT INTO docs_archive VALUES ('kept');
        """)
    async with open_universe(spec) as copy:
        assert not await copy.changes()
        copy.state.executescript("""
            CREATE TEMP TABLE made (id);
            INSERT INTO temp.made VALUES (7);
            UPDATE "odd ""name"" / ~" SET "q""q" = CASE "q""q" WHEN 'one' THEN 'x' ELSE 'one' END;
            UPDATE "odd ""name"" / ~" SET "q""q" = 'two' WHERE "q""q" = 'x';
            UPDATE main.made SET n = 5;
            PRAGMA foreign_keys = ON;
            UPDATE counted SET n = 9 WHERE id = 1;
            DELETE FROM counted WHERE id IN (2, 4);
            INSERT INTO counted (n) VALUES (8);
            DELETE FROM named WHERE oid = 1;
            UPDATE all_named SET rowid = 'z';
            UPDATE nocase SET v = 7 WHERE k = 'b';
            UPDATE backwards SET v = 7 WHERE k = 3;
            UPDATE docs SET body = 'new words' WHERE title = 'second';
            INSERT INTO docs VALUES ('third', 'more');
            DELETE FROM old_docs;
            UPDATE places SET east = 3.5;
            INSERT INTO docs_archive VALUES ('new');
        """)
        changes = await copy.changes()
        assert as_lists(changes) == [
            ("/all_named/c/rowid", "a", "z"),
            ("/backwards/3/v", 2, 7),
            ("/child/1", {"id": 1, "of": 2}, MISSING),
            ("/counted/1/n", 1, 9),
            ("/counted/2", {"id": 2, "n": 2}, MISSING),
            ("/counted/4", {"id": 4, "n": 4}, MISSING),
            ("/counted/5", MISSING, {"id": 5, "n": 8}),
            ("/docs/2/body", "other words", "new words"),
            ("/docs/3", MISSING, {"title": "third", "body": "more"}),
            ("/docs_archive/2", MISSING, {"title": "new"}),
            ("/made/1/n", 1, 5),
            ("/named/1", {"rowid": "a", "_rowid_": "b", "n": 1}, MISSING),
            ("/nocase/B/v", 2, 7),
            ("/noted/1", MISSING, {"what": 9}),
            ("/noted/2", MISSING, {"what": "gone"}),
            ("/noted/3", MISSING, {"what": "gone"}),
            ('/odd "name" ~1 ~0/1/q"q', "one", "two"),
            ('/odd "name" ~1 ~0/2/q"q', "two", "one"),
            ("/old_docs/1", {"title": "first", "body": "some words"}, MISSING),
            ("/places/1/east", 2.5, 3.5),
        ]
        async with open_universe(spec) as fresh:
            apply(StateChanges.from_json(json.loads(json.dumps(changes.as_json()))), fresh.state)
            assert (await fresh.changes()).changes == changes.changes
            assert not await compare(copy, fresh)
            assert fresh.state.execute("SELECT title FROM docs WHERE docs MATCH 'new'").fetchall() == [("second",)]
            fresh.state.execute("UPDATE counted SET n = 1")
            assert fresh.state.execute("SELECT count(*) FROM noted").fetchone() == (6,)


async def test_the_tail_of_a_long_text_in_a_table_that_is_an_index(tmp_path: Path) -> None:
    """No page of the table's tree is written to, only the one that the end of the text is in."""
    spec = write(tmp_path / "u.db", more="INSERT INTO texts VALUES ('a', hex(zeroblob(9000))), ('b', 'short');")
    async with open_universe(spec) as copy:
        copy.state.execute("UPDATE texts SET body = substr(body, 1, 17999) || 'z' WHERE k = 'a'")
        assert [change.path for change in (await copy.changes()).changes] == ["/texts/a/body"]


async def test_a_database_that_is_put_into_the_place_of_the_first_is_compared(tmp_path: Path) -> None:
    """By `deserialize`: the pages that the copy began with are no longer those of the database."""
    spec = write(tmp_path / "u.db")
    async with open_universe(spec) as copy:
        with closing(sqlite3.connect(":memory:")) as other:
            other.deserialize(copy.state.serialize())
            other.execute("UPDATE orders SET status = 'sent' WHERE id = 8")
            other.commit()
            copy.state.deserialize(other.serialize())
        assert as_lists(await copy.changes()) == [("/orders/8/status", "open", "sent")]


async def test_what_is_ignored_and_unordered_in_tables(tmp_path: Path) -> None:
    """Columns, rows and tables by pointers; a table without keys of its own as a collection of rows."""
    spec = write(tmp_path / "u.db")
    async with open_universe(spec) as wanted, open_universe(spec) as left:
        for db, rows in ((wanted.state, [("x", 1), ("y", 2)]), (left.state, [("y", 2), ("x", 1), ("x", 1)])):
            db.executemany("INSERT INTO log VALUES (?, ?)", rows)
        left.state.execute("UPDATE orders SET status = 'sent', total = 1 WHERE id = 1")
        assert [change.path for change in (await compare(wanted, left)).changes] == [
            *("/log/51/at", "/log/51/what", "/log/52/at", "/log/52/what", "/log/53"),
            *("/orders/1/status", "/orders/1/total"),
        ]
        found = await compare(wanted, left, unordered=["/log"], ignore=["/orders/*/total"])
        assert as_lists(found) == [("/log/53", MISSING, {"at": "x", "what": 1}), ("/orders/1/status", "open", "sent")]
        assert not await compare(wanted, left, ignore=["/log/**", "/orders/1"])


async def test_changes_of_another_database_are_refused(tmp_path: Path) -> None:
    """Where other rows are there now, nothing is made up, and nothing is half made."""
    spec = write(tmp_path / "u.db")
    async with open_universe(spec) as copy:
        copy.state.execute("UPDATE orders SET status = 'sent' WHERE id = 3")
        copy.state.execute("DELETE FROM users WHERE id = 'u7'")
        changes = await copy.changes()
    for other in (
        "UPDATE orders SET status = 'lost' WHERE id = 3",
        "DELETE FROM orders WHERE id = 3",
        "DELETE FROM users WHERE id = 'u7'",
        "UPDATE users SET name = 'x' WHERE id = 'u7'",
        "DROP TABLE users",
        "ALTER TABLE orders RENAME COLUMN status TO state",
    ):
        async with open_universe(spec) as copy:
            copy.state.execute(other)
            copy.state.commit()
            before = everything(copy.state)
            with pytest.raises(UniverseError, match="is another since"):
                apply(changes, copy.state)
            assert everything(copy.state) == before
            assert not copy.state.in_transaction


async def test_a_great_many_changes_are_bounded(tmp_path: Path) -> None:
    """So many are kept, the rest is counted."""
    async with open_universe(write(tmp_path / "u.db", rows=3000)) as copy:
        copy.state.execute("UPDATE orders SET status = 'sent'")
        changes = await copy.changes(limits=ChangeLimits(changes=100))
        assert (len(changes.changes), changes.left_out, changes.is_whole) == (100, 2900, False)


async def test_an_env_may_have_put_something_else_in_the_place_of_its_state(tmp_path: Path) -> None:
    """An object around the connection: the database is compared; a connection of its own: that one is."""
    spec = write(tmp_path / "u.db")
    async with open_universe(spec) as copy:
        copy.state.execute("DELETE FROM log")
        assert len((await copy.changes({"db": copy.state})).changes) == 50
        other = sqlite3.connect(spec.path, check_same_thread=False)
        with closing(other):
            assert not await copy.changes(other)
            other.execute("UPDATE orders SET total = 0 WHERE id = 9")
            assert [change.path for change in (await copy.changes(other)).changes] == ["/orders/9/total"]
            assert other.in_transaction
        (tmp_path / "u.json").write_text("{}")
        async with open_universe(UniverseSpec(path=tmp_path / "u.json", kind=UniverseKind.JSON)) as shop:
            with pytest.raises(UniverseError, match="another kind"):
                await compare(copy, shop)
            with pytest.raises(UniverseError, match="no JSON"):
                await shop.changes(copy.state)


STEPS = [
    "UPDATE orders SET status = 'r{r}' WHERE id = {n}",
    "UPDATE orders SET total = total + 0.0 WHERE id = {n}",
    "UPDATE orders SET id = id + 1000 WHERE id = {n}",
    "UPDATE orders SET note = zeroblob({r} * 700) WHERE id = {n}",
    "UPDATE users SET about = hex(zeroblob({r} * 900)) WHERE id = 'u{n}'",
    "UPDATE users SET about = replace(about, '0', 'b') WHERE id = 'u{n}'",
    "UPDATE users SET about = substr(about, 1, length(about) - 1) || 'z' WHERE id = 'u{n}'",
    "UPDATE users SET id = 'v{n}' WHERE id = 'u{n}'",
    "DELETE FROM orders WHERE id BETWEEN {n} AND {n} + {r}",
    "DELETE FROM users WHERE id = 'u{n}'",
    "DELETE FROM log WHERE at = {n}",
    "DELETE FROM log",
    "INSERT INTO log VALUES ({n}, 'x{r}')",
    "INSERT INTO log SELECT id, user FROM orders LIMIT 200",
    "INSERT INTO orders (user, status) VALUES ('u{n}', 'new')",
    "INSERT OR REPLACE INTO orders VALUES ({n}, 'u', 'replaced', {r}, NULL)",
    "INSERT OR REPLACE INTO users VALUES ('u{n}', 'again', hex(zeroblob({r} * 3000)), NULL)",
    "INSERT OR REPLACE INTO pairs VALUES ({r}, 'p{n}', {n})",
    "UPDATE pairs SET n = n + {r} WHERE b = 'p{n}'",
    "DELETE FROM pairs WHERE b = 'p{n}'",
    "UPDATE orders SET user = user || 'x'",
    "UPDATE texts SET body = substr(body, 1, length(body) - 1) || 'z' WHERE k = '{n}'",
    "INSERT OR REPLACE INTO texts VALUES ('{n}', hex(zeroblob({r} * 1000)))",
    "DELETE FROM texts WHERE k < '{n}'",
    "PRAGMA secure_delete = OFF",
    "DELETE FROM orders WHERE id > {n}",
    "PRAGMA user_version = {r}",
    "COMMIT",
    "ROLLBACK",
    "BEGIN",
    "SAVEPOINT s",
    "RELEASE s",
    "ROLLBACK TO s",
    "CREATE TABLE IF NOT EXISTS t{r} (k TEXT PRIMARY KEY, v)",
    "INSERT OR IGNORE INTO t{r} VALUES ('{n}', {n})",
    "DROP TABLE IF EXISTS t{r}",
    "DROP TABLE IF EXISTS log",
    "CREATE INDEX IF NOT EXISTS i{r} ON users (name, about)",
    "DROP INDEX IF EXISTS i{r}",
    "ALTER TABLE users ADD COLUMN c{r}",
    "VACUUM",
    "REINDEX",
    "PRAGMA incremental_vacuum",
]


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "whole"])
async def test_whatever_is_done_the_changes_are_all_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, shared: bool
) -> None:
    """Made again on a fresh copy they give the same database; told by pages they are those told by reading everything."""
    chance = random.Random(seed)
    if not shared:
        monkeypatch.setattr(shared_pages, "_library", lambda: None)
    more = chance.choice(["", "PRAGMA auto_vacuum = FULL;", "PRAGMA auto_vacuum = INCREMENTAL;"])
    page = f"PRAGMA page_size = {chance.choice([512, 1024, 4096, 65536])};"
    path = tmp_path / "u.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(page + more)
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(page + more + SCHEMA)
        for at in range(chance.choice([0, 3, 60, 400])):
            connection.execute("INSERT INTO orders VALUES (?, ?, 'open', ?, ?)", (at, f"u{at % 7}", at * 1.5, b"\xff"))
            about = "a" * chance.choice([0, 10, 500, 5000])
            connection.execute("INSERT INTO users VALUES (?, ?, ?, ?)", (f"u{at}", f"Name {at}", about, at))
            connection.execute("INSERT INTO log VALUES (?, ?)", (at, "began"))
            connection.execute("INSERT INTO pairs VALUES (?, ?, ?)", (at % 5, f"p{at}", at))
            connection.execute("INSERT INTO texts VALUES (?, ?)", (str(at), about))
        connection.execute("DELETE FROM users WHERE level % 9 = 0")
        connection.commit()
    spec = UniverseSpec(path=path, kind=UniverseKind.SQLITE)
    async with open_universe(spec) as copy, open_universe(spec) as other:
        for db in (copy.state, other.state):
            if chance.random() < 0.5:
                db.isolation_level = None
            if chance.random() < 0.5:
                db.execute("PRAGMA secure_delete = OFF")  # a page that is freed stays as it is
            for _ in range(chance.randrange(12)):
                step = chance.choice(STEPS).format(n=chance.randrange(70), r=chance.randrange(8))
                try:
                    db.execute(step)
                except sqlite3.Error:
                    continue
                if chance.random() < 0.2 and db.in_transaction:
                    db.commit()
        was_in_transaction = copy.state.in_transaction
        changes = await copy.changes()
        assert copy.state.in_transaction == was_in_transaction
        assert copy.state.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        async with open_universe(spec) as fresh:
            apply(StateChanges.from_json(json.loads(json.dumps(changes.as_json()))), fresh.state)
            assert everything(fresh.state) == everything(copy.state)
            assert not await compare(fresh, copy, ignore=["/sqlite_schema/**"])
        found = await compare(copy, other)
        assert bool(found) == (
            everything(copy.state) != everything(other.state) or schema(copy.state) != schema(other.state)
        )
        if copy.state.in_transaction:
            copy.state.rollback()
        copy.state.execute("PRAGMA integrity_check")


def schema(connection: sqlite3.Connection) -> Any:
    """What a database consists of, read in the plainest way."""
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql NOT NULL ORDER BY 1").fetchall()
    return rows, connection.execute("PRAGMA user_version").fetchone()
