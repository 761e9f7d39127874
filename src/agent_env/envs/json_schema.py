"""Whether a JSON value fits a JSON Schema, found out in a bounded number of steps.

The values are a model's and the schemas are anyone's, and they are checked on the event loop that all episodes share: no value
and no schema may hold it up. So each step is counted, and there are only so many; a pattern is matched in linear time, by the
engine that pydantic has; equal items are found by their text. What cannot be decided so is not decided: a pattern of another
language, as one that looks ahead is, refuses nothing, and `unevaluatedProperties`, `unevaluatedItems` and `format` are not
looked at. The tool's own check, or its server's, is still to come.

All drafts from 4 on are read as one, and OpenAPI's `nullable` with them. References are followed within the schema; none is fetched. A whole number with a point,
`2.0`, is no integer here: Python's tools are not given a float for one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import islice
from typing import Any, cast
from urllib.parse import unquote

from pydantic_core import SchemaError, SchemaValidator, core_schema

__all__ = ["BrokenSchemaError", "JsonSchema", "Misfit", "TooMuchWorkError", "Work", "whole_numbers"]

STEPS = 60_000
"""How many steps checking one call takes at most: some milliseconds, 20 at worst."""
_COUNTED_CHARS = 1000
"""How long a text may be for a pattern that counts, as `\\w{1,200}` does: it takes some microseconds for each character."""
_PER_BRANCH = 20
"""How many misfits of one form of a union are looked for."""
_ALONE = re.compile(r"https?://json-schema\.org/draft-0[467]/schema#?")
"""The drafts in which nothing counts beside a `$ref`."""

Place = tuple[str | int, ...]


class BrokenSchemaError(Exception):
    """The schema is none, or refers to what is not in it."""


class TooMuchWorkError(Exception):
    """The steps are used up."""


class Work:
    """The steps that are left."""

    def __init__(self, steps: int = STEPS) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        """Take steps.

        Raises:
            TooMuchWorkError: When there are not as many.
        """
        self.left -= steps
        if self.left < 0:
            raise TooMuchWorkError

    def share(self) -> Work:
        """Half of what is left, to be given back with `take_back`: what is large leaves something for the others."""
        share = Work(self.left // 2)
        self.left -= share.left
        return share

    def take_back(self, share: Work) -> None:
        """Have what is left of a share again."""
        self.left += max(share.left, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Misfit:
    """One thing about a value that does not fit."""

    keyword: str
    said: Any
    """What the schema says with that keyword."""
    value: Any
    place: Place
    schema: Mapping[str, Any]
    forms: Sequence[Sequence[Misfit]] = ()
    """Of a union: why the value is none of its forms, for each of them."""


class JsonSchema:
    """A JSON Schema.

    Args:
        schema: JSON; not changed while this is used.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.root = schema
        self.is_ref_alone = _ALONE.fullmatch(str(schema.get("$schema", ""))) is not None
        self._found: dict[str, Any] = {}
        self._named: dict[str, Any] | None = None

    def misfits(self, value: Any, work: Work) -> Iterator[Misfit]:
        """Say what does not fit, as it is found.

        Args:
            value: A JSON value.
            work: The steps that this may take.

        Raises:
            TooMuchWorkError: When they do not suffice. What was found before is as good as any.
            BrokenSchemaError: When the schema is broken, as far as was seen. Any other exception says the same.
        """
        return _Check(self, work).misfits(self.root, value, ())

    def find(self, reference: str) -> Any:
        """What a reference refers to.

        Raises:
            BrokenSchemaError: When that is not in the schema.
        """
        if reference not in self._found:
            self._found[reference] = self._find(reference)
        return self._found[reference]

    def _find(self, reference: str) -> Any:
        if self._named is None:
            self._named = {"#": self.root, "": self.root, **_named(self.root)}
        if reference in self._named:
            return self._named[reference]
        base, mark, pointer = reference.partition("#")
        found: Any = self._named.get(base)
        if found is None or not mark or not pointer.startswith("/"):
            raise BrokenSchemaError(f"there is no {reference[:200]} in it")
        for part in unquote(pointer).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            try:
                found = cast("list[Any]", found)[int(name)] if isinstance(found, list) else found[name]
            except (LookupError, TypeError, ValueError):
                raise BrokenSchemaError(f"there is no {reference[:200]} in it") from None
        return found


