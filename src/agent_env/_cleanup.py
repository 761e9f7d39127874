"""Release that is shielded from cancellation, bounded in time, and never hides why it came to it.

Also the removal of folders that somebody else has filled.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import anyio

__all__ = ["close_stack", "remove_tree", "wait_until_done"]

logger = logging.getLogger(__name__)

_REMOVE_S = 60.0


async def wait_until_done(task: asyncio.Task[Any], *, grace_s: float, what: str) -> None:
    """Wait until a task of ours has ended, also while the waiting task is cancelled.

    What the task raises stays in it. A cancellation that arrives meanwhile is raised after the wait.

    Args:
        task: The task; nothing is done to it.
        grace_s: Seconds to wait. A task that is still there then is logged and left.
        what: What the task does, as the start of the sentence in the log.
    """
    cancelled: asyncio.CancelledError | None = None
    with anyio.move_on_after(grace_s, shield=True) as scope:
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as exc:
                if scope.cancel_called:
                    raise
                # A second Task.cancel() goes through the shield; the task would outlive its owner.
                cancelled = exc
    if not task.done():
        logger.error("%s: still there after %s s", what, grace_s)
    if cancelled is not None:
        raise cancelled


async def close_stack(stack: AsyncExitStack, *, grace_s: float, what: str) -> None:
    """Close all that a stack holds; log what goes wrong.

    The bound is asyncio's own: a cancel scope around the exit of scopes that were entered before it would not nest.

    Args:
        stack: What to close, in the task that entered it.
        grace_s: Seconds it may take.
        what: Whose it is, as the start of the sentence in the log.
    """
    try:
        async with asyncio.timeout(grace_s):
            await stack.aclose()
    except TimeoutError:
        logger.exception("%s: closing took longer than %s s", what, grace_s)
    except Exception:  # raised here it would replace what the block is left with
        logger.exception("%s: closing raised", what)


def remove_tree(path: Path) -> None:
    """Remove a folder, also what is unreadable in it, or too deep for a path. Blocks; what cannot be removed is logged."""
    with suppress(OSError, RecursionError):
        shutil.rmtree(path)
    if path.exists():
        for command in ("chmod", "-R", "u+rwX"), ("rm", "-rf"):
            with suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run([*command, "--", path], timeout=_REMOVE_S, capture_output=True, check=False)
    if path.exists():
        logger.error("%s: it cannot be removed with all that is in it", path)
