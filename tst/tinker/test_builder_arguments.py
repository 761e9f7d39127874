"""The calls that models write in each renderer's dialect, read from the sampled tokens and typed by the tools' schemas."""
# ruff: noqa: RUF001 - the fullwidth bars are DeepSeek's own

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tinker_cookbook", reason="the trainer tier: make tinker-test")

sys.path.insert(0, str(Path(__file__).parent))

from small_tokenizers import byte_tokenizer
from tinker_cookbook.renderers import ToolCall, get_renderer

from agent_env.envs import ToolSpec
from agent_env.training._calls import CallReader, Legibility, WrittenCall
from agent_env.training._dialects import dialect_of

TEXT = {"type": "string"}
INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}
FLAG = {"type": "boolean"}
NULL = {"type": "null"}
LIST = {"type": "array", "items": INTEGER}
WORDS = {"type": "array", "items": TEXT}
STAY = {
    "type": "object",
    "properties": {"beds": {**INTEGER, "minimum": 1}, "zip": TEXT, "rate": NUMBER},
    "required": ["beds"],
    "additionalProperties": False,
}
DEFINITIONS = {"Stay": STAY, "Zip": {**TEXT, "pattern": "^[0-9]{5}$"}, "Level": {"enum": ["low", "high"]}}


def any_of(*schemas: Mapping[str, Any]) -> dict[str, Any]:
    """A union."""
    return {"anyOf": list(schemas)}


def ref(name: str) -> dict[str, str]:
    """What a definition says."""
    return {"$ref": f"#/$defs/{name}"}


@dataclass(frozen=True)
class Misfit:
    """What the answer of a call that does not fit says."""

    says: str


Row = tuple[Mapping[str, Any], str, Any]

TEXT_ROWS: Sequence[Row] = [
    # A string gets the literal text.
    *((TEXT, text, text) for text in ("01912", "19122", "1.10", "1e5", "-0", "1_000", "true", "True", "null", "None")),
    *((TEXT, text, text) for text in ("[1,2]", "[1, 2", '{"a": 1}', '"quoted"', "NaN", "Infinity", "", " ", " x ")),
    *((TEXT, text, text) for text in ("a\nb", "\n\na\n\n", "\ta", "<b>x</b>", "a < b && c > d", "</x>", "<parameter>")),
    *((TEXT, text, text) for text in ("é 🦊", "\\n", "line \\", "{{ x }}", "&amp;", "C:\\new", "'single'", "%s")),
    ({**TEXT, "enum": ["1", "2"]}, "1", "1"),
    ({**TEXT, "format": "date"}, "2024-01-02", "2024-01-02"),
    ({**TEXT, "default": "x"}, "12", "12"),
    ({**TEXT, "minLength": 3}, "012", "012"),
    (ref("Zip"), "01912", "01912"),
    (ref("Level"), "high", "high"),
    # Numbers, flags, null.
    *((INTEGER, text, value) for text, value in (("5", 5), ("-5", -5), (" 5 ", 5), ("5.0", 5), ("1e5", 100000))),
    *((NUMBER, text, value) for text, value in (("5", 5), ("1.10", 1.1), ("5.0", 5.0), ("1e5", 1e5), ("-0.5", -0.5))),
    *((FLAG, text, value) for text, value in (("true", True), ("false", False), ("True", True), ("False", False))),
    (NULL, "null", None),
    (NULL, "None", None),
    ({**INTEGER, "default": 3}, "4", 4),
    ({"enum": [1, "1", None]}, "1", 1),
    ({"enum": ["1", None]}, "1", "1"),
    ({"enum": ["1", None]}, "null", None),
    ({"const": 5}, "5", 5),
    ({"const": "5"}, "5", "5"),
    # Unions.
    (any_of(TEXT, NULL), "null", None),
    (any_of(TEXT, NULL), "12", "12"),
    (any_of(TEXT, NULL), "nothing", "nothing"),
    ({"type": ["string", "null"]}, "null", None),
    ({"type": ["integer", "null"]}, "7", 7),
    (any_of(INTEGER, NULL), "null", None),
    (any_of(INTEGER, NULL), "7", 7),
    (any_of(LIST, NULL), "[1]", [1]),
    (any_of(ref("Stay"), NULL), '{"beds": 2}', {"beds": 2}),
    ({"oneOf": [INTEGER, FLAG]}, "true", True),
    ({"allOf": [INTEGER, {"minimum": 1}]}, "2", 2),
    ({"allOf": [ref("Zip")]}, "01912", "01912"),
    # Lists and objects.
    (LIST, "[1,2]", [1, 2]),
    (LIST, "[ 1, 2.0 ]", [1, 2]),
    (LIST, "[]", []),
    (WORDS, '["01", "1.10", "true"]', ["01", "1.10", "true"]),
    ({"type": "object"}, '{"a": {"b": [1, null, "x"]}}', {"a": {"b": [1, None, "x"]}}),
    (ref("Stay"), '{"beds": 2.0, "zip": "01912", "rate": 1}', {"beds": 2, "zip": "01912", "rate": 1}),
    ({"type": "array", "items": ref("Stay")}, '[{"beds": 1}]', [{"beds": 1}]),
    # Misfits.
    (INTEGER, "two", Misfit('x: expected an integer, got "two"')),
    (INTEGER, "1.5", Misfit("x: expected an integer, got 1.5")),
    (INTEGER, "05", Misfit("x: expected an integer, got")),
    (INTEGER, "", Misfit('x: expected an integer, got ""')),
    (INTEGER, "true", Misfit("x: expected an integer, got")),
    (INTEGER, "[1]", Misfit("x: expected an integer, got [1]")),
    (NUMBER, "NaN", Misfit("x: expected a number, got")),
    (NUMBER, "1,5", Misfit("x: expected a number, got")),
    (NUMBER, "9" * 5000, Misfit("x: expected a number, got")),
    (FLAG, "yes", Misfit("x: expected true or false, got")),
    (FLAG, "1", Misfit("x: expected true or false, got 1")),
    (NULL, "nil", Misfit("x: expected null, got")),
    ({"enum": ["a", 1]}, "b", Misfit("x: expected one of 'a' or 1, got")),
    (ref("Level"), "High", Misfit("x: expected one of 'low' or 'high', got")),
    ({**INTEGER, "minimum": 1}, "0", Misfit("x: expected greater than or equal to 1, got 0")),
    (ref("Zip"), "1912", Misfit("x: expected a string that matches ^[0-9]{5}$, got")),
    (any_of(INTEGER, NULL), "x", Misfit("x: expected an integer or null, got")),
    (LIST, "1", Misfit("x: expected a list, got 1")),
    (LIST, '[1, "a"]', Misfit('x[1]: expected an integer, got "a"')),
    (LIST, "[1, 2", Misfit("it is cut off")),
    (LIST, "[" * 2000, Misfit("nested too deeply")),
    (ref("Stay"), "{}", Misfit("x: missing beds")),
    (ref("Stay"), '{"beds": 1, "beds": 2}', Misfit('the key "beds" is written twice')),
    (ref("Stay"), '{"beds": "1"}', Misfit('x.beds: expected an integer, got "1"')),
    (ref("Stay"), '{"beds": 1, "bed": 1}', Misfit("x.bed: expected no such key")),
    (ref("Stay"), '"{\\"beds\\": 1}"', Misfit("x: expected an object, got")),
]
"""The text between a parameter's marks."""

