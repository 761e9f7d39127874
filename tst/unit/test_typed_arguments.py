"""A call's arguments, from what a model wrote to what the tool's JSON Schema says they are."""

from __future__ import annotations

import json
import logging
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from agent_env import Env, tool
from agent_env.envs import ToolError, ToolSpec, parse_arguments
from agent_env.envs.arguments import MisfitArgumentsError
from agent_env.envs.python_tools import toolbox_of
from agent_env.envs.strict_json import NestedTooDeeplyError
from agent_env.envs.typed_arguments import ParameterText, arguments_from_json, arguments_from_texts

TEXT = {"type": "string"}
INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}
FLAG = {"type": "boolean"}


def spec(**properties: Any) -> ToolSpec:
    """A tool whose parameters may all be left out."""
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return ToolSpec(name="book", description="", parameters=schema)


def any_of(*schemas: Mapping[str, Any]) -> dict[str, Any]:
    """A union."""
    return {"anyOf": list(schemas)}


def typed(schema: Mapping[str, Any], text: str, *, is_string: bool | None = None) -> Any:
    """What the text is for a parameter with that schema."""
    return arguments_from_texts([ParameterText("x", text, is_string)], spec(x=schema))["x"]


def same(left: Any, right: Any) -> bool:
    """Equal, and of the same types all through: `1`, `1.0` and `True` are three values."""
    return json.dumps(left) == json.dumps(right)


@pytest.mark.parametrize(
    "text",
    [
        *("01912", "1.10", "1e5", "12", "true", "True", "null", "None", "[1, 2]", '{"a": 1}', '"quoted"', "NaN", ""),
        *(" padded ", "\n\nlines\n", "\t", "<b>bold</b>", "a < b > c", "\\n", "é 🦊 \u2028", "</x>", "-0", "1_000"),
    ],
)
def test_a_string_parameter_gets_the_text_whatever_it_looks_like(text: str) -> None:
    """Where only a string fits, nothing is read into it."""
    assert typed(TEXT, text) == text
    assert typed({**TEXT, "minLength": 0}, text) == text


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (INTEGER, "5", 5),
        (INTEGER, "-3", -3),
        (INTEGER, " 5\n", 5),
        (INTEGER, "5.0", 5),
        (INTEGER, "1e3", 1000),
        (NUMBER, "5", 5),
        (NUMBER, "1.10", 1.1),
        (NUMBER, "5.0", 5.0),
        (NUMBER, "1e5", 1e5),
        (FLAG, "true", True),
        (FLAG, "False", False),
        ({"type": "null"}, "null", None),
        ({"type": "null"}, "None", None),
        ({"enum": ["1", 2, None]}, "1", "1"),
        ({"enum": ["1", 2, None]}, "2", 2),
        ({"enum": ["1", 2, None]}, "null", None),
        ({"const": "007"}, "007", "007"),
        ({"const": 7}, "7", 7),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "nullable", "nullable"),
        (any_of(TEXT, {"type": "null"}), "None", None),
        (any_of(TEXT, {"type": "null"}), "12", "12"),
        (any_of(TEXT, INTEGER), "12", 12),
        (any_of(TEXT, INTEGER), "012", "012"),
        (any_of(TEXT, INTEGER), "5.0", "5.0"),
        (any_of(TEXT, INTEGER), "1e5", "1e5"),
        (any_of(TEXT, INTEGER), " 12", " 12"),
        (any_of(TEXT, NUMBER), "1.5", 1.5),
        (any_of(TEXT, NUMBER), "1.10", "1.10"),
        (any_of(TEXT, FLAG), "true", True),
        (any_of(TEXT, FLAG), "yes", "yes"),
        (any_of(TEXT, {"type": "array"}), "[1,2]", [1, 2]),
        (any_of(TEXT, {"type": "array"}), "[1,2", "[1,2"),
        (any_of(INTEGER, {"type": "null"}), "7", 7),
        ({**INTEGER, "nullable": True}, "null", None),
        ({**INTEGER, "nullable": True}, "7", 7),
        ({**TEXT, "nullable": True}, "null", None),
        ({**TEXT, "nullable": True}, "07", "07"),
        ({"enum": ["a"], "nullable": True}, "None", None),
        ({"oneOf": [INTEGER, FLAG]}, "true", True),
        ({"allOf": [INTEGER, {"minimum": 3}]}, "4", 4),
        ({"type": "array", "items": INTEGER}, "[1, 2.0]", [1, 2]),
        ({"type": "array", "items": TEXT}, '["01", "1.10"]', ["01", "1.10"]),
        ({"type": "object"}, '{"a": [1.0, "b"]}', {"a": [1.0, "b"]}),
        ({"type": "object", "properties": {"a": INTEGER, "b": NUMBER}}, '{"a": 2.0, "b": 3}', {"a": 2, "b": 3}),
        ({"$ref": "#/$defs/Nowhere"}, "x", "x"),
        ({}, "1.5", 1.5),
        ({}, "1.10", "1.10"),
        ({}, "words", "words"),
        ({}, '{"a": 1}', {"a": 1}),
        ({**INTEGER, "default": 4}, "5", 5),
    ],
)
def test_a_text_is_typed_by_the_schema(schema: Mapping[str, Any], text: str, value: Any) -> None:
    """The value is what the schema allows of what the text may stand for; a number is not taken where text is lost."""
    assert same(typed(schema, text), value)


