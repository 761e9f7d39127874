"""The dataset: which tasks a step has, and what is refused before anything is trained."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import chz
import pytest
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.rl.types import RLDatasetBuilder

from agent_env.errors import BundleError, RewardError, RunIndexError, TrainingError, UsageError
from agent_env.training import _process
from agent_env.training._fields import _Fields
from agent_env.training._steps import TrainingSteps
from agent_env.training.tinker import AgentEnvDatasetBuilder


def task_ids(batch: Any) -> list[str]:
    """The tasks of a batch."""
    return [builder.task_id for builder in batch]


async def test_every_epoch_has_every_task_once_in_another_order_and_the_last_batch_has_what_is_left(rig: Any) -> None:
    """Five tasks, three epochs, batches of four: fifteen groups in four batches."""
    train, _ = await rig.builder(epochs=3, groups_per_batch=4, seed=7)()
    batches = [task_ids(train.get_batch(index)) for index in range(len(train))]
    assert [len(batch) for batch in batches] == [4, 4, 4, 3]
    flat = [task for batch in batches for task in batch]
    epochs = [flat[:5], flat[5:10], flat[10:]]
    assert [sorted(epoch) for epoch in epochs] == [[f"plain-{at}" for at in range(5)]] * 3
    assert len({tuple(epoch) for epoch in epochs}) > 1


async def test_the_order_is_the_seeds_and_does_not_depend_on_what_was_asked_before(rig: Any) -> None:
    """A resumed training, which begins at batch i, gets the batch that it would have had."""
    whole, _ = await rig.builder(epochs=2, groups_per_batch=2, seed=3)()
    batches = [task_ids(whole.get_batch(index)) for index in range(len(whole))]
    resumed, _ = await rig.builder(epochs=2, groups_per_batch=2, seed=3)()
    assert task_ids(resumed.get_batch(4)) == batches[4]
    other, _ = await rig.builder(epochs=2, groups_per_batch=2, seed=4)()
    assert [task_ids(other.get_batch(index)) for index in range(len(other))] != batches
    with pytest.raises(IndexError):
        whole.get_batch(len(whole))


async def test_the_test_set_is_every_task_once_in_the_bundles_order(rig: Any) -> None:
    """Evaluation is not shuffled and not repeated."""
    _, test = await rig.builder(test_split="train", eval_group_size=2, groups_per_batch=2, epochs=5)()
    groups = [group for index in range(len(test)) for group in test.get_batch(index)]
    assert task_ids(groups) == [f"plain-{at}" for at in range(5)]
    assert {group.size for group in groups} == {2}


def test_the_builder_is_a_chz_dataset_builder(rig: Any) -> None:
    """It can be made from strings, as the cookbook's command lines do, and made anew with changes."""
    arguments = {"bundle": str(rig.bundle), "model_name_for_tokenizer": "m", "renderer_name": "qwen3", "seed": "3"}
    builder = chz.entrypoint(AgentEnvDatasetBuilder, argv=[f"{name}={value}" for name, value in arguments.items()])
    assert isinstance(builder, RLDatasetBuilder)
    assert builder.seed == 3
    assert chz.replace(builder, group_size=2).group_size == 2


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"bundle": "/nowhere/at/all"}, UsageError, "/nowhere/at/all"),
        ({"train_split": "tran"}, UsageError, "train"),
        ({"reward": "left"}, RewardError, "left"),
        ({"renderer_name": "role_colon"}, TrainingError, "cannot write tools"),
        ({"renderer_name": "no_such_renderer"}, TrainingError, "no_such_renderer"),
        ({"renderer_name": "llama3"}, TrainingError, "renderer_name='llama3': it cannot be used with the tokenizer of"),
        (
            {"model_name_for_tokenizer": "/no/model"},
            TrainingError,
            "model_name_for_tokenizer='/no/model': its tokenizer",
        ),
        ({"group_size": 0}, TrainingError, "group_size=0: give at least 1$"),
        ({"groups_per_batch": 1.5}, TrainingError, "groups_per_batch=1.5: give a whole number$"),
        ({"eval_group_size": True}, TrainingError, "eval_group_size=True: give a whole number$"),
        ({"epochs": None}, TrainingError, "epochs=None: give a whole number$"),
        ({"seed": None}, TrainingError, "seed=None: give a whole number$"),
        ({"max_messages": "3"}, TrainingError, "max_messages='3': give a whole number, or None$"),
        ({"max_concurrent_episodes": 0}, TrainingError, "max_concurrent_episodes=0: give at least 1, or None$"),
        ({"max_trajectory_tokens": -5}, TrainingError, "max_trajectory_tokens=-5: give at least 1, or None$"),
        (
            {"max_trajectory_tokens": 10, "max_generation_tokens": 10},
            TrainingError,
            "max_trajectory_tokens=10: give more than max_generation_tokens=10",
        ),
        ({"failed_reward": float("nan")}, TrainingError, r"failed_reward=nan: give a number from -1e\+30 to 1e\+30$"),
        ({"failed_reward": 1e38}, TrainingError, r"failed_reward=1e\+38: give a number from"),
        ({"failed_reward": "0"}, TrainingError, "failed_reward='0': give a number$"),
        ({"history": "whole"}, TrainingError, "history='whole': write tokens or template$"),
        ({"history": None}, TrainingError, "history=None: give text$"),
        ({"train_split": None}, TrainingError, "train_split=None: give text$"),
        ({"rollout_config": {}}, TrainingError, "rollout_config={}: give the cookbook's RolloutConfig, or None$"),
        ({"run_name": "/x"}, TrainingError, "run_name='/x': give a name of at most 200 characters"),
        ({"run_name": "a\nb"}, TrainingError, "run_name='a.*: give a name of at most 200 characters"),
        ({"run_name": "x" * 5000}, TrainingError, "run_name='xxx.*: give a name of at most 200 characters"),
        ({"runs": "/dev/null/runs"}, RunIndexError, "/dev/null"),
    ],
)
async def test_what_cannot_be_trained_is_refused_before_training(
    rig: Any, changes: dict[str, Any], error: type[Exception], says: str
) -> None:
    """Each mistake is one error that says what to write instead, before any episode."""
    with pytest.raises(error, match=says):
        await rig.builder(**changes)()


