"""Private copies of universes: nobody sees another's writes, and the bundle stays as it is."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, closing, suppress
from pathlib import Path

import pytest

from agent_env.bundle import UniverseKind, UniverseSpec
from agent_env.errors import UniverseError
from agent_env.universe import StateChanges, compare, open_universe
from agent_env.universe.containers import Untouched


def database(path: Path, *, wal: bool = False) -> UniverseSpec:
    """A database with one row, `stock` = 10."""
    with closing(sqlite3.connect(path)) as connection:
        if wal:
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE store (stock INTEGER)")
        connection.execute("INSERT INTO store VALUES (10)")
        connection.commit()
    return UniverseSpec(path=path, kind=UniverseKind.SQLITE)


async def test_without_a_universe_the_state_is_an_empty_dict() -> None:
    """Each copy is one of its own."""
    async with open_universe(None) as one, open_universe(None) as two:
        one.state["x"] = 1
        assert two.state == {}


async def test_json_copies_are_private_to_the_bottom(tmp_path: Path) -> None:
    """Writes deep in one copy are not in the other, nor in one made later."""
    path = tmp_path / "u.json"
    path.write_text('{"orders": [{"id": 1, "note": null, "price": 1.5, "open": true}]}')
    spec = UniverseSpec(path=path, kind=UniverseKind.JSON)
    async with open_universe(spec) as one, open_universe(spec) as two:
        one.state["orders"][0]["id"] = 2
        one.state["orders"].append("x")
        assert two.state == {"orders": [{"id": 1, "note": None, "price": 1.5, "open": True}]}
    async with open_universe(spec) as three:
        assert three.state == two.state


async def test_database_copies_are_private(tmp_path: Path) -> None:
    """Writes in one copy, committed or not, are in no other copy and not in the file."""
    spec = database(tmp_path / "u.db")
    before = spec.path.read_bytes()
    async with open_universe(spec) as first, open_universe(spec) as second:
        one, two = first.state, second.state
        one.execute("UPDATE store SET stock = 1")
        one.commit()
        two.execute("UPDATE store SET stock = 2")
        assert one.execute("SELECT stock FROM store").fetchone() == (1,)
        async with open_universe(spec) as three:
            assert three.state.execute("SELECT stock FROM store").fetchone() == (10,)
    assert spec.path.read_bytes() == before
    with pytest.raises(sqlite3.ProgrammingError):
        one.execute("SELECT 1")


async def test_database_copies_may_grow_and_be_used_in_threads(tmp_path: Path) -> None:
    """A copy takes far more than it began with, also from a worker thread."""
    async with open_universe(database(tmp_path / "u.db")) as copy:
        one = copy.state
        rows = [(number,) for number in range(50_000)]
        await asyncio.to_thread(one.executemany, "INSERT INTO store VALUES (?)", rows)
        assert one.execute("SELECT count(*) FROM store").fetchone() == (50_001,)


@pytest.mark.parametrize("read_only", [False, True])
async def test_a_database_in_wal_mode_is_read(tmp_path: Path, read_only: bool) -> None:
    """Also what is still in its log, and without writing beside it."""
    folder = tmp_path / "u"
    folder.mkdir()
    spec = database(folder / "u.db", wal=True)
    with closing(sqlite3.connect(spec.path)) as writer:
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        writer.execute("UPDATE store SET stock = 11")
        writer.commit()
        here = sorted(folder.iterdir())
        assert folder / "u.db-wal" in here
        if read_only:
            folder.chmod(0o500)
        try:
            async with open_universe(spec) as one:
                one.state.execute("UPDATE store SET stock = stock + 1")
                assert one.state.execute("SELECT stock FROM store").fetchone() == (12,)
            assert sorted(folder.iterdir()) == here
        finally:
            folder.chmod(0o700)


async def test_a_wal_database_without_a_log_is_read(tmp_path: Path) -> None:
    """The header says WAL, and no log is there: the usual state of a file that was closed."""
    async with open_universe(database(tmp_path / "u.db", wal=True)) as one:
        one.state.execute("INSERT INTO store VALUES (1)")
        one.state.commit()
        assert one.state.execute("SELECT count(*) FROM store").fetchone() == (2,)


async def test_an_empty_file_is_an_empty_database(tmp_path: Path) -> None:
    """As SQLite itself takes it."""
    (tmp_path / "u.db").touch()
    async with open_universe(UniverseSpec(path=tmp_path / "u.db", kind=UniverseKind.SQLITE)) as one:
        assert one.state.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)


async def test_directory_copies_are_private_and_removed(tmp_path: Path) -> None:
    """Files, modes and inner symlinks are copied; what one copy does is nowhere else; nothing is left behind."""
    top = tmp_path / "u"
    (top / "deep/er").mkdir(parents=True)
    (top / "deep/er/a.txt").write_text("a")
    (top / "run.sh").write_text("#!/bin/sh\n")
    (top / "run.sh").chmod(0o555)
    (top / "link").symlink_to("deep/er/a.txt")
    spec = UniverseSpec(path=top, kind=UniverseKind.DIRECTORY)
    async with open_universe(spec) as first, open_universe(spec) as second:
        one, two = first.state, second.state
        (one / "link").write_text("changed")
        (one / "run.sh").unlink()
        assert (one / "deep/er/a.txt").read_text() == "changed"
        assert (two / "deep/er/a.txt").read_text() == (top / "deep/er/a.txt").read_text() == "a"
        assert os.access(two / "run.sh", os.X_OK)
        (one / "locked").mkdir()
        (one / "locked/file").write_text("x")
        (one / "locked").chmod(0o500)
    assert not one.exists()
    assert not one.parent.exists()


async def test_a_copy_that_is_cancelled_while_it_is_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled once or twice at any moment of the copying: the thread has stopped writing before its folder is removed."""
    source, temp = tmp_path / "files", tmp_path / "temp"
    source.mkdir()
    temp.mkdir()
    for at in range(200):
        (source / str(at)).write_bytes(b"x" * 20_000)
    monkeypatch.setattr(tempfile, "tempdir", str(temp))

    async def copies() -> None:
        async with open_universe(UniverseSpec(path=source, kind=UniverseKind.DIRECTORY)):
            await asyncio.sleep(60)

    for at in range(30):
        task = asyncio.create_task(copies())
        await asyncio.sleep(at % 10 / 2000)
        for _ in range(1 + at % 2):
            task.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([task])
    async with asyncio.timeout(5):
        while list(temp.iterdir()):  # noqa: ASYNC110 - a copy whose removal was cancelled too is removed by its thread
            await asyncio.sleep(0.01)