UNMARKED_ROWS: Sequence[Row] = [
    (any_of(TEXT, NULL), "None", None),
    (any_of(TEXT, INTEGER), "12", 12),
    (any_of(TEXT, INTEGER), "012", "012"),
    (any_of(TEXT, INTEGER), "12.0", "12.0"),
    (any_of(TEXT, NUMBER), "1.10", "1.10"),
    (any_of(TEXT, NUMBER), "1e5", "1e5"),
    (any_of(TEXT, NUMBER), "1.5", 1.5),
    (any_of(TEXT, FLAG), "true", True),
    (any_of(TEXT, WORDS), '["a"]', ["a"]),
    (any_of(TEXT, WORDS), '["a"', '["a"'),
    ({}, "1.10", "1.10"),
    ({}, "12", 12),
    ({}, "words", "words"),
]
"""Those where both would fit, in dialects that do not say whether a value is a string."""

JSON_ROWS: Sequence[Row] = [
    *((TEXT, json.dumps(text), text) for text in ("01912", "1.10", "1e5", "true", "null", "[1,2]", "", " x ", "a\nb")),
    *(
        (TEXT, json.dumps(text), text)
        for text in ("<b>x</b>", 'say "hi"', "\\n", "é 🦊", '{"a": 1}', "</x>", "{", "]}")
    ),
    (TEXT, '"é 🦊"', "é 🦊"),
    (TEXT, '"\\u0030\\u0031"', "01"),
    *((INTEGER, text, value) for text, value in (("5", 5), ("-5", -5), ("5.0", 5), ("1e5", 100000))),
    *((NUMBER, text, value) for text, value in (("5", 5), ("1.10", 1.1), ("1e5", 1e5), ("5.0", 5.0))),
    *((FLAG, text, value) for text, value in (("true", True), ("false", False))),
    (NULL, "null", None),
    (any_of(TEXT, NULL), "null", None),
    (any_of(TEXT, NULL), '"null"', "null"),
    (any_of(TEXT, INTEGER), "12", 12),
    (any_of(TEXT, INTEGER), '"12"', "12"),
    ({"type": ["integer", "null"]}, "null", None),
    ({"oneOf": [INTEGER, FLAG]}, "false", False),
    ({"allOf": [INTEGER, {"minimum": 1}]}, "2", 2),
    ({"enum": ["a", 1, None]}, "1", 1),
    ({"const": "5"}, '"5"', "5"),
    ({**INTEGER, "default": 3}, "4", 4),
    ({}, "1.5", 1.5),
    ({}, '{"a": [1]}', {"a": [1]}),
    (LIST, "[1,2.0]", [1, 2]),
    (WORDS, '["01","}"]', ["01", "}"]),
    (ref("Stay"), '{"beds":2.0,"zip":"01912"}', {"beds": 2, "zip": "01912"}),
    (ref("Level"), '"low"', "low"),
    (TEXT, "19122", Misfit("x: expected a string, got 19122")),
    (TEXT, "null", Misfit("x: expected a string, got null")),
    (TEXT, "01912", Misfit("no valid JSON")),
    (TEXT, "bare", Misfit("no valid JSON")),
    (TEXT, "'single'", Misfit("no valid JSON")),
    (TEXT, '"a\nb"', Misfit("no valid JSON")),
    (TEXT, '"\\ud800"', Misfit("half of a surrogate pair")),
    (TEXT, '"a", "x": "b"', Misfit('the key "x" is written twice')),
    (INTEGER, '"5"', Misfit('x: expected an integer, got "5"')),
    (INTEGER, "1.5", Misfit("x: expected an integer, got 1.5")),
    (INTEGER, "true", Misfit("x: expected an integer, got true")),
    (INTEGER, "9" * 5000, Misfit("a number has 5,000 digits")),
    (NUMBER, "NaN", Misfit("NaN is not JSON")),
    (NUMBER, "-Infinity", Misfit("-Infinity is not JSON")),
    (NUMBER, "1e999", Misfit("1e999 is too large for a number")),
    (FLAG, "True", Misfit("no valid JSON")),
    (FLAG, '"true"', Misfit('x: expected true or false, got "true"')),
    (ref("Level"), '"High"', Misfit("x: expected one of 'low' or 'high', got")),
    (LIST, '"[1]"', Misfit("x: expected a list, got")),
    (LIST, '[1, "a"]', Misfit('x[1]: expected an integer, got "a"')),
    (LIST, "[" * 3000 + "]" * 3000, Misfit("nested too deeply")),
    (LIST, "[" * 70 + "]" * 70, Misfit("nested too deeply")),
    (ref("Stay"), "{}", Misfit("x: missing beds")),
    (ref("Stay"), '{"beds": 1, "beds": 1}', Misfit('the key "beds" is written twice')),
    (any_of(INTEGER, NULL), '"x"', Misfit("x: expected an integer or null, got")),
]
"""The JSON of a value."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """How one family of models writes calls."""

    renderer: str
    call: Callable[[str, Sequence[tuple[str, str]]], str]
    """Writes a call: its tool, and each parameter with the text that the model puts there."""
    message: str = "{calls}"
    """What is around the calls."""
    stop: str = "<|im_end|>"
    is_json: bool = False
    between: str = ""
    thinks: str
    """What is thought before the calls, as far as it is sampled."""


def tagged(name: str, parameters: Sequence[tuple[str, str]]) -> str:
    """Qwen3.5's and Nemotron's."""
    lines = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in parameters)
    return f"<tool_call>\n<function={name}>\n{lines}</function>\n</tool_call>"


def glm(name: str, parameters: Sequence[tuple[str, str]]) -> str:
    """GLM's."""
    pairs = "".join(f"<arg_key>{key}</arg_key><arg_value>{text}</arg_value>" for key, text in parameters)
    return f"<tool_call>{name}{pairs}</tool_call>"