def _named(root: Any) -> dict[str, Any]:
    """The schemas in a schema that have a name of their own."""
    named: dict[str, Any] = {}
    left: list[Any] = [root]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            held = cast("dict[str, Any]", part)
            for keyword, prefix in (("$id", ""), ("id", ""), ("$anchor", "#"), ("$dynamicAnchor", "#")):
                if isinstance(name := held.get(keyword), str):
                    named.setdefault(prefix + name.removesuffix("#"), held)
            left += held.values()
        elif isinstance(part, list):
            left += cast("list[Any]", part)
    return named


class _Check:
    """One check of one value."""

    def __init__(self, whole: JsonSchema, work: Work) -> None:
        self.whole = whole
        self.work = work
        self.undecided = 0
        """How often something was passed that may not fit."""

    def misfits(self, schema: Any, value: Any, place: Place) -> Iterator[Misfit]:
        if schema is True:
            return
        if schema is False:
            yield Misfit(keyword="false", said=False, value=value, place=place, schema={})
            return
        self.work.spend(8 + len(schema))
        if value is None and schema.get("nullable") is True:
            return
        if self.whole.is_ref_alone and "$ref" in schema:
            yield from _reference(self, schema["$ref"], value, schema, place)
            return
        for keyword, said in schema.items():
            look = _KEYWORDS.get(keyword)
            if look is not None:
                yield from look(self, said, value, schema, place)

    def fits(self, schema: Any, value: Any) -> bool | None:
        """Whether a value fits; None when that cannot be told."""
        before = self.undecided
        if next(self.misfits(schema, value, ()), None) is not None:
            return False
        return True if self.undecided == before else None

    def matches(self, pattern: str, text: str) -> bool | None:
        """Whether a pattern is in a text; None when that cannot be told."""
        matcher = _matcher(pattern)
        counts = "{" in pattern
        if matcher is None or (counts and len(text) > _COUNTED_CHARS):
            self.undecided += 1
            return None
        self.work.spend(10 + (20 * len(text) if counts else len(text) // 8))
        return matcher.isinstance_python(text)

    def text(self, value: Any) -> str:
        """A text that equal values have in common, and no others: `1` and `1.0` are equal, `1` and `true` are not."""
        text = json.dumps(whole_numbers(value), sort_keys=True)
        self.work.spend(10 + len(text))
        return text


@lru_cache(maxsize=512)
def _matcher(pattern: str) -> SchemaValidator | None:
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex", strict=True))
    except SchemaError:
        re.compile(pattern)  # what is no pattern there either is a broken schema's
        return None


def whole_numbers(value: Any) -> Any:
    """Return JSON with each whole number as an integer: to JSON Schema 2.0 is one."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [whole_numbers(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: whole_numbers(item) for key, item in cast("dict[str, Any]", value).items()}
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_IS_OF_TYPE: Mapping[str, Callable[[Any], bool]] = {
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": _is_number,
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}

_Look = Callable[[_Check, Any, Any, Mapping[str, Any], Place], Iterator[Misfit]]


def _that(keyword: str, kind: Callable[[Any], bool], holds: Callable[[Any, Any], bool]) -> _Look:
    """A keyword that says one thing of values of one kind."""

    def look(_: _Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
        if kind(value) and not holds(value, said):
            yield Misfit(keyword=keyword, said=said, value=value, place=place, schema=schema)

    return look


def _bound(
    keyword: str, exclusive: str, holds: Callable[[Any, Any], bool], strictly: Callable[[Any, Any], bool]
) -> _Look:
    """A bound of numbers; in draft 4, a flag beside it says that it is exclusive."""

    def look(_: _Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
        is_exclusive = schema.get(exclusive) is True
        if _is_number(value) and not (strictly if is_exclusive else holds)(value, said):
            name = exclusive if is_exclusive else keyword
            yield Misfit(keyword=name, said=said, value=value, place=place, schema=schema)

    return look


def _type(_: _Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    kinds = cast("list[str]", said) if isinstance(said, list) else [cast("str", said)]
    if not any(_IS_OF_TYPE[kind](value) for kind in kinds):
        yield Misfit(keyword="type", said=said, value=value, place=place, schema=schema)


def _is_among(check: _Check, value: Any, values: Sequence[Any]) -> bool:
    check.work.spend(len(values) // 2)
    if isinstance(value, str):
        return value in values
    text = check.text(value)
    return any(not isinstance(other, str) and check.text(other) == text for other in values)


def _enum(check: _Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if not _is_among(check, value, said):
        yield Misfit(keyword="enum", said=said, value=value, place=place, schema=schema)


def _const(check: _Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if not _is_among(check, value, [said]):
        yield Misfit(keyword="const", said=said, value=value, place=place, schema=schema)


def _pattern(check: _Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if isinstance(value, str) and check.matches(said, value) is False:
        yield Misfit(keyword="pattern", said=said, value=value, place=place, schema=schema)


def _items(check: _Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if not isinstance(value, list):
        return
    items = cast("list[Any]", value)
    if isinstance(said, list):  # before draft 2020-12
        first = cast("list[Any]", said)
        yield from _prefix_items(check, first, items, schema, place)
        start, rest = len(first), schema.get("additionalItems", True)
    else:
        start, rest = len(schema.get("prefixItems", ())), said
    if rest is True or rest == {}:
        return
    for at in range(start, len(items)):
        yield from check.misfits(rest, items[at], (*place, at))


def _prefix_items(check: _Check, said: Any, value: Any, _: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if isinstance(value, list):
        for at, (part, item) in enumerate(zip(said, cast("list[Any]", value), strict=False)):
            yield from check.misfits(part, item, (*place, at))


def _contains(check: _Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if not isinstance(value, list):
        return
    least, most = schema.get("minContains", 1), schema.get("maxContains")
    fitting = [check.fits(said, item) for item in cast("list[Any]", value)]
    if len(fitting) - fitting.count(False) < least:
        yield Misfit(keyword="contains", said=said, value=value, place=place, schema=schema)
    elif most is not None and fitting.count(True) > most:
        yield Misfit(keyword="maxContains", said=most, value=value, place=place, schema=schema)


def _unique_items(check: _Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if said and isinstance(value, list):
        items = cast("list[Any]", value)
        if len({check.text(item) for item in items}) < len(items):
            yield Misfit(keyword="uniqueItems", said=said, value=items, place=place, schema=schema)


def _properties(check: _Check, said: Any, value: Any, _: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if isinstance(value, dict):
        held = cast("dict[str, Any]", value)
        check.work.spend(min(len(said), len(held)))
        for name in said if len(said) <= len(held) else held:
            if name in said and name in held:
                yield from check.misfits(said[name], held[name], (*place, name))


def _pattern_properties(check: _Check, said: Any, value: Any, _: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if isinstance(value, dict):
        for pattern, part in said.items():
            for name, item in cast("dict[str, Any]", value).items():
                if check.matches(pattern, name):
                    yield from check.misfits(part, item, (*place, name))


def _additional(check: _Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if said is True or not isinstance(value, dict):
        return
    held, known = cast("dict[str, Any]", value), schema.get("properties", {})
    check.work.spend(len(held))
    extra = [name for name in held if name not in known]
    if patterns := schema.get("patternProperties"):
        # One that may match, for all that is known, is none that is too much.
        extra = [name for name in extra if all(check.matches(pattern, name) is False for pattern in patterns)]
    if said is False:
        if extra:
            yield Misfit(keyword="additionalProperties", said=extra, value=held, place=place, schema=schema)
        return
    for name in extra:
        yield from check.misfits(said, held[name], (*place, name))


def _property_names(check: _Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if isinstance(value, dict):
        for name in cast("dict[str, Any]", value):
            for inner in check.misfits(said, name, place):
                yield Misfit(
                    keyword="propertyNames", said=said, value=name, place=place, schema=schema, forms=[[inner]]
                )
                break


def _required(check: _Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if isinstance(value, dict):
        check.work.spend(len(said))
        if missing := [name for name in said if name not in value]:
            yield Misfit(keyword="required", said=missing, value=value, place=place, schema=schema)


def _dependencies(check: _Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if isinstance(value, dict):
        check.work.spend(len(said))
        for name, needs in said.items():
            if name in value:
                look = _required if isinstance(needs, list) else _in_place
                yield from look(check, needs, value, schema, place)


def _in_place(check: _Check, said: Any, value: Any, _: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    yield from check.misfits(said, value, place)


def _reference(check: _Check, said: Any, value: Any, _: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    yield from check.misfits(check.whole.find(said), value, place)


def _all_of(check: _Check, said: Any, value: Any, _: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    for part in said:
        yield from check.misfits(part, value, place)


def _any_of(check: _Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    forms: list[list[Misfit]] = []
    for part in said:
        found = list(islice(check.misfits(part, value, place), _PER_BRANCH))
        if not found:
            return
        forms.append(found)
    yield Misfit(keyword="anyOf", said=said, value=value, place=place, schema=schema, forms=forms)


def _one_of(check: _Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    forms: list[list[Misfit]] = []
    fitting = 0
    for part in said:
        before = check.undecided
        found = list(islice(check.misfits(part, value, place), _PER_BRANCH))
        if found:
            forms.append(found)
        elif check.undecided == before:
            fitting += 1
        else:
            forms.append([])
    if fitting > 1 or (fitting == 0 and all(forms)):
        forms = [] if fitting else forms
        yield Misfit(keyword="oneOf", said=said, value=value, place=place, schema=schema, forms=forms)


def _not(check: _Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if check.fits(said, value):
        yield Misfit(keyword="not", said=said, value=value, place=place, schema=schema)


def _if(check: _Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    holds = check.fits(said, value)
    if holds is not None:
        yield from check.misfits(schema.get("then" if holds else "else", True), value, place)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _multiple_of(check: _Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if _is_number(value):
        check.work.spend(100)
        if (Fraction(str(value)) / Fraction(str(said))).denominator != 1:
            yield Misfit(keyword="multipleOf", said=said, value=value, place=place, schema=schema)


def _below(keyword: str) -> _Look:
    return _that(keyword, _is_number, lambda value, said: isinstance(said, bool) or value < said)


def _above(keyword: str) -> _Look:
    return _that(keyword, _is_number, lambda value, said: isinstance(said, bool) or value > said)


_KEYWORDS: Mapping[str, _Look] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "minimum": _bound("minimum", "exclusiveMinimum", lambda v, said: v >= said, lambda v, said: v > said),
    "maximum": _bound("maximum", "exclusiveMaximum", lambda v, said: v <= said, lambda v, said: v < said),
    "exclusiveMinimum": _above("exclusiveMinimum"),
    "exclusiveMaximum": _below("exclusiveMaximum"),
    "multipleOf": _multiple_of,
    "minLength": _that("minLength", _is_text, lambda value, said: len(value) >= said),
    "maxLength": _that("maxLength", _is_text, lambda value, said: len(value) <= said),
    "pattern": _pattern,
    "items": _items,
    "prefixItems": _prefix_items,
    "contains": _contains,
    "uniqueItems": _unique_items,
    "minItems": _that("minItems", _is_list, lambda value, said: len(value) >= said),
    "maxItems": _that("maxItems", _is_list, lambda value, said: len(value) <= said),
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "propertyNames": _property_names,
    "required": _required,
    "minProperties": _that("minProperties", _is_object, lambda value, said: len(value) >= said),
    "maxProperties": _that("maxProperties", _is_object, lambda value, said: len(value) <= said),
    "dependencies": _dependencies,
    "dependentRequired": _dependencies,
    "dependentSchemas": _dependencies,
    "$ref": _reference,
    "$dynamicRef": _reference,
    "$recursiveRef": _reference,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
}
