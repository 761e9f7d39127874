"""The text files of a bundle, read so that every value still knows its line.

Covers YAML (the 1.2 core values: only `true` and `false` are booleans, no dates, and digits after a leading zero stay
text, so `zip: 01912` keeps its zero) and JSON lines. Not the shape of what they hold: `schema.py` says that.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from agent_env.bundle.json_text import JsonFault, JsonFileError, read_json
from agent_env.errors import Problem

__all__ = ["Document", "Loc", "read_json_lines", "read_text", "read_yaml"]

_DEEPEST = 100
"""Lists and mappings inside one another: what copies and writes values down later goes through them by recursion."""

Loc = tuple[str | int, ...]
"""Keys and indexes from the top of a document to a value, as pydantic gives them."""

_BaseLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BaseLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own class attribute


_RESOLVERS = [
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^(?:[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+|0o[0-7]+)$", list("-+0123456789")),
    (
        "float",
        r"^(?:[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        list("-+0123456789."),
    ),
]
for _name, _pattern, _first in _RESOLVERS:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(_pattern), _first)


_TOO_DEEP = (f"more than {_DEEPEST} lists and mappings are inside one another here", "flatten them")


class _BadValueError(Exception):
    """A value that no bundle file may hold."""

    def __init__(self, line: int, what: str, fix: str) -> None:
        super().__init__(what)
        self.line, self.what, self.fix = line, what, fix


@dataclass(frozen=True, slots=True)
class Document:
    """One YAML file, or one line of a JSONL file."""

    path: Path
    """Relative to the bundle's folder."""
    data: Any
    first_line: int = 1
    node: Node | None = None
    """The YAML node of `data`; None for a line of JSON."""

    def line(self, loc: Loc = ()) -> int:
        """Return the line of the value at `loc`, or of the nearest thing around it that is written in the file."""
        node, line = self.node, self.first_line
        for part in loc:
            found = _child(node, part)
            if found is not None:
                line, node = found
        return line

    def problem(self, loc: Loc, what: str, fix: str) -> Problem:
        """Return a problem at the line of `loc`."""
        return Problem(path=self.path, line=self.line(loc), what=what, fix=fix)


def _child(node: Node | None, part: str | int) -> tuple[int, Node] | None:
    """Return where `part` of a node is. Parts that pydantic adds for itself (union tags) are nowhere."""
    if isinstance(node, MappingNode):
        for key, value in cast("list[tuple[Node, Node]]", node.value):
            if key.value == part:
                return _line_of(key), value
    elif isinstance(node, SequenceNode) and isinstance(part, int):
        items = cast("list[Node]", node.value)
        if part < len(items):
            return _line_of(items[part]), items[part]
    return None


def _line_of(node: Node) -> int:
    return int(node.start_mark.line) + 1


def read_text(root: Path, path: Path, problems: list[Problem]) -> str | None:
    """Return the text of the file at `root / path`, or None and a problem when it is no UTF-8 text."""
    try:
        raw = (root / path).read_bytes()
    except OSError as exc:
        problems.append(
            Problem(path=path, line=1, what=f"the file cannot be read ({exc.strerror})", fix="make it a readable file")
        )
        return None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        line = raw.count(b"\n", 0, exc.start) + 1
        problems.append(Problem(path=path, line=line, what="the file is not UTF-8 text", fix="save it as UTF-8"))
        return None


def read_yaml(root: Path, path: Path, problems: list[Problem]) -> Document | None:
    """Read one YAML file.

    Args:
        root: The bundle's folder.
        path: The file, relative to it.
        problems: Where what is wrong is added: a file that does not parse, and every duplicate key and every value
            that is no JSON value in one that does.

    Returns:
        The document, or None when it has a problem.
    """
    text = read_text(root, path, problems)
    if text is None:
        return None
    before = len(problems)
    try:
        node = cast("Node | None", cast("Any", yaml).compose(text, Loader=_Loader))
    except yaml.YAMLError as exc:
        problems.append(_yaml_problem(path, text, exc))
        return None
    except RecursionError:
        problems.append(Problem(path=path, line=1, what="the file is nested too deeply", fix="flatten it"))
        return None
    if node is None:
        problems.append(Problem(path=path, line=1, what="the file is empty", fix="write its keys, or remove the file"))
        return None
    data = _Builder(path, problems).build(node)
    if len(problems) > before:
        return None
    return Document(path, data, _line_of(node), node)


