"""`agent-env train`: the whole main job on the real cookbook, SDK and engine, two steps of each trainer."""

from __future__ import annotations

import asyncio
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from agent_env import FailureKind, RunIndex, load_bundle, open_episode
from agent_env.engine import ModelShape, build_model, start_engine
from agent_env.errors import RunIndexError
from agent_env.runs import RunState

GRIDSIM = Path(__file__).parents[2] / "bundles" / "gridsim"
HELD_OUT = 8
EXAMPLES = 16
RECIPE = """
train_split: some-train
test_split: some-test
max_generation_tokens: 64
max_messages: 4
model: {hidden: 32, layers: 1, heads: 2, kv_heads: 2, intermediate: 64, vocabulary: 700}
sft: {player: best, steps: 2, batch_size: 4}
rl: {steps: 2, groups_per_batch: 2, group_size: 2}
shares: [{name: beats idling, above: 0.2}]
references: [best, idle]
"""
EVERY_GROUP = {
    "small/player/best": EXAMPLES,
    "small/train/step-0000": 4,
    "small/train/step-0001": 4,
    "small/held-out/0-untrained": HELD_OUT,
    "small/held-out/1-sft": HELD_OUT,
    "small/held-out/2-rl": HELD_OUT,
    "small/held-out/3-sft-greedy": HELD_OUT,
    "small/held-out/4-rl-greedy": HELD_OUT,
    "small/held-out/player-best": HELD_OUT,
    "small/held-out/player-idle": HELD_OUT,
}


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """GridSim with a few days, and a recipe of two steps for a tiny model."""
    folder = tmp_path / "gridsim"
    shutil.copytree(GRIDSIM, folder)
    shutil.rmtree(folder / "recipes")
    (folder / "recipes").mkdir()
    (folder / "recipes" / "small.yaml").write_text(RECIPE)
    for split, count in (("train", EXAMPLES), ("test", HELD_OUT)):
        ids = [line.split('"')[3] for line in (folder / "tasks" / f"short-{split}.jsonl").read_text().splitlines()]
        (folder / "evals" / f"some-{split}.yaml").write_text(f"tasks: {ids[:count]}\n")
    return folder


def command(bundle: Path, runs: Path, *more: str) -> list[str]:
    """The job's command."""
    return [sys.executable, "-m", "agent_env", "train", str(bundle), "--runs", str(runs), "--name", "small", *more]


