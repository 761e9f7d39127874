"""Differences between JSON states, and making them again."""

from __future__ import annotations

import copy
import json
from collections import OrderedDict
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_env.errors import UniverseError
from agent_env.universe import MISSING, Change, ChangeLimits, Lists, StateChanges, apply, differences
from agent_env.universe.containers import Untouched
from agent_env.universe.diff import Rules, changes_between
from agent_env.universe.frozen import freeze

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([0.0, 1.0, 1.5])
    | st.text("ab~/$\udc80", max_size=2)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab$~/", max_size=2), inner, max_size=4),
    max_leaves=15,
)


def same(one: Any, two: Any) -> bool:
    """Whether two values are the same JSON, told in the plainest way."""
    if isinstance(one, bool) or isinstance(two, bool):
        return one is two
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(same, one, two))
    return (
        type(one) in (int, float) and type(two) in (int, float) and one == two
        if one != two
        else type_of(one) == type_of(two)
    )


def type_of(value: Any) -> Any:
    """The kind of value that it is in JSON."""
    return float if type(value) is int else type(value)


def as_lists(changes: list[Change]) -> list[tuple[str, Any, Any]]:
    """Changes in the shortest form."""
    return [(change.path, change.before, change.after) for change in changes]


@settings(max_examples=400, deadline=None)
@given(before=values, after=values)
def test_changes_made_again_give_the_same_state(before: Any, after: Any) -> None:
    """And there are none exactly when two states are the same; all of it also through JSON and of private copies."""
    frozen = freeze(before, record_bytes=6)
    found = differences(frozen.root, after)
    assert found == differences(before, after)
    assert (found == []) == same(before, after)
    again = StateChanges.from_json(json.loads(json.dumps(StateChanges(changes=tuple(found)).as_json())))
    assert same(apply(again, frozen.private()), after)
    assert same(frozen.private(), before)
    back = StateChanges(changes=tuple(differences(after, before)))
    assert same(apply(back, copy.deepcopy(after)), before)


@settings(max_examples=200, deadline=None)
@given(before=st.lists(st.integers(0, 3), max_size=8), after=st.lists(st.integers(0, 3), max_size=8))
def test_unordered_lists_are_compared_as_collections(before: list[int], after: list[int]) -> None:
    """What is there more often on one side is new or gone, as often."""
    gone = sorted(change.before for change in differences(before, after, unordered=[""]) if change.after is MISSING)
    new = sorted(change.after for change in differences(before, after, unordered=[""]) if change.before is MISSING)
    for value in range(4):
        surplus = before.count(value) - after.count(value)
        assert gone.count(value) == max(surplus, 0)
        assert new.count(value) == max(-surplus, 0)


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ({"a": 10}, {"a": 10.0}, []),
        ({"a": 10}, {"a": "10"}, [("/a", 10, "10")]),
        ({"a": 1}, {"a": True}, [("/a", 1, True)]),
        ({"a": 0}, {"a": False}, [("/a", 0, False)]),
        ({"a": 0}, {"a": None}, [("/a", 0, None)]),
        ({"a": 0.0}, {"a": -0.0}, []),
        ({"a": 2**53 + 1}, {"a": 2.0**53}, [("/a", 2**53 + 1, 2.0**53)]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, []),
        ({"a": None}, {}, [("/a", None, MISSING)]),
        ({}, {"a": None}, [("/a", MISSING, None)]),
        ({"a/b": {"c~d": 1}}, {"a/b": {"c~d": 2}}, [("/a~1b/c~0d", 1, 2)]),
        ({"": {"": 1}}, {"": {"": 2}}, [("//", 1, 2)]),
        (1, 2, [("", 1, 2)]),
        ([], {}, [("", [], {})]),
        ([1, 2, 3], [1, 2, 3, 4], [("/3", MISSING, 4)]),
        ([1, 2, 3], [2, 3], [("/0", 1, MISSING)]),
        ([1, 2, 3], [1, 9, 2, 3], [("/1", MISSING, 9)]),
        ([1, 2, 3], [1, 3], [("/1", 2, MISSING)]),
        ([1, 2, 3, 4, 5], [1, 9, 5], [("/1", 2, 9), ("/2", 3, MISSING), ("/3", 4, MISSING)]),
        ([{"n": 1}, {"n": 2}], [{"n": 1}, {"n": 3}], [("/1/n", 2, 3)]),
        ([{"n": 1, "x": 0}], [{"n": 0, "x": 0}, {"n": 1, "x": 1}], [("/0/n", 1, 0), ("/1", MISSING, {"n": 1, "x": 1})]),
        ({"b": 1, "a": [1]}, {"b": 2, "a": [2]}, [("/a/0", 1, 2), ("/b", 1, 2)]),
    ],
)
def test_what_is_a_difference(before: Any, after: Any, found: list[tuple[str, Any, Any]]) -> None:
    """Numbers by value, keys in any order, lists by position; the smallest changes that say it, in the order of paths."""
    assert as_lists(differences(before, after)) == found
    assert as_lists(differences(freeze(before, record_bytes=0).root, after)) == found


