"""A command in the sandbox as verifier: what is a score, what fails the step, and what an agent cannot prepare."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from agent_env import FailureKind, Score, load_bundle
from agent_env.bundle import Command, CommandVerifier, SandboxProvider, SandboxSpec
from agent_env.errors import BundleError
from agent_env.sandbox.contract import Sandbox
from agent_env.sandbox.host import open_host
from agent_env.verify.command import command_score
from agent_env.verify.step_failed import StepFailedError

ScoreIt = Callable[..., Any]


@pytest.fixture
async def box() -> AsyncGenerator[Sandbox]:
    """A sandbox; one without isolation starts everywhere."""
    async with open_host(SandboxSpec(provider=SandboxProvider.HOST), files=None) as sandbox:
        yield sandbox


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle's folder with files for a verifier."""
    root = tmp_path / "bundle"
    (root / "tests" / "data").mkdir(parents=True)
    (root / "tests" / "check.sh").write_text('grep -q done "$1"\n')
    (root / "tests" / "check.sh").chmod(0o755)
    (root / "tests" / "data" / "wanted.txt").write_bytes(b"\xff\x00wanted")
    (root / "tests" / "__pycache__").mkdir()
    (root / "tests" / "__pycache__" / "check.pyc").touch()
    return root


@pytest.fixture
def score(box: Sandbox, bundle: Path) -> ScoreIt:
    """Runs a command as verifier."""

    async def run(
        command: str, *, files: str | None = None, score_file: str | None = None, timeout_s: float | None = 10
    ) -> Score:
        verifier = CommandVerifier(
            command=Command(env="box", command=command, files=None if files is None else Path(files)),
            score_file=score_file,
        )
        return await command_score("tests", verifier, box, root=bundle, timeout_s=timeout_s)

    return run


@pytest.mark.parametrize(
    ("command", "value", "explanation"),
    [
        ("true", 1.0, "exit code 0"),
        ("echo fine", 1.0, "exit code 0\nstdout:\nfine"),
        ("echo bad; echo worse >&2; exit 1", 0.0, "exit code 1\nstdout:\nbad\nstderr:\nworse"),
        ("exit 255", 0.0, "exit code 255"),
        ("exit 125", 0.0, "exit code 125"),
        ("printf 'a\\000\\377b'", 1.0, "exit code 0\nstdout:\na\ufffd\ufffdb"),
    ],
)
async def test_the_exit_code_is_the_score(score: ScoreIt, command: str, value: float, explanation: str) -> None:
    """0 is 1.0, another one 0.0; what it printed explains it."""
    scored = await score(command)
    assert (scored.step, scored.value, scored.explanation) == ("tests", value, explanation)


async def test_the_end_of_a_long_output_explains(score: ScoreIt) -> None:
    """That is where test runners say what failed."""
    scored = await score("seq 1 100000; echo FAILED; exit 1")
    assert len(scored.explanation) < 2100
    assert scored.explanation.startswith("exit code 1\nstdout:\n…")
    assert scored.explanation.endswith("\nFAILED")


@pytest.mark.parametrize(
    ("command", "kind", "said"),
    [
        (
            "no-such-program",
            "verifier_raised",
            "the command is not there (exit code 127): ",
        ),
        ("./box.txt", "verifier_raised", "the command cannot be run (exit code 126)"),
        ("kill -9 $$", "verifier_raised", "the command was ended by SIGKILL, so it says nothing of the agent"),
        ("kill -SEGV $$", "verifier_raised", "the command was ended by SIGSEGV"),
        ("exec sleep 9", "verifier_timeout", "the command took longer than 0.2 s"),
    ],
)
async def test_a_command_that_did_not_end_by_itself_is_no_score(
    score: ScoreIt, box: Sandbox, command: str, kind: str, said: str
) -> None:
    """It says nothing about the agent, so the step fails; there is no 0 for it."""
    await box.write_file("box.txt", "not executable")
    with pytest.raises(StepFailedError) as caught:
        await score(command, timeout_s=0.2 if "sleep" in command else 10)
    assert caught.value.kind == kind
    assert caught.value.message.startswith(said)


