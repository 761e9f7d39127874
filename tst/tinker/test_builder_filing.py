"""Where runs are filed: training by the step that they train, evaluation by the step that it is played at."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
from tinker_cookbook.rl.metric_util import RLTestSetEvaluator
from tinker_cookbook.rl.rollout_strategy import MinViableGroup, RetryOnFailure
from tinker_cookbook.rl.rollouts import do_group_rollout

from agent_env.errors import TrainingError
from agent_env.runs import RunState
from agent_env.training import _process
from agent_env.training.evaluate import play_split


async def play_all(rig: Any, builders: Sequence[Any]) -> None:
    """Play groups at once, as the cookbook's training does."""
    async with asyncio.TaskGroup() as tasks:
        for builder in builders:
            tasks.create_task(do_group_rollout(builder, rig.policy(rig.submits)))


def counts(rig: Any) -> dict[str, int]:
    """Runs by group."""
    return {group.name: group.runs for group in rig.index.groups()}


async def evaluate(rig: Any, evaluator: RLTestSetEvaluator, step: int) -> None:
    """Evaluate as `rl.train.run_evaluations_parallel` does, in a task that it names so."""
    evaluating = evaluator.eval_token_completer(rig.policy(rig.submits))
    await asyncio.create_task(evaluating, name=f"eval_test_iteration_{step:06d}")


async def test_training_is_filed_by_step(rig: Any) -> None:
    """Batch i is `<run name>/train/step-000i`, with `group_size` runs a task."""
    train, test = await rig.builder(groups_per_batch=2, group_size=3, run_name="mine")()
    assert test is None
    for step in range(2):
        await play_all(rig, train.get_batch(step))
    assert counts(rig) == {"mine/train/step-0000": 6, "mine/train/step-0001": 6}
    runs = rig.filed("mine/train/step-0001")
    assert len({run.task_id for run in runs}) == 2
    assert {(run.attempt, run.state, run.reward) for run in runs} >= {(0, RunState.COMPLETED, 1.0)}
    assert runs[0].labels["renderer"] == "qwen3_disable_thinking"


async def test_evaluation_is_filed_by_the_step_it_is_played_at_at_every_replay(rig: Any) -> None:
    """The evaluator plays the same group builders again and again; each time under the step that the trainer is at."""
    train, test = await rig.builder(groups_per_batch=2, group_size=1, test_split="test", eval_group_size=2)()
    evaluator = RLTestSetEvaluator(test, max_tokens=10)
    await evaluate(rig, evaluator, 0)
    await play_all(rig, train.get_batch(0))
    await play_all(rig, train.get_batch(1))
    await evaluate(rig, evaluator, 2)
    names = ["eval/step-0000", "eval/step-0002", "train/step-0000", "train/step-0001"]
    assert counts(rig) == {f"counter/{name}": 2 for name in names}
    assert {run.attempt for run in rig.filed("counter/eval/step-0002")} == {0}


async def test_an_evaluation_that_does_not_say_its_step_is_filed_after_the_last_batch(rig: Any) -> None:
    """Without the trainer's task, it is the step after the last one that a batch was asked for."""
    train, test = await rig.builder(groups_per_batch=2, group_size=1, test_split="test")()
    evaluator = RLTestSetEvaluator(test, max_tokens=10)
    train.get_batch(1)
    await evaluator.eval_token_completer(rig.policy(rig.submits))
    assert counts(rig) == {"counter/eval/step-0002": 1}


async def test_a_resumed_training_files_under_its_step_and_nothing_twice(rig: Any) -> None:
    """What a stopped process left of a step and of its evaluation is replaced when that step is played again."""
    settings = {"groups_per_batch": 2, "group_size": 2, "test_split": "test"}
    train, test = await rig.builder(**settings)()
    await play_all(rig, train.get_batch(0))
    first, _ = train.get_batch(1)
    await do_group_rollout(first, rig.policy(rig.submits))
    await evaluate(rig, RLTestSetEvaluator(test, max_tokens=10), 1)
    before = {run.run_id for run in rig.filed("counter/train/step-0001")}
    _process.close_run_indexes()

    train, test = await rig.builder(**settings)()
    await evaluate(rig, RLTestSetEvaluator(test, max_tokens=10), 1)
    await play_all(rig, train.get_batch(1))
    assert counts(rig) == {"counter/eval/step-0001": 1, "counter/train/step-0000": 4, "counter/train/step-0001": 4}
    assert before.isdisjoint(run.run_id for run in rig.filed("counter/train/step-0001"))


async def test_retried_rollouts_are_filed_with_their_attempt_and_none_twice(rig: Any) -> None:
    """A retry makes a whole group's rollouts and plays one of them: that one is filed, as another attempt."""
    for strategy in (RetryOnFailure(max_retries=2), MinViableGroup(min_successful=3, max_retries=2)):
        failures = iter([RuntimeError("lost"), RuntimeError("lost")])

        def script(at: int, text: str, failures: Iterator[Exception] = failures) -> Any:
            return rig.Say(error=error) if (error := next(failures, None)) else rig.submits[at]

        name = f"test/{type(strategy).__name__}"
        group = await do_group_rollout(rig.group(size=3, group=name), rig.policy(script), strategy=strategy)
        assert len(group.trajectories_G) == 3
        runs = rig.filed(name)
        assert Counter((run.attempt, run.state) for run in runs) == {
            (0, RunState.FAILED): 2,
            (0, RunState.COMPLETED): 1,
            (1, RunState.COMPLETED): 1,
            (2, RunState.COMPLETED): 1,
        }


