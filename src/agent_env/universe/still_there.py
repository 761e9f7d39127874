"""Whether what recorded changes say was there still is, when they are made again; else nothing is made up.

Every kind of state says it in the same words.
"""

from __future__ import annotations

from typing import Any

from agent_env.errors import UniverseError
from agent_env.universe.change import MISSING, Change, unmarked
from agent_env.universe.diff import Rules, find_differences

__all__ = ["check_still_there", "not_the_same", "not_there"]

_EXACTLY = Rules.of()


def check_still_there(change: Change, there: Any) -> None:
    """See whether a value is what a change says was there before.

    Raises:
        UniverseError: When it is another.
    """
    before = change.before if change.before is MISSING else unmarked(change.before)
    if next(find_differences(before, there, _EXACTLY), None) is not None:
        raise not_there(change)


def not_there(change: Change) -> UniverseError:
    """Return the error of a change whose place has something else in it now, or is none any more."""
    was = "something else is there now" if change.before is not MISSING else "its place is another one now"
    return UniverseError(f"{change.path or 'the state'} cannot be changed again: {was}; the universe is another since")


def not_the_same(why: object) -> UniverseError:
    """Return the error of changes that do not fit the universe as a whole."""
    return UniverseError(f"the changes cannot be made again: {why}; the universe is another since")
