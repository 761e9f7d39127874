"""Reading a file of a universe once per process and version of the file."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from anyio import to_thread

from agent_env.errors import UniverseError

__all__ = ["file_version", "read_once"]

T = TypeVar("T")


@dataclass(slots=True)
class _Read:
    """What a file was read to, and the version of the file it was read from."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    version: tuple[int, ...] = ()
    content: Any = None


_reads: dict[tuple[Path, Callable[[Path], Any]], _Read] = {}
_reads_lock = threading.Lock()


async def read_once(path: Path, read: Callable[[Path], T]) -> T:
    """Return what a file is read to, read again only when its size or time has changed.

    Raises:
        UniverseError: When it cannot be read.
    """
    with _reads_lock:
        kept = _reads.setdefault((path, read), _Read())
    if kept.version == file_version(path):
        return kept.content
    return await to_thread.run_sync(_fill, kept, path, read)


def _fill(kept: _Read, path: Path, read: Callable[[Path], T]) -> T:
    with kept.lock:
        version = file_version(path)
        if kept.version != version:
            try:
                content = read(path)
            except (OSError, sqlite3.Error, ValueError, RecursionError) as exc:
                raise UniverseError(f"{path}: the universe cannot be read: {exc}") from exc
            kept.content, kept.version = content, version
        return kept.content


def file_version(path: Path) -> tuple[int, ...]:
    """Return what changes when the file does; of a database, its write-ahead log counts too."""
    found: list[int] = []
    for file in (path, path.with_name(f"{path.name}-wal")):
        try:
            stat = file.stat()
        except OSError:
            continue
        found += [stat.st_mtime_ns, stat.st_size, stat.st_ino]
    return tuple(found) or (-1,)
