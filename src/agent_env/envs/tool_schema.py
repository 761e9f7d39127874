"""A tool's JSON Schema as a model is shown it: without `$ref`s, without generated titles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

__all__ = ["RecursiveSchemaError", "plain_schema"]

_DEFINITIONS = "#/$defs/"
_NAMED_SCHEMAS = ("properties", "patternProperties", "dependentSchemas")
"""Keywords whose value maps names to schemas: those names are the user's, not keywords."""


class RecursiveSchemaError(Exception):
    """A type contains itself: written out it would have no end."""


def plain_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return `schema` with each `$ref` replaced by what it stands for.

    Raises:
        RecursiveSchemaError: When a definition contains itself; the message is its name.
    """
    definitions = cast("Mapping[str, Any]", schema.get("$defs", {}))
    top = {key: value for key, value in schema.items() if key != "$defs"}
    return cast("dict[str, Any]", _inline(top, definitions, ()))


def _inline(node: Any, definitions: Mapping[str, Any], inside: tuple[str, ...]) -> Any:
    if isinstance(node, list):
        return [_inline(item, definitions, inside) for item in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    written = cast("dict[str, Any]", node)
    ref = written.get("$ref")
    if isinstance(ref, str):
        name = ref.removeprefix(_DEFINITIONS)
        if name in inside:
            raise RecursiveSchemaError(name)
        beside = {key: value for key, value in written.items() if key != "$ref"}
        return _inline({**definitions[name], **beside}, definitions, (*inside, name))
    plain: dict[str, Any] = {}
    for key, value in written.items():
        if key in ("title", "discriminator"):
            continue  # generated from names; and OpenAPI's, whose mapping names the definitions that are gone
        if key in _NAMED_SCHEMAS and isinstance(value, dict):
            named = cast("dict[str, Any]", value)
            plain[key] = {name: _inline(child, definitions, inside) for name, child in named.items()}
        elif key in ("default", "const", "enum", "examples"):
            plain[key] = value
        else:
            plain[key] = _inline(value, definitions, inside)
    return plain