@pytest.mark.parametrize(
    ("schema", "text", "is_string", "value"),
    [
        ({}, "12", True, "12"),
        (any_of(TEXT, INTEGER), "12", True, "12"),
        (any_of(TEXT, INTEGER), "1e5", False, 100000),
        (INTEGER, "12", True, 12),
        (TEXT, "01912", False, "01912"),
        (TEXT, '"quoted"', False, "quoted"),
        (TEXT, '"quoted"', True, '"quoted"'),
        (any_of(TEXT, {"type": "null"}), "null", True, "null"),
    ],
)
def test_what_the_model_says_of_a_values_kind_decides_where_both_would_fit(
    schema: Mapping[str, Any], text: str, is_string: bool, value: Any
) -> None:
    """A format that marks strings is believed, as far as the schema goes along."""
    assert same(typed(schema, text, is_string=is_string), value)


ROOM = {"type": "object", "properties": {"beds": {**INTEGER, "minimum": 1}, "view": {"enum": ["sea", "yard"]}}}
STAY = {**ROOM, "required": ["beds"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "text", "line"),
    [
        (INTEGER, "two", 'x: expected an integer, got "two"'),
        (INTEGER, "1.5", "x: expected an integer, got 1.5"),
        (INTEGER, "", 'x: expected an integer, got ""'),
        (INTEGER, "true", "x: expected an integer, got true"),
        (INTEGER, "05", 'x: expected an integer, got "05"'),
        (NUMBER, "NaN", 'x: expected a number, got "NaN"'),
        (NUMBER, "1e999", 'x: expected a number, got "1e999"'),
        (FLAG, "yes", 'x: expected true or false, got "yes"'),
        ({**INTEGER, "minimum": 1}, "0", "x: expected greater than or equal to 1, got 0"),
        ({**NUMBER, "exclusiveMaximum": 2}, "2", "x: expected less than 2, got 2"),
        ({**TEXT, "maxLength": 2}, "abc", 'x: expected a string of at most 2 characters, got "abc"'),
        ({**TEXT, "pattern": "^a"}, "b", 'x: expected a string that matches ^a, got "b"'),
        ({"enum": ["a", "b", 3]}, "c", "x: expected one of 'a', 'b' or 3, got \"c\""),
        ({"const": "a"}, "b", "x: expected 'a', got \"b\""),
        (any_of(INTEGER, {"type": "null"}), "x", 'x: expected an integer or null, got "x"'),
        (any_of({"type": "array", "items": INTEGER}, {"type": "null"}), '["a"]', 'x[0]: expected an integer, got "a"'),
        ({**INTEGER, "nullable": True}, "x", 'x: expected an integer or null, got "x"'),
        ({**INTEGER, "nullable": False}, "null", "x: expected an integer, got null"),
        ({"oneOf": [NUMBER, INTEGER]}, "3", "x: expected what fits just one of its forms, got 3"),
        ({"type": "array"}, "1", "x: expected a list, got 1"),
        ({"type": "array", "uniqueItems": True}, "[1, 1]", "x: expected a list without an item that is in it twice"),
        (STAY, "{}", "x: missing beds"),
        (STAY, '{"beds": 0}', "x.beds: expected greater than or equal to 1, got 0"),
        (STAY, '{"beds": 1, "view": "sky"}', "x.view: expected one of 'sea' or 'yard', got \"sky\""),
        (STAY, '{"beds": 1, "vew": "sea"}', "x.vew: expected no such key, known: beds, view"),
        (STAY, '{"beds": 1', 'x: expected an object, got "{\\"beds\\": 1" (it is cut off'),
        (STAY, '{"beds": 1, "beds": 2}', 'the key "beds" is written twice)'),
        ({"type": "array", "items": STAY}, '[{"beds": 1}, {}]', "x[1]: missing beds"),
        ({"not": TEXT}, "a", 'x: expected something else, got "a"'),
    ],
)
def test_what_does_not_fit_is_said_with_what_was_expected(schema: Mapping[str, Any], text: str, line: str) -> None:
    """The message names the tool and the place, what was expected there, and what was got."""
    with pytest.raises(ToolError, match=re.escape(f"book was not called:\n{line}" if line[0] == "x" else line)):
        typed(schema, text)


