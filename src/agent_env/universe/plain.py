"""A value without a universe's own dicts and lists, for code that reads the storage of dicts and lists directly."""

from __future__ import annotations

from typing import Any

from pydantic_core import SchemaSerializer, core_schema

from agent_env.universe.containers import Large, UniverseDict, UniverseList, Untouched

__all__ = ["plain"]


def plain(value: Any) -> Any:
    """Return a value with plain dicts and lists in place of a universe's own, to any depth.

    Where anything of a universe's own is in it, all dicts and lists are copied, so that writing to the result changes no
    state; otherwise it is returned as it is. What is untouched stays so.
    """
    return _made_plain(value) if _holds_any(value) else value


# The base classes see the storage itself.
_dict: Any = dict
_list: Any = list


def _is_dict(value: object) -> bool:
    return isinstance(value, dict)


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _is_tuple(value: object) -> bool:
    return isinstance(value, tuple)


def _holds_any(value: Any) -> bool:
    seen: set[int] = set()
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, (UniverseDict, UniverseList, Untouched)):
            return True
        if (_is_dict(one) or _is_list(one) or _is_tuple(one)) and id(one) not in seen:
            seen.add(id(one))
            todo.extend(one.values() if _is_dict(one) else one)
    return False


def _made_plain(value: Any) -> Any:
    made: dict[int, Any] = {}
    todo: list[tuple[Any, Any]] = []

    def stand_in(one: Any) -> Any:
        """Return what stands for a value in the result; a dict or list is empty yet."""
        if _is_tuple(one):
            return tuple(map(stand_in, one))
        if isinstance(one, Untouched) and not isinstance(one, Large):
            return one.private()
        source: Any = one.entries if isinstance(one, Large) else one
        if not (_is_dict(source) or _is_list(source)):
            return source
        if id(source) not in made:
            made[id(source)] = {} if _is_dict(source) else []
            todo.append((source, made[id(source)]))
        return made[id(source)]

    top = stand_in(value)
    while todo:
        source, target = todo.pop()
        if _is_dict(source):
            target.update((key, stand_in(one)) for key, one in list(_dict.items(source)))
        else:
            target.extend(map(stand_in, list(_list.__iter__(source))))
    return top


# What pydantic meets in the storage it writes as what it stands for.
Untouched.__pydantic_serializer__ = SchemaSerializer(  # type: ignore[attr-defined]
    core_schema.any_schema(serialization=core_schema.plain_serializer_function_ser_schema(plain))
)
