"""Dicts and lists that share what nobody has touched: how a private copy of a large JSON universe stays cheap.

In the storage of a `UniverseDict` or `UniverseList` a child that nobody has asked for is an `Untouched`, one object that
all copies share. Asked for, it is made private and takes its place. Small ones become plain dicts and lists, so that
nearly all that a tool sees is plain; large ones become containers of these two classes again.

In use the two are a dict and a list. Three things tell them from plain ones: `type(x) is dict` is false; C code that
reads the storage of a subclass of dict or list (orjson, validation by pydantic, `heapq`) meets an `Untouched`, which
refuses whatever is done with it, and says what to do; and what is made from one (a copy, a slice, a sum) is plain.
"""
# ruff: noqa: D102 - the methods are those of dict and list

from __future__ import annotations

import marshal
import os
from collections.abc import ItemsView as ItemsViewABC
from collections.abc import Iterable, Iterator
from collections.abc import ValuesView as ValuesViewABC
from copy import deepcopy
from reprlib import recursive_repr
from threading import RLock
from typing import Any, NoReturn, cast

__all__ = ["Flat", "Large", "Packed", "UniverseDict", "UniverseList", "Untouched", "is_untouched"]

_lock = RLock()
"""Held while a child is made private and while a container is written to: a thread that makes one private would
otherwise put it over what another one has just written. Held for microseconds, so one is enough."""


def _new_lock() -> None:
    global _lock
    _lock = RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)  # a thread that the child does not have may have held it


class Untouched:
    """A part of a universe that all its copies share: found only where a container's storage is read behind its back."""

    __slots__ = ()

    def private(self) -> Any:
        """Return a copy of one's own."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return (
            "<an untouched part of a universe: read it through its own dict or list, "
            "or make the whole of it plain first, by agent_env.universe.plain(...)>"
        )

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError(f"this is {self!r}")

    __bool__ = __len__ = __iter__ = __reversed__ = __getitem__ = __setitem__ = __delitem__ = __contains__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _refuse  # type: ignore[assignment]
    __add__ = __radd__ = __or__ = __ror__ = __int__ = __float__ = __index__ = __call__ = _refuse
    __str__ = __format__ = __reduce_ex__ = __copy__ = __deepcopy__ = _refuse  # type: ignore[assignment]


class Packed(Untouched):
    """A small part in its compact form. Copied from it, the strings are the interned ones: every copy shares them."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data
        """As `marshal` has it, which differs between Python versions; it never leaves the process."""

    def private(self) -> Any:
        return marshal.loads(self.data)


class Flat(Untouched):
    """A large dict or list that holds no other: copied by its pointers, into a plain one."""

    __slots__ = ("entries",)

    def __init__(self, entries: dict[str, Any] | list[Any]) -> None:
        self.entries = entries
        """Never written to."""

    def private(self) -> Any:
        return self.entries.copy()


class Large(Untouched):
    """A large dict or list that holds others, each of them `Untouched`."""

    __slots__ = ("entries",)

    def __init__(self, entries: dict[str, Any] | list[Any]) -> None:
        self.entries = entries
        """Never written to."""

    def private(self) -> Any:
        if isinstance(self.entries, dict):
            made = UniverseDict()
            _dict.update(made, self.entries)
            return made
        rows = UniverseList()
        _list.extend(rows, self.entries)
        return rows


_UNTOUCHED = frozenset({Packed, Flat, Large})
_ABSENT = object()


def is_untouched(value: object) -> bool:
    """Whether this is no value but stands for one."""
    return type(value) in _UNTOUCHED


# The storage itself, as the base classes see it.
_dict: Any = dict
_list: Any = list


def _seen(value: Any) -> Any:
    """Return a child to look at, not to keep: what is untouched stays so."""
    return value.private() if type(value) in _UNTOUCHED else value


def _touched(base: Any, container: Any, key: Any) -> Any:
    """Make a child private, unless another thread has done it meanwhile."""
    with _lock:
        value = base.__getitem__(container, key)
        if type(value) in _UNTOUCHED:
            value = value.private()
            base.__setitem__(container, key, value)
        return value


def _touch_all(rows: UniverseList) -> None:
    """Make every child private: for what is done to the storage itself from then on."""
    with _lock:
        for at, value in enumerate(_list.__iter__(rows)):
            if type(value) in _UNTOUCHED:
                _list.__setitem__(rows, at, value.private())