def test_every_parameter_that_does_not_fit_has_a_line() -> None:
    """Unknown, missing, doubled and misfit parameters are named together."""
    schema = {**STAY, "properties": {**STAY["properties"], "name": TEXT}, "required": ["beds", "name"]}
    written = [ParameterText("beds", "x"), ParameterText("beds", "2"), ParameterText("veiw", "sea")]
    with pytest.raises(ToolError) as failure:
        arguments_from_texts(written, ToolSpec(name="book", description="", parameters=schema))
    assert str(failure.value).splitlines() == [
        "book was not called:",
        "beds: written twice",
        "name: missing",
        "veiw: there is no such parameter, did you mean view?",
        'beds: expected an integer, got "x"',
    ]


@pytest.mark.parametrize(("name", "text"), [("x", "a\ud800"), ("\udfff", "a")])
def test_half_of_a_surrogate_pair_is_no_text(name: str, text: str) -> None:
    """No store or model takes it."""
    with pytest.raises(ToolError, match="half of a surrogate pair"):
        arguments_from_texts([ParameterText(name, text)], spec(x=TEXT))


@pytest.mark.parametrize(
    ("raw", "arguments"),
    [
        ("{}", {}),
        (' {"x": "01912"} ', {"x": "01912"}),
        ('{"x": "\\u00e9\\ud83e\\udd8a"}', {"x": "é🦊"}),
        ('{"x": "[1, 2]"}', {"x": "[1, 2]"}),
    ],
)
def test_json_arguments_are_what_was_written(raw: str, arguments: Mapping[str, Any]) -> None:
    """JSON has types of its own: they are kept."""
    assert arguments_from_json(raw, spec(x=TEXT)) == arguments


def test_a_whole_number_is_an_integer_also_in_json() -> None:
    """In JSON Schema `2.0` is an integer; a Python tool gets it as one, and numbers stay as they are."""
    assert same(arguments_from_json('{"x": 2.0, "y": 3.0}', spec(x=INTEGER, y=NUMBER)), {"x": 2, "y": 3})
    assert same(arguments_from_json('{"y": 3.0}', spec(x=INTEGER, y=NUMBER)), {"y": 3.0})


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ("", "the arguments are empty: write a JSON object"),
        ("  \n", "the arguments are empty"),
        ('{"x": "a"', "no valid JSON: it is cut off"),
        ('{"x": "a', "no valid JSON: it is cut off"),
        ("{'x': 'a'}", "no valid JSON"),
        ('{"x": 01912}', "no valid JSON"),
        ('{"x": "a"} and more', "no valid JSON: Extra data"),
        ('{"x": "a", "x": "b"}', 'the key "x" is written twice'),
        ('{"x": NaN}', "NaN is not JSON"),
        ('{"x": -Infinity}', "-Infinity is not JSON"),
        ('{"x": 1e999}', "1e999 is too large for a number"),
        ('{"x": ' + "9" * 5000 + "}", "a number has 5,000 digits, at most 300 are read"),
        ('{"x": "\\ud800"}', "half of a surrogate pair"),
        ('{"\\udfff": "a"}', "half of a surrogate pair"),
        ('{"x": "a\nb"}', "Invalid control character"),
        ('"{\\"x\\": \\"a\\"}"', "encoded twice"),
        ('"text"', 'must be a JSON object like {"name": value}, not "text"'),
        ("null", "must be a JSON object"),
        ("[1]", "must be a JSON object"),
        ('{"x": 12}', "x: expected a string, got 12"),
        ('{"x": null}', "x: expected a string, got null"),
        ('{"y": "a"}', "y: there is no such parameter, known: x"),
    ],
)
def test_json_that_cannot_be_taken_is_said_in_a_line(raw: str, says: str) -> None:
    """Nothing is guessed, dropped or rounded away: it is an error for the model, never one of ours."""
    with pytest.raises(ToolError, match=re.escape(says)) as failure:
        arguments_from_json(raw, spec(x=TEXT))
    assert len(str(failure.value)) < 300


