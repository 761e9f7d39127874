"""How messages count: one task, two tasks."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str) -> str:
    """Return a number of things in words: `1 task`, `2 tasks`. The noun's plural ends with s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
