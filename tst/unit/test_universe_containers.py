"""The dicts and lists of a private copy: in use they are dicts and lists, and one copy's are not another's."""

from __future__ import annotations

import copy
import csv
import heapq
import io
import json
import marshal
import operator
import pickle
import sys
import threading
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from pydantic_core import to_json, to_jsonable_python

from agent_env.universe import plain
from agent_env.universe.containers import UniverseDict, UniverseList, Untouched
from agent_env.universe.frozen import freeze

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab~/", max_size=3)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=5),
    max_leaves=20,
)
dicts = st.dictionaries(st.text("abc", max_size=2), values, max_size=6)
lists = st.lists(values, max_size=6)
keys = st.text("abc", max_size=2)
places = st.integers(-7, 7)
slices = st.builds(slice, st.none() | places, st.none() | places, st.none() | st.sampled_from([-2, -1, 1, 2]))


def copied(value: Any) -> Any:
    """A private copy in which every dict and list that is not empty is split up."""
    return freeze(value, record_bytes=6).private()


def outcome(act: Callable[..., Any], on: Any, *arguments: Any) -> tuple[str, Any]:
    """What an operation gives, or which error it raises."""
    try:
        given_back = act(on, *arguments)
    except Exception as exc:  # noqa: BLE001 - which one it is, is what is compared
        return type(exc).__name__, None
    if isinstance(given_back, Iterator):
        given_back = list(given_back)
    assert not leaks(given_back)
    return "gave", plain("itself" if given_back is on else given_back)


def leaks(value: Any) -> bool:
    """Whether something that stands for a value is where a tool would see it."""
    if isinstance(value, Untouched):
        return True
    if isinstance(value, (UniverseDict, UniverseList)):
        return False
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple, deque)) else ()
    return any(map(leaks, inside))


