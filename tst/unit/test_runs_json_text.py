"""JSON as people read it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_env.runs.json_text import Retyped, brief, pretty, relaid, retyped

JSON: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(st.text(max_size=30), inner, max_size=5)),
    max_leaves=30,
)


@settings(max_examples=100, deadline=None)
@given(value=JSON, is_ascii=st.booleans(), indent=st.sampled_from([None, 1]))
def test_json_that_is_laid_out_says_the_same(value: Any, is_ascii: bool, indent: int | None) -> None:
    """Every name, number and text is the one that was written, in the same order."""
    text = json.dumps([value, "x" * 100], ensure_ascii=is_ascii, indent=indent)
    laid_out = relaid(text)
    if laid_out:
        assert json.loads(laid_out) == [value, "x" * 100]
        assert re.sub(r"\s", "", laid_out) == re.sub(r"\s", "", text)


def test_numbers_keep_their_digits_and_names_that_are_there_twice_stay() -> None:
    """What a parser would lose."""
    text = (
        '{"price": 1.10, "price": 1e5, "id": 00'.replace("00", "12345678901234567890123") + f', "text": "{"x" * 80}"}}'
    )
    assert relaid(text).splitlines()[1:4] == ['  "price": 1.10,', '  "price": 1e5,', '  "id": 12345678901234567890123,']


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "plain " * 50,
        f'"{"x" * 200}"',
        "[" + "1, " * 100 + "]",
        "[" * 60 + "]" * 60,
        "[" * 5000,
        f'["{"x" * 9000}"]',
    ],
)
def test_what_is_no_long_json_is_left_as_it_is(text: str) -> None:
    """Text, what fits in a line, what does not parse, what is very deep or very long."""
    assert relaid(text) == ""


def test_arguments_are_one_line() -> None:
    """By name where they have names, cut where they are long, and safe to show."""
    assert brief({"book": "emma", "days": [1, 2]}) == 'book="emma", days=[1, 2]'
    assert brief([1]) == "[1]"
    assert brief(None) == ""
    assert brief({"text": "x" * 500}, 20) == 'text="xxxxxxxxxxxxx…'
    assert brief({"\x1b": "\u202e"}) == '⟨U+001B⟩="⟨U+202E⟩"'
    assert len(brief({str(number): "x" * 100 for number in range(100_000)})) == 200


def test_what_typing_changed_is_told_by_path() -> None:
    """Values that differ, what is there on one side only, and nothing where the text is no object."""
    raw = '{"zip": 1912, "to": {"floor": "3", "gone": 1}, "hours": ["1", 2], "same": 1.0}'
    arguments = {"zip": "01912", "to": {"floor": 3}, "hours": [1, 2], "same": 1.0, "days": 7}
    assert retyped(raw, arguments) == (
        Retyped(path="zip", written="1912", typed='"01912"'),
        Retyped(path="to.floor", written='"3"', typed="3"),
        Retyped(path="to.gone", written="1", typed=None),
        Retyped(path="hours.0", written='"1"', typed="1"),
        Retyped(path="days", written=None, typed="7"),
    )
    assert retyped("{", arguments) == retyped("[1]", arguments) == retyped("[" * 100_000, arguments) == ()
    assert len(retyped(json.dumps({str(at): at for at in range(200)}), {str(at): str(at) for at in range(200)})) == 50


def test_values_that_are_too_deep_or_too_long_are_written_all_the_same() -> None:
    """Without a traceback, and in reasonable time."""
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert pretty(deep) == "… (nested too deeply to be shown)"
    assert pretty(["x" * 2_000_000]).count("\n") == 0
    assert brief({"deep": deep}) == "deep=…"
