"""Training on a bundle with tinker-cookbook: `AgentEnvDatasetBuilder` is a dataset builder for its `rl.train.Config`.

Each rollout is an episode of a task, scored by the bundle's verifiers and filed in the run index under the step it is of:
`<run name>/train/step-0003`, `<run name>/eval/step-0010`. Slots bound the episodes under way in one process.
"""

# No `from __future__ import annotations`: chz reads the types of the fields.

import asyncio
import logging
import math
import random
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from agent_env.bundle import Bundle, Task
from agent_env.errors import RunIndexError
from agent_env.training import _collector, _process
from agent_env.training._adapter import ScoredWhenCut
from agent_env.training._cookbook import (
    Env,
    EnvGroupBuilder,
    RLDataset,
    RLDatasetBuilder,
    RolloutConfig,
    Trajectory,
    chz,
    default_rollout_config_for_model,
    policy_step_of_batch,
    policy_step_of_group,
    step_of_batch,
    step_under_evaluation,
)
from agent_env.training._episodes import Rollout, RunGroup
from agent_env.training._fields import check_fields
from agent_env.training._framing import Framing, History, framing_for, framing_of
from agent_env.training._machine import check_machine
from agent_env.training._pieces import TokenPieces
from agent_env.training._playable import playable
from agent_env.training._rollout import EpisodeEnv, RolloutSettings
from agent_env.training._slots import any_taken, slots_for
from agent_env.training._steps import EvalGroup, Filing, TrainingSteps, train_group
from agent_env.verify.reward import RewardRule, resolve_reward

__all__ = ["AgentEnvDatasetBuilder", "EpisodeDataset", "EpisodeEnv", "EpisodeGroupBuilder", "GroupSettings"]


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """What the groups of one training have in common: paths and settings, so that it can be sent to another process."""

    bundle: Path
    runs: Path
    run_name: str
    renderer_name: str
    model_name: str
    history: History
    reward: RewardRule
    rollout: RolloutSettings
    max_concurrent_episodes: int | None
    record_tokens: bool


_playing: ContextVar[tuple["EpisodeGroupBuilder", RunGroup] | None] = ContextVar("agent_env_playing", default=None)
"""The group that is played here. Not the current task: the cookbook may clean up in a task of its own, which inherits this."""


