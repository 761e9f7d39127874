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
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, cast
from urllib.parse import unquote

from pydantic_core import SchemaError, SchemaValidator, core_schema

from agent_env.envs.schema_keywords import KEYWORDS, Misfit, Place

__all__ = ["BrokenSchemaError", "JsonSchema", "TooMuchWorkError", "Work", "whole_numbers"]

STEPS = 60_000
"""How many steps checking one call takes at most: some milliseconds, 20 at worst."""
_COUNTED_CHARS = 1000
"""How long a text may be for a pattern that counts, as `\\w{1,200}` does: it takes some microseconds for each character."""
_ALONE = re.compile(r"https?://json-schema\.org/draft-0[467]/schema#?")
"""The drafts in which nothing counts beside a `$ref`."""


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

    def spend(self, steps: int) -> None:
        self.work.spend(steps)

    def find(self, reference: str) -> Any:
        return self.whole.find(reference)

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
            yield from KEYWORDS["$ref"](self, schema["$ref"], value, schema, place)
            return
        for keyword, said in schema.items():
            look = KEYWORDS.get(keyword)
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
