"""MCP servers as envs: their tools, what their answers come to, what reaches them. Real servers, started by the tests."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_env.bundle import McpSpec
from agent_env.envs import EnvSession
from agent_env.envs.mcp import open_mcp_env
from agent_env.errors import EnvBrokenError, McpServerError, MissingExtraError

SERVERS = Path(__file__).with_name("mcp_servers")
GOOD = McpSpec(command=(sys.executable, str(SERVERS / "good.py")))


def raw(*arguments: str, **fields: Any) -> McpSpec:
    """A server of `mcp_servers/raw.py`."""
    return McpSpec(command=(sys.executable, "-S", str(SERVERS / "raw.py"), *arguments), **fields)


def names(folder: Path) -> list[str]:
    """What is in a folder."""
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else ["it is not there"]


@asynccontextmanager
async def opened(spec: McpSpec, folder: Path | None, **params: Any) -> AsyncGenerator[EnvSession]:
    """Open an env as an episode does."""
    async with open_mcp_env("shop", spec, folder=folder, params=params, task_id="day-1") as env:
        yield env


async def test_tools_are_listed_from_all_pages_with_names_and_schemas_that_model_servers_take(tmp_path: Path) -> None:
    """The list comes in three pages; a dot in a name becomes `_`, a reference is written out."""
    async with opened(GOOD, tmp_path) as env:
        shown = [tool.name for tool in env.tools]
        move = next(tool for tool in env.tools if tool.name == "move_point")
        answer = await env.call("move_point", {"point": {"x": 1}})
        misfit = await env.call("move_point", {"point": {"y": 1}})
    assert len(shown) == 10
    assert move.description == "A name with a dot, a schema with a reference."
    assert move.parameters == {
        "type": "object",
        "properties": {"point": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
        "required": ["point"],
    }
    assert answer.text == "moved"
    assert misfit.is_error
    assert misfit.text == "move_point was not called:\npoint: missing x"


async def test_answers_are_text_with_pictures_sound_files_and_structure_beside_it(tmp_path: Path) -> None:
    """Each kind of content block, an answer that is an error, and one with nothing in it."""
    async with opened(GOOD, tmp_path) as env:
        image = await env.call("image", {})
        sound = await env.call("sound", {})
        total = await env.call("total", {"a": 1, "b": 2})
        files = await env.call("files", {})
        refused = await env.call("refuse", {})
        nothing = await env.call("nothing", {})
        long = await env.call("long", {})
    data = image.content[0]["data"]
    assert base64.b64decode(data).startswith(b"\x89PNG")
    assert image.text == "before\n[image: image/png]"
    assert image.content == ({"type": "image", "data": data, "mimeType": "image/png"},)
    assert sound.text == "[audio: audio/wav]"
    assert sound.content[0]["type"] == "audio"
    assert total.text == '{"total":3}'
    assert total.content == ({"type": "structured", "structuredContent": {"total": 3}},)
    assert files.text.splitlines() == [
        "[resource: file:///notes.txt]",
        "the notes",
        "[resource: file:///data.bin, application/octet-stream]",
        "[resource link: manual <https://example.com/manual> the manual]",
    ]
    assert [part["type"] for part in files.content] == ["resource"]
    assert refused.is_error
    assert refused.text == "no such order"
    assert nothing.text == "ok"
    assert not nothing.is_error
    assert len(long.text) <= 100_000
    assert "characters left out" in long.text


async def test_a_call_that_does_not_fit_is_answered_and_not_sent(tmp_path: Path) -> None:
    """Arguments that do not fit the schema, that are no JSON, and a tool that is not there: the model may try again."""
    async with opened(raw("records"), tmp_path) as env:
        answers = [
            await env.call("act", {"count": "3"}),
            await env.call("act", {"count": float("nan")}),
            await env.call("act", {"other": {1, 2}}),
            await env.call("act", {"other": "\ud800"}),
            await env.call("ac", {}),
        ]
    assert all(answer.is_error for answer in answers)
    assert answers[0].text == 'act was not called:\ncount: expected an integer, got "3"'
    assert answers[1].text.startswith("act was not called:\nthe arguments are not JSON")
    assert answers[4].text == "there is no tool 'ac', did you mean 'act'?"
    methods = [json.loads(line)["method"] for line in (tmp_path / "received.jsonl").read_text().splitlines()]
    assert methods == ["initialize", "notifications/initialized", "tools/list"]


async def test_a_server_knows_its_episode_and_works_in_the_universes_folder(tmp_path: Path) -> None:
    """The folder is its working directory and the env's state; params and task id are in its environment."""
    async with opened(raw("folder"), tmp_path) as env:
        assert (await env.call("act", {})).text == str(tmp_path)
        assert env.state == tmp_path
        assert (tmp_path / "notes.txt").exists()
    async with opened(raw("environment"), tmp_path, day=3, names=["é"]) as env:
        variables = json.loads((await env.call("act", {})).text)
    assert variables["AGENT_ENV_TASK_ID"] == "day-1"
    assert json.loads(variables["AGENT_ENV_PARAMS"]) == {"day": 3, "names": ["é"]}
    assert variables["AGENT_ENV_UNIVERSE"] == str(tmp_path)