def train(bundle: Path, runs: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the job to its end."""
    return subprocess.run(
        command(bundle, runs, "--local", *more), capture_output=True, text=True, timeout=200, check=False
    )


def counts(runs: Path) -> dict[str, int]:
    """How many runs each group has that were played to their end."""
    with RunIndex.open(runs, read_only=True) as index:
        return {group.name: group.states[RunState.COMPLETED] for group in index.groups()}


POLICY_STEPS = {
    "small/train/step-0000": 0,
    "small/train/step-0001": 1,
    "small/held-out/0-untrained": None,
    "small/held-out/1-sft": 0,
    "small/held-out/2-rl": 2,
    "small/held-out/3-sft-greedy": 0,
    "small/held-out/4-rl-greedy": 2,
}
"""By which step of reinforcement learning the runs of a policy were played; before the warm start it is none of its."""


def check_sampled(runs: Path) -> None:
    """See that the runs of the policy, and only those, have what was sampled, and by which weights."""
    with RunIndex.open(runs, read_only=True) as index:
        for run in (run for group in EVERY_GROUP for run in index.all_runs(group)):
            sampled = index.sampled(run.run_id)
            assert bool(sampled) == (run.group in POLICY_STEPS)
            assert run.policy_step == POLICY_STEPS.get(run.group)
            assert len(sampled) == (run.messages if sampled else 0)
            assert all(tokens.logprobs is not None for tokens in sampled.values())


def engines(runs: Path) -> list[str]:
    """The engines that serve a job of this runs folder."""
    listed = subprocess.run(
        ["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [line for line in listed if "agent_env.engine" in line and str(runs) in line]


def test_the_whole_job_files_every_episode_and_says_what_it_came_to(bundle: Path, tmp_path: Path) -> None:
    """Both trainers run two steps, every group holds its runs, the table has every row; again, nothing is done twice."""
    first = train(bundle, tmp_path / "runs")
    assert first.returncode == 0, first.stderr
    assert counts(tmp_path / "runs") == EVERY_GROUP
    for row in ("untrained", "after SFT", "after RL", "after RL, greedy", "player: best", "RL over SFT:"):
        assert row in first.stdout
    assert f"see every episode: {sys.executable} -m agent_env explore {tmp_path / 'runs'}\n" in first.stdout
    check_sampled(tmp_path / "runs")
    assert engines(tmp_path / "runs") == []

    again = train(bundle, tmp_path / "runs")
    assert again.returncode == 0, again.stderr
    assert counts(tmp_path / "runs") == EVERY_GROUP
    table = [line for line in first.stdout.splitlines() if line.startswith("│")]
    assert [line for line in again.stdout.splitlines() if line.startswith("│")] == table

    asyncio.run(lose_the_server(bundle, tmp_path / "runs", "small/held-out/4-rl-greedy"))
    replayed = train(bundle, tmp_path / "runs")
    assert replayed.returncode == 0, replayed.stderr
    assert counts(tmp_path / "runs") == EVERY_GROUP


async def lose_the_server(bundle: Path, runs: Path, group: str) -> None:
    """Leave a group as it is where the model server is gone while all of it is played: those runs were not played to their end."""
    with RunIndex.open(runs) as index:
        tasks = [run.task_id for run in index.all_runs(group)]
        index.delete_group(group)
        for task in tasks:
            async with open_episode(load_bundle(bundle).task(task), sink=index.run(group)) as episode:
                await episode.start()
                await episode.fail(FailureKind.MODEL_SERVER, "the server is gone")


@pytest.mark.parametrize("stage", ["held-out/0-untrained", "train/step-0001"])
def test_a_killed_job_goes_on_and_files_nothing_twice(bundle: Path, tmp_path: Path, stage: str) -> None:
    """Killed with -9 when a stage has begun to file, the same command ends with exactly the runs of one that was not."""
    runs = tmp_path / "runs"
    with _started(bundle, runs) as process:
        _wait_for_group(process, runs, f"small/{stage}")
        process.kill()
    done = train(bundle, runs)
    assert done.returncode == 0, done.stderr
    assert counts(runs) == EVERY_GROUP
    with RunIndex.open(runs, read_only=True) as index:
        unfinished = [run for group in index.groups() for run in index.all_runs(group.name) if run.reward is None]
    assert unfinished == []


def test_ctrl_c_stops_cleanly_and_says_how_to_go_on(bundle: Path, tmp_path: Path) -> None:
    """An interrupt ends the job with 130, one line, no traceback and no engine left."""
    runs = tmp_path / "runs"
    with _started(bundle, runs) as process:
        _wait_for_group(process, runs, "small/held-out/0-untrained")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command goes on" in said
    assert "Traceback" not in said
    assert engines(runs) == []


def test_what_a_server_refuses_is_one_line(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that the SDK does not take ends the job with 1 and the SDK's own words, without its traceback."""
    monkeypatch.setenv("TINKER_API_KEY", "odd")
    model = build_model(tmp_path / "model", [], shape=ModelShape(hidden=8, layers=1, heads=1, kv_heads=1))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        options = ("--base-url", url, "--model", str(model), "--renderer", "qwen3_disable_thinking")
        refused = subprocess.run(
            command(bundle, tmp_path / "runs", *options), capture_output=True, text=True, timeout=90, check=False
        )
    assert refused.returncode == 1
    assert f"{url}: The api_key must start with" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_runs_folder_that_cannot_be_made_is_one_line(bundle: Path, tmp_path: Path) -> None:
    """A file where a folder should be ends the job with 1 and says what to choose."""
    (tmp_path / "file").write_text("")
    refused = train(bundle, tmp_path / "file" / "runs")
    assert refused.returncode == 1
    assert "choose a runs folder that can be written" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1


def test_the_same_job_runs_on_a_server_that_is_named(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --base-url, --model and a key, every stage runs on that server, and no engine is started for it."""
    model = build_model(tmp_path / "model", ["Plan the day."], shape=ModelShape(hidden=32, layers=1, heads=2))
    runs = tmp_path / "runs"
    with start_engine(model, state_dir=tmp_path / "server") as server:
        monkeypatch.setenv("TINKER_API_KEY", server.api_key)
        where = ("--base-url", server.base_url, "--model", server.model_name, "--renderer", "qwen3_disable_thinking")
        done = subprocess.run(command(bundle, runs, *where), capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
        assert len(engines(tmp_path)) == 1
    assert counts(runs) == EVERY_GROUP
    assert not (runs / "jobs" / "small" / "model").exists()


def test_a_killed_engine_ends_the_job_with_an_error_and_not_a_hang(bundle: Path, tmp_path: Path) -> None:
    """The SDK would ask an engine that is gone on and on; the job says so in a line and how to go on, and does."""
    runs = tmp_path / "runs"
    with _started(bundle, runs) as process:
        _wait_for_group(process, runs, "small/held-out/0-untrained")
        subprocess.run(["pkill", "-9", "-f", f"agent_env.engine.*{runs}"], check=True)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the embedded engine ended with code -9" in said
    assert "the same command goes on" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("url", "code", "says"),
    [
        ("http://127.0.0.1:9", 1, "http://127.0.0.1:9: no server answers there"),
        ("127.0.0.1:9", 2, "--base-url 127.0.0.1:9: "),
        ("gpu-box", 2, "write http://HOST:PORT"),
    ],
)
def test_a_server_that_is_not_there_is_said_at_once(
    bundle: Path, tmp_path: Path, url: str, code: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong address ends the job with a line that names it, before it has begun: it can go on with the right one."""
    monkeypatch.setenv("TINKER_API_KEY", "tml-none")
    where = ("--base-url", url, "--model", "none/none", "--renderer", "qwen3_disable_thinking")
    refused = subprocess.run(
        command(bundle, tmp_path / "runs", *where), capture_output=True, text=True, timeout=60, check=False
    )
    assert refused.returncode == code
    assert says in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "runs" / "jobs").exists()


def test_a_renderer_that_cannot_write_tools_is_refused_before_training(bundle: Path, tmp_path: Path) -> None:
    """The line names the renderer and one that can."""
    recipe = bundle / "recipes" / "small.yaml"
    recipe.write_text(recipe.read_text() + "renderer: role_colon\n")
    refused = train(bundle, tmp_path / "runs")
    assert refused.returncode == 1
    assert "renderer_name='role_colon': it cannot write tools" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_job_is_not_continued_with_other_settings(bundle: Path, tmp_path: Path) -> None:
    """Another seed under the same name is refused, naming what differs."""
    folder = tmp_path / "runs" / "jobs" / "small"
    folder.mkdir(parents=True)
    (folder / "job.json").write_text('{"recipe": {}, "seed": 7, "endpoint": null}')
    refused = train(bundle, tmp_path / "runs", "--seed", "8")
    assert refused.returncode == 2
    assert "seed" in refused.stderr
    assert "--name" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1


def test_a_job_whose_settings_are_lost_is_not_continued(bundle: Path, tmp_path: Path) -> None:
    """An empty `job.json`, as a power cut may leave it, ends the job with 1 and says what to do."""
    folder = tmp_path / "runs" / "jobs" / "small"
    folder.mkdir(parents=True)
    (folder / "job.json").write_text("")
    refused = train(bundle, tmp_path / "runs")
    assert refused.returncode == 1
    assert "remove that folder to begin again" in refused.stderr
    assert len(refused.stderr.strip().splitlines()) == 1


def test_what_a_trainer_refuses_is_one_line(bundle: Path, tmp_path: Path) -> None:
    """An error of ours that passes through the cookbook's trainer ends the job with 1 and its own message."""
    recipe = bundle / "recipes" / "small.yaml"
    recipe.write_text(RECIPE.replace("batch_size: 4}", "batch_size: 4, min_reward: 9}"))
    refused = train(bundle, tmp_path / "runs")
    assert refused.returncode == 1
    assert "has no completed run to learn from with a reward of 9" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert "ExceptionGroup" not in refused.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--model", "Qwen/Qwen3-8B"), "leave that out, or say where"),
        (("--base-url", "http://127.0.0.1:1"), "--model: say which model"),
        (("--sft-steps", "0"), "--sft-steps"),
        (("--name", "../up"), "run name '../up'"),
        (("--recipe", "smal"), "did you mean 'small'?"),
    ],
)
def test_a_wrong_command_says_what_to_write(
    bundle: Path, tmp_path: Path, options: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A usage error ends with 2 and a line that names the option, before anything is started."""
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    refused = subprocess.run(
        command(bundle, tmp_path / "runs", *options), capture_output=True, text=True, timeout=60, check=False
    )
    assert refused.returncode == 2
    assert says in refused.stderr
    assert "Traceback" not in refused.stderr


def _groups(runs: Path) -> set[str]:
    try:
        with RunIndex.open(runs, read_only=True) as index:
            return {group.name for group in index.groups()}
    except RunIndexError:  # not there yet
        return set()


def _wait_for_group(process: subprocess.Popen[str], runs: Path, group: str) -> None:
    until = time.monotonic() + 120
    while group not in _groups(runs):
        assert process.poll() is None, f"the job ended before it filed {group}"
        assert time.monotonic() < until, f"no {group} within 120 s"
        time.sleep(0.05)


def test_a_terminal_is_told_what_is_waited_for(bundle: Path, tmp_path: Path) -> None:
    """Before there is anything to count, and before a trainer's first step; the line goes when there is."""
    terminal, inside = pty.openpty()
    job = command(bundle, tmp_path / "runs", "--local")
    process = subprocess.Popen(job, stdout=subprocess.DEVNULL, stderr=inside, env={**os.environ, "COLUMNS": "120"})
    os.close(inside)
    seen = ""
    try:
        with suppress(OSError):  # its end
            while "reinforcement learning" not in seen:
                seen += os.read(terminal, 4096).decode(errors="replace")
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    for words in ("loading the trainer", "building the local model", "starting the embedded engine"):
        assert words in seen
    assert "the trainer starts" in seen or "waiting for its first step" in seen


@contextmanager
def _started(bundle: Path, runs: Path) -> Generator[subprocess.Popen[str]]:
    """The job under way, killed if it still is when the block is left."""
    process = subprocess.Popen(
        command(bundle, runs, "--local"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