def copied(rig: Any, root: Path, **tasks: str) -> Path:
    """The counter bundle with other tasks, by id and the JSON of their steps after the deployment."""
    shutil.copytree(rig.bundle, root, ignore=shutil.ignore_patterns("__pycache__", "evals"))
    header = (root / "bundle.yaml").read_text().replace("agents:\n", "agents:\n  boss: {envs: []}\n")
    (root / "bundle.yaml").write_text(header + "played: adder\n")
    (root / "skills" / "sums").mkdir(parents=True, exist_ok=True)
    (root / "skills" / "sums" / "SKILL.md").write_text("Add from the right.\n")
    deploy = '{"deploy_env": "counter"}, {"deploy_agent": "adder"}, {"deploy_agent": "boss"}'
    verify = '{"verify": {"python": "verifiers/right.py"}, "id": "right"}'
    lines = [f'{{"id": "{name}", "steps": [{deploy}, {steps}, {verify}]}}\n' for name, steps in tasks.items()]
    (root / "tasks" / "all.jsonl").write_text("".join(lines))
    return root


ADDS = '{"prompt": "Add."}'
SKILLED = '{"add_skills": ["sums"]}, {"prompt": "Add."}'
BOSS = '{"prompt": {"agent": "boss", "text": "Add."}}'


def test_every_field_is_checked() -> None:
    """A field that is added to the builder is added to what is checked before training."""
    assert set(_Fields.model_fields) == set(chz.chz_fields(AgentEnvDatasetBuilder))


