"""The run index's file: how a connection to it is opened, checked and brought up to date.

One SQLite file in WAL mode per runs folder. A file of a newer version is refused, an older one is brought up to date by the
first that opens it for writing. The tables are in `_versions`.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from agent_env.errors import RunIndexError
from agent_env.runs._versions import SCHEMA_VERSION, apply_versions

__all__ = [
    "FILE_NAME",
    "GROUPS_BELOW",
    "bounds_below",
    "busy_retried",
    "connect_checkpointer",
    "connect_reader",
    "connect_writer",
    "identity_of",
    "immediate",
    "is_busy",
    "saying",
]

FILE_NAME = "index.sqlite3"
"""The index, in a runs folder."""

GROUPS_BELOW = "SELECT key FROM groups WHERE name = :group OR name >= :below AND name < :beyond"
"""A group and those below it, as `grid` has `grid/train/step-0003`; its values are what `bounds_below` says."""
_APPLICATION_ID = 0x41674576
_BUSY_S = 5.0
_PATIENCE_S = 60.0
_SHORT_S = 1.0

T = TypeVar("T")


def connect_writer(file: Path) -> sqlite3.Connection:
    """Open the index for writing; make or migrate it when needed.

    Raises:
        RunIndexError: When the file is no run index, is damaged, is of a newer version, or cannot be written.
    """
    with saying(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        conn = sqlite3.connect(file, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            _check(conn, file, may_be_empty=True)
            busy_retried(lambda: conn.execute("PRAGMA journal_mode=WAL").fetchone())
            # In WAL mode, NORMAL never damages the file: a killed process loses nothing that it committed.
            conn.execute("PRAGMA synchronous=NORMAL")
            conn.execute(f"PRAGMA journal_size_limit={64 << 20}")
            conn.execute("PRAGMA wal_autocheckpoint=0")  # `Checkpoints` does it
            busy_retried(lambda: _migrate(conn, file))
            conn.execute("PRAGMA busy_timeout=0")  # `busy_retried` asks more often than SQLite would
        except BaseException:
            conn.close()
            raise
        return conn


def connect_reader(file: Path) -> sqlite3.Connection:
    """Open the index for reading only; never writes, and never waits for a writer.

    Raises:
        RunIndexError: When there is no index, or it cannot be read.
    """
    if not file.is_file():
        raise RunIndexError(f"{file.parent}: no run index here: name a folder that runs were recorded in")
    with saying(file):
        location = file.resolve().as_uri()
        try:
            return _checked_reader(f"{location}?mode=ro", file)
        except sqlite3.OperationalError:
            # Reading a WAL file needs its -shm neighbour, which a folder nobody may write cannot get. With no writer
            # there is nothing in the WAL either, and the file can be read as it is.
            wal = file.with_name(f"{file.name}-wal")
            if wal.exists() and wal.stat().st_size:
                raise
            return _checked_reader(f"{location}?immutable=1", file)


def connect_checkpointer(file: Path) -> sqlite3.Connection:
    """Open the index for copying its log into it.

    Raises:
        sqlite3.Error: When it cannot be opened.
    """
    conn = sqlite3.connect(f"{file.resolve().as_uri()}?mode=rw", uri=True, timeout=_BUSY_S, isolation_level=None)
    conn.execute("PRAGMA synchronous=NORMAL")
    conn.execute(f"PRAGMA journal_size_limit={64 << 20}")
    return conn


@contextmanager
def saying(file: Path) -> Generator[None]:
    """Turn what SQLite and the disk raise into one clear line.

    Raises:
        RunIndexError: For each of them.
    """
    try:
        yield
    except sqlite3.Error as exc:
        raise RunIndexError(f"{file}: {_explained(exc)}") from exc
    except OSError as exc:
        raise RunIndexError(
            f"{file.parent}: {exc.strerror or exc}: choose a folder that can be read and written"
        ) from exc


@contextmanager
def immediate(conn: sqlite3.Connection) -> Generator[None]:
    """One write transaction: all of it or, when the block raises, nothing."""
    conn.execute("BEGIN IMMEDIATE")
    try:
        yield
        conn.execute("COMMIT")
    except BaseException:
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        raise


def busy_retried(write: Callable[[], T]) -> T:
    """Run `write` again while other processes hold the lock for longer than SQLite itself waits.

    Raises:
        sqlite3.OperationalError: When it is still locked after a minute, or for another reason at once.
    """
    start = time.monotonic()
    while True:
        try:
            return write()
        except sqlite3.OperationalError as exc:
            waited = time.monotonic() - start
            if not is_busy(exc) or waited > _PATIENCE_S:
                raise
        # The others' transactions take milliseconds: who asks seldom gets the lock late, or never.
        time.sleep(random.uniform(0.0005, 0.002) if waited < _SHORT_S else random.uniform(0.005, 0.02))


def identity_of(file: Path) -> tuple[int, int]:
    """What tells a file from every other: a folder that was removed and made anew has the same name and another file.

    Raises:
        OSError: When it is not there, or cannot be looked at.
    """
    found = file.stat()
    return found.st_dev, found.st_ino


def bounds_below(group: str) -> dict[str, str]:
    """The values of `GROUPS_BELOW`."""
    # '0' follows '/': the names from 'group/' up to 'group0' are those below it.
    return {"group": group, "below": f"{group}/", "beyond": f"{group}0"}


def is_busy(exc: BaseException | None) -> bool:
    """Whether it says no more than that another connection holds a lock."""
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    return code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def _checked_reader(uri: str, file: Path) -> sqlite3.Connection:
    conn = sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        _check(conn, file, may_be_empty=False)
        conn.execute("PRAGMA query_only=1")
    except BaseException:
        conn.close()
        raise
    return conn


def _check(conn: sqlite3.Connection, file: Path, *, may_be_empty: bool) -> None:
    application_id = int(conn.execute("PRAGMA application_id").fetchone()[0])
    version = int(conn.execute("PRAGMA user_version").fetchone()[0])
    if application_id != _APPLICATION_ID:
        if application_id or version or conn.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            raise RunIndexError(f"{file}: an SQLite file, but no run index: choose another folder for runs")
        if not may_be_empty:
            raise RunIndexError(f"{file}: an empty file, and no run index: it holds no runs")
    if version > SCHEMA_VERSION:
        raise RunIndexError(
            f"{file}: written by a newer AgentEnv (schema {version}, this one knows {SCHEMA_VERSION}): upgrade agent-env"
        )
    if not may_be_empty and version < SCHEMA_VERSION:
        raise RunIndexError(
            f"{file}: written by an older AgentEnv (schema {version}): open it once for writing to bring it up to date"
        )


def _migrate(conn: sqlite3.Connection, file: Path) -> None:
    if int(conn.execute("PRAGMA user_version").fetchone()[0]) == SCHEMA_VERSION:
        return
    with immediate(conn):
        _check(conn, file, may_be_empty=True)
        version = int(conn.execute("PRAGMA user_version").fetchone()[0])
        apply_versions(conn, after=version)
        conn.execute(f"PRAGMA application_id={_APPLICATION_ID}")
        conn.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def _explained(exc: sqlite3.Error) -> str:
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    match code:
        case sqlite3.SQLITE_FULL:
            return "the disk is full: free some space; what is not written yet is kept in memory and tried again"
        case sqlite3.SQLITE_NOTADB:
            return "not an SQLite file, so no run index: choose another folder for runs"
        case sqlite3.SQLITE_CORRUPT:
            return f"the run index is damaged ({exc}): move it away, or copy what is readable with `sqlite3 .recover`"
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return f"the folder cannot be written ({exc}): choose another, or open it read-only"
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return f"another process has held the run index locked for {_PATIENCE_S:.0f} s"
        case sqlite3.SQLITE_INTERRUPT:
            return "the question took too long to answer: ask for less"
        case sqlite3.SQLITE_IOERR:
            return f"the disk failed ({exc}); what is not written yet is kept in memory and tried again"
        case _:
            return f"the run index cannot be used ({exc})"
