"""`agent-env play` with gold, a script, a bundle's player or a model: one task, or many."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from agent_env import AgentEnvError, BundleError, RunIndex, UsageError
from agent_env.cli import root
from agent_env.runs import RunFailure, RunState


def play(shop: Path, *arguments: str) -> Result:
    """Call the command, recording in the bundle's folder."""
    runs = [] if "--no-record" in arguments else ["--runs", str(shop / "runs")]
    return CliRunner().invoke(root, ["play", str(shop), *runs, *arguments])


def says(shop: Path, *arguments: str) -> str:
    """Call the command, which refuses; return the one line that it says."""
    result = play(shop, *arguments)
    assert isinstance(result.exception, AgentEnvError)
    assert "\n" not in str(result.exception)
    return str(result.exception)


def test_without_a_task_the_tasks_are_listed(shop_dir: Path) -> None:
    """Id, tags, and how the prompt begins; nothing is played."""
    done = play(shop_dir)
    assert done.exit_code == 0
    lines = [" ".join(line.split()) for line in done.output.splitlines()]
    assert lines == [
        "task tags prompt",
        "closing easy Sell one.",
        "free hard Do nothing.",
        "talk hard (guest leads a conversation)",
        "three easy Sell 3.",
    ]
    assert not (shop_dir / "runs").exists()
    listed = json.loads(play(shop_dir, "--json").stdout)
    assert listed["tasks"][3] == {"task_id": "three", "tags": ["easy"], "has_gold": True, "prompt": "Sell 3."}


def test_gold_of_every_task_is_played(shop_dir: Path) -> None:
    """Those without are left out, and that is said."""
    done = play(shop_dir, "--gold", "--group", "play/gold")
    assert done.exit_code == 0
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[:5] for line in lines[1:4]] == [
        ["closing", "completed", "sold", "1", "1"],
        ["talk", "completed", "sold", "1", "1"],
        ["three", "completed", "sold", "1", "1"],
    ]
    assert "mean 1 of 3 scored" in done.stdout
    assert (
        done.stderr
        == "1 task has no gold and is left out\na bundle prints\na bundle prints\na bundle prints\na bundle prints\n"
    )
    with RunIndex.open(shop_dir / "runs", read_only=True) as index:
        group = index.group("play/gold")
        assert (group.runs, group.reward_mean) == (3, 1.0)
        assert {run.labels["player"] for run in index.all_runs("play/gold")} == {"gold"}


def test_one_task_ends_with_its_score(shop_dir: Path) -> None:
    """And its explanation, and where its run is."""
    done = play(shop_dir, "three", "--gold")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[1:4] == ["three: completed", "  sold  1  sold 3", "  reward  1"]
    assert lines[4].startswith("agent-env show ")


@pytest.mark.parametrize(
    ("explanation", "lines"),
    [
        (
            "two differences:\n/a: 1\n\n  /b:  2\x1b[2J",
            ["  sold  1  two differences:", "      /a: 1", "      /b: 2⟨U+001B⟩[2J"],
        ),
        ("one\ntwo", ["  sold  1", "      one", "      two"]),
        ("one\n", ["  sold  1  one"]),
        ("\n", ["  sold  1"]),
        ("all:\n" + "line\n" * 50, ["  sold  1  all:", *["      line"] * 39, "      and 11 more lines"]),
    ],
)
def test_an_explanation_of_several_lines_is_shown_as_such(shop_dir: Path, explanation: str, lines: list[str]) -> None:
    """Below the score and indented, and not without end."""
    code = f"def score(episode):\n    return {{'score': 1, 'explanation': {explanation!r}}}\n"
    (shop_dir / "verifiers/sold.py").write_text(code)
    done = play(shop_dir, "three", "--gold")
    assert done.stdout.splitlines()[2:-2] == lines