class EpisodeGroupBuilder(EnvGroupBuilder):
    """Makes the rollouts of one task. Picklable; what is heavy is made or found where the rollouts are played."""

    def __init__(
        self,
        settings: GroupSettings,
        task_id: str,
        size: int,
        group: str | EvalGroup,
        *,
        tags: Sequence[str] = (),
        policy_step: int | None = None,
        sent_as_attempt: int | None = None,
    ) -> None:
        """Args: what the groups have in common, the task, how many rollouts, where they are filed, the task's tags, the step of
        the weights that sample, and of a builder that another process made, which attempt its rollouts are.
        """
        self.settings = settings
        self.task_id = task_id
        self.size = size
        self.group = group
        self.tags = tuple(tags)
        self.policy_step = policy_step
        self._open: list[RunGroup] = []
        self._attempts: dict[str, int] = {}
        """By the name that it is filed under, how many times the group's rollouts were asked for: once for each play and
        once for each retry. Asynchronous training plays a group whose runs became too old again."""
        self._is_sent = sent_as_attempt is not None
        if sent_as_attempt is not None:
            self._attempts[self._filing().group] = sent_as_attempt

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to another process, the group is played there, once, under the name it would have here and now."""
        filing = self._filing()
        attempt = self._attempts.get(filing.group, 0)
        self._attempts = {filing.group: attempt + 1}
        return (
            _sent,
            (self.settings, self.task_id, self.size, filing.group, self.tags, filing.policy_step, attempt),
        )

    async def make_envs(self) -> Sequence[Env]:
        """Make the group's rollouts; asked again while the group is played, make more for a retry."""
        settings = self.settings
        framing = framing_of(settings.renderer_name, settings.model_name, settings.history)
        group = await self._group()
        rollouts = group.rollouts(self.size)
        self._attempts = {group.name: group.attempts}
        return [self._env(rollout, framing) for rollout in rollouts]

    def _env(self, rollout: Rollout, framing: Framing) -> Env:
        settings = self.settings.rollout
        return ScoredWhenCut(EpisodeEnv(rollout, framing, settings), framing, settings)

    def _filing(self) -> Filing:
        if not isinstance(self.group, str):
            return self.group.begin()
        known = self.policy_step
        return Filing(group=self.group, policy_step=policy_step_of_group() if known is None else known)

    async def _group(self) -> RunGroup:
        playing = _playing.get()
        if playing is not None and playing[0] is self and not playing[1].is_closed:
            return playing[1]
        settings = self.settings
        bundle, index = await _process.opened(settings.bundle, settings.runs)
        if self._is_sent:  # else the dataset builder has done so, in this very process
            _collector.spare()
        filing = self._filing()
        labels: dict[str, Any] = {"renderer": settings.renderer_name, "model": settings.model_name}
        if filing.policy_step is not None:
            labels["policy_step"] = filing.policy_step
        group = RunGroup(
            task=bundle.task(self.task_id),
            name=filing.group,
            index=index,
            slots=slots_for(f"{settings.runs}/{settings.run_name}", settings.max_concurrent_episodes),
            reward=settings.reward,
            score_within_s=settings.rollout.score_within_s,
            labels=labels,
            attempts=self._attempts.get(filing.group, 0),
            pieces=_pieces_of(settings.renderer_name, settings.model_name, settings.history)
            if settings.record_tokens
            else None,
        )
        self._open.append(group)
        _playing.set((self, group))
        return group

    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, dict[str, float | int]]]:
        """Score the rollouts that their runner stopped; every other one has had its reward from its last step.

        Raises:
            EpisodeFailedError: When such an episode failed or could not be scored.
        """
        for trajectory, env in zip(trajectory_group, env_group, strict=True):
            assert isinstance(env, ScoredWhenCut)
            env.learn(trajectory)
        told: list[tuple[float, dict[str, float | int]]] = []
        for trajectory, env in zip(trajectory_group, env_group, strict=True):
            assert isinstance(env, ScoredWhenCut)
            reward, metrics = await env.episode.settled(trajectory.stop_reason)
            told.append((reward, {**metrics}))
        return told

    async def cleanup(self) -> None:
        """Give back what the group still holds. Never raises, but for a cancellation."""
        playing = _playing.get()
        here = [playing[1]] if playing is not None and playing[0] is self else self._open
        for group in list(here):
            await group.close()
            if group in self._open:
                self._open.remove(group)
            if self._is_sent:
                await _written(group)

    def logging_tags(self) -> list[str]:
        """The bundle's name and the task's tags."""
        return list(self.tags)


def _sent(
    settings: GroupSettings,
    task_id: str,
    size: int,
    group: str,
    tags: Sequence[str],
    policy_step: int | None,
    attempt: int,
) -> EpisodeGroupBuilder:
    return EpisodeGroupBuilder(
        settings, task_id, size, group, tags=tags, policy_step=policy_step, sent_as_attempt=attempt
    )


@cache
def _pieces_of(renderer_name: str, model_name: str, history: History) -> TokenPieces:
    return TokenPieces(framing_of(renderer_name, model_name, history).renderer.tokenizer)


async def _written(group: RunGroup) -> None:
    """Wait until a group's runs are on disk: a worker process may be ended as soon as it has given its result back."""
    try:
        await asyncio.to_thread(group.index.flush)
    except RunIndexError:  # raised in cleanup it would mask the rollout's own error
        logger.exception("task '%s': its runs could not be written", group.task.id)