@pytest.mark.parametrize("raw", ["[" * 100_000, '{"x": ' + "[" * 60 + "]" * 60 + "}"])
def test_json_that_is_nested_too_deeply_is_told_from_other_json(raw: str) -> None:
    """What reads such a text again may fail, so whoever keeps it has to know; a player's is a tool's error like another."""
    with pytest.raises(NestedTooDeeplyError, match="the arguments are no valid JSON: it is nested too deeply"):
        arguments_from_json(raw, spec(x=TEXT))
    with pytest.raises(ToolError, match="nested too deeply"):
        parse_arguments(raw)


def test_players_write_no_arguments_as_no_text() -> None:
    """What a player leaves out is no argument; all else is read as strictly as a model's."""
    assert parse_arguments("") == {}
    with pytest.raises(ToolError, match="written twice"):
        parse_arguments('{"a": 1, "a": 2}')


def test_a_tool_that_is_not_there_has_its_arguments_read_all_the_same() -> None:
    """Whoever answers that there is no such tool gets values, and what is no JSON is still an error."""
    assert arguments_from_json('{"a": 1}', None) == {"a": 1}
    assert arguments_from_texts([ParameterText("a", "1"), ParameterText("b", "01")], None) == {"a": 1, "b": "01"}
    with pytest.raises(ToolError, match="no valid JSON"):
        arguments_from_json("{", None)


REFERS = {
    "type": "object",
    "$defs": {
        "Tree": {"type": "object", "properties": {"below": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}}
    },
    "properties": {"tree": {"$ref": "#/$defs/Tree"}, "name": {"$ref": "#/properties/other"}, "other": TEXT},
}


def test_references_within_a_schema_hold() -> None:
    """As MCP servers have them, those to themselves among them."""
    tool = ToolSpec(name="grow", description="", parameters=REFERS)
    written = [ParameterText("tree", '{"below": [{"below": []}]}'), ParameterText("name", "012")]
    assert arguments_from_texts(written, tool) == {"tree": {"below": [{"below": []}]}, "name": "012"}
    with pytest.raises(ToolError, match=re.escape("tree.below[0]: expected an object, got 1")):
        arguments_from_texts([ParameterText("tree", '{"below": [1]}')], tool)


@pytest.mark.parametrize(
    ("broken", "value"),
    [
        ({"$ref": "https://schemas.invalid/room.json"}, 5),
        ({"$ref": "#/$defs/Gone"}, 5),
        ({"type": "integer", "minimum": "one"}, 5),
        ({"type": "string", "pattern": "(?<a"}, "5"),
        ({"type": "not-a-type"}, 5),
        ({"$ref": "#/properties/x"}, 5),
    ],
)
def test_a_schema_that_is_broken_checks_nothing(
    broken: Mapping[str, Any], value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the server's to answer then: the call is not lost to a schema of someone else's, and nothing is fetched."""
    with caplog.at_level(logging.WARNING):
        assert arguments_from_json(json.dumps({"x": value}), spec(x=broken)) == {"x": value}
    assert "cannot be used" in caplog.text


def test_a_schema_elsewhere_is_not_fetched() -> None:
    """A schema comes from a server of anyone's: it does not make this machine ask another."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        schema = {"$ref": f"http://127.0.0.1:{server.getsockname()[1]}/room.json"}
        assert arguments_from_json('{"x": 5}', spec(x=schema)) == {"x": 5}
        with pytest.raises(BlockingIOError):
            server.accept()


def test_the_rules_of_other_drafts_hold_where_a_schema_names_one() -> None:
    """MCP servers may write draft-07: there a list of items is a tuple."""
    pair = {"type": "array", "items": [TEXT, INTEGER]}
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"x": pair}}
    tool = ToolSpec(name="book", description="", parameters=schema)
    assert arguments_from_texts([ParameterText("x", '["a", 1]')], tool) == {"x": ["a", 1]}
    with pytest.raises(ToolError, match=re.escape("x[1]: expected an integer")):
        arguments_from_texts([ParameterText("x", '["a", "b"]')], tool)


