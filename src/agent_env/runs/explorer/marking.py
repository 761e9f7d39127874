"""Where the words that were searched for stand in an excerpt."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from markupsafe import Markup, escape

from agent_env.runs.visible import visible

__all__ = ["Marker"]

_PART = re.compile(r'"([^"]*)"|(\S+)')
_WORD = re.compile(r"[^\W_]+")  # an underscore parts words, as it does in the search index


@dataclass(frozen=True, slots=True)
class _Wanted:
    word: str
    is_beginning: bool


class Marker:
    """Marks the words of one search: those of a phrase each for itself, whatever their case and accents."""

    def __init__(self, text: str) -> None:
        self._wanted = [
            _Wanted(word=_plain(found[0]), is_beginning=word.endswith("*"))
            for phrase, word in _PART.findall(text)
            for found in _WORD.finditer(phrase or word)
        ]

    def __call__(self, excerpt: str) -> Markup:
        """The excerpt with each of the words in a `mark`, safe to show."""
        parts: list[str] = []
        at = 0
        for found in _WORD.finditer(excerpt):
            parts.append(escape(visible(excerpt[at : found.start()])))
            parts.append(self._marked(found[0]))
            at = found.end()
        parts.append(escape(visible(excerpt[at:])))
        return Markup("".join(parts))

    def _marked(self, word: str) -> str:
        plain = _plain(word)
        if any(plain.startswith(one.word) if one.is_beginning else plain == one.word for one in self._wanted):
            return f"<mark>{escape(visible(word))}</mark>"
        if plain.isascii():
            return escape(visible(word))
        # A script without spaces between words: what was searched for is a part of a run of signs.
        for one in self._wanted:
            place = -1 if one.word.isascii() else word.find(one.word)
            if place >= 0:
                end = place + len(one.word)
                return (
                    f"{escape(visible(word[:place]))}<mark>{escape(visible(word[place:end]))}</mark>"
                    f"{escape(visible(word[end:]))}"
                )
        return escape(visible(word))


def _plain(word: str) -> str:
    apart = unicodedata.normalize("NFKD", word.casefold())
    return "".join([sign for sign in apart if not unicodedata.combining(sign)])
