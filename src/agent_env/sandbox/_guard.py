"""A lock that a forked process finds open: the thread that held it when the process was forked is not in it."""

from __future__ import annotations

import os
import threading
from types import TracebackType

__all__ = ["Guard"]


class Guard:
    """A lock for what a process has once. One for each module, as long as the process."""

    def __init__(self) -> None:
        self._renew()
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
