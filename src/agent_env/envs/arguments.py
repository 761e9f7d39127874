"""What a tool is called with: JSON, checked against the tool's types, and made into them.

Strict: a string is not taken for an integer, nor a number for text. Where it does not fit, the model is told what was
expected, a line for each parameter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from agent_env.bundle import closest
from agent_env.envs.strict_json import JsonTextError, read_object
from agent_env.errors import ToolError

__all__ = [
    "MAX_LINES",
    "PER_PARAMETER",
    "MisfitArgumentsError",
    "clipped",
    "convert_arguments",
    "first_lines",
    "listed",
    "parse_arguments",
    "path_text",
    "shown",
    "unknown_parameters",
]

_EXPECTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "frozen_set_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "dataclass_type": "an object",
    "none_required": "null",
    "extra_forbidden": "no such key",
    "unexpected_keyword_argument": "no such key",
}
_SHOWN_CHARS = 60
"""How much of a value is repeated to the model."""
PER_PARAMETER = 3
"""How many places inside one parameter are named."""
MAX_LINES = 10
"""How many parameters are named, and how many of the values that one might have."""
_LINE_CHARS = 500
_NAME_CHARS = 100
_LISTED_NAMES = 30
_GUESSED = 3
"""For how many unknown names the nearest known one is looked for: that takes the longest of all."""
_GUESSED_FROM = 50
_ENCODER = json.JSONEncoder(ensure_ascii=True, default=str)


class MisfitArgumentsError(Exception):
    """Arguments that do not fit. `lines` has one for each parameter, for the model to read."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = tuple(first_lines(lines))
        super().__init__("\n".join(self.lines))


def parse_arguments(raw: str) -> Mapping[str, Any]:
    """The arguments of a tool call, from the JSON text that the agent wrote; no text is no arguments.

    Raises:
        ToolError: When it is no JSON object; the message is for the model.
    """
    try:
        return read_object(raw or "{}")
    except JsonTextError as exc:
        raise ToolError(str(exc)) from None


def convert_arguments(
    adapter: TypeAdapter[dict[str, Any]], parameters: Sequence[str], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return `arguments` as the types that a tool is annotated with.

    Args:
        adapter: Of a TypedDict with the tool's parameters.
        parameters: Their names, for suggestions.
        arguments: JSON values.

    Raises:
        MisfitArgumentsError: When they do not fit.
    """
    try:
        text = json.dumps(dict(arguments), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise MisfitArgumentsError([f"the arguments are not JSON: {exc}"]) from None
    try:
        return adapter.validate_json(text, strict=True)
    except ValidationError as exc:
        raise MisfitArgumentsError(_lines(exc.errors(include_url=False), parameters, arguments)) from None


def _lines(errors: Sequence[ErrorDetails], parameters: Sequence[str], arguments: Mapping[str, Any]) -> list[str]:
    by_parameter: dict[str, dict[tuple[str | int, ...], list[ErrorDetails]]] = {}
    lines: list[str] = []
    for error in errors:
        if not error["loc"]:
            return [_broken_text(error)]
        place = _place(error["loc"], arguments)
        by_parameter.setdefault(str(error["loc"][0]), {}).setdefault(place, []).append(error)
    for name, places in by_parameter.items():
        if name not in parameters:
            continue
        parts = [_say(place, found) for place, found in islice(places.items(), PER_PARAMETER)]
        if more := len(places) - len(parts):
            parts.append(f"and {more:,} more")
        lines.append("; ".join(parts))
    return [*lines, *unknown_parameters([name for name in by_parameter if name not in parameters], parameters)]


def unknown_parameters(names: Sequence[str], parameters: Sequence[str]) -> list[str]:
    """A line for each name that is no parameter: which one may be meant, or which there are."""
    lines: list[str] = []
    known = listed(parameters) or "it has none"
    for name in names:
        may_guess = len(lines) < _GUESSED and len(name) <= _NAME_CHARS
        near = closest(name, parameters[:_GUESSED_FROM]) if may_guess else None
        fix = f"did you mean {near}?" if near else f"known: {known}"
        lines.append(f"{clipped(name)}: there is no such parameter, {fix}")
    return lines


def first_lines(lines: Sequence[str]) -> list[str]:
    """The first of the lines, none of them long, and how many more there are."""
    first = [clipped(line, _LINE_CHARS) for line in lines[:MAX_LINES]]
    more = len(lines) - len(first)
    return [*first, f"and {more:,} more"] if more else first


def clipped(text: str, most: int = _NAME_CHARS) -> str:
    """A text, or the start of it when it is long."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def listed(names: Sequence[str]) -> str:
    """Names with commas between them; of many, the first and how many more there are."""
    text = ", ".join(clipped(name) for name in names[:_LISTED_NAMES])
    more = len(names) - _LISTED_NAMES
    return f"{text} and {more:,} more" if more > 0 else text


def _broken_text(error: ErrorDetails) -> str:
    if error["type"] == "json_invalid":
        return "the arguments are not Unicode text: half of a surrogate pair is in them"
    return error["msg"]


def _place(loc: Sequence[str | int], data: Any) -> tuple[str | int, ...]:
    """Return the part of `loc` that is in the arguments; the rest names a branch of a union."""
    kept: list[str | int] = []
    for part in loc:
        if isinstance(data, Mapping) and part in data:
            data = cast("Mapping[str | int, Any]", data)[part]
        elif isinstance(data, list) and isinstance(part, int) and part < len(cast("list[Any]", data)):
            data = cast("list[Any]", data)[part]
        else:
            continue
        kept.append(part)
    return tuple(kept)


def _say(place: tuple[str | int, ...], errors: Sequence[ErrorDetails]) -> str:
    missing = [str(error["loc"][-1]) for error in errors if error["type"] == "missing"]
    if missing and len(missing) == len(errors):
        if not place:
            return f"{clipped(missing[0])}: missing"
        return f"{path_text(place)}: missing {listed(list(dict.fromkeys(missing)))}"
    expected = list(dict.fromkeys(_expected(error) for error in errors if error["type"] != "missing"))
    return f"{path_text(place)}: expected {' or '.join(expected)}, got {shown(errors[0]['input'])}"


def path_text(place: Sequence[str | int]) -> str:
    """A place in the arguments, as a model would write it: `rooms[2].name`."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{clipped(part)}" if text else clipped(part)
    return text


def _expected(error: ErrorDetails) -> str:
    known = _EXPECTED.get(error["type"])
    if known is not None:
        return known
    context = error.get("ctx", {})
    if error["type"] in ("literal_error", "enum") and "expected" in context:
        return f"one of {clipped(context['expected'], _LINE_CHARS // 2)}"
    message = clipped(error["msg"], _LINE_CHARS // 2)
    for start in ("Input should be ", "Value should be "):
        if message.startswith(start):
            return message.removeprefix(start)
    return f"something else ({message})"


def shown(value: Any) -> str:
    """A value as it is repeated to the model: the start of it, when it is long."""
    text = ""
    for part in _ENCODER.iterencode(value):
        text += part
        if len(text) > _SHOWN_CHARS:
            break
    return clipped(text, _SHOWN_CHARS)
