"""What stands in a runs folder may be anything: each case is one clear line, never a traceback from SQLite."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from agent_env.episode.sink import Event, EventKind, RunHeader
from agent_env.errors import RunIndexError
from agent_env.runs import RunIndex
from agent_env.runs._schema import FILE_NAME, busy_retried, immediate, saying

HEADER = RunHeader(task_id="t", bundle_name="b", bundle_version="1", params={}, tags=())


def _filled(folder: Path) -> str:
    with RunIndex.open(folder) as index:
        sink = index.run("g")
        sink.opened(HEADER)
        sink.event(Event(EventKind.MESSAGE, 0.0, "prompt", 0, {"message": {"content": "hello"}}))
    return sink.run_id


def _refused(folder: Path) -> list[str]:
    messages: list[str] = []
    for read_only in (False, True):
        with pytest.raises(RunIndexError) as caught:
            RunIndex.open(folder, read_only=read_only)
        messages.append(str(caught.value))
    assert all("\n" not in message and str(folder) in message for message in messages)
    return messages


def test_a_folder_without_an_index_cannot_be_read(tmp_path: Path) -> None:
    """Reading makes nothing; it says that there is no index."""
    with pytest.raises(RunIndexError, match="no run index here"):
        RunIndex.open(tmp_path / "none", read_only=True)
    assert not (tmp_path / "none").exists()


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    """A text file of the index's name is refused, and stays as it was."""
    (tmp_path / FILE_NAME).write_text("notes " * 100)
    assert all("not an SQLite file" in message for message in _refused(tmp_path))
    assert (tmp_path / FILE_NAME).read_text() == "notes " * 100


def test_a_database_of_someone_else_is_left_alone(tmp_path: Path) -> None:
    """A foreign SQLite file is refused, and gets no table of ours."""
    conn = sqlite3.connect(tmp_path / FILE_NAME)
    conn.execute("CREATE TABLE theirs (x)")
    conn.commit()
    assert all("no run index" in message for message in _refused(tmp_path))
    assert [row[0] for row in conn.execute("SELECT name FROM sqlite_schema")] == ["theirs"]
    conn.close()


def test_an_index_of_a_newer_version_asks_for_an_upgrade(tmp_path: Path) -> None:
    """A schema from the future is neither read nor changed."""
    _filled(tmp_path)
    conn = sqlite3.connect(tmp_path / FILE_NAME)
    conn.execute("PRAGMA user_version=99")
    conn.close()
    assert all("newer AgentEnv" in message and "upgrade" in message for message in _refused(tmp_path))


def test_a_damaged_index_says_so(tmp_path: Path) -> None:
    """Pages overwritten in the middle of the file come out as one clear line."""
    _filled(tmp_path)
    file = tmp_path / FILE_NAME
    body = bytearray(file.read_bytes())
    body[4096:] = b"\xff" * (len(body) - 4096)
    file.write_bytes(body)
    with (
        pytest.raises(RunIndexError, match="the run index is damaged"),
        RunIndex.open(tmp_path, read_only=True) as index,
    ):
        index.groups()


def test_a_lock_held_for_longer_than_sqlite_waits_is_waited_for(tmp_path: Path) -> None:
    """A write that meets a lock is tried again until the lock is gone; another error is raised at once."""
    _filled(tmp_path)
    holder, waiter = (sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None, timeout=0) for _ in range(2))
    holder.execute("BEGIN IMMEDIATE")
    tries = 0

    def write() -> None:
        nonlocal tries
        tries += 1
        if tries == 3:
            holder.execute("ROLLBACK")
        with immediate(waiter):
            waiter.execute("DELETE FROM runs")

    busy_retried(write)
    assert tries == 3
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        busy_retried(lambda: waiter.execute("SELECT * FROM missing"))
    holder.close()
    waiter.close()


def test_a_damaged_run_leaves_the_rest_readable(tmp_path: Path) -> None:
    """When one run's events cannot be unpacked, that run says so and others are read."""
    damaged, fine = _filled(tmp_path), _filled(tmp_path)
    conn = sqlite3.connect(tmp_path / FILE_NAME)
    conn.execute("UPDATE chunks SET body = x'00' WHERE run_key = (SELECT key FROM runs WHERE run_id = ?)", (damaged,))
    conn.commit()
    conn.close()
    with RunIndex.open(tmp_path, read_only=True) as index:
        with pytest.raises(RunIndexError, match="is damaged"):
            index.read(damaged)
        assert len(index.read(fine).events) == 1
        assert index.group("g").runs == 2