def dsml(name: str, parameters: Sequence[tuple[str, str]]) -> str:
    """DeepSeek V4.1's, which marks strings."""
    lines = "".join(
        f'<｜DSML｜ parameter name="{key}" string="{"false" if is_json(text) else "true"}">{text}</｜DSML｜ parameter>\n'
        for key, text in parameters
    )
    return f'<｜DSML｜ invoke name="{name}">\n{lines}</｜DSML｜ invoke>\n'


def is_json(text: str) -> bool:
    """Whether a text is JSON, and no string."""
    try:
        return not isinstance(json.loads(text), str)
    except (ValueError, RecursionError):
        return False


def members(parameters: Sequence[tuple[str, str]]) -> str:
    """A JSON object of texts that are JSON, or should be."""
    return "{" + ", ".join(f"{json.dumps(key)}: {text}" for key, text in parameters) + "}"


def hermes(name: str, parameters: Sequence[tuple[str, str]]) -> str:
    """Qwen3's."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {members(parameters)}}}\n</tool_call>'


def kimi(name: str, parameters: Sequence[tuple[str, str]]) -> str:
    """Kimi K2's."""
    arguments = members(parameters)
    return f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"


def deepseek(name: str, parameters: Sequence[tuple[str, str]]) -> str:
    """DeepSeek V3's."""
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{members(parameters)}<｜tool▁call▁end｜>"


def harmony(name: str, parameters: Sequence[tuple[str, str]]) -> str:
    """gpt-oss's."""
    said = f" to=functions.{name}<|channel|>commentary <|constrain|>json<|message|>"
    return said + members(parameters)


QWEN3_5 = Family(renderer="qwen3_5", call=tagged, between="\n", thinks="I think.\n</think>\n\n")
NEMOTRON = Family(renderer="nemotron3", call=tagged, between="\n", message="{calls}\n", thinks="I think.\n</think>\n")
GLM = Family(renderer="glm5_3_low_reasoning", call=glm, stop="<|observation|>", thinks="I think.</think>")
DSML = Family(
    renderer="deepseekv4_1",
    call=dsml,
    message="\n\n<｜DSML｜ calls>\n{calls}</｜DSML｜ calls>",
    stop="<｜end▁of▁sentence｜>",
    thinks="I think.</think>",
)
QWEN3 = Family(renderer="qwen3", call=hermes, between="\n", is_json=True, thinks="<think>\nI think.\n</think>\n\n\n")
KIMI = Family(
    renderer="kimi_k2",
    call=kimi,
    message="<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>",
    is_json=True,
    thinks="<think>I think.</think>",
)
DEEPSEEK = Family(
    renderer="deepseekv3",
    call=deepseek,
    message="<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>",
    stop="<｜end▁of▁sentence｜>",
    is_json=True,
    thinks="<think>I think.</think>",
)
GPT_OSS = Family(
    renderer="gpt_oss_low_reasoning",
    call=harmony,
    stop="<|call|>",
    is_json=True,
    between="<|end|><|start|>assistant",
    thinks="<|channel|>analysis<|message|>I think.<|end|><|start|>assistant",
)
TEXT_FAMILIES = (QWEN3_5, NEMOTRON, GLM, DSML)
JSON_FAMILIES = (QWEN3, KIMI, DEEPSEEK, GPT_OSS)
FAMILIES = (*TEXT_FAMILIES, *JSON_FAMILIES)
by_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.renderer)


@cache
def reader_of(renderer_name: str) -> CallReader:
    """The reader of a renderer's calls."""
    return CallReader(get_renderer(renderer_name, byte_tokenizer()))


def tools(**properties: Any) -> dict[str, ToolSpec]:
    """One tool, `book`."""
    schema = {"type": "object", "properties": properties, "additionalProperties": False, "$defs": DEFINITIONS}
    return {"book": ToolSpec(name="book", description="", parameters=schema)}


def sampled(family: Family, *calls: str, thinks: bool = True) -> list[int]:
    """The tokens of a message with calls."""
    text = family.message.format(calls=family.between.join(calls)) if calls else ""
    return byte_tokenizer().encode((family.thinks if thinks else "") + text + family.stop, add_special_tokens=False)


def read(family: Family, tokens: list[int], known: Mapping[str, ToolSpec]) -> tuple[dict[str, Any], list[WrittenCall]]:
    """The message and its calls, read as a rollout reads them."""
    reader = reader_of(family.renderer)
    message, _ = reader.parser.parse_response(tokens)
    return reader.read(message, byte_tokenizer().decode(tokens), known)


def check(family: Family, row: Row) -> None:
    """Play one row of a table."""
    schema, raw, expected = row
    tokens = sampled(family, family.call("book", [("x", raw)]))
    message, [call] = read(family, tokens, tools(x=schema))
    assert call.name == "book"
    if isinstance(expected, Misfit):
        assert call.arguments is None
        assert expected.says in call.error
        assert len(call.error) < 300
    else:
        assert call.error == ""
        assert json.dumps(call.arguments) == json.dumps({"x": expected})
        [kept] = message["tool_calls"]
        assert json.loads(kept.function.arguments) == {"x": expected}
    assert len(message.get("tool_calls", [])) + len(message.get("unparsed_tool_calls", [])) == 1


def shown(row: Any) -> str:
    """A row's name."""
    return f"{json.dumps(row[0])[:40]} {row[1][:20]!r}" if isinstance(row, tuple) else row.renderer


@pytest.mark.parametrize("row", TEXT_ROWS, ids=shown)
@pytest.mark.parametrize("family", TEXT_FAMILIES, ids=shown)
def test_the_text_of_a_parameter_is_typed_by_the_schema(family: Family, row: Row) -> None:
    """In dialects of tags the text between them is what counts, as it was sampled."""
    check(family, row)


@pytest.mark.parametrize("row", UNMARKED_ROWS, ids=shown)
@pytest.mark.parametrize("family", [QWEN3_5, NEMOTRON, GLM], ids=shown)
def test_where_both_would_fit_a_number_loses_nothing(family: Family, row: Row) -> None:
    """A text becomes a number only when it is written as that number would be."""
    check(family, row)


