"""Episodes in envs that are no Python class: an MCP server, a sandbox; and commands as steps and verifiers."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path

import pytest

from agent_env import FailureKind, Message, Outcome, PlayerTurn, RunIndex, load_bundle, open_episode, play

MakeFolder = Callable[[Mapping[str, str]], Path]

SERVER = '''
import json
import os
import sys
from pathlib import Path

from mcp.server.mcpserver import MCPServer

server = MCPServer("notes")


@server.tool()
def note(text: str) -> str:
    """Write a note down.

    Args:
        text: The note.
    """
    notes = Path("notes.txt")
    notes.write_text(notes.read_text() + text + "\\n")
    return f"{text} for {json.loads(os.environ['AGENT_ENV_PARAMS'])['who']}"


@server.tool()
def fall() -> str:
    """Fall over."""
    print("I fell", file=sys.stderr, flush=True)
    os._exit(3)


server.run()
'''
NOTES = {
    "bundle.yaml": (
        "name: notes\nenvs:\n  notes: {mcp: {command: ['"
        + sys.executable
        + "', servers/notes.py]}, universe: universes/desk}\n"
    ),
    "servers/notes.py": SERVER,
    "universes/desk/notes.txt": "first\n",
    "verifiers/noted.py": "def score(episode):\n    return (episode.state() / 'notes.txt').read_text() == 'first\\nsecond\\n'\n",
    "tasks/a.yaml": "id: a\nparams: {who: Ada}\nprompt: Note it.\nverify: {python: verifiers/noted.py}\n",
}


@pytest.fixture
def write(tmp_path: Path) -> MakeFolder:
    """Writes a bundle."""

    def make(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            (tmp_path / "bundle" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "bundle" / name).write_text(text)
        return tmp_path / "bundle"

    return make


def calls(*named: tuple[str, str]) -> Callable[[PlayerTurn], Message]:
    """A player that makes some calls, one a message, and is done."""

    def say(turn: PlayerTurn) -> Message:
        said = sum(message["role"] == "assistant" for message in turn.messages)
        if said == len(named):
            return {"role": "assistant", "content": "done"}
        name, arguments = named[said]
        return {"role": "assistant", "content": "", "tool_calls": [{"name": name, "arguments": arguments}]}

    return say


async def test_an_mcp_servers_tools_are_an_envs(write: MakeFolder, tmp_path: Path) -> None:
    """It starts in a private copy of the universe, which verifiers read, and what it changed is in the run."""
    task = load_bundle(write(NOTES)).task("a")
    with RunIndex.open(tmp_path / "runs") as index:
        result = await play(task, calls(("note", '{"text": "second"}')), sink=index.run("g"))
        index.flush()
        events = list(index.events(result.run_id))
    assert result.scores["noted"].value == 1
    (answer,) = [event.data for event in events if event.kind == "answer"]
    assert answer["text"] == "second for Ada"
    (state,) = [event.data for event in events if event.kind == "state"]
    assert [change["path"] for change in state["changes"]] == ["/notes.txt"]
    assert (tmp_path / "bundle/universes/desk/notes.txt").read_text() == "first\n"


async def test_a_server_that_dies_fails_the_episode_with_its_last_words(write: MakeFolder) -> None:
    """The kind says what broke, and the end of its stderr is in the run."""
    result = await play(load_bundle(write(NOTES)).task("a"), calls(("fall", "{}")))
    assert result.outcome is Outcome.FAILED
    assert result.failure is not None
    assert result.failure.kind is FailureKind.MCP_DIED
    assert "fall" in result.failure.message
    assert "I fell" in result.failure.traceback


async def test_a_server_that_never_starts_says_where_it_stood(write: MakeFolder) -> None:
    """A start that takes too long is told with what the server wrote."""
    hangs = "import sys, time\nprint('waiting for the moon', file=sys.stderr, flush=True)\ntime.sleep(600)\n"
    task = (
        "id: a\nparams: {who: Ada}\nsteps:\n  - {deploy_env: notes, timeout_s: 2}\n  - deploy_agent: agent\n  - prompt: x\n"
        "  - verify: {python: verifiers/noted.py}\n"
    )
    found = load_bundle(write({**NOTES, "servers/notes.py": hangs, "tasks/a.yaml": task})).task("a")
    import_module(
        "agent_env.envs._mcp_session"
    )  # the SDK takes long to import, which is not to come out of the two seconds
    result = await play(found, calls())
    assert result.failure is not None
    assert result.failure.kind is FailureKind.STEP_TIMEOUT
    assert "waiting for the moon" in result.failure.traceback


BOX = {
    "bundle.yaml": (
        "name: box\nenvs:\n  box: {sandbox: jail, universe: universes/repo}\nsandboxes:\n  jail: {provider: bwrap}\n"
    ),
    "universes/repo/sum.py": "print(1 + 1)\n",
    "verifiers/tests/check.sh": 'test "$(python3 sum.py)" = 3\n',
    "tasks/a.yaml": (
        'id: a\nprompt: Make it print 3.\nverify: {command: "sh $AGENT_ENV_VERIFIER/check.sh", files: verifiers/tests}\n'
    ),
}
needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


@needs_bwrap
@pytest.mark.parametrize(("command", "score"), [("echo 'print(3)' > sum.py", 1.0), ("true", 0.0)])
async def test_an_agent_works_in_a_sandbox_and_a_command_scores_it(
    write: MakeFolder, tmp_path: Path, command: str, score: float
) -> None:
    """The universe is its working directory; the bundle's files are there for the verifier alone; the run keeps the change."""
    task = load_bundle(write(BOX)).task("a")
    looks = ("bash", '{"command": "ls $AGENT_ENV_VERIFIER/ / 2>&1 | grep check.sh"}')
    with RunIndex.open(tmp_path / "runs") as index:
        result = await play(task, calls(("bash", f'{{"command": "{command}"}}'), looks), sink=index.run("g"))
        index.flush()
        events = list(index.events(result.run_id))
    assert result.scores["command"].value == score
    (state,) = [event.data for event in events if event.kind == "state"]
    assert [change["path"] for change in state["changes"]] == (["/sum.py"] if score else [])
    answers = [event.data["text"] for event in events if event.kind == "answer"]
    assert "check.sh" not in answers[-1]


