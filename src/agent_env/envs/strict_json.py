"""JSON text that a model wrote, read strictly: nothing is guessed, dropped or rounded away without a word.

Python's own reader takes `NaN`, keeps the last of two equal keys, and makes infinity of `1e999`. Here each is an error that
says in a line what is wrong, as is what no store or tool can hold: half of a surrogate pair, a number of a thousand digits,
lists in lists without end.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NoReturn, cast

from agent_env._wording import clipped, in_line

__all__ = [
    "MAX_DEPTH",
    "MAX_DIGITS",
    "JsonTextError",
    "NestedTooDeeplyError",
    "check_text",
    "read_json",
    "read_object",
]

MAX_DEPTH = 50
"""How deep lists and objects may be in one another."""
MAX_DIGITS = 300
"""How many digits a whole number may have; one of more is no float, and some checks need one."""
_WHOLE_DIGITS = 40
"""How many digits a whole number may have that is written with a point or an exponent."""
_SHOWN_CHARS = 100


class JsonTextError(Exception):
    """A text is no JSON; the message says what is wrong with it, for the model to read."""


class NestedTooDeeplyError(JsonTextError):
    """Lists and objects are more than `MAX_DEPTH` deep in one another."""

    def __init__(self, message: str = "it is nested too deeply") -> None:
        super().__init__(message)


def read_json(text: str, *, whole: bool = False) -> Any:
    """Return the JSON value that `text` is.

    Args:
        text: What was written.
        whole: Whether `2.0` and `1e3` are integers, as JSON Schema has it, to the last digit that was written.

    Raises:
        JsonTextError: When it is none.
    """
    try:
        value = (_WHOLE_DECODER if whole else _DECODER).decode(text)
    except json.JSONDecodeError as exc:
        is_cut = exc.pos >= len(text.rstrip()) or exc.msg.startswith("Unterminated string")
        raise JsonTextError(f"{'it is cut off: ' if is_cut and text.strip() else ''}{exc}") from None
    except RecursionError:
        raise NestedTooDeeplyError from None
    _check(value)
    return value


def read_object(text: str, *, whole: bool = False) -> dict[str, Any]:
    """Return the arguments that `text`, a JSON object, is.

    Args:
        text: What was written.
        whole: As for `read_json`.

    Raises:
        JsonTextError: When it is none, a NestedTooDeeplyError where it is that; the message is a whole sentence.
    """
    if not text.strip():
        raise JsonTextError("the arguments are empty: write a JSON object, {} when there are none")
    try:
        value = read_json(text, whole=whole)
    except JsonTextError as exc:
        raise type(exc)(f"the arguments are no valid JSON: {exc}") from None
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    if isinstance(value, str) and _is_object(value):
        raise JsonTextError(
            "the arguments must be a JSON object, not JSON text in a string: they are encoded twice, write the object itself"
        )
    shown = clipped(in_line(text[: _SHOWN_CHARS + 1]), _SHOWN_CHARS)
    raise JsonTextError(f'the arguments must be a JSON object like {{"name": value}}, not {shown}')


def _is_object(text: str) -> bool:
    try:
        return isinstance(read_json(text), dict)
    except JsonTextError:
        return False


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise JsonTextError(f"the key {_quoted(twice)} is written twice")
    return made


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise JsonTextError(f"a number has {len(text.lstrip('-')):,} digits, at most {MAX_DIGITS} are read")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise JsonTextError(f"{text[:30]} is too large for a number")
    return value


def _whole_or_float(text: str) -> int | float:
    """Of too many digits it stays a float, which is no integer."""
    value = _float(text)
    if not value.is_integer():
        return value
    if value == 0:  # or too small for a float, and then its exponent may be too much for a decimal
        return value if any(digit in "123456789" for digit in text.lower().partition("e")[0]) else 0
    exact = Decimal(text)
    is_whole = exact.adjusted() < _WHOLE_DIGITS and exact == exact.to_integral_value()
    return int(exact) if is_whole else value


def _no_constant(name: str) -> NoReturn:
    raise JsonTextError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_no_constant
)
_WHOLE_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_whole_or_float, parse_constant=_no_constant
)


def _check(value: Any) -> None:
    """Check what the decoder lets pass: the depth, and halves of surrogate pairs."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                check_text(item)
            elif isinstance(item, list):
                below += cast("list[Any]", item)
            elif isinstance(item, dict):
                held = cast("dict[str, Any]", item)
                for key in held:
                    check_text(key)
                below += held.values()
        if not below:
            return
        level = below
    raise NestedTooDeeplyError


def check_text(text: str) -> None:
    """Check that a text is Unicode text.

    Raises:
        JsonTextError: When half of a surrogate pair is in it.
    """
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise JsonTextError("half of a surrogate pair is in it, which is no Unicode text") from None


def _quoted(text: str) -> str:
    return json.dumps(clipped(text, _SHOWN_CHARS))