@pytest.mark.parametrize("row", JSON_ROWS, ids=shown)
@pytest.mark.parametrize("family", JSON_FAMILIES, ids=shown)
def test_a_value_in_json_is_checked_by_the_schema(family: Family, row: Row) -> None:
    """JSON is read strictly, from the text that was sampled."""
    check(family, row)


def test_the_table_is_as_large_as_promised() -> None:
    """At least 120 rows, on at least four renderers."""
    assert len(TEXT_ROWS) + len(UNMARKED_ROWS) + len(JSON_ROWS) >= 120


RENDERERS = [
    ("qwen3_disable_thinking", "tool_call JSON"),
    ("qwen3_instruct", "tool_call JSON"),
    ("qwen3_5_disable_thinking", "function and parameter tags"),
    ("qwen3_8_disable_thinking", "function and parameter tags"),
    ("nemotron3_disable_thinking", "function and parameter tags"),
    ("glm5_3_max_reasoning", "arg_key and arg_value tags"),
    ("kimi_k25", "Kimi K2"),
    ("kimi_k26", "Kimi K2"),
    ("deepseekv3_thinking", "DeepSeek V3"),
    ("deepseekv4_1_disable_thinking", "DSML"),
    ("gpt_oss_no_sysprompt", "Harmony"),
    ("role_colon", None),
]


@pytest.mark.parametrize(("renderer", "dialect"), RENDERERS)
def test_a_renderers_dialect_is_found_by_what_it_writes(renderer: str, dialect: str | None) -> None:
    """Not by its name: a renderer of one's own that writes as another family does is read as that family is."""
    found = dialect_of(get_renderer(renderer, byte_tokenizer()))
    assert (found.name if found else None) == dialect


@by_family
def test_calls_come_in_the_order_they_were_written(family: Family) -> None:
    """Those that fit, those that do not and those that no parser can read, each where the model put it."""
    value = (lambda text: json.dumps(text)) if family.is_json else str
    fits, misfit = family.call("book", [("x", value("01912"))]), family.call("book", [("y", value("a"))])
    broken = family.call("book", [("x", '"a')] if family.is_json else [("y", "[")])
    message, calls = read(family, sampled(family, fits, broken, misfit, fits), tools(x=TEXT, y=INTEGER))
    assert [call.arguments for call in calls] == [{"x": "01912"}, None, None, {"x": "01912"}]
    assert all(call.name == "book" and call.error for call in calls[1:3])
    unreadable = Legibility.UNREADABLE if family.is_json else Legibility.MISFIT
    assert [call.legibility for call in calls] == [Legibility.FITS, unreadable, Legibility.MISFIT, Legibility.FITS]
    assert "expected an integer" in calls[2].error
    assert len(message["tool_calls"]) + len(message.get("unparsed_tool_calls", [])) == 4
    assert not any("tool_call" in str(part) for part in message["content"])


@by_family
def test_what_is_rendered_again_is_what_was_sampled(family: Family) -> None:
    """So that the chat template's own history, and an example made from a run, say what the model said."""
    value = (lambda text: json.dumps(text, ensure_ascii=family is QWEN3)) if family.is_json else str
    texts = ["01912", "1.10", "1e5", "null", "[1,2]", "<b> </b>", " a\nb "]
    parameters = [(f"x{at}", value(text)) for at, text in enumerate(texts)] + [
        ("n", "7"),
        ("f", "1.5"),
        ("l", "[1, 2]"),
    ]
    known = tools(**{f"x{at}": TEXT for at in range(len(texts))}, n=INTEGER, f=NUMBER, l=LIST)
    written = [family.call("book", parameters), *([] if family is GPT_OSS else [family.call("book", [("n", "8")])])]
    written[0] = re.sub(r'("x\d" string=)"false"', r'\1"true"', written[0])
    tokens = sampled(family, *written, thinks=family is not DEEPSEEK)
    message, calls = read(family, tokens, known)
    assert not any(call.error for call in calls)
    assert rendered(family, message) == byte_tokenizer().decode(tokens)


@pytest.mark.parametrize("family", [QWEN3_5, NEMOTRON, GLM], ids=shown)
def test_what_does_not_fit_is_rendered_again_as_it_was_sampled(family: Family) -> None:
    """The model sees its own mistake, not what was made of it."""
    tokens = sampled(family, family.call("book", [("n", "05"), ("x", "1.10"), ("z", "[1,2")]))
    message, [call] = read(family, tokens, tools(x=TEXT, n=INTEGER))
    assert call.error
    assert rendered(family, message) == byte_tokenizer().decode(tokens)


def rendered(family: Family, message: Any) -> str:
    """What a renderer writes for a message's thinking and calls, after the prompt for it.

    The blanks around calls, which parsers take for text, are the framing's to take off.
    """
    renderer = reader_of(family.renderer).parser
    start: list[Any] = [{"role": "user", "content": "Go."}]
    prompt = renderer.build_generation_prompt(start).to_ints()
    content = [part for part in message["content"] if isinstance(part, dict) and part["type"] == "thinking"]
    example, _ = renderer.build_supervised_example([*start, {**message, "content": content}])
    tokens = example.to_ints()
    assert tokens[: len(prompt)] == prompt
    said = str(byte_tokenizer().decode(tokens[len(prompt) :]))
    return said.removesuffix(family.stop) + family.stop  # DeepSeek V3's renderer ends no message without text


@pytest.mark.parametrize("family", [QWEN3, QWEN3_5, NEMOTRON, GLM], ids=shown)
def test_a_call_inside_thinking_is_no_call(family: Family) -> None:
    """What counts as a call is the parser's to say: here it takes a thought call for a thought."""
    thought, said = (family.call("book", [("x", f'"{x}"' if family.is_json else x)]) for x in ("1", "1.10"))
    thinks = family.thinks.replace("I think.", f"Shall I {thought}?")
    tokens = byte_tokenizer().encode(thinks + said + family.stop, add_special_tokens=False)
    message, calls = read(family, tokens, tools(x=TEXT))
    assert [call.arguments for call in calls] == [{"x": "1.10"}]
    assert len(message["tool_calls"]) == 1


@by_family
def test_a_message_without_calls_is_left_as_it_is(family: Family) -> None:
    """Nothing is read into a reply."""
    reader = reader_of(family.renderer)
    message: Any = {"role": "assistant", "content": "Done <tool_call>."}
    assert reader.read(message, "Done <tool_call>.", {}) == (message, [])


