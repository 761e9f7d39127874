"""What a tool is called with: JSON, checked against the tool's types, and made into them.

Strict: a string is not taken for an integer, nor a number for text. Where it does not fit, the model is told what was
expected, a line for each parameter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from agent_env._wording import clipped
from agent_env.bundle.error_place import place_in
from agent_env.envs.faults import LINE_CHARS, Fault, fault_lines, first_lines, unknown_parameters
from agent_env.envs.strict_json import JsonTextError, read_object
from agent_env.errors import ToolError

__all__ = ["MisfitArgumentsError", "convert_arguments", "parse_arguments"]

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


class MisfitArgumentsError(ToolError):
    """Arguments that do not fit. `lines` has one for each parameter, for the model to read."""

    def __init__(self, lines: Sequence[str], *, tool: str = "") -> None:
        self.lines = tuple(first_lines(lines))
        said = "\n".join(self.lines)
        super().__init__(f"{tool} was not called:\n{said}" if tool else said)


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
    faults: list[Fault] = []
    unknown: dict[str, None] = {}
    for error in errors:
        if not error["loc"]:
            return [_broken_text(error)]
        name = str(error["loc"][0])
        if name not in parameters:
            unknown[name] = None
        else:
            faults.append(_fault(error, arguments))
    return [*fault_lines(faults), *unknown_parameters(list(unknown), parameters)]


def _fault(error: ErrorDetails, arguments: Mapping[str, Any]) -> Fault:
    place = place_in(arguments, error["loc"])
    if error["type"] == "missing":
        return Fault(place=place, missing=(str(error["loc"][-1]),))
    return Fault(place=place, expected=_expected(error), value=error["input"])


def _broken_text(error: ErrorDetails) -> str:
    if error["type"] == "json_invalid":
        return "the arguments are not Unicode text: half of a surrogate pair is in them"
    return error["msg"]


def _expected(error: ErrorDetails) -> str:
    known = _EXPECTED.get(error["type"])
    if known is not None:
        return known
    context = error.get("ctx", {})
    if error["type"] in ("literal_error", "enum") and "expected" in context:
        return f"one of {clipped(context['expected'], LINE_CHARS // 2)}"
    message = clipped(error["msg"], LINE_CHARS // 2)
    for start in ("Input should be ", "Value should be "):
        if message.startswith(start):
            return message.removeprefix(start)
    return f"something else ({message})"