@needs_bwrap
async def test_what_an_agent_left_for_every_python_to_run_is_not_run_by_a_verifier(write: MakeFolder) -> None:
    """Neither by its variables, nor by what Python and the shell look for in its home."""
    prepare = (
        "echo 'import os; os._exit(0)' > /tmp/sitecustomize.py; cd; echo 'exit 0' | tee .bashrc .profile .bash_profile;"
        "site=$(python3 -c 'import site; print(site.getusersitepackages())'); mkdir -p $site;"
        "cp /tmp/sitecustomize.py $site/usercustomize.py; cp /tmp/sitecustomize.py $site/x.pth; cp .profile /tmp/env;"
        "export PYTHONPATH=/tmp BASH_ENV=/tmp/env ENV=/tmp/env PATH=/tmp:$PATH"
    )
    task = "id: a\nprompt: x\nverify: {command: 'python3 -c \"exit(1)\"'}\n"
    player = calls(("bash", json.dumps({"command": prepare})), ("bash", '{"command": "python3 -c \\"exit(1)\\""}'))
    result = await play(load_bundle(write({**BOX, "tasks/a.yaml": task})).task("a"), player)
    assert result.scores["command"].value == 0


FORGE = (
    "(while [ -d /run/agent-env ]; do for file in score.json $(find /run /tmp -name score.json -o -name check.sh); do "
    "echo 1 >$file; done; kill -9 $(pgrep -f check.sh); : >forged; done) >/dev/null 2>&1 & until test -e forged; do :; done"
)
GRADE = """
rm forged; until test -e forged; do :; done
echo 0.25 >$AGENT_ENV_SCORE
rm forged; until test -e forged; do :; done
"""


