"""How arguments do not fit a tool's JSON Schema: a line for each parameter, in the words of `arguments.py`.

The schema is the tool's own, `$ref`s within it included; a reference to elsewhere is never fetched. A schema that is broken
checks nothing: then the tool has to.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, cast

import referencing
from jsonschema import TypeChecker, validators
from jsonschema.exceptions import ValidationError

from agent_env.bundle import closest
from agent_env.envs.arguments import PER_PARAMETER, path_text, shown

__all__ = ["ToolSchema", "tool_schema"]

logger = logging.getLogger(__name__)

Place = tuple[str | int, ...]

_TYPES = {
    "integer": "an integer",
    "number": "a number",
    "string": "a string",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_BOUNDS: Mapping[str, Callable[[Any], str]] = {
    "minimum": lambda bound: f"greater than or equal to {bound}",
    "exclusiveMinimum": lambda bound: f"greater than {bound}",
    "maximum": lambda bound: f"less than or equal to {bound}",
    "exclusiveMaximum": lambda bound: f"less than {bound}",
    "multipleOf": lambda bound: f"a multiple of {bound}",
    "minLength": lambda bound: f"a string of at least {bound} characters",
    "maxLength": lambda bound: f"a string of at most {bound} characters",
    "pattern": lambda bound: f"a string that matches {bound}",
    "minItems": lambda bound: f"a list of at least {bound} items",
    "maxItems": lambda bound: f"a list of at most {bound} items",
    "uniqueItems": lambda _: "a list without an item that is in it twice",
    "minProperties": lambda bound: f"an object with at least {bound} keys",
    "maxProperties": lambda bound: f"an object with at most {bound} keys",
    "additionalProperties": lambda _: "no such key",
    "unevaluatedProperties": lambda _: "no such key",
    "not": lambda _: "something else",
}


_PLAIN_TYPES: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
}
_SAYS_NOTHING = frozenset(("title", "description", "default"))
_PLAIN_PARAMETER = _SAYS_NOTHING | {"type"}
_PLAIN_OBJECT = _PLAIN_PARAMETER | {"properties", "required", "additionalProperties"}

_KEPT = 512


@lru_cache(maxsize=_KEPT)
def _made(text: str) -> ToolSchema:
    return ToolSchema(json.loads(text))


_of_object: dict[int, tuple[Mapping[str, Any], ToolSchema]] = {}
"""By the identity of the parameters, which are kept so that it stays theirs: writing them out is most of a look-up."""


def tool_schema(parameters: Mapping[str, Any]) -> ToolSchema:
    """The schema of a tool's parameters, made once for equal ones. They are a tool's, which nobody changes."""
    known = _of_object.get(id(parameters))
    if known is not None:
        return known[1]
    made = _made(json.dumps(parameters, default=_plain))
    if len(_of_object) >= _KEPT:
        _of_object.clear()
    _of_object[id(parameters)] = (parameters, made)
    return made


def _plain_types(schema: Mapping[str, Any]) -> Mapping[str, tuple[type, ...]] | None:
    """The Python types that each parameter's values have, where the schema says nothing else of them."""
    if schema.get("type") != "object" or not _PLAIN_OBJECT.issuperset(schema):
        return None
    types: dict[str, tuple[type, ...]] = {}
    for name, part in _properties(schema):
        says = _mapping(part)
        kind = says.get("type")
        if not isinstance(kind, str) or kind not in _PLAIN_TYPES or not _PLAIN_PARAMETER.issuperset(says):
            return None
        types[name] = _PLAIN_TYPES[kind]
    return types


def _required(schema: Mapping[str, Any]) -> frozenset[str]:
    required = schema.get("required")
    names = cast("Sequence[object]", required) if isinstance(required, list) else ()
    return frozenset(name for name in names if isinstance(name, str))


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    raise TypeError(f"a {type(value).__name__} is in a tool's JSON Schema")