@pytest.mark.parametrize(
    ("raised", "outcome"),
    [
        ("GeneratorExit", "completed"),
        ("StopIteration", "completed"),
        ("StopAsyncIteration", "completed"),
        ("SystemExit(3)", "completed"),
        ("__import__('asyncio').CancelledError", "completed"),
        ("BaseExceptionGroup('x', [GeneratorExit()])", "completed"),
        ("type('Own', (BaseException,), {})", "failed (env_broken)"),
    ],
)
def test_whatever_a_tool_raises_the_episode_ends(shop_dir: Path, raised: str, outcome: str) -> None:
    """Never with a traceback: an answer to whoever plays, or a failure."""
    env = (shop_dir / "envs/store.py").read_text()
    (shop_dir / "envs/store.py").write_text(env.replace('EnvBrokenError("the shop is gone")', raised))
    (shop_dir / "turns.json").write_text(json.dumps([{"calls": [{"tool": "burn", "arguments": {}}], "reply": "Oh."}]))
    done = play(shop_dir, "free", "--script", str(shop_dir / "turns.json"))
    assert done.stdout.splitlines()[1] == f"free: {outcome}"
    assert (done.exception is None) == (outcome == "completed")
    assert "Traceback" not in done.output


def test_ctrl_c_in_a_tool_stops_playing(shop_dir: Path) -> None:
    """As it does anywhere else; the run is abandoned, and nothing is scored."""
    env = (shop_dir / "envs/store.py").read_text()
    (shop_dir / "envs/store.py").write_text(env.replace('EnvBrokenError("the shop is gone")', "KeyboardInterrupt"))
    (shop_dir / "turns.json").write_text(json.dumps([{"calls": [{"tool": "burn", "arguments": {}}], "reply": "Oh."}]))
    done = play(shop_dir, "free", "--script", str(shop_dir / "turns.json"))
    assert done.exit_code == 130
    assert "stopped; what was under way is abandoned" in done.stderr
    with RunIndex.open(shop_dir / "runs", read_only=True) as index:
        (group,) = index.groups()
        assert [run.state for run in index.all_runs(group.name)] == [RunState.ABANDONED]


def test_a_group_is_made_of_the_time(shop_dir: Path) -> None:
    """Where none is named."""
    play(shop_dir, "three", "--gold")
    with RunIndex.open(shop_dir / "runs", read_only=True) as index:
        (group,) = index.groups()
    assert group.name.startswith("play/2")


@pytest.mark.parametrize("name", ["turns.yaml", "turns.json"])
def test_a_script_is_played(shop_dir: Path, name: str) -> None:
    """YAML or JSON, in the form of gold."""
    turns = [{"calls": [{"tool": "sell", "arguments": {"count": 2}}, {"tool": "sell", "arguments": {"count": 1}}]}]
    (shop_dir / name).write_text(json.dumps(turns))
    done = play(shop_dir, "three", "--script", str(shop_dir / name), "--rollouts", "2", "--json")
    assert [episode["reward"] for episode in json.loads(done.stdout)["episodes"]] == [1.0, 1.0]


def test_a_script_that_does_not_fit_is_said_by_line(shop_dir: Path) -> None:
    """As a bundle's files are, every problem at once."""
    (shop_dir / "turns.yaml").write_text("- calls:\n    - tool: sell\n      argument: {}\n- replay: Done.\n")
    result = play(shop_dir, "three", "--script", str(shop_dir / "turns.yaml"))
    assert isinstance(result.exception, BundleError)
    assert str(result.exception).splitlines() == [
        "turns.yaml:3: unknown key 'argument', did you mean 'arguments'?",
        "turns.yaml:4: unknown key 'replay', did you mean 'reply'?",
    ]
    (shop_dir / "turns.yaml").write_text("calls: []\n")
    assert says(shop_dir, "three", "--script", str(shop_dir / "turns.yaml")).startswith("turns.yaml:1: ")


def test_a_player_of_the_bundle_plays(shop_dir: Path) -> None:
    """By its name."""
    done = play(shop_dir, "--player", "best", "--eval", "easy", "--rollouts", "2", "--json")
    said = json.loads(done.stdout)
    assert done.exit_code == 0
    assert (said["scored"], said["reward_mean"]) == (4, 0.5)
    assert [(one["task_id"], one["rollout"]) for one in said["episodes"]] == [
        ("closing", 0),
        ("closing", 1),
        ("three", 0),
        ("three", 1),
    ]


