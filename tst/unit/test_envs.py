"""Envs written in Python: what a model is shown of a tool, and what it gets for a call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_env.bundle import load_bundle
from agent_env.envs import EnvSession, Refusal, ToolAnswer, open_env
from agent_env.errors import BundleError, EnvBrokenError
from agent_env.outcome import Place

WriteBundle = Callable[[Mapping[str, str | bytes | None]], Path]
OpenStore = Callable[..., AbstractAsyncContextManager[EnvSession]]

COLOUR = {"enum": ["red", "blue"], "type": "string"}
IMPORTS = "from agent_env.envs import Env, ToolAnswer, ToolError, tool\nfrom agent_env.errors import EnvBrokenError\n"


@pytest.fixture
def open_store(small_bundle: dict[str, str], write_bundle: WriteBundle) -> OpenStore:
    """Opens the env `Store` of a bundle whose class has the given body."""

    @asynccontextmanager
    async def open_store(body: str, before: str = "", after: str = "") -> AsyncGenerator[EnvSession]:
        lines = "".join(f"    {line}\n" if line else "\n" for line in body.strip("\n").splitlines())
        code = f"{before}\n{IMPORTS}\nclass Store(Env):\n{lines}{after}\n"
        root = write_bundle({**small_bundle, "envs/store.py": code})
        bundle = load_bundle(root)
        async with open_env(bundle.envs["store"], task=bundle.task("a")) as session:
            yield session

    return open_store


async def schema_of(open_store: OpenStore, parameters: str, before: str = "") -> dict[str, Any]:
    """The JSON Schema of a tool with these parameters."""
    async with open_store(f"@tool\ndef look(self, {parameters}):\n    '''Look.'''", before) as session:
        return dict(session.tools[0].parameters)


async def test_a_tools_schema_does_not_depend_on_other_tools(open_store: OpenStore) -> None:
    """`int | str` and `str | int` are equal to Python; a model is shown what is written."""
    body = "@tool\ndef {0}(self, x: {1} = 0):\n    '''Look.'''\n"
    async with open_store(body.format("one", "int | bool | str") + body.format("other", "str | bool | int")) as session:
        one, other = (tool.parameters["properties"]["x"]["anyOf"] for tool in session.tools)
    assert one == list(reversed(other))


async def test_a_tool_is_described_by_its_hints_and_docstring(open_store: OpenStore) -> None:
    """Name, description, parameters and their descriptions, in the order of the class."""
    body = '''
@tool
def sell(self, count: int, note: str = "none") -> int:
    """Sell some.

    All at once.

    Args:
        count (int): How many
            to sell.
        note: A word: any.

    Returns:
        What is left.
    """

@tool(name="look-up", ends_turn=True)
async def look(self) -> str:
    """Look."""
'''
    async with open_store(body) as session:
        sell, look = session.tools
    assert (sell.name, sell.description, sell.ends_turn) == ("sell", "Sell some.\n\nAll at once.", False)
    assert sell.parameters == {
        "type": "object",
        "properties": {
            "count": {"type": "integer", "description": "How many to sell."},
            "note": {"type": "string", "description": "A word: any.", "default": "none"},
        },
        "required": ["count"],
        "additionalProperties": False,
    }
    assert (look.name, look.ends_turn, look.parameters["properties"]) == ("look-up", True, {})


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        ("x: int | None = None", {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}),
        ("x: Optional[int]", {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        ("x: Literal['a', 'b'] = 'a'", {"enum": ["a", "b"], "type": "string", "default": "a"}),
        ("x: Colour = Colour.RED", {"enum": ["red", "blue"], "type": "string", "default": "red"}),
        ("x: list[float]", {"items": {"type": "number"}, "type": "array"}),
        ("x: dict[str, int]", {"additionalProperties": {"type": "integer"}, "type": "object"}),
        ("x: int | str", {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        ("x: Any", {}),
        (
            "x: Annotated[int, Field(ge=1, description='One.')]",
            {"minimum": 1, "description": "One.", "type": "integer"},
        ),
        (
            "x: Annotated[Odd, Field(description='It.')]",
            {
                "description": "It.",
                "type": "object",
                "properties": {"discriminator": COLOUR, "default": COLOUR, "properties": COLOUR},
                "required": ["discriminator", "default", "properties"],
            },
        ),
        (
            "x: Annotated[Cat | Dog, Field(discriminator='kind')]",
            {
                "oneOf": [
                    {"type": "object", "properties": {"kind": {"const": kind, "type": "string"}}, "required": ["kind"]}
                    for kind in ("cat", "dog")
                ]
            },
        ),
        (
            "x: list[Point]",
            {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"title": {"type": "string"}, "to": {"type": "array", "items": {"type": "integer"}}},
                    "required": ["title", "to"],
                },
            },
        ),
        (
            "x: Point | None = None",
            {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {
                            "title": {"type": "string"},
                            "to": {"type": "array", "items": {"type": "integer"}},
                        },
                        "required": ["title", "to"],
                    },
                    {"type": "null"},
                ],
                "default": None,
            },
        ),
    ],
)
@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
async def test_types_become_schemas_without_references(
    open_store: OpenStore, hint: str, schema: dict[str, Any], future: str
) -> None:
    """Optional, Literal, Enum, models, lists, unions and defaults; with and without postponed annotations."""
    before = future + (
        "from enum import Enum\nfrom typing import Annotated, Any, Literal, Optional\nfrom pydantic import BaseModel, Field\n"
        "class Colour(Enum):\n    RED = 'red'\n    BLUE = 'blue'\n"
        "class Point(BaseModel):\n    title: str\n    to: list[int]\n"
        "class Odd(BaseModel):\n    discriminator: Colour\n    default: Colour\n    properties: Colour\n"
        "class Cat(BaseModel):\n    kind: Literal['cat']\nclass Dog(BaseModel):\n    kind: Literal['dog']\n"
    )
    assert (await schema_of(open_store, hint, before))["properties"]["x"] == schema


TYPED = '''
@tool
def typed(self, n: int, x: float = 1.5, colour: Colour = Colour.RED, at: Point | None = None,
          names: set[str] = frozenset(), day: date | None = None, how: int | str = 0, copy: bool = False):
    """Typed."""
    return [type(value).__name__ for value in (n, x, colour, at, names, day, how, copy)]
'''
TYPES = (
    "from datetime import date\nfrom enum import Enum\nfrom pydantic import BaseModel\n"
    "class Colour(Enum):\n    RED = 'red'\n    BLUE = 'blue'\n"
    "class Point(BaseModel):\n    x: int\n    y: list[int] = []\n"
)


async def test_arguments_arrive_as_the_annotated_types(open_store: OpenStore) -> None:
    """Models, enums, sets and dates arrive as such; what is left out has its default."""
    arguments = {"n": 1, "x": 2, "colour": "blue", "at": {"x": 1}, "names": ["a"], "day": "2026-01-31", "how": "5"}
    async with open_store(TYPED, TYPES) as session:
        given = await session.call("typed", {**arguments, "copy": True})
        left_out = await session.call("typed", {"n": 1})
    assert given.text == '["int","float","Colour","Point","set","date","str","bool"]'
    assert left_out.text == '["int","float","Colour","NoneType","frozenset","NoneType","int","bool"]'


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"n": "1"}, 'n: expected an integer, got "1"'),
        ({"n": 1.5}, "n: expected an integer, got 1.5"),
        ({"n": True}, "n: expected an integer, got true"),
        ({"n": None}, "n: expected an integer, got null"),
        ({}, "n: missing"),
        ({"m": 1}, "n: missing\nm: there is no such parameter, known: n, x, colour, at, names, day, how, copy"),
        ({"n": 1, "nmaes": []}, "nmaes: there is no such parameter, did you mean names?"),
        ({"n": 1, "x": "2"}, 'x: expected a number, got "2"'),
        ({"n": 1, "colour": "rde"}, "colour: expected one of 'red' or 'blue', got \"rde\""),
        ({"n": 1, "at": {"y": [1, "z"]}}, 'at: missing x; at.y[1]: expected an integer, got "z"'),
        ({"n": 1, "at": "home"}, 'at: expected an object, got "home"'),
        ({"n": 1, "how": 1.5}, "how: expected an integer or a string, got 1.5"),
        ({"n": 1, "copy": "yes"}, 'copy: expected true or false, got "yes"'),
        ({"n": "1", "x": "2"}, 'n: expected an integer, got "1"\nx: expected a number, got "2"'),
        ({"n": 1, "x": float("nan")}, "the arguments are not JSON: Out of range float values are not JSON compliant"),
        ({"n": 1, "how": "\ud800"}, "the arguments are not Unicode text: half of a surrogate pair is in them"),
        ({"n": "x" * 1000}, f'n: expected an integer, got "{"x" * 56}...'),
    ],
)
async def test_misfit_arguments_are_told_to_the_model(
    open_store: OpenStore, arguments: dict[str, Any], says: str
) -> None:
    """The answer is an error that says what was expected, a line for each parameter; the tool does not run."""
    async with open_store(TYPED, TYPES) as session:
        answer = await session.call("typed", arguments)
    assert answer.is_error
    heading, _, lines = answer.text.partition("\n")
    assert heading == "typed was not called:"
    assert lines.split(": nan")[0] == says


async def test_an_unknown_tool_gets_the_closest(open_store: OpenStore) -> None:
    """An error answer, not an exception: it is the model's slip."""
    async with open_store("@tool\ndef sell(self):\n    '''Sell.'''") as session:
        near = await session.call("sel", {})
        far = await session.call("\ud800", {})
    missing = Refusal.NO_SUCH_TOOL
    assert near == ToolAnswer("there is no tool 'sel', did you mean 'sell'?", is_error=True, refusal=missing)
    assert far == ToolAnswer("there is no tool '\ufffd', write one of sell", is_error=True, refusal=missing)


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        *(("'text'", "text"), ("None", "ok"), ("{'b': 1, 'a': 'é'}", '{"b":1,"a":"é"}'), ("[1, None]", "[1,null]")),
        *(
            ("True", "true"),
            ("1.5", "1.5"),
            ("ToolAnswer('as is')", "as is"),
            ("ToolAnswer('\\0')", "\ufffd"),
            ("b'a\\xff'", "a\ufffd"),
        ),
        ("[float('nan')]", "[null]\n(null stands for a number that is not finite)"),
        *(
            ("'a\\x00b\\ud800'", "a\ufffdb\ufffd"),
            ("{'x': '\\ud800'}", '{"x":"\ufffd"}'),
            ("self.Point(x=1)", '{"x":1}'),
        ),
        (
            "object()",
            "TypeError: the tool's result, a object, has no JSON form: Unable to serialize unknown type: <class 'object'>",
        ),
    ],
)
async def test_results_become_text(open_store: OpenStore, returned: str, text: str) -> None:
    """Text as it is, None as ok, the rest as compact JSON, and nothing that is no Unicode text."""
    body = f"class Point(BaseModel):\n    x: int\n@tool\ndef look(self):\n    '''Look.'''\n    return {returned}"
    async with open_store(body, "from pydantic import BaseModel") as session:
        answer = await session.call("look", {})
    assert answer.text == text
    assert answer.is_error == text.startswith("TypeError")