async def test_a_cancelled_episode_leaves_no_copy_behind(tmp_path: Path) -> None:
    """The copy of a directory goes when the task that has it is cancelled."""
    (tmp_path / "u").mkdir()
    opened: list[Path] = []
    is_open = asyncio.Event()

    async def hold() -> None:
        async with open_universe(UniverseSpec(path=tmp_path / "u", kind=UniverseKind.DIRECTORY)) as copy:
            opened.append(copy.state)
            is_open.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(hold())
    await is_open.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not opened[0].parent.exists()


async def test_what_cannot_be_copied_says_so(tmp_path: Path) -> None:
    """A missing file, broken JSON, no database, and a symlink that leads out are errors with the path in them."""
    (tmp_path / "u.json").write_text("{")
    (tmp_path / "large.json").write_text('{"n": [1e999]}')
    (tmp_path / "u.db").write_text("no database")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/out").symlink_to(tmp_path)
    for name, kind in [
        ("none.json", UniverseKind.JSON),
        ("u.json", UniverseKind.JSON),
        ("large.json", UniverseKind.JSON),
        ("u.db", UniverseKind.SQLITE),
        ("d", UniverseKind.DIRECTORY),
    ]:
        with pytest.raises(UniverseError, match=name):
            async with open_universe(UniverseSpec(path=tmp_path / name, kind=kind)):
                pass


async def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    """What was read is kept for one version of the file only."""
    path = tmp_path / "u.json"
    spec = UniverseSpec(path=path, kind=UniverseKind.JSON)
    for number in range(3):
        path.write_text(f'{{"n": {number}}}')
        os.utime(path, ns=(number, number))
        async with open_universe(spec) as copy:
            assert copy.state == {"n": number}


