"""Supervised training on recorded runs: `EpisodeSFTDatasetBuilder` is a dataset builder for the cookbook's `supervised.train`.

The examples have the tokens that the same conversation has as a rollout, the prompt with its tools included, so that
reinforcement learning goes on from what was learned here.
"""

# No `from __future__ import annotations`: chz reads the types of the fields.

import asyncio
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from agent_env.episode import play
from agent_env.errors import TrainingError, UsageError
from agent_env.runs import RunIndex, RunState, RunSummary
from agent_env.training import _process
from agent_env.training._cookbook import Datum, RendererError, SupervisedDataset, SupervisedDatasetBuilder, chz
from agent_env.training._examples import examples_of
from agent_env.training._framing import framing_of
from agent_env.training._playable import playable
from agent_env.verify.reward import resolve_reward

__all__ = ["EpisodeSFTDataset", "EpisodeSFTDatasetBuilder", "play_player"]


async def play_player(
    bundle: Path, player: str, split: str, *, runs: Path, group: str, reward: str | None = None
) -> dict[str, float]:
    """Play one of a bundle's players over a split, once a task, and file the runs.

    Args:
        bundle: The bundle's folder.
        player: One of its players.
        split: One of its evals.
        runs: The runs folder.
        group: Where the runs are filed. Tasks that have a reward there already are not played again.
        reward: The verify step whose score is the reward; None leaves it to the bundle.

    Returns:
        The rewards by task id, of the whole split.

    Raises:
        UsageError: When the bundle, the player or the split is not there.
        RewardError: When it is not clear what the reward of a task is, or an episode failed.
        RunIndexError: When the runs folder cannot be written.
    """
    loaded = _process.bundle(bundle)
    tasks = playable(loaded, split).tasks
    rule = resolve_reward(loaded, reward, tasks)
    if player not in loaded.players:
        raise UsageError(f"{loaded.name} has no player '{player}', only {', '.join(loaded.players) or 'none'}")
    index = _process.run_index(runs)
    rewards = {run.task_id: run.reward for run in index.all_runs(group) if run.reward is not None}
    for task in tasks:
        if task.id in rewards:
            continue
        sink = index.run(group, labels={"player": player})
        result = await play(task, loaded.players[player], sink=sink)
        rewards[task.id] = rule.reward_of(result)
        sink.set_reward(rewards[task.id])
    await asyncio.to_thread(index.flush)
    return {task.id: rewards[task.id] for task in tasks}


class EpisodeSFTDataset(SupervisedDataset):
    """Conversations in batches, shuffled anew for each time through them, the same order from the same seed."""

    def __init__(self, conversations: Sequence[Sequence[Datum]], *, batch_size: int, steps: int, seed: int) -> None:
        """`conversations` has the examples of each: one, where the renderer allows it."""
        self.conversations = conversations
        self.batch_size = batch_size
        self.steps = steps
        self.seed = seed
        self._epoch = 0

    def __len__(self) -> int:
        return self.steps

    def set_epoch(self, seed: int = 0) -> None:
        """Go on where the epoch before ended; the cookbook counts them in `seed`."""
        self._epoch = seed

    def get_batch(self, index: int) -> list[Datum]:
        """The examples of `batch_size` conversations."""
        first = (self._epoch * self.steps + index) * self.batch_size
        return [datum for at in range(first, first + self.batch_size) for datum in self._conversation(at)]

    def _conversation(self, at: int) -> Sequence[Datum]:
        time, place = divmod(at, len(self.conversations))
        order = list(range(len(self.conversations)))
        random.Random(f"{self.seed}:{time}").shuffle(order)
        return self.conversations[order[place]]


@chz
class EpisodeSFTDatasetBuilder(SupervisedDatasetBuilder):
    """The runs of a group as examples: pass it as `dataset_builder` in `tinker_cookbook.supervised.train.Config`."""

    runs: str
    """The runs folder."""
    group: str
    """The group of runs to learn from."""
    model_name_for_tokenizer: str
    renderer_name: str
    batch_size: int = 16
    """Conversations a step."""
    steps: int | None = None
    """Batches of an epoch: the conversations are gone through as often as that takes. None is once."""
    seed: int = 0
    """For the order."""
    min_reward: float | None = None
    """Runs that earned less are left out, and so are those without a reward. None takes every run that completed."""
    max_length: int | None = None
    """Tokens that an example is cut off at; None is no bound."""
    player: str | None = None
    """Plays `split` of `bundle` first, where `group` does not have its runs yet."""
    bundle: str | None = None
    split: str = "all"
    reward: str | None = None
    """The verify step whose score is the reward of what the player plays; None leaves it to the bundle."""

    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]:
        """Read the runs and make the examples.

        Raises:
            TrainingError: When there is no run to learn from, or the renderer cannot write one.
            UsageError: When the bundle, player or split is not there.
            RunIndexError: When the runs folder cannot be read.
        """
        if self.batch_size < 1 or (self.steps is not None and self.steps < 1):
            raise TrainingError(f"batch_size={self.batch_size}, steps={self.steps}: give at least 1")
        if self.player is not None:
            self._play(self.player)
        conversations = self._conversations()
        once = max(1, len(conversations) // self.batch_size)
        dataset = EpisodeSFTDataset(
            conversations,
            batch_size=min(self.batch_size, len(conversations)) if self.steps is None else self.batch_size,
            steps=self.steps or once,
            seed=self.seed,
        )
        return dataset, None

    def _conversations(self) -> list[list[Datum]]:
        try:
            framing = framing_of(self.renderer_name, self.model_name_for_tokenizer)
        except RendererError as exc:
            raise TrainingError(f"renderer_name={self.renderer_name!r}: {exc}") from exc
        conversations: list[list[Datum]] = []
        with RunIndex.open(Path(self.runs), read_only=True) as index:
            for run in index.all_runs(self.group, state=RunState.COMPLETED):
                if not self._is_wanted(run):
                    continue
                try:
                    examples = examples_of(index.events(run.run_id), framing)
                except RendererError as exc:
                    raise TrainingError(f"run {run.run_id} cannot be written by {self.renderer_name}: {exc}") from exc
                if examples:
                    conversations.append([example.datum(self.max_length) for example in examples])
        if not conversations:
            floor = "" if self.min_reward is None else f" with a reward of {self.min_reward} or more"
            raise TrainingError(f"{self.runs}: group {self.group!r} has no completed run to learn from{floor}")
        return conversations

    def _is_wanted(self, run: RunSummary) -> bool:
        if run.cut is not None:
            return False
        return self.min_reward is None or (run.reward is not None and run.reward >= self.min_reward)

    def _play(self, player: str) -> None:
        if self.bundle is None:
            raise TrainingError(f"player={player!r}: say in which bundle")
        playing = play_player(
            Path(self.bundle), player, self.split, runs=Path(self.runs), group=self.group, reward=self.reward
        )
        # The cookbook calls a builder on its event loop, and without await.
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix="agent-env-player") as thread:
            thread.submit(asyncio.run, playing).result()
