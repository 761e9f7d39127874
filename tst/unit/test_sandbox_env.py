"""An env that is a machine to work in: what an agent's `bash`, `read_file` and `write_file` answer."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_env.bundle import SandboxProvider, SandboxSpec
from agent_env.envs.contract import EnvSession, ToolAnswer
from agent_env.envs.sandbox_env import open_sandbox_env, shell_text
from agent_env.errors import EnvBrokenError

OpenEnv = Callable[..., AbstractAsyncContextManager[EnvSession]]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """Where the sandboxes of a test have their files. Not in pytest's folder, which the users of root's cannot enter."""
    tmp_path_factory.getbasetemp()  # once made, it stays where it is
    with tempfile.TemporaryDirectory(prefix="agent-env-test-") as folder:
        os.chmod(folder, 0o711)
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr("tempfile.tempdir", None)
        yield Path(folder)


@pytest.fixture
def open_env(place: Path) -> OpenEnv:
    """Opens a sandbox of bubblewrap as an env, with the settings of a `SandboxSpec`."""
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed: apt install bubblewrap")

    @asynccontextmanager
    async def open_env(folder: Path | None = None, **settings: Any) -> AsyncGenerator[EnvSession]:
        spec = SandboxSpec(provider=SandboxProvider.BWRAP, **{"command_timeout_s": 20.0, **settings})
        async with open_sandbox_env("box", spec, folder=folder) as session:
            yield session

    return open_env


async def bash(session: EnvSession, command: str, **more: Any) -> ToolAnswer:
    """Call the tool."""
    return await session.call("bash", {"command": command, **more})


async def said(session: EnvSession, *commands: str) -> list[str]:
    """Call the tool for one command after the other, and return what it answers."""
    answers: list[str] = []
    for command in commands:
        answer = await bash(session, command)
        assert not answer.is_error, answer
        answers.append(answer.text)
    return answers


async def test_its_tools_are_described_with_its_bounds(open_env: OpenEnv) -> None:
    """A model is told where it starts, what is kept, and what is not."""
    async with open_env(output_chars=1234, command_timeout_s=7.5) as session:
        tools = {tool.name: tool for tool in session.tools}
    assert list(tools) == ["bash", "read_file", "write_file"]
    for part in ("starting in /workspace", "killed after 7.5 seconds", "beyond 1,234 characters", "exported variables"):
        assert part in tools["bash"].description
    assert tools["bash"].parameters["required"] == ["command"]
    assert tools["read_file"].parameters["properties"]["path"]["description"].endswith("starts in /workspace.")
    assert "{" not in "".join(tool.description for tool in tools.values())


async def test_the_folder_and_exported_variables_are_kept(open_env: OpenEnv) -> None:
    """From one call to the next, with any content; other variables and functions are not."""
    async with open_env(environment={"GIVEN": "1", "TAKEN": "1"}) as session:
        answers = await said(
            session,
            "pwd; mkdir -p 'a b/c'; cd 'a b'; export X=\"1 '2' $(printf '\\n3')\" E=; unset TAKEN; y=lost; f() { :; }",
            'pwd; echo "$X|$E|$GIVEN|${TAKEN-gone}|$y|$(type -t f)"; cd c; export X=new',
            'pwd; echo "$X"; cd -',
            "pwd; export -n X",
            "echo ${X-gone}; cd",
            "pwd",
        )
    assert answers[:4] == [
        "/workspace",
        "/workspace/a b\n1 '2' \n3||1|gone||",
        "/workspace/a b/c\nnew\n/workspace/a b",
        "/workspace/a b",
    ]
    assert answers[4:] == ["gone", "/home/agent"]


@pytest.mark.parametrize("end", ["exit 3", "set -e; false", "set -u; echo $nope", "trap 'echo mine' EXIT"])
async def test_they_are_kept_however_the_command_ends(open_env: OpenEnv, end: str) -> None:
    """When its shell ends by itself."""
    async with open_env() as session:
        await bash(session, f"cd /tmp; export X=1; {end}")
        assert await said(session, "pwd; echo $X") == ["/tmp\n1"]


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("echo hi", "hi"),
        ("true", "[no output]"),
        ("echo out; echo err >&2; echo out", "out\nerr\nout"),
        ("exit 5", "[exit code 5]"),
        ("echo a; false", "a\n[exit code 1]"),
        ("set -e; false; echo no", "[exit code 1]"),
        ("set -u; echo $nope; echo no", "/bin/bash: line 1: nope: unbound variable\n[exit code 127]"),
        ("echo a\nnosuch\n", "a\n/bin/bash: line 2: nosuch: command not found\n[exit code 127]"),
        ("exec echo replaced", "replaced"),
        ("exec >&-; exec 2>&-", "[no output]"),
        ("exec 0<&- 1>/dev/null; echo no", "[no output]"),
        ("cat; read -r x; echo $?", "1"),
        ("kill -9 $$", "[exit code 137]"),
        ("[ -d /run/agent-env ] && kill -9 -1 2>/dev/null; echo on", "on"),
        ("trap 'echo mine' EXIT; exit 3", "mine\n[exit code 3]"),
        ("echo 'open", "/bin/bash: eval: line 1: unexpected EOF while looking for matching `''\n[exit code 2]"),
        ("if true; then", "/bin/bash: eval: line 2: syntax error: unexpected end of file\n[exit code 2]"),
        ("cat <<EOF 2>/dev/null\nopen\nEOF", "open"),
        ("printf '\\377\\000\\355\\240\\200'", "\N{REPLACEMENT CHARACTER}" * 5),
        ("# nothing", "[no output]"),
        ("", "[no output]"),
        ("set -x; true", "++ true"),
        ("set -v; true", "[no output]"),
        ("(exit 4) | cat", "[no output]"),
        ("printf 'no newline'", "no newline"),
        ('echo "$0" $# $-', "/bin/bash 0 hBc"),
        ("builtin() { :; }; exit() { :; }; mv() { :; }; echo odd", "odd"),
        ("alias cd=false; shopt -s expand_aliases; echo odd", "odd"),
        ("bash <<<'echo nested; exit 2'", "nested\n[exit code 2]"),
    ],
)
async def test_whatever_a_command_does_to_its_shell_it_has_an_answer(
    open_env: OpenEnv, command: str, answer: str
) -> None:
    """And the shell of the next one is as it was, in the folder that it was in."""
    async with open_env() as session:
        await bash(session, "mkdir sub && cd sub && export KEPT=kept")
        assert (await bash(session, command)).text == answer
        assert await said(session, "pwd; echo $KEPT; echo err >&2") == ["/workspace/sub\nkept\nerr"]


async def test_a_folder_that_is_gone_is_said_once(open_env: OpenEnv) -> None:
    """And the next command starts where the first did."""
    async with open_env() as session:
        answers = await said(session, "mkdir x; cd x; rmdir ../x", "pwd", "pwd")
    assert answers == ["[no output]", "[/workspace/x is no more: back in /workspace]\n/workspace", "/workspace"]


async def test_what_cannot_be_kept_leaves_what_was(open_env: OpenEnv) -> None:
    """The place for it is the sandbox's own, so that a command can take it away."""
    async with open_env() as session:
        await bash(session, "cd /tmp; export A=1")
        assert await said(session, "echo $A; rm -rf /run/agent-env/*; kill -9 $$ &") != []
        await bash(session, "rm -rf /run/agent-env/*; chmod 500 /run/agent-env; cd /usr")
        assert await said(session, "pwd") == ["/workspace"]


