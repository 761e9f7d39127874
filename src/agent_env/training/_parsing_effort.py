"""How long the cookbook's parsers take over what a model wrote: their expressions go through some texts again and again.

Counted from the text and the marks that an expression looks for, not measured: what would take too long is never begun.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["MAX_EFFORT", "Span", "effort_of_section", "longest_blanks", "with_short_blanks"]

_BLANK_RUN = re.compile(r"\s+")
_LONG_BLANKS = 50
"""More blanks than that in a row are not parsed: the cookbook's expressions take the cube of their number in time."""
_TOO_MANY_BLANKS = re.compile(rf"\s{{{_LONG_BLANKS},}}")
MAX_EFFORT = 2_000_000
"""How many characters an expression may go through in vain: some ten milliseconds."""


def with_short_blanks(text: str) -> str:
    """The text with each long run of blanks cut to what the parser can bear."""
    return _TOO_MANY_BLANKS.sub(lambda found: found[0][:_LONG_BLANKS], text)


@dataclass(frozen=True, slots=True)
class Span:
    """What an expression looks for: an opening mark, a closing one, and maybe something between them."""

    open: str
    close: str
    between: re.Pattern[str] | None = None
    trims: bool = False
    """Whether it takes the blanks at both ends off, and tries each number of them."""

    def effort(self, text: str) -> int:
        """About how many characters it goes through in vain.

        From each opening mark that nothing closes it goes to the end of the text, and does so again from each place between.
        """
        end = text.rfind(self.close)
        places = [found.start() for found in self.between.finditer(text)] if self.between else []
        if self.between:
            end = next((place for place in reversed(places) if place < end), -1)
        opened = text.count(self.open, end + 1)
        if not opened:
            return 0
        ways = 1 + sum(place > end for place in places)
        if self.trims:
            ways *= longest_blanks(text[end + 1 :]) ** 2
        return opened * ways * (len(text) - end)


_THINKING = Span("<think>", "</think>")


def effort_of_section(section: re.Match[str] | None, text: str, call: Span) -> int:
    """About what reading a section of calls takes, and the thinking around it."""
    if section is None:
        return _THINKING.effort(text)
    around = text[: section.start()] + text[section.end() :]
    return _THINKING.effort(around) + call.effort(with_short_blanks(section[section.lastindex or 0]))


def longest_blanks(text: str) -> int:
    """How many blanks there are at most in a row; 1 where there are none."""
    return max((len(found[0]) for found in _BLANK_RUN.finditer(text)), default=1)
