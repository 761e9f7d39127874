"""A SQLite database of one's own, from an image that is read once and shared."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from agent_env.universe.connection import PrivateConnection
from agent_env.universe.shared_pages import Pages, SharedImage, connect_shared, share

__all__ = ["DatabaseImage", "PrivateDatabase", "read_database"]

_MAGIC = b"SQLite format 3\0"
_CACHE_KB = 512
"""Pages that a connection has read are kept up to this: they are in memory already, and a thousand copies each keep some."""


@dataclass(frozen=True, slots=True, eq=False)
class PrivateDatabase:
    """A private copy of a database."""

    connection: PrivateConnection
    image: DatabaseImage
    """What it was made from."""
    pages: Pages | None
    """The memory that it lies in; None when SQLite has a copy of the whole image."""

    def release(self) -> None:
        """Give the memory back, after the connection was ended."""
        if self.pages is not None:
            self.pages.release()


class DatabaseImage:
    """A database as a file has it, of which private copies are made."""

    def __init__(self, image: bytes) -> None:
        self.size = len(image)
        """Bytes."""
        self._shared = share(image)
        self._whole = None if self._shared is not None else image

    @property
    def shared(self) -> SharedImage | None:
        """The image that copies share page by page, where that can be done."""
        return self._shared

    @property
    def is_quick(self) -> bool:
        """Whether a copy is made in well under a millisecond."""
        return self._shared is not None or self.size <= 1_000_000

    def to_bytes(self) -> bytes:
        """Return the content of a file with this database."""
        return self._shared.to_bytes() if self._shared is not None else self._whole or b""

    def private(self) -> PrivateDatabase:
        """Return a private copy.

        Raises:
            sqlite3.Error: When SQLite cannot make one.
        """
        found = None if self._shared is None else connect_shared(self._shared, PrivateConnection)
        if found is not None:
            connection, pages = found
        else:
            connection, pages = PrivateConnection(), None
        made = PrivateDatabase(connection, self, pages)
        try:
            if pages is None and self.size:
                connection.deserialize(self.to_bytes())
                connection.is_replaced = False
            connection.execute(f"PRAGMA cache_size = -{_CACHE_KB}").close()
        except BaseException:  # also Ctrl-C: nobody else has the copy yet
            connection.close()
            made.release()
            raise
        return made


def read_database(path: Path) -> DatabaseImage:
    """Read a database file. The file and its folder are not written to.

    Args:
        path: The database. When a write-ahead log lies beside it, what is committed there is read too.

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
            content = copy.read_bytes()
    else:
        content = path.read_bytes()
    if content and not content.startswith(_MAGIC):
        raise ValueError("it is not a SQLite database")
    if content[18:20] == b"\x02\x02":
        # The journal mode is in the header; a database in memory has no write-ahead log to write.
        content = content[:18] + b"\x01\x01" + content[20:]
    image = DatabaseImage(content)
    made = image.private()
    try:
        with closing(made.connection) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    finally:
        made.release()
    return image
