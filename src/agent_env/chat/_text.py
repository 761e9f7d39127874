"""Text that came over the network, made fit to keep and to show."""

from __future__ import annotations

import re

__all__ = ["printable_line", "without_surrogates"]

_SURROGATES = re.compile("[\ud800-\udfff]")


def without_surrogates(text: str) -> str:
    """The same text, with U+FFFD for each half of a surrogate pair: that is no text, and cannot be written or sent."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def printable_line(text: str, limit: int = 300) -> str:
    """The text in one line of at most `limit` characters, with U+FFFD for what cannot be printed."""
    line = " ".join(text[: 4 * limit].split())
    line = "".join(char if char.isprintable() else "\ufffd" for char in line)
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
