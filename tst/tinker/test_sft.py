"""SFT examples: the tokens that the same conversation has as a rollout, with weight on what the assistant wrote."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollout_runner import RolloutHooks, run_rollout

from agent_env.errors import TrainingError, UsageError
from agent_env.training.sft import EpisodeSFTDatasetBuilder, play_player


def tokens_of(datum: Any) -> list[int]:
    """All tokens of a datum."""
    targets = list(datum.loss_fn_inputs["target_tokens"].data)
    return [*datum.model_input.to_ints()[:1], *targets]


def weights_of(datum: Any, name: str) -> list[float]:
    """The weights of its targets."""
    return [float(weight) for weight in datum.loss_fn_inputs[name].data]


def sft(rig: Any, **changes: Any) -> Any:
    """The dataset of a group's runs."""
    settings = {
        "runs": str(rig.runs),
        "group": "test/group",
        "model_name_for_tokenizer": str(rig.tokenizer),
        "renderer_name": rig.renderer_name,
        "batch_size": 1,
    }
    dataset, test = EpisodeSFTDatasetBuilder(**{**settings, **changes})()
    assert test is None
    return dataset


class Minds(RolloutHooks):
    """Puts a message of the user's before the agent's second and third."""

    async def on_turn_begin(self, state: Any) -> Any:
        return [{"role": "user", "content": f"Mind {state.turn_index}."}] if state.turn_index else None


async def test_examples_have_what_hooks_put_into_the_conversation(rig: Any) -> None:
    """The model read it in the rollout, so it is in the example."""
    rig = replace(rig, renderer_name="qwen3_instruct")
    builder = rig.group()
    (env,) = await builder.make_envs()
    trajectory = await run_rollout(rig.policy(rig.submits), env, hooks=Minds())
    await builder.cleanup()
    (trained,) = trajectory_to_data(trajectory, 1.0)
    rig.index.flush()
    ((example,),) = sft(rig).conversations
    assert tokens_of(example) == tokens_of(trained)


RENDERERS = ["qwen3", "qwen3_disable_thinking", "qwen3_instruct", "qwen3_5", "qwen3_5_disable_thinking"]


@pytest.mark.parametrize("renderer_name", RENDERERS)
async def test_examples_have_the_tokens_of_the_rollout(rig: Any, renderer_name: str) -> None:
    """A recorded rollout, with text before a call, renders to the tokens and the weights that it was trained with."""
    rig = replace(rig, renderer_name=renderer_name)
    script = [rig.call("add", number=3), rig.call("add", text="Now four.", number=4), rig.call("submit", total=7)]
    group = await rig.play(script)
    (trained,) = trajectory_to_data(group.trajectories_G[0], 1.0)
    rig.index.flush()
    ((example,),) = sft(rig).conversations
    assert tokens_of(example) == tokens_of(trained)
    assert weights_of(example, "weights") == weights_of(trained, "mask")


@pytest.mark.parametrize("renderer_name", ["qwen3_disable_thinking", "qwen3_instruct"])
async def test_examples_of_several_turns_have_the_tokens_of_the_rollout(rig: Any, renderer_name: str) -> None:
    """Two turns are as many examples as they are datums of the rollout, with the same tokens."""
    rig = replace(rig, renderer_name=renderer_name)
    group = await rig.play([rig.call("add", number=3), rig.reply("Added."), rig.call("submit", total=3)], "two-turns")
    trained = trajectory_to_data(group.trajectories_G[0], 1.0)
    rig.index.flush()
    (examples,) = sft(rig).conversations
    assert [tokens_of(example) for example in examples] == [tokens_of(datum) for datum in trained]
    assert [weights_of(example, "weights") for example in examples] == [weights_of(datum, "mask") for datum in trained]


async def test_a_players_run_has_the_tokens_of_a_policy_that_says_the_same(rig: Any) -> None:
    """The best player's examples are what the policy will see and write in a rollout."""
    await play_player(rig.bundle, "good", "train", runs=rig.runs, group="x/player/good")
    ((example,), *_) = sft(rig, group="x/player/good").conversations
    script = [rig.call("add", number=3), rig.call("add", text="I add.", number=4), rig.call("submit", total=7)]
    group = await rig.play(script, "plain-0")
    (trained,) = trajectory_to_data(group.trajectories_G[0], 1.0)
    assert tokens_of(example) == tokens_of(trained)
    assert weights_of(example, "weights") == weights_of(trained, "mask")


async def test_a_player_is_played_once_a_task_and_goes_on_where_it_was_stopped(rig: Any) -> None:
    """The builder plays what the group lacks; asked again, it plays nothing."""
    settings = {"player": "good", "bundle": str(rig.bundle), "split": "train", "group": "x/good", "batch_size": 2}
    dataset = sft(rig, **settings)
    assert (len(dataset.conversations), len(dataset)) == (5, 2)
    before = [run.run_id for run in rig.filed("x/good")]
    assert {run.reward for run in rig.filed("x/good")} == {1.0}
    sft(rig, **settings)
    assert [run.run_id for run in rig.filed("x/good")] == before


async def test_runs_that_earned_too_little_failed_or_were_cut_make_no_example(rig: Any) -> None:
    """`min_reward` is a floor; a cut run is no example of how to end."""
    await rig.play()
    await rig.play([rig.reply("No.")])
    await rig.play([rig.call("add", number=3)], max_messages=1)
    rig.index.flush()
    assert len(sft(rig).conversations) == 2
    assert len(sft(rig, min_reward=0.9).conversations) == 1
    with pytest.raises(TrainingError, match=r"no completed run.*1\.5 or more"):
        sft(rig, min_reward=1.5)
    with pytest.raises(TrainingError, match="no completed run"):
        sft(rig, group="test/nothing")


async def test_batches_go_through_all_examples_in_an_order_of_the_seed(rig: Any) -> None:
    """`steps` batches of `batch_size` conversations; every time through them has each once."""
    await play_player(rig.bundle, "good", "train", runs=rig.runs, group="x/good")
    dataset = sft(rig, group="x/good", steps=4, batch_size=5, seed=1)
    assert len(dataset) == 4
    dataset.set_epoch(0)
    batches = [[id(datum) for datum in dataset.get_batch(index)] for index in range(4)]
    assert all(len(set(batch)) == 5 for batch in batches)
    assert len({tuple(batch) for batch in batches}) > 1
    again = [[id(datum) for datum in dataset.get_batch(index)] for index in range(4)]
    assert again == batches
    dataset.set_epoch(1)
    assert [id(datum) for datum in dataset.get_batch(0)] not in batches[:1]


async def test_a_player_that_is_not_there_is_refused(rig: Any) -> None:
    """The error names those that are."""
    with pytest.raises(UsageError, match="no player 'best', only good"):
        await play_player(rig.bundle, "best", "train", runs=rig.runs, group="x/good")