def _yaml_problem(path: Path, text: str, exc: yaml.YAMLError) -> Problem:
    mark = getattr(exc, "problem_mark", None) or getattr(exc, "context_mark", None)
    line = int(mark.line) + 1 if mark is not None else 1
    reason = str(getattr(exc, "problem", None) or getattr(exc, "reason", None) or exc).splitlines()[0]
    position = getattr(exc, "position", None)
    if mark is None and isinstance(position, int):
        line = text.count("\n", 0, position) + 1
    line = min(line, max(1, text.count("\n") + (not text.endswith("\n"))))
    if text.split("\n")[line - 1].startswith("\t"):
        return Problem(path=path, line=line, what="the line begins with a tab", fix="indent it with spaces")
    if "expected a single document" in str(exc):
        return Problem(path=path, line=line, what="a second YAML document starts here", fix="keep one in a file")
    return Problem(
        path=path, line=line, what=f"this is not YAML: {reason}", fix="correct the syntax on or above this line"
    )


class _Builder:
    """Makes Python values of YAML nodes, and lists every bad key and value on the way."""

    def __init__(self, path: Path, problems: list[Problem]) -> None:
        self._path = path
        self._problems = problems
        self._done: dict[int, Any] = {}
        self._open: set[int] = set()
        self._is_too_deep = False

    def build(self, node: Node) -> Any:
        key = id(node)
        if key in self._done:
            return self._done[key]
        if key in self._open:
            self._add(node, "an anchor is used inside itself", "write the values out")
            return None
        if len(self._open) > _DEEPEST:
            if not self._is_too_deep:  # once: a value below it is as deep
                self._is_too_deep = True
                self._add(node, *_TOO_DEEP)
            return None
        self._open.add(key)
        if isinstance(node, MappingNode):
            value: Any = self._mapping(node)
        elif isinstance(node, SequenceNode):
            value = [self.build(item) for item in cast("list[Node]", node.value)]
        else:
            try:
                value = _scalar(cast("ScalarNode", node))
            except _BadValueError as exc:
                self._problems.append(Problem(path=self._path, line=exc.line, what=exc.what, fix=exc.fix))
                value = None
        self._open.discard(key)
        self._done[key] = value
        return value

    def _mapping(self, node: MappingNode) -> dict[str, Any]:
        built: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key, value in cast("list[tuple[Node, Node]]", node.value):
            name = self.build(key)
            if not isinstance(name, str):
                written = key.value if isinstance(key, ScalarNode) else "a list or mapping"
                self._add(key, f"the key {written} is not text", f'write it in quotes: "{written}"')
            elif name in built:
                self._add(key, f"the key '{name}' is already on line {lines[name]}", "remove one of the two")
            else:
                built[name] = self.build(value)
                lines[name] = _line_of(key)
        return built

    def _add(self, node: Node, what: str, fix: str) -> None:
        self._problems.append(Problem(path=self._path, line=_line_of(node), what=what, fix=fix))


def _scalar(node: ScalarNode) -> Any:
    text = str(node.value)
    kind = str(node.tag).removeprefix("tag:yaml.org,2002:")
    if kind == "str":
        return text
    if kind == "null":
        return None
    if kind == "bool":
        return text.casefold() == "true"
    try:
        if kind == "int":
            return int(text, 0)
        if kind == "float":
            return _finite(text)
    except ValueError:
        raise _BadValueError(_line_of(node), f"{text[:40]} is not a JSON number", "write a finite number") from None
    tag = str(node.tag).replace("tag:yaml.org,2002:", "!!")
    raise _BadValueError(_line_of(node), f"the tag {tag} is not known", "write a plain value")


def _finite(text: str) -> float:
    number = float(text.replace(".inf", "inf").replace(".nan", "nan"))
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def read_json_lines(root: Path, path: Path, problems: list[Problem]) -> Iterator[Document]:
    """Read a JSONL file: one document for each line that is a JSON value; blank lines are skipped.

    Args:
        root: The bundle's folder.
        path: The file, relative to it.
        problems: Where what is wrong is added; such a line yields no document.
    """
    text = read_text(root, path, problems)
    for number, line in enumerate((text or "").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            data = _json(line)
        except _BadValueError as exc:
            problems.append(Problem(path=path, line=number, what=exc.what, fix=exc.fix))
        else:
            yield Document(path, data, number)


def _json(text: str) -> Any:
    try:
        data = read_json(text)
    except JsonFileError as exc:
        if exc.fault is JsonFault.SYNTAX:
            what = f"this line is not JSON: {exc.what} at column {exc.column}"
            raise _BadValueError(0, what, "write one JSON object on the line") from None
        raise _BadValueError(0, exc.what, exc.fix) from None
    if text.count("[") + text.count("{") > _DEEPEST and _is_too_deep(data):
        raise _BadValueError(0, *_TOO_DEEP)
    return data


def _is_too_deep(data: Any) -> bool:
    level: list[Any] = [data]
    for _ in range(_DEEPEST + 1):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += cast("dict[str, Any]", value).values()
            elif isinstance(value, list):
                below += cast("list[Any]", value)
        if not below:
            return False
        level = below
    return True
