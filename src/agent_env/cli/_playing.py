"""Playing many tasks with one kind of player, recorded, a few at a time; and what each of them came to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from agent_env._cancellation import stops_us
from agent_env.bundle import Bundle, Task
from agent_env.chat import open_chat
from agent_env.episode import EpisodeSink, Limits, NullSink, open_episode
from agent_env.episode.driving import drive
from agent_env.episode.players import Player
from agent_env.errors import RewardError
from agent_env.outcome import EpisodeResult, Failure, Outcome
from agent_env.runs import RunIndex, RunSink
from agent_env.verify import RewardRule, resolve_reward

__all__ = ["Played", "Recording", "play_tasks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What one episode came to."""

    task_id: str
    rollout: int
    """Its number among those of its task, from 0."""
    run_id: str
    result: EpisodeResult | None
    """None when the person who played it gave it up."""
    reward: float | None = None
    duration_s: float

    @property
    def outcome(self) -> Outcome:
        """How it ended."""
        return Outcome.ABANDONED if self.result is None else self.result.outcome

    @property
    def failure(self) -> Failure | None:
        """What broke it."""
        return None if self.result is None else self.result.failure


@dataclass(slots=True, kw_only=True)
class Recording:
    """Where episodes are recorded, within which limits they are played, and how their rewards are made."""

    index: RunIndex | None
    tasks: Sequence[Task]
    group: str
    labels: Mapping[str, Any]
    limits: Limits
    rule: RewardRule | None
    why_no_reward: str = ""
    """Why there is no rule."""
    played: list[Played] = field(default_factory=list[Played])
    """What was played so far."""

    @classmethod
    @contextmanager
    def open(
        cls,
        folder: Path | None,
        group: str,
        *,
        bundle: Bundle,
        tasks: Sequence[Task],
        labels: Mapping[str, Any],
        judges: bool | None,
    ) -> Generator[Recording]:
        """Open the runs folder.

        Args:
            folder: None records nothing.
            group: What the runs are filed under.
            bundle: Says what the reward is.
            tasks: The tasks that will be played.
            labels: What else is kept with each run.
            judges: Whether model judges may be asked; None leaves it to the environment.

        Raises:
            RunIndexError: When it cannot be written, also at the end.
        """
        rule, why = None, ""
        try:
            rule = resolve_reward(bundle, None, tasks, judges=judges)
        except RewardError as exc:  # a task may be played without one
            why = str(exc)
        with nullcontext() if folder is None else RunIndex.open(folder) as index:
            yield cls(
                index=index,
                tasks=tasks,
                group=group,
                labels=labels,
                limits=Limits(judges=judges),
                rule=rule,
                why_no_reward=why,
            )

    def sink(self) -> EpisodeSink:
        """Make the sink of one more episode.

        Raises:
            UsageError: When `group` cannot name a group.
        """
        return NullSink() if self.index is None else self.index.run(self.group, labels=self.labels)

    def in_order(self) -> list[Played]:
        """What was played so far, in the order of the tasks."""
        places = {task.id: place for place, task in enumerate(self.tasks)}
        return sorted(self.played, key=lambda played: (places[played.task_id], played.rollout))

    def ended(
        self,
        task: Task,
        sink: EpisodeSink,
        result: EpisodeResult | None,
        *,
        rollout: int = 0,
        duration_s: float,
    ) -> Played:
        """Take down what an episode came to, and its reward."""
        reward = self._reward(sink, result)
        played = Played(
            task_id=task.id,
            rollout=rollout,
            run_id=sink.run_id,
            result=result,
            reward=reward,
            duration_s=duration_s,
        )
        self.played.append(played)
        return played

    def _reward(self, sink: EpisodeSink, result: EpisodeResult | None) -> float | None:
        if self.rule is None or result is None or result.outcome is not Outcome.COMPLETED:
            return None
        try:
            reward = self.rule.reward_of(result)
            if isinstance(sink, RunSink):
                sink.set_reward(reward)
        except RewardError as exc:
            self.why_no_reward = str(exc)
            return None
        return reward


async def play_tasks(
    tasks: Sequence[Task],
    player_of: Callable[[Task], Player],
    recording: Recording,
    *,
    rollouts: int = 1,
    concurrency: int = 1,
    max_messages: int,
    on_played: Callable[[Played], None] | None = None,
) -> None:
    """Play tasks, each as often as is said, a few at a time. What they came to is in `recording.played`.

    An episode that fails, or whose player raises, is counted, and the others go on.

    Args:
        tasks: The tasks.
        player_of: Makes the player of a task.
        recording: Takes the episodes down.
        rollouts: How often each task is played.
        concurrency: Episodes at once.
        max_messages: Messages that a player may write in an episode; it is cut then.
        on_played: Told of each when it has ended.

    Raises:
        RunIndexError: When they cannot be recorded.
        click.Abort: When a player or a tool is interrupted (KeyboardInterrupt).
    """
    waiting = iter([(task, rollout) for task in tasks for rollout in range(rollouts)])

    async def work() -> None:
        for task, rollout in waiting:
            if recording.index is not None:
                await recording.index.ready()
            played = await _play_one(task, rollout, player_of(task), recording, max_messages)
            if on_played is not None:
                on_played(played)

    try:
        async with open_chat(), asyncio.TaskGroup() as workers:
            for _ in range(min(concurrency, len(tasks) * rollouts)):
                workers.create_task(work())
    except BaseExceptionGroup as raised:
        raise raised.exceptions[0] from None  # the first of many that say the same: the index cannot be written


async def _play_one(task: Task, rollout: int, player: Player, recording: Recording, max_messages: int) -> Played:
    sink = recording.sink()
    began = time.perf_counter()
    us = asyncio.current_task()
    try:
        async with open_episode(task, sink=sink, limits=recording.limits) as episode:
            try:
                await drive(episode, player, max_messages=max_messages)
            except BaseException as exc:  # what the player raised: the result says so, and the other episodes go on
                if stops_us(exc, us):
                    raise
            result = await episode.result()
    except KeyboardInterrupt:
        # Raised out of a task it breaks the loop off where it stands, and the loop's threads keep the process for ever.
        raise click.Abort from None
    return recording.ended(task, sink, result, rollout=rollout, duration_s=time.perf_counter() - began)