class Point(BaseModel):
    """A place."""

    lat: float
    name: str | None = None


class Typed(Env):
    """One tool of many types."""

    @tool
    def take(
        self,
        zip: str,
        count: int,
        price: float = 1.0,
        exact: Decimal = Decimal(0),
        note: str | None = None,
        place: Point | None = None,
        kind: Literal["a", "b"] = "a",
        path: Path = Path(),
        days: tuple[int, int] | None = None,
        tags: set[str] | None = None,
    ) -> str:
        """Take it."""
        raise NotImplementedError


def test_what_is_typed_is_what_a_python_tool_takes() -> None:
    """Strict pydantic accepts what the schema's types made of the texts, and gets no less than was written."""
    taken = toolbox_of(Typed).tools["take"]
    written = {
        "zip": "01912",
        "count": "3.0",
        "price": "2",
        "exact": "1.10",
        "note": "null",
        "place": '{"lat": 1, "name": "1.10"}',
        "kind": "b",
        "path": "12",
        "days": "[1.0, 2]",
        "tags": '["1", "2"]',
    }
    arguments = arguments_from_texts([ParameterText(name, text) for name, text in written.items()], taken.spec)
    converted = taken.convert(arguments)
    assert converted["zip"] == "01912"
    assert converted["count"] == 3
    assert str(converted["exact"]) == "1.10"
    assert converted["note"] is None
    assert converted["place"] == Point(lat=1.0, name="1.10")
    assert converted["path"] == Path("12")
    assert converted["days"] == (1, 2)
    assert converted["tags"] == {"1", "2"}


TOOL = toolbox_of(Typed).tools["take"].spec
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["zip", "count", "price", "note", "place", "days", "other"]), st.text()))
def test_no_text_of_a_parameter_is_our_error(texts: dict[str, str]) -> None:
    """Whatever is written, it is arguments or a tool's error; and a string is what was written."""
    with suppress(ToolError):
        made = arguments_from_texts([ParameterText(name, text) for name, text in texts.items()], TOOL)
        assert made["zip"] == texts["zip"]


@given(st.text() | VALUES.map(json.dumps) | VALUES.map(lambda value: json.dumps({"zip": value, "count": value})))
def test_no_text_of_a_call_is_our_error(raw: str) -> None:
    """Whatever is written, it is arguments or a tool's error."""
    with suppress(ToolError, NestedTooDeeplyError):
        assert isinstance(arguments_from_json(raw, TOOL), dict)


@given(VALUES)
def test_json_written_for_any_type_comes_back(value: Any) -> None:
    """What fits anything is taken as the JSON it is; a string that is no JSON is that string."""
    if isinstance(value, str):
        return
    assert same(typed({}, json.dumps(value)), value)


PLAIN = {"a": {"type": "integer"}, "b": {"type": "number"}, "c": {"type": "string"}, "d": {"type": "boolean"}}
JSON_VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=3))