async def test_a_long_output_has_its_middle_left_out(open_env: OpenEnv) -> None:
    """Beginning and end are there, and how many bytes are not; however long it was."""
    async with open_env(output_chars=1000) as session:
        (text,) = await said(session, "yes äöü | head -c 100000000")
        (short,) = await said(session, "printf 'ä%.0s' $(seq 1000)")
        (longer,) = await said(session, "printf 'ä%.0s' $(seq 1001)")
    assert text.startswith("äöü\näöü\n")
    assert "\näöü\näöü\n" in text[-50:]
    head, between, tail = text.partition("\n[... ")
    left_out = int(tail.partition(" bytes left out ...]\n")[0].replace(",", ""))
    kept = len(head.encode()) + len(tail.partition("]\n")[2].encode())
    assert between
    assert 100_000_000 - left_out - kept in range(-2, 3)  # the newline at the end
    assert short == "ä" * 1000
    assert longer == "ä" * 500 + "\n[... 2 bytes left out ...]\n" + "ä" * 500


async def test_a_timeout_is_an_error_and_the_sandbox_goes_on(open_env: OpenEnv) -> None:
    """The model may ask for less time than the bundle gives, and not for more."""
    async with open_env(command_timeout_s=1.0) as session:
        for timeout_s in (0.2, 0, -5, 1e300):
            answer = await bash(session, "cd /tmp; echo begun; sleep 30", timeout_s=timeout_s)
            assert answer.is_error
            assert answer.text.splitlines()[-1].startswith("[killed: it took longer than ")
        assert await said(session, "pwd") == ["/workspace"]


async def test_background_processes_go_on(open_env: OpenEnv) -> None:
    """A server that was started in one call answers in the next."""
    async with open_env() as session:
        await said(session, "echo served >index.html; python3 -m http.server 8000 >server.log 2>&1 &")
        get = "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://localhost:8000\").read().decode())'"
        (text,) = await said(session, f"until {get} 2>/dev/null; do sleep 0.05; done")
        assert text == "served"
        assert await said(session, "nohup sleep 100 & echo $! >pid", "kill $(cat pid) && echo there") == [
            "[no output]",
            "there",
        ]