async def test_relative_folders_are_those_of_the_moment_when_the_dataset_was_made(
    rig: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training that changes its directory files where it began: no second index, and steps begin in the first."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    shutil.copytree(rig.bundle, here / "counter")
    monkeypatch.chdir(here)
    train, _ = await rig.builder(bundle="counter", runs="runs")()
    monkeypatch.chdir(there)
    (builder, *_) = train.get_batch(0)
    await do_group_rollout(builder, rig.policy(rig.submits))
    assert not list(there.iterdir())
    index = _process.run_index(here / "runs")
    index.flush()
    assert len(list(index.all_runs("counter/train/step-0000"))) == builder.size


async def test_tasks_that_a_trainer_cannot_play_are_left_out_and_named(
    rig: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that give the played agent skills, and those that prompt somebody else: one warning, and the rest is trained."""
    tasks = {"adds": ADDS, "skilled": SKILLED, "also": SKILLED, "boss": BOSS, "both": f"{ADDS}, {BOSS}"}
    root = copied(rig, tmp_path / "mixed", **tasks)
    with caplog.at_level("WARNING", "agent_env.training"):
        train, _ = await rig.builder(bundle=str(root), train_split="all")()
    assert task_ids(train.get_batch(0)) == ["adds"]
    (warning,) = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert warning == (
        "split 'all' of bundle counter: 4 of 5 left out: 'skilled', 'also' (gives 'adder' skills, which it is not"
        " shown: write skills: true in the agent); 'boss' (never prompts 'adder', the played agent); 'both' (prompts 'boss', and a trainer plays 'adder'"
        " only)"
    )


async def test_a_split_with_no_task_left_is_refused_saying_why(rig: Any, tmp_path: Path) -> None:
    """One line, before anything is trained."""
    root = copied(rig, tmp_path / "none", skilled=SKILLED, boss=BOSS)
    with pytest.raises(TrainingError) as raised:
        await rig.builder(bundle=str(root), train_split="all")()
    assert str(raised.value) == (
        "split 'all' of bundle counter has no task that can be trained on: 'skilled' (gives 'adder' skills, which it is"
        " not shown: write skills: true in the agent); 'boss' (never prompts 'adder', the played agent)"
    )


async def test_a_task_left_out_needs_no_reward(rig: Any, tmp_path: Path) -> None:
    """What is not trained on is not asked for its score; what is trained on must have it."""
    root = copied(rig, tmp_path / "scores", adds=ADDS, skilled=SKILLED)
    file = root / "tasks" / "all.jsonl"
    adds, skilled = file.read_text().splitlines()
    file.write_text(adds + "\n" + skilled.replace('"id": "right"}', '"id": "left"}') + "\n")
    train, _ = await rig.builder(bundle=str(root), train_split="all")()
    assert len(train) == 1
    file.write_text(adds.replace('"id": "right"}', '"id": "left"}') + "\n" + skilled + "\n")
    with pytest.raises(RewardError, match="task 'adds'"):
        await rig.builder(bundle=str(root), train_split="all")()


async def test_two_verify_steps_and_no_reward_are_refused(rig: Any, tmp_path: Path) -> None:
    """Nobody said which of two scores is the reward: it is not guessed."""
    root = tmp_path / "two"
    for path in rig.bundle.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            (root / path.relative_to(rig.bundle)).parent.mkdir(parents=True, exist_ok=True)
            (root / path.relative_to(rig.bundle)).write_bytes(path.read_bytes())
    bundle = (root / "bundle.yaml").read_text()
    (root / "bundle.yaml").write_text(bundle.replace("reward: right\n", ""))
    verify = (
        '"verify": [{"python": "verifiers/right.py", "id": "right"}, {"python": "verifiers/right.py", "id": "also"}]'
    )
    (root / "tasks" / "all.jsonl").write_text('{"id": "plain-0", "prompt": "Add.", ' + verify + "}\n")
    (root / "evals" / "train.yaml").write_text("tasks: [plain-0]\n")
    (root / "evals" / "test.yaml").unlink()
    with pytest.raises((RewardError, BundleError), match=r"right.*also|2 verify steps"):
        await rig.builder(bundle=str(root))()


def test_what_an_evaluator_is_asked_on_a_closed_loop_is_the_last_batch(tmp_path: Path) -> None:
    """`TrainingSteps` goes by the last batch where the trainer cannot be asked."""
    steps = TrainingSteps(tmp_path, lambda _: 99)
    assert steps.evaluated == 0
    steps.train(4)
    assert steps.evaluated == 5
    _process.close_run_indexes()
