"""What a page shows of the index, as something that can be watched: a short text that changes when it does."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from urllib.parse import parse_qs, unquote, urlsplit

from agent_env.runs._reading import dead_json

__all__ = ["Subject", "stamp_of", "subject_of"]

_GROUPS = (
    "SELECT count(*), max(last_at_s), total(scored), total(total), total(finished), total(sampled_tokens) FROM groups"
)


class Kind(StrEnum):
    """What a page is of."""

    ALL = "all"
    TRAININGS = "trainings"
    GROUP = "group"
    RUNS = "runs"


@dataclass(frozen=True, slots=True)
class Subject:
    """What a page shows."""

    kind: Kind
    names: tuple[str, ...] = ()


def subject_of(page: str) -> Subject | None:
    """What the page at an address (path and query) shows; None where that does not change, or there is no such page."""
    if not page.startswith("/"):
        return None
    try:
        parts = urlsplit(page)
        query = parse_qs(parts.query, max_num_fields=50)
    except ValueError:
        return None
    match unquote(parts.path).strip("/").split("/"):
        case [""]:
            return Subject(Kind.ALL)
        case ["training"]:
            return _named(Kind.TRAININGS, query, "name", "with")
        case ["task"]:
            return _named(Kind.TRAININGS, query, "training")
        case ["group"]:
            return _named(Kind.GROUP, query, "name")
        case ["compare"]:
            return _named(Kind.RUNS, query, "left", "right")
        case ["run", run_id]:
            return Subject(Kind.RUNS, (run_id,))
        case _:
            return None


def stamp_of(conn: sqlite3.Connection, subject: Subject) -> str:
    """A text that is another one when what the subject shows is. Reads a few rows.

    Raises:
        sqlite3.Error: When the index cannot be read.
    """
    rows: list[object] = [dead_json(conn)]
    match subject.kind:
        case Kind.ALL:
            rows += map(tuple, conn.execute(_GROUPS))
        case Kind.TRAININGS:
            for name in subject.names:
                rows += map(tuple, conn.execute(f"{_GROUPS} WHERE training = ?", (name,)))
        case Kind.GROUP:
            rows += map(tuple, conn.execute("SELECT * FROM groups WHERE name = ?", subject.names))
            tallies = "SELECT what, kind, n FROM tallies WHERE group_key = (SELECT key FROM groups WHERE name = ?)"
            rows += map(tuple, conn.execute(tallies, subject.names))
        case Kind.RUNS:
            for run_id in subject.names:
                rows += _run(conn, run_id)
    return blake2b(repr(rows).encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()


def _run(conn: sqlite3.Connection, run_id: str) -> list[object]:
    run = conn.execute(
        "SELECT group_key, task_id, state, cut, reward, events, last_at_s, ended_at_s, sampled_tokens,"
        " (SELECT count(*) FROM tokens WHERE run_key = runs.key) FROM runs WHERE run_id >= ? AND run_id < ? LIMIT 1",
        (run_id, run_id + "\U0010ffff"),
    ).fetchone()
    if run is None:
        return [None]
    rollouts = conn.execute(
        "SELECT count(*), total(reward), total(state = 'running'), total(cut IS NOT NULL) FROM runs"
        " WHERE group_key = ? AND task_id = ?",
        (run[0], run[1]),
    ).fetchone()
    return [tuple(run), tuple(rollouts)]


def _named(kind: Kind, query: Mapping[str, list[str]], *names: str) -> Subject | None:
    found = tuple(query[name][0] for name in names if query.get(name))
    return Subject(kind, found) if found else None