async def test_a_huge_result_loses_its_middle(open_store: OpenStore) -> None:
    """5 MB come to at most 100,000 characters, and the text says how many are left out."""
    async with open_store("@tool\ndef look(self):\n    '''Look.'''\n    return 'a' * 5_000_000 + 'z'") as session:
        text = (await session.call("look", {})).text
    assert len(text) <= 100_000
    assert text.endswith("az")
    assert "\n[... 4,900,101 characters left out ...]\n" in text


async def test_what_a_tool_raises_is_an_answer(open_store: OpenStore) -> None:
    """A refusal is its message, any other exception its type and message with traceback and place aside."""
    body = """
@tool
def refuse(self):
    '''Refuse.'''
    raise ToolError("not today")

@tool
async def stumble(self):
    '''Stumble.'''
    return {}["x"]

@tool(blocking=True)
def leave(self):
    '''Leave.'''
    raise SystemExit(3)
"""
    async with open_store(body) as session:
        assert await session.call("refuse", {}) == ToolAnswer("not today", is_error=True, refusal=Refusal.REFUSED)
        stumbled = await session.call("stumble", {})
        assert stumbled == ToolAnswer("KeyError: 'x'", is_error=True, refusal=Refusal.RAISED)
        assert 'return {}["x"]' in stumbled.traceback
        assert stumbled.raised_at == Place(path=Path("envs/store.py"), line=14)
        left = await session.call("leave", {})
        assert (left.text, left.raised_at) == ("SystemExit: 3", Place(path=Path("envs/store.py"), line=19))