class ToolSchema:
    """What a tool's parameters may be."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.parameters = tuple(_mapping(schema.get("properties")))
        self._is_known_broken = False
        self._schema = schema
        self._plain_types = _plain_types(schema)
        self._required = _required(schema)
        self._texts = frozenset(name for name, part in _properties(schema) if _is_plain_text(part))
        base: Any = validators.validator_for(cast("Any", schema), default=validators.Draft202012Validator)
        self._validator = _validator_class(base)(schema, registry=cast("Any", referencing.Registry)())

    def is_text(self, name: str) -> bool:
        """Whether any text fits the parameter, and nothing else does."""
        return name in self._texts

    def fits(self, name: str, value: Any) -> bool:
        """Whether a value fits a parameter, whatever the others are."""
        return not any(error.absolute_path and error.absolute_path[0] == name for error in self._errors({name: value}))

    def is_near(self, name: str, value: Any) -> bool:
        """Whether a value is at least of the type that the parameter has."""
        wrong = (error for error in self._errors({name: value}) if list(error.absolute_path) == [name])
        return not any(cause.validator in _OF_TYPE for error in wrong for cause in _causes(error))

    def misfits(self, arguments: Mapping[str, Any], *, notes: Mapping[str, str] | None = None) -> list[str]:
        """Say how the arguments do not fit, a line for each parameter.

        Args:
            arguments: JSON values.
            notes: What else to say of a parameter that does not fit.
        """
        if self._surely_fit(arguments):
            return []
        by_parameter: dict[str, dict[Place, list[ValidationError]]] = {}
        lines: list[str] = []
        for error in self._errors(arguments):
            for found in _causes(error):
                place = tuple(found.absolute_path)
                if place:
                    by_parameter.setdefault(str(place[0]), {}).setdefault(place, []).append(found)
                else:
                    lines += self._whole(found)
        for name, places in by_parameter.items():
            parts = [_say(place, found) for place, found in list(places.items())[:PER_PARAMETER]]
            more = len(places) - len(parts)
            note = f" ({notes[name]})" if notes and name in notes else ""
            lines.append("; ".join(parts) + (f"; and {more} more" if more > 0 else "") + note)
        return list(dict.fromkeys(lines))

    def _surely_fit(self, arguments: Mapping[str, Any]) -> bool:
        """Whether the arguments fit at a glance, as most do: of the types of a schema that says no more than types."""
        types = self._plain_types
        return (
            types is not None
            and self._required <= arguments.keys()
            and all(type(value) in types.get(name, ()) for name, value in arguments.items())
        )

    def _errors(self, arguments: Mapping[str, Any]) -> Sequence[ValidationError]:
        try:
            return list(cast("Iterable[ValidationError]", self._validator.iter_errors(cast("Any", arguments))))
        except Exception as exc:  # noqa: BLE001 - a schema of anyone's: a reference to nowhere, a pattern of another language
            if not self._is_known_broken:
                logger.warning("a tool's JSON Schema cannot be used, its arguments are not checked: %s", exc)
            self._is_known_broken = True
            return ()

    def _whole(self, error: ValidationError) -> Iterator[str]:
        """Lines of an error that is of the arguments as a whole."""
        keyword, said = str(error.validator), cast("Any", error.validator_value)
        given = cast("Mapping[str, Any]", error.instance)
        if keyword == "required":
            yield from (f"{name}: missing" for name in said if name not in given)
        elif keyword in ("additionalProperties", "unevaluatedProperties"):
            for name in given:
                if name not in self.parameters:
                    near = closest(name, self.parameters)
                    known = ", ".join(self.parameters) or "it has none"
                    fix = f"did you mean {near}?" if near else f"known: {known}"
                    yield f"{name}: there is no such parameter, {fix}"
        else:
            yield f"the arguments together: expected {_expected(error)}"


@cache
def _validator_class(base: Any) -> Any:
    """A draft's validator for which `2.0` is no integer: Python's tools are not given a float for one."""
    checker = cast("TypeChecker", base.TYPE_CHECKER).redefine("integer", _is_integer)
    extend = cast("Callable[..., Any]", validators.extend)  # pyright: ignore[reportUnknownMemberType]
    return extend(base, type_checker=checker)


def _is_integer(checker: object, value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _properties(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    if not any(key in schema for key in ("allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "$ref")):
        yield from _mapping(schema.get("properties")).items()


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


_OF_TYPE = ("type", "const", "enum", "anyOf", "oneOf")
"""Keywords that say what a value is, and not only how large or long."""
_ANNOTATIONS = frozenset({"type", "title", "description", "default", "examples", "format", "deprecated", "$comment"})


def _is_plain_text(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return False
    keys = cast("Mapping[str, Any]", schema)
    return keys.get("type") == "string" and _ANNOTATIONS.issuperset(keys)


def _causes(error: ValidationError) -> Iterator[ValidationError]:
    """The errors that say most: of a union, those of the branch whose own type fits, when there is just one."""
    if error.validator not in ("anyOf", "oneOf") or not error.context:
        yield error
        return
    branches: dict[Any, list[ValidationError]] = {}
    for inner in error.context:
        branches.setdefault(inner.schema_path[0], []).append(inner)
    near = [found for found in branches.values() if not any(_is_of_type(inner, error) for inner in found)]
    if len(near) != 1:
        yield error
        return
    for inner in near[0]:
        yield from _causes(inner)


def _is_of_type(inner: ValidationError, outer: ValidationError) -> bool:
    is_same = len(inner.absolute_path) == len(outer.absolute_path)
    return is_same and inner.validator in _OF_TYPE


def _say(place: Place, errors: Sequence[ValidationError]) -> str:
    missing = [name for error in errors if error.validator == "required" for name in _missing(error)]
    if missing and all(error.validator == "required" for error in errors):
        return f"{path_text(place)}: missing {', '.join(dict.fromkeys(missing))}"
    first = next(error for error in errors if error.validator != "required")
    given = cast("Any", first).instance
    if first.validator in ("additionalProperties", "unevaluatedProperties") and isinstance(given, Mapping):
        known = _mapping(cast("Any", first.schema).get("properties"))
        unknown = [name for name in cast("Mapping[str, Any]", given) if name not in known]
        if unknown:
            return f"{path_text((*place, unknown[0]))}: expected no such key, known: {', '.join(known)}"
    expected = list(dict.fromkeys(_expected(error) for error in errors if error.validator != "required"))
    return f"{path_text(place)}: expected {' or '.join(expected)}, got {shown(given)}"


def _missing(error: ValidationError) -> Iterator[str]:
    given = cast("Mapping[str, Any]", error.instance)
    return (name for name in cast("Sequence[str]", error.validator_value) if name not in given)


def _expected(error: ValidationError) -> str:
    keyword, said = str(error.validator), cast("Any", error.validator_value)
    if keyword in ("anyOf", "oneOf"):
        if not error.context:
            return "what fits just one of its forms"
        inner = [_expected(found) for found in error.context if len(found.absolute_path) == len(error.absolute_path)]
        return " or ".join(dict.fromkeys(inner)) or "one of its forms"
    if keyword == "type":
        names = cast("list[str]", said) if isinstance(said, list) else [str(said)]
        return " or ".join(_TYPES.get(name, name) for name in names)
    if keyword in ("enum", "const"):
        values = cast("list[Any]", said) if keyword == "enum" else [said]
        *first, last = [repr(value) if isinstance(value, str) else json.dumps(value) for value in values] or ["nothing"]
        return f"one of {', '.join(first)} or {last}" if first else last
    if keyword == "required":
        return f"an object with {', '.join(_missing(error))}"
    if (bound := _BOUNDS.get(keyword)) is not None:
        return bound(said)
    return f"something else ({shown(error.message)})"