DICT_READS: dict[str, Callable[[Any, str, Any], Any]] = {
    "[]": lambda x, k, v: x[k],
    "get": lambda x, k, v: x.get(k),
    "get default": lambda x, k, v: x.get(k, v),
    "in": lambda x, k, v: k in x,
    "len": lambda x, k, v: len(x),
    "bool": lambda x, k, v: bool(x),
    "keys": lambda x, k, v: list(x.keys()),
    "values": lambda x, k, v: list(x.values()),
    "items": lambda x, k, v: list(x.items()),
    "in values": lambda x, k, v: v in x.values(),
    "in items": lambda x, k, v: (k, v) in x.items(),
    "in items, odd": lambda x, k, v: v in x.items(),
    "len of views": lambda x, k, v: (len(x.items()), len(x.values()), len(x.keys())),
    "reversed": lambda x, k, v: [list(reversed(x)), list(reversed(x.values())), list(reversed(x.items()))],
    "keys & keys": lambda x, k, v: x.keys() & {k, "a"},
    "copy": lambda x, k, v: x.copy(),
    "copy.copy": lambda x, k, v: copy.copy(x),
    "deepcopy": lambda x, k, v: copy.deepcopy(x),
    "pickle": lambda x, k, v: pickle.loads(pickle.dumps(x)),
    "pickle 0": lambda x, k, v: pickle.loads(pickle.dumps(x, 0)),
    "==": lambda x, k, v: [x == {k: v}, {k: v} == x, x != {k: v}, {k: v} != x, x == 1, x != 1, x == [k]],
    "!= of the same": lambda x, k, v: [x != plain(x), plain(x) != x],
    "== of the same": lambda x, k, v: [x == plain(x), plain(x) == x, x == dict(x), x == x],
    "|": lambda x, k, v: x | {k: v},
    "| right": lambda x, k, v: {k: v, "z": 1} | x,
    "| wrong": lambda x, k, v: x | [k],
    "repr": lambda x, k, v: repr(x),
    "str": lambda x, k, v: f"{x}",
    "repr of views": lambda x, k, v: [repr(x.items()), repr(x.values()), repr(x.keys())],
    "dict()": lambda x, k, v: dict(x),
    "dict(, more)": lambda x, k, v: dict(x, **{k or "a": v}),
    "{**}": lambda x, k, v: {"z": 0, **x},
    "f(**)": lambda x, k, v: (lambda **more: more)(**x),
    "update another": lambda x, k, v: operator.ior({k: v}, x),
    "other dicts": lambda x, k, v: [
        OrderedDict(x),
        defaultdict(int, x),
        dict(ChainMap({}, x)),
        dict(MappingProxyType(x)),
    ],
    "items of a proxy": lambda x, k, v: list(MappingProxyType(x).items()),
    "json": lambda x, k, v: json.dumps(x),
    "json sorted": lambda x, k, v: json.dumps(x, sort_keys=True, indent=1),
    "pydantic": lambda x, k, v: to_json(x),
    "pydantic in a list": lambda x, k, v: to_jsonable_python([x, {"in": x}]),
    "model": lambda x, k, v: Holder.model_construct(any=x, typed=x).model_dump_json(),
    "isinstance": lambda x, k, v: [isinstance(x, dict), isinstance(x, Mapping)],
    "views are views": lambda x, k, v: [isinstance(x.items(), ItemsView), isinstance(x.values(), ValuesView)],
    "hash": lambda x, k, v: hash(x),
    "format_map": lambda x, k, v: "{a}".format_map(x),
    "%": lambda x, k, v: operator.mod("%(a)s", x),
    "sorted": lambda x, k, v: sorted(x.items(), key=repr),
    "itemgetter": lambda x, k, v: operator.itemgetter("a", "b")(x),
    "nested": lambda x, k, v: [[x] == [dict(x)], [dict(x)] == [x], {"k": x} == {"k": dict(x)}, (x,) == (dict(x),)],
    "match": lambda x, k, v: matched(x),
}
DICT_WRITES: dict[str, Callable[[Any, str, Any], Any]] = {
    "[]=": lambda x, k, v: x.__setitem__(k, v),
    "del": lambda x, k, v: x.__delitem__(k),
    "pop": lambda x, k, v: x.pop(k),
    "pop default": lambda x, k, v: x.pop(k, v),
    "pop wrong": lambda x, k, v: x.pop(k, v, v),
    "popitem": lambda x, k, v: x.popitem(),
    "setdefault": lambda x, k, v: x.setdefault(k, v),
    "setdefault none": lambda x, k, v: x.setdefault(k),
    "update": lambda x, k, v: x.update({k: v}),
    "update pairs": lambda x, k, v: x.update([(k, v)], z=v),
    "update wrong": lambda x, k, v: x.update(5),
    "update itself": lambda x, k, v: x.update(x),
    "|=": lambda x, k, v: operator.ior(x, {k: v}),
    "|= pairs": lambda x, k, v: operator.ior(x, [(k, v)]),
    "clear": lambda x, k, v: x.clear(),
    "write inside": lambda x, k, v: [write_inside(child, v) for child in x.values()],
    "write inside one": lambda x, k, v: write_inside(x[k], v),
    "same object": lambda x, k, v: [x[k] is x[k], x[k] is x.get(k), x[k] is dict(x)[k], x[k] is x.copy()[k]],
    "change while iterating": lambda x, k, v: [x.__setitem__(key, v) for key in x],
    "grow while iterating": lambda x, k, v: [x.__setitem__(key + "+", v) for key, _ in x.items()],
    "put itself aside": lambda x, k, v: x.__setitem__("aside", x.get(k)),
}
LIST_READS: dict[str, Callable[[Any, int, Any, Any], Any]] = {
    "[]": lambda x, at, s, v: x[at],
    "[:]": lambda x, at, s, v: x[s],
    "[] wrong": lambda x, at, s, v: x["a"],
    "len": lambda x, at, s, v: len(x),
    "bool": lambda x, at, s, v: bool(x),
    "list()": lambda x, at, s, v: list(x),
    "tuple()": lambda x, at, s, v: tuple(x),
    "[*]": lambda x, at, s, v: [0, *x, 1],
    "f(*)": lambda x, at, s, v: (lambda *a: a)(*x),
    "unpack": lambda x, at, s, v: unpacked(x),
    "reversed": lambda x, at, s, v: list(reversed(x)),
    "copy": lambda x, at, s, v: x.copy(),
    "copy.copy": lambda x, at, s, v: copy.copy(x),
    "deepcopy": lambda x, at, s, v: copy.deepcopy(x),
    "pickle": lambda x, at, s, v: pickle.loads(pickle.dumps(x)),
    "in": lambda x, at, s, v: v in x,
    "index": lambda x, at, s, v: x.index(v),
    "index from": lambda x, at, s, v: x.index(v, at),
    "index from to": lambda x, at, s, v: x.index(v, 0, at),
    "count": lambda x, at, s, v: x.count(v),
    "==": lambda x, at, s, v: [x == [v], [v] == x, x != [v], [v] != x, x == 1, x == (v,)],
    "!= of the same": lambda x, at, s, v: [x != plain(x), plain(x) != x],
    "== of the same": lambda x, at, s, v: [x == plain(x), plain(x) == x, x == list(x), x == x],
    "<": lambda x, at, s, v: [x < [v], [v] < x],
    "<=": lambda x, at, s, v: [x <= [v], [v] <= x],
    ">": lambda x, at, s, v: [x > [v], [v] > x, x > x],
    ">=": lambda x, at, s, v: [x >= [v], [v] >= x, x >= x],
    "< wrong": lambda x, at, s, v: x < 1,
    "+": lambda x, at, s, v: operator.add(x, [v]),
    "+ right": lambda x, at, s, v: operator.add([v], x),
    "+ itself": lambda x, at, s, v: x + x,
    "+ wrong": lambda x, at, s, v: operator.add(x, (v,)),
    "+ right wrong": lambda x, at, s, v: operator.add((v,), x),
    "+= another": lambda x, at, s, v: operator.iadd([v], x),
    "slice of another": lambda x, at, s, v: sliced_in([1, 2, 3], x),
    "*": lambda x, at, s, v: x * 2,
    "* right": lambda x, at, s, v: 2 * x,
    "* wrong": lambda x, at, s, v: x * "a",
    "repr": lambda x, at, s, v: repr(x),
    "str": lambda x, at, s, v: f"{x}",
    "json": lambda x, at, s, v: json.dumps(x),
    "json indented": lambda x, at, s, v: json.dumps({"in": x}, indent=2),
    "pydantic": lambda x, at, s, v: to_json(x),
    "sorted": lambda x, at, s, v: sorted(x, key=repr),
    "sorted plainly": lambda x, at, s, v: sorted(x),
    "min": lambda x, at, s, v: min(x),
    "sum": lambda x, at, s, v: sum(x),
    "enumerate": lambda x, at, s, v: list(enumerate(x)),
    "zip": lambda x, at, s, v: list(zip(x, x, strict=True)),
    "any": lambda x, at, s, v: (any(x), all(x)),
    "deque": lambda x, at, s, v: deque(x),
    "join": lambda x, at, s, v: ",".join(x),
    "csv": lambda x, at, s, v: csv.writer(io.StringIO()).writerow(x),
    "Counter": lambda x, at, s, v: Counter(map(repr, x)),
    "isinstance": lambda x, at, s, v: isinstance(x, list),
    "hash": lambda x, at, s, v: hash(x),
    "match": lambda x, at, s, v: matched(x),
    "nested": lambda x, at, s, v: [[x] == [list(x)], [list(x)] == [x], {"k": x} == {"k": list(x)}],
}
LIST_WRITES: dict[str, Callable[[Any, int, Any, Any], Any]] = {
    "[]=": lambda x, at, s, v: x.__setitem__(at, v),
    "[:]=": lambda x, at, s, v: x.__setitem__(s, [v, v]),
    "[:]= wrong": lambda x, at, s, v: x.__setitem__(s, 5),
    "[:]= itself": lambda x, at, s, v: x.__setitem__(slice(1, 1), x),
    "del": lambda x, at, s, v: x.__delitem__(at),
    "del slice": lambda x, at, s, v: x.__delitem__(s),
    "append": lambda x, at, s, v: x.append(v),
    "extend": lambda x, at, s, v: x.extend([v, v]),
    "extend itself": lambda x, at, s, v: x.extend(x),
    "extend wrong": lambda x, at, s, v: x.extend(5),
    "insert": lambda x, at, s, v: x.insert(at, v),
    "pop": lambda x, at, s, v: x.pop(),
    "pop at": lambda x, at, s, v: x.pop(at),
    "remove": lambda x, at, s, v: x.remove(v),
    "clear": lambda x, at, s, v: x.clear(),
    "reverse": lambda x, at, s, v: x.reverse(),
    "sort": lambda x, at, s, v: x.sort(key=repr, reverse=True),
    "sort plainly": lambda x, at, s, v: x.sort(),
    "+=": lambda x, at, s, v: operator.iadd(x, (v,)),
    "+= itself": lambda x, at, s, v: operator.iadd(x, x),
    "*=": lambda x, at, s, v: operator.imul(x, 2),
    "*= wrong": lambda x, at, s, v: operator.imul(x, "a"),
    "write inside": lambda x, at, s, v: [write_inside(child, v) for child in x],
    "write inside one": lambda x, at, s, v: write_inside(x[at], v),
    "same object": lambda x, at, s, v: [x[at] is x[at], x[at] is list(x)[at], x[at] is x.copy()[at]],
    "shrink while iterating": lambda x, at, s, v: [x.pop() for _ in x],
    "shrink while going back": lambda x, at, s, v: [x.pop(0) for _ in reversed(x)],
    "twice": lambda x, at, s, v: (x.append(x[at]), write_inside(x[-1], v)),
    "twice by +=": lambda x, at, s, v: (operator.iadd(x, x), write_inside(x[0], v)),
    "twice by extend": lambda x, at, s, v: (x.extend(x), write_inside(x[0], v)),
    "twice by *=": lambda x, at, s, v: (operator.imul(x, 2), write_inside(x[0], v)),
    "twice by [:]=": lambda x, at, s, v: (x.__setitem__(slice(2, 2), x), write_inside(x[0], v)),
    "twice by +": lambda x, at, s, v: ((x + x)[0] is x[0], (x * 2)[0] is x[0], x[s] and x[s][0] is x[s][-1]),
}