SLIPS = (
    "StopIteration('x')",
    "StopAsyncIteration('x')",
    "GeneratorExit('x')",
    "SystemExit('x')",
    "asyncio.CancelledError('x')",
    "ExceptionGroup('x', [ValueError()])",
    "BaseExceptionGroup('x', [SystemExit(1), asyncio.CancelledError()])",
)
HEADS = ("@tool\ndef", "@tool\nasync def", "@tool(blocking=True)\ndef")
OWN = "import asyncio\nclass Own(BaseException):\n    pass\n"


def raising(head: str, raised: str, name: str = "slip") -> str:
    """A tool that raises something."""
    return f"{head} {name}(self):\n    '''Slip.'''\n    raise {raised}\n"


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("raised", SLIPS)
async def test_what_python_raises_to_end_something_is_an_answer_where_a_tool_raises_it(
    open_store: OpenStore, head: str, raised: str
) -> None:
    """Nobody has cancelled or closed anything: it is the tool's mistake, inline, awaited or in a thread."""
    async with open_store(raising(head, raised), OWN) as session:
        answer = await session.call("slip", {})
        assert answer.refusal is Refusal.RAISED
        assert raised.partition("(")[0].removeprefix("asyncio.") in answer.text
        assert answer.raised_at == Place(path=Path("envs/store.py"), line=12)
        assert (await session.call("slip", {})).is_error


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("raised", ["Own('x')", "BaseExceptionGroup('x', [KeyboardInterrupt(), ValueError()])"])
async def test_what_is_made_to_pass_every_handler_breaks_the_env(open_store: OpenStore, head: str, raised: str) -> None:
    """An exception of somebody's own making that is no `Exception` is to end more than a call."""
    async with open_store(raising(head, raised), OWN) as session:
        with pytest.raises(EnvBrokenError, match=raised.partition("(")[0]):
            await session.call("slip", {})


