"""Private copies of databases: cheap, private, and never in the way of a thread that is still inside of one."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, closing
from pathlib import Path

import pytest

from agent_env.bundle import UniverseKind, UniverseSpec
from agent_env.errors import UniverseError
from agent_env.universe import open_universe, shared_pages

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"


@pytest.fixture(params=["shared", "whole"])
def spec(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> UniverseSpec:
    """A database of 3 MB, copied by its pages, or as a whole where that cannot be done."""
    if request.param == "whole":
        monkeypatch.setattr(shared_pages, "_library", lambda: None)
    else:
        assert shared_pages._library() is not None, "this machine can share pages"
    with closing(sqlite3.connect(tmp_path / "u.db")) as connection:
        connection.execute("CREATE TABLE store (id INTEGER PRIMARY KEY, stock INTEGER, pad TEXT)")
        connection.executemany("INSERT INTO store VALUES (?, 10, ?)", [(at, "x" * 300) for at in range(10_000)])
        connection.commit()
    return UniverseSpec(path=tmp_path / "u.db", kind=UniverseKind.SQLITE)


def mappings() -> int:
    """How many copies' memory this process has."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("agent-env-universe")


async def test_many_copies_are_private_and_are_given_back(spec: UniverseSpec) -> None:
    """Each sees its own writes only; afterwards no memory of theirs is left."""
    async with open_universe(spec):
        before = mappings()
    async with AsyncExitStack() as stack:
        copies = [await stack.enter_async_context(open_universe(spec)) for _ in range(50)]
        for at, copy in enumerate(copies):
            copy.state.execute("UPDATE store SET stock = ? WHERE id = ?", (at, at))
            copy.state.commit()
        for at, copy in enumerate(copies):
            assert copy.state.execute("SELECT count(*) FROM store WHERE stock != 10").fetchone() == (int(at != 10),)
            assert copy.state.execute("SELECT stock FROM store WHERE id = ?", (at,)).fetchone() == (at,)
    assert mappings() <= before


async def test_a_copy_grows_shrinks_and_is_rolled_back(spec: UniverseSpec) -> None:
    """Far beyond the image, to less than it, by VACUUM, and not at all after a rollback; whole at any time."""
    async with open_universe(spec) as copy, open_universe(spec) as other:
        db = copy.state

        def is_whole() -> bool:
            return db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]

        db.executemany("INSERT INTO store VALUES (?, 0, ?)", [(20_000 + at, "y" * 5000) for at in range(5_000)])
        db.commit()
        assert is_whole()
        db.execute("DELETE FROM store WHERE id > 100")
        db.rollback()
        assert db.execute("SELECT count(*) FROM store").fetchone() == (15_000,)
        db.execute("DELETE FROM store WHERE id > 100")
        db.commit()
        db.execute("VACUUM")
        assert is_whole()
        assert db.execute("PRAGMA page_count").fetchone()[0] < 50
        db.execute("INSERT INTO store SELECT id + 1000, 1, hex(zeroblob(20000)) FROM store")
        db.commit()
        assert is_whole()
        db.execute("PRAGMA mmap_size = 1000000000")
        db.execute("UPDATE store SET stock = stock + 1")
        db.commit()
        assert is_whole()
        assert other.state.execute("SELECT count(*), sum(stock) FROM store").fetchone() == (10_000, 100_000)


async def test_a_copy_is_full_at_a_gibibyte(spec: UniverseSpec) -> None:
    """As SQLite's own databases in memory are: an error of the tool, and the database is as it was."""
    async with open_universe(spec) as copy:
        copy.state.execute("CREATE TABLE big (content)")
        copy.state.execute("INSERT INTO big VALUES (zeroblob(500000000))")
        with pytest.raises(sqlite3.Error, match=r"full|memory"):
            copy.state.execute("INSERT INTO big VALUES (zeroblob(600000000))")
        copy.state.rollback()
        assert copy.state.execute("SELECT count(*) FROM store").fetchone() == (10_000,)