def test_the_order_of_items_with_many_positions_is_that_of_the_list() -> None:
    """Position 10 comes after position 9."""
    assert [change.path for change in differences([0] * 12, [1] * 12)][9:11] == ["/9", "/10"]


def test_lists_as_a_whole() -> None:
    """A list that differs anywhere is one change."""
    before = {"items": [{"n": 1}, {"n": 2}], "same": [[1]], "deep": {"list": [1]}}
    after = {"items": [{"n": 1}, {"n": 3}], "same": [[1.0]], "deep": {"list": [1, 2]}}
    assert as_lists(differences(before, after, lists=Lists.WHOLE)) == [
        ("/deep/list", [1], [1, 2]),
        ("/items", before["items"], after["items"]),
    ]


@pytest.mark.parametrize(
    ("ignore", "paths"),
    [
        ([], ["/log", "/orders/a/at", "/orders/a/items/0/at", "/orders/a/n", "/orders/b"]),
        ([""], []),
        (["/**"], []),
        (["/orders"], ["/log"]),
        (["/orders/*/at"], ["/log", "/orders/a/items/0/at", "/orders/a/n", "/orders/b"]),
        (["/**/at"], ["/log", "/orders/a/n", "/orders/b"]),
        (["/orders/**"], ["/log"]),
        (["/orders/a/items/0"], ["/log", "/orders/a/at", "/orders/a/n", "/orders/b"]),
        (["/orders/b", "/log"], ["/orders/a/at", "/orders/a/items/0/at", "/orders/a/n"]),
        (["/orders/**/*/at", "/*/*/n"], ["/log", "/orders/b"]),
        (
            ["/nowhere", "/orders/*/at/deeper"],
            ["/log", "/orders/a/at", "/orders/a/items/0/at", "/orders/a/n", "/orders/b"],
        ),
    ],
)
def test_what_is_ignored(ignore: list[str], paths: list[str]) -> None:
    """A star is any one segment, two are any number of them."""
    before = {"orders": {"a": {"at": 1, "n": 1, "items": [{"at": 1}]}, "b": {}}}
    after = {"orders": {"a": {"at": 2, "n": 2, "items": [{"at": 2}]}}, "log": [1]}
    assert [change.path for change in differences(before, after, ignore=ignore)] == paths


def test_ignored_parts_do_not_keep_items_of_lists_apart() -> None:
    """An item that differs in what is ignored only is the same one: the one before it is what is gone."""
    before = [{"n": 1, "at": 1}, {"n": 2, "at": 2}, {"n": 3, "at": 3}]
    after = [{"n": 2, "at": 8}, {"n": 3, "at": 9}]
    assert as_lists(differences(before, after, ignore=["/*/at"])) == [("/0", {"n": 1, "at": 1}, MISSING)]
    assert as_lists(differences(before, list(reversed(after)), ignore=["/*/at"], unordered=[""])) == [
        ("/0", {"n": 1, "at": 1}, MISSING)
    ]
    assert [change.path for change in differences([1, 2, 3], [9, 2, 3, 4], ignore=["/0"])] == ["/3"]
    # Where a position is named, items are compared by position.
    assert [change.path for change in differences([1, 2, 3], [2, 3], ignore=["/2"])] == ["/0", "/1"]


