"""Slots: a bound on the episodes under way, which every ending gives back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tinker_cookbook.rl.rollout_runner import run_rollout
from tinker_cookbook.rl.rollout_strategy import RetryOnFailure
from tinker_cookbook.rl.rollouts import do_group_rollout

from agent_env.errors import EpisodeError, EpisodeFailedError, EpisodeStateError
from agent_env.runs import RunState


async def highest(rig: Any, limit: int, playing: asyncio.Task[Any]) -> int:
    """The most slots that were taken while a task ran."""
    most = 0
    while not playing.done():
        most = max(most, rig.slots(limit).taken)
        await asyncio.sleep(0)
    return most


@pytest.mark.parametrize("script", ["submits", "length", "slow"])
async def test_a_group_larger_than_the_slots_finishes(rig: Any, script: str) -> None:
    """Nine rollouts in two slots, whether they end well, are cut, or are scored slowly; never more than two at once."""
    length = rig.Say(tokens=rig.framing.written(rig.call("add", number=3))[:-1], stop_reason="length")
    said = {"submits": rig.submits, "length": [rig.call("add", number=3), length], "slow": [rig.reply("Done.")]}[script]
    task = "slow" if script == "slow" else "plain-0"
    playing = asyncio.create_task(rig.play(said, task, size=9, max_concurrent_episodes=2))
    most = await highest(rig, 2, playing)
    group = await playing
    assert most == 2
    assert len(group.trajectories_G) == 9
    assert rig.slots(2).taken == 0


async def test_a_group_larger_than_the_slots_finishes_also_when_all_of_it_is_retried(rig: Any) -> None:
    """Every rollout fails once in one slot; the retries are played, and filed as such."""
    failed = iter([True] * 4)

    def script(at: int, text: str) -> Any:
        return rig.call("crash") if at == 0 and next(failed, False) else rig.submits[at]

    group = await rig.play(script, size=4, strategy=RetryOnFailure(max_retries=4), max_concurrent_episodes=1)
    assert group.get_total_rewards() == [1.0] * 4
    runs = rig.filed()
    assert sorted(run.state for run in runs) == [*[RunState.COMPLETED] * 4, *[RunState.FAILED] * 4]
    assert {run.attempt for run in runs if run.state is RunState.FAILED} == {0}
    assert sorted(run.attempt for run in runs if run.state is RunState.COMPLETED) == [1, 2, 3, 4]
    assert rig.slots(1).taken == 0


async def test_groups_of_training_and_evaluation_share_the_slots(rig: Any) -> None:
    """Two groups at once, one of them for evaluation, keep to one bound."""
    groups = [
        rig.group(group=name, size=4, max_concurrent_episodes=3) for name in ("x/train/step-0000", "x/eval/step-0000")
    ]

    async def both() -> None:
        async with asyncio.TaskGroup() as tasks:
            for group in groups:
                tasks.create_task(do_group_rollout(group, rig.policy(rig.submits)))

    playing = asyncio.create_task(both())
    assert await highest(rig, 3, playing) == 3
    await playing
    assert rig.slots(3).taken == 0


async def test_a_start_that_fails_gives_its_slot_back(rig: Any) -> None:
    """An env that cannot start holds no slot, nor do the rollouts that waited for it."""
    with pytest.raises(EpisodeFailedError, match="no counter here"):
        await rig.play([], "no-start", size=3, max_concurrent_episodes=1)
    await rig.until(lambda: rig.slots(1).taken == 0)
    assert {run.state for run in rig.filed()} <= {RunState.FAILED, RunState.ABANDONED}


async def test_a_rollout_cancelled_while_it_waits_for_a_slot_takes_none(rig: Any) -> None:
    """Cancelled in the queue, it is gone from it, and nothing was opened for it."""
    builder = rig.group(size=2, max_concurrent_episodes=1)
    first, second = await builder.make_envs()
    await first.initial_observation()
    waiting = asyncio.create_task(second.initial_observation())
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.wait([waiting])
    await builder.cleanup()
    assert rig.slots(1).taken == 0
    assert len(rig.filed()) == 1


@pytest.mark.parametrize("ends", ["reply", "length"])
async def test_a_rollout_cancelled_while_it_is_scored_does_not_wait_for_the_verifier(rig: Any, ends: str) -> None:
    """As by a strategy's timeout, while its group goes on: the scoring is stopped too, and the slot is free."""
    builder = rig.group("very-slow", max_concurrent_episodes=1)
    (env,) = await builder.make_envs()
    said = rig.reply("Done.")
    if ends == "length":
        said = rig.Say(tokens=rig.framing.written(said)[:-1], stop_reason="length")
    playing = asyncio.create_task(run_rollout(rig.policy([said]), env))
    await rig.until(lambda: bool(env.episode.messages))
    await rig.until(
        lambda: any(event.kind == "turn_ended" for run in rig.filed() for event in rig.index.events(run.run_id))
    )
    assert rig.slots(1).taken == 1
    playing.cancel()
    await asyncio.wait([playing])
    await rig.until(lambda: rig.slots(1).taken == 0)
    assert [run.state for run in rig.filed()] == [RunState.ABANDONED]
    await builder.cleanup()


async def test_a_rollout_that_comes_to_its_slot_after_its_group_was_closed_opens_nothing(rig: Any) -> None:
    """It waited while its group was given up: it gives the slot on, and no episode is left under way."""
    builder = rig.group(size=2, max_concurrent_episodes=1)
    first, second = await builder.make_envs()
    await first.initial_observation()
    waiting = asyncio.create_task(second.initial_observation())
    await asyncio.sleep(0.01)
    await builder.cleanup()
    with pytest.raises(EpisodeError, match="group is closed"):
        await waiting
    assert rig.slots(1).taken == 0
    assert len(rig.filed()) == 1


async def test_cleanup_never_raises_and_gives_back_what_is_left(rig: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What giving an episode up raises is logged: raising would hide the rollout's own error."""
    builder = rig.group(size=2, max_concurrent_episodes=2)
    first, second = await builder.make_envs()
    await first.initial_observation()
    await second.initial_observation()
    first.episode.rollout._stack.push_async_callback(_raise)
    await builder.cleanup()
    assert "closing its episode raised" in caplog.text
    assert rig.slots(2).taken == 0
    assert [run.state for run in rig.filed()] == [RunState.ABANDONED] * 2


async def _raise() -> None:
    raise OSError("cannot close")


async def test_a_step_after_the_group_was_closed_raises(rig: Any) -> None:
    """Siblings of a failed rollout may still step: they get an error that says the episode is over."""
    builder = rig.group()
    (env,) = await builder.make_envs()
    await env.initial_observation()
    await builder.cleanup()
    with pytest.raises(EpisodeStateError, match="abandoned"):
        await env.step(rig.framing.written(rig.call("add", number=3)))