def test_an_index_removed_and_made_anew_is_read_anew(tmp_path: Path) -> None:
    """A reader that stays open notices that the file is another one."""
    _filled(tmp_path)
    with RunIndex.open(tmp_path, read_only=True) as index:
        assert index.group("g").runs == 1
        for file in tmp_path.iterdir():
            file.unlink()
        _filled(tmp_path)
        _filled(tmp_path)
        assert index.group("g").runs == 2


def test_a_file_where_the_folder_should_be_is_refused(tmp_path: Path) -> None:
    """A path that is a file is no runs folder."""
    (tmp_path / "runs").write_text("")
    with pytest.raises(RunIndexError, match=r"runs: .*choose"):
        RunIndex.open(tmp_path / "runs")


READ_ONLY = """
import os, sys
from agent_env.errors import RunIndexError
from agent_env.runs import RunIndex
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
with RunIndex.open(sys.argv[1], read_only=True) as index:
    print(index.group("g").runs, len(index.read(sys.argv[2]).events))
try:
    RunIndex.open(sys.argv[1])
except RunIndexError as exc:
    print(exc)
"""


def test_a_folder_nobody_may_write_is_still_read() -> None:
    """Without the right to write, reading works and opening for writing says what to do."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_id = _filled(folder)
        folder.chmod(0o555)
        (folder / FILE_NAME).chmod(0o444)
        try:
            words = [sys.executable, "-c", READ_ONLY, name, run_id]
            done = subprocess.run(words, capture_output=True, text=True, check=True, cwd="/")
        finally:
            folder.chmod(0o755)
    assert done.stdout.splitlines()[0] == "1 1"
    assert "cannot be written" in done.stdout
    assert "open it read-only" in done.stdout


FULL = """
import os, resource, signal, sys, time
from agent_env.episode.sink import Event, EventKind, RunHeader
from agent_env.errors import RunIndexError
from agent_env.runs import RunIndex

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
index = RunIndex.open(sys.argv[1])
sink = index.run("g")
sink.opened(RunHeader(task_id="t", bundle_name="b", bundle_version="1", params={}, tags=()))
index.flush()
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
said = 0
try:
    for number in range(2000):
        said += 1
        text = os.urandom(2000).hex()
        sink.event(Event(EventKind.MESSAGE, 0.0, "prompt", 0, {"message": {"content": text}}))
        if number % 20 == 0:
            time.sleep(0.05)
except RunIndexError as exc:
    print("refused:", exc)
try:
    index.flush()
except RunIndexError as exc:
    print("again:", exc)
if sys.argv[2] == "freed":
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
try:
    index.close()
except RunIndexError as exc:
    print("close:", exc)
print(sink.run_id, said)
"""


@pytest.mark.parametrize("then", ["freed", "still full"])
def test_a_disk_that_takes_no_more_is_said_at_the_next_call(tmp_path: Path, then: str) -> None:
    """Recording raises, what waits is kept, and is written when there is room again; else close says it is lost."""
    words = [sys.executable, "-c", FULL, str(tmp_path), then]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == ["refused", "again"]
    run_id, said = lines[-1].split()
    with RunIndex.open(tmp_path) as index:
        kept = list(index.events(run_id))
    assert [event.seq for event in kept] == list(range(len(kept)))
    if then == "freed":
        assert len(lines) == 3
        assert len(kept) == int(said), "nothing was lost"
    else:
        assert "the end of 1 run(s) is not in it" in lines[2]
        assert len(kept) < int(said)


@pytest.mark.parametrize("then", ["nothing", "another"])
def test_a_folder_that_is_deleted_under_a_training_is_said(tmp_path: Path, then: str) -> None:
    """SQLite itself would go on writing to the file that is gone: every run would be lost, and nobody told."""
    folder = tmp_path / "runs"
    index = RunIndex.open(folder)
    index.flush()
    shutil.rmtree(folder)
    if then == "another":
        RunIndex.open(folder).close()
    index.run("g").opened(HEADER)
    with pytest.raises(RunIndexError, match="deleted or replaced"):
        index.flush()
    with pytest.raises(RunIndexError, match="deleted or replaced"):
        index.close()


def test_a_full_disk_is_called_by_its_name(tmp_path: Path) -> None:
    """SQLite's own refusal for want of room says to free some."""
    _filled(tmp_path)
    conn = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    conn.execute("PRAGMA max_page_count=1")
    sql = "INSERT INTO heads VALUES (99, 1, zeroblob(1000000))"
    with pytest.raises(RunIndexError, match="the disk is full: free some space"), saying(tmp_path), immediate(conn):
        conn.execute(sql)
    conn.close()
