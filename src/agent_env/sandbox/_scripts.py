"""Reading files with what every image has: a shell and its small programs. For sandboxes that others have made."""

from __future__ import annotations

from errno import EACCES, EFBIG, EIO, EISDIR, ENOENT, ENOTSUP
from pathlib import PurePosixPath

from agent_env.sandbox._supervised import file_error

__all__ = ["READ", "read_error"]

READ = (
    '[ -d "$1" ] && exit 41; [ -e "$1" ] || exit 42; [ -f "$1" ] || exit 43; [ -r "$1" ] || exit 44; '
    'size=$(wc -c <"$1") || exit 45; [ "$size" -gt "$2" ] && { echo "$size"; exit 46; }; '
)
"""The start of a script: ends it with one of the codes below, unless the file `$1` has at most `$2` bytes."""

_ERRORS = {41: EISDIR, 42: ENOENT, 43: ENOTSUP, 44: EACCES, 45: EIO, 46: EFBIG}


def read_error(exit_code: int, printed: bytes, path: str | PurePosixPath, *, max_bytes: int) -> OSError:
    """Return what is raised for a file that a script has not read.

    Args:
        exit_code: Of the script.
        printed: What it printed.
        path: The file, as it was asked for.
        max_bytes: The most that was asked for.
    """
    size = printed.strip()
    size_bytes = int(size) if size.isdigit() and len(size) < 20 else 0
    return file_error(_ERRORS.get(exit_code, EIO), path, size_bytes=size_bytes, max_bytes=max_bytes)
