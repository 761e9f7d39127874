"""Temporary folders that are known to be nobody's once their process has ended, however it ended.

A folder has the process's id and a mark of the process in its name. The process holds a file of that name locked as long as
it has one of the folders; the system gives the lock back when it ends. So a folder without a held lock can be removed, also
when another process has got the same id since.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agent_env._cleanup import remove_tree

__all__ = ["Holder", "sweep_left_copies", "sweep_once"]

logger = logging.getLogger(__name__)

_PREFIX = "agent-env-universe-"
_MARKED = re.compile(rf"{_PREFIX}(\d+-[0-9a-f]{{8}})(\.lock|-.*)")
_SWEEP_S = 5.0
"""Seconds that removing what others left may take before the first copy is made; the rest is the next process's."""


@dataclass(slots=True)
class _Mark:
    """The lock of a process in one temporary directory."""

    name: str
    fd: int
    path: Path
    folders: int = 0


_marks: dict[tuple[int, str], _Mark] = {}
_swept: set[tuple[int, str]] = set()
_lock = threading.Lock()


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)  # a thread that the child does not have may have held it


class Holder:
    """A temporary folder of one's own. Made and removed in a thread."""

    def __init__(self) -> None:
        """Make it.

        Raises:
            OSError: When it cannot be made.
        """
        where = tempfile.gettempdir()
        with _lock:
            self._mark = _marks.get((os.getpid(), where)) or _new_mark(where)
            name = "unlocked" if self._mark is None else self._mark.name
            self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{name}-", dir=where))
            if self._mark is not None:
                self._mark.folders += 1
                _marks[os.getpid(), where] = self._mark

    def remove(self) -> None:
        """Remove it and what is in it; what cannot be removed is logged."""
        remove_tree(self.path)
        with _lock:
            mark = self._mark
            if mark is not None:
                mark.folders -= 1
                if mark.folders == 0:
                    del _marks[os.getpid(), str(mark.path.parent)]
                    mark.path.unlink(missing_ok=True)
                    os.close(mark.fd)


def _new_mark(where: str) -> _Mark | None:
    """Make and lock a file that says which process this is; None where files cannot be locked."""
    while True:
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        path = Path(where) / f"{_PREFIX}{name}.lock"
        fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)  # a sweep came first; it removes the file
            continue
        except OSError:
            path.unlink(missing_ok=True)
            os.close(fd)
            return None
        if path.exists() and os.path.samestat(path.stat(), os.fstat(fd)):
            return _Mark(name, fd, path)
        os.close(fd)


def sweep_left_copies(*, within_s: float = _SWEEP_S) -> list[Path]:
    """Remove the copies of universes that ended processes have left in the temporary directory, and return them.

    What belongs to a process that runs, to another user, or is no folder, stays. Call it in a thread.

    Args:
        within_s: Seconds after which no further one is begun with.
    """
    end = time.monotonic() + within_s
    left: dict[str, list[Path]] = {}
    with os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            found = _MARKED.fullmatch(entry.name)
            if found is not None and _is_ours(entry):
                left.setdefault(found[1], []).append(Path(entry.path))
    removed: list[Path] = []
    for name, paths in sorted(left.items()):
        if time.monotonic() > end:
            break
        removed += _sweep(paths[0].parent / f"{_PREFIX}{name}.lock", paths, end)
    return removed


def _is_ours(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        return entry.stat(follow_symlinks=False).st_uid == os.geteuid()
    return False


def sweep_once() -> None:
    """Sweep when this process has not yet done so, and log what was removed."""
    key = (os.getpid(), tempfile.gettempdir())
    with _lock:
        if key in _swept:
            return
        _swept.add(key)
    try:
        removed = sweep_left_copies()
    except OSError as exc:
        logger.warning("copies of universes that were left behind cannot be looked for: %s", exc)
        return
    if removed:
        logger.info("removed %d copies of universes that an ended process had left", len(removed))


def _sweep(lock: Path, paths: list[Path], end: float) -> list[Path]:
    """Remove what a process has left, unless it still runs."""
    fd: int | None = None
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        pass
    except OSError:  # the process runs, or it cannot be known
        if fd is not None:
            os.close(fd)
        return []
    removed: list[Path] = []
    try:
        for path in paths:
            if time.monotonic() > end:
                return removed
            if path.is_dir() and not path.is_symlink():
                remove_tree(path)
                removed.append(path)
        if fd is not None:
            lock.unlink(missing_ok=True)
    finally:
        if fd is not None:
            os.close(fd)
    return removed