async def test_ctrl_c_in_a_tool_stops_the_program(open_store: OpenStore) -> None:
    """In the main thread nobody can tell who raised it; in a thread of its own it was the tool."""
    body = "".join(raising(head, "KeyboardInterrupt", name) for head, name in zip(HEADS, "abc", strict=True))
    async with open_store(body) as session:
        for name in ("a", "b"):
            with pytest.raises(KeyboardInterrupt):
                await session.call(name, {})
        assert (await session.call("c", {})).refusal is Refusal.RAISED


@pytest.mark.parametrize("raised", ["SystemExit('x')", "GeneratorExit('x')", "Own('x')", "asyncio.CancelledError('x')"])
async def test_whatever_start_raises_breaks_the_env(
    open_store: OpenStore, raised: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And what `close` raises is logged."""
    said = raised.removeprefix("asyncio.").partition("(")[0]
    hooks = f"def start(self):\n    raise {raised}\ndef close(self):\n    raise {raised}\n"
    with pytest.raises(EnvBrokenError, match=f"env 'store' cannot start: {said}: x"):
        async with open_store(hooks, OWN):
            pass
    assert "env 'store': close raised" in caplog.text


@pytest.mark.parametrize("raised", ["SystemExit('x')", "GeneratorExit('x')", "Own('x')"])
async def test_an_env_that_cannot_be_made_is_broken(open_store: OpenStore, raised: str) -> None:
    """Whatever its `__init__` raises."""
    with pytest.raises(EnvBrokenError, match=f"env 'store' cannot be made: {raised.partition('(')[0]}: x"):
        async with open_store(f"def __init__(self):\n    raise {raised}\n", OWN):
            pass


async def test_a_broken_env_is_no_answer(open_store: OpenStore) -> None:
    """What says that the env is broken reaches the episode, also out of a task group."""
    body = """
@tool
def lose(self):
    '''Lose.'''
    raise EnvBrokenError("gone")

@tool
async def lose_in_a_group(self):
    '''Lose.'''
    raise ExceptionGroup("tasks", [ValueError(), ExceptionGroup("inner", [EnvBrokenError("gone")])])
"""
    async with open_store(body) as session:
        for name in ("lose", "lose_in_a_group"):
            with pytest.raises(EnvBrokenError, match="gone"):
                await session.call(name, {})


async def test_a_tool_may_end_the_turn(open_store: OpenStore) -> None:
    """By its declaration or by one answer; an error never does."""
    body = """
@tool(ends_turn=True)
def submit(self, fine: bool):
    '''Submit.'''
    if not fine:
        raise ToolError("again")

@tool
def maybe(self, done: bool, wrong: bool = False):
    '''Maybe.'''
    return ToolAnswer("x", ends_turn=done, is_error=wrong)
"""
    async with open_store(body) as session:
        answers = [
            *[await session.call("submit", {"fine": fine}) for fine in (True, False)],
            *[await session.call("maybe", {"done": done}) for done in (True, False)],
            await session.call("maybe", {"done": True, "wrong": True}),
        ]
    assert [answer.ends_turn for answer in answers] == [True, False, True, False, False]


async def test_a_tool_that_takes_too_long_answers_so(open_store: OpenStore) -> None:
    """Async or in a thread, the model is told; the episode goes on."""
    body = """
@tool(timeout_s=0.02)
async def wait(self):
    '''Wait.'''
    await asyncio.sleep(30)

@tool(timeout_s=0.02, blocking=True)
def block(self):
    '''Block.'''
    time.sleep(0.5)
"""
    async with open_store(body, "import asyncio, time") as session:
        for name in ("wait", "block"):
            answer = await session.call(name, {})
            assert answer.text == f"{name} was stopped: it took longer than 0.02 s"
            assert answer.refusal is Refusal.TIMED_OUT


async def test_a_blocking_tool_neither_stalls_the_loop_nor_holds_up_a_cancellation(open_store: OpenStore) -> None:
    """The loop turns while it runs, and an episode that is cancelled leaves its thread behind."""
    body = (
        "released = threading.Event()\nreturned = threading.Event()\n"
        "@tool(blocking=True)\ndef block(self):\n    '''Block.'''\n    self.released.wait()\n    self.returned.set()\n"
        "@tool\ndef release(self) -> bool:\n    '''Let it go on.'''\n"
        "    was = self.returned.is_set()\n    self.released.set()\n    return was"
    )
    async with open_store(body, "import threading") as session:
        with anyio.move_on_after(0.05) as scope:
            await session.call("block", {})
        assert scope.cancelled_caught
        assert await session.call("release", {}) == ToolAnswer("false")


HOOKS = """
log = []
async def start(self):
    self.log.append(("start", self.state["stock"], self.params, self.task_id))
    self.state["stock"] += 1
    self.params["count"] = 0

@tool
def stock(self):
    '''Stock.'''
    return self.state["stock"]

@tool
def replace(self):
    '''Replace.'''
    self.state = {"stock": 99}

def close(self):
    self.log.append(("close", self.state["stock"]))
"""


async def test_two_episodes_have_nothing_in_common(open_store: OpenStore) -> None:
    """An instance, a state and params of its own each; verifiers read the state while the env is open."""
    async with open_store(HOOKS) as one, open_store(HOOKS) as two:
        await one.call("replace", {})
        assert one.state == {"stock": 99}
        assert two.state == {"stock": 11}
        assert (await two.call("stock", {})).text == "11"


async def test_an_env_may_write_to_its_params(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """They are a copy: the task, which every episode shares, stays as it is."""
    code = f"{IMPORTS}\nclass Store(Env):\n    def start(self):\n        self.params.clear()\n"
    bundle = load_bundle(write_bundle({**small_bundle, "envs/store.py": code}))
    async with open_env(bundle.envs["store"], task=bundle.task("a")):
        assert bundle.task("a").params == {"count": 3}


async def test_hooks_run_around_the_tools(open_store: OpenStore) -> None:
    """`start` sees the state and the task; `close` is called at the end."""
    async with open_store(HOOKS) as session:
        log = session._env.log  # type: ignore[attr-defined]
        assert log == [("start", 10, {"count": 0}, "a")]
    assert log[1:] == [("close", 11)]


async def test_an_env_that_cannot_start_is_broken(open_store: OpenStore, caplog: pytest.LogCaptureFixture) -> None:
    """The error names the env and what was raised, and `close` is called all the same."""
    body = "def start(self):\n    raise OSError('no port')\ndef close(self):\n    raise OSError('closed too')\n"
    with pytest.raises(EnvBrokenError, match="env 'store' cannot start: OSError: no port") as caught:
        async with open_store(body):
            pass
    assert isinstance(caught.value.__cause__, OSError)
    assert "closed too" in caplog.text


async def test_what_close_raises_is_logged(open_store: OpenStore, caplog: pytest.LogCaptureFixture) -> None:
    """It does not replace how the episode ended."""
    async with open_store("def close(self):\n    raise OSError('stuck')"):
        pass
    assert "env 'store': close raised" in caplog.text


async def test_an_env_with_a_tool_no_model_can_be_shown_does_not_open(open_store: OpenStore) -> None:
    """The error is the one that validation prints."""
    with pytest.raises(BundleError, match=r"envs/store\.py:6: tool 'look' has a parameter 'x' without a type"):
        async with open_store("@tool\ndef look(self, x): ..."):
            pass


async def test_tools_of_a_base_class_are_offered_too(open_store: OpenStore) -> None:
    """In the order of definition, the base's first; an overriding method without @tool takes its tool away."""
    base = """
class Base(Env):
    @tool
    def one(self):
        '''One.'''
    @tool
    def two(self):
        '''Two.'''
"""
    body = "class Inner(Base):\n    @tool\n    def three(self):\n        '''Three.'''\n    def two(self): ...\n"
    async with open_store(body, IMPORTS + base, "Store = Store.Inner") as session:
        assert [tool.name for tool in session.tools] == ["one", "three"]


async def test_many_envs_open_at_once(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """A hundred episodes of one process each count from the universe's own number."""
    bundle = load_bundle(write_bundle(small_bundle))

    async def play(count: int) -> str:
        async with open_env(bundle.envs["store"], task=bundle.task("a")) as session:
            await asyncio.sleep(0)
            return (await session.call("sell", {"count": count})).text

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(play(count)) for count in range(100)]
    assert [task.result() for task in tasks] == [str(10 - count) for count in range(100)]


def test_an_answers_parts_are_content_blocks() -> None:
    """A mistake in them is the tool's, said where it was made, and not the renderer's later on."""
    with pytest.raises(TypeError, match=r'a mapping with a "type", not .abc.'):
        ToolAnswer("t", content=["abc"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match='its "data" as text'):
        ToolAnswer("t", content=[{"type": "image"}])
    with pytest.raises(TypeError, match='its "text" as text'):
        ToolAnswer("t", content=[{"type": "text", "text": 5}])
    assert ToolAnswer("t", content=[{"type": "text", "text": "more"}]).content


def test_an_answer_that_is_no_text_is_refused() -> None:
    """In a tool that is a mistake of the tool's, which the model is told of."""
    with pytest.raises(TypeError, match=r"ToolAnswer\.text is text, not a int"):
        ToolAnswer(5)  # type: ignore[arg-type]


def test_every_error_has_a_kind() -> None:
    """One that says no more is the tool's own no; what was refused is an error."""
    assert ToolAnswer("no", is_error=True).refusal is Refusal.REFUSED
    assert ToolAnswer("yes").refusal is None
    with pytest.raises(ValueError, match=r"refused \(timed_out\) is an error: write is_error=True"):
        ToolAnswer("late", refusal=Refusal.TIMED_OUT)
