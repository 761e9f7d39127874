"""The garbage collector: it makes its full rounds between batches, and has little to go through."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tinker_cookbook.rl.rollouts import do_group_rollout

from agent_env.training import _collector


@contextmanager
def full_rounds() -> Iterator[list[int]]:
    """How many full rounds are made in a block, in one number."""
    made = [0]

    def note(phase: str, info: dict[str, int]) -> None:
        made[0] += phase == "start" and info["generation"] == 2

    gc.callbacks.append(note)
    try:
        yield made
    finally:
        gc.callbacks.remove(note)


@pytest.fixture
def thresholds() -> Iterator[None]:
    """Python's own thresholds, as in a new process; those that were there come back."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    _collector.spare.cache_clear()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.usefixtures("thresholds")
async def test_calling_the_builder_leaves_out_what_is_loaded_and_makes_full_rounds_seldom(rig: Any) -> None:
    """What is there stays out of the collector's rounds; those over young objects are made as before."""
    await rig.builder()()
    assert gc.get_freeze_count() > 10_000
    assert gc.get_threshold() == (700, 10, 100)


@pytest.mark.usefixtures("thresholds")
async def test_a_worker_that_is_sent_a_group_does_so_too(rig: Any) -> None:
    """No builder is called there: the first group sees to it."""
    sent = pickle.loads(pickle.dumps(rig.group()))
    assert gc.get_threshold() == (700, 10, 10)
    await do_group_rollout(sent, rig.policy(rig.submits))
    assert gc.get_threshold() == (700, 10, 100)
    assert gc.get_freeze_count() > 10_000


@pytest.mark.usefixtures("thresholds")
@pytest.mark.parametrize("own", [(0, 10, 10), (700, 10, 1000), (700, 10, 0)])
def test_thresholds_that_ask_for_fewer_full_rounds_stay(own: tuple[int, int, int]) -> None:
    """A process that has turned the collector off, or has it make still fewer full rounds, knows what it does."""
    gc.set_threshold(*own)
    _collector.spare()
    assert gc.get_threshold() == (own[0], own[1], max(own[2], 100) if own[2] else 0)


async def test_a_full_round_is_made_between_batches_and_none_while_rollouts_are_under_way(rig: Any) -> None:
    """A trainer that asks for the next batch while it plays one has no full round made under its rollouts."""
    train, _ = await rig.builder(groups_per_batch=1, max_concurrent_episodes=1)()
    with full_rounds() as made:
        train.get_batch(0)
        assert made == [1]
    slot = await rig.slots(1).take()
    with full_rounds() as made:
        train.get_batch(1)
    slot.give_back()
    assert made == [0]


async def test_no_round_is_made_where_the_process_has_turned_the_collector_off(rig: Any) -> None:
    """Who turns it off makes rounds of one's own."""
    train, _ = await rig.builder(groups_per_batch=1)()
    gc.disable()
    try:
        with full_rounds() as made:
            train.get_batch(0)
    finally:
        gc.enable()
    assert made == [0]


async def test_the_collector_does_not_go_through_the_tokens_of_prompts(rig: Any) -> None:
    """They are most of what a rollout holds: a round leaves them out once it has seen them."""
    played = await rig.play()
    gc.collect()
    chunks = [chunk for step in played.trajectories_G[0].transitions for chunk in step.ob.chunks]
    assert len(chunks) > 3
    assert not any(gc.is_tracked(chunk.tokens) for chunk in chunks)