class Holder(BaseModel):
    any: Any
    typed: dict[str, Any]


def write_inside(child: Any, value: Any) -> None:
    """Write to a child as a tool would."""
    if isinstance(child, dict):
        child["written"] = value
    elif isinstance(child, list):
        child.append(value)


def matched(x: Any) -> Any:
    """What a match statement finds."""
    match x:
        case {"a": found, **rest}:
            return [found, rest]
        case [first, *rest]:
            return [first, rest]
        case _:
            return None


def unpacked(x: Any) -> Any:
    """What unpacking gives."""
    first, *rest = x
    return [first, rest]


def sliced_in(target: list[Any], x: Any) -> list[Any]:
    """A list with the other put in."""
    target[1:2] = x
    return target


@settings(max_examples=150, deadline=None)
@given(start=dicts, steps=st.lists(st.tuples(st.sampled_from([*DICT_READS, *DICT_WRITES]), keys, values), max_size=12))
def test_a_universes_dict_does_as_a_plain_one(start: dict[str, Any], steps: list[tuple[str, str, Any]]) -> None:
    """Whatever is done to both one after the other gives the same, raises the same, and leaves the same."""
    mine, its = copied(start), copy.deepcopy(start)
    for name, key, value in steps:
        act = (DICT_READS | DICT_WRITES)[name]
        args = key, copy.deepcopy(value)
        assert outcome(act, mine, *args) == outcome(act, its, *copy.deepcopy(args)), name
        assert mine == its, name
    assert plain(mine) == its
    assert list(mine) == list(its)


