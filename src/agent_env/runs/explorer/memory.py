"""What was worked out from the index, kept while nothing is written to it: a page looked at again costs little."""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TypeVar, cast

from agent_env.runs._schema import connect_reader, identity_of, saying

__all__ = ["Memory"]

_KEPT = 32
"""Answers that are kept: of a training run of thousands of steps, one is a few megabytes."""

T = TypeVar("T")
_Version = tuple[int, int, int]


class Memory:
    """Answers by question. For any number of threads."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._conn: sqlite3.Connection | None = None
        self._identity = (0, 0)
        self._kept: OrderedDict[Hashable, tuple[_Version, object]] = OrderedDict()

    def get(self, question: Hashable, ask: Callable[[], T]) -> T:
        """The answer to a question: a kept one when nothing was written since it was given.

        Args:
            question: All that the answer depends on, beside the index.
            ask: What answers it, by reading the index anew.

        Raises:
            RunIndexError: When the index cannot be read.
        """
        with self._lock:
            version = self._version()
            found = self._kept.get(question)
            if found is not None and found[0] == version:
                self._kept.move_to_end(question)
                return cast("T", found[1])
        answer = ask()  # after the version was read: what is written meanwhile makes another version
        with self._lock:
            self._kept[question] = (version, answer)
            self._kept.move_to_end(question)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return answer

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._close()

    def _version(self) -> _Version:
        """Changes whenever anything is written to the index by another connection, which every writer is."""
        with saying(self._file):
            identity = identity_of(self._file)
            if self._conn is None or identity != self._identity:
                self._close()
                self._conn = connect_reader(self._file)
                self._identity = identity
            return (*identity, int(self._conn.execute("PRAGMA data_version").fetchone()[0]))

    def _close(self) -> None:
        if self._conn is not None:
            self._conn.close()
            self._conn = None