@by_family
def test_a_tool_that_is_not_there_is_called_by_its_name(family: Family) -> None:
    """Who runs the tools answers that; the arguments are read as far as can be without a schema."""
    value = '"a"' if family.is_json else "a"
    _, [call] = read(family, sampled(family, family.call("bok", [("x", value)])), tools(x=TEXT))
    assert (call.name, call.arguments) == ("bok", {"x": "a"})


@by_family
def test_a_call_without_parameters_has_none(family: Family) -> None:
    """An empty object, or no tag at all."""
    _, [call] = read(family, sampled(family, family.call("book", [])), tools(x=TEXT))
    assert call.arguments == {}


@pytest.mark.parametrize("family", TEXT_FAMILIES, ids=shown)
def test_a_parameter_that_is_written_twice_is_an_error(family: Family) -> None:
    """Which of the two was meant is not for a parser to say."""
    _, [call] = read(family, sampled(family, family.call("book", [("x", "a"), ("x", "b")])), tools(x=TEXT))
    assert call.error == "book was not called:\nx: written twice"


@pytest.mark.parametrize(
    ("family", "text"),
    [
        (QWEN3_5, "a</parameter>b"),
        (QWEN3_5, "why <tool_call> is not </function> here"),
        (QWEN3_5, "a\n</parameter>\nb"),
        (NEMOTRON, "<parameter=y>"),
        (GLM, "a</arg_value>b<arg_key>"),
        (GLM, "<tool_call>x"),
        (DSML, "a</｜DSML｜ parameter>b"),
    ],
)
def test_a_dialects_own_marks_may_be_in_a_text(family: Family, text: str) -> None:
    """Where what follows shows that the text goes on, it does, also where the cookbook's parser gives up."""
    message, calls = read(family, sampled(family, family.call("book", [("x", text)])), tools(x=TEXT))
    assert [call.arguments for call in calls] == [{"x": text}]
    assert "unparsed_tool_calls" not in message


@pytest.mark.parametrize("value", ["a</parameter>", "<parameter=y>\nb"])
def test_the_line_ends_of_the_template_are_not_the_texts(value: str) -> None:
    """One at the start and one at the end are the template's; without them the text is all there is."""
    bare = f"<tool_call><function=book><parameter=x>{value}</parameter></function></tool_call>"
    _, [call] = read(QWEN3_5, sampled(QWEN3_5, bare), tools(x=TEXT))
    assert call.arguments == {"x": value}


CUT = {
    "qwen3": '<tool_call>\n{"name": "book", "argum',
    "qwen3_5": "<tool_call>\n<function=book>\n<parameter=x>\na",
    "nemotron3": "<tool_call>\n<function=book>\n",
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.book:0<|tool_call_argument_begin|>{",
    "deepseekv3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>book<｜tool▁sep｜>{",
    "deepseekv4_1": '\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="book">\n',
    "gpt_oss_low_reasoning": " to=functions.book<|channel|>commentary",
}


TORN = [
    (
        QWEN3,
        '<tool_call>\n{"name": "book", "arguments": {}\n}\n{"name": "book"}\n</tool_call>',
        'no valid JSON, \'}\\n{"name": "book"}\' is not expected at character 34',
    ),
    (
        QWEN3,
        '<tool_call>\n{"name": "book", "arguments": {},\n\'x\': 1}\n</tool_call>',
        "no valid JSON, a key is missing at character 35",
    ),
    (
        QWEN3_5,
        "<tool_call>\n<function=book>\nand\nmore\n</function>\n</tool_call>",
        "this is no parameter: 'and\\nmore\\n'",
    ),
    (
        QWEN3_5,
        "<tool_call>\n<function=book>\n<parameter=x\ny>\na\n</function>\n</tool_call>",
        "this is no parameter: '<parameter=x\\ny>\\na\\n'",
    ),
]
"""Calls that break off in the middle of lines, and what is said of them."""


@pytest.mark.parametrize(
    ("family", "text", "says"), TORN, ids=lambda part: part[-24:] if isinstance(part, str) else part.renderer
)
def test_what_is_quoted_of_a_call_that_cannot_be_read_stays_in_its_line(family: Family, text: str, says: str) -> None:
    """The model, a log and a page get one line, whatever the model wrote: its line breaks are shown as what they are."""
    tokens = byte_tokenizer().encode(family.thinks + text + family.stop, add_special_tokens=False)
    _, [call] = read(family, tokens, tools(x=TEXT))
    assert call.error == f"this tool call could not be read: {says}"


@pytest.mark.parametrize("family", [family for family in FAMILIES if family.renderer in CUT], ids=shown)
def test_a_call_that_does_not_end_is_an_error_that_names_its_tool(family: Family) -> None:
    """The message ended before the call did: the model is told, and may try again."""
    tokens = byte_tokenizer().encode(family.thinks + CUT[family.renderer] + family.stop, add_special_tokens=False)
    message, [call] = read(family, tokens, tools(x=TEXT))
    assert (call.name, call.arguments) == ("book", None)
    assert "could not be read" in call.error
    assert len(message["unparsed_tool_calls"]) == 1


@pytest.mark.parametrize(
    ("inner", "name", "says"),
    [
        ('{"name": "book", "arguments": "{\\"x\\": \\"a\\"}"}', "book", "encoded twice"),
        ('{"name": "book"}', "book", 'it has no "arguments"'),
        ('{"name": "book", "arguments": null}', "book", "must be a JSON object"),
        ('{"name": "book", "arguments": ["a"]}', "book", "must be a JSON object"),
        ('{"name": "book", "arguments": {"x": "a"}', "book", "no valid JSON, it is cut off"),
        ('{"name": "book", "arguments": {"x": "a"}}}', "book", "no valid JSON"),
        ('{"name": "book", "arguments": {"x": "a"}, "arguments": {}}', "book", 'the key "arguments" is written twice'),
        ('{"arguments": {"x": "a"}}', "unreadable", 'it has no "name"'),
        ('{"name": 5, "arguments": {}}', "unreadable", 'it has no "name"'),
        ('[{"name": "book", "arguments": {}}]', "book", "no JSON object"),
        ("", "unreadable", "no JSON object"),
        ("book(x=1)", "unreadable", "no JSON object"),
    ],
)
def test_a_call_whose_frame_is_broken_says_how(inner: str, name: str, says: str) -> None:
    """Around the arguments there is JSON too, and it can be wrong in as many ways; the message can be rendered again."""
    message, [call] = read(QWEN3, sampled(QWEN3, f"<tool_call>\n{inner}\n</tool_call>"), tools(x=TEXT))
    assert (call.name, call.arguments) == (name, None)
    assert says in call.error
    rendered(QWEN3, message)


@pytest.mark.parametrize("raw", ["", " ", "5", "null", '"{}"', '"{\\"x\\": 1}"', "[]", "{]"])
@pytest.mark.parametrize("family", [KIMI, DEEPSEEK], ids=shown)
def test_arguments_that_are_no_object_are_an_error(family: Family, raw: str) -> None:
    """Where the arguments stand alone, they can be anything: only an object is arguments."""
    written = family.call("book", []).replace("{}", raw)
    _, [call] = read(family, sampled(family, written), tools(x=TEXT))
    assert (call.name, call.arguments) == ("book", None)
    assert "the arguments" in call.error
    assert call.call_id == ("functions.book:0" if family is KIMI else None)


@pytest.mark.parametrize("family", JSON_FAMILIES, ids=shown)
def test_what_is_nested_too_deeply_is_not_rendered_again(family: Family) -> None:
    """What the parser could just read, a renderer that is called from further down might not."""
    raw = "[" * 400 + "]" * 400
    message, [call] = read(family, sampled(family, family.call("book", [("x", raw)])), tools(x=LIST))
    assert call.legibility is Legibility.UNREADABLE
    assert "nested too deeply" in call.error
    assert "tool_calls" not in message
    assert len(message["unparsed_tool_calls"]) == 1


def test_a_name_that_is_no_text_can_be_kept() -> None:
    """JSON lets half of a surrogate pair be written, and no store or tokenizer takes it."""
    written = '<tool_call>\n{"name": "b\\ud800", "id": "\\udfff", "arguments": {}}\n</tool_call>'
    message, [call] = read(QWEN3, sampled(QWEN3, written), {})
    assert (call.name, call.call_id, call.arguments) == ("b?", "?", {})
    rendered(QWEN3, message)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family is not GPT_OSS], ids=shown)
