"""How messages count, list, clip and quote: `2 tasks`, `'a', 'b' and 3 others`, `the start of a lo...`."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["clipped", "counted", "in_line", "quoted"]


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


def in_line(text: str) -> str:
    r"""Return a text so that it stays in its line when it is quoted: what cannot be printed is escaped, a line break as `\n`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
