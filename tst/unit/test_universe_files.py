"""Directories and universes as files: what changed in them, made again, and what a killed process leaves."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent_env.bundle import UniverseKind, UniverseSpec
from agent_env.errors import UniverseError, UsageError
from agent_env.universe import (
    MISSING,
    ChangeLimits,
    StateChanges,
    apply,
    changes_on_disk,
    compare,
    open_universe,
    open_universe_on_disk,
    sweep_left_copies,
)
from agent_env.universe.threads import in_thread

pytestmark = pytest.mark.usefixtures("temp")


@pytest.fixture
def spec(tmp_path: Path) -> UniverseSpec:
    """A directory with files of several kinds."""
    top = tmp_path / "site"
    (top / "deep/er").mkdir(parents=True)
    (top / "deep/er/a.txt").write_text("a\n")
    (top / "deep/b~c.bin").write_bytes(b"\xff\x00\xfe")
    (top / "run.sh").write_text("#!/bin/sh\n")
    (top / "run.sh").chmod(0o755)
    (top / "link").symlink_to("deep/er/a.txt")
    (top / "empty").mkdir()
    (top / "long.txt").write_text("x" * 1000)
    return UniverseSpec(path=top, kind=UniverseKind.DIRECTORY)


def as_lists(changes: StateChanges) -> list[tuple[str, Any, Any]]:
    """Changes in the shortest form."""
    return [(change.path, change.before, change.after) for change in changes.changes]


def tree(top: Path) -> dict[str, Any]:
    """A directory, read in the plainest way."""
    found: dict[str, Any] = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if path.is_symlink():
            found[name] = os.readlink(path)
        else:
            found[name] = "directory" if path.is_dir() else (path.stat().st_mode & 0o777, path.read_bytes())
    return found


async def test_changes_of_files(spec: UniverseSpec) -> None:
    """New, changed and gone ones, modes, symlinks and directories; texts as text, all else as base64."""
    async with open_universe(spec) as copy:
        assert not await copy.changes()
        top: Path = copy.state
        (top / "deep/er/a.txt").write_text("b\n")
        (top / "deep/b~c.bin").write_bytes(b"\x00\xff")
        (top / "run.sh").chmod(0o644)
        (top / "link").unlink()
        (top / "link").symlink_to("run.sh")
        (top / "empty").rmdir()
        (top / "new/one").mkdir(parents=True)
        (top / "new/one/größe.txt").write_text("ü")
        (top / "long.txt").write_text((top / "long.txt").read_text())  # written to, and the same
        os.mkfifo(top / "pipe")
        changes = await copy.changes()
        assert as_lists(changes) == [
            (
                "/deep/b~0c.bin",
                {"type": "file", "mode": "644", "base64": "/wD+"},
                {"type": "file", "mode": "644", "base64": "AP8="},
            ),
            (
                "/deep/er/a.txt",
                {"type": "file", "mode": "644", "text": "a\n"},
                {"type": "file", "mode": "644", "text": "b\n"},
            ),
            ("/empty", {"type": "directory"}, MISSING),
            ("/link", {"type": "symlink", "target": "deep/er/a.txt"}, {"type": "symlink", "target": "run.sh"}),
            ("/new", MISSING, {"type": "directory"}),
            ("/new/one", MISSING, {"type": "directory"}),
            ("/new/one/größe.txt", MISSING, {"type": "file", "mode": "644", "text": "ü"}),
            ("/pipe", MISSING, {"type": "other"}),
            (
                "/run.sh",
                {"type": "file", "mode": "755", "text": "#!/bin/sh\n"},
                {"type": "file", "mode": "644", "text": "#!/bin/sh\n"},
            ),
        ]
        assert changes.not_kept == ("/pipe",)
        assert not changes.is_whole


async def test_long_files_are_told_by_size_and_hash(spec: UniverseSpec) -> None:
    """Beyond so many bytes a file or in all; such changes cannot be made again, and say so."""
    async with open_universe(spec) as copy:
        (copy.state / "long.txt").write_text("y" * 1000)
        (copy.state / "more.txt").write_text("z" * 90)
        (copy.state / "most.txt").write_text("z" * 90)
        changes = await copy.changes(limits=ChangeLimits(file_bytes=500, total_bytes=100))
        told = {change.path: change.after for change in changes.changes}
        digest = hashlib.sha256(b"y" * 1000).hexdigest()
        assert told["/long.txt"] == {"type": "file", "mode": "644", "size": 1000, "sha256": digest}
        assert "text" in told["/more.txt"]
        assert told["/most.txt"]["size"] == 90
        assert changes.not_kept == ("/long.txt", "/most.txt")
        again = StateChanges.from_json(json.loads(json.dumps(changes.as_json())))
        assert again == changes
    async with open_universe(spec) as fresh:
        with pytest.raises(UniverseError, match="not all of them were kept"):
            apply(again, fresh.state)


@pytest.mark.parametrize("seed", range(25))
async def test_whatever_is_done_the_changes_are_all_there_are(spec: UniverseSpec, seed: int) -> None:
    """Made again on a fresh copy they give the same directory."""
    chance = random.Random(seed)
    names = ["deep/er/a.txt", "deep", "deep/er", "run.sh", "link", "empty", "empty/x", "n", "n/m", "long.txt"]
    async with open_universe(spec) as copy, open_universe(spec) as fresh:
        top: Path = copy.state
        for _ in range(chance.randrange(1, 12)):
            path = top / chance.choice(names)
            act = chance.choice(["write", "remove", "mkdir", "link", "chmod", "move"])
            try:
                if act == "write":
                    path.write_bytes(chance.choice([b"", b"a\n", b"b\n", b"\xff", b"x" * 1000]))
                elif act == "remove" and path.is_dir() and not path.is_symlink():
                    for inner in sorted(path.rglob("*"), reverse=True):
                        inner.rmdir() if inner.is_dir() and not inner.is_symlink() else inner.unlink()
                    path.rmdir()
                elif act == "remove":
                    path.unlink()
                elif act == "mkdir":
                    path.mkdir()
                elif act == "link":
                    path.symlink_to(chance.choice(["deep", "run.sh", "nowhere"]))
                elif act == "chmod":
                    path.chmod(0o755 if path.is_dir() else 0o600)
                else:
                    path.rename(top / chance.choice(names))
            except OSError:
                continue
        changes = await copy.changes()
        assert changes.is_whole
        apply(StateChanges.from_json(json.loads(json.dumps(changes.as_json()))), fresh.state)
        assert tree(fresh.state) == tree(top)
        assert not await compare(copy, fresh)
        assert (await fresh.changes()).changes == changes.changes


async def test_two_copies_are_compared_with_each_other(spec: UniverseSpec) -> None:
    """Files are equal by what is in them; what is ignored is not looked at."""
    async with open_universe(spec) as one, open_universe(spec) as two:
        (one.state / "run.sh").write_text("one")
        (two.state / "run.sh").write_text("two")
        (one.state / "same").write_text("same")
        (two.state / "same").write_text("same")
        (two.state / "deep/er/log").write_text("x")
        assert [change.path for change in (await compare(one, two)).changes] == ["/deep/er/log", "/run.sh"]
        assert [change.path for change in (await compare(one, two, ignore=["/deep/**"])).changes] == ["/run.sh"]


async def test_copies_of_different_directories_are_compared_by_what_is_in_them(
    spec: UniverseSpec, tmp_path: Path
) -> None:
    """Also files that neither copy has touched: a declared end state is a directory of its own."""
    shutil.copytree(spec.path, tmp_path / "end", symlinks=True)
    (tmp_path / "end/deep/er/a.txt").write_text("z\n")  # as long as before
    end = UniverseSpec(path=tmp_path / "end", kind=UniverseKind.DIRECTORY)
    async with open_universe(end) as wanted, open_universe(spec) as left:
        assert [change.path for change in (await compare(wanted, left)).changes] == ["/deep/er/a.txt"]


async def test_a_directory_that_is_changed_under_an_episode_is_said(spec: UniverseSpec) -> None:
    """What was there is not known any more; what the episode has not touched is nothing to be known."""
    async with open_universe(spec) as copy:
        (spec.path / "run.sh").write_text("another")
        assert not await copy.changes()
        (copy.state / "run.sh").write_text("mine")
        with pytest.raises(UniverseError, match="changed since it was copied"):
            await copy.changes()


async def test_changes_that_lead_out_of_the_directory_are_refused(spec: UniverseSpec, tmp_path: Path) -> None:
    """A recorded run comes from somewhere: no path in it reaches another place."""
    entry = {"type": "file", "mode": "644", "text": "x"}
    for path in ("/../out", "/deep/../../out", "/", "", "/link/x", "/deep//x", "/a/./b", "/a~1..~1b"):
        found = StateChanges.from_json({"changes": [{"path": path, "after": entry}]})
        async with open_universe(spec) as copy:
            with pytest.raises(UniverseError, match=r"cannot be (made|changed) again"):
                apply(found, copy.state)
    found = StateChanges.from_json(
        {
            "changes": [
                {"path": "/s", "after": {"type": "symlink", "target": str(tmp_path)}},
                {"path": "/s/x", "after": entry},
            ]
        }
    )
    async with open_universe(spec) as copy:
        with pytest.raises(UniverseError, match="cannot be changed again"):
            apply(found, copy.state)
    assert not (tmp_path / "x").exists()


async def test_changes_of_another_directory_are_refused(spec: UniverseSpec) -> None:
    """Where another file is there now, nothing is made up."""
    async with open_universe(spec) as copy:
        (copy.state / "run.sh").write_text("new")
        changes = await copy.changes()
    async with open_universe(spec) as copy:
        (copy.state / "run.sh").write_text("something else")
        with pytest.raises(UniverseError, match=r"^/run\.sh cannot be changed again"):
            apply(changes, copy.state)


async def test_a_universe_on_disk(spec: UniverseSpec, tmp_path: Path, temp: Path) -> None:
    """A directory is the folder, a file lies in it under its own name, and nothing is an empty folder."""
    (tmp_path / "shop.json").write_text('{"a": 1}')
    for kind, path in [(UniverseKind.DIRECTORY, spec.path), (UniverseKind.JSON, tmp_path / "shop.json")]:
        one = UniverseSpec(path=path, kind=kind)
        async with open_universe_on_disk(one) as folder, open_universe_on_disk(one) as other:
            assert folder.is_relative_to(temp)
            assert folder != other
            assert tree(folder) == (tree(path) if kind is UniverseKind.DIRECTORY else tree_of_file(path))
            (folder / "new").write_text("x")
            assert not (other / "new").exists()
        assert not folder.exists()
    async with open_universe_on_disk(None) as folder:
        assert list(folder.iterdir()) == []
        (folder / "new").write_text("x")
        assert as_lists(await changes_on_disk(folder)) == [
            ("/new", MISSING, {"type": "file", "mode": "644", "text": "x"})
        ]
    with pytest.raises(UsageError, match="no universe on disk"):
        await changes_on_disk(folder)


def tree_of_file(path: Path) -> dict[str, Any]:
    """What a folder with this file is."""
    return {path.name: (path.stat().st_mode & 0o777, path.read_bytes())}


async def test_changes_of_a_json_file_on_disk(tmp_path: Path) -> None:
    """By values, however it was written; a file that is gone or broken is said."""
    (tmp_path / "shop.json").write_text('{"a": {"b": 1.0}, "c": []}')
    async with open_universe_on_disk(UniverseSpec(path=tmp_path / "shop.json", kind=UniverseKind.JSON)) as folder:
        assert not await changes_on_disk(folder)
        (folder / "shop.json").write_text('{"c": [],\n "a": {"b": 1}}')
        assert not await changes_on_disk(folder)
        (folder / "shop.json").write_text('{"c": [7], "a": {"b": NaN}}')
        assert as_lists(await changes_on_disk(folder)) == [("/a/b", 1.0, {"$number": "NaN"}), ("/c/0", MISSING, 7)]
        (folder / "shop.json").write_bytes(b"{\xff")
        with pytest.raises(UniverseError, match="no JSON any more"):
            await changes_on_disk(folder)
        (folder / "shop.json").unlink()
        with pytest.raises(UniverseError, match="cannot be compared"):
            await changes_on_disk(folder)


@pytest.mark.parametrize("wal", [False, True])
async def test_changes_of_a_database_on_disk(tmp_path: Path, wal: bool) -> None:
    """By rows; also what is in a log, of the bundle's own or of whoever has it open, who is not disturbed."""
    writer = sqlite3.connect(tmp_path / "shop.db")
    with closing(writer):
        if wal:
            writer.execute("PRAGMA journal_mode = WAL")
            writer.execute("PRAGMA wal_autocheckpoint = 0")
        writer.execute("CREATE TABLE store (id INTEGER PRIMARY KEY, stock INTEGER)")
        writer.execute("INSERT INTO store VALUES (1, 10)")
        writer.commit()
        async with open_universe_on_disk(UniverseSpec(path=tmp_path / "shop.db", kind=UniverseKind.SQLITE)) as folder:
            assert not await changes_on_disk(folder)
            with closing(sqlite3.connect(folder / "shop.db")) as server:
                assert server.execute("SELECT * FROM store").fetchall() == [(1, 10)]
                server.execute("UPDATE store SET stock = 9")
                server.commit()
                assert as_lists(await changes_on_disk(folder)) == [("/store/1/stock", 10, 9)]
                server.execute("INSERT INTO store VALUES (2, 5)")
                server.commit()
            assert [path for path, _, _ in as_lists(await changes_on_disk(folder))] == ["/store/1/stock", "/store/2"]
            (folder / "shop.db").write_bytes(b"no database")
            (folder / "shop.db-wal").unlink(missing_ok=True)
            with pytest.raises(UniverseError, match="not a database"):
                await changes_on_disk(folder)


