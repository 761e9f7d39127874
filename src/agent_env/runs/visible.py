"""Text that someone else wrote, made safe to show: nothing in it moves a cursor, hides or reorders what is around it."""

from __future__ import annotations

import re

__all__ = ["one_line", "visible"]

# C0 without tab and newline, DEL, C1, marks and overrides of writing direction, line and paragraph separators,
# invisible fillers, lone surrogates, tag characters.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """Show control characters and others that cannot be seen by their number: `⟨U+001B⟩` for escape."""
    return _UNSAFE.sub(lambda found: f"⟨U+{ord(found[0]):04X}⟩", text.replace("\r\n", "\n"))


def one_line(text: str, limit: int = 200) -> str:
    """Show `text` in one line of at most `limit` characters."""
    line = " ".join(visible(text[: 4 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
