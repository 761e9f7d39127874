"""Finding a text in the runs of an index, the newest first.

The search index says which chunks have all the words; whether one event of a chunk has them, and in which order, is looked up
in the chunk itself. So "all words in one message" means the same for a run that was written in one piece and for one that was
written message by message.
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from agent_env.errors import RunIndexError, UsageError
from agent_env.runs._codec import unpack
from agent_env.runs._reading import runs_by_key
from agent_env.runs._schema import GROUPS_BELOW, bounds_below
from agent_env.runs._words import TOKENIZER, as_read, as_signs, terms_of, text_of, written
from agent_env.runs.record import SearchHit, SearchPage

__all__ = ["RunsWith", "runs_with", "search"]

_QUERY_CHARS = 1_000
_EXCERPT_WORDS = 24
_EXCERPT_CHARS = 300
_WINDOW = 20_000
"""Chunks that the search index is asked about first; later windows are larger."""
_FEW_GROUPS = 20
_MOST_WAITING = 10_000
_PART = re.compile(r'"([^"]*)"|(\S+)')


def search(
    conn: sqlite3.Connection,
    text: str,
    *,
    group: str = "",
    after: str | None = None,
    limit: int = 50,
    limit_s: float = 2.0,
) -> SearchPage:
    """Look for `text`; see `RunIndex.search`.

    Raises:
        UsageError: When there is nothing in it to look for, when it is too long, or `after` is from no page.
        sqlite3.Error: When the index cannot be read.
    """
    until = time.monotonic() + limit_s
    with closing(_EventFinder(text)) as finder:
        found = _Found(limit=limit)
        span = _span(conn, group, after)
        last = None if span.groups == [] else _look(conn, finder, span, found, until)
        runs, _ = runs_by_key(conn, [run_key for run_key, _, _ in found.places])
    hits = [
        SearchHit(run=runs[run_key], seq=seq, excerpt=excerpt)
        for run_key, seq, excerpt in found.places
        if run_key in runs
    ]
    return SearchPage(
        hits=tuple(hits),
        next_page=None if last is None or last <= span.first else str(last),
        waiting=_waiting(conn),
        damaged=tuple(found.damaged),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsWith:
    """Which runs of a group have a text."""

    run_ids: tuple[str, ...]
    is_all: bool
    """False when it stopped where its time was over."""
    waiting: int
    """As in `SearchPage`."""


def runs_with(conn: sqlite3.Connection, text: str, *, group: str, limit_s: float = 2.0) -> RunsWith:
    """Look for `text` in all runs of one group. A single word costs no more than the search index takes to say where it is.

    Raises:
        UsageError: When there is nothing in it to look for, or when it is too long.
        sqlite3.Error: When the index cannot be read.
    """
    until = time.monotonic() + limit_s
    found: dict[str, None] = {}
    is_all = True
    with closing(_EventFinder(text)) as finder:
        # An index has which chunks the runs have: the chunks themselves may lie anywhere on the disk.
        run_ids: dict[int, str] = dict(
            conn.execute(
                "SELECT c.key, r.run_id FROM runs r CROSS JOIN chunks c ON c.run_key = r.key"
                " WHERE r.group_key = (SELECT key FROM groups WHERE name = ?)",
                (group,),
            ).fetchall()
        )
        rows = conn.execute(
            "SELECT rowid FROM words WHERE words MATCH ? AND rowid >= ? AND rowid <= ? ORDER BY rowid DESC",
            (finder.coarse, min(run_ids, default=1), max(run_ids, default=0)),
        )
        for (key,) in rows:
            if time.monotonic() > until:
                is_all = False
                break
            run_id = run_ids.get(key)
            if run_id is None or run_id in found:
                continue
            if finder.is_one_word or _has(conn, finder, key):
                found[run_id] = None
    return RunsWith(run_ids=tuple(found), is_all=is_all, waiting=_waiting(conn))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Span:
    """Which chunks are looked through: those with keys from `first` up to but without `last`, of some groups."""

    first: int
    last: int
    groups: Sequence[int] | None
    """None is all of them."""


@dataclass(slots=True, kw_only=True)
class _Found:
    limit: int
    places: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])
    """The run's key, the event's place, an excerpt."""
    damaged: dict[str, None] = field(default_factory=dict[str, None])


class _EventFinder:
    """What is looked for, and a small database in memory that looks for it in the events of a chunk."""

    def __init__(self, text: str) -> None:
        """Read what is asked for.

        Raises:
            UsageError: When there is nothing in it to look for, or when it is too long.
        """
        if len(text) > _QUERY_CHARS:
            raise UsageError(f"a text to search for has at most {_QUERY_CHARS} characters, and this one {len(text)}")
        self._conn = sqlite3.connect(":memory:", isolation_level=None)
        self._conn.execute(f"CREATE VIRTUAL TABLE words USING fts5(text, {TOKENIZER})")
        self._conn.execute("CREATE VIRTUAL TABLE terms USING fts5vocab(words, instance)")
        wanted: list[str] = []
        exact: list[str] = []
        self._phrases: list[re.Pattern[str]] = []
        for phrase, word in _PART.findall(written(text)):
            part = phrase or word
            is_beginning = bool(word) and part.endswith("*")
            rest, terms = terms_of(part.rstrip("*") if is_beginning else part)
            terms = [*terms, *self._words(rest)]
            if not terms:
                continue  # punctuation alone
            if is_beginning and not terms[-1].endswith("*"):
                terms[-1] += "*"
            wanted += terms
            signs = as_signs(part.rstrip("*") if is_beginning else part).replace('"', " ")
            exact.append(f'"{signs}"{"*" if is_beginning else ""}')
            if len(terms) > 1 and all(map(str.isascii, terms)):
                self._phrases.append(_in_text(terms))
        if not wanted:
            self.close()
            raise UsageError(f'there is no word in {text[:80]!r} to search for: write one, or a "phrase", or a begin*')
        different = dict.fromkeys(wanted)
        self.coarse = " AND ".join(f'"{term.rstrip("*")}"{"*" if term.endswith("*") else ""}' for term in different)
        """For the search index: chunks that may have it."""
        self.is_one_word = len(wanted) == 1
        """Whether every chunk that may have it has it."""
        self._exact = " AND ".join(exact)
        self._in_line = [(term.rstrip("*").encode(), _in_line(term)) for term in different if term.isascii()]

    def close(self) -> None:
        self._conn.close()

    def first_in(self, body: bytes, codec: int) -> tuple[int, str] | None:
        """Which event of a chunk has it first, and an excerpt of that.

        Raises:
            RunIndexError: When the chunk is damaged.
        """
        for at, line in enumerate(unpack(body, codec).split(b"\n")):
            if self._may_be_in(line):
                text = text_of(line)
                excerpt = self._excerpt(text) if self._may_say(text) else None
                if excerpt is not None:
                    return at, excerpt
        return None

    def _may_be_in(self, line: bytes) -> bool:
        """False where an event has not got it: to read it and split it into words takes many times as long."""
        if b"\\u" in line:  # what is not ASCII is escaped, and a plain letter finds an accented one
            return True
        lower = line.lower()
        return all(word in lower and found.search(lower) for word, found in self._in_line)

    def _may_say(self, text: str) -> bool:
        """False where a text has the words of a phrase, and not in a row."""
        return not text.isascii() or all(found.search(text) for found in self._phrases)

    def _excerpt(self, text: str) -> str | None:
        self._fill(as_signs(text))
        row = self._conn.execute(
            f"SELECT snippet(words, 0, '', '', '…', {_EXCERPT_WORDS}) FROM words WHERE words MATCH ?", (self._exact,)
        ).fetchone()
        if row is None:
            return None
        excerpt = as_read(row[0])
        return excerpt if len(excerpt) <= _EXCERPT_CHARS else f"{excerpt[: _EXCERPT_CHARS - 1]}…"

    def _words(self, text: str) -> list[str]:
        self._fill(text)
        return [row[0] for row in self._conn.execute("SELECT term FROM terms ORDER BY offset")]

    def _fill(self, text: str) -> None:
        self._conn.execute("REPLACE INTO words (rowid, text) VALUES (1, ?)", (text,))


def _in_line(term: str) -> re.Pattern[bytes]:
    """What finds a word of ASCII letters and digits in a line of a chunk, whose line breaks are two signs."""
    after = "" if term.endswith("*") else "(?![0-9a-z])"
    return re.compile(rf"(?:(?<![0-9a-z])|(?<=\\[bfnrt])){term.rstrip('*')}{after}".encode())


def _in_text(terms: Sequence[str]) -> re.Pattern[str]:
    """What finds words of ASCII letters and digits in a row in a text of ASCII."""
    words = "[^0-9a-z]+".join(term.rstrip("*") for term in terms)
    after = "" if terms[-1].endswith("*") else "(?![0-9a-z])"
    return re.compile(f"(?<![0-9a-z]){words}{after}", re.ASCII | re.IGNORECASE)


def _look(conn: sqlite3.Connection, finder: _EventFinder, span: _Span, found: _Found, until: float) -> int | None:
    """Go through the chunks that have the words; the key before which to go on, None at the end."""
    groups = None if span.groups is None else set(span.groups)
    seen: set[int] = set()
    for first, last in _windows(span, is_beginning="*" in finder.coarse):
        rows = conn.execute(
            "SELECT rowid FROM words WHERE words MATCH ? AND rowid >= ? AND rowid < ? ORDER BY rowid DESC",
            (finder.coarse, first, last),
        )
        for (key,) in rows:
            # Without its body, which may be large, and is not wanted of a run that was found before.
            chunk = conn.execute(
                "SELECT c.run_key, r.group_key, r.run_id, c.first_seq FROM chunks c"
                " JOIN runs r ON r.key = c.run_key WHERE c.key = ?",
                (key,),
            ).fetchone()
            if chunk is None or chunk[0] in seen or (groups is not None and chunk[1] not in groups):
                if time.monotonic() > until:
                    return int(key)
                continue
            run_key, _, run_id, first_seq = chunk
            try:
                place = _first_in(conn, finder, key)
            except RunIndexError:
                found.damaged[run_id] = None
                place = None
            if place is not None:
                seen.add(run_key)
                found.places.append((run_key, first_seq + place[0], place[1]))
            if len(found.places) >= found.limit or time.monotonic() > until:
                return int(key)
        if time.monotonic() > until:
            return first
    return None


def _first_in(conn: sqlite3.Connection, finder: _EventFinder, key: int) -> tuple[int, str] | None:
    codec, body = conn.execute("SELECT codec, body FROM chunks WHERE key = ?", (key,)).fetchone()
    return finder.first_in(body, codec)


def _has(conn: sqlite3.Connection, finder: _EventFinder, key: int) -> bool:
    try:
        return _first_in(conn, finder, key) is not None
    except RunIndexError:
        return False  # the run's own page says what is damaged


def _windows(span: _Span, *, is_beginning: bool) -> Iterator[tuple[int, int]]:
    """The span in parts, the newest first: a search that finds enough early does not ask for the rest.

    For words that begin in some way, the search index gathers all of them each time it is asked: once is enough.
    """
    last, size = span.last, span.last if is_beginning else _WINDOW
    while last > span.first:
        yield max(span.first, last - size), last
        last, size = last - size, size * 4


def _span(conn: sqlite3.Connection, group: str, after: str | None) -> _Span:
    last = int(conn.execute("SELECT coalesce(max(key), 0) FROM chunks").fetchone()[0]) + 1
    if after is not None:
        if not after.isascii() or not after.isdecimal() or len(after) > 18:
            raise UsageError(f"after={after[:40]!r} is from no page of a search: start without it")
        last = min(last, int(after))
    if not group:
        return _Span(first=1, last=last, groups=None)
    groups = [int(row[0]) for row in conn.execute(GROUPS_BELOW, bounds_below(group))]
    first = 1
    if 0 < len(groups) <= _FEW_GROUPS:
        bounds = conn.execute(
            "SELECT min(c.key), max(c.key) FROM runs r JOIN chunks c ON c.run_key = r.key"
            " WHERE r.group_key IN (SELECT value FROM json_each(?))",
            (json.dumps(groups),),
        ).fetchone()
        first, last = bounds[0] or 1, min(last, (bounds[1] or 0) + 1)
    return _Span(first=first, last=last, groups=groups)


def _waiting(conn: sqlite3.Connection) -> int:
    return int(
        conn.execute(
            "SELECT count(*) FROM (SELECT 1 FROM writers w CROSS JOIN chunks c CROSS JOIN runs r"
            " WHERE w.words_to < w.chunks_to AND c.key > w.words_to AND c.key <= w.chunks_to AND r.key = c.run_key"
            " AND r.writer_key = w.key LIMIT ?)",
            (_MOST_WAITING,),
        ).fetchone()[0]
    )
