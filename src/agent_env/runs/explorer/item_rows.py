"""A conversation's items in rows: steps that say nothing share one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from agent_env.runs.conversation import Item

__all__ = ["item_rows"]


def item_rows(items: Sequence[Item]) -> list[Sequence[Item]]:
    """The items in rows, in order: one in each, but that steps which start right after one another are together."""
    rows: list[Sequence[Item]] = []
    for are_steps, found in groupby(items, key=_is_silent_step):
        some = list(found)
        rows += [some] if are_steps else [[item] for item in some]
    return rows


def _is_silent_step(item: Item) -> bool:
    return item.look == "step" and not (item.text or item.sections or item.is_error)