@dataclass(kw_only=True)
class EpisodeDataset(RLDataset):
    """The groups of each step: the tasks shuffled anew for each epoch, the same order from the same seed."""

    settings: GroupSettings
    tasks: Sequence[Task]
    groups_per_batch: int
    group_size: int
    epochs: int = 1
    seed: int | None = 0
    """None keeps the order of the bundle."""
    steps: TrainingSteps
    is_test: bool = False
    _orders: dict[int, list[int]] = field(default_factory=dict[int, list[int]])

    def __len__(self) -> int:
        return math.ceil(len(self.tasks) * self.epochs / self.groups_per_batch)

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        """The groups of batch `index`, which is the step, unless the trainer goes through the batches several times.

        Asking for them begins the step: what an earlier process filed of it is deleted.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        if not any_taken():
            _collector.collect()
        group: str | EvalGroup
        policy_step = None
        if self.is_test:
            group = EvalGroup(self.settings.run_name, self.steps)
        else:
            step = step_of_batch(index)
            self.steps.train(step)
            group = self.steps.begin(train_group(self.settings.run_name, step))
            policy_step = policy_step_of_batch()
        first = index * self.groups_per_batch
        last = min(first + self.groups_per_batch, len(self.tasks) * self.epochs)
        tasks = [self._task(at) for at in range(first, last)]
        return [
            EpisodeGroupBuilder(
                self.settings,
                task.id,
                self.group_size,
                group,
                tags=(task.bundle.name, *task.tags),
                policy_step=policy_step,
            )
            for task in tasks
        ]

    def _task(self, at: int) -> Task:
        epoch, place = divmod(at, len(self.tasks))
        if epoch not in self._orders:
            order = list(range(len(self.tasks)))
            if self.seed is not None:
                random.Random(f"{self.seed}:{epoch}").shuffle(order)
            self._orders[epoch] = order
        return self.tasks[self._orders[epoch][place]]


@chz
class AgentEnvDatasetBuilder(RLDatasetBuilder):
    """A bundle's tasks for `tinker_cookbook.rl.train`: pass it as `dataset_builder` in its `Config`."""

    bundle: str
    """The bundle's folder."""
    model_name_for_tokenizer: str
    renderer_name: str
    train_split: str = "all"
    """The eval that names the training tasks; `all` is every task."""
    test_split: str | None = None
    """The eval that is played at every evaluation; None for no test set."""
    reward: str | None = None
    """The verify step whose score is the reward; None leaves it to the bundle."""
    groups_per_batch: int = 8
    """Tasks a step."""
    group_size: int = 8
    """Rollouts a task."""
    eval_group_size: int = 1
    epochs: int = 1
    seed: int = 0
    """For the order of the training tasks."""
    max_messages: int | None = 64
    """Messages that the agent may write in an episode; one more ends it with a cut. None is no bound."""
    max_trajectory_tokens: int | None = None
    """Tokens of a conversation; one that does not fit ends with a cut."""
    max_generation_tokens: int | None = None
    """Tokens kept free for the next message under `max_trajectory_tokens`: the config's `max_tokens`."""
    max_concurrent_episodes: int | None = 256
    """Episodes under way at once in one process, over training and evaluation. None is no bound. Slots are not shared
    between processes: with a rollout executor each worker plays one group at a time, so at most `group_size` episodes, or
    this many if that is less, are under way in each of them."""
    failed_reward: float = 0.0
    """What a cut gives in addition to the score at the cut; negative punishes running into limits."""
    history: str = "tokens"
    """What a prompt says of the earlier messages: `tokens`, those that were seen and sampled, as far as the renderer can go
    on from them; `template`, the conversation as the chat template writes it, rendered whole each time."""
    rollout_config: RolloutConfig | None = None
    """The cookbook's own limits and policies for a rollout, as `build_agent_tool_env` takes them. Its `termination` is also
    the trainer's to be given: `rl.train.Config(termination=...)`."""
    runs: str = "runs"
    """The runs folder; `agent-env explore` shows it."""
    run_name: str | None = None
    """The first part of the names of this training's groups; None is the bundle's name."""
    record_tokens: bool = True
    """Whether runs keep the tokens that were sampled, with their log-probabilities."""

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        """Check everything that can be checked before training, and make the datasets.

        Once in a process it also tells the garbage collector to leave out what is loaded (`gc.freeze`) and to make full rounds
        seldom (`gc.set_threshold`): each would stop all rollouts for as long as it takes.

        Raises:
            BundleError: When the bundle has problems.
            UsageError: When there is no such bundle or split.
            RewardError: When it is not clear what the reward of a task is.
            TrainingError: When a split has no task that a trainer can play, a setting makes no sense, or the renderer
                cannot write the bundle's tools.
            SandboxUnavailableError: When this machine cannot open a sandbox of the tasks.
            ModelServerError: When a model that plays another agent has no key.
            RunIndexError: When the runs folder cannot be written.
        """
        opened = await asyncio.to_thread(self._opened)
        steps = TrainingSteps(opened.runs, step_under_evaluation)
        steps.on_loop(asyncio.get_running_loop())
        _process.hold_name(opened.runs, self.run_name or opened.bundle.name)
        _warn_of_clamp(self.model_name_for_tokenizer)
        slots = self.max_concurrent_episodes
        if slots is not None and slots < self.group_size:
            logger.warning(
                "group_size=%d is more than max_concurrent_episodes=%d: rollouts wait for a slot, and that counts as their time"
                " under a rollout timeout",
                self.group_size,
                slots,
            )
        train = self._dataset(opened, self.train_split, steps=steps)
        test = None if self.test_split is None else self._dataset(opened, self.test_split, steps=steps, is_test=True)
        await check_machine([*train.tasks, *(() if test is None else test.tasks)])
        _collector.spare()
        return train, test

    def _dataset(self, opened: "_Opened", split: str, *, steps: TrainingSteps, is_test: bool = False) -> EpisodeDataset:
        settings, tasks = self._split(opened, split)
        return EpisodeDataset(
            settings=settings,
            tasks=tasks,
            groups_per_batch=self.groups_per_batch,
            group_size=self.eval_group_size if is_test else self.group_size,
            epochs=1 if is_test else self.epochs,
            seed=None if is_test else self.seed,
            steps=steps,
            is_test=is_test,
        )

    def checked(self, split: str) -> tuple[GroupSettings, Sequence[Task]]:
        """The tasks of a split, and what all groups have in common, checked. Raises as the call does.

        For who plays without training. Reads files: on an event loop, call it in a thread.
        """
        return self._split(self._opened(), split)

    def _opened(self) -> "_Opened":
        """Check what does not depend on the split, and open what all groups share."""
        history = check_fields(self)
        bundle = _process.bundle(Path(self.bundle), fresh=True)
        framing_for(bundle, self.renderer_name, self.model_name_for_tokenizer, history)
        runs = Path(self.runs).resolve()  # a training may change its directory later
        _process.run_index(runs)
        return _Opened(bundle=bundle, runs=runs, history=history)

    def _split(self, opened: "_Opened", split: str) -> tuple[GroupSettings, Sequence[Task]]:
        bundle = opened.bundle
        found = playable(bundle, split)
        if found.left_out:
            logger.warning("%s", found.left_out)
        settings = GroupSettings(
            bundle=bundle.root,
            runs=opened.runs,
            run_name=self.run_name or bundle.name,
            renderer_name=self.renderer_name,
            model_name=self.model_name_for_tokenizer,
            history=opened.history,
            reward=resolve_reward(bundle, self.reward, found.tasks),
            rollout=RolloutSettings(
                max_messages=self.max_messages,
                max_trajectory_tokens=self.max_trajectory_tokens,
                max_generation_tokens=self.max_generation_tokens,
                failed_reward=self.failed_reward,
                config=self.rollout_config,
            ),
            max_concurrent_episodes=self.max_concurrent_episodes,
            record_tokens=self.record_tokens,
        )
        return settings, found.tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """What the splits of a training share."""

    bundle: Bundle
    runs: Path
    history: History


def _warn_of_clamp(model_name: str) -> None:
    default = default_rollout_config_for_model(model_name).termination
    if default is not None and default.zero_reward_on_limit:
        logger.warning(
            "model %s: the trainer's default takes what rollouts earned that a limit has cut; to train on their scores, pass"
            " termination=TerminationRewardPolicy() to rl.train.Config",
            model_name,
        )
