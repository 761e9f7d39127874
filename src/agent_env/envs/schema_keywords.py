"""What the keywords of JSON Schema say of a value, one by one.

Covers all drafts from 4 on as one, and nothing that needs more than the value and the keyword's neighbours: references, the
steps that are counted and patterns are the check's (`json_schema.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from operator import ge, gt, le, lt
from typing import Any, Protocol, cast

__all__ = ["KEYWORDS", "Check", "Misfit", "Place"]

_PER_BRANCH = 20
"""How many misfits of one form of a union are looked for."""

Place = tuple[str | int, ...]


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


class Check(Protocol):
    """One check of one value, as far as its keywords need it."""

    @property
    def undecided(self) -> int:
        """How often something was passed that may not fit."""
        ...

    def spend(self, steps: int) -> None:
        """Take steps; raises when there are not as many."""
        ...

    def find(self, reference: str) -> Any:
        """Return what a reference refers to; raises when that is not in the schema."""
        ...

    def misfits(self, schema: Any, value: Any, place: Place) -> Iterator[Misfit]:
        """Say what does not fit, as it is found."""
        ...

    def fits(self, schema: Any, value: Any) -> bool | None:
        """Whether a value fits; None when that cannot be told."""
        ...

    def matches(self, pattern: str, text: str) -> bool | None:
        """Whether a pattern is in a text; None when that cannot be told."""
        ...

    def text(self, value: Any) -> str:
        """A text that equal values have in common, and no others."""
        ...


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

_Look = Callable[[Check, Any, Any, Mapping[str, Any], Place], Iterator[Misfit]]


_Holds = Callable[[Any, Any], bool]
"""Whether a value, or its size, is within what the keyword says."""


def _that(keyword: str, kind: str, holds: _Holds) -> _Look:
    """A keyword that says one thing of values of one type."""
    is_of_type = _IS_OF_TYPE[kind]

    def look(_: Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
        if is_of_type(value) and not holds(value, said):
            yield Misfit(keyword=keyword, said=said, value=value, place=place, schema=schema)

    return look


def _size(keyword: str, kind: str, holds: _Holds) -> _Look:
    """A bound of the length of values of one type."""
    return _that(keyword, kind, lambda value, said: holds(len(value), said))


def _exclusive(keyword: str, holds: _Holds) -> _Look:
    """An exclusive bound of numbers; in draft 4 it is a flag, which is read with the bound that it is beside."""
    return _that(keyword, "number", lambda value, said: isinstance(said, bool) or holds(value, said))


def _bound(keyword: str, exclusive: str, holds: _Holds, strictly: _Holds) -> _Look:
    """A bound of numbers; in draft 4, a flag beside it says that it is exclusive."""

    def look(_: Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
        is_exclusive = schema.get(exclusive) is True
        if _is_number(value) and not (strictly if is_exclusive else holds)(value, said):
            name = exclusive if is_exclusive else keyword
            yield Misfit(keyword=name, said=said, value=value, place=place, schema=schema)

    return look


def _type(_: Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    kinds = cast("list[str]", said) if isinstance(said, list) else [cast("str", said)]
    if not any(_IS_OF_TYPE[kind](value) for kind in kinds):
        yield Misfit(keyword="type", said=said, value=value, place=place, schema=schema)


def _is_among(check: Check, value: Any, values: Sequence[Any]) -> bool:
    check.spend(len(values) // 2)
    if isinstance(value, str):
        return value in values
    text = check.text(value)
    return any(not isinstance(other, str) and check.text(other) == text for other in values)


def _enum(check: Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if not _is_among(check, value, said):
        yield Misfit(keyword="enum", said=said, value=value, place=place, schema=schema)


def _const(check: Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if not _is_among(check, value, [said]):
        yield Misfit(keyword="const", said=said, value=value, place=place, schema=schema)


def _pattern(check: Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if isinstance(value, str) and check.matches(said, value) is False:
        yield Misfit(keyword="pattern", said=said, value=value, place=place, schema=schema)


def _items(check: Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
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


def _prefix_items(check: Check, said: Any, value: Any, _: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if isinstance(value, list):
        for at, (part, item) in enumerate(zip(said, cast("list[Any]", value), strict=False)):
            yield from check.misfits(part, item, (*place, at))


def _contains(check: Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if not isinstance(value, list):
        return
    least, most = schema.get("minContains", 1), schema.get("maxContains")
    fitting = [check.fits(said, item) for item in cast("list[Any]", value)]
    if len(fitting) - fitting.count(False) < least:
        yield Misfit(keyword="contains", said=said, value=value, place=place, schema=schema)
    elif most is not None and fitting.count(True) > most:
        yield Misfit(keyword="maxContains", said=most, value=value, place=place, schema=schema)


def _unique_items(check: Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if said and isinstance(value, list):
        items = cast("list[Any]", value)
        if len({check.text(item) for item in items}) < len(items):
            yield Misfit(keyword="uniqueItems", said=said, value=items, place=place, schema=schema)


def _properties(check: Check, said: Any, value: Any, _: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if isinstance(value, dict):
        held = cast("dict[str, Any]", value)
        check.spend(min(len(said), len(held)))
        for name in said if len(said) <= len(held) else held:
            if name in said and name in held:
                yield from check.misfits(said[name], held[name], (*place, name))


def _pattern_properties(check: Check, said: Any, value: Any, _: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if isinstance(value, dict):
        for pattern, part in said.items():
            for name, item in cast("dict[str, Any]", value).items():
                if check.matches(pattern, name):
                    yield from check.misfits(part, item, (*place, name))


def _additional(check: Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if said is True or not isinstance(value, dict):
        return
    held, known = cast("dict[str, Any]", value), schema.get("properties", {})
    check.spend(len(held))
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


def _property_names(check: Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if isinstance(value, dict):
        for name in cast("dict[str, Any]", value):
            for inner in check.misfits(said, name, place):
                yield Misfit(
                    keyword="propertyNames", said=said, value=name, place=place, schema=schema, forms=[[inner]]
                )
                break


def _required(check: Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if isinstance(value, dict):
        check.spend(len(said))
        if missing := [name for name in said if name not in value]:
            yield Misfit(keyword="required", said=missing, value=value, place=place, schema=schema)


def _dependencies(check: Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if isinstance(value, dict):
        check.spend(len(said))
        for name, needs in said.items():
            if name in value:
                look = _required if isinstance(needs, list) else _in_place
                yield from look(check, needs, value, schema, place)


def _in_place(check: Check, said: Any, value: Any, _: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    yield from check.misfits(said, value, place)


def _reference(check: Check, said: Any, value: Any, _: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    yield from check.misfits(check.find(said), value, place)


def _all_of(check: Check, said: Any, value: Any, _: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    for part in said:
        yield from check.misfits(part, value, place)


def _any_of(check: Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    forms: list[list[Misfit]] = []
    for part in said:
        found = list(islice(check.misfits(part, value, place), _PER_BRANCH))
        if not found:
            return
        forms.append(found)
    yield Misfit(keyword="anyOf", said=said, value=value, place=place, schema=schema, forms=forms)


def _one_of(check: Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
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


def _not(check: Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if check.fits(said, value):
        yield Misfit(keyword="not", said=said, value=value, place=place, schema=schema)


def _if(check: Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    holds = check.fits(said, value)
    if holds is not None:
        yield from check.misfits(schema.get("then" if holds else "else", True), value, place)


def _multiple_of(check: Check, said: Any, value: Any, schema: Mapping[str, Any], place: Place) -> Iterator[Misfit]:
    if _is_number(value):
        check.spend(100)
        if (Fraction(str(value)) / Fraction(str(said))).denominator != 1:
            yield Misfit(keyword="multipleOf", said=said, value=value, place=place, schema=schema)


KEYWORDS: Mapping[str, _Look] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "minimum": _bound("minimum", "exclusiveMinimum", ge, gt),
    "maximum": _bound("maximum", "exclusiveMaximum", le, lt),
    "exclusiveMinimum": _exclusive("exclusiveMinimum", gt),
    "exclusiveMaximum": _exclusive("exclusiveMaximum", lt),
    "multipleOf": _multiple_of,
    "minLength": _size("minLength", "string", ge),
    "maxLength": _size("maxLength", "string", le),
    "pattern": _pattern,
    "items": _items,
    "prefixItems": _prefix_items,
    "contains": _contains,
    "uniqueItems": _unique_items,
    "minItems": _size("minItems", "array", ge),
    "maxItems": _size("maxItems", "array", le),
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional,
    "propertyNames": _property_names,
    "required": _required,
    "minProperties": _size("minProperties", "object", ge),
    "maxProperties": _size("maxProperties", "object", le),
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
