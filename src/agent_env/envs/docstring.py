"""What a tool's docstring says to the agent: google style, the first part and the `Args:` section."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Docstring", "read_docstring"]

_SECTION = re.compile(
    r"(Args|Arguments|Parameters|Params|Returns|Return|Yields|Yield|Raises|Examples?|Notes?|Warnings?|See Also|Todo"
    r"|Attributes|References)\s*:\s*"
)
_ARGS = frozenset({"Args", "Arguments", "Parameters", "Params"})
_PARAMETER = re.compile(r"\*{0,2}(?P<name>\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>.*)")


@dataclass(frozen=True, slots=True)
class Docstring:
    """A docstring, taken apart."""

    description: str
    """What stands before the first section."""
    parameters: Mapping[str, str]
    """The description of each parameter named under `Args:`."""


def read_docstring(function: object) -> Docstring:
    """Take a function's own docstring apart."""
    text = inspect.cleandoc(getattr(function, "__doc__", None) or "")
    description: list[str] = []
    parameters: dict[str, list[str]] = {}
    section: str | None = None
    indent: int | None = None
    name = ""
    for line in text.splitlines():
        header = _SECTION.fullmatch(line)
        if header is not None:
            section, indent, name = header.group(1), None, ""
            continue
        if section is None:
            description.append(line)
            continue
        if section not in _ARGS or not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        indent = depth if indent is None else indent
        found = _PARAMETER.fullmatch(line.strip()) if depth <= indent else None
        if found is not None:
            name = found.group("name")
            parameters[name] = [found.group("text")]
        elif name:
            parameters[name].append(line.strip())
    return Docstring(
        description="\n".join(description).strip(),
        parameters={key: " ".join(" ".join(lines).split()) for key, lines in parameters.items()},
    )