def test_a_player_that_raises_is_counted_and_the_others_go_on(shop_dir: Path) -> None:
    """It is a failure, and no score; exit 1."""
    done = play(shop_dir, "--player", "broken", "--tasks", "t*", "--group", "play/broken")
    assert done.exit_code == 1
    assert "agent: the player raised KeyError: 'bug' (2 times)" in done.stdout
    assert "2 failed (agent)" in done.stdout
    with RunIndex.open(shop_dir / "runs", read_only=True) as index:
        runs = list(index.all_runs("play/broken"))
        assert {run.state for run in runs} == {RunState.FAILED}
        assert {run.failure for run in runs} == {
            RunFailure(kind="agent", step="prompt", message="the player raised KeyError: 'bug'")
        }


@pytest.mark.parametrize(
    ("raises", "said"),
    [
        ("SystemExit(3)", "SystemExit: 3"),
        ("GeneratorExit", "GeneratorExit"),
        ("asyncio.CancelledError", "CancelledError"),
        ("BaseExceptionGroup('x', [GeneratorExit()])", "BaseExceptionGroup: x"),
        ("Silent", "Silent"),
        ("ValueError('x' * 10_000)", "ValueError: xxx"),
    ],
)
def test_whatever_a_player_raises_is_counted(shop_dir: Path, raises: str, said: str) -> None:
    """It is no end of the command, is told in a bounded line, and nothing is left out."""
    (shop_dir / "players/best.py").write_text(
        "import asyncio\n\nclass Silent(Exception):\n    def __str__(self):\n        raise OSError\n\n"
        f"async def play(turn):\n    raise {raises}\n\ndef broken(turn):\n    ...\n"
    )
    done = play(shop_dir, "--player", "best", "--eval", "easy", "--json")
    assert done.exit_code == 1
    episodes = json.loads(done.stdout)["episodes"]
    assert [episode["failure_kind"] for episode in episodes] == ["agent"] * 2
    assert all(episode["failure_message"].startswith(f"the player raised {said}") for episode in episodes)
    assert all(len(episode["failure_message"]) < 600 for episode in episodes)


