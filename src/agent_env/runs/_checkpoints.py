"""Copying what was written from the write-ahead log into the file, in a thread of its own.

It waits for the disk to say that it has it all, which may take a second on a busy machine: the thread that writes runs must
not wait for that.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from pathlib import Path

from agent_env.runs._schema import connect_checkpointer

__all__ = ["Checkpoints"]

logger = logging.getLogger(__name__)

_EASY_BYTES = 16 << 20
"""A log that is larger than this is copied: pages that many transactions touch are copied once for all of them."""
_FULL_BYTES = 128 << 20
"""Larger, it is emptied, for which writers have to wait: with several at work, it is never all copied otherwise."""


class Checkpoints:
    """The thread and its connection, made when they are needed first. For one thread that writes."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._log = file.with_name(f"{file.name}-wal")
        self._wake = threading.Condition(threading.Lock())
        # Guarded by `_wake`:
        self._is_wanted = False
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Have the log copied when it is large. Waits for nothing."""
        if self._size() <= _EASY_BYTES:
            return
        with self._wake:
            self._is_wanted = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="agent-env-runs-checkpoints", daemon=True)
                self._thread.start()
            self._wake.notify()

    def close(self) -> None:
        """Stop, after the copy that is under way."""
        with self._wake:
            self._is_closed = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def _serve(self) -> None:
        conn: sqlite3.Connection | None = None
        try:
            while True:
                with self._wake:
                    self._wake.wait_for(lambda: self._is_wanted or self._is_closed)
                    if self._is_closed:
                        return
                    self._is_wanted = False
                conn = conn or connect_checkpointer(self._file)
                how = "PASSIVE" if self._size() <= _FULL_BYTES else "RESTART"
                conn.execute(f"PRAGMA wal_checkpoint({how})").fetchone()
        except (sqlite3.Error, OSError) as exc:
            # What is wrong with the disk is said by who writes; the log only grows.
            logger.warning("%s: the log is not copied into the file any more: %s", self._file, exc)
        finally:
            if conn is not None:
                conn.close()

    def _size(self) -> int:
        try:
            return self._log.stat().st_size
        except OSError:
            return 0