HOLD = """
    import asyncio, sys, tempfile
    from pathlib import Path
    from agent_env.bundle import UniverseKind, UniverseSpec
    from agent_env.universe import open_universe
    tempfile.tempdir = sys.argv[2]

    async def main():
        spec = UniverseSpec(path=Path(sys.argv[1]), kind=UniverseKind.DIRECTORY)
        async with open_universe(spec) as one, open_universe(spec):
            print(one.state, flush=True)
            await asyncio.sleep(60)

    asyncio.run(main())
"""


def listed(folder: Path) -> list[Path]:
    """What is in a folder."""
    return sorted(folder.iterdir())


def hold(spec: UniverseSpec, temp: Path) -> subprocess.Popen[str]:
    """A process with two copies open."""
    arguments = [sys.executable, "-c", textwrap.dedent(HOLD), str(spec.path), str(temp)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


async def test_what_a_killed_process_left_is_removed(spec: UniverseSpec, temp: Path) -> None:
    """By the next process that opens a directory; what one that runs has stays, whoever has which process id."""
    alive, killed = hold(spec, temp), hold(spec, temp)
    with alive, killed:
        try:
            killed.send_signal(signal.SIGKILL)
            killed.wait()
            for path in listed(temp):  # the process id was given again
                path.rename(path.with_name(path.name.replace(f"-{killed.pid}-", f"-{alive.pid}-")))
            (temp / "agent-env-universe-1-notours").mkdir()
            (temp / "agent-env-universe-1-0123abcd-link").symlink_to(spec.path)
            assert len(listed(temp)) == 8
            async with open_universe(spec) as copy:
                left = [path.name for path in listed(temp)]
                assert [name for name in left if f"-{killed.pid}-" in name] == []
                assert len([name for name in left if f"-{alive.pid}-" in name]) == 3
                assert copy.state.exists()
                assert sweep_left_copies() == []
                assert copy.state.exists()
        finally:
            alive.kill()
    assert len(sweep_left_copies()) == 2
    assert [path.name for path in listed(temp)] == [
        "agent-env-universe-1-0123abcd-link",
        "agent-env-universe-1-notours",
    ]
    (temp / "agent-env-universe-1-notours").rmdir()
    (temp / "agent-env-universe-1-0123abcd-link").unlink()


async def test_modes_keep_nothing_from_being_removed(spec: UniverseSpec) -> None:
    """A folder that an agent has made unreadable goes with the copy, and is told as what it is."""
    async with open_universe(spec) as copy:
        (copy.state / "shut/inner").mkdir(parents=True)
        (copy.state / "shut/inner/file").write_text("x")
        (copy.state / "shut/inner").chmod(0)
        (copy.state / "shut").chmod(0)
        assert "/shut" in [change.path for change in (await copy.changes()).changes]
    assert not copy.state.exists()


async def test_work_in_a_thread_ends_with_whoever_waits_for_it() -> None:
    """Cancelled, also twice, it is told to stop, and is waited for."""
    for times in (1, 2):
        begun, ended = threading.Event(), threading.Event()

        def work(check: Callable[[], None], begun: threading.Event = begun, ended: threading.Event = ended) -> None:
            begun.set()
            try:
                while True:
                    check()
            finally:
                ended.set()

        task = asyncio.create_task(in_thread(work, what="a test"))
        await asyncio.to_thread(begun.wait, 10)
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()


async def test_comparing_is_cancelled(spec: UniverseSpec) -> None:
    """The thread stops, and the copy is removed after it."""
    async with open_universe(spec) as copy:
        for at in range(300):
            (copy.state / str(at)).write_bytes(os.urandom(20_000))
        task = asyncio.create_task(copy.changes())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
