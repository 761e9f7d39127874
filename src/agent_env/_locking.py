"""A file that one process holds at a time; the system gives it back when the process ends, however it ends."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import IO

__all__ = ["HeldError", "hold"]


class HeldError(Exception):
    """Another process holds the file."""


def hold(path: Path) -> IO[str]:
    """Make a file and its folder, and hold it until it is closed.

    Raises:
        HeldError: When it is held already, also by this process.
        OSError: When it cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        file.close()
        if isinstance(exc, BlockingIOError):
            raise HeldError from None
        raise
    return file
