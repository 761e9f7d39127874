"""Making recorded changes again, on a fresh copy of the universe: the state that an episode left.

Each change says what was there before. Where something else is there now, the universe has been changed since the run, and
nothing is made up: the error names the place.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, cast

from agent_env.errors import UniverseError
from agent_env.universe.change import MISSING, Change, StateChanges, from_pointer, unmarked
from agent_env.universe.database_apply import apply_to_database
from agent_env.universe.directory_apply import apply_to_directory
from agent_env.universe.still_there import check_still_there, not_there

__all__ = ["apply"]


def apply(changes: StateChanges, state: Any) -> Any:
    """Make changes again.

    Blocks for as long as the files or rows take: call it in a thread where it may be many.

    Args:
        changes: What `PrivateCopy.changes` gave: without anything ignored or unordered.
        state: A private copy's state. It is changed in place; after an error it is of no use any more.

    Returns:
        The state: another one only where the changes replace a JSON state as a whole.

    Raises:
        UniverseError: When the changes are not all that there were, or do not fit the state.
    """
    if not changes.is_whole:
        raise UniverseError("the changes cannot be made again: not all of them were kept")
    if isinstance(state, sqlite3.Connection):
        apply_to_database(changes, state)
        return state
    if isinstance(state, Path):
        apply_to_directory(changes, state)
        return state
    return _apply_to_json(changes, state)


def _apply_to_json(changes: StateChanges, state: Any) -> Any:
    gone: list[tuple[list[Any], int]] = []
    new: list[tuple[list[Any], int, Change]] = []
    for change in changes.changes:
        segments = _segments(change)
        if not segments:
            check_still_there(change, state)
            return unmarked(change.after)
        parent = _parent(state, segments, change)
        if isinstance(parent, dict):
            _set(cast("dict[str, Any]", parent), segments[-1], change)
            continue
        at = int(segments[-1])
        if change.before is MISSING:
            new.append((parent, at, change))
            continue
        check_still_there(change, parent[at] if at < len(parent) else MISSING)
        if change.after is MISSING:
            gone.append((parent, at))
        else:
            parent[at] = unmarked(change.after)
    # A position is the one from before for what is gone, and the one from after for what is new.
    for parent, at in reversed(gone):
        del parent[at]
    for parent, at, change in new:
        if at > len(parent):
            raise not_there(change)
        parent.insert(at, unmarked(change.after))
    return state


def _segments(change: Change) -> tuple[str, ...]:
    try:
        return from_pointer(change.path)
    except ValueError as exc:
        raise UniverseError(f"the changes cannot be made again: {exc}") from None


def _set(parent: dict[str, Any], key: str, change: Change) -> None:
    check_still_there(change, parent.get(key, MISSING))
    if change.after is MISSING:
        del parent[key]
    else:
        parent[key] = unmarked(change.after)


def _parent(state: Any, segments: tuple[str, ...], change: Change) -> Any:
    """Return the dict or list that a change is in."""
    found = state
    for at, segment in enumerate(segments):
        is_list = isinstance(found, list)
        if not ((is_list and segment.isdecimal()) or isinstance(found, dict)):
            raise not_there(change)
        if at == len(segments) - 1:
            return cast("Any", found)
        try:
            found = cast("Any", found)[int(segment) if is_list else segment]
        except (KeyError, IndexError):
            raise not_there(change) from None
    raise not_there(change)
