"""The folder on the disk that is a sandbox's working directory: lent to the sandbox's user, and taken back."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from agent_env._cleanup import remove_tree
from agent_env.errors import SandboxUnavailableError
from agent_env.sandbox._blocking import in_thread

__all__ = ["check_way", "work_folder"]

logger = logging.getLogger(__name__)

_CHANGE_S = 60.0


@asynccontextmanager
async def work_folder(files: Path | None, folder: Path, *, uid: int | None) -> AsyncGenerator[Path]:
    """A sandbox's working directory, for the length of the block.

    Args:
        files: The folder; it is there afterwards, as the sandbox has left it, and can be read and removed by its owner.
            None is an empty one that is removed.
        folder: Of this sandbox.
        uid: Whom it belongs to meanwhile; None is this process's user.

    Raises:
        SandboxUnavailableError: When it cannot be given to that user.
    """
    work = folder / "work" if files is None else files
    if files is None:
        work.mkdir(mode=0o700)
    modes = {path: path.stat().st_mode for path in (work, work.parent)}
    try:
        if uid is not None and files is None:
            os.chown(work, uid, uid)
        elif uid is not None:
            await in_thread(partial(_give, work, uid), what=f"giving {work} to a sandbox")
        if uid is not None:
            check_way(work, or_else="set TMPDIR")
        yield work
    finally:
        is_lent = uid is not None
        end = partial(remove_tree, work) if files is None else partial(_take_back, work, modes if is_lent else None)
        await in_thread(end, what=f"taking {work} back from a sandbox")


def _give(work: Path, uid: int) -> None:
    """Make a folder the sandbox's, which has to get through the one that it is in, and nobody else into it."""
    work.parent.chmod(work.parent.stat().st_mode | 0o011)
    work.chmod(0o700)
    said = _change(work, ("chown", "-Rh", f"{uid}:{uid}"))
    if said:
        raise SandboxUnavailableError(f"{work} cannot be given to the sandbox's user: {said}")


def check_way(path: Path, *, or_else: str) -> None:
    """See whether a sandbox's user, where that is another one, can come to what is in a folder.

    Args:
        path: What is in it.
        or_else: What to do instead of opening the folders above.

    Raises:
        SandboxUnavailableError: When it cannot.
    """
    for folder in path.resolve().parents:
        if not folder.stat().st_mode & 0o001:
            raise SandboxUnavailableError(
                f"{folder} is closed to the user that the sandbox runs as instead of root: chmod o+x it, or {or_else}"
            )


def _take_back(work: Path, modes: Mapping[Path, int] | None) -> None:
    """Make a folder ours, and readable, whatever a sandbox has made of it.

    Args:
        work: The folder.
        modes: Where it was another user's, what it and the one above it could be used for before.
    """
    changes = [("chmod", "-R", "u+rwX")]
    if modes is not None:
        changes.insert(0, ("chown", "-Rh", f"{os.geteuid()}:{os.getegid()}"))
    for change in changes:
        said = _change(work, change)
        if said:
            logger.error("%s: what a sandbox has left stays as it is: %s", work, said)
    for path, mode in (modes or {}).items():
        path.chmod(stat.S_IMODE(mode) | (stat.S_IRWXU if path == work else 0))


def _change(work: Path, change: tuple[str, ...]) -> str:
    """Change every file in a tree; the commands do so at any depth, and follow no symlink. Return what went wrong."""
    try:
        done = subprocess.run(
            [*change, "--", work], timeout=_CHANGE_S, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return str(exc)
    return done.stderr.decode("utf-8", "replace").strip().splitlines()[0] if done.returncode and done.stderr else ""
