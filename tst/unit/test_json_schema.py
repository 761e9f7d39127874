"""Whether a value fits a JSON Schema: judged as the reference implementation does, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jsonschema import validators

from agent_env.envs.json_schema import BrokenSchemaError, JsonSchema, TooMuchWorkError, Work

REFERENCE: Any = validators.extend(
    validators.Draft202012Validator,
    type_checker=validators.Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, value: isinstance(value, int) and not isinstance(value, bool)
    ),
)
NAMES = st.sampled_from(["a", "b", "ab"])
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([1.0, 0.5, 2.5, -1.0])
    | st.sampled_from(["", "a", "b", "ab", "aab", "1"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=7,
)
TYPES = st.sampled_from(["integer", "number", "string", "boolean", "array", "object", "null"])
SMALL = st.integers(0, 3)


def schemas_of(parts: st.SearchStrategy[Any], pattern: str) -> st.SearchStrategy[Any]:
    """Schemas of up to three keywords; those within them are `parts`, and a pattern is `pattern` with a letter in it."""
    lists = st.lists(parts, min_size=1, max_size=3)
    named = st.dictionaries(NAMES, parts, max_size=3)
    patterns = st.sampled_from(["a", "b", "a+", "ab"]).map(lambda letters: pattern.format(letters))
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=3),
        "enum": st.lists(VALUES, max_size=4),
        "const": VALUES,
        "multipleOf": st.sampled_from([1, 2, 0.5, 3]),
        "pattern": patterns,
        "uniqueItems": st.booleans(),
        "patternProperties": st.dictionaries(patterns, parts, max_size=2),
        "required": st.lists(NAMES, max_size=2),
        "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=2), max_size=2),
        "$ref": st.sampled_from(["#/$defs/x", "#/$defs/y"]),
        **dict.fromkeys(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"], st.integers(-2, 2)),
        **dict.fromkeys(["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"], SMALL),
        **dict.fromkeys(["minContains", "maxContains"], SMALL),
        **dict.fromkeys(["items", "contains", "additionalProperties", "propertyNames"], parts),
        **dict.fromkeys(["not", "if", "then", "else"], parts),
        **dict.fromkeys(["allOf", "anyOf", "oneOf", "prefixItems"], lists),
        **dict.fromkeys(["properties", "dependentSchemas"], named),
    }
    some = st.lists(st.sampled_from(sorted(keywords)), max_size=3, unique=True)
    return some.flatmap(lambda names: st.fixed_dictionaries({name: keywords[name] for name in names}))


def whole_schemas(pattern: str) -> st.SearchStrategy[Any]:
    """Schemas with definitions that they refer to."""
    leaf = schemas_of(st.booleans(), pattern)
    defined = leaf.map(lambda schema: {name: said for name, said in schema.items() if name != "$ref"})
    tree = st.recursive(leaf, lambda inner: schemas_of(inner | st.booleans(), pattern), max_leaves=5)
    return st.builds(lambda schema, x, y: {**schema, "$defs": {"x": x, "y": y}}, tree, defined, defined)


def fits(schema: Any, value: Any, work: Work | None = None) -> bool:
    """Whether no misfit is found."""
    return next(JsonSchema(schema).misfits(value, work or Work()), None) is None


relaxed = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@relaxed
@given(whole_schemas("^{}"), VALUES)
def test_values_are_judged_as_the_reference_judges_them(schema: Any, value: Any) -> None:
    """All keywords, in one another; but for `unevaluated...`, which is left to the tool."""
    assert fits(schema, value) == REFERENCE(schema).is_valid(value)


@relaxed
@given(whole_schemas("^(?={})"), VALUES, st.integers(10, 200))
def test_what_cannot_be_decided_refuses_nothing(schema: Any, value: Any, steps: int) -> None:
    """With patterns that are not matched, under `not` and `oneOf` too, and with too few steps: a misfit is one for sure."""
    assume(REFERENCE(schema).is_valid(value))
    try:
        assert fits(schema, value, Work(steps))
    except TooMuchWorkError:
        assert fits(schema, value)


AHEAD = {"pattern": "^(?=b)"}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (AHEAD, "a"),
        ({"not": AHEAD}, "a"),
        ({"oneOf": [AHEAD, {"type": "string"}]}, "a"),
        ({"oneOf": [AHEAD, {"type": "integer"}]}, "a"),
        ({"if": AHEAD, "then": False}, "a"),
        ({"if": AHEAD, "else": False}, "b"),
        ({"contains": AHEAD, "maxContains": 1}, ["b", "a"]),
        ({"contains": AHEAD}, ["a", "b"]),
        ({"patternProperties": {"^(?=b)": {}}, "additionalProperties": False}, {"b": 1}),
        ({"patternProperties": {"^(?=b)": False}}, {"a": 1}),
    ],
)
def test_a_pattern_of_another_language_refuses_nothing(schema: Any, value: Any) -> None:
    """Not where the opposite is asked for either; what else the schema says holds."""
    assert fits(schema, value)
    assert not fits({"allOf": [schema], "type": "null"}, value)


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_a_schema_that_doubles_itself_comes_to_an_end(keyword: str) -> None:
    """Two forms that are two forms each, forty deep, are a million million checks of one value."""
    forms = {str(at): {keyword: [{"$ref": f"#/$defs/{at + 1}"}] * 2} for at in range(40)}
    schema = {"$defs": {**forms, "40": {"type": "null" if keyword == "anyOf" else "integer"}}, "$ref": "#/$defs/0"}
    with pytest.raises(TooMuchWorkError):
        fits(schema, 1)


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"minimum": 1, "exclusiveMinimum": True}, 1, False),
        ({"minimum": 1, "exclusiveMinimum": True}, 2, True),
        ({"items": [{"type": "string"}], "additionalItems": False}, ["a"], True),
        ({"items": [{"type": "string"}], "additionalItems": False}, ["a", "b"], False),
        ({"dependencies": {"a": ["b"]}}, {"a": 1}, False),
        ({"dependencies": {"a": {"required": ["b"]}}}, {"a": 1, "b": 1}, True),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/x", "maximum": 1, "x": {}}, 5, True),
        ({"$ref": "#/x", "maximum": 1, "x": {}}, 5, False),
        ({"$ref": "#here", "x": {"$anchor": "here", "maximum": 1}}, 5, False),
        ({"$ref": "https://a.invalid/x", "x": {"$id": "https://a.invalid/x", "maximum": 1}}, 5, False),
        ({"$ref": "#/x/1/a~1b%25", "x": [0, {"a/b%": {"maximum": 1}}]}, 5, False),
        ({"properties": {"a": {"$recursiveRef": "#"}}, "required": ["b"]}, {"a": {}, "b": 1}, False),
        ({"multipleOf": 0.1}, 0.3, True),
        ({"multipleOf": 0.1}, 1e299, True),
        ({"type": "string", "pattern": r"\d{2,}"}, "1" * 5000, True),
        (
            {"$schema": "https://json-schema.org/draft/2020-12/schema", "properties": {"a": {"$schema": "x"}}},
            {"a": 1},
            True,
        ),
    ],
)
def test_drafts_and_references(schema: Any, value: Any, expected: bool) -> None:
    """What older drafts write, and each way to name a part of a schema."""
    assert fits(schema, value) is expected


@pytest.mark.parametrize("reference", ["#/x", "#x", "other.json", "https://a.invalid/x", "#/$defs/a/b", ""])
def test_a_reference_to_what_is_not_there_is_said(reference: str) -> None:
    """Nothing is fetched, and nothing is taken to fit."""
    schema = {"$defs": {"a": True}, "$ref": reference} if reference else {"items": {"$ref": "#/0"}}
    with pytest.raises(BrokenSchemaError, match="there is no"):
        fits(schema, [1])
