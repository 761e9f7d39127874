"""Where sandboxes keep what they need on the disk, and whose it is.

A process has one folder for all its sandboxes, marked by a lock on a file in it that the kernel gives back when the
process ends, however it ends. A folder whose lock is free is left over, and the next process that opens a sandbox removes
it. Covers files only: no process outlives its parent long enough to be looked for.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from tempfile import gettempdir
from typing import IO

from agent_env._cleanup import remove_tree
from agent_env._locking import HeldError, hold
from agent_env.errors import SandboxUnavailableError
from agent_env.sandbox._guard import Guard

__all__ = ["Owner", "base_dir", "base_token", "is_alive", "remove_left_over", "sandbox_folder"]

_LOCK = "lock"
_NEW = ".new-"
_NEW_S = 600.0
"""A folder that has been in the making for so long was left so."""


@dataclass(slots=True)
class Owner:
    """This process, as long as it has a sandbox open."""

    path: Path
    lock: IO[str]
    pid: int
    sandboxes: int = 0
    last: int = 0

    @property
    def name(self) -> str:
        return self.path.name


_guard = Guard()
_owner: Owner | None = None


def base_dir() -> Path:
    """The folder under which all processes of this user have theirs; made when it is not there.

    It and what is in it can be entered by everybody, and read by nobody: root's sandboxes are other users.

    Raises:
        SandboxUnavailableError: When it is somebody else's, or cannot be made.
    """
    path = Path(gettempdir()) / f"agent-env-sandboxes-{os.geteuid()}"
    try:
        if not path.is_dir():
            make_enterable(path)
        found = path.lstat()
    except OSError as exc:
        raise SandboxUnavailableError(f"{path}: {exc.strerror}: set TMPDIR to a folder that can be written") from exc
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise SandboxUnavailableError(f"{path} is open to others: remove it, or set TMPDIR to a folder of your own")
    return path


def make_enterable(path: Path) -> None:
    """Make a folder that everybody can go through, whatever the umask is, and nobody else can list."""
    path.mkdir(mode=0o700, exist_ok=True)
    path.chmod(0o711)


def base_token() -> str:
    """What tells this folder from that of another machine or container: Docker's containers carry it."""
    path = base_dir() / f"{_NEW}token"
    if not path.exists():
        new = path.with_name(f"{_NEW}{token_hex(8)}")
        new.write_text(token_hex(8))
        with suppress(FileExistsError):
            os.link(new, path)  # the first one stays
        new.unlink()
    return path.read_text()


@contextmanager
def sandbox_folder() -> Generator[tuple[Owner, Path]]:
    """A folder for one sandbox, removed when the block ends. What is large in it is the caller's to remove before.

    Raises:
        SandboxUnavailableError: When it cannot be made.
    """
    with _guard:
        owner = _acquire()
        owner.sandboxes += 1
        owner.last += 1
        path = owner.path / str(owner.last)
    try:
        make_enterable(path)
        yield owner, path
    finally:
        remove_tree(path)
        with _guard:
            owner.sandboxes -= 1
            if owner.sandboxes == 0 and owner is _owner and owner.pid == os.getpid():
                _give_back(owner)


def _acquire() -> Owner:
    global _owner
    if _owner is None or _owner.pid != os.getpid():
        base = base_dir()
        name = f"{os.getpid()}-{token_hex(4)}"
        new = base / f"{_NEW}{name}"
        try:
            make_enterable(new)
            lock = hold(new / _LOCK)
            new.rename(base / name)
        except OSError as exc:
            raise SandboxUnavailableError(f"{base}: {exc.strerror}: set TMPDIR to a folder with room") from exc
        _owner = Owner(base / name, lock, os.getpid())
    return _owner


def _give_back(owner: Owner) -> None:
    global _owner
    _owner = None
    remove_tree(owner.path)
    owner.lock.close()


def is_alive(name: str) -> bool:
    """Whether the process that a folder belongs to still runs."""
    path = base_dir() / name
    if not (path / _LOCK).is_file():
        return False
    try:
        hold(path / _LOCK).close()
    except HeldError:
        return True
    except OSError:
        return False
    return False


def remove_left_over(*, within_s: float) -> int:
    """Remove what processes that are gone have left; what is not done after `within_s` seconds is for the next time.

    Returns:
        How many folders it was.
    """
    until = time.monotonic() + within_s
    removed = 0
    for path in base_dir().iterdir():
        if time.monotonic() > until:
            break
        if _is_left_over(path):
            remove_tree(path)
            removed += 1
    return removed


def _is_left_over(path: Path) -> bool:
    if not path.name.startswith(_NEW):
        return path.is_dir() and not is_alive(path.name)
    try:
        return path.is_dir() and time.time() - path.stat().st_mtime > _NEW_S
    except FileNotFoundError:  # it has its name by now
        return False