@needs_bwrap
async def test_what_an_agent_left_running_writes_no_score(write: MakeFolder) -> None:
    """It goes on while the verifier runs, and writes 1 wherever it can; the score is the verifier's."""
    task = (
        'id: a\nprompt: x\nverify: {command: "sh $AGENT_ENV_VERIFIER/check.sh", files: verifiers/tests, '
        "score_file: score.json, timeout_s: 30}\n"
    )
    files = {**BOX, "verifiers/tests/check.sh": GRADE, "tasks/a.yaml": task}
    result = await play(load_bundle(write(files)).task("a"), calls(("bash", json.dumps({"command": FORGE}))))
    assert result.scores["command"].value == 0.25


@needs_bwrap
async def test_a_server_that_an_agent_left_running_is_there_for_a_verifier(write: MakeFolder) -> None:
    """It is what the agent was asked for, say; and the verifier runs a program of the agent's where the agent did."""
    check = (
        "until python3 $AGENT_ENV_VERIFIER/get.py >$TMPDIR/page 2>/dev/null; do :; done\n"
        'test "$(cat $TMPDIR/page)" = "$($AGENT_ENV_AS_AGENT python3 sum.py)"\n'
    )
    get = "import urllib.request as u; print(u.urlopen('http://localhost:8000').read().decode())\n"
    files = {**BOX, "verifiers/tests/check.sh": check, "verifiers/tests/get.py": get}
    serve = "mkdir www && echo 2 >www/index.html && cd www && (setsid python3 -m http.server 8000 >/dev/null 2>&1 &)"
    result = await play(load_bundle(write(files)).task("a"), calls(("bash", json.dumps({"command": serve}))))
    assert result.scores["command"].value == 1


@needs_bwrap
@pytest.mark.parametrize(
    ("command", "kind"), [("exit 3", FailureKind.RUN_STEP), ("sleep 60", FailureKind.STEP_TIMEOUT), ("true", None)]
)
async def test_a_run_step_may_be_a_command(write: MakeFolder, command: str, kind: FailureKind | None) -> None:
    """An exit code other than 0, and a command that takes too long, fail the step."""
    task = (
        "id: a\nsteps:\n  - deploy_env: box\n  - deploy_agent: agent\n"
        f"  - {{run: {{command: '{command}'}}, timeout_s: 1.5}}\n  - prompt: x\n  - verify: {{command: 'true'}}\n"
    )
    result = await play(load_bundle(write({**BOX, "tasks/a.yaml": task})).task("a"), calls())
    assert (None if result.failure is None else result.failure.kind) == kind


@needs_bwrap
async def test_a_verifier_in_python_looks_into_the_sandbox(write: MakeFolder) -> None:
    """`episode.state()` is the sandbox: it runs commands and reads files."""
    code = "async def score(episode):\n    return (await episode.state().run('cat sum.py')).text == 'print(1 + 1)\\n'\n"
    files = {"verifiers/same.py": code, "tasks/a.yaml": "id: a\nprompt: x\nverify: {python: verifiers/same.py}\n"}
    result = await play(load_bundle(write({**BOX, **files})).task("a"), calls())
    assert result.scores["same"].value == 1


@needs_bwrap
async def test_a_verifier_in_python_may_run_its_commands_apart(write: MakeFolder) -> None:
    """Where what the agent left running cannot change their answer."""
    code = (
        "from agent_env.sandbox import open_verifier_side\n"
        "async def score(episode):\n"
        "    async with open_verifier_side(episode.state('box')) as side:\n"
        "        result = await side.run('test -d $TMPDIR && /usr/bin/python3 -P sum.py', timeout_s=20)\n"
        "    return side.is_apart and result.text == '2\\n'\n"
    )
    files = {"verifiers/sum.py": code, "tasks/a.yaml": "id: a\nprompt: x\nverify: {python: verifiers/sum.py}\n"}
    result = await play(load_bundle(write({**BOX, **files})).task("a"), calls())
    assert result.scores["sum"].value == 1


@needs_bwrap
async def test_nothing_of_a_sandbox_is_left_when_its_episode_is_abandoned(write: MakeFolder) -> None:
    """A command that is under way ends with it."""
    async with open_episode(load_bundle(write(BOX)).task("a")) as episode:
        turn = await episode.start()
        assert turn is not None
        await turn.call("bash", {"command": "setsid sleep 98765 & echo started"})
    assert _running(b"98765") == []


def _running(word: bytes) -> list[Path]:
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if word in _read(path)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
