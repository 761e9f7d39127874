"""The tools that an MCP server lists, as a model is shown them.

A model server takes names of letters, digits, `_` and `-`, and schemas without references. So every other character of a
name becomes `_`; references are written out, and where a schema contains itself, the second time around it says no more
than its type. A call is checked against the schema as the server wrote it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from agent_env.envs.contract import ToolSpec
from agent_env.envs.json_schema import BrokenSchemaError, JsonSchema

__all__ = ["ListedTool", "McpTool", "UnusableToolError", "tools_of"]

_NAME_MAX = 64
"""The longest tool name that the common model servers take."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NODES = 20_000
"""How large the schemas of all tools may be with their references written out: a model has to read them."""
_MAX_LIST_CHARS = 4 * 2**20
_LEFT_OUT = frozenset(("title", "$schema", "$id", "id", "$anchor", "$comment", "$defs", "definitions", "discriminator"))
"""What says nothing to a model: generated from names, or for references that are gone."""
_NAMED_SCHEMAS = frozenset(("properties", "patternProperties", "dependentSchemas"))
"""Keywords whose value maps names to schemas: those names are the server's, not keywords."""
_VALUES = frozenset(("default", "const", "enum", "examples", "required"))


class UnusableToolError(Exception):
    """A tool that no model can be shown; the message says which and why."""


@dataclass(frozen=True, slots=True)
class ListedTool:
    """A tool as the server lists it."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class McpTool:
    """A tool of a server's."""

    spec: ToolSpec
    listed: ListedTool


def tools_of(listed: Sequence[ListedTool]) -> Mapping[str, McpTool]:
    """Return tools by the name that a model sees, in their order. Made once for equal lists.

    Raises:
        UnusableToolError: When one cannot be shown to a model.
    """
    text = json.dumps([(tool.name, tool.description, tool.input_schema, tool.output_schema) for tool in listed])
    if len(text) > _MAX_LIST_CHARS:
        raise UnusableToolError(f"after tool, {len(text):,} characters in all, and no model can read as much")
    return _made(text)


@lru_cache(maxsize=128)
def _made(text: str) -> Mapping[str, McpTool]:
    tools: dict[str, McpTool] = {}
    budget = _Budget(_MAX_NODES)
    for fields in json.loads(text):
        listed = ListedTool(*fields)
        name = _NOT_IN_NAMES.sub("_", listed.name)
        if not name or len(name) > _NAME_MAX:
            what = f"'{listed.name[:80]}' with a name that model servers refuse"
            raise UnusableToolError(f"{what}: it has {len(name)} characters, and 1 to {_NAME_MAX} are taken")
        if name in tools:
            other = tools[name].listed.name
            both = "twice" if other == listed.name else f"and '{other}', both of which a model sees as {name}"
            raise UnusableToolError(f"'{listed.name}' {both}")
        try:
            parameters = _parameters(listed.input_schema, budget)
        except (BrokenSchemaError, UnusableToolError) as exc:
            raise UnusableToolError(
                f"'{listed.name}' with an inputSchema that cannot be shown to a model: {exc}"
            ) from None
        spec = ToolSpec(name=name, description=listed.description, parameters=parameters)
        tools[name] = McpTool(spec=spec, listed=listed)
    return tools


class _Budget:
    """How many parts of schemas may still be written."""

    def __init__(self, left: int) -> None:
        self.left = left


def _parameters(schema: Mapping[str, Any], budget: _Budget) -> dict[str, Any]:
    written = _Writer(schema, budget).write(schema, ())
    if not isinstance(written, dict):
        raise UnusableToolError("it is no object")
    parameters = cast("dict[str, Any]", written)
    if parameters.setdefault("type", "object") != "object":
        raise UnusableToolError(f"it is of type {json.dumps(parameters['type'])[:60]}, and arguments are an object")
    if not isinstance(parameters.setdefault("properties", {}), dict):
        raise UnusableToolError("its properties are no object")
    return parameters


class _Writer:
    """Writes a schema out without references."""

    def __init__(self, root: Mapping[str, Any], budget: _Budget) -> None:
        self._schema = JsonSchema(root)
        self._budget = budget

    def write(self, node: Any, inside: tuple[str, ...]) -> Any:
        self._budget.left -= 1
        if self._budget.left < 0:
            raise UnusableToolError("with its references written out it is too large")
        if isinstance(node, list):
            return [self.write(item, inside) for item in cast("list[Any]", node)]
        if not isinstance(node, dict):
            return node
        schema = cast("dict[str, Any]", node)
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._referred(reference, schema, inside)
        plain: dict[str, Any] = {}
        for key, value in schema.items():
            if key in _LEFT_OUT:
                continue
            if key in _NAMED_SCHEMAS and isinstance(value, dict):
                named = cast("dict[str, Any]", value)
                plain[key] = {name: self.write(child, inside) for name, child in named.items()}
            else:
                plain[key] = value if key in _VALUES else self.write(value, inside)
        return plain

    def _referred(self, reference: str, schema: Mapping[str, Any], inside: tuple[str, ...]) -> Any:
        found = self._schema.find(reference)
        if not isinstance(found, dict):
            return found
        target = cast("dict[str, Any]", found)
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        if reference in inside:
            kept = {key: target[key] for key in ("type", "description") if key in target}
            return self.write({**kept, **beside}, inside)
        return self.write({**target, **beside}, (*inside, reference))
