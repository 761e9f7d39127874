"""A group and what is around it: the same step of other splits, the steps before and after, another training run's.

Also what is said of its runs as a whole. Not its tasks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from agent_env.errors import UsageError
from agent_env.runs._reading import moments, read_groups
from agent_env.runs.explorer.neighbours import Neighbours, first_text
from agent_env.runs.record import GroupSummary

__all__ = ["PlacedGroup", "ScoreMean", "read_placed_group", "read_scores", "read_tools"]

_LARGE = 20_000
"""Runs from which on a page does not read all that a group has."""
_SEEN = 1_000
"""Runs that are looked through for the names of tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedGroup:
    """A group and what is around it."""

    key: int
    summary: GroupSummary
    shift: float
    """Near its rewards: sums of squares do not cancel when they are of the difference to it."""
    neighbours: Neighbours
    """The groups of the steps before and after, of the same split."""
    before: GroupSummary | None
    """The step before."""
    siblings: Mapping[str, str]
    """The groups of the other splits at this step, by split."""
    other_group: str | None
    """The group of another training run that was asked for: of the same split and step."""

    @property
    def is_large(self) -> bool:
        """Whether its runs are too many to read them all."""
        return self.summary.runs > _LARGE


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreMean:
    """What one verify step said, over the completed runs that it scored."""

    step: str
    scored: int
    mean: float
    se: float | None


def read_placed_group(conn: sqlite3.Connection, name: str, *, other: str = "") -> PlacedGroup:
    """A group and what is around it.

    Args:
        conn: What to ask.
        name: The group's.
        other: A training run whose group of the same split and step is looked for.

    Raises:
        UsageError: When there is no such group.
    """
    groups = read_groups(conn, names=[name])
    if not groups:
        raise UsageError(f"no group {name!r}: the first page lists the training runs, and each its groups")
    place = groups[0].place
    key, shift = tuple(conn.execute("SELECT key, coalesce(shift, 0) FROM groups WHERE name = ?", (name,)).fetchone())
    neighbours = Neighbours(before=None, after=None)
    siblings: dict[str, str] = {}
    other_group = None
    if place is not None:
        neighbours = _neighbours(conn, place.training, place.split, place.step)
        siblings = dict(
            conn.execute(
                "SELECT split, name FROM groups WHERE training = ? AND step = ? AND split <> ?"
                " ORDER BY split <> 'train', split",
                (place.training, place.step, place.split),
            ).fetchall()
        )
        other_group = first_text(
            conn.execute(
                "SELECT name FROM groups WHERE training = ? AND split = ? AND step = ?",
                (other, place.split, place.step),
            )
        )
    before = read_groups(conn, names=[neighbours.before])[0] if neighbours.before is not None else None
    return PlacedGroup(
        key=key,
        summary=groups[0],
        shift=shift,
        neighbours=neighbours,
        before=before,
        siblings=siblings,
        other_group=other_group,
    )


def read_scores(conn: sqlite3.Connection, group: PlacedGroup) -> tuple[ScoreMean, ...]:
    """What each verify step said, where there are several; of a large group nothing."""
    if group.is_large:
        return ()
    rows = conn.execute(
        "SELECT CAST(j.key AS BLOB) AS step, count(*) AS n, total(j.value) AS total, total(j.value * j.value) AS squares,"
        " min(j.id) FROM runs r, json_each(r.scores) j WHERE r.group_key = ? AND r.state = 'completed'"
        " AND j.key IS NOT NULL GROUP BY j.key ORDER BY 5",
        (group.key,),
    ).fetchall()
    if len(rows) < 2:
        return ()
    found: list[ScoreMean] = []
    for row in rows:
        mean, se = moments(row["n"], 0.0, row["total"], row["squares"])
        found.append(ScoreMean(step=_name(row["step"]), scored=row["n"], mean=mean or 0.0, se=se))
    return tuple(found)


def read_tools(conn: sqlite3.Connection, group: PlacedGroup) -> tuple[str, ...]:
    """The names of the tools that its runs called; of a large group those that some of them called."""
    rows = conn.execute(
        "SELECT DISTINCT CAST(j.key AS BLOB) FROM (SELECT tools FROM runs WHERE group_key = ? LIMIT ?) r,"
        " json_each(r.tools) j WHERE j.key IS NOT NULL ORDER BY 1",
        (group.key, _SEEN),
    )
    return tuple([_name(row[0]) for row in rows])


def _name(key: bytes) -> str:
    """A name out of JSON: a model may write half of a surrogate pair into it, which is no UTF-8."""
    return key.decode("utf-8", "surrogatepass")


def _neighbours(conn: sqlite3.Connection, training: str, split: str, step: int) -> Neighbours:
    place = (training, split, step)
    sql = "SELECT name FROM groups WHERE training = ? AND split = ? AND step {} ? ORDER BY step {} LIMIT 1"
    return Neighbours(
        before=first_text(conn.execute(sql.format("<", "DESC"), place)),
        after=first_text(conn.execute(sql.format(">", "ASC"), place)),
    )