async def test_without_a_universe_a_server_starts_in_an_empty_folder_that_goes_with_it() -> None:
    """The folder is there while the env is open, is its state, and is removed after it."""
    async with opened(raw("folder"), None) as env:
        folder = (await env.call("act", {})).text
        assert env.state == Path(folder)
        assert names(Path(folder)) == ["notes.txt"]
    assert names(Path(folder)) == ["it is not there"]


async def test_a_server_gets_a_safe_environment_and_what_the_bundle_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of the caller reach it by name only; `$${` stands for `${`."""
    monkeypatch.setenv("SHOP_KEY", "secret-1")
    monkeypatch.setenv("OTHER_KEY", "secret-2")
    given = {"KEY": "Bearer ${SHOP_KEY}", "PLAIN": "$${SHOP_KEY} $SHOP_KEY"}
    async with opened(raw("environment", environment=given), tmp_path) as env:
        environment = json.loads((await env.call("act", {})).text)
    assert environment["KEY"] == "Bearer secret-1"
    assert environment["PLAIN"] == "${SHOP_KEY} $SHOP_KEY"
    assert "OTHER_KEY" not in environment
    if sys.prefix != sys.base_prefix:
        assert environment["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    allowed = {"HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"}
    ours = {"AGENT_ENV_UNIVERSE", "AGENT_ENV_PARAMS", "AGENT_ENV_TASK_ID", "KEY", "PLAIN"}
    assert set(environment) <= allowed | ours


async def test_a_variable_that_is_not_set_is_named_and_nothing_is_started(tmp_path: Path) -> None:
    """One line names every variable and where it is asked for."""
    spec = raw("records", "${NO_SUCH_WORD}", environment={"KEY": "${NO_SUCH_KEY}"})
    with pytest.raises(EnvBrokenError) as caught:
        async with opened(spec, tmp_path):
            pass
    assert str(caught.value) == (
        "the MCP server of env 'shop' needs what is not set in the environment: NO_SUCH_KEY (in env.KEY), "
        "NO_SUCH_WORD (in command): set it and start again"
    )
    assert names(tmp_path) == []


async def test_a_value_that_came_from_the_environment_is_not_in_any_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that tells its key on stderr does not bring it into the run."""
    monkeypatch.setenv("SHOP_KEY", "secret-123")
    with pytest.raises(McpServerError) as caught:
        async with opened(raw("tells", environment={"KEY": "${SHOP_KEY}"}), tmp_path):
            pass
    assert "the key is ${SHOP_KEY}" in str(caught.value)
    assert "the key is ${SHOP_KEY}" in caught.value.details
    assert "secret-123" not in str(caught.value) + caught.value.details


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("no-such-program-anywhere", "there is no program 'no-such-program-anywhere' on the PATH"),
        ("/no/such/program", "/no/such/program is not there"),
        (str(SERVERS / "raw.py"), "may not be executed: chmod +x"),
        ("./folder", "is not there"),
    ],
)
async def test_a_program_that_cannot_be_run_is_named(tmp_path: Path, program: str, said: str) -> None:
    """One line says which program and why."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(EnvBrokenError) as caught:
        async with opened(McpSpec(command=(program,)), tmp_path):
            pass
    assert "the MCP server of env 'shop' cannot be started" in str(caught.value)
    assert said in str(caught.value)


async def test_a_program_that_is_no_program_is_said_to_be_none(tmp_path: Path) -> None:
    """What the system says when it cannot run a file is in the message; a command is never a shell's."""
    program = tmp_path / "server; touch made"
    program.write_bytes(b"\x00\x01\x02")
    program.chmod(0o755)
    with pytest.raises(EnvBrokenError, match="Exec format error") as caught:
        async with opened(McpSpec(command=(str(program),)), tmp_path):
            pass
    assert not isinstance(caught.value, McpServerError)
    assert names(tmp_path) == [program.name]


