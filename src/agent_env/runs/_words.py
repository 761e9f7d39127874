"""What of a run can be searched for: the texts of an event, and their words as the search index has them.

Prompts, messages, calls with their arguments, answers, explanations and failures. Not system prompts and tool descriptions,
which are the same in every run of a bundle.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from agent_env.errors import RunIndexError
from agent_env.runs._codec import decode, unpack

__all__ = [
    "TEXT_CHARS",
    "TOKENIZER",
    "as_pairs",
    "as_read",
    "as_signs",
    "searchable",
    "terms_of",
    "text_of",
    "words_of",
]

TEXT_CHARS = 20_000
"""Of each text, what is searched."""
_JSON = json.JSONEncoder(ensure_ascii=False, check_circular=False)
_ESCAPE = re.compile(r"(?:\\u[0-9a-fA-F]{4})+|\\.")
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", '"': '"', "\\": "\\", "/": "/"}

TOKENIZER = """tokenize="unicode61 categories 'L* N* Co So Mn Mc'" """
"""How SQLite splits a text into words: letters with their marks, numbers and pictures; case and accents make no difference."""

# Scripts that put no spaces between words: kana, Han, Hangul, half-width forms and the planes of rarer signs; Thai, Lao,
# Khmer and Burmese.
_UNSPACED = (
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff]+"
)
_PICTURES = "[\u2190-\u2bff\U0001f000-\U0001faff]"
_SIGNS = re.compile(f"({_UNSPACED})|{_PICTURES}")
_GAP = re.compile(f"(?<={_UNSPACED[:-1]}) +(?={_UNSPACED[:-1]})")


def searchable(kind: str, data: Mapping[str, Any]) -> str:
    """The texts of an event, one after the other; empty where it has none."""
    match kind:
        case "message":
            return _message(data.get("message"))
        case "answer":
            return _often_json(data.get("text"))
        case "call":
            return f"{_text(data.get('tool'))}\n{_arguments(data)}"
        case "turn_started":
            return _text(data.get("prompt"))
        case "agent_said":
            return _message(data.get("message"))
        case "agent_called":
            return "\n".join((_text(data.get("tool")), _arguments(data), _often_json(data.get("text"))))
        case "score":
            return _text(data.get("explanation"))
        case "failure":
            return f"{_text(data.get('kind'))}\n{_text(data.get('message'))}"
        case "skipped":
            return _text(data.get("reason"))
        case _:
            return ""


def text_of(line: bytes) -> str:
    """The texts of an event, as it stands in a chunk.

    Raises:
        RunIndexError: When it is damaged.
    """
    try:
        event = decode(line)
        return searchable(event["kind"], event["data"])
    except (LookupError, TypeError, AttributeError) as exc:
        raise RunIndexError(f"a record in the run index is damaged: {exc}") from exc


def words_of(body: bytes, codec: int) -> str:
    """What the search index is given for a chunk, as it stands in the file; nothing for one that is damaged."""
    try:
        return as_pairs("\n".join(filter(None, map(text_of, unpack(body, codec).split(b"\n")))))
    except RunIndexError:
        return ""  # a damaged chunk is told of to whoever reads its run


def as_pairs(text: str) -> str:
    """What the search index is given: runs of a script without spaces as overlapping pairs of signs, pictures one by one.

    The index knows which chunks have a word and not where: a pair says more than a sign does.
    """
    text = written(text)
    return text if text.isascii() else _SIGNS.sub(_pairs, text)


def as_signs(text: str) -> str:
    """The text with each sign of such a script as a word of its own, to look for a phrase in."""
    text = written(text)
    return text if text.isascii() else _SIGNS.sub(lambda found: f" {' '.join(found[0])} ", text)


def as_read(text: str) -> str:
    """A piece of what `as_signs` made, for people."""
    return " ".join((text if text.isascii() else _GAP.sub("", text)).split())


def terms_of(text: str) -> tuple[str, list[str]]:
    """What the search index is asked for a text: its words but for such scripts, and of those each pair.

    A sign that stands alone is asked for as a beginning, with `*` behind it.
    """
    pairs: list[str] = []

    def take(found: re.Match[str]) -> str:
        signs = found[1]
        if signs is None:
            pairs.append(found[0])
        elif len(signs) == 1:
            pairs.append(f"{signs}*")
        else:
            pairs.extend(signs[at : at + 2] for at in range(len(signs) - 1))
        return " "

    return _SIGNS.sub(take, written(text)), pairs


def written(text: str) -> str:
    """The text as SQLite takes it: without lone surrogates, and without NUL, at which a text ends for it."""
    if "\x00" in text:
        text = text.replace("\x00", " ")
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def _pairs(found: re.Match[str]) -> str:
    signs = found[1]
    if signs is None:
        return f" {found[0]} "
    # The last sign stands alone, so that each can be found as the beginning of a word.
    return f" {' '.join(signs[at : at + 2] for at in range(len(signs)))} "


def _message(message: object) -> str:
    if not isinstance(message, dict | Mapping):  # dict first: most are, and a look at an abstract class takes longer
        return _text(message)
    fields = cast("Mapping[str, object]", message)
    text = _text(fields.get("content"))
    unreadable = fields.get("unreadable_calls")
    return f"{text}\n{_text(unreadable)}" if unreadable else text


def _arguments(data: Mapping[str, Any]) -> str:
    arguments = data.get("arguments")
    if arguments is None:
        return _often_json(data.get("raw"))
    try:
        return _unescaped(_JSON.encode(arguments)[:TEXT_CHARS])
    except (TypeError, ValueError, RecursionError):
        return _often_json(data.get("raw"))


def _often_json(value: object) -> str:
    text = _text(value)
    return _unescaped(text) if text.startswith(("{", "[")) else text


def _unescaped(text: str) -> str:
    """JSON with what its strings say, not how they say it: of a line break, the `n` would begin the word that comes next."""
    return _ESCAPE.sub(_meant, text) if "\\" in text else text


def _meant(found: re.Match[str]) -> str:
    escape = found[0]
    # What is no escape is no JSON: a line of a log with a path in it, a pattern that a model wrote wrong.
    return _ESCAPED.get(escape[1], escape) if len(escape) == 2 else json.loads(f'"{escape}"')


def _text(value: object, depth: int = 0) -> str:
    """The text of a message's content: a string, or parts with a text or thinking in each."""
    if isinstance(value, str):
        return value[:TEXT_CHARS]
    if isinstance(value, Mapping):
        part = cast("Mapping[str, object]", value)
        return next((text[:TEXT_CHARS] for name in _PARTS if isinstance(text := part.get(name), str)), "")
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray) and depth < _PARTS_DEPTH:
        parts = [_text(part, depth + 1) for part in cast("Sequence[object]", value)]
        return "\n".join(filter(None, parts))[:TEXT_CHARS]
    return ""


_PARTS = ("text", "thinking", "reasoning", "raw")
_PARTS_DEPTH = 8
"""How deep parts within parts are looked at: no message has more, and one that a model nests without end ends here."""