class UniverseDict(dict[Any, Any]):
    """A dict of a private copy. See the module."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        value = _dict.__getitem__(self, key)
        return _touched(_dict, self, key) if type(value) in _UNTOUCHED else value

    def get(self, key: Any, default: Any = None, /) -> Any:
        value = _dict.get(self, key, default)
        return _touched(_dict, self, key) if type(value) in _UNTOUCHED else value

    # Overridden, it makes `dict(x)`, `{**x}` and `d.update(x)` go through `keys` and `[]`, not through the storage.
    def __iter__(self) -> Iterator[Any]:
        return _dict.__iter__(self)

    def items(self) -> Any:
        return _Items(self)

    def values(self) -> Any:
        return _Values(self)

    def copy(self) -> dict[Any, Any]:
        return dict(self.items())

    def __deepcopy__(self, memo: dict[int, Any]) -> UniverseDict:
        made = UniverseDict()
        memo[id(self)] = made
        for key, value in list(_dict.items(self)):
            _dict.__setitem__(made, deepcopy(key, memo), value if type(value) in _UNTOUCHED else deepcopy(value, memo))
        return made

    def __reduce_ex__(self, protocol: Any, /) -> tuple[Any, ...]:
        return (dict, (), None, None, iter(self.items()))

    @recursive_repr("{...}")
    def __repr__(self) -> str:
        return repr({key: _seen(value) for key, value in _dict.items(self)})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, dict):
            return NotImplemented
        if len(self) != len(cast("dict[Any, Any]", other)):
            return False
        for key, mine in list(_dict.items(self)):
            its = _dict.get(other, key, _ABSENT)
            if its is _ABSENT:
                return False
            if its is mine:
                continue
            mine, its = _seen(mine), _seen(its)
            if not mine == its:
                return False
        return True

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    __hash__ = None  # type: ignore[assignment]

    def __or__(self, other: Any) -> Any:
        return self.copy() | cast("Any", other) if isinstance(other, dict) else NotImplemented

    def __ror__(self, other: Any) -> Any:
        return cast("dict[Any, Any]", other) | self.copy() if isinstance(other, dict) else NotImplemented

    def __ior__(self, other: Any) -> UniverseDict:
        self.update(other)
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        with _lock:
            _dict.__setitem__(self, key, value)

    def __delitem__(self, key: Any) -> None:
        with _lock:
            _dict.__delitem__(self, key)

    def clear(self) -> None:
        with _lock:
            _dict.clear(self)

    def pop(self, key: Any, /, *default: Any) -> Any:
        with _lock:
            return _seen(_dict.pop(self, key, *default))

    def popitem(self) -> tuple[Any, Any]:
        with _lock:
            key, value = _dict.popitem(self)
            return key, _seen(value)

    def setdefault(self, key: Any, default: Any = None, /) -> Any:
        with _lock:
            value = _dict.setdefault(self, key, default)
            return _touched(_dict, self, key) if type(value) in _UNTOUCHED else value

    def update(self, *others: Any, **more: Any) -> None:
        new = dict(*others, **more)
        with _lock:
            _dict.update(self, new)


class _Items(ItemsViewABC[Any, Any]):
    """What `items()` of a `UniverseDict` gives."""

    __slots__ = ()
    _mapping: UniverseDict

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        mapping = self._mapping
        for key, value in _dict.items(mapping):
            yield key, (_touched(_dict, mapping, key) if type(value) in _UNTOUCHED else value)

    def __reversed__(self) -> Iterator[tuple[Any, Any]]:
        for key in reversed(self._mapping):
            yield key, self._mapping[key]

    def __contains__(self, item: object) -> bool:
        return isinstance(item, tuple) and len(cast("Any", item)) == 2 and super().__contains__(cast("Any", item))

    def __repr__(self) -> str:
        return f"dict_items({[(key, _seen(value)) for key, value in _dict.items(self._mapping)]!r})"


class _Values(ValuesViewABC[Any]):
    """What `values()` of a `UniverseDict` gives."""

    __slots__ = ()
    _mapping: UniverseDict

    def __iter__(self) -> Iterator[Any]:
        mapping = self._mapping
        for key, value in _dict.items(mapping):
            yield _touched(_dict, mapping, key) if type(value) in _UNTOUCHED else value

    def __reversed__(self) -> Iterator[Any]:
        for key in reversed(self._mapping):
            yield self._mapping[key]

    def __repr__(self) -> str:
        return f"dict_values({[_seen(value) for value in _dict.values(self._mapping)]!r})"


class UniverseList(list[Any]):
    """A list of a private copy. See the module."""

    __slots__ = ()

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        value = _list.__getitem__(self, at)
        return _touched(_list, self, at) if type(value) in _UNTOUCHED else value

    def __iter__(self) -> Iterator[Any]:
        for at, value in enumerate(_list.__iter__(self)):
            yield _touched(_list, self, at) if type(value) in _UNTOUCHED else value

    def __reversed__(self) -> Iterator[Any]:
        at = len(self) - 1
        while 0 <= at < len(self):
            yield self[at]
            at -= 1

    def copy(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> UniverseList:
        made = UniverseList()
        memo[id(self)] = made
        for value in list(_list.__iter__(self)):
            _list.append(made, value if type(value) in _UNTOUCHED else deepcopy(value, memo))
        return made

    def __reduce_ex__(self, protocol: Any, /) -> tuple[Any, ...]:
        return (list, (), None, iter(self))

    @recursive_repr("[...]")
    def __repr__(self) -> str:
        return repr([_seen(value) for value in _list.__iter__(self)])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list):
            return NotImplemented
        its = cast("list[Any]", other)
        if len(self) != len(its):
            return False
        for mine, other_one in zip(list(_list.__iter__(self)), list(_list.__iter__(its)), strict=False):
            if mine is not other_one and not _seen(mine) == _seen(other_one):
                return False
        return True

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    __hash__ = None  # type: ignore[assignment]

    def __lt__(self, other: Any) -> bool:
        return list(self) < other

    def __le__(self, other: Any) -> bool:
        return list(self) <= other

    def __gt__(self, other: Any) -> bool:
        return list(self) > other

    def __ge__(self, other: Any) -> bool:
        return list(self) >= other

    def __contains__(self, value: object) -> bool:
        return any(one is value or one == value for one in map(_seen, _list.__iter__(self)))

    def index(self, value: Any, start: Any = 0, stop: Any = None, /) -> int:
        _touch_all(self)
        return _list.index(self, value, start, len(self) if stop is None else stop)

    def count(self, value: Any, /) -> int:
        return sum(1 for one in map(_seen, _list.__iter__(self)) if one is value or one == value)

    def __add__(self, other: Any) -> list[Any]:
        return list(self) + other

    def __radd__(self, other: Any) -> Any:
        return cast("list[Any]", other) + list(self) if isinstance(other, list) else NotImplemented

    def __iadd__(self, other: Iterable[Any]) -> UniverseList:
        self.extend(other)
        return self

    def __mul__(self, times: Any) -> list[Any]:
        return list(self) * times

    __rmul__ = __mul__

    def __imul__(self, times: Any) -> UniverseList:
        _touch_all(self)
        with _lock:
            _list.__imul__(self, times)
        return self

    def __setitem__(self, at: Any, value: Any) -> None:
        new = list(cast("Iterable[Any]", value)) if isinstance(at, slice) else value
        with _lock:
            _list.__setitem__(self, at, new)

    def __delitem__(self, at: Any) -> None:
        with _lock:
            _list.__delitem__(self, at)

    def append(self, value: Any, /) -> None:
        with _lock:
            _list.append(self, value)

    def extend(self, values: Iterable[Any], /) -> None:
        new = list(values)
        with _lock:
            _list.extend(self, new)

    def insert(self, at: Any, value: Any, /) -> None:
        with _lock:
            _list.insert(self, at, value)

    def pop(self, at: Any = -1, /) -> Any:
        with _lock:
            return _seen(_list.pop(self, at))

    def remove(self, value: Any, /) -> None:
        _touch_all(self)
        with _lock:
            _list.remove(self, value)

    def clear(self) -> None:
        with _lock:
            _list.clear(self)

    def reverse(self) -> None:
        with _lock:
            _list.reverse(self)

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        _touch_all(self)
        _list.sort(self, key=key, reverse=reverse)