@settings(max_examples=150, deadline=None)
@given(
    start=lists,
    steps=st.lists(st.tuples(st.sampled_from([*LIST_READS, *LIST_WRITES]), places, slices, values), max_size=12),
)
def test_a_universes_list_does_as_a_plain_one(start: list[Any], steps: list[tuple[str, int, slice, Any]]) -> None:
    """As with dicts."""
    mine, its = copied(start), copy.deepcopy(start)
    for name, at, cut, value in steps:
        if len(its) > 200:
            break
        act = (LIST_READS | LIST_WRITES)[name]
        one, two = copy.deepcopy(value), copy.deepcopy(value)
        assert outcome(act, mine, at, cut, one) == outcome(act, its, at, cut, two), name
        assert mine == its, name
    assert plain(mine) == its


@pytest.mark.parametrize("name", [*DICT_READS, *DICT_WRITES])
def test_each_operation_on_a_dict(name: str) -> None:
    """On one that has every kind of child and that nobody has touched; what is read changes nothing."""
    start: dict[str, Any] = {"a": {"deep": [1, {"x": "y"}]}, "b": [{"c": 1}, [2, "z"]], "c": 5, "d": "text", "e": {}}
    for key in ("a", "b", "c", "none"):
        for value in (1, [2], {"c": 1}, {"deep": [1, {"x": "y"}]}):
            mine, its = copied(start), copy.deepcopy(start)
            act = (DICT_READS | DICT_WRITES)[name]
            one, two = copy.deepcopy(value), copy.deepcopy(value)
            assert outcome(act, mine, key, one) == outcome(act, its, key, two)
            assert plain(mine) == its
            if name in DICT_READS:
                assert its == start