async def test_params_that_no_variable_can_hold_are_refused(tmp_path: Path) -> None:
    """The system's bound is said, with the way out."""
    with pytest.raises(EnvBrokenError, match="put what is large in the universe"):
        async with opened(raw("records"), tmp_path, text="x" * 200_000):
            pass


def _tool(name: str = "act", **schema: Any) -> dict[str, Any]:
    return {"name": name, "description": "Do it.", "inputSchema": {"type": "object", **schema}}


def _doubling() -> dict[str, Any]:
    """A schema of a few lines that has a million with its references written out."""
    definitions = {f"D{n}": {"properties": {x: {"$ref": f"#/$defs/D{n + 1}"} for x in "abcd"}} for n in range(9)}
    return {"$defs": {**definitions, "D9": {}}, "properties": {"all": {"$ref": "#/$defs/D0"}}}


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        (
            [_tool(properties={"a": {"$ref": "#/$defs/no"}})],
            "lists tool 'act' with an inputSchema that cannot be shown",
        ),
        ([_tool(properties={"a": {"$ref": "#/$defs/no"}})], "to a model: there is no #/$defs/no in it"),
        ([_tool(properties={"a": {"$ref": "https://a.example/b"}})], "there is no https://a.example/b in it"),
        ([_tool("x" * 65)], "with a name that model servers refuse: it has 65 characters, and 1 to 64 are taken"),
        ([_tool(), _tool()], "lists tool 'act' twice"),
        ([_tool("a.b"), _tool("a/b")], "lists tool 'a/b' and 'a.b', both of which a model sees as a_b"),
        ([_tool(**_doubling())], "with its references written out it is too large"),
    ],
)
async def test_a_tool_that_no_model_can_be_shown_is_named(tmp_path: Path, tools: list[Any], said: str) -> None:
    """It is an error at the start of the env, and not of the server: nothing died."""
    with pytest.raises(EnvBrokenError) as caught:
        async with opened(raw("lists", json.dumps(tools)), tmp_path):
            pass
    assert said in str(caught.value)
    assert not isinstance(caught.value, McpServerError)
    assert "\n" not in str(caught.value)


async def test_a_schema_that_contains_itself_is_shown_once_around_and_checked_all_the_way(tmp_path: Path) -> None:
    """The second time around it says no more than its type; references of older drafts are followed, too."""
    node = {"type": "object", "properties": {"child": {"$ref": "#/definitions/Node"}, "n": {"type": "integer"}}}
    root = {"$ref": "#/definitions/Node", "title": "R"}
    tool = _tool(definitions={"Node": node}, properties={"root": root})
    async with opened(raw("lists", json.dumps([tool])), tmp_path) as env:
        (shown,) = env.tools
        fits = await env.call("act", {"root": {"child": {"child": {"n": 1}}}})
        misfit = await env.call("act", {"root": {"child": {"child": {"n": "1"}}}})
    child = {"type": "object", "properties": {"child": {"type": "object"}, "n": {"type": "integer"}}}
    assert shown.parameters == {"type": "object", "properties": {"root": child}}
    assert fits.text == "done"
    assert misfit.text == 'act was not called:\nroot.child.child.n: expected an integer, got "1"'


async def test_equal_lists_of_tools_are_read_once(tmp_path: Path) -> None:
    """Every episode's server is asked for its tools, and what it lists is the same object for all."""
    async with opened(raw("pid"), tmp_path) as first, opened(raw("pid"), tmp_path) as second:
        assert first.tools[0] is second.tools[0]
        assert (await first.call("act", {})).text != (await second.call("act", {})).text


