"""Whether something was said in a text: how a person would read it, not character by character.

A phrase is found where its words and numbers follow each other:

- case, line ends and runs of blanks do not count, nor does the form of quotes, dashes and full-width characters, nor
  Markdown's `*` and backquotes around a word;
- words match whole: `il` is not in "available". In scripts that are written without blanks they match anywhere;
- numbers match whole and by value, with or without commas between thousands: 1200.5 is in "$1,200.50", 12 is in "$12",
  "12%", "12kg" and "-12", and is not in "120", "1.12", "A12" or "0012". A sign that the phrase has must be there.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

__all__ = ["Phrase", "plain"]

_PLAIN = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
        **dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff"),
    }
)
"""Characters that look different and mean the same; those that are not seen are left out."""
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
"""Scripts whose words have no blanks between them, or particles at their ends: Thai, Lao, Burmese, Khmer, CJK, Hangul."""
_WORD = f"[^\\W_{_UNSPACED}]"
"""A character that has others of its word beside it."""
_EMPHASIS = re.compile(r"(?<![^\W_])[*`]+|[*`]+(?![^\W_])")
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{2,3})*,\d{3}(?!,?\d)")
_TOKEN = re.compile(
    r"(?P<number>(?:(?<![^\W_])[+-])?(?<![^\W_])(?<![^\W_]\.)\d+(?:\.\d+)?(?!\.?[^\W_]))|(?P<blank>\s+)|(?P<word>[^\W_]+)|.",
    re.DOTALL,
)


def plain(text: str) -> str:
    """Return a text with everything taken out of it that does not count, and a blank at either end."""
    text = unicodedata.normalize("NFKC", text.translate(_PLAIN)).translate(_PLAIN).casefold()
    text = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), _EMPHASIS.sub("", text))
    return f" {' '.join(text.split())} "


class Phrase:
    """Something that may have been said."""

    __slots__ = ("_pattern",)

    def __init__(self, phrase: str) -> None:
        """Read the phrase.

        Raises:
            ValueError: When there is nothing in it that could be said.
        """
        self._pattern = _compiled(phrase)

    def found_in(self, text: str) -> re.Match[str] | None:
        """Return where the phrase is in a text that `plain` has made."""
        return self._pattern.search(text)


@lru_cache(maxsize=4096)
def _compiled(phrase: str) -> re.Pattern[str]:
    tokens = list(_TOKEN.finditer(plain(phrase).strip()))
    if not tokens:
        raise ValueError("there is nothing to be said in it")
    pattern = _border_before(tokens[0]) + "".join(map(_pattern_of, tokens))
    if tokens[-1]["word"] and re.match(_WORD, tokens[-1][0][-1]):
        pattern += f"(?!{_WORD})"
    return re.compile(pattern)


def _border_before(first: re.Match[str]) -> str:
    if first["number"] and first[0][0] not in "+-":
        return rf"(?<!{_WORD})(?<![^a-z]\.)"  # a full stop only after a word, as in "no.5"
    if first["number"] or (first["word"] and re.match(_WORD, first[0])):
        return f"(?<!{_WORD})"
    return ""


def _pattern_of(token: re.Match[str]) -> str:
    if token["blank"]:
        return r"\s"
    if not token["number"]:
        return re.escape(token[0])
    sign = token[0][0] if token[0][0] in "+-" else ""
    number = token[0].removeprefix(sign)
    whole, _, fraction = number.partition(".")
    fraction = fraction.rstrip("0")
    if whole.startswith("0") and whole != "0":
        value = re.escape(number)  # an identifier: its zeros count
    elif fraction:
        value = rf"{'0?' if whole == '0' else whole}\.{fraction}0*"
    else:
        value = rf"{whole}(?:\.0+)?"
    before = re.escape(sign) + r"[^\w\s]?" if sign else ""  # -$5
    return rf"{before}{value}(?!\d)(?!\.\d)(?!{_WORD}*\d)"
