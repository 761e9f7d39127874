"""Looking into a folder that somebody else may be writing to meanwhile: an agent in a sandbox, while this process may be root.

Each name is opened below the directory that it is in, and no symlink is followed: whatever is put where in between, nothing
outside of the folder is reached. Only regular files are read, and no more of them than they had when they were opened: a pipe
is not waited for, and a file that grows has an end.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from errno import ENOTSUP
from pathlib import Path

from agent_env.errors import UniverseError
from agent_env.universe.directory import Entry, look_at

__all__ = ["chunks_inside", "entries_inside"]

_CHUNK = 1024 * 1024
_PATH_CHARS = 4_000
"""A longer path within the folder is refused, as the system refuses one of 4,096 bytes."""
_THROUGH = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_GONE = (FileNotFoundError, NotADirectoryError)
"""It was removed, or something else was put there, since it was listed."""


def entries_inside(top: Path, check: Callable[[], None]) -> dict[str, Entry]:
    """Return what a folder consists of, by path within it. What cannot be listed has nothing in it.

    Args:
        top: The folder.
        check: Called before each directory; what it raises ends this.

    Raises:
        OSError: When the folder itself cannot be read.
        UniverseError: When it is nested too deeply.
    """
    found: dict[str, Entry] = {}
    todo = [""]
    while todo:
        folder = todo.pop()
        check()
        try:
            fd = _opened(top, folder, os.O_RDONLY | os.O_DIRECTORY)
        except (PermissionError, *_GONE):  # the agent's own doing; what was in it is gone for whoever looks
            if not folder:
                raise
            continue
        try:
            for name in os.listdir(fd):
                inner = os.path.join(folder, name)
                if len(inner) > _PATH_CHARS:
                    raise UniverseError(f"the state cannot be compared: /{inner[:80]}... is nested too deeply")
                try:
                    found[inner] = look_at(name, dir_fd=fd)
                except (*_GONE, PermissionError):
                    continue
                if found[inner].kind == "directory":
                    todo.append(inner)
        finally:
            os.close(fd)
    return found


def chunks_inside(top: Path, name: str, check: Callable[[], None], *, most_bytes: int | None = None) -> Iterator[bytes]:
    """Yield what is in a file.

    Args:
        top: The folder.
        name: The file's path within it.
        check: Called before each chunk; what it raises ends this.
        most_bytes: How much is read of it; all that it has when it is opened where it is left out.

    Raises:
        OSError: When it cannot be read, or is no file.
    """
    # Not waiting for whoever writes to a pipe that was put there.
    fd = _opened(top, name, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(fd, "rb", buffering=0) as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(ENOTSUP, "not a regular file", name)
        left = status.st_size if most_bytes is None else min(status.st_size, most_bytes)
        while left > 0 and (chunk := file.read(min(_CHUNK, left))):
            left -= len(chunk)
            check()
            yield chunk


def _opened(top: Path, name: str, flags: int) -> int:
    """Open what is at a path within a folder, which no part of the path may lead out of."""
    *parents, last = name.split(os.sep) if name else ("",)
    fd = os.open(top, _THROUGH & ~os.O_NOFOLLOW)
    try:
        for parent in parents:
            inner = os.open(parent, _THROUGH, dir_fd=fd)
            os.close(fd)
            fd = inner
        return os.open(last or ".", flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    finally:
        os.close(fd)