@pytest.mark.parametrize("name", [*LIST_READS, *LIST_WRITES])
def test_each_operation_on_a_list(name: str) -> None:
    """As with dicts."""
    start: list[Any] = [{"deep": [1, {"x": "y"}]}, [{"c": 1}, [2, "z"]], 5, "text", {}, [1, 2, 3]]
    for at in (0, 1, 2, -1, 99):
        for value in (5, [1, 2, 3], {"deep": [1, {"x": "y"}]}):
            mine, its = copied(start), copy.deepcopy(start)
            act = (LIST_READS | LIST_WRITES)[name]
            one, two = copy.deepcopy(value), copy.deepcopy(value)
            cut = slice(at, None, 1)
            assert outcome(act, mine, at, cut, one) == outcome(act, its, at, cut, two)
            assert plain(mine) == its
            if name in LIST_READS:
                assert its == start


def large_universe() -> dict[str, Any]:
    """A table of 300 records of 1 kB."""
    return {"orders": {f"#W{number}": {"id": number, "items": [{"price": 1.5}] * 40} for number in range(300)}}


def test_what_a_tool_gets_of_a_large_universe_is_plain_but_for_the_tables() -> None:
    """A record is a dict and not a subclass; two copies share no part that can be written to."""
    frozen = freeze(large_universe())
    one, two = frozen.private(), frozen.private()
    assert type(one) is UniverseDict
    assert type(one["orders"]) is UniverseDict
    record = one["orders"]["#W7"]
    assert type(record) is dict
    assert type(record["items"][0]) is dict
    record["items"][0]["price"] = 9
    one["orders"]["#W8"]["items"].append("new")
    del one["orders"]["#W9"]
    assert two == frozen.private() == large_universe()
    assert one["orders"]["#W7"] is record


def test_large_lists_and_long_tables_of_numbers_are_private_too() -> None:
    """A list of records is a list of its own; one of numbers only is plain, whatever its length."""
    frozen = freeze({"rows": [{"n": number, "pad": "x" * 50} for number in range(500)], "numbers": list(range(50_000))})
    one, two = frozen.private(), frozen.private()
    assert type(one["rows"]) is UniverseList
    assert type(one["numbers"]) is list
    one["rows"][3]["n"] = one["numbers"][3] = -1
    assert two["rows"][3]["n"] == two["numbers"][3] == 3
    two["rows"].reverse()
    assert one["rows"][0]["n"] == 0
    assert two["rows"][0]["n"] == 499


def test_copies_share_their_strings() -> None:
    """A record of one copy has the same text objects as another's: a thousand copies have each text once."""
    frozen = freeze({"a": {"name": "Some name " * 100}, "b": {"ß": "größer"}}, record_bytes=10)
    one, two = frozen.private(), frozen.private()
    assert one["a"]["name"] is two["a"]["name"]
    assert next(iter(one["b"])) is next(iter(two["b"]))
    assert one["b"]["ß"] is two["b"]["ß"]


