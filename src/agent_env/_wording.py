"""How messages count, list and clip: `2 tasks`, `'a', 'b' and 3 others`, `the start of a lo...`."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["clipped", "counted", "quoted"]


def counted(number: int, noun: str) -> str:
    """Return a number of things in words: `1 task`, `2 tasks`. The noun's plural ends with s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def quoted(names: Sequence[str], most: int) -> str:
    """Return names in quotes, and how many there are beyond the first `most`: `'a', 'b' and 3 others`."""
    first = ", ".join(f"'{name}'" for name in names[:most])
    return first if len(names) <= most else f"{first} and {counted(len(names) - most, 'other')}"


def clipped(text: str, most: int, *, mark: str = "...") -> str:
    """Return a text, or the start of it with a mark where it has more than `most` characters: as many with the mark."""
    return text if len(text) <= most else text[: most - len(mark)] + mark