async def test_an_episode_ends_while_a_thread_is_inside_of_a_query(spec: UniverseSpec) -> None:
    """The query is interrupted, the thread goes on with an error, and the process lives."""
    for sql in (ENDLESS, f"INSERT INTO store (stock) {ENDLESS}"):
        raised: list[str] = []
        async with open_universe(spec) as copy:
            started = threading.Event()
            copy.state.create_function("begun", 0, lambda started=started: started.set() or 1)

            def query(db: sqlite3.Connection = copy.state, sql: str = sql, raised: list[str] = raised) -> None:
                try:
                    db.execute(sql.replace("SELECT 1 UNION", "SELECT begun() UNION"))
                except sqlite3.Error as exc:
                    raised.append(str(exc))

            thread = threading.Thread(target=query)
            thread.start()
            await asyncio.to_thread(started.wait, 10)
        await asyncio.to_thread(thread.join, 10)
        assert raised == ["interrupted"]
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            copy.state.execute("SELECT 1")


async def test_a_query_that_another_thread_is_inside_of_is_interrupted_for_the_state_to_be_told(
    spec: UniverseSpec,
) -> None:
    """A tool that was stopped between two queries has begun the next one: it ends with an error, and nothing waits for ever."""
    raised: list[str] = []
    async with open_universe(spec) as copy:
        copy.state.execute("UPDATE store SET stock = 17 WHERE id = 3")
        copy.state.commit()
        begun = threading.Event()
        copy.state.create_function("begun", 0, lambda: begun.set() or 1)

        def query() -> None:
            try:
                copy.state.execute(ENDLESS.replace("SELECT 1 UNION", "SELECT begun() UNION"))
            except sqlite3.Error as exc:
                raised.append(str(exc))

        thread = threading.Thread(target=query)
        thread.start()
        await asyncio.to_thread(begun.wait, 10)
        changes = await copy.changes()
        await asyncio.to_thread(thread.join, 10)
    assert raised == ["interrupted"]
    assert [change.path for change in changes.changes] == ["/store/3/stock"]


async def test_an_episode_ends_while_a_thread_makes_one_call_after_the_other(spec: UniverseSpec) -> None:
    """Whatever it is about to do is refused; no call meets a database that is gone."""
    for _ in range(20):
        ended: list[str] = []
        async with open_universe(spec) as copy:
            begun = threading.Event()

            def work(
                db: sqlite3.Connection = copy.state, begun: threading.Event = begun, ended: list[str] = ended
            ) -> None:
                try:
                    while True:
                        db.execute("UPDATE store SET stock = stock + 1 WHERE id % 1000 = 3")
                        db.commit()
                        db.executemany("INSERT INTO store (stock) VALUES (?)", [(1,), (2,)])
                        db.executescript("DELETE FROM store WHERE id > 10000; SELECT 1;")
                        for _ in db.execute("SELECT * FROM store LIMIT 50"):
                            pass
                        db.cursor().execute("SELECT count(*) FROM store").fetchall()
                        with db:
                            db.execute("DELETE FROM store WHERE id = 10001 RETURNING id").fetchone()
                        begun.set()
                except sqlite3.Error as exc:
                    ended.append(str(exc))

            thread = threading.Thread(target=work)
            thread.start()
            await asyncio.to_thread(begun.wait, 10)
        await asyncio.to_thread(thread.join, 10)
        assert ended[0] in ("interrupted", "Cannot operate on a closed database.")


async def test_what_an_env_leaves_open_outlives_the_copy(spec: UniverseSpec) -> None:
    """A cursor half read, a blob and a closed connection: SQLite may look at the memory until they are gone."""
    async with open_universe(spec) as copy:
        before = mappings()
    async with open_universe(spec) as copy:
        cursor = copy.state.execute("SELECT * FROM store")
        cursor.fetchone()
        blob = copy.state.blobopen("store", "pad", 1)
        other = copy.state.cursor()
        other.execute("SELECT pad FROM store ORDER BY stock, pad")
    with pytest.raises(sqlite3.ProgrammingError):
        cursor.fetchone()
    del cursor, other, blob
    async with open_universe(spec) as copy:
        copy.state.close()
    async with open_universe(spec) as copy:
        with closing(sqlite3.connect(":memory:")) as another:
            another.execute("CREATE TABLE t (n)")
            copy.state.deserialize(another.serialize())
        copy.state.execute("INSERT INTO t VALUES (1)")
        changes = await copy.changes()
        assert {change.path for change in changes.changes} >= {"/store/9", "/sqlite_schema/store", "/sqlite_schema/t"}
        assert changes.left_out == 3  # of 10,000 rows, two tables and one row
    async with open_universe(spec):
        pass
    assert mappings() <= before