def test_unordered_parts_inside_of_one_another() -> None:
    """A list in a record of a list, and the records of a table whose keys say nothing."""
    before = {"rows": [{"tags": ["a", "b"]}, {"tags": ["c"]}], "table": {"1": {"n": 1}, "2": {"n": 2.0}}}
    after = {"rows": [{"tags": ["c"]}, {"tags": ["b", "a"]}], "table": {"7": {"n": 2}, "8": {"n": 1}, "9": {"n": 1}}}
    unordered = ["/rows", "/rows/*/tags", "/table"]
    assert as_lists(differences(before, after, unordered=unordered)) == [("/table/9", MISSING, {"n": 1})]
    assert len(differences(before, after, unordered=["/rows", "/table"])) == 3


def test_a_pointer_that_is_none_is_said() -> None:
    """A path without its slash would be met nowhere, and ignore nothing."""
    with pytest.raises(ValueError, match="starts with a slash"):
        differences({}, {}, ignore=["orders"])


class Colour(Enum):
    RED = "red"


class Size(StrEnum):
    BIG = "big"


@pytest.mark.parametrize(
    ("value", "becomes"),
    [
        ((1, (2,)), [1, [2]]),
        (Decimal("10.50"), 10.5),
        (Decimal("10.00"), 10),
        (Decimal("NaN"), {"$number": "NaN"}),
        (float("nan"), {"$number": "NaN"}),
        (float("inf"), {"$number": "Infinity"}),
        (float("-inf"), {"$number": "-Infinity"}),
        (datetime(2026, 1, 2, 3, 4, tzinfo=UTC), "2026-01-02T03:04:00+00:00"),
        (date(2026, 1, 2), "2026-01-02"),
        (b"\xff\x00", {"$base64": "/wA="}),
        (bytearray(b"a"), {"$base64": "YQ=="}),
        (Colour.RED, "red"),
        (Size.BIG, "big"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (PurePosixPath("a/b"), "a/b"),
        ("\ud800x", {"$text": '"\\ud800x"'}),
        ({2: "a", None: "b", True: "c", 1.5: "d"}, {"2": "a", "null": "b", "true": "c", "1.5": "d"}),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        ({"$base64": "x"}, {"$object": {"$base64": "x"}}),
        ({"$a": 1, "b": 2}, {"$a": 1, "b": 2}),
        ({"k\udc80": 1}, {"k\\udc80": 1}),
    ],
)
def test_what_a_value_becomes_that_is_no_json(value: Any, becomes: Any) -> None:
    """An env may put anything into its state: each has one form in a change, any JSON store takes it, and it is stable."""
    (change,) = differences({}, {"x": value})
    assert change == Change("/x", MISSING, becomes)
    json.dumps(change.as_json()).encode()
    assert differences({"x": value}, {"x": copy.deepcopy(value)}) == []
    assert differences({"x": value}, {"x": copy.deepcopy(value)}, unordered=["/**"]) == []


@pytest.mark.parametrize("value", [{1, 2}, object(), {"a": [frozenset()]}, {(1, 2): 3}, lambda: 1, {b"k": 1}, 1j])
def test_what_cannot_be_compared_says_so_in_one_line(value: Any) -> None:
    """A set, an object: the error names what it is; it is never an exception of the comparison's own."""
    with pytest.raises(UniverseError, match=r"^the state cannot be compared: .* no JSON (value|key)$"):
        differences({"x": 1}, {"x": value})
    with pytest.raises(UniverseError, match=r"^the state cannot be compared: .* no JSON (value|key)$"):
        differences([{"x": 1}], [{"x": value}, 1], unordered=[""])


def test_two_keys_that_are_the_same_text_are_refused() -> None:
    """1 and "1" are two keys in Python and one in JSON."""
    with pytest.raises(UniverseError, match="two keys"):
        differences({"x": {"1": 0, 2: 1}}, {"x": {"1": 0, 1: 1}})
    assert differences({"x": {1: "a"}}, {"x": {"1": "a"}}) == []


def test_a_state_that_holds_itself_is_refused_or_left_out() -> None:
    """There is no end to it: comparing two such states is refused, and one that is new is counted."""
    one: dict[str, Any] = {}
    one["self"] = one
    two: dict[str, Any] = {}
    two["self"] = two
    with pytest.raises(UniverseError, match="holds itself"):
        differences(one, two)
    found = changes_between({}, one, rules=Rules.of(), limits=ChangeLimits())
    assert found == StateChanges(left_out=1)


def test_states_of_any_depth_are_compared() -> None:
    """Deeper than Python's own recursion goes, in lists and in dicts; what is told of it is bounded."""
    deep: Any = 1
    other: Any = 2
    for at in range(30_000):
        deep = {"in": deep} if at % 2 else [deep, at]
        other = {"in": other} if at % 2 else [other, at]
    found = changes_between(deep, other, rules=Rules.of(), limits=ChangeLimits())
    assert found == StateChanges(left_out=1)
    assert differences(deep, copy_of(deep), unordered=["/**"]) == []
    assert changes_between({}, {"x": deep}, rules=Rules.of(), limits=ChangeLimits()).left_out == 1


def copy_of(value: Any) -> Any:
    """A copy without recursion."""
    layers = []
    while isinstance(value, (dict, list)):
        layers.append(value)
        value = value["in"] if isinstance(value, dict) else value[0]
    for layer in reversed(layers):
        value = {"in": value} if isinstance(layer, dict) else [value, layer[1]]
    return value


def test_limits_bound_what_is_kept_and_count_the_rest() -> None:
    """So many changes, so many bytes; the rest is counted, and the result says that it is not whole."""
    before, after = list(range(1000)), list(range(1, 1001))
    few = changes_between(before, after, rules=Rules.of(), limits=ChangeLimits(changes=10))
    assert (len(few.changes), few.left_out, few.is_whole) == (10, 990, False)
    small = changes_between(
        {}, {"a": "x" * 500, "b": "y" * 5000, "c": 1}, rules=Rules.of(), limits=ChangeLimits(total_bytes=1000)
    )
    assert [change.path for change in small.changes] == ["/a", "/c"]
    assert small.left_out == 1
    wide = changes_between({}, {"a": [0] * 1_000_000, "b": 1}, rules=Rules.of(), limits=ChangeLimits(total_bytes=1000))
    assert ([change.path for change in wide.changes], wide.left_out) == (["/b"], 1)
    huge = changes_between({}, {"a": 10**5000}, rules=Rules.of(), limits=ChangeLimits())
    assert huge == StateChanges(left_out=1)


def test_comparing_touches_nothing() -> None:
    """Neither a copy nor the shared form has more of its own afterwards."""
    frozen = freeze({"t": {str(at): {"pad": "x" * 100, "rows": [at]} for at in range(200)}})
    one, two = frozen.private(), frozen.private()
    one["t"]["3"]["rows"].append(1)
    two["t"]["4"]["rows"].append(1)
    assert [change.path for change in differences(one, two)] == ["/t/3/rows/1", "/t/4/rows/1"]
    assert [change.path for change in differences(frozen.root, two, unordered=["/t/*/rows"])] == ["/t/4/rows/1"]
    for copied in (one, two):
        assert sum(isinstance(value, Untouched) for value in dict.values(copied["t"])) == 199


def test_a_change_says_itself_in_one_line() -> None:
    """What a verifier's explanation is made of; long values are cut."""
    assert str(Change("/a", 1, {"b": None})) == '/a: 1 is now {"b": null}'
    assert str(Change("/a", MISSING, "ü")) == '/a is new: "ü"'
    assert str(Change("", [], MISSING)) == "the whole state is gone: []"
    assert len(str(Change("/a", "x" * 1000, "y" * 1000))) < 450


def test_applying_to_another_state_is_refused() -> None:
    """Changes are those of one base: where it is another now, nothing is made up."""
    found = StateChanges(changes=tuple(differences({"a": {"b": 1}, "l": [1, 2]}, {"a": {"b": 2}, "l": [1, 2, 3]})))
    for base in ({"a": {"b": 5}, "l": [1, 2]}, {"a": 1, "l": [1, 2]}, {"l": [1, 2]}, {"a": {"b": 1}, "l": [1]}, []):
        with pytest.raises(UniverseError, match=r"/(a|l)"):
            apply(found, copy.deepcopy(base))
    with pytest.raises(UniverseError, match="not all"):
        apply(StateChanges(left_out=1), {})


def test_applying_gives_bytes_and_numbers_back() -> None:
    """What a change has as an object with a mark is the value again."""
    after = {"b": b"\xff", "n": float("inf"), "t": "\ud800", "o": {"$base64": "x"}, "deep": [{"$x": {"$base64": b""}}]}
    found = StateChanges(changes=tuple(differences({}, after)))
    assert apply(StateChanges.from_json(found.as_json()), {}) == after