async def test_a_server_that_begins_without_a_handshake_is_understood(tmp_path: Path) -> None:
    """The protocol of 2026 has no handshake; a server of that kind alone refuses one."""
    async with opened(raw("needs_no_handshake", "discover"), tmp_path) as env:
        assert (await env.call("act", {"count": 1})).text == "done"


async def test_what_a_server_asks_of_its_client_is_answered(tmp_path: Path) -> None:
    """A ping is answered; sampling, roots, elicitation and what is unknown are refused; the call goes on."""
    async with opened(raw("asks"), tmp_path) as env:
        answer = await env.call("act", {})
    assert answer.text.splitlines() == [
        "ping: result",
        "roots/list: List roots not supported",
        "sampling/createMessage: Sampling not supported",
        "elicitation/create: Elicitation not supported",
        "no/such: Method not found",
    ]


@pytest.mark.parametrize("behaviour", ["notifies", "chatters", "text_id", "floods_stderr"])
async def test_what_answers_nothing_does_not_disturb(tmp_path: Path, behaviour: str) -> None:
    """Notifications of any kind and shape, lines that are no messages, a request's id as text, 300 MB of stderr."""
    async with opened(raw(behaviour), tmp_path) as env:
        answers = [await env.call("act", {}) for _ in range(1 if behaviour == "floods_stderr" else 3)]
    assert all(answer.text in ("done", "x") and not answer.is_error for answer in answers)


@pytest.mark.parametrize(
    ("behaviour", "text"),
    [
        ("surrogate", "a\N{REPLACEMENT CHARACTER}\\ud800\N{REPLACEMENT CHARACTER}b\N{GRINNING FACE}"),
        ("invalid_utf8", "a\N{REPLACEMENT CHARACTER}b"),
        ("not_a_number", '{"n":null}\n(null stands for a number that is not finite)'),
    ],
)
async def test_a_text_that_is_none_is_made_one(tmp_path: Path, behaviour: str, text: str) -> None:
    """Half surrogates, NUL, bytes that are no UTF-8 and NaN are put right, and no more than they."""
    async with opened(raw(behaviour), tmp_path) as env:
        answer = await env.call("act", {})
    assert answer.text == text
    json.dumps(answer.content, allow_nan=False)


@pytest.mark.parametrize("code", [-32602, -32603, -32000, -32050, 0, 42])
async def test_an_error_that_is_the_calls_is_an_answer(tmp_path: Path, code: int) -> None:
    """Servers say with these codes that the arguments are wrong, or that the tool has raised."""
    async with opened(raw("refuses", str(code)), tmp_path) as env:
        answer = await env.call("act", {})
        again = await env.call("act", {})
    assert answer.is_error
    assert answer.text == again.text == "the reason"


async def test_structured_content_is_checked_against_the_tools_output_schema(tmp_path: Path) -> None:
    """A whole number with a point is an integer, as JSON has it; an error needs no structure."""
    for content, text in (('{"structuredContent": {"n": 1.0}}', '{"n":1.0}'), ('{"isError": true}', "the tool failed")):
        async with opened(raw("structured", content), tmp_path) as env:
            assert (await env.call("act", {})).text.startswith(text)


async def test_without_the_extra_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes at use, not at import."""
    monkeypatch.delitem(sys.modules, "agent_env.envs._mcp_session", raising=False)
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtraError) as caught:
        async with opened(raw("records"), tmp_path):
            pass
    assert str(caught.value) == (
        "env 'shop', an MCP server, needs 'mcp', which is not installed: install the extra 'mcp' (in a clone of AgentEnv:"
        " pip install '.[mcp]')"
    )


async def test_another_major_version_of_the_sdk_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's second version renamed most of what is used."""
    monkeypatch.delitem(sys.modules, "agent_env.envs._mcp_session", raising=False)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.9.0")
    with pytest.raises(MissingExtraError, match=r"needs 'mcp' 2, and 1\.9\.0 is installed"):
        async with opened(raw("records"), tmp_path):
            pass


def test_the_sdk_is_not_imported_before_a_server_is_opened() -> None:
    """Importing it takes half a second that episodes without servers do not pay."""
    code = "import sys, agent_env.envs.mcp; sys.exit('mcp' in sys.modules or 'mcp_types' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