async def test_a_backup_that_is_under_way_ends(spec: UniverseSpec) -> None:
    """An env's own thread that copies the database is not cut off in SQLite."""
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as target:
        raised: list[BaseException] = []
        async with open_universe(spec) as copy:
            begun = threading.Event()

            def back_up(db: sqlite3.Connection = copy.state) -> None:
                try:
                    db.backup(target, pages=1, progress=lambda *_: begun.set())
                except sqlite3.Error as exc:
                    raised.append(exc)

            thread = threading.Thread(target=back_up)
            thread.start()
            await asyncio.to_thread(begun.wait, 10)
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive()


async def test_copies_may_be_made_in_many_threads_at_once(spec: UniverseSpec) -> None:
    """Connections that others open at the same time are not taken for ours."""
    stop = threading.Event()

    def others() -> None:
        while not stop.is_set():
            sqlite3.connect(":memory:").close()

    def copies() -> None:
        async def make() -> None:
            for _ in range(20):
                async with open_universe(spec) as copy:
                    copy.state.execute("DELETE FROM store WHERE id > 5")
                    assert copy.state.execute("SELECT count(*) FROM store").fetchone() == (6,)

        asyncio.run(make())

    noise = threading.Thread(target=others)
    noise.start()
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(asyncio.to_thread(copies))
    finally:
        stop.set()
        noise.join()


async def test_a_copy_that_is_cancelled_while_it_is_made_leaves_nothing(spec: UniverseSpec) -> None:
    """Cancelled once or twice at any moment."""
    async with open_universe(spec):
        before = mappings()

    async def copies() -> None:
        async with open_universe(spec) as copy:
            copy.state.execute("UPDATE store SET stock = 1")
            await asyncio.sleep(60)

    for at in range(20):
        task = asyncio.create_task(copies())
        for _ in range(at % 5):
            await asyncio.sleep(0)
        for _ in range(1 + at % 2):
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([task])
    async with open_universe(spec):
        pass
    assert mappings() <= before


