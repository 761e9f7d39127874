"""Every task can be solved as its gold says, and is not solved by doing nothing."""

import asyncio
from pathlib import Path

import pytest

from agent_env import Message, PlayerTurn, gold_player, load_bundle, play, resolve_reward

BUNDLE = load_bundle(Path(__file__).parent.parent)
REWARD = resolve_reward(BUNDLE, None, BUNDLE.tasks.values())


def do_nothing(turn: PlayerTurn) -> Message:
    """A player that says one sentence and calls no tool."""
    return {"role": "assistant", "content": "Good day."}


@pytest.mark.parametrize("task_id", BUNDLE.tasks)
def test_gold_solves_the_task(task_id: str) -> None:
    """The reference solution earns what it claims."""
    task = BUNDLE.task(task_id)
    result = asyncio.run(play(task, gold_player(task)))
    assert REWARD.reward_of(result) == task.gold_reward


@pytest.mark.parametrize("task_id", BUNDLE.tasks)
def test_doing_nothing_does_not(task_id: str) -> None:
    """A reward for nothing would be learned first."""
    result = asyncio.run(play(BUNDLE.task(task_id), do_nothing))
    assert REWARD.reward_of(result) == 0
