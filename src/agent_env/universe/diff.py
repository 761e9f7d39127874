"""Where two JSON states differ.

Numbers are equal by value (10 and 10.0, but not "10", nor true and 1), the order of keys says nothing, and lists are
compared by position unless they are declared unordered. Two private copies of a universe share what neither has touched:
comparing them costs what one of them has touched.

In the pointers that are ignored or unordered, `*` stands for any one segment and `**` for any number of them, none too.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from sys import maxsize
from typing import Any, Final, cast

from agent_env.errors import UniverseError
from agent_env.universe.change import (
    MISSING,
    Change,
    ChangeLimits,
    StateChanges,
    TooLargeError,
    Values,
    from_pointer,
    key_text,
    opened,
    to_pointer,
)

__all__ = ["Found", "Lists", "Rules", "bounded", "changes_between", "differences", "find_differences"]

_DEPTH = 100_000
"""A state that is nested more deeply holds itself."""
_LOOKED_AHEAD = 16
"""Down to this depth a list is looked through for equal items at its ends: each level looks through all below it."""
_UNLIMITED: Final = ChangeLimits(changes=maxsize, total_bytes=maxsize, file_bytes=maxsize, depth=maxsize)


class Lists(StrEnum):
    """What a difference in a list is."""

    ITEMS = "items"
    """The items that differ, each at its position; what is longer at the end has items that are new or gone there."""
    WHOLE = "whole"
    """The list as a whole."""


def differences(
    before: Any,
    after: Any,
    *,
    ignore: Iterable[str] = (),
    unordered: Iterable[str] = (),
    lists: Lists = Lists.ITEMS,
) -> list[Change]:
    """Return all differences between two JSON states, in the order of their paths.

    Args:
        before: A state; also a private copy's, which is not touched.
        after: The other one.
        ignore: JSON Pointers to what is not compared.
        unordered: JSON Pointers to lists, and to objects, whose values are compared as a collection: each that is there
            more often on one side is new or gone there, and where it stands in the list, or under which key, says nothing.
        lists: What a difference in any other list is.

    Raises:
        UniverseError: When there is something in a state that is no JSON value, or that holds itself.
        ValueError: When a pointer is none.
    """
    found = changes_between(before, after, rules=Rules.of(ignore, unordered, lists), limits=_UNLIMITED)
    return list(found.changes)


def changes_between(before: Any, after: Any, *, rules: Rules, limits: ChangeLimits) -> StateChanges:
    """Return the differences between two JSON states, as many as the limits let through.

    Raises:
        UniverseError: As `differences` does.
    """
    return bounded(find_differences(before, after, rules), limits)


Path = tuple[Any, str] | None
"""A path as the one it goes on from, and a segment; None is the whole state."""
Found = tuple[Path, Any, Any]
"""A path, and what is there on both sides: values as they are in the state, or `MISSING`."""


def bounded(found: Iterable[Found], limits: ChangeLimits) -> StateChanges:
    """Keep of differences what the limits let through, and count the rest."""
    changes: list[Change] = []
    left_out = 0
    values = Values(limits)
    for path, before, after in found:
        if len(changes) >= limits.changes or values.left_bytes <= 0 or _is_deeper(path, limits.depth):
            left_out += 1
            continue
        try:
            sides = [side if side is MISSING else values.kept(side) for side in (before, after)]
        except TooLargeError:
            left_out += 1
            continue
        changes.append(Change(to_pointer(_segments(path)), sides[0], sides[1]))
    return StateChanges(changes=tuple(changes), left_out=left_out)


def _is_deeper(path: Path, depth: int) -> bool:
    while path is not None and depth > 0:
        path, depth = path[0], depth - 1
    return path is not None


def _segments(path: Path) -> list[str]:
    found: list[str] = []
    while path is not None:
        path, segment = path
        found.append(segment)
    return found[::-1]


_Places = frozenset[tuple[int, int]]
"""How far each pattern has come: its number, and how many of its segments are behind."""


class _Patterns:
    """Pointers with wildcards, followed from the whole state down."""

    def __init__(self, pointers: Iterable[str]) -> None:
        self._all = [from_pointer(pointer) for pointer in pointers]
        self.start: _Places = self._spread((at, 0) for at in range(len(self._all)))

    def _spread(self, places: Iterable[tuple[int, int]]) -> _Places:
        """Take in that `**` may stand for nothing."""
        found: set[tuple[int, int]] = set()
        for at, behind in places:
            found.add((at, behind))
            while behind < len(self._all[at]) and self._all[at][behind] == "**":
                behind += 1
                found.add((at, behind))
        return frozenset(found)

    def below(self, places: _Places, segment: str) -> _Places:
        if not places:
            return places
        found: list[tuple[int, int]] = []
        for at, behind in places:
            pattern = self._all[at]
            if behind < len(pattern):
                wanted = pattern[behind]
                if wanted == "**":
                    found.append((at, behind))
                elif wanted in ("*", segment):
                    found.append((at, behind + 1))
        return self._spread(found)

    def is_met(self, places: _Places) -> bool:
        return any(behind == len(self._all[at]) for at, behind in places)

    def names_an_index(self, places: _Places) -> bool:
        return any(self._all[at][behind : behind + 1] and self._all[at][behind].isdigit() for at, behind in places)


@dataclass(frozen=True, slots=True)
class _Where:
    """Where patterns are met: what is ignored and what is unordered, at one place of the state."""

    ignored: _Places
    unordered: _Places


class Rules:
    """What counts as a difference."""

    def __init__(self, ignore: _Patterns, unordered: _Patterns, lists: Lists) -> None:
        self._ignore = ignore
        self._unordered = unordered
        self.lists = lists
        self.top = _Where(ignore.start, unordered.start)

    @classmethod
    def of(cls, ignore: Iterable[str] = (), unordered: Iterable[str] = (), lists: Lists = Lists.ITEMS) -> Rules:
        """Return the rules that these arguments of `differences` stand for.

        Raises:
            ValueError: When a pointer is none.
        """
        return cls(_Patterns(ignore), _Patterns(unordered), lists)

    def below(self, where: _Where, segment: str) -> _Where:
        """Return the place one segment further down."""
        if not where.ignored and not where.unordered:
            return where
        return _Where(self._ignore.below(where.ignored, segment), self._unordered.below(where.unordered, segment))

    def ignores(self, where: _Where) -> bool:
        """Whether nothing is compared here."""
        return bool(where.ignored) and self._ignore.is_met(where.ignored)

    def is_unordered(self, where: _Where) -> bool:
        """Whether what is here is compared as a collection."""
        return bool(where.unordered) and self._unordered.is_met(where.unordered)

    def names_an_index(self, where: _Where) -> bool:
        """Whether a pattern names a position in the list that is here."""
        return self._ignore.names_an_index(where.ignored) or self._unordered.names_an_index(where.unordered)


_Pair = tuple[Any, Any, Path, _Where, int]


def find_differences(
    before: Any, after: Any, rules: Rules, *, check: Callable[[], None] = lambda: None
) -> Iterator[Found]:
    """Yield where two states differ, and what is there, in the order of the paths.

    Args:
        before: A state.
        after: The other one.
        rules: What counts as a difference.
        check: Called now and then; what it raises ends the comparison.

    Raises:
        UniverseError: When there is something in a state that is no JSON value, or that holds itself.
    """
    todo: list[_Pair] = [] if rules.ignores(rules.top) else [(before, after, None, rules.top, 0)]
    while todo:
        check()
        before, after, path, where, depth = todo.pop()
        if before is after:
            continue
        if before is MISSING or after is MISSING:
            yield path, before, after
            continue
        before, after = _opened(before, path), _opened(after, path)
        if depth > _DEPTH:
            raise UniverseError("the state cannot be compared: it holds itself")
        if isinstance(before, dict) and isinstance(after, dict):
            todo += reversed(_in_dicts(cast("Any", before), cast("Any", after), path, where, depth + 1, rules))
        elif isinstance(before, list) and isinstance(after, list):
            one, two = cast("list[Any]", before), cast("list[Any]", after)
            if rules.lists is Lists.ITEMS or rules.is_unordered(where):
                todo += reversed(_in_lists(one, two, path, where, depth + 1, rules))
            elif not _are_equal((one, two, path, where, depth), rules):
                yield path, before, after
        elif not _is_same(before, after):
            yield path, before, after


def _opened(value: Any, path: Path) -> Any:
    try:
        return opened(value)
    except TypeError as exc:
        raise _not_json(path, exc) from None


# The base classes see the storage itself.
_dict: Any = dict
_list: Any = list


def _keyed(value: Any, path: Path) -> dict[str, Any]:
    """Return a plain dict of the same children, with texts as its keys."""
    children: list[tuple[Any, Any]] = list(_dict.items(value))
    try:
        texts = {key if _is_plain_key(key) else key_text(key): child for key, child in children}
    except TypeError as exc:
        raise _not_json(path, exc) from None
    if len(texts) != len(children):
        where = to_pointer(_segments(path)) or "it"
        raise UniverseError(f"the state cannot be compared: two keys of {where} are the same text in JSON")
    return texts


def _is_plain_key(key: Any) -> bool:
    return type(key) is str and key.isascii()


def _not_json(path: Path, exc: TypeError) -> UniverseError:
    where = to_pointer(_segments(path)) or "it"
    return UniverseError(f"the state cannot be compared: {where} is not JSON: {exc}")


def _in_dicts(before: Any, after: Any, path: Path, where: _Where, depth: int, rules: Rules) -> list[_Pair]:
    if rules.is_unordered(where):
        one, two = (list(_keyed(side, path).items()) for side in (before, after))
        return _in_collections(one, two, path, where, depth, rules)
    differing = _differing_keys(before, after)
    if not all(map(_is_plain_key, differing)):
        before, after = _keyed(before, path), _keyed(after, path)
        differing = _differing_keys(before, after)
    pairs: list[_Pair] = []
    for key in sorted(differing):
        below = rules.below(where, key)
        if not rules.ignores(below):
            sides = _dict.get(before, key, MISSING), _dict.get(after, key, MISSING)
            pairs.append((*sides, (path, key), below, depth))
    return pairs


def _differing_keys(before: Any, after: Any) -> list[Any]:
    """Return the keys whose children are not the same at a glance."""
    found = [
        key
        for key, child in list(_dict.items(before))
        if (other := _dict.get(after, key, MISSING)) is not child and not _is_plainly_same(child, other)
    ]
    return found + [key for key in list(_dict.keys(after)) if key not in before]


def _in_lists(before: list[Any], after: list[Any], path: Path, where: _Where, depth: int, rules: Rules) -> list[_Pair]:
    """Pair items by position. Of lists of different lengths, the equal ones at both ends are left aside first.

    What is left of the shorter list is paired; what the longer one has beyond that is new or gone. So a position says the
    same in both lists, but for what is gone, which is told by where it was, and what is new, by where it is.
    """
    # Iterated by the base class, for a child must not be touched.
    before, after = _list(_list.__iter__(before)), _list(_list.__iter__(after))
    if rules.is_unordered(where):
        one, two = ([(str(at), child) for at, child in enumerate(side)] for side in (before, after))
        return _in_collections(one, two, path, where, depth, rules)

    def pair(at: int, one: Any, two: Any) -> _Pair:
        return (one, two, (path, str(at)), rules.below(where, str(at)), depth)

    first, last = 0, 0
    if len(before) != len(after):
        shorter = min(len(before), len(after))
        while first < shorter and _are_equal(pair(first, before[first], after[first]), rules):
            first += 1
        if not rules.names_an_index(where):
            at_end = shorter - first
            while last < at_end and _are_equal(pair(0, before[-1 - last], after[-1 - last]), rules):
                last += 1
    shared = min(len(before), len(after)) - last
    pairs = [
        pair(at, before[at], after[at]) for at in range(first, shared) if not _is_plainly_same(before[at], after[at])
    ]
    pairs += [pair(at, before[at], MISSING) for at in range(shared, len(before) - last)]
    pairs += [pair(at, MISSING, after[at]) for at in range(shared, len(after) - last)]
    return [one for one in pairs if not rules.ignores(one[3])]


def _are_equal(pair: _Pair, rules: Rules) -> bool:
    before, after, path, where, depth = pair
    if _is_plainly_same(before, after) or rules.ignores(where):
        return True
    before, after = _opened(before, path), _opened(after, path)
    if not (isinstance(before, (dict, list)) and isinstance(after, (dict, list))):
        return _is_same(before, after)
    if depth > _LOOKED_AHEAD and rules.lists is Lists.ITEMS:
        return False
    if len(cast("Any", before)) != len(cast("Any", after)) and not where.ignored:
        return False
    return _fingerprint(before, path, where, rules) == _fingerprint(after, path, where, rules)


def _in_collections(
    before: Sequence[tuple[str, Any]],
    after: Sequence[tuple[str, Any]],
    path: Path,
    where: _Where,
    depth: int,
    rules: Rules,
) -> list[_Pair]:
    """Pair each value that is there more often on one side with nothing."""
    sides: list[list[tuple[str, Any, bytes]]] = []
    for side in (before, after):
        placed = [(key, child, rules.below(where, key)) for key, child in side]
        compared = [(key, child, below) for key, child, below in placed if not rules.ignores(below)]
        sides.append([(key, child, _fingerprint(child, (path, key), below, rules)) for key, child, below in compared])
    counts = [Counter(mark for _, _, mark in side) for side in sides]
    pairs: list[_Pair] = []
    for side, surplus in ((sides[0], counts[0] - counts[1]), (sides[1], counts[1] - counts[0])):
        # The last ones: what was appended is what is new.
        for key, child, mark in reversed(side):
            if surplus[mark]:
                surplus[mark] -= 1
                one, two = (child, MISSING) if side is sides[0] else (MISSING, child)
                pairs.append((one, two, (path, key), where, depth))
    return sorted(pairs, key=lambda pair: (_order(cast("Any", pair[2])[1]), pair[0] is MISSING))


def _order(segment: str) -> tuple[int, str]:
    return (int(segment) if segment.isdecimal() and len(segment) < 16 else -1, segment)


class _Frame:
    """A dict or list whose fingerprint is being made."""

    __slots__ = ("children", "digests", "is_dict", "is_unordered", "path", "where")

    def __init__(self, value: Any, path: Path, where: _Where, rules: Rules) -> None:
        self.is_dict = isinstance(value, dict)
        self.is_unordered = rules.is_unordered(where)
        self.children: Iterator[tuple[str, Any]] = iter(
            _keyed(value, path).items() if self.is_dict else [(str(at), one) for at, one in enumerate(_raw(value))]
        )
        self.digests: list[bytes] = []
        self.path = path
        self.where = where

    def add(self, key: str, digest: bytes) -> None:
        with_key = self.is_dict and not self.is_unordered
        self.digests.append(_digest(b"k", key.encode("utf-8", "surrogatepass"), digest) if with_key else digest)

    def digest(self) -> bytes:
        if self.is_dict or self.is_unordered:
            self.digests.sort()
        return _digest(b"d" if self.is_dict else b"l", *self.digests)


def _raw(value: Any) -> list[Any]:
    return _list(_list.__iter__(value))


def _digest(*parts: bytes) -> bytes:
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(b"%d:" % len(part))
        digest.update(part)
    return digest.digest()


def _fingerprint(value: Any, path: Path, where: _Where, rules: Rules) -> bytes:
    """Return bytes that are the same for values that do not differ under the rules, and for no others."""
    top = opened_value = _opened(value, path)
    if not isinstance(top, (dict, list)):
        return _token(opened_value)
    frames = [_Frame(top, path, where, rules)]
    keys: list[str] = []
    while True:
        frame = frames[-1]
        for key, child in frame.children:
            below = rules.below(frame.where, key)
            if rules.ignores(below):
                continue
            inner = _opened(child, (frame.path, key))
            if isinstance(inner, (dict, list)):
                if len(frames) > _DEPTH:
                    raise UniverseError("the state cannot be compared: it holds itself")
                frames.append(_Frame(inner, (frame.path, key), below, rules))
                keys.append(key)
                break
            frame.add(key, _token(inner))
        else:
            frames.pop()
            if not frames:
                return frame.digest()
            frames[-1].add(keys.pop(), frame.digest())


def _token(value: Any) -> bytes:
    if isinstance(value, str):
        return b"s" + value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return b"b" + value
    if value is None or isinstance(value, bool):
        return repr(value).encode()
    if isinstance(value, float) and not (math.isfinite(value) and value.is_integer()):
        return repr(value).encode()
    return hex(int(value)).encode()


_KINDS: Final = frozenset({str, int, bool, float, type(None)})


def _is_plainly_same(before: Any, after: Any) -> bool:
    """Whether two children are the same without looking further; when they are not, they may be all the same."""
    return before is after or (type(before) is type(after) and type(before) in _KINDS and before == after)


def _is_same(before: Any, after: Any) -> bool:
    """Whether two values that are not both dicts or both lists are the same in JSON."""
    if type(before) is type(after):
        return before == after or (type(before) is float and math.isnan(before) and math.isnan(after))
    return (
        not isinstance(before, bool) and not isinstance(after, bool) and _is_number(before, after) and before == after
    )


def _is_number(*values: Any) -> bool:
    return all(isinstance(value, (int, float)) for value in values)