@pytest.mark.parametrize("how", ["return", "exit", "fork", "threads", "ended"])
def test_a_process_may_end_in_any_state(tmp_path: Path, how: str) -> None:
    """With copies that are open, in a child that was forked, and with a thread inside of a query: no crash, no message."""
    with closing(sqlite3.connect(tmp_path / "u.db")) as connection:
        connection.execute("CREATE TABLE store (stock INTEGER)")
    code = f"""
        import asyncio, os, sqlite3, sys, threading, time
        from pathlib import Path
        from agent_env.bundle import UniverseKind, UniverseSpec
        from agent_env.universe import open_universe
        from agent_env.universe.database import read_database

        async def play():
            async with open_universe(UniverseSpec(path=Path({str(tmp_path / "u.db")!r}), kind=UniverseKind.SQLITE)) as copy:
                copy.state.execute("INSERT INTO store VALUES (1)")
                assert await copy.changes()

        how = {how!r}
        if how != "fork":  # which is not done with threads
            asyncio.run(play())

        image = read_database(Path({str(tmp_path / "u.db")!r}))
        sys.kept = image  # is there longer than the modules that it needs
        copies = [image.private() for _ in range(3)]
        databases = [copy.connection for copy in copies]
        databases[0].execute("INSERT INTO store VALUES (1)")
        cursor = databases[1].execute("SELECT a.name FROM sqlite_master a, sqlite_master b")
        if how == "exit":
            sys.exit(0)
        if how == "fork":
            child = os.fork()
            if child == 0:
                assert databases[0].execute("SELECT count(*) FROM store").fetchone() == (1,)
                image.private().connection.execute("INSERT INTO store VALUES (2)")
                sys.exit(0)
            assert os.waitpid(child, 0)[1] == 0
        if how == "threads":
            def query():
                try:
                    databases[2].execute({ENDLESS!r})
                except sqlite3.Error:
                    pass
            threading.Thread(target=query, daemon=True).start()
            while not databases[2].calls:
                time.sleep(0.001)
        if how == "ended":
            for copy in copies:
                copy.connection.end()
                copy.release()
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=50)
    assert (ended.returncode, ended.stderr) == (0, "")


async def test_where_memory_cannot_be_mapped_a_copy_is_made_as_a_whole(tmp_path: Path) -> None:
    """A limit on addresses, as some batch systems set: the copies are as private, and take what they take."""
    with closing(sqlite3.connect(tmp_path / "u.db")) as connection:
        connection.execute("CREATE TABLE store (stock INTEGER)")
    code = f"""
        import asyncio, resource
        from pathlib import Path
        from agent_env.bundle import UniverseKind, UniverseSpec
        from agent_env.universe import open_universe
        spec = UniverseSpec(path=Path({str(tmp_path / "u.db")!r}), kind=UniverseKind.SQLITE)

        async def main():
            async with open_universe(spec) as early:
                pages = int(Path("/proc/self/statm").read_text().split()[0])
                limit = pages * resource.getpagesize() + 300 * 2**20  # room for Python, and for no other mapping
                resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
                async with open_universe(spec) as one, open_universe(spec) as two:
                    one.state.execute("INSERT INTO store VALUES (1)")
                    one.state.commit()
                    assert (await one.changes()).changes[0].path == "/store/1"
                    assert not await two.changes()
                    assert not await early.changes()

        asyncio.run(main())
    """
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=50
    )
    assert (ended.returncode, ended.stderr) == (0, "")


async def test_a_connection_is_a_connection(spec: UniverseSpec) -> None:
    """What an env does with one of the standard library it does with this one."""
    async with open_universe(spec) as copy:
        db = copy.state
        assert isinstance(db, sqlite3.Connection)
        db.row_factory = sqlite3.Row
        assert db.execute("SELECT id AS one FROM store WHERE id = :id", {"id": 3}).fetchone()["one"] == 3
        with db:
            db.executemany("UPDATE store SET stock = ? WHERE id = ?", [(1, 1), (2, 2)])

        def fail() -> None:
            with db:
                db.execute("DELETE FROM store")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert db.execute("SELECT sum(stock) FROM store").fetchone()[0] == 100_000 - 17
        db.create_function("twice", 1, lambda value: value * 2)
        assert db.execute("SELECT twice(4)").fetchone()[0] == 8
        assert len("".join(db.iterdump())) > 3_000_000
        assert len(db.serialize()) > 3_000_000
        cursor = db.cursor()
        assert [row["id"] for row in cursor.execute("SELECT id FROM store ORDER BY id LIMIT 3")] == [0, 1, 2]
        assert cursor.connection is db


def test_closed_is_closed(spec: UniverseSpec) -> None:
    """An env that closes its database itself; comparing it says so."""

    async def play() -> None:
        async with open_universe(spec) as copy:
            copy.state.close()
            with pytest.raises(UniverseError, match="closed database"):
                await copy.changes()

    asyncio.run(play())


async def test_a_thread_that_stays_inside_of_a_database_is_said(
    spec: UniverseSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state cannot be told while a tool still changes it."""
    monkeypatch.setattr("agent_env.universe.private_copy._IN_USE_S", 0.05)
    async with open_universe(spec) as copy:
        begun, go_on = threading.Event(), threading.Event()
        copy.state.create_function("wait", 0, lambda: begun.set() or go_on.wait(20))
        thread = threading.Thread(target=copy.state.execute, args=("SELECT wait()",))
        thread.start()
        await asyncio.to_thread(begun.wait, 10)
        with pytest.raises(UniverseError, match="still inside"):
            await copy.changes()
        monkeypatch.setattr("agent_env.universe.private_copy._IN_USE_S", 1000.0)
        with pytest.raises(UniverseError, match="still inside"):
            await copy.changes()  # nobody waits for it a second time
        go_on.set()
        await asyncio.to_thread(thread.join, 10)
        assert not await copy.changes()


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    """Whatever a test does, the descriptors of images are those of the images that are kept."""
    yield
    gc.collect()
    open_now = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.lexists(f"/proc/self/fd/{fd}")
    ]
    assert sum("agent-env-universe" in name for name in open_now) < 200