@pytest.mark.parametrize(
    ("written", "value", "explanation", "metrics"),
    [
        ("0.75", 0.75, "exit code 0", {}),
        (" -2e1\n", -20.0, "exit code 0", {}),
        ("true", 1.0, "exit code 0", {}),
        ('{"score": 0.5, "explanation": "half", "metrics": {"passed": 3}}', 0.5, "half", {"passed": 3.0}),
    ],
)
async def test_a_file_may_be_the_score(
    score: ScoreIt, written: str, value: float, explanation: str, metrics: dict[str, float]
) -> None:
    """A number, or what a Python verifier returns, as JSON."""
    scored = await score(f"printf '%s' '{written}' > $AGENT_ENV_SCORE", score_file="out.json")
    assert (scored.value, scored.explanation, dict(scored.metrics)) == (value, explanation, metrics)


async def test_a_file_is_the_score_whatever_the_exit_code(score: ScoreIt) -> None:
    """Test runners exit with 1 where a test failed, and a share of them may have passed."""
    assert (await score('echo 0.25 > "$AGENT_ENV_SCORE"; exit 1', score_file="out")).value == 0.25


async def test_the_file_has_the_name_and_folders_that_are_asked_for(score: ScoreIt) -> None:
    """Some programs take a folder, or look at the end of the name."""
    command = 'case "$AGENT_ENV_SCORE" in */logs/deep/reward.json) echo 0.5 > "$AGENT_ENV_SCORE";; esac'
    assert (await score(command, score_file="logs/deep/reward.json")).value == 0.5


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("true", 'the command (exit code 0) wrote no score to "$AGENT_ENV_SCORE"'),
        ("exit 3", 'the command (exit code 3) wrote no score to "$AGENT_ENV_SCORE"'),
        (
            "touch OUT",
            "what the command wrote to $AGENT_ENV_SCORE has no JSON in it but 'nothing': write a finite number, or",
        ),
        ("echo 3/4 > OUT", "what the command wrote to $AGENT_ENV_SCORE has no JSON in it but '3/4'"),
        ("echo NaN > OUT", "what the command wrote to $AGENT_ENV_SCORE has no JSON in it but 'NaN'"),
        ("echo 1e999 > OUT", "what the command wrote to $AGENT_ENV_SCORE returned inf: return a finite number"),
        (
            "echo '\"1\"' > OUT",
            "what the command wrote to $AGENT_ENV_SCORE returned the string '1', which is no number",
        ),
        ("echo null > OUT", "what the command wrote to $AGENT_ENV_SCORE returned None, which is no number"),
        (
            "echo '{\"points\": 1}' > OUT",
            "what the command wrote to $AGENT_ENV_SCORE returned a key 'points': write one of",
        ),
        ("printf '\\377' > OUT", "what the command wrote to $AGENT_ENV_SCORE has no JSON in it but"),
        (
            "head -c 2000000 /dev/zero > OUT",
            "what the command wrote to $AGENT_ENV_SCORE cannot be read: it has 2,000,000",
        ),
        ("mkdir OUT", "what the command wrote to $AGENT_ENV_SCORE cannot be read: Is a directory"),
        ("yes '[' | head -n 100000 > OUT", "what the command wrote to $AGENT_ENV_SCORE has no JSON in it but"),
    ],
)
async def test_a_file_without_a_finite_number_fails_the_step(score: ScoreIt, command: str, said: str) -> None:
    """There is no score that nobody wrote."""
    with pytest.raises(StepFailedError) as caught:
        await score(command.replace("OUT", '"$AGENT_ENV_SCORE"'), score_file="out")
    assert caught.value.kind is FailureKind.SCORE_INVALID
    assert caught.value.message.startswith(said)


@pytest.mark.parametrize("before", ["echo 1 > out", "mkdir out && echo 1 > out/x", "ln -s /etc/passwd out"])
async def test_what_an_agent_writes_under_the_file_s_name_is_no_score(
    score: ScoreIt, box: Sandbox, before: str
) -> None:
    """The score is in a folder that is made for the verifier, which the command is told; not where the agent worked."""
    await box.run(before)
    with pytest.raises(StepFailedError, match="wrote no score to "):
        await score("true", score_file="out")
    assert (await score("echo 0 > $AGENT_ENV_SCORE", score_file="out")).value == 0.0
    assert (await box.run("test -e out")).is_ok


