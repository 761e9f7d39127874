"""Places that state verifiers leave out of a comparison, and that no state has: most likely a slip of the pen.

Looked for in the universe that an env starts from, and in what gold leaves of it. A place that only another agent than gold
would make is no slip, so one counts only where something like it is there: `/orders/*/updatd_at` beside `updated_at`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, cast

from anyio import to_thread

from agent_env.bundle import StateVerifier, Task, UniverseKind, UniverseSpec, Verify, closest
from agent_env.universe import MISSING, StateChanges
from agent_env.universe.change import from_pointer, to_pointer
from agent_env.universe.database_schema import read_schema

__all__ = ["Nowhere", "NowherePlace"]

_KEYS = 2_000
"""Among how many keys a like one is looked for."""


@dataclass(slots=True, kw_only=True)
class NowherePlace:
    """A place that a state verifier names, and that is nowhere."""

    env: str
    path: str
    near: str
    """What is there, and like it."""
    tasks: list[str]
    """Those whose verifiers name it."""


@dataclass(slots=True)
class _Named:
    is_somewhere: bool = False
    near: str | None = None
    tasks: list[str] = field(default_factory=list[str])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    is_there: bool
    near: str | None


class _Rows(dict[str, Any]):
    """The rows of a table: whatever key there may be, it has the columns."""


class Nowhere:
    """Takes in what the golds of a bundle leave, and tells what is nowhere in it."""

    def __init__(self) -> None:
        self._named: dict[tuple[str, str], _Named] = {}
        self._universes: dict[UniverseSpec, Any] = {}
        self._looked: dict[tuple[UniverseSpec, str], _Found] = {}

    async def look(self, task: Task, states: Mapping[str, Mapping[str, Any]]) -> None:
        """Look for the places that a task's verifiers name.

        Args:
            task: One whose gold was played to its end.
            states: What its events of the kind `state` say, by env.
        """
        for step in task.steps:
            if isinstance(step, Verify) and isinstance(step.verifier, StateVerifier):
                await self._look(task, step.verifier, states.get(step.verifier.env, {}))

    def places(self) -> list[NowherePlace]:
        """Return those that are nowhere, where something like them is."""
        return [
            NowherePlace(env=env, path=path, near=named.near, tasks=named.tasks)
            for (env, path), named in self._named.items()
            if not named.is_somewhere and named.near is not None
        ]

    async def _look(self, task: Task, verifier: StateVerifier, said: Mapping[str, Any]) -> None:
        spec = task.bundle.envs[verifier.env]
        changes = StateChanges.from_json(said) if "changes" in said else None
        is_known = spec.python is not None and changes is not None and changes.is_whole
        universes = [spec.universe, verifier.wanted if isinstance(verifier.wanted, UniverseSpec) else None]
        for path in dict.fromkeys((*verifier.ignore, *verifier.unordered)):
            named = self._named.setdefault((verifier.env, path), _Named())
            if named.is_somewhere:
                continue
            if changes is None or not is_known or isinstance(verifier.wanted, tuple):
                named.is_somewhere = True  # for all that is known
                continue
            found = [await self._in_universe(universe, path) for universe in universes if universe is not None]
            found += [_find(state, path) for state in _sides(changes)]
            named.is_somewhere = any(one.is_there for one in found)
            named.near = named.near or next((one.near for one in found if one.near is not None), None)
            named.tasks.append(task.id)

    async def _in_universe(self, universe: UniverseSpec, path: str) -> _Found:
        if (universe, path) not in self._looked:
            if universe not in self._universes:
                self._universes[universe] = await to_thread.run_sync(_read, universe)
            self._looked[universe, path] = await to_thread.run_sync(_find, self._universes[universe], path)
        return self._looked[universe, path]


def _read(universe: UniverseSpec) -> Any:
    """Return a universe as mappings of names: of a database its tables and columns, of a directory its files."""
    match universe.kind:
        case UniverseKind.JSON:
            return json.loads(universe.path.read_text(encoding="utf-8-sig"))
        case UniverseKind.SQLITE:
            with closing(sqlite3.connect(f"{universe.path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
                tables = read_schema(connection.cursor()).tables
            return {name: _Rows({"*": dict.fromkeys(table.columns)}) for name, table in tables.items()}
        case UniverseKind.DIRECTORY:
            tree: dict[str, Any] = {}
            for path in universe.path.rglob("*"):
                place = tree
                for part in path.relative_to(universe.path).parts:
                    place = place.setdefault(part, {})
            return tree


def _sides(changes: StateChanges) -> Iterator[Any]:
    """Yield what was changed, before and after, each as a state that has nothing else."""
    for change in changes.changes:
        for value in (change.before, change.after):
            if value is not MISSING:
                for segment in reversed(from_pointer(change.path)):
                    value = {segment: value}
                yield value


def _find(state: Any, path: str) -> _Found:
    segments = from_pointer(path)
    is_there = _has(state, segments)
    return _Found(is_there=is_there, near=None if is_there else _like(state, segments))


def _has(state: Any, segments: Sequence[str]) -> bool:
    """Whether a state has something at a place."""
    if not segments:
        return True
    first, rest = segments[0], segments[1:]
    if first == "**" and _has(state, rest):
        return True
    return any(_has(child, segments if first == "**" else rest) for child in _children(state, first))


def _children(state: Any, segment: str) -> Iterator[Any]:
    if isinstance(state, _Rows):
        yield from state.values()
    elif isinstance(state, dict):
        held = cast("dict[str, Any]", state)
        yield from held.values() if segment in ("*", "**") else [held[segment]] if segment in held else ()
    elif isinstance(state, list):
        items = cast("list[Any]", state)
        is_index = segment.isascii() and segment.isdigit() and len(segment) < 10 and int(segment) < len(items)
        yield from items if segment in ("*", "**") else [items[int(segment)]] if is_index else ()


def _like(state: Any, segments: Sequence[str]) -> str | None:
    """Return the place that is most likely meant; None where none is like it."""
    for at, segment in enumerate(segments):
        if segment in ("*", "**") or _has(state, segments[: at + 1]):
            continue
        near = closest(segment, _keys(state, segments[:at]))
        if near is not None:
            meant = (*segments[:at], near, *segments[at + 1 :])
            return to_pointer(meant) if _has(state, meant) else _like(state, meant)
        break
    deeper = ("**", *segments)
    return to_pointer(deeper) if segments[0] != "**" and _has(state, deeper) else None


def _keys(state: Any, segments: Sequence[str]) -> list[str]:
    """Return the keys of what is at a place."""
    holders = [state]
    for segment in segments:
        holders = [child for holder in holders for child in _children(holder, segment)][:_KEYS]
    keys: dict[str, None] = {}
    for holder in holders:
        if isinstance(holder, dict) and not isinstance(holder, _Rows):
            keys.update(dict.fromkeys(cast("dict[str, Any]", holder)))
        if len(keys) > _KEYS:
            break
    return list(keys)[:_KEYS]