def test_a_deep_copy_shares_what_is_untouched() -> None:
    """An env that keeps a deep copy of its state for later pays for what it has touched."""
    state = freeze(large_universe()).private()
    state["orders"]["#W1"]["id"] = "changed"
    kept = copy.deepcopy(state)
    state["orders"]["#W1"]["id"] = "again"
    state["orders"]["#W2"]["id"] = "changed"
    assert kept["orders"]["#W1"]["id"] == "changed"
    assert kept["orders"]["#W2"]["id"] == 2
    assert sum(isinstance(value, Untouched) for value in dict.values(kept["orders"])) == 298
    rows = freeze([{"pad": "x" * 1000, "n": [number]} for number in range(20)]).private()
    kept_rows = copy.deepcopy(rows)
    rows[0]["n"].append(1)
    assert kept_rows[0]["n"] == [0]
    assert sum(isinstance(value, Untouched) for value in list.__iter__(kept_rows)) == 19


def test_a_copy_that_holds_itself_is_pickled_copied_and_shown() -> None:
    """As a plain dict that holds itself is."""
    state = copied({"a": {"b": [1]}, "c": [[2]]})
    state["a"]["self"] = state
    state["c"].append(state["c"])
    again = pickle.loads(pickle.dumps(state))
    assert type(again) is dict
    assert type(again["c"]) is list
    assert again["a"]["self"]["a"]["b"] == [1]
    assert copy.deepcopy(state)["c"][1][1][0] == [2]
    assert "{...}" in repr(state)
    assert "[...]" in repr(state)
    flat = plain(state)
    assert flat["a"]["self"] is flat
    assert type(flat["c"]) is list


def test_plain_leaves_no_container_of_a_universe() -> None:
    """To any depth, also inside of tuples and of what a tool has made itself; what is plain is given back as it is."""
    state = copied({"a": {"b": [{"c": 1}]}})
    answer = {"found": [state["a"]], "pair": (state["a"]["b"], 1)}
    made = plain(answer)
    assert made == {"found": [{"b": [{"c": 1}]}], "pair": ([{"c": 1}], 1)}
    assert marshal.loads(marshal.dumps(made)) == made
    made["found"][0]["b"].append(2)
    assert state["a"]["b"] == [{"c": 1}]
    own = {"x": [1]}
    assert plain(own) is own
    deep: Any = state
    for _ in range(50_000):
        deep = [deep]
    assert plain(deep)[0][0] is not None


def test_what_reads_the_storage_directly_is_refused_or_right() -> None:
    """Code in C that looks past the methods meets a thing that says what to do, and never takes it for data."""
    state = copied({"b": [3], "a": [[2], [1]]})
    with pytest.raises(TypeError, match=r"agent_env\.universe\.plain"):
        heapq.heapify(state["a"])
    with pytest.raises(ValueError, match="unmarshallable"):
        marshal.dumps(state)
    leaked = next(iter(dict.values(state)))
    assert "agent_env.universe.plain" in repr(leaked)
    for act in (bool, len, iter, hash, str, list, copy.copy, copy.deepcopy, pickle.dumps, "{}".format, operator.neg):
        with pytest.raises(TypeError):
            act(leaked)
    for compare in (operator.eq, operator.ne, operator.lt, operator.contains, operator.getitem, operator.add):
        with pytest.raises(TypeError, match="untouched"):
            compare(leaked, 1)
    with pytest.raises(TypeError, match="not JSON serializable"):
        json.dumps([leaked])


def test_threads_that_touch_the_same_children_see_the_same_ones() -> None:
    """No thread is given a child that another one's replaces: what it writes there is there afterwards."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(5):
            state = copied({"table": {str(at): {"seen": []} for at in range(200)}, "rows": [[] for _ in range(3)]})

            def work(name: int, state: Any = state) -> None:
                for at in range(200):
                    state["table"][str(at)]["seen"].append(name)
                for at in range(50):
                    state["table"][f"new {name} {at}"] = {"seen": [name]}
                    state["rows"].insert(0, [name])

            threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert all(sorted(state["table"][str(at)]["seen"]) == [0, 1, 2, 3] for at in range(200))
            assert len(state["table"]) == 400
            assert len(state["rows"]) == 203
    finally:
        sys.setswitchinterval(interval)