async def test_a_group_played_again_is_filed_as_another_attempt(rig: Any) -> None:
    """Asynchronous training plays a group whose runs became too old again: what it trains on is the last attempt."""
    train, _ = await rig.builder(groups_per_batch=1, group_size=2)()
    (builder,) = train.get_batch(0)
    for _ in range(3):
        await do_group_rollout(builder, rig.policy(rig.submits))
    assert Counter(run.attempt for run in rig.filed("counter/train/step-0000")) == {0: 2, 1: 2, 2: 2}


async def test_a_trainer_that_goes_through_the_batches_again_files_each_step_apart(rig: Any) -> None:
    """With the trainer's own `num_epochs` a batch is asked for once an epoch: each time it is another step."""
    utils = pytest.importorskip("tinker_cookbook.rl.dataset_utils", reason="from tinker-cookbook 0.6 on")
    train, _ = await rig.builder(groups_per_batch=3, group_size=1, run_name="mine")()
    repeated = utils.EpochCycledRLDataset(train, 2)
    for step in (1, 2, 3):
        assert {builder.group for builder in repeated.get_batch(step)} == {f"mine/train/step-000{step}"}
    assert {builder.group for builder in train.get_batch(1)} == {"mine/train/step-0001"}


async def test_a_batch_is_asked_for_without_waiting_for_the_disk(rig: Any) -> None:
    """The trainer asks on its event loop, while other processes may be writing."""
    train, _ = await rig.builder(groups_per_batch=1, group_size=1)()
    await play_all(rig, train.get_batch(0))
    assert counts(rig) == {"counter/train/step-0000": 1}
    again, _ = await rig.builder(groups_per_batch=1, group_size=1)()
    with closing(sqlite3.connect(rig.runs / "index.sqlite3", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # whoever waited for the disk would never come back
        again.get_batch(0)
        other.execute("ROLLBACK")
    assert counts(rig) == {}


async def test_the_event_loop_goes_on_while_a_builder_opens_its_files(rig: Any) -> None:
    """A run index that another process holds for a while, a large bundle: the trainer's heartbeats go on meanwhile."""
    _process.run_index(rig.runs).close()
    _process.close_run_indexes()
    file = rig.runs / "index.sqlite3"
    file.unlink()
    for beside in rig.runs.glob("index.sqlite3-*"):
        beside.unlink()
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        asyncio.get_running_loop().call_soon(asyncio.get_running_loop().call_soon, other.execute, "ROLLBACK")
        train, _ = await rig.builder()()
    assert len(train) == 1


async def test_held_out_play_gives_rewards_by_task_and_counts_failures(rig: Any) -> None:
    """`play_split` plays every task `rollouts` times; what fails is counted and in no reward."""
    told: list[int] = []
    plain = await play_split(
        rig.builder(), "train", rig.policy(rig.submits), group="x/held-out", rollouts=2, on_played=told.append
    )
    assert set(plain.rewards.values()) == {(1.0, 1.0)}
    assert len(plain.rewards) == 5
    assert told == list(range(1, 11))
    assert (plain.mean, plain.failures) == (1.0, {})

    everything = await play_split(rig.builder(), "all", rig.policy([rig.reply("Done.")]), group="x/all")
    assert sorted(everything.failures) == ["nan", "no-start", "raises"]
    assert not everything.failures.keys() & everything.rewards.keys()


async def test_held_out_play_raises_what_its_policy_raises(rig: Any) -> None:
    """A sampler that is gone comes out as itself, not as a group of exceptions."""
    with pytest.raises(ConnectionError, match="gone"):
        await play_split(rig.builder(), "train", rig.policy([rig.Say(error=ConnectionError("gone"))]), group="x/y")
    assert rig.slots(256).taken == 0


HOLDS = """
import sys
from pathlib import Path
from agent_env.training import _process
_process.hold_name(Path(sys.argv[1]), "counter")
print("held", flush=True)
sys.stdin.read()
"""


async def test_a_second_training_of_the_same_name_is_refused_while_the_first_has_not_ended(rig: Any) -> None:
    """They would delete each other's runs. Another name is free, and so is this one when the first is killed."""
    words = [sys.executable, "-c", HOLDS, str(rig.runs.resolve())]
    first = await asyncio.create_subprocess_exec(*words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    assert first.stdout is not None
    assert await first.stdout.readline() == b"held\n"
    with pytest.raises(TrainingError, match="run_name='counter': another process trains under this name"):
        await rig.builder()()
    await rig.builder(run_name="other")()
    first.kill()
    await first.wait()
    await rig.builder()()
    await rig.builder()()
