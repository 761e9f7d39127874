"""Asking a person for the arguments of a call, one by one, by the tool's JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from agent_env.envs import ToolSpec, parse_arguments
from agent_env.envs.arguments import MisfitArgumentsError
from agent_env.envs.typed_arguments import ParameterText, arguments_from_texts
from agent_env.errors import ToolError
from agent_env.runs.visible import one_line

__all__ = ["GIVE_UP", "GivenUpError", "arguments_of", "ask_arguments", "signature"]

GIVE_UP = "!"
"""What a person writes to give a call up."""

_TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "array": "JSON list",
    "object": "JSON object",
    "null": "null",
}
_VALUES = 12
"""How many values a question lists."""


class GivenUpError(Exception):
    """The person has given the call up."""


def signature(tool: ToolSpec) -> str:
    """The tool as a line of a menu: `sell(count, to?)`, with a question mark where an argument may be left out."""
    properties, required = _parts(tool.parameters)
    names = [name if name in required else f"{name}?" for name in properties]
    return one_line(f"{tool.name}({', '.join(names)})")


def arguments_of(tool: ToolSpec, text: str) -> dict[str, Any]:
    """The arguments that a person wrote behind a tool's name: a JSON object, or the value of the only parameter that it needs.

    Raises:
        ToolError: When they are neither, or the value does not fit.
    """
    properties, required = _parts(tool.parameters)
    if text.startswith("{"):
        return dict(parse_arguments(text))
    meant = [name for name in properties if name in required] or list(properties)
    if len(meant) != 1:
        example = f'{{"{meant[0]}": ...}}' if meant else "{}"
        raise ToolError(f"write the arguments as JSON, {tool.name} {example}, or {tool.name} alone to be asked")
    return {meant[0]: _typed(tool, meant[0], text)}


def ask_arguments(tool: ToolSpec, *, ask: Callable[[str], str], say: Callable[[str], None]) -> dict[str, Any]:
    """Ask for each argument of a call, again where it does not fit.

    Args:
        tool: The tool.
        ask: Shows a question and returns the line that the person wrote.
        say: Shows a line.

    Raises:
        GivenUpError: When the person gives the call up.
    """
    properties, required = _parts(tool.parameters)
    if not properties and _takes_more(tool.parameters):
        return _ask_whole(ask, say)
    arguments: dict[str, Any] = {}
    for name, schema in properties.items():
        if schema.get("description"):
            say(one_line(str(schema["description"])))
        question = f"  {one_line(name)} ({_kind(schema)}{_without(schema, is_required=name in required)}): "
        while True:
            line = _line(ask, question)
            if not line:
                if name not in required:
                    break
                say('it is required; "" is an empty text')
                continue
            try:
                arguments[name] = _typed(tool, name, line)
                break
            except ToolError as exc:
                for said in str(exc).splitlines():
                    say(one_line(said))
    return arguments


def _ask_whole(ask: Callable[[str], str], say: Callable[[str], None]) -> dict[str, Any]:
    while True:
        try:
            return dict(parse_arguments(_line(ask, "  the arguments as a JSON object (Enter: none): ")))
        except ToolError as exc:
            say(one_line(str(exc)))


def _line(ask: Callable[[str], str], question: str) -> str:
    line = ask(question).strip()
    if line == GIVE_UP:
        raise GivenUpError
    return line


def _typed(tool: ToolSpec, name: str, text: str) -> Any:
    """Return what a text stands for, as the schema of one parameter says.

    Raises:
        ToolError: When it does not fit.
    """
    properties, _ = _parts(tool.parameters)
    if text == '""':
        text = ""
    parameters = {
        **tool.parameters,
        "properties": {name: properties[name]},
        "required": [name],
    }
    try:
        return arguments_from_texts([ParameterText(name, text)], _only(tool, parameters))[name]
    except MisfitArgumentsError as exc:
        raise ToolError("\n".join(exc.lines)) from None


def _only(tool: ToolSpec, parameters: Mapping[str, Any]) -> ToolSpec:
    return ToolSpec(name=tool.name, description="", parameters=parameters)


def _parts(parameters: Mapping[str, Any]) -> tuple[dict[str, Mapping[str, Any]], frozenset[str]]:
    """Return the parameters by name, and those that are required; a server's schema may be anything."""
    properties: object = parameters.get("properties")
    required: object = parameters.get("required")
    named: dict[str, Mapping[str, Any]] = {}
    if isinstance(properties, Mapping):
        for name, schema in cast("Mapping[str, object]", properties).items():
            named[name] = cast("Mapping[str, Any]", schema) if isinstance(schema, Mapping) else {}
    names = cast("Sequence[object]", required) if isinstance(required, list | tuple) else ()
    return named, frozenset(str(name) for name in names)


def _takes_more(parameters: Mapping[str, Any]) -> bool:
    """Whether arguments that are not named may be given: a schema that says nothing of it allows them."""
    return "properties" not in parameters and parameters.get("additionalProperties") is not False


def _kind(schema: Mapping[str, Any]) -> str:
    """What a parameter is, in words."""
    values: object = schema.get("enum")
    if isinstance(values, list | tuple) and values:
        shown = [_value(value) for value in cast("Sequence[object]", values)]
        return f"{', '.join(shown[:_VALUES])}{', ...' if len(shown) > _VALUES else ''}"
    if "const" in schema:
        return _value(schema["const"])
    for key in ("anyOf", "oneOf"):
        branches: object = schema.get(key)
        if isinstance(branches, list | tuple):
            kinds = [
                _kind(cast("Mapping[str, Any]", branch))
                for branch in cast("Sequence[object]", branches)
                if isinstance(branch, Mapping)
            ]
            return " or ".join(dict.fromkeys(kinds)) or "JSON"
    said: object = schema.get("type")
    types = cast("Sequence[object]", said) if isinstance(said, list | tuple) else (said,)
    return " or ".join(_TYPES.get(str(name), "JSON") for name in types)


def _without(schema: Mapping[str, Any], *, is_required: bool) -> str:
    """What Enter does."""
    if is_required:
        return ""
    if schema.get("default") is not None:
        return f"; Enter: {_value(schema['default'])}"
    return "; Enter: none"


def _value(value: object) -> str:
    return one_line(value if isinstance(value, str) else json.dumps(value, default=str), 60)
