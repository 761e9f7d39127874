"""Playing a split with a policy, outside of training: a baseline before, held-out play after."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agent_env.errors import EpisodeFailedError, TrainingError
from agent_env.training import _process
from agent_env.training._cookbook import SamplingClient, TinkerTokenCompleter, TokenCompleter, do_group_rollout
from agent_env.training.tinker import AgentEnvDatasetBuilder, EpisodeGroupBuilder

__all__ = ["PlayedSplit", "play_split"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedSplit:
    """What a split came to."""

    rewards: Mapping[str, tuple[float, ...]]
    """By task id, one for each rollout that was scored."""
    failures: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """By task id, what each failed rollout failed of. They are in no reward."""

    @property
    def mean(self) -> float:
        """The mean over tasks of their mean reward; NaN where nothing was scored."""
        means = [sum(rewards) / len(rewards) for rewards in self.rewards.values() if rewards]
        return sum(means) / len(means) if means else float("nan")


async def play_split(
    builder: AgentEnvDatasetBuilder,
    split: str,
    policy: TokenCompleter | SamplingClient,
    *,
    group: str,
    rollouts: int = 1,
    temperature: float = 1.0,
    policy_step: int | None = None,
    on_played: Callable[[int], None] | None = None,
) -> PlayedSplit:
    """Play every task of a split, as the training does, and file the runs.

    Args:
        builder: Says how: renderer, limits, slots, runs folder.
        split: An eval of its bundle.
        policy: What samples; of a sampling client, `builder.max_generation_tokens` at most in one message.
        group: The group that the runs are filed in; nothing of it is deleted.
        rollouts: How often each task is played.
        temperature: Of a sampling client; 0 is greedy. A token completer has its own.
        policy_step: The trainer's step whose weights the policy has, where there is one: the runs keep it.
        on_played: Told how many rollouts have ended, after each.

    Raises:
        As `AgentEnvDatasetBuilder` does, before anything is played. Failed episodes are counted, not raised.
    """
    if not isinstance(policy, TokenCompleter):
        if builder.max_generation_tokens is None:
            raise TrainingError("max_generation_tokens: say how much the sampling client may write in one message")
        policy = TinkerTokenCompleter(policy, max_tokens=builder.max_generation_tokens, temperature=temperature)
    completer = policy
    settings, tasks = await asyncio.to_thread(builder.checked, split)
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    failures: defaultdict[str, list[str]] = defaultdict(list)
    played = 0

    async def play(task_id: str) -> None:
        nonlocal played
        try:
            builder = EpisodeGroupBuilder(settings, task_id, 1, group, policy_step=policy_step)
            done = await do_group_rollout(builder, completer)
            rewards[task_id] += done.get_total_rewards()
        except EpisodeFailedError as exc:
            failures[task_id].append(str(exc))
        played += 1
        if on_played is not None:
            on_played(played)

    try:
        async with asyncio.TaskGroup() as playing:
            for task in tasks:
                for _ in range(rollouts):
                    playing.create_task(play(task.id))
    except BaseExceptionGroup as raised:
        # The first of many that say the same: what the policy or the run index raised.
        raise raised.exceptions[0] from None
    await asyncio.to_thread(_process.run_index(settings.runs).flush)
    return PlayedSplit(
        rewards={task.id: tuple(rewards[task.id]) for task in tasks if task.id in rewards},
        failures={task: tuple(said) for task, said in failures.items()},
    )
