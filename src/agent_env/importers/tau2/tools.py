"""Which tools the store has and what they take, read from its source: calls are checked without running it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, cast

from agent_env.bundle import names_or_closest

__all__ = ["Tools", "misfit", "tools_in"]

Tools = Mapping[str, Mapping[str, str]]
"""The type of each parameter as it is written, by tool and parameter."""


def tools_in(source: str, env: str) -> Tools:
    """Return the tools of an env's class.

    Args:
        source: The Python file.
        env: The class in it. Its tools are methods marked with a plain `@tool`.
    """
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == env]
    return {
        method.name: {
            arg.arg: ast.unparse(arg.annotation) for arg in method.args.args[1:] if arg.annotation is not None
        }
        for found in classes
        for method in found.body
        if isinstance(method, ast.FunctionDef)
        and any(isinstance(mark, ast.Name) and mark.id == "tool" for mark in method.decorator_list)
    }


def misfit(tools: Tools, name: str, arguments: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a call; None when it can be made."""
    if name not in tools:
        return f"there is no tool '{name}', {names_or_closest(name, tools)}"
    parameters = tools[name]
    for parameter in parameters:
        if parameter not in arguments:
            return f"{name} needs '{parameter}'"
    for argument, value in arguments.items():
        if argument not in parameters:
            return f"{name} takes no '{argument}', {names_or_closest(argument, parameters)}"
        if not _fits(parameters[argument], value):
            return f"{name} takes {_KINDS[parameters[argument]]} as '{argument}'"
    return None


_KINDS = {"str": "a text", "list[str]": "a list of texts"}


def _fits(kind: str, value: object) -> bool:
    if kind == "str":
        return isinstance(value, str)
    return isinstance(value, list) and all(isinstance(item, str) for item in cast("list[object]", value))