def test_an_interrupt_within_a_player_ends_the_process(shop_dir: Path) -> None:
    """As a second Ctrl-C is, while a player holds the loop up; the loop's threads keep the process from nothing."""
    (shop_dir / "players/best.py").write_text("def play(turn):\n    raise KeyboardInterrupt\n\nbroken = play\n")
    command = [sys.executable, "-m", "agent_env", "play", str(shop_dir), "--player", "best", "--no-record"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr


def test_a_failure_is_counted_beside_what_was_scored(shop_dir: Path) -> None:
    """`mean 1 of 1 scored; 1 failed (env_broken)`."""
    (shop_dir / "tasks/burning.yaml").write_text(
        "id: three-burning\nparams: {count: 3}\nprompt: Burn it.\nverify: {python: verifiers/sold.py}\n"
        "gold: [{calls: [{tool: burn}], reply: Done.}]\n"
    )
    done = play(shop_dir, "--gold", "--tasks", "three*")
    assert done.exit_code == 1
    assert "mean 1 of 1 scored; 1 failed (env_broken)" in done.stdout
    said = json.loads(play(shop_dir, "--gold", "--tasks", "three*", "--json").stdout)
    assert said["states"] == {"completed": 1, "failed": 1, "abandoned": 0}
    failed = next(one for one in said["episodes"] if one["task_id"] == "three-burning")
    assert (failed["reward"], failed["failure_kind"], failed["failure_step"]) == (None, "env_broken", "prompt")


def test_a_bundle_that_does_not_say_what_the_reward_is_is_played(shop_dir: Path) -> None:
    """Scored, without a reward, and why."""
    task = shop_dir / "tasks/three.yaml"
    twice = "verify: [{id: a, python: verifiers/sold.py}, {id: b, python: verifiers/sold.py}]"
    task.write_text(task.read_text().replace("verify: {python: verifiers/sold.py}", twice))
    done = play(shop_dir, "three", "--gold")
    assert done.exit_code == 0
    assert "  no reward: task 'three': 2 verify steps score it" in done.stdout
    many = play(shop_dir, "--gold")
    assert many.exit_code == 0
    assert "3 completed without a reward: task 'three': 2 verify steps score it" in many.stdout


def test_nothing_is_recorded_where_nothing_is_to_be(shop_dir: Path) -> None:
    """`--no-record`: no folder, and no run to look at."""
    done = play(shop_dir, "--gold", "--no-record")
    assert done.exit_code == 0
    assert "explore" not in done.stdout
    assert not (shop_dir / "runs").exists()


def test_a_model_plays_many_tasks(shop_dir: Path, endpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its key, its temperature and its bounds; what it costs is in the run."""
    monkeypatch.setenv("SHOP_KEY", "sk-secret-0123456789")
    endpoint.says(endpoint.reply("Bye."))
    done = play(
        shop_dir,
        *("--model", "small", "--base-url", endpoint.base_url, "--api-key-env", "SHOP_KEY", "--max-tokens", "9"),
        *("--eval", "all", "--rollouts", "3", "--json", "--group", "play/model"),
    )
    assert done.exit_code == 0
    said = json.loads(done.stdout)
    assert (said["scored"], said["reward_mean"]) == (12, 0.25)
    assert {(body["temperature"], body["max_tokens"]) for body in endpoint.bodies} == {(1.0, 9)}
    assert {headers["authorization"] for headers in endpoint.headers} == {"Bearer sk-secret-0123456789"}
    assert len(endpoint.connections) <= 8
    recorded = b"".join(path.read_bytes() for path in (shop_dir / "runs").iterdir())
    assert b"sk-secret" not in recorded
    with RunIndex.open(shop_dir / "runs", read_only=True) as index:
        assert {run.labels["player"] for run in index.all_runs("play/model")} == {"model small"}
        assert {run.labels["model"] for run in index.all_runs("play/model")} == {"small"}


def test_an_endpoint_that_refuses_fails_the_episodes(shop_dir: Path, endpoint: Any) -> None:
    """Said once, with how often; exit 1."""
    endpoint.fails(404, {"error": {"message": "no such model"}})
    done = play(shop_dir, "--model", "small", "--base-url", endpoint.base_url, "--eval", "all")
    assert done.exit_code == 1
    assert "4 failed (model_server)" in done.stdout
    assert "no such model (4 times)" in done.stdout
    assert "mean" not in done.stdout
    with RunIndex.open(shop_dir / "runs", read_only=True) as index:
        (group,) = index.groups()
        failures = [run.failure for run in index.all_runs(group.name)]
    assert [None if it is None else (it.kind, it.step) for it in failures] == [("model_server", "prompt")] * 4
    assert all(it is not None and "no such model" in it.message for it in failures)


def test_what_is_said_of_a_failure_is_what_its_run_says(shop_dir: Path) -> None:
    """Nothing listens there: the end of `play` and `agent-env show` name the same kind, step and message."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, and not listening: refused, and nobody else's
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/v1"
        done = play(shop_dir, "three", "--model", "m", "--base-url", url)
    assert "three: failed (model_server)" in done.stdout
    with RunIndex.open(shop_dir / "runs", read_only=True) as index:
        (group,) = index.groups()
        (run,) = index.all_runs(group.name)
    assert run.failure is not None
    assert (run.state, run.failure.kind, run.failure.step) == (RunState.FAILED, "model_server", "prompt")
    assert f"model_server in prompt: {run.failure.message}" in done.stdout
    shown = CliRunner().invoke(root, ["show", run.run_id, "--runs", str(shop_dir / "runs")])
    assert run.failure.message in " ".join(shown.stdout.split())


def test_a_model_that_goes_on_and_on_is_cut(shop_dir: Path, endpoint: Any) -> None:
    """At the bound on its messages; that is scored."""
    endpoint.says(endpoint.reply(None, ("sell", '{"count": 1}')))
    done = play(shop_dir, "three", "--model", "m", "--base-url", endpoint.base_url, "--max-messages", "3")
    assert done.exit_code == 0
    assert "three: completed, cut: message limit" in done.stdout
    assert "  sold  1  sold 3" in done.stdout


WRONG = [
    (["three", "--gold", "--player", "best"], "--gold and --player: one player plays, leave one of them out"),
    (["three", "--gold", "--eval", "easy"], "TASK and --eval: one selection of tasks, leave one of them out"),
    (["--eval", "easy", "--tasks", "*"], "--eval and --tasks: one selection of tasks, leave one of them out"),
    (["--eval", "easy"], "by hand one TASK is played once: name it, or add --gold, --player or --model"),
    (["three", "--rollouts", "2"], "by hand one TASK is played once: name it, or add --gold, --player or --model"),
    (["three", "--temperature", "1"], "--temperature goes with --model: add --model NAME, or leave it out"),
    (["three", "--timeout", "1"], "--timeout goes with --model: add --model NAME, or leave it out"),
    (["three", "--gold", "--base-url", "x"], "--base-url goes with --model: add --model NAME, or leave it out"),
    (["three", "--model", "m"], "--model: say where it is, with --base-url, e.g. --base-url http://localhost:8000/v1"),
    (
        ["--model", "m", "--base-url", "http://localhost:1/v1"],
        "--model: say which tasks, with TASK, --eval NAME or --tasks GLOB; --eval all is every task",
    ),
    (
        ["three", "--model", "m", "--base-url", "http://localhost:1/v1", "--api-key-env", "NOT_SET_ANYWHERE"],
        "--api-key-env: the variable NOT_SET_ANYWHERE is not set, which is to hold the key",
    ),
    (
        ["three", "--model", "m", "--base-url", "localhost:1/v1"],
        "model 'm': base_url 'localhost:1/v1' is no URL, write one such as http://localhost:8000/v1",
    ),
    (["--script", "x.yaml"], "--script: name the TASK that it is a solution of"),
    (["three", "--script", "nowhere.yaml"], "--script: there is no file nowhere.yaml"),
    (["thre", "--gold"], "shop has no task 'thre', did you mean 'three'?"),
    (["--gold", "--eval", "hart"], "shop has no eval 'hart', write one of all, easy"),
    (["--gold", "--tasks", "threes*"], "--tasks: shop has no task like 'threes*', did you mean 'three'?"),
    (["--player", "bets"], "--player: shop has no player 'bets', did you mean 'best'?"),
    (["free", "--gold"], "tasks/free.yaml:1: task 'free' has no gold, add gold: to it"),
]


@pytest.mark.parametrize(("arguments", "expected"), WRONG)
def test_what_does_not_go_together_is_one_line(shop_dir: Path, arguments: list[str], expected: str) -> None:
    """A usage error, before anything is played or recorded."""
    assert says(shop_dir, *arguments) == expected
    assert not (shop_dir / "runs").exists()


def test_a_group_that_cannot_be_one_is_said_before_anything_is_played(shop_dir: Path) -> None:
    """One line."""
    assert "cannot name a group of runs" in says(shop_dir, "--gold", "--group", "/a")
    assert isinstance(play(shop_dir, "three", "--gold", "--group", "").exception, UsageError)


def test_a_player_that_cannot_be_imported_is_said_once(shop_dir: Path) -> None:
    """And not for each task."""
    (shop_dir / "players/best.py").write_text("import nowhere_at_all\n")
    assert says(shop_dir, "--player", "best").startswith("players/best.py:1: importing it raised ModuleNotFoundError")


def test_ctrl_c_stops_and_shows_what_was_played(shop_dir: Path, endpoint: Any) -> None:
    """Exit 130; what was under way is abandoned, and no process or connection is left."""
    endpoint.says(endpoint.reply("Bye."), endpoint.reply("Bye."))
    endpoint.hangs()
    command = [sys.executable, "-m", "agent_env", "play", str(shop_dir), "--model", "m", "--eval", "all"]
    options = ["--base-url", endpoint.base_url, "--concurrency", "1", "--runs", str(shop_dir / "runs"), "--group", "g"]
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
    ) as process:
        assert endpoint.under_way.acquire(timeout=50)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=50)
    assert process.returncode == 130
    assert "mean 0 of 1 scored" in out
    assert err == "stopped; what was under way is abandoned\n"
    assert endpoint.given_up.acquire(timeout=50)
    with RunIndex.open(shop_dir / "runs", read_only=True) as index:
        assert sorted(run.state for run in index.all_runs("g")) == [RunState.ABANDONED, RunState.COMPLETED]


def test_help_needs_no_bundle_code() -> None:
    """It lists the command's options, and imports nothing that plays."""
    script = (
        "import sys\nfrom agent_env.cli import root\nroot(['play', '--help'], standalone_mode=False)\n"
        "assert not {'agent_env.bundle', 'agent_env.episode', 'openai', 'pydantic', 'yaml', 'rich'} & sys.modules.keys()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--base-url" in done.stdout
