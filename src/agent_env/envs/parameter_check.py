"""How arguments do not fit a tool's JSON Schema, as the lines of `faults.py`.

The schema is the tool's own, `$ref`s within it included; a reference to elsewhere is never fetched. A schema that is broken
checks nothing, and neither does what takes too much work (`json_schema.py` says what): then the tool has to.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, cast

from agent_env.envs.faults import MAX_FORMS, MAX_LINES, Fault, fault_lines, listed, short, shown, unknown_parameters
from agent_env.envs.json_schema import JsonSchema, TooMuchWorkError, Work
from agent_env.envs.schema_keywords import Misfit

__all__ = ["ParameterCheck", "Work", "check_of"]

logger = logging.getLogger(__name__)

_MAX_MISFITS = 200
"""How many misfits are looked for: of more, the model is told no more."""
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
    "pattern": lambda bound: f"a string that matches {short(bound)}",
    "contains": lambda _: "a list with certain items, which are not in it",
    "maxContains": lambda bound: f"a list with at most {bound} of certain items",
    "minItems": lambda bound: f"a list of at least {bound} items",
    "maxItems": lambda bound: f"a list of at most {bound} items",
    "uniqueItems": lambda _: "a list without an item that is in it twice",
    "minProperties": lambda bound: f"an object with at least {bound} keys",
    "maxProperties": lambda bound: f"an object with at most {bound} keys",
    "additionalProperties": lambda _: "no such key",
    "propertyNames": lambda _: "another key",
    "false": lambda _: "nothing",
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
"""How many tools' checks are kept: those of the bundles that a process plays, and a bound where tools are made anew."""


@lru_cache(maxsize=_KEPT)
def _made(text: str) -> ParameterCheck:
    return ParameterCheck(json.loads(text))


_of_object: dict[int, tuple[Mapping[str, Any], ParameterCheck]] = {}
"""By the identity of the parameters, which are kept so that it stays theirs: writing them out is most of a look-up."""


def check_of(parameters: Mapping[str, Any]) -> ParameterCheck:
    """The check of a tool's parameters, made once for equal ones. They are a tool's, which nobody changes."""
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


