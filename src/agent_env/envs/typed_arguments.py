"""The arguments of a call as the model wrote them, typed by the tool's JSON Schema.

Two ways of writing: the JSON of the whole (`arguments_from_json`), or the text of each parameter, as in formats with a tag
for each (`arguments_from_texts`). JSON has types of its own, and they have to fit: `12` is no string. A parameter's text has
none, so the schema decides, by these rules:

- Where only a string fits, the text is the string, whatever it looks like: `01912`, `1.10`, `true`, `null`, `[1, 2]`.
- Else the text is read as JSON. When that fits, it is the value: `12` for an integer, `null` for an optional string.
- Where a string fits too, a number is taken for one only when nothing is lost by it: `12` and `1.5` are numbers, `012`,
  `1.10` and `1e5` are strings.
- Else the text is the string, where one fits: `Ann` for an optional string.
- A whole number is an integer however it is written: `5.0`, `1e5`. `True`, `False` and `None` are `true`, `false` and
  `null`: a template of Python's values writes them so (Qwen3.5's does).
- A format that says itself whether a value is a string is believed first, where both would fit.

What is left out is left out: a tool knows its own defaults.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent_env.envs.arguments import MisfitArgumentsError
from agent_env.envs.contract import ToolSpec
from agent_env.envs.faults import short
from agent_env.envs.parameter_check import ParameterCheck, Work, check_of
from agent_env.envs.strict_json import JsonTextError, NestedTooDeeplyError, check_text, read_json, read_object
from agent_env.errors import ToolError

__all__ = ["ParameterText", "arguments_from_json", "arguments_from_texts"]

_PYTHON = {"True": True, "False": False, "None": None}
_ANYTHING = ParameterCheck({"type": "object"})
_FLOAT = re.compile(r"[0-9][.eE]")
_MAX_PARAMETERS = 500
"""How many parameters a call may have: a tool has some ten, and a model that writes on and on has lost its way."""


@dataclass(frozen=True, slots=True)
class ParameterText:
    """What a model wrote for one parameter."""

    name: str
    text: str
    is_string: bool | None = None
    """What the model wrote of its kind: a string, or JSON; None where the format does not say."""


def arguments_from_json(raw: str, tool: ToolSpec | None) -> dict[str, Any]:
    """Return the arguments that a model wrote as one JSON object.

    Args:
        raw: The text as it was written.
        tool: The tool; None when there is none of that name, so that nothing is known of its parameters.

    Raises:
        ToolError: When the text is no JSON object, or does not fit the tool (MisfitArgumentsError). The message is for the
            model.
        NestedTooDeeplyError: When it is nested so deeply that what reads it again may fail. So is its message.
    """
    try:
        arguments = read_object(raw)
    except NestedTooDeeplyError:
        raise
    except JsonTextError as exc:
        raise ToolError(str(exc)) from None
    if tool is None:
        return arguments
    check, work = check_of(tool.parameters), Work()
    lines = check.misfits(arguments, work.share())
    if not lines:
        return arguments
    whole = read_object(raw, whole=True) if _FLOAT.search(raw) else None
    if whole is not None and not check.misfits(whole, work):
        return whole
    raise MisfitArgumentsError(lines, tool=tool.name)


def arguments_from_texts(texts: Sequence[ParameterText], tool: ToolSpec | None) -> dict[str, Any]:
    """Return the arguments that a model wrote as one text for each parameter.

    Args:
        texts: In the order they were written.
        tool: As for `arguments_from_json`.

    Raises:
        ToolError: When a parameter is written twice, or they do not fit the tool (MisfitArgumentsError). The message is for
            the model.
    """
    name = "" if tool is None else tool.name
    if len(texts) > _MAX_PARAMETERS:
        many = f"it has {len(texts):,} parameters, at most {_MAX_PARAMETERS} are read"
        raise MisfitArgumentsError([many], tool=name)
    check, work = _ANYTHING if tool is None else check_of(tool.parameters), Work()
    arguments: dict[str, Any] = {}
    notes: dict[str, str] = {}
    lines: list[str] = []
    for written in texts:
        if written.name in arguments:
            lines.append(f"{short(written.name)}: written twice")
            continue
        try:
            check_text(written.name + written.text)
        except JsonTextError as exc:
            raise ToolError(f"the arguments are not text: {exc}") from None
        arguments[written.name], note = _value(written, check, work)
        if note:
            notes[written.name] = note
    lines += check.misfits(arguments, work, notes=notes)
    if lines:
        raise MisfitArgumentsError(list(dict.fromkeys(lines)), tool=name)
    return arguments


def _value(written: ParameterText, check: ParameterCheck, work: Work) -> tuple[Any, str]:
    """Return a parameter's value, and why its text is no JSON where that is worth saying."""
    if written.is_string is not False and check.is_text(written.name):
        return written.text, ""
    found, note = _json_values(written.text)
    for value in _readings(written, found, check, work):
        if check.fits(written.name, value, work):
            return value, ""
    near = (value for value in (*found, written.text) if check.is_near(written.name, value, work))
    return next(near, found[0] if found else written.text), note


def _json_values(text: str) -> tuple[list[Any], str]:
    """Return the values that a text is as JSON: none, one, or two where a float in it is whole."""
    stripped = text.strip()
    if stripped in _PYTHON:
        return [_PYTHON[stripped]], ""
    try:
        value = read_json(text)
    except JsonTextError as exc:
        return [], str(exc) if stripped[:1] in ("{", "[") else ""
    if not _FLOAT.search(text):
        return [value], ""
    whole = read_json(text, whole=True)
    return ([value] if json.dumps(value) == json.dumps(whole) else [value, whole]), ""


def _readings(written: ParameterText, found: Sequence[Any], check: ParameterCheck, work: Work) -> Sequence[Any]:
    """What a text may stand for, the likeliest first."""
    text = written.text
    if written.is_string is False:
        return [*found, text]
    others = [value for value in found if not isinstance(value, str)]
    if not others or written.is_string or (_loses(text, others[0]) and check.fits(written.name, text, work)):
        return [text, *others]
    return [*others[:1], text, *others[1:]] if check.fits(written.name, text, work) else others


def _loses(text: str, value: Any) -> bool:
    """Whether a text is a number that would be written back in another way."""
    return isinstance(value, int | float) and not isinstance(value, bool) and json.dumps(value) != text