@given(st.dictionaries(st.sampled_from([*PLAIN, "e"]), JSON_VALUES), st.lists(st.sampled_from([*PLAIN]), unique=True))
def test_a_schema_of_types_alone_is_judged_as_any_other(arguments: dict[str, Any], required: list[str]) -> None:
    """What is seen at a glance is what the whole check says: with a comment in it, a schema gets no glance."""
    schema = {"type": "object", "properties": PLAIN, "required": required, "additionalProperties": False}
    outcomes: list[object] = []
    for parameters in (schema, {**schema, "$comment": "checked at length"}):
        tool = ToolSpec(name="t", description="", parameters=parameters)
        try:
            outcomes.append(repr(arguments_from_json(json.dumps(arguments), tool)))
        except ToolError as exc:
            outcomes.append(str(exc))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("9007199254740993.0", 9007199254740993),
        ("9.007199254740993e15", 9007199254740993),
        ("1e23", 10**23),
        ("-1E+23", -(10**23)),
        ("123456789012345678901234567890.00", 123456789012345678901234567890),
        ("0e999999999", 0),
        ("-0.00e-99999999999999999999", 0),
    ],
)
def test_a_whole_number_is_exact_however_it_is_written(text: str, value: int) -> None:
    """It is read from its digits: the nearest float is another number."""
    assert typed(INTEGER, text) == value
    assert arguments_from_json(f'{{"x": {text}}}', spec(x=INTEGER)) == {"x": value}
    assert arguments_from_json(f'{{"x": [{text}]}}', spec(x={"type": "array", "items": INTEGER})) == {"x": [value]}


@pytest.mark.parametrize(
    "text", ["1.0000000000000000000000001", "1e299", "-1e-99999999999999999999", "9007199254740992.5"]
)
def test_what_is_no_whole_number_in_full_is_refused(text: str) -> None:
    """Only as a float would it be one: it is not rounded to it."""
    with pytest.raises(ToolError, match="x: expected an integer, got"):
        typed(INTEGER, text)
    with pytest.raises(ToolError, match="x: expected an integer, got"):
        arguments_from_json(f'{{"x": {text}}}', spec(x=INTEGER))


MANY = 5000
ROOM_KINDS = {"anyOf": [STAY, {"type": "object", "required": ["suite"]}, INTEGER]}


def many(kind: Mapping[str, Any], **said: Any) -> ToolSpec:
    """A tool of very many parameters."""
    schema = {"type": "object", "properties": {f"parameter_{at}": kind for at in range(MANY)}, **said}
    return ToolSpec(name="book", description="", parameters={**schema, "additionalProperties": False})


@pytest.mark.parametrize(
    ("tool", "raw", "says"),
    [
        (spec(x={"enum": [f"value-{at}" for at in range(MANY)]}), '{"x": "a"}', "'value-9' or 4,990 others, got \"a\""),
        (spec(x={"enum": ["v" * MANY]}), '{"x": "a"}', "expected 'vvv"),
        (spec(x={"const": ["v"] * MANY}), '{"x": "a"}', '..., got "a"'),
        (spec(x={**TEXT, "pattern": "b" * MANY}), '{"x": "a"}', "a string that matches bbb"),
        (many(TEXT, required=[f"parameter_{at}" for at in range(MANY)]), "{}", "parameter_0: missing"),
        (many(TEXT, required=[f"parameter_{at}" for at in range(MANY)]), "{}", "and 4,990 more"),
        (many(TEXT), '{"other": 1}', "known: parameter_0, parameter_1,"),
        (many(INTEGER), json.dumps({f"parameter_{at}": "a" for at in range(MANY)}), "and 190 more"),
        (spec(x=TEXT), json.dumps({f"y{at}": 1 for at in range(MANY)}), "and 4,990 more"),
        (spec(x=TEXT), json.dumps({"y" * MANY: 1}), "yyy...: there is no such parameter, known: x"),
        (
            spec(x={"type": "array", "items": INTEGER}),
            json.dumps({"x": ["a"] * MANY}),
            'x[2]: expected an integer, got "a"',
        ),
        (spec(x={"type": "array", "items": ROOM_KINDS}), json.dumps({"x": [{}] * MANY}), "; and more"),
        (spec(x={"anyOf": [{"const": at} for at in range(1000)]}), '{"x": "a"}', "expected 0 or 1 or 2 or"),
        (spec(x={"type": "object", "required": [str(at) for at in range(MANY)]}), '{"x": {}}', "and 4,970 more"),
        (
            spec(x=STAY),
            json.dumps({"x": {"beds": 1, "k" * MANY: 1}}),
            "kkk...: expected no such key, known: beds, view",
        ),
    ],
)
def test_what_the_model_is_told_is_short(tool: ToolSpec, raw: str, says: str) -> None:
    """The first of what does not fit, and how much more there is: a message of a megabyte helps nobody."""
    with pytest.raises(ToolError, match=re.escape(says)) as failure:
        arguments_from_json(raw, tool)
    assert len(str(failure.value)) < 6000
    assert len(str(failure.value).splitlines()) <= 12


