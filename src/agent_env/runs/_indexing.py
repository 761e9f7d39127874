"""Putting words into the search index, after the runs themselves are written.

A run is never late for the sake of the search index: words are put in by transactions of their own, when nothing else waits
to be written. Up to which chunk that is done stands with each writer. What a process has not put in when it is killed, or what
was more than it may keep in memory, is read again from the chunks.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Iterable

from agent_env.runs._batch import dead_writers, in_few
from agent_env.runs._schema import immediate
from agent_env.runs._versions import NEW_WORDS
from agent_env.runs._words import words_of

__all__ = ["WordsQueue", "catch_up_some", "has_left_overs", "start_anew"]

_QUEUE_CHARS = 32 << 20
_SLICE_CHARS = 80 * 1024
"""What a transaction puts in: other processes wait for it, some 10 ms."""
_SLICE_BYTES = 128 << 10
"""What a transaction reads to put in, before compression."""
_INSERT_WORDS = "INSERT INTO words (rowid, text) VALUES {values}"


class WordsQueue:
    """The words of one process's chunks that are not in the search index yet, in the order of their keys."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, str]] = deque()
        self._chars = 0
        self._is_behind = False
        """More was written than may be kept here: the rest is read from the chunks, once what is here is put in."""

    def __bool__(self) -> bool:
        return bool(self._waiting) or self._is_behind

    def add(self, words: Iterable[tuple[int, str]]) -> None:
        """Take the words of chunks that were written."""
        for key, text in words:
            if self._is_behind or self._chars > _QUEUE_CHARS:
                self._is_behind = True
                return
            self._waiting.append((key, text))
            self._chars += len(text)

    def forget(self) -> None:
        """Leave everything to be read from the chunks."""
        self._waiting.clear()
        self._chars = 0
        self._is_behind = True

    def write_some(self, conn: sqlite3.Connection, writer_key: int) -> None:
        """Put in what a short transaction takes.

        Raises:
            sqlite3.Error: When it cannot be written; it all waits on then.
        """
        if not self._waiting:
            self._is_behind = catch_up_some(conn, own=writer_key)
            return
        rows: list[tuple[int, str]] = []
        chars = 0
        for key, text in self._waiting:
            rows.append((key, text))
            chars += len(text)
            if chars >= _SLICE_CHARS:
                break
        with immediate(conn):
            in_few(conn, _INSERT_WORDS, [row for row in rows if row[1]])
            conn.execute("UPDATE writers SET words_to = ? WHERE key = ?", (rows[-1][0], writer_key))
        for _ in rows:
            self._chars -= len(self._waiting.popleft()[1])


def has_left_overs(conn: sqlite3.Connection) -> bool:
    """Whether processes that are gone left words out."""
    return bool(_lagging(conn, own=None))


def catch_up_some(conn: sqlite3.Connection, *, own: int | None = None) -> bool:
    """Put in some words that processes which are gone left out, and those of the writer `own`.

    Returns:
        Whether there is more.

    Raises:
        sqlite3.Error: When it cannot be written.
    """
    with immediate(conn):
        lagging = _lagging(conn, own=own)
        if not lagging:
            return False
        rows: list[tuple[int, str]] = []
        size = 0
        last = max(chunks_to for _, chunks_to in lagging.values())
        for key, writer, raw_bytes, codec, body in conn.execute(
            "SELECT c.key, r.writer_key, c.raw_bytes, c.codec, c.body FROM chunks c JOIN runs r ON r.key = c.run_key"
            " WHERE c.key > ? AND c.key <= ? ORDER BY c.key",
            (min(words_to for words_to, _ in lagging.values()), last),
        ):
            if size and size + raw_bytes > _SLICE_BYTES:
                last = key - 1
                break
            if writer in lagging and key > lagging[writer][0]:
                size += raw_bytes
                rows.append((key, words_of(body, codec)))
        in_few(conn, _INSERT_WORDS, [row for row in rows if row[1]])
        conn.executemany(
            "UPDATE writers SET words_to = max(words_to, ?) WHERE key = ?", [(last, writer) for writer in lagging]
        )
        return any(chunks_to > last for _, chunks_to in lagging.values())


def start_anew(conn: sqlite3.Connection, *, own: int | None) -> bool:
    """Empty the search index, so that `catch_up_some` fills it without what was deleted.

    Returns:
        False, and nothing is done, when another process is writing: it would not know.

    Raises:
        sqlite3.Error: When it cannot be written.
    """
    with immediate(conn):
        gone: set[object] = {*dead_writers(conn), own}
        if any(key not in gone for (key,) in conn.execute("SELECT key FROM writers WHERE closed_at_s IS NULL")):
            return False
        conn.execute("DROP TABLE words")  # also where it is damaged
        conn.execute(NEW_WORDS)
        conn.execute("UPDATE writers SET words_to = 0")
    return True


def _lagging(conn: sqlite3.Connection, *, own: int | None) -> dict[int, tuple[int, int]]:
    """By writer, up to which chunk words are in, and up to which there are chunks."""
    rows = conn.execute(
        "SELECT key, words_to, chunks_to, closed_at_s FROM writers WHERE words_to < chunks_to"
    ).fetchall()
    if not rows:
        return {}
    gone: set[object] = {*dead_writers(conn), own}
    lagging: dict[int, tuple[int, int]] = {}
    for key, words_to, chunks_to, closed_at_s in rows:
        if closed_at_s is not None or key in gone:
            lagging[key] = (words_to, chunks_to)
    return lagging
