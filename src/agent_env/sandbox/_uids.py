"""A user id for each sandbox that is started as root: one that nobody has, and no other sandbox at the same time.

A namespace that root has made is no jail. So the sandbox's first program gives up root before it makes one, and the limit
on processes, which the kernel counts by user, is that sandbox's own.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from agent_env.errors import SandboxUnavailableError
from agent_env.sandbox._guard import Guard

__all__ = ["free_range", "leased_uid"]

_RANGES = ((1_900_000_000, 65_536), (60_578, 606))
"""Where no user is by the conventions of Linux distributions and systemd: above the last container, and between the users
of a machine and systemd's own. The second is for a container, which may have the first 65,536 ids only."""

_guard = Guard()
_taken: set[int] = set()
_locks: IO[bytes] | None = None
_pid = 0


def free_range(uid_map: str) -> tuple[int, int]:
    """Return the first user id for sandboxes, and how many there are.

    Args:
        uid_map: What `/proc/self/uid_map` says: which ids this process can be.

    Raises:
        SandboxUnavailableError: When it can be none of them.
    """
    mapped = [(int(first), int(count)) for first, _, count in (line.split() for line in uid_map.splitlines())]
    for first, count in _RANGES:
        if any(start <= first and first + count <= start + size for start, size in mapped):
            return first, count
    raise SandboxUnavailableError(
        f"bwrap, started as root, gives each sandbox a user of its own, and this container has no user ids "
        f"{_RANGES[1][0]} to {sum(_RANGES[1]) - 1}: start as an ordinary user"
    )


@contextmanager
def leased_uid(base: Path) -> Generator[int]:
    """A user id that no other sandbox on this machine has, for the length of the block.

    Args:
        base: The folder with the locks: one byte of a file for each id. The kernel gives them back when the process ends.

    Raises:
        SandboxUnavailableError: When all are taken.
    """
    first, count = free_range(Path("/proc/self/uid_map").read_text("ascii"))
    uid = _take(base, first, count)
    try:
        yield uid
    finally:
        _give_back(uid, first)


def _take(base: Path, first: int, count: int) -> int:
    global _locks, _pid
    with _guard:
        if _locks is None or _pid != os.getpid():  # a lock is not the forked process's
            _locks, _pid = (base / ".new-uids").open("ab"), os.getpid()
            _taken.clear()
        start = secrets.randbelow(count)
        for uid in (first + (start + at) % count for at in range(count)):
            if uid in _taken:
                continue
            try:
                fcntl.lockf(_locks, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, uid - first)
            except OSError:
                continue
            _taken.add(uid)
            return uid
    raise SandboxUnavailableError(f"all {count} user ids for sandboxes are taken: close some")


def _give_back(uid: int, first: int) -> None:
    global _locks
    with _guard:
        if _locks is None or _pid != os.getpid():
            return
        _taken.discard(uid)
        fcntl.lockf(_locks, fcntl.LOCK_UN, 1, uid - first)
        if not _taken:
            _locks.close()
            _locks = None
