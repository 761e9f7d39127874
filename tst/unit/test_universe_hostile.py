"""A folder that whoever works in it has prepared against whoever reads it: nothing outside is reached, nothing is waited for."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from agent_env.bundle import StateVerifier, UniverseKind, UniverseSpec
from agent_env.errors import UniverseError
from agent_env.universe import (
    ChangeLimits,
    apply,
    changes_on_disk,
    open_universe,
    open_universe_on_disk,
    sweep_left_copies,
)
from agent_env.universe.diff import Rules
from agent_env.universe.directory_diff import DirectoryState, directory_differences, told_whether_kept
from agent_env.verify.function import StepFailedError
from agent_env.verify.state import LeftState, WantedState, state_score

pytestmark = pytest.mark.usefixtures("temp")


@pytest.fixture
def spec(tmp_path: Path) -> UniverseSpec:
    """A directory with a file."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/a.txt").write_text("a")
    return UniverseSpec(path=tmp_path / "site", kind=UniverseKind.DIRECTORY)


def nest(top: Path, levels: int) -> None:
    """Make directories in directories, deeper than a path can name and than Python calls itself."""
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)


async def test_directories_of_any_depth_are_removed(spec: UniverseSpec, temp: Path) -> None:
    """When their episode ends, and when a process has left them: one such would keep every later process from its work."""
    async with open_universe(spec) as copy:
        nest(copy.state, 4000)
    async with open_universe_on_disk(None) as folder:
        nest(folder, 4000)
    left = temp / "agent-env-universe-1-0123abcd-x"
    left.mkdir()
    nest(left, 4000)
    assert sweep_left_copies() == [left]


@pytest.mark.parametrize("looks", [1, 2, 3, 4, 5])
def test_a_directory_that_becomes_a_symlink_leads_nowhere(tmp_path: Path, looks: int) -> None:
    """At whatever moment: what is outside is neither listed nor read."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/a").write_text("secret")
    (tmp_path / "outside/b").write_text("secret")
    top = tmp_path / "top"
    (top / "d").mkdir(parents=True)
    (top / "d/a").write_text("inside")
    state = DirectoryState(path=top, copied={}, original=top)
    left = looks

    def swap() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            (top / "d").rename(tmp_path / "gone")
            (top / "d").symlink_to(tmp_path / "outside")

    limits = ChangeLimits()
    found = told_whether_kept(directory_differences(None, state, Rules.of(), limits=limits, check=swap), limits)
    assert left <= 0
    assert "secret" not in str(found.as_json())
    assert "/d/b" not in [change.path for change in found.changes]


async def test_a_json_file_that_became_something_else_is_refused(tmp_path: Path) -> None:
    """It is neither followed, nor waited for, nor read when it is far too long."""
    (tmp_path / "outside.json").write_text('{"secret": 1}')
    (tmp_path / "shop.json").write_text("{}")
    async with open_universe_on_disk(UniverseSpec(path=tmp_path / "shop.json", kind=UniverseKind.JSON)) as folder:
        file = folder / "shop.json"
        file.unlink()
        file.symlink_to(tmp_path / "outside.json")
        with pytest.raises(UniverseError, match="cannot be compared"):
            await changes_on_disk(folder)
        file.unlink()
        os.mkfifo(file)
        with pytest.raises(UniverseError, match="not a regular file"):
            await changes_on_disk(folder)
        file.unlink()
        file.touch()
        os.truncate(file, 2**40)
        with pytest.raises(UniverseError, match=r"1,099,511,627,776 bytes"):
            await changes_on_disk(folder)


@pytest.mark.parametrize("is_lent", [False, True])
async def test_a_database_that_became_something_else_is_refused(tmp_path: Path, is_lent: bool) -> None:
    """The database itself, and what SQLite opens beside it."""
    for name in ("shop.db", "outside.db"):
        with closing(sqlite3.connect(tmp_path / name)) as connection:
            connection.execute("CREATE TABLE store (id INTEGER PRIMARY KEY)")
    async with open_universe_on_disk(UniverseSpec(path=tmp_path / "shop.db", kind=UniverseKind.SQLITE)) as folder:
        with closing(sqlite3.connect(folder / "shop.db")) as connection, connection:
            connection.execute("INSERT INTO store VALUES (1)")
        changed = await changes_on_disk(folder, is_lent=is_lent)
        assert [change.path for change in changed.changes] == ["/store/1"]
        for name in ("shop.db-wal", "shop.db-journal", "shop.db"):
            (folder / name).unlink(missing_ok=True)
            os.mkfifo(folder / name)
            with pytest.raises(UniverseError, match=f"{name} is no file any more"):
                await changes_on_disk(folder, is_lent=is_lent)
            (folder / name).unlink()
        (folder / "shop.db").symlink_to(tmp_path / "outside.db")
        with pytest.raises(UniverseError, match=r"shop\.db is no file any more"):
            await changes_on_disk(folder, is_lent=is_lent)


async def test_a_log_that_was_taken_away_is_a_change(tmp_path: Path) -> None:
    """What is committed in it belongs to the database."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("CREATE TABLE store (id INTEGER PRIMARY KEY)")
        writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with writer:
            writer.execute("INSERT INTO store VALUES (1)")
        async with open_universe_on_disk(UniverseSpec(path=tmp_path / "shop.db", kind=UniverseKind.SQLITE)) as folder:
            (folder / "shop.db-wal").unlink()
            assert [change.path for change in (await changes_on_disk(folder)).changes] == ["/store/1"]


async def test_a_file_that_is_too_long_to_be_read_is_told_by_its_size(spec: UniverseSpec) -> None:
    """A sparse one is made in no time and read in hours; and one of the same size is not taken for the same."""
    async with open_universe_on_disk(spec) as folder:
        (folder / "big").touch()
        os.truncate(folder / "big", 2**42)
        found = await changes_on_disk(folder)
        assert [change.after for change in found.changes] == [{"type": "file", "mode": "644", "size": 2**42}]
        assert found.not_kept == ("/big",)
        left = LeftState(spec=spec, state=folder, changes=partial(changes_on_disk, folder))
        verifier = StateVerifier(env="work", wanted="gold")
        with pytest.raises(StepFailedError, match="/big has the size that is wanted"):
            await state_score("state", verifier, WantedState(spec=spec, changes=found), left, timeout_s=5)
        assert (await state_score("state", verifier, WantedState(spec=spec), left, timeout_s=5)).value == 0.0


async def test_names_that_are_no_utf_8_are_not_taken_for_others(spec: UniverseSpec) -> None:
    """Nothing is made again under another name, and a name is not taken for the one that reads the same."""
    async with open_universe(spec) as odd, open_universe(spec) as plain:
        (odd.state / os.fsdecode(b"x\xff")).write_text("a")
        (odd.state / "link").symlink_to(os.fsdecode(b"y\xff"))
        (plain.state / r"x\xff").write_text("a")
        found = await odd.changes()
        assert [change.path for change in found.changes] == ["/link", r"/x\xff"]
        assert found.not_kept == ("/link", r"/x\xff")
        with pytest.raises(UniverseError, match="not all of them were kept"):
            apply(found, plain.state)
        wanted = WantedState(spec=spec, changes=found)
        left = LeftState(spec=spec, state=plain.state, changes=plain.changes)
        verifier = StateVerifier(env="work", wanted="gold")
        assert (await state_score("state", verifier, wanted, left, timeout_s=5)).metrics["differences"] == 2
        left = LeftState(spec=spec, state=odd.state, changes=odd.changes)
        assert (await state_score("state", verifier, wanted, left, timeout_s=5)).value == 1.0