async def test_many_copies_at_once_read_the_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred episodes that begin together share one reading."""
    path = tmp_path / "u.json"
    path.write_text('{"a": []}')
    reads: list[Path] = []
    read_text = Path.read_text

    def counted(self: Path, *args: str, **kwargs: str) -> str:
        reads.append(self)
        time.sleep(0.02)
        return read_text(self, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", counted)
    async with AsyncExitStack() as stack:

        async def open_one() -> object:
            return await stack.enter_async_context(open_universe(UniverseSpec(path=path, kind=UniverseKind.JSON)))

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(open_one()) for _ in range(100)]
        assert len({id(task.result()) for task in tasks}) == 100
    assert reads.count(path) == 1


async def test_changes_of_a_json_universe(tmp_path: Path) -> None:
    """What the env holds at the end against the file, also where it has put another value in the place of its state."""
    path = tmp_path / "u.json"
    path.write_text('{"orders": {"#W1": {"status": "open", "items": [1]}}, "n": 1}')
    async with open_universe(UniverseSpec(path=path, kind=UniverseKind.JSON)) as copy:
        assert await copy.changes() == StateChanges()
        copy.state["orders"]["#W1"]["items"].append(2)
        copy.state["n"] = 1.0
        changes = await copy.changes()
        assert [change.as_json() for change in changes.changes] == [{"path": "/orders/#W1/items/1", "after": 2}]
        assert [change.path for change in (await copy.changes({"orders": {}})).changes] == ["/n", "/orders/#W1"]
        assert (await copy.changes(None)).changes[0].path == ""
    async with open_universe(None) as copy:
        copy.state["x"] = (1, 2)
        assert [change.as_json() for change in (await copy.changes()).changes] == [{"path": "/x", "after": [1, 2]}]


class Hostile:
    """An object that raises whatever is asked of it."""

    @property
    def __class__(self) -> type:
        raise ZeroDivisionError("no\nclass")


class Mute(Exception):
    """An exception that cannot even be asked what it says."""

    def __str__(self) -> str:
        raise self


class HostileAndMute:
    """As `Hostile`, with such an exception."""

    @property
    def __class__(self) -> type:
        raise Mute


@pytest.mark.parametrize("make", [Hostile, HostileAndMute, set, threading.Lock, lambda: [Path], lambda: {Hostile(): 1}])
async def test_what_cannot_be_compared_is_an_error_of_one_line(tmp_path: Path, make: Callable[[], object]) -> None:
    """Whatever an env has put into its state, and whatever that raises."""
    path = tmp_path / "u.json"
    path.write_text('{"x": [1]}')
    async with open_universe(UniverseSpec(path=path, kind=UniverseKind.JSON)) as copy:
        copy.state["x"].append(make())
        with pytest.raises(UniverseError, match=r"^the state cannot be compared: .+") as raised:
            await copy.changes()
        assert "\n" not in str(raised.value)


async def test_two_copies_of_a_large_universe_are_compared_by_what_they_touched(tmp_path: Path) -> None:
    """As the state verifier does: what gold calls leave against what the agent left."""
    path = tmp_path / "u.json"
    path.write_text(json.dumps({"t": {str(at): {"rows": [at], "pad": "x" * 100} for at in range(1000)}}))
    spec = UniverseSpec(path=path, kind=UniverseKind.JSON)
    async with open_universe(spec) as wanted, open_universe(spec) as left:
        assert not await compare(wanted, left)
        wanted.state["t"]["5"]["rows"] += [1, 2]
        left.state["t"]["5"]["rows"] += [2, 1.0]
        left.state["t"]["6"]["at"] = "now"
        assert not await compare(wanted, left, ignore=["/t/*/at"], unordered=["/t/*/rows"])
        found = await compare(wanted, left, ignore=["/t/*/at"])
        assert [str(change) for change in found.changes] == ["/t/5/rows/1: 1 is now 2", "/t/5/rows/2: 2 is now 1.0"]
        untouched = sum(isinstance(value, Untouched) for value in dict.values(left.state["t"]))
        assert untouched == 998


async def test_a_state_that_a_thread_still_writes_to_is_compared_or_said(tmp_path: Path) -> None:
    """A tool that was stopped for its time may go on; nothing but an error of ours comes of it."""
    path = tmp_path / "u.json"
    path.write_text(json.dumps({"t": {str(at): {"rows": [at], "pad": "x" * 100} for at in range(1000)}}))
    async with open_universe(UniverseSpec(path=path, kind=UniverseKind.JSON)) as copy:
        stop = threading.Event()

        def write() -> None:
            at = 0
            while not stop.is_set():
                at += 1
                copy.state["t"][f"new {at % 500}"] = {"n": at}
                copy.state["t"].pop(f"new {(at * 7) % 500}", None)
                copy.state["t"][str(at % 1000)]["rows"][:] = [at] * (at % 3)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            for _ in range(20):
                with suppress(UniverseError):
                    await copy.changes()
        finally:
            stop.set()
            thread.join()
        assert (await copy.changes()).changes
