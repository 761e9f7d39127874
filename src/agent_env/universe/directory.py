"""A directory of one's own, copied file by file; a file system that can share blocks shares them."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import stat
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from anyio import to_thread

from agent_env._cleanup import wait_until_done
from agent_env.errors import UniverseError

try:
    from fcntl import ioctl
except ImportError:  # not on Windows
    ioctl = None

__all__ = ["directory_copy"]

logger = logging.getLogger(__name__)

_FICLONE = 0x40049409
"""Linux: make a file share another one's blocks until either is written to. See ioctl_ficlone(2)."""
_REMOVE_S = 30.0
"""Seconds that removing a copy may take before it is left behind."""
_STOP_S = 30.0
"""Seconds that the thread has for the file that it is copying."""


@asynccontextmanager
async def directory_copy(path: Path) -> AsyncGenerator[Path]:
    """Copy a directory to a temporary place, and remove the copy when the block ends.

    Yields:
        The copy's path. It carries the process id in its parent's name: a copy that is left behind can be told.

    Raises:
        UniverseError: When it cannot be copied, or holds a symlink that leads out of it.
    """
    holder = Path(mkdtemp(prefix=f"agent-env-universe-{os.getpid()}-"))
    try:
        copy = holder / path.name
        try:
            await _copied(path, copy)
        except OSError as exc:
            raise UniverseError(f"{exc.filename or path}: the universe cannot be copied: {exc.strerror}") from exc
        yield copy
    finally:
        # A task of its own: a second cancellation, which goes through shields, would come before the thread has begun.
        removing = asyncio.create_task(to_thread.run_sync(_remove, holder), name=f"remove {holder}")
        await wait_until_done(removing, grace_s=_REMOVE_S, what=f"removing {holder}, the copy of a universe,")


async def _copied(source: Path, target: Path) -> None:
    """Copy a tree in a thread. Cancelled, it has the thread stop and waits for that: what it still wrote would stay."""
    stop = threading.Event()
    copying = asyncio.create_task(to_thread.run_sync(_copy_tree, source, target, stop), name=f"copy {source}")
    try:
        await asyncio.shield(copying)
    except asyncio.CancelledError:
        stop.set()
        await wait_until_done(copying, grace_s=_STOP_S, what=f"copying {source}")
        if copying.done() and not copying.cancelled():
            copying.exception()  # of no interest any more
        raise


def _stays_inside(link: Path, top: Path) -> bool:
    return not os.readlink(link).startswith("/") and link.resolve().is_relative_to(top.resolve())


def _copy_tree(source: Path, target: Path, stop: threading.Event) -> None:
    target.mkdir()
    todo = [(source, target)]
    while todo:
        from_dir, to_dir = todo.pop()
        with os.scandir(from_dir) as entries:
            for entry in entries:
                if stop.is_set():
                    return
                here, there = Path(entry.path), to_dir / entry.name
                if entry.is_symlink():
                    if not _stays_inside(here, source):
                        raise UniverseError(f"{here}: a symlink leads out of the universe: copy what it leads to there")
                    os.symlink(os.readlink(here), there)
                elif entry.is_dir():
                    there.mkdir()
                    todo.append((here, there))
                elif entry.is_file():
                    _copy_file(here, there)
                else:
                    raise UniverseError(f"{here}: not a file, a directory or a symlink: remove it from the universe")


def _copy_file(source: Path, target: Path) -> None:
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


def _remove(path: Path) -> None:
    def make_writable(function: Callable[..., Any], name: str, _: object) -> None:
        with suppress(OSError):
            os.chmod(os.path.dirname(name), stat.S_IRWXU)
            os.chmod(name, stat.S_IRWXU)
            function(name)

    shutil.rmtree(path, onerror=make_writable)
    if path.exists():
        logger.error("%s: the copy of a universe cannot be removed", path)