async def test_a_command_of_any_size_is_run(open_env: OpenEnv) -> None:
    """A model writes files with heredocs."""
    async with open_env() as session:
        command = f"cat >big <<'EOF'\n{'x' * 1_000_000}\nEOF\nwc -c big"
        assert await said(session, command) == ["1000001 big"]


@pytest.mark.parametrize("command", ["a\0b", "\ud800"])
async def test_what_is_no_command_is_an_answer(open_env: OpenEnv, command: str) -> None:
    """The model may try again."""
    async with open_env() as session:
        answer = await bash(session, command)
        assert answer.is_error
        assert await said(session, "echo on") == ["on"]


async def test_files_are_read_and_written(open_env: OpenEnv) -> None:
    """Whole, or some lines."""
    async with open_env(output_chars=100) as session:

        async def call(tool: str, **arguments: Any) -> ToolAnswer:
            return await session.call(tool, arguments)

        assert (await call("write_file", path="a/b.txt", content="eins\nzwei\ndrei")).text == "wrote 14 bytes"
        assert (await call("read_file", path="a/b.txt")).text == "eins\nzwei\ndrei"
        assert (await call("read_file", path="/workspace/a/b.txt", first_line=2, lines=1)).text == "zwei\n"
        assert (await call("read_file", path="a/b.txt", first_line=3)).text == "drei"
        assert (await call("read_file", path="a/b.txt", first_line=4)) == ToolAnswer(
            "the file has 3 lines", is_error=True
        )
        await bash(session, "printf '\\377\\000' >bytes; : >empty; seq 1000 >long; mkfifo pipe")
        assert (await call("read_file", path="bytes")).text == "\N{REPLACEMENT CHARACTER}" * 2
        assert (await call("read_file", path="empty")).text == "[the file is empty]"
        long = (await call("read_file", path="long")).text
        assert long.startswith("1\n2\n")
        assert long.endswith("999\n1000\n")
        assert "[... 3,793 bytes left out ...]" in long
        for path, text in (
            ("nope", "nope: No such file or directory"),
            ("a", "a: Is a directory"),
            ("pipe", "pipe: it is no regular file"),
            ("/etc/shadow", "/etc/shadow: No such file or directory"),
            ("\0", "a command and a path cannot hold a NUL character"),
        ):
            answer = await call("read_file", path=path)
            assert (answer.text, answer.is_error) == (text, True)
        assert (await call("write_file", path="/etc/x", content="")).text == "/etc/x: Read-only file system"
        assert (await call("write_file", path="a", content="")).text == "a: Is a directory"
        assert (await call("nope", path="a")).is_error
        assert "path: missing" in (await call("read_file")).text


async def test_its_state_is_the_sandbox_without_what_the_agent_did_to_its_shell(open_env: OpenEnv) -> None:
    """Verifiers run their commands in it, and read its files."""
    async with open_env() as session:
        await bash(session, "cd /tmp; export PATH=/tmp; echo '42' >/workspace/answer")
        result = await session.state.run("pwd; cat answer")
        assert (result.exit_code, result.text) == (0, "/workspace\n42\n")
        assert await session.state.read_file("answer") == b"42\n"


async def test_the_universe_is_the_working_directory(open_env: OpenEnv, place: Path) -> None:
    """What the agent does in it is there afterwards."""
    folder = place / "universe"
    folder.mkdir()
    (folder / "here").write_text("from outside\n")
    async with open_env(folder) as session:
        assert await said(session, "cat here; echo new >new") == ["from outside"]
        assert (folder / "new").exists()
    assert (folder / "new").read_text() == "new\n"


async def test_setup_runs_first_and_fails_the_episode(open_env: OpenEnv) -> None:
    """With the command and what it said."""
    async with open_env(setup=("mkdir made", "echo x >made/file")) as session:
        assert await said(session, "cat made/file") == ["x"]
    with pytest.raises(EnvBrokenError, match="env 'box': the setup command 'echo why >&2; exit 7' ended with 7: why"):
        async with open_env(setup=("true", "echo why >&2; exit 7")):
            pass
    with pytest.raises(EnvBrokenError, match="the setup command 'sleep 30' took too long: it said nothing"):
        async with open_env(setup=("sleep 30",), command_timeout_s=0.2):
            pass


async def test_without_bash_it_is_a_plain_shell(open_env: OpenEnv) -> None:
    """Images have no bash at times: what is kept is kept there too."""
    async with open_env() as session:
        text = shell_text(session.state)

        async def sh(command: str) -> str:
            result = await session.state.run(["/bin/sh", "-c", text], stdin=command.encode())
            return f"{result.text}{result.exit_code}"

        assert await sh('cd /tmp; export X="1 \'2"; exit 3') == "3"
        assert await sh('pwd; echo "$X"; cat; false') == "/tmp\n1 '2\n1"
        assert await sh("echo 'open") != ""
        assert await sh("pwd") == "/tmp\n0"