def test_calls_beside_one_that_breaks_the_parser_are_read(family: Family) -> None:
    """JSON a thousand deep, or a number of 5,000 digits, raises in the cookbook's parser: the rollout goes on."""
    value = '"a"' if family.is_json else "a"
    fits = family.call("book", [("x", value)])
    for hostile in ('{"a":' * 3000 + "1" + "}" * 3000, "8" * 5000):
        broken = family.call("book", [("y", hostile)])
        message, calls = read(family, sampled(family, fits, broken, fits), tools(x=TEXT, y=INTEGER))
        assert [call.arguments for call in calls] == [{"x": "a"}, None, {"x": "a"}]
        assert len(calls[1].error) < 300
        assert "I think." in str(message["content"])
        rendered(family, message)


@pytest.mark.parametrize("family", [QWEN3_5, NEMOTRON, GLM], ids=shown)
def test_a_run_of_blanks_is_text_like_another(family: Family) -> None:
    """What the parser was given a short form of is read as it was sampled."""
    text = "\n" * 20_000
    message, [call] = read(family, sampled(family, family.call("book", [("x", f"{text}a{text}")])), tools(x=TEXT))
    assert call.arguments == {"x": f"{text}a{text}"}
    assert len(message["tool_calls"]) == 1


@pytest.mark.parametrize("family", [QWEN3_5, NEMOTRON, KIMI], ids=shown)
def test_a_run_of_blanks_does_not_stall_the_parser(family: Family) -> None:
    """The cookbook's expressions take the cube of its length where the mark after it is missing: here, hours."""
    written = family.call("book", [("x", "\n" * 20_000 + "a")])
    for mark in ("</parameter>", "<|tool_call_end|>"):
        written = written.replace(mark, "")
    message, [call] = read(family, sampled(family, written), tools(x=TEXT))
    assert (call.name, call.arguments) == ("book", None)
    assert len(message["unparsed_tool_calls"]) == 1


LONG = 200_000


def often(mark: str) -> str:
    """A mark again and again."""
    return mark * (LONG // len(mark))


STALLING: Sequence[tuple[Family, str]] = [
    (QWEN3, often("<tool_call>")),
    (QWEN3, "</tool_call>" + often("<tool_call>")),
    (QWEN3, '<tool_call>{"name": "book", "arguments": {"x": ["' + often('\\"') + "}}</tool_call>"),
    (QWEN3_5, f"<tool_call>\n<function=book>\n{often('<parameter=x>')}</function>\n</tool_call>"),
    (QWEN3_5, f"<tool_call>\n<function=book>\n{often('<parameter=')}\n</parameter></function></tool_call>"),
    (QWEN3_5, f"<tool_call>\n<function=book>{often(' ' * 199 + 'a')}</tool_call>"),
    (NEMOTRON, often("<tool_call><function=book>")),
    (GLM, often("<tool_call>book")),
    (GLM, f"<tool_call>book{often('<arg_key>x</arg_key><arg_value>')}</tool_call>"),
    (KIMI, often("<|tool_calls_section_begin|>")),
    (KIMI, often("<|tool_call_section_begin|>")),
    (DEEPSEEK, often("<｜tool▁calls▁begin｜>")),
    (DEEPSEEK, often("\n") + "<｜tool▁calls▁begin｜>"),
    (DSML, often("<｜DSML｜ calls>")),
    (DSML, "<｜DSML｜ calls>" + often('<｜DSML｜ invoke name="a">\n') + "</｜DSML｜ calls>"),
    (
        DSML,
        '<｜DSML｜ calls><｜DSML｜ invoke name="a">\n'
        + often('<｜DSML｜ parameter name="x" string="true">')
        + "</｜DSML｜ invoke></｜DSML｜ calls>",
    ),
]
"""Marks that are opened and not closed."""


def shown_stall(part: Any) -> str:
    """A row's name."""
    return part[:60].strip() if isinstance(part, str) else part.renderer


@pytest.mark.parametrize(("family", "text"), STALLING, ids=shown_stall)
def test_marks_that_nothing_closes_do_not_stall_the_parser(family: Family, text: str) -> None:
    """From each of them the cookbook's expressions go through all that follows: here, for hours. It is an error at once."""
    tokens = byte_tokenizer().encode(text + family.stop, add_special_tokens=False)
    message, calls = read(family, tokens, tools(x=TEXT))
    assert "tool_calls" not in message
    assert [call.arguments for call in calls] == [None]
    assert "this tool call could not be read" in calls[0].error
    assert len(calls[0].error) < 300


@by_family
def test_thoughts_without_end_do_not_stall_the_parser(family: Family) -> None:
    """They are no call: nothing is answered, and the text is kept."""
    text = often("<think>")
    message, calls = read(family, byte_tokenizer().encode(text + family.stop, add_special_tokens=False), {})
    assert calls == []
    assert "unparsed_tool_calls" not in message
    assert "<think>" in json.dumps(message["content"]) or family is GPT_OSS


@pytest.mark.parametrize("family", TEXT_FAMILIES, ids=shown)
def test_marks_in_a_text_are_text(family: Family) -> None:
    """A long text that is full of what opens a call, in a parameter that does end, is read as it was sampled."""
    text = '<div class="a">\n  <think><tool_call>\n' * 2000
    message, [call] = read(family, sampled(family, family.call("book", [("x", text)])), tools(x=TEXT))
    assert call.arguments == {"x": text}
    assert len(message["tool_calls"]) == 1


@pytest.mark.parametrize("family", FAMILIES, ids=shown)
def test_a_mark_in_one_text_spoils_no_other_call(family: Family) -> None:
    """The parser takes it for one more call that does not end: the calls are those that were written, from their own text."""
    texts = ["null", "<tool_call>\n", "x\n" + " " * 300]
    raws = [json.dumps(text) if family.is_json else text for text in texts]
    for order in ([0, 1, 2], [1, 0, 2], [0, 2, 1]):
        calls = [family.call("book", [("x", raws[at])]) for at in order]
        message, read_calls = read(family, sampled(family, *calls), tools(x=TEXT))
        assert [call.arguments for call in read_calls] == [{"x": texts[at]} for at in order]
        assert "unparsed_tool_calls" not in message


@pytest.mark.parametrize("family", [QWEN3, QWEN3_5], ids=shown)
def test_a_mark_beside_a_call_that_is_broken_is_told_from_it(family: Family) -> None:
    """One call that cannot be read, one that has a mark in it, and one that does not end: two are errors."""
    value = json.dumps("<tool_call>") if family.is_json else "<tool_call>"
    broken = "<tool_call>\n<function=book>\n</tool_call>"
    fits = family.call("book", [("x", value)])
    message, calls = read(family, sampled(family, broken, fits, "<tool_call>\n"), tools(x=TEXT))
    assert [call.arguments for call in calls] == [None, {"x": "<tool_call>"}, None]
    assert (len(message["tool_calls"]), len(message["unparsed_tool_calls"])) == (1, 2)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family is not GPT_OSS], ids=shown)
