"""Reading and writing files for whoever is outside, with the sandbox's own rights and its own view of the file system.

A symlink leads where it leads inside. What is no regular file is refused, and never waited for.
"""

from __future__ import annotations

import os
from errno import EFBIG, EINVAL, EISDIR, ENOTSUP

__all__ = ["errno_of", "read_file", "write_file"]


class TooLargeError(OSError):
    """A file is larger than what is asked for."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(EFBIG, "")
        self.size_bytes = size_bytes


def read_file(path: bytes, max_bytes: int) -> bytes:
    """Return what is in a file.

    Raises:
        OSError: When it cannot be read, or is larger.
        ValueError: When the path is none.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        size = _size_of_file(fd)
        if size > max_bytes:
            raise TooLargeError(size)
        data = bytearray()
        while len(data) <= max_bytes:  # a file in /proc says that it has none
            chunk = os.read(fd, min(1 << 20, max_bytes + 1 - len(data)))
            if not chunk:
                return bytes(data)
            data += chunk
        raise TooLargeError(len(data))
    finally:
        os.close(fd)


def write_file(path: bytes, data: bytes, mode: int) -> None:
    """Make a file, and the folders above it; `mode` is added to what it may be used for.

    Raises:
        OSError: When it cannot be written; then part of it may be there.
        ValueError: When the path is none.
    """
    os.makedirs(os.path.dirname(path) or b".", exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY, 0o666)
    try:
        _size_of_file(fd)
        os.ftruncate(fd, 0)
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]
        if mode:
            os.fchmod(fd, (os.fstat(fd).st_mode & 0o777) | mode)
    finally:
        os.close(fd)


def errno_of(exc: OSError | ValueError) -> bytes:
    """Return the number of an error, as text."""
    return str(getattr(exc, "errno", None) or EINVAL).encode()


def _size_of_file(fd: int) -> int:
    found = os.fstat(fd)
    kind = found.st_mode & 0o170000
    if kind == 0o040000:
        raise OSError(EISDIR, "")
    if kind != 0o100000:
        raise OSError(ENOTSUP, "")
    return found.st_size
