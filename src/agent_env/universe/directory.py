"""A directory of one's own, copied file by file; a file system that can share blocks shares them."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import stat
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from anyio import to_thread

from agent_env._cleanup import wait_until_done
from agent_env.errors import UniverseError
from agent_env.universe.holders import Holder, sweep_once
from agent_env.universe.threads import in_thread

try:
    from fcntl import ioctl
except ImportError:  # not on Windows
    ioctl = None

__all__ = ["Copied", "Entry", "copy_file", "copy_tree", "held_folder", "look_at"]

T = TypeVar("T")

_FICLONE = 0x40049409
"""Linux: make a file share another one's blocks until either is written to. See ioctl_ficlone(2)."""
_REMOVE_S = 30.0
"""Seconds that removing a copy may take before it is left behind."""


@asynccontextmanager
async def held_folder(
    fill: Callable[[Path, Callable[[], None]], T], *, source: Path | None
) -> AsyncGenerator[tuple[Path, T]]:
    """Make a temporary folder, have it filled in a thread, and remove it when the block ends.

    Args:
        fill: Is given the folder, and what to call now and then.
        source: What it is filled from, for the error.

    Yields:
        The folder, and what `fill` returned. The process id is in its name: one that is left behind can be told.

    Raises:
        UniverseError: When it cannot be filled.
    """
    holder: Holder | None = None

    def filled(check: Callable[[], None]) -> T:
        nonlocal holder
        sweep_once()
        holder = Holder()
        return fill(holder.path, check)

    try:
        try:
            made = await in_thread(filled, what=f"copying {source}")
        except OSError as exc:
            what = f"{exc.filename or source}: the universe cannot be copied: {exc.strerror}"
            raise UniverseError(what) from exc
        assert holder is not None
        yield holder.path, made
    finally:
        if holder is not None:
            # A task of its own: a second cancellation, which goes through shields, would come before the thread has begun.
            removing = asyncio.create_task(to_thread.run_sync(holder.remove), name=f"remove {holder.path}")
            what = f"removing {holder.path}, the copy of a universe,"
            await wait_until_done(removing, grace_s=_REMOVE_S, what=what)


@dataclass(frozen=True, slots=True)
class Entry:
    """What a file, directory or symlink was when it was looked at: when it is the same again, it was not written to."""

    kind: str
    """`file`, `directory`, `symlink`, or `other`."""
    mode: int
    """Permissions."""
    size: int
    stamp: tuple[int, ...]
    """Where it lies, and when it was last written to or changed."""
    target: str = ""
    """Where a symlink leads."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What was copied to what."""

    source: Entry
    copy: Entry


def look_at(path: Path | str, *, dir_fd: int | None = None) -> Entry:
    """Look at a file without following a symlink.

    Args:
        path: The file.
        dir_fd: The open directory that a relative path begins in.

    Raises:
        OSError: When it is not there.
    """
    found = os.lstat(path, dir_fd=dir_fd)
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}
    kind = kinds.get(stat.S_IFMT(found.st_mode), "other")
    stamp = (found.st_ino, found.st_dev, found.st_mtime_ns, found.st_ctime_ns)
    target = os.readlink(path, dir_fd=dir_fd) if kind == "symlink" else ""
    return Entry(kind, stat.S_IMODE(found.st_mode), found.st_size, stamp, target)


def copy_tree(source: Path, target: Path, check: Callable[[], None]) -> dict[str, Copied]:
    """Copy a directory, and return what the copy consists of, by path within it.

    Args:
        source: The directory.
        target: Where it is copied to; not there yet.
        check: Called before each file; what it raises ends the copying.

    Raises:
        OSError: When a file cannot be read or written.
        UniverseError: When a symlink leads out of it, or it has what is no file, directory or symlink.
    """
    target.mkdir()
    copied: dict[str, Copied] = {}
    todo = [""]
    while todo:
        folder = todo.pop()
        with os.scandir(source / folder) as entries:
            for entry in entries:
                check()
                name = os.path.join(folder, entry.name)
                here, there = source / name, target / name
                original = look_at(here)
                if entry.is_symlink():
                    if not _stays_inside(here, source):
                        raise UniverseError(f"{here}: a symlink leads out of the universe: copy what it leads to there")
                    os.symlink(os.readlink(here), there)
                elif entry.is_dir():
                    there.mkdir()
                    todo.append(name)
                elif entry.is_file():
                    copy_file(here, there)
                else:
                    raise UniverseError(f"{here}: not a file, a directory or a symlink: remove it from the universe")
                copied[name] = Copied(original, look_at(there))
    return copied


def _stays_inside(link: Path, top: Path) -> bool:
    return not os.readlink(link).startswith("/") and link.resolve().is_relative_to(top.resolve())


def copy_file(source: Path, target: Path) -> None:
    """Copy a file, so that it can be written to.

    Raises:
        OSError: When it cannot be read or written.
    """
    mode = stat.S_IMODE(source.stat().st_mode) | stat.S_IWUSR | stat.S_IRUSR
    with source.open("rb") as reader, target.open("wb") as writer:
        if not _share_blocks(reader.fileno(), writer.fileno()):
            shutil.copyfileobj(reader, writer, 1024 * 1024)
    target.chmod(mode)


def _share_blocks(reader: int, writer: int) -> bool:
    if ioctl is None:
        return False
    try:
        ioctl(writer, _FICLONE, reader)
    except OSError as exc:
        if exc.errno in (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM):
            return False
        raise
    return True