def test_a_stop_written_in_letters_is_no_stop(family: Family) -> None:
    """Its text in an argument, beside a run of blanks that is parsed as a short one."""
    text = " " * 300 + family.stop + " x"
    raw = json.dumps(text, ensure_ascii=False) if family.is_json else text
    tokens = sampled(family, family.call("book", [("x", raw)]))
    [stop] = byte_tokenizer().encode(family.stop, add_special_tokens=False)
    letters = [token for letter in family.stop for token in byte_tokenizer().encode(letter, add_special_tokens=False)]
    at = tokens.index(stop)
    message, [call] = read(family, [*tokens[:at], *letters, *tokens[at + 1 :]], tools(x=TEXT))
    assert call.arguments == {"x": text}
    assert len(message["tool_calls"]) == 1


@pytest.mark.parametrize("family", [QWEN3, QWEN3_5], ids=shown)
def test_calls_that_are_thought_about_are_thoughts(family: Family) -> None:
    """However often a thought names the mark, it is read as a thought. (That it opens a call is the parser's word.)"""
    thought = "Shall I write <tool_call>? " * 2000
    tokens = byte_tokenizer().encode(f"<think>\n{thought}</think>\n\nNo.{family.stop}", add_special_tokens=False)
    message, _ = read(family, tokens, {})
    assert [part["type"] for part in message["content"]] == ["thinking", "text"]


class StandIn:
    """A renderer that writes calls in a way of its own."""

    tokenizer = byte_tokenizer()

    def get_stop_sequences(self) -> list[str]:
        return ["\n"]

    def parse_response(self, response: list[int]) -> tuple[Any, Any]:
        return json.loads(self.tokenizer.decode(response)), None


def test_a_dialect_that_is_not_known_is_read_as_its_parser_read_it() -> None:
    """The arguments are then the text that the parser has kept, as strict as any."""
    renderer: Any = StandIn()
    assert dialect_of(renderer) is None
    reader = CallReader(renderer)
    raws = ['{"x": "01912"}', '{"x": 1}', '{"x": "a", "x": "b"}']
    made = [ToolCall(function=ToolCall.FunctionBody(name="book", arguments=raw), id=raw) for raw in raws]
    message, calls = reader.read({"role": "assistant", "content": "", "tool_calls": made}, "?", tools(x=TEXT))
    assert [call.arguments for call in calls] == [{"x": "01912"}, None, None]
    assert [call.call_id for call in calls] == raws
    assert message["tool_calls"] == made


@pytest.mark.parametrize("other", ["", hermes("book", [("x", '"b"')]) * 2, hermes("look", [("x", '"b"')])])
def test_where_the_parser_finds_other_calls_its_own_text_counts(other: str) -> None:
    """A text that is not what the message was parsed from is not believed."""
    call = ToolCall(function=ToolCall.FunctionBody(name="book", arguments='{"x": "a"}'))
    message: Any = {"role": "assistant", "content": "", "tool_calls": [call]}
    read_message, [read_call] = reader_of("qwen3").read(message, other, tools(x=TEXT))
    assert read_call.arguments == {"x": "a"}
    assert read_message["tool_calls"] == [call]


PIECES = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<function=book>", "</function>", "<parameter=x>"),
    *("</parameter>", "<arg_key>x</arg_key>", "<arg_value>", "</arg_value>", '{"name": "book", "arguments": ', "}"),
    *('{"x": "a"}', "[", "]", '"', "\n", " ", "book", "\\ud800", "9" * 400, "NaN", "<|tool_calls_section_begin|>"),
    *("<|tool_calls_section_end|>", "<|tool_call_begin|>functions.book:0<|tool_call_argument_begin|>", ","),
    *("<|tool_call_end|>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>book<｜tool▁sep｜>"),
    *("<｜tool▁call▁end｜>", "<｜DSML｜ calls>", "</｜DSML｜ calls>", '<｜DSML｜ invoke name="book">\n'),
    *(
        '<｜DSML｜ parameter name="x" string="true">',
        "</｜DSML｜ parameter>",
        "</｜DSML｜ invoke>",
        "<|start|>assistant",
    ),
    *(" to=functions.book<|channel|>commentary", "<|message|>", "<|end|>", "<|channel|>analysis", "🦊", '"x": "b"'),
]