class ParameterCheck:
    """Checks arguments against what a tool's parameters may be."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.parameters = tuple(_mapping(schema.get("properties")))
        self._is_known_broken = False
        self._plain_types = _plain_types(schema)
        self._required = _required(schema)
        self._texts = frozenset(name for name, part in _properties(schema) if _is_plain_text(part))
        self._schema = JsonSchema(schema)

    def is_text(self, name: str) -> bool:
        """Whether any text fits the parameter, and nothing else does."""
        return name in self._texts

    def fits(self, name: str, value: Any, work: Work) -> bool:
        """Whether a value fits a parameter, whatever the others are; True when that cannot be told."""
        return not any(found.place and found.place[0] == name for found in self._parts(name, value, work))

    def is_near(self, name: str, value: Any, work: Work) -> bool:
        """Whether a value is at least of the type that the parameter has."""
        wrong = (found for found in self._parts(name, value, work) if found.place == (name,))
        return not any(cause.keyword in _OF_TYPE for found in wrong for cause in _causes(found))

    def misfits(self, arguments: Mapping[str, Any], work: Work, *, notes: Mapping[str, str] | None = None) -> list[str]:
        """Say how the arguments do not fit, a line for each parameter, as far as `work` goes.

        Args:
            arguments: JSON values.
            work: The steps that this may take.
            notes: What else to say of a parameter that does not fit.
        """
        if self._surely_fit(arguments):
            return []
        faults: list[Fault] = []
        lines: list[str] = []
        found = list(islice(self._misfits(arguments, work), _MAX_MISFITS))
        for misfit in found:
            for cause in _causes(misfit):
                if cause.place:
                    faults.append(_fault(cause))
                else:
                    lines += self._whole(cause)
        lines += fault_lines(faults, notes=notes, are_all=len(found) < _MAX_MISFITS)
        return list(dict.fromkeys(lines))

    def _surely_fit(self, arguments: Mapping[str, Any]) -> bool:
        """Whether the arguments fit at a glance, as most do: of the types of a schema that says no more than types."""
        types = self._plain_types
        return (
            types is not None
            and self._required <= arguments.keys()
            and all(type(value) in types.get(name, ()) for name, value in arguments.items())
        )

    def _parts(self, name: str, value: Any, work: Work) -> Iterator[Misfit]:
        """What does not fit where there is one parameter alone; it may take half of the work that is left."""
        share = work.share()
        try:
            yield from self._misfits({name: value}, share)
        finally:
            work.take_back(share)

    def _misfits(self, arguments: Mapping[str, Any], work: Work) -> Iterator[Misfit]:
        try:
            yield from self._schema.misfits(arguments, work)
        except TooMuchWorkError:
            # A call is not lost to a bound of ours: what was found so far is said, and the tool checks the rest.
            logger.debug("arguments were not checked to the end: that takes too much work")
        except Exception as exc:  # noqa: BLE001 - a schema of anyone's: a reference to nowhere, a bound that is no number
            if not self._is_known_broken:
                logger.warning("a tool's JSON Schema cannot be used, its arguments are not checked: %s", exc)
            self._is_known_broken = True

    def _whole(self, misfit: Misfit) -> Iterator[str]:
        """Lines of a misfit that is of the arguments as a whole."""
        if misfit.keyword == "required":
            yield from (f"{short(name)}: missing" for name in misfit.said)
        elif misfit.keyword == "additionalProperties":
            yield from unknown_parameters(misfit.said, self.parameters)
        else:
            yield f"the arguments together: expected {_expected(misfit)}"


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


def _causes(misfit: Misfit) -> Iterator[Misfit]:
    """The misfits that say most: of a union, those of the form whose own type fits, when there is just one."""
    if misfit.keyword not in ("anyOf", "oneOf"):
        yield misfit
        return
    near = [form for form in misfit.forms if form and not any(_is_of_type(inner, misfit) for inner in form)]
    if len(near) != 1:
        yield misfit
        return
    for inner in near[0]:
        yield from _causes(inner)


def _is_of_type(inner: Misfit, outer: Misfit) -> bool:
    return len(inner.place) == len(outer.place) and inner.keyword in _OF_TYPE


def _fault(misfit: Misfit) -> Fault:
    if misfit.keyword == "required":
        return Fault(place=misfit.place, missing=misfit.said)
    expected = _expected(misfit)
    if misfit.keyword == "additionalProperties":
        known = listed(list(_mapping(misfit.schema.get("properties")))) or "it has none"
        return Fault(place=misfit.place, expected=expected, value=misfit.value, key=misfit.said[0], known=known)
    return Fault(place=misfit.place, expected=expected, value=misfit.value)


def _expected(misfit: Misfit) -> str:
    keyword, said = misfit.keyword, misfit.said
    if keyword in ("anyOf", "oneOf"):
        if not misfit.forms:
            return "what fits just one of its forms"
        same = (inner for form in misfit.forms for inner in form if len(inner.place) == len(misfit.place))
        inner = dict.fromkeys(_expected(found) for found in islice(same, _MAX_MISFITS))
        return " or ".join(islice(inner, MAX_FORMS)) or "one of its forms"
    if keyword == "type":
        names = cast("list[str]", said) if isinstance(said, list) else [str(said)]
        nullable = ["null"] if misfit.schema.get("nullable") is True else []
        return " or ".join(_TYPES.get(name, name) for name in (*names, *nullable))
    if keyword in ("enum", "const"):
        return _one_of(cast("list[Any]", said) if keyword == "enum" else [said])
    if keyword == "required":
        return f"an object with {listed(said)}"
    bound = _BOUNDS.get(keyword)
    return bound(said) if bound is not None else "something else"


def _one_of(values: Sequence[Any]) -> str:
    said = [short(repr(value)) if isinstance(value, str) else shown(value) for value in values[:MAX_LINES]]
    if more := len(values) - len(said):
        return f"one of {', '.join(said)} or {more:,} others"
    *first, last = said or ["nothing"]
    return f"one of {', '.join(first)} or {last}" if first else last
