"""Telling what is raised to stop us from what a bundle's code raises itself: both look the same."""

from __future__ import annotations

import asyncio
import threading

__all__ = ["stops_us"]


def stops_us(exc: BaseException, task: asyncio.Task[object] | None) -> bool:
    """Whether something that came out of code which was called or awaited is meant for us, and has to go on.

    It is when somebody has cancelled our task, when our coroutine is closed from outside, and at Ctrl-C. Code may raise
    the very same of its own accord, and then it is a mistake like any other.

    Args:
        exc: What came out of it.
        task: `asyncio.current_task()` from before it was called.
    """
    match exc:
        case asyncio.CancelledError():
            return task is None or task.cancelling() > 0
        case GeneratorExit():
            # A coroutine is closed when nobody runs it any more: its task cannot be the one that is running.
            return task is None or task is not _running_task()
        case KeyboardInterrupt():
            # Ctrl-C is raised in the main thread, in whatever stands there: it cannot be told from a `raise` there.
            return threading.current_thread() is threading.main_thread()
        case _:
            return False


def _running_task() -> asyncio.Task[object] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return None
