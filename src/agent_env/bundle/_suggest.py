"""Close matches: what someone who wrote a wrong name probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from agent_env._wording import counted

__all__ = ["closest", "names_or_closest"]

_LISTED = 12
"""How many names a message lists before it stops."""


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name nearest to `name`, or None when none is near."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    found = get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def names_or_closest(name: str, known: Iterable[str]) -> str:
    """Say what to write instead of `name`: the closest known name, or else all of them."""
    names = list(known)
    near = closest(name, names)
    if near is not None:
        return f"did you mean '{near}'?"
    if not names:
        return "there is none to name here"
    more = "" if len(names) <= _LISTED else f" or {counted(len(names) - _LISTED, 'other')}"
    return f"write one of {', '.join(names[:_LISTED])}{more}"