PLACES = ["/tmp/score.json", "../score.json", ".", "a/../../b"]


@pytest.mark.parametrize("place", PLACES)
def test_a_score_file_outside_is_a_problem_of_the_bundle(tmp_path: Path, place: str) -> None:
    """Said when it is loaded, with the line."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "bundle.yaml").write_text("name: b\nsandboxes: {s: {}}\nenvs: {box: {sandbox: s}}\n")
    task = f"id: a\nprompt: x\nverify: {{command: 'true', score_file: '{place}'}}\n"
    (tmp_path / "tasks" / "a.yaml").write_text(task)
    with pytest.raises(BundleError) as caught:
        load_bundle(tmp_path)
    assert str(caught.value) == (
        f"tasks/a.yaml:3: 'score_file' is '{place}', where an agent could write, write a name, as in score.json, and have the "
        'command write to "$AGENT_ENV_SCORE"'
    )


@pytest.mark.parametrize("place", PLACES)
async def test_a_score_file_outside_the_verifier_s_folder_is_refused(score: ScoreIt, place: str) -> None:
    """An agent could write there; the message says where to write instead."""
    with pytest.raises(StepFailedError) as caught:
        await score("true", score_file=place)
    assert caught.value.kind is FailureKind.VERIFIER_RAISED
    assert caught.value.message == (
        f"score_file '{place}' is no path in the verifier's own folder: write a name, as in score_file: score.json, and have "
        'the command write to "$AGENT_ENV_SCORE"'
    )


async def test_the_bundle_s_files_are_there_for_the_command_alone(score: ScoreIt, box: Sandbox) -> None:
    """In a folder that is made for it: byte for byte, executable where they were, gone after it."""
    await box.write_file("report", "done")
    command = (
        'echo "$AGENT_ENV_VERIFIER" > place; cd "$AGENT_ENV_VERIFIER"; find . -type f | sort; '
        "od -An -tx1 data/wanted.txt; ./check.sh " + str(box.root / "report")
    )
    scored = await score(command, files="tests")
    assert scored.value == 1.0
    assert "./check.sh\n./data/wanted.txt\n ff 00 77" in scored.explanation
    place = (await box.read_file("place")).decode().strip()
    assert not (await box.run(["ls", place])).is_ok
    await score(command, files="tests")
    assert (await box.read_file("place")).decode().strip() != place


@pytest.mark.parametrize("command", ["exec sleep 9", "kill -9 $$", "no-such-program"])
async def test_the_bundle_s_files_go_when_the_command_fails(score: ScoreIt, box: Sandbox, command: str) -> None:
    """An agent that has another turn does not find them."""
    with pytest.raises(StepFailedError):
        await score(command, files="tests", timeout_s=0.2)
    assert (await box.run(["ls", "-A", str(box.private_dir)])).text == ""


async def test_the_bundle_s_files_go_when_the_step_is_cancelled(score: ScoreIt, box: Sandbox) -> None:
    """Wherever it was."""
    await box.run("mkfifo started")
    scoring = asyncio.create_task(score("echo > started; exec sleep 9", files="tests"))
    await box.run("cat started")
    scoring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await scoring
    assert (await box.run(["ls", "-A", str(box.private_dir)])).text == ""


async def test_files_that_are_not_there_fail_the_step(score: ScoreIt, bundle: Path) -> None:
    """The bundle is wrong, and the agent is not."""
    (bundle / "empty").mkdir()
    (bundle / "leads").mkdir()
    (bundle / "leads" / "out").symlink_to("/etc/passwd")
    for files, said in [
        ("nothing", "No such file or directory"),
        ("empty", "there is no file in empty/: add one, or leave files: out"),
        ("leads", "'out' is a symlink that leads out of leads/: copy the file there"),
    ]:
        with pytest.raises(StepFailedError, match=said) as caught:
            await score("true", files=files)
        assert caught.value.kind is FailureKind.VERIFIER_RAISED


async def test_a_lost_sandbox_fails_the_step(score: ScoreIt) -> None:
    """It is the machine's failure, and not a 0."""
    with pytest.raises(StepFailedError) as caught:
        await score("kill -9 $PPID; exec sleep 9", files="tests")
    assert caught.value.kind is FailureKind.SANDBOX_LOST