def test_parameters_without_end_are_not_read_one_by_one() -> None:
    """A model that writes the same tags on and on is told so."""
    written = [ParameterText(f"y{at}", "1") for at in range(MANY)]
    with pytest.raises(ToolError, match="it has 5,000 parameters, at most 500 are read"):
        arguments_from_texts(written, spec(x=TEXT))


def test_a_python_tools_own_check_is_as_short() -> None:
    """Players' calls go there directly."""
    taken = toolbox_of(Typed).tools["take"]
    for arguments in ({f"y{at}": 1 for at in range(MANY)}, {"zip": "1", "count": 1, "tags": [1] * MANY}):
        with pytest.raises(MisfitArgumentsError) as failure:
            taken.convert(arguments)
        assert len(str(failure.value)) < 6000
        assert len(failure.value.lines) <= 12


TREE = {"type": "object", "properties": {"a": {"$ref": "#/$defs/Tree"}}}
TREES = {"$defs": {"Tree": {"anyOf": [{**TREE, "required": ["b"]}, {**TREE, "required": ["c"]}]}}}
HOSTILE = "a" * 5000 + "!"


@pytest.mark.parametrize(
    ("schema", "value", "fits"),
    [
        ({**TEXT, "pattern": "^(a+)+$"}, HOSTILE, False),
        ({**TEXT, "pattern": "^(?=(a+)+$)"}, HOSTILE, True),
        (
            {"type": "object", "patternProperties": {"^(a+)+$": INTEGER}, "additionalProperties": False},
            {HOSTILE: 1},
            False,
        ),
        ({"type": "object", "propertyNames": {"pattern": "^(a+)+$"}}, {HOSTILE: 1}, False),
        ({"type": "object", "patternProperties": {"^(a+)+$": {}}, "unevaluatedProperties": False}, {HOSTILE: 1}, True),
        ({"type": "array", "uniqueItems": True}, [{"a": at} for at in range(100_000)], True),
        ({"type": "array", "uniqueItems": True}, [at * (2**61 - 1) for at in range(100_000)], True),
        (ROOM_KINDS | {"type": "array", "items": ROOM_KINDS}, [{}] * 1_000_000, False),
        ({"$ref": "#/$defs/Tree"}, json.loads('{"a":' * 45 + "1" + "}" * 45), True),
        ({"not": {"$ref": "#/$defs/Tree"}}, json.loads('{"a":' * 45 + "1" + "}" * 45), True),
        ({"type": "array", "contains": {"type": "array", "contains": {"const": 1}}}, [[0] * 3000] * 300, True),
    ],
)
def test_checking_comes_to_an_end_whatever_is_checked(schema: Mapping[str, Any], value: Any, fits: bool) -> None:
    """Each of these would stand the event loop still for minutes to years; what takes too long, the tool checks itself."""
    parameters = {"type": "object", "properties": {"x": schema}, **TREES}
    tool = ToolSpec(name="book", description="", parameters=parameters)
    if fits:
        assert arguments_from_json(json.dumps({"x": value}), tool) == {"x": value}
    else:
        with pytest.raises(ToolError, match="book was not called"):
            arguments_from_json(json.dumps({"x": value}), tool)


def test_a_large_value_leaves_something_for_the_others() -> None:
    """What is not checked to the end is taken as it is, and the texts after it are typed all the same."""
    rows = json.dumps([{"beds": 1}] * 20_000)
    tool = spec(rows={"type": "array", "items": ROOM_KINDS}, beds=INTEGER, zip={**TEXT, "minLength": 1})
    written = [ParameterText("rows", rows), ParameterText("beds", "2.0"), ParameterText("zip", "01912")]
    made = arguments_from_texts(written, tool)
    assert (len(made.pop("rows")), made) == (20_000, {"beds": 2, "zip": "01912"})
