"""A SQLite database of one's own, from an image that is read once and shared."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

__all__ = ["connect_copy", "read_database"]

_MAGIC = b"SQLite format 3\0"


def read_database(path: Path) -> bytes:
    """Return a database file as an image for `connect_copy`. The file and its folder are not written to.

    Args:
        path: The database. When a write-ahead log lies beside it, what is committed there is in the image.

    Raises:
        OSError: When a file cannot be read.
        ValueError: When it is not a database.
        sqlite3.Error: When it is a damaged one.
    """
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size > 0:
        # Reading a log needs a file that is mapped beside it: done in a copy, for the bundle may be read-only.
        with TemporaryDirectory(prefix="agent-env-database-") as folder:
            copy = Path(folder) / "copy.db"
            shutil.copyfile(path, copy)
            shutil.copyfile(log, copy.with_name("copy.db-wal"))
            with closing(sqlite3.connect(copy)) as connection:
                connection.execute("PRAGMA journal_mode = DELETE")
            image = copy.read_bytes()
    else:
        image = path.read_bytes()
    if image and not image.startswith(_MAGIC):
        raise ValueError("it is not a SQLite database")
    if image[18:20] == b"\x02\x02":
        # The journal mode is in the header; a database in memory has no write-ahead log to write.
        image = image[:18] + b"\x01\x01" + image[20:]
    with closing(connect_copy(image)) as connection:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return image


def connect_copy(image: bytes) -> sqlite3.Connection:
    """Return a connection to a database in memory that starts as `image`; any thread may use it, one at a time."""
    connection = sqlite3.connect(":memory:", check_same_thread=False)
    try:
        if image:
            connection.deserialize(image)
    except BaseException:
        connection.close()
        raise
    return connection
