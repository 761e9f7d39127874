"""Where runs are filed: training by the step that they train, evaluation by the step that it is played at."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest
from tinker_cookbook.rl.metric_util import RLTestSetEvaluator
from tinker_cookbook.rl.rollouts import do_group_rollout

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


async def test_a_pickled_group_plays_the_same(rig: Any) -> None:
    """A builder that went through pickle holds paths and settings, and files where the other would."""
    train, test = await rig.builder(groups_per_batch=1, group_size=2, test_split="test")()
    train.get_batch(3)
    builders = [*train.get_batch(4), *test.get_batch(0)]
    copies = [pickle.loads(pickle.dumps(builder)) for builder in builders]
    assert [copy.logging_tags() for copy in copies] == [builder.logging_tags() for builder in builders]
    await play_all(rig, copies)
    assert counts(rig) == {"counter/eval/step-0005": 1, "counter/train/step-0004": 2}


def rewards_in_a_worker(builder: Any) -> list[float]:
    """Play a group in a process of its own."""

    class Replies:
        async def __call__(self, model_input: Any, stop: Any, *, max_tokens: int | None = None) -> Any:
            from tinker_cookbook.completers import TokensWithLogprobs

            from agent_env.training._framing import framing_of

            framing = framing_of(builder.settings.renderer_name, builder.settings.model_name)
            tokens = framing.written({"role": "assistant", "content": "Done."})
            return TokensWithLogprobs(tokens=tokens, maybe_logprobs=[0.0] * len(tokens))

    group = asyncio.run(do_group_rollout(builder, Replies()))  # type: ignore[arg-type]
    _process.close_run_indexes()
    return group.get_total_rewards()


@pytest.mark.timeout(120)
async def test_a_group_is_played_in_a_worker_process(rig: Any) -> None:
    """Sent to a spawned process, a group is played and filed there."""
    builder = rig.group(size=2)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        rewards = await asyncio.get_running_loop().run_in_executor(pool, rewards_in_a_worker, builder)
    assert rewards == [0.0, 0.0]
    assert [(run.state, run.reward) for run in rig.filed()] == [(RunState.COMPLETED, 0.0)] * 2


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