@by_family
@settings(max_examples=150, deadline=None)
@given(pieces=st.lists(st.sampled_from(PIECES), max_size=25))
def test_nothing_that_is_sampled_is_our_error(family: Family, pieces: Sequence[str]) -> None:
    """Any mix of marks: each call that the parser counts is read, or is an error for the model; and it can be rendered."""
    tokens = byte_tokenizer().encode("".join(pieces) + family.stop, add_special_tokens=False)
    message, calls = read(family, tokens, tools(x=TEXT))
    kept = len(message.get("tool_calls", [])) + len(message.get("unparsed_tool_calls", []))
    assert kept == len(calls)
    assert all((call.arguments is None) == bool(call.error) for call in calls)
    assert len(message.get("tool_calls", [])) == sum(call.is_made for call in calls)
    renderer = reader_of(family.renderer).parser
    renderer.build_supervised_example([{"role": "user", "content": "Go."}, message])


# Whole rollouts.

POST = """
from decimal import Decimal
from agent_env import Env, tool

class Post(Env):
    @tool
    def send(self, zip: str, count: int = 1, price: float = 1.0, note: str | None = None, exact: Decimal | None = None) -> str:
        \"\"\"Send a parcel.\"\"\"
        self.state["sent"].append([repr(value) for value in (zip, count, price, note, exact)])
        return "sent"
"""
POST_BUNDLE = {
    "bundle.yaml": """
name: post
version: 1.0.0
description: Send parcels.
license: Apache-2.0
envs:
  post: {python: "envs/post.py:Post", universe: universes/none.json}
agents:
  clerk: {kind: played, system_prompt: "Send what you are told.", envs: [post]}
""",
    "envs/post.py": POST,
    "verifiers/sent.py": "def score(episode):\n    return float(len(episode.state()['sent']))\n",
    "universes/none.json": '{"sent": []}',
    "tasks/send.yaml": "id: send\nprompt: Send it.\nverify: {python: verifiers/sent.py}\n",
}


@pytest.fixture(scope="module")
def post_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose env keeps what its tool was called with."""
    root = tmp_path_factory.mktemp("bundles") / "post"
    for name, text in POST_BUNDLE.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


MIXED = {
    "qwen3_disable_thinking": [
        hermes("send", [("zip", '"01912"'), ("count", "2.0"), ("note", '"null"'), ("exact", '"1.10"')]),
        hermes("send", [("zip", "19122")]),
        hermes("send", [("zip", '"a"'), ("zip", '"b"')]),
        hermes("send", [("zip", "01912")]),
        hermes("sent", [("zip", '"a"')]),
        hermes("send", [("zip", '"1e5"'), ("price", "2")]),
    ],
    "qwen3_5_disable_thinking": [
        tagged("send", [("zip", "01912"), ("count", "2.0"), ("note", "nothing"), ("exact", "1.10")]),
        tagged("send", [("zip", "19122"), ("count", "two")]),
        tagged("send", [("zip", "a"), ("zip", "b")]),
        tagged("send", [("zip", "01912")]).replace("</parameter>", ""),
        tagged("sent", [("zip", "a")]),
        tagged("send", [("zip", "1e5"), ("price", "2")]),
    ],
}
ANSWERS = {
    "qwen3_disable_thinking": [
        "sent",
        "send was not called:\nzip: expected a string, got 19122",
        'the arguments are no valid JSON: the key "zip" is written twice',
        "the arguments are no valid JSON: Expecting ',' delimiter",
        "there is no tool 'sent', did you mean 'send'?",
        "sent",
    ],
    "qwen3_5_disable_thinking": [
        "sent",
        'send was not called:\ncount: expected an integer, got "two"',
        "send was not called:\nzip: written twice",
        "this tool call could not be read: zip: it does not end, </parameter> is missing",
        "there is no tool 'sent', did you mean 'send'?",
        "sent",
    ],
}


@pytest.mark.parametrize("renderer_name", list(MIXED))
async def test_calls_that_fit_run_beside_those_that_do_not(rig: Any, post_bundle: Path, renderer_name: str) -> None:
    """Each call of one message is answered in its place, typed by the tool's schema; and the episode goes on."""
    rig = replace(rig, bundle=post_bundle, renderer_name=renderer_name)
    encode = rig.framing.renderer.tokenizer.encode
    mixed = encode("\n".join(MIXED[renderer_name]) + "<|im_end|>", add_special_tokens=False)
    group = await rig.play([rig.Say(tokens=mixed), rig.reply("Done.")], "send")
    assert group.get_total_rewards() == [2.0]
    [run] = rig.filed()
    events = list(rig.index.events(run.run_id))
    answers = [event.data for event in events if event.kind == "answer"]
    assert len(answers) == 6
    assert [answer["is_error"] for answer in answers] == [False, True, True, True, True, False]
    for answer, expected in zip(answers, ANSWERS[renderer_name], strict=True):
        assert answer["text"].startswith(expected)
    made = [event.data["arguments"] for event in events if event.kind == "call"]
    note = "null" if renderer_name == "qwen3_disable_thinking" else "nothing"
    assert made[0] == {"zip": "01912", "count": 2, "note": note, "exact": "1.10"}
    assert made[1:4] == [None, None, None]
    assert made[5] == {"zip": "1e5", "price": 2}


@pytest.mark.parametrize("renderer_name", list(MIXED))
async def test_a_sample_that_breaks_the_parser_is_answered(rig: Any, post_bundle: Path, renderer_name: str) -> None:
    """The cookbook's parser raises on it; the rollout is scored all the same."""
    rig = replace(rig, bundle=post_bundle, renderer_name=renderer_name)
    write = tagged if "5" in renderer_name else hermes
    hostile = write("send", [("count", "[" * 3000 + "]" * 3000)]) + "\n" + write("send", [("count", "7" * 5000)])
    tokens = rig.framing.renderer.tokenizer.encode(hostile + "<|im_end|>", add_special_tokens=False)
    group = await rig.play([rig.Say(tokens=tokens), rig.reply("Done.")], "send")
    assert group.get_total_rewards() == [0.0]
    [run] = rig.filed()
    answers = [event.data for event in rig.index.events(run.run_id) if event.kind == "answer"]
    assert [answer["is_error"] for answer in answers] == [True, True]
    assert all(answer["tool"] == "send" for answer in answers)
