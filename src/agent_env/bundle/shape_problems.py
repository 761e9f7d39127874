"""What pydantic says about a file, as problems with a line and a way out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from agent_env._wording import clipped
from agent_env.bundle._suggest import closest, names_or_closest
from agent_env.bundle.document import Document, Loc
from agent_env.bundle.error_place import place_in
from agent_env.bundle.schema_base import UnknownKeys
from agent_env.bundle.schema_tasks import STEP_ERROR, STEP_KINDS, VERIFY_ERROR, VERIFY_KINDS
from agent_env.errors import Problem

__all__ = ["shape"]

M = TypeVar("M", bound=BaseModel)

_WANTED = {
    "string_type": "text",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "list_type": "a list: [...]",
    "dict_type": "a mapping: {key: value}",
    "model_type": "a mapping: {key: value}",
    "misfit_text": "text, {text: ...} or {template: file}",
    "misfit_prompt": "text, or a mapping with one of text, template, python, by",
    "misfit_wanted": "gold, start, {after: [calls]} or {universe: file}",
    "misfit_reward": "the id of a verify step, or weights {id: 0.5, ...}",
}
_PATTERNS = {"^/": "a JSON Pointer, which begins with a /", r"\w": "words or a number"}
_SHOWN_CHARS = 60
_NAME = "letters, digits and . _ - /, a letter or digit first"
_KINDS = {STEP_ERROR: ("step", STEP_KINDS), VERIFY_ERROR: ("verifier", VERIFY_KINDS)}


def shape(model: type[M], document: Document, problems: list[Problem]) -> M | None:
    """Read a document as `model`.

    Args:
        model: One of the models of `schema.py`.
        document: What was read from the file.
        problems: Where everything that does not fit is added.

    Returns:
        The model, or None when there is a problem.
    """
    unknown = UnknownKeys()
    found: list[Problem] = []
    value: M | None = None
    try:
        value = model.model_validate(document.data, context=unknown)
    except ValidationError as exc:
        # A union that no member fits reports each of them: the first is enough for one place.
        by_loc: dict[Loc, ErrorDetails] = {}
        for error in exc.errors(include_url=False):
            by_loc.setdefault(_written(document.data, error["loc"], error["type"]), error)
        found += [_problem(document, loc, error) for loc, error in by_loc.items()]
    if unknown.found:
        locs = _locs(document.data)
        for mapping, key, known in unknown.found:
            loc = (*locs.get(mapping, ()), key)
            found.append(document.problem(loc, f"unknown key '{key}'", names_or_closest(key, known)))
    problems += found
    return None if found else value


def _written(data: Any, loc: Loc, kind: str) -> Loc:
    """Return where in a file an error is; of what is missing, where it would be."""
    place = place_in(data, loc)
    return (*place, loc[-1]) if kind == "missing" else place


def _locs(data: Any) -> dict[int, Loc]:
    """Return where each mapping of `data` is, by its `id()`."""
    found: dict[int, Loc] = {}
    todo: list[tuple[Loc, Any]] = [((), data)]
    while todo:
        loc, value = todo.pop()
        if isinstance(value, dict):
            if id(cast("object", value)) not in found:
                found[id(cast("object", value))] = loc
                todo += [((*loc, key), child) for key, child in cast("dict[str, Any]", value).items()]
        elif isinstance(value, list):
            todo += [((*loc, index), child) for index, child in enumerate(cast("list[Any]", value))]
    return found


def _problem(document: Document, loc: Loc, error: ErrorDetails) -> Problem:
    what, fix = _say(_named(loc) or ("the file" if document.node else "the line"), error)
    return document.problem(loc, what, fix)


def _named(loc: Loc) -> str:
    """Return how a person would name a place: `'prompt'`, `item 2 of 'tags'`; nothing for the whole document."""
    if not loc:
        return ""
    last = loc[-1]
    return f"'{last}'" if isinstance(last, str) else f"item {last + 1} of {_named(loc[:-1])}"


def _say(name: str, error: ErrorDetails) -> tuple[str, str]:
    kind, given, context = error["type"], error["input"], error.get("ctx", {})
    if kind == "misfit":
        return str(context["what"]), str(context["fix"])
    if kind in _KINDS:
        return _say_kind(name, given, *_KINDS[kind])
    if kind == "missing":
        return f"{name} is missing", f"add {name.strip(chr(39))}: ..."
    if kind in _WANTED:
        fix = f"write {_WANTED[kind]}"
        if kind == "string_type" and isinstance(given, (int, float)):
            fix = f'write text, in quotes: "{json.dumps(given)}"'
        return f"{name} is {_given(given)}", fix
    if kind == "string_pattern_mismatch":
        return f"{name} is {_given(given)}", f"write {_PATTERNS.get(context['pattern'], _NAME)}"
    if kind == "literal_error":
        expected = str(context["expected"])
        near = closest(str(given), [option.strip("'") for option in expected.replace(" or ", ", ").split(", ")])
        return f"{name} is {_given(given)}", f"did you mean '{near}'?" if near else f"write one of {expected}"
    if kind == "greater_than":
        return f"{name} is {_given(given)}", f"write a number above {context['gt']:g}"
    if kind in ("too_short", "string_too_short"):
        return f"{name} is empty", "write at least one" if kind == "too_short" else "write some text"
    return f"{name} is {_given(given)}", error["msg"].replace("Input should", "it should")


def _say_kind(name: str, given: Any, what: str, known: Sequence[str]) -> tuple[str, str]:
    kinds = ", ".join(known)
    if not isinstance(given, dict):
        return f"{name} is {_given(given)}", f"write a mapping with one of {kinds}"
    keys = list(cast("dict[str, Any]", given))
    found = [key for key in keys if key in known]
    if found:
        return f"{name} is {len(found)} {what}s at once ({', '.join(found)})", "give each a list item of its own"
    near = [(key, closest(key, known)) for key in keys]
    for key, kind in near:
        if kind is not None:
            return f"unknown {what} '{key}'", f"did you mean '{kind}'?"
    return f"{name} is no kind of {what}", f"write one of {kinds}"


def _given(value: Any) -> str:
    """Return what was written, short, as a person would name it."""
    if value is None:
        return "empty"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return clipped(json.dumps(value, ensure_ascii=False, default=str), _SHOWN_CHARS)
