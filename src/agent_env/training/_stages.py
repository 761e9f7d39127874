"""The stages of the main job, each over the cookbook's own trainers and each skipped where its result is on disk."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from agent_env._cleanup import wait_until_done
from agent_env.bundle import Bundle, Task
from agent_env.bundle.recipe import Recipe
from agent_env.errors import TrainingError
from agent_env.outcome import FailureKind
from agent_env.runs import RunIndex, RunSummary
from agent_env.training._playable import playable
from agent_env.training.evaluate import play_split
from agent_env.training.progress import Stage, StageProgress
from agent_env.training.results import HeldOut
from agent_env.training.sft import EpisodeSFTDatasetBuilder, play_player
from agent_env.training.tinker import AgentEnvDatasetBuilder

__all__ = ["Checkpoint", "Endpoint", "Stages", "player_group"]

POLL_S = 0.5
"""Seconds between two looks at a trainer's metrics file."""

ROLLING_SAVE_EVERY = 5
"""Steps between two checkpoints to go on from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server that speaks the Tinker protocol, and the model on it."""

    base_url: str | None
    """None is Tinker itself."""
    model: str
    """The model's name there, or a local model's folder."""
    renderer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a trainer saved at its end."""

    state: str
    """The weights with the optimizer's state, as a `tinker://` address."""
    sampler: str
    """The weights to sample from."""
    policy_step: int | None
    """How many steps of reinforcement learning made them; None where the trainer did not say."""


def player_group(run_name: str, player: str) -> str:
    """Where the runs that examples are made of are filed."""
    return f"{run_name}/player/{player}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The stages of one job, on one endpoint and one run index."""

    bundle: Bundle
    recipe: Recipe
    seed: int
    run_name: str
    folder: Path
    """The job's own: checkpoints and logs."""
    runs: Path
    """The runs folder."""
    endpoint: Endpoint
    index: RunIndex
    """Of `runs`."""
    progress: StageProgress

    async def player_runs(self, player: str, split: str, *, group: str, title: str) -> HeldOut:
        """Play a player of the bundle over a split, once a task, and file the runs."""
        with self.progress.stage(title, total=len(playable(self.bundle, split).tasks)) as stage:
            rewards = await play_player(
                self.bundle.root, player, split, runs=self.runs, group=group, reward=self.recipe.reward
            )
            done = HeldOut(name=title, rewards=rewards)
            stage.update(len(rewards), f"reward {done.mean:.3f}")
        return done

    async def held_out(self, title: str, *, group: str, weights: Checkpoint | None, temperature: float) -> HeldOut:
        """Play the held-out tasks with a policy, once a task, and file the runs.

        Args:
            title: The row's name in the final table.
            group: Where the runs are filed.
            weights: What to sample from; None is the model as it was before training.
            temperature: 0 is greedy.

        Raises:
            TrainingError: When no task was scored.
        """
        tinker: Any = import_module("tinker")

        tasks = playable(self.bundle, self.recipe.test_split).tasks
        if (done := await asyncio.to_thread(self._filed, title, group, tasks)) is not None:
            return done
        with self.progress.stage(f"play: {title}", total=len(tasks)) as stage, self._quiet():
            service = tinker.ServiceClient(base_url=self.endpoint.base_url)
            if weights is None:
                sampler = await service.create_sampling_client_async(base_model=self.endpoint.model)
            else:
                sampler = await service.create_sampling_client_async(model_path=weights.sampler)
            played = await play_split(
                self._dataset_builder(),
                self.recipe.test_split,
                sampler,
                group=group,
                temperature=temperature,
                policy_step=self._policy_step(weights),
                on_played=stage.update,
            )
            stage.update(len(tasks), f"reward {played.mean:.3f}")
        if not played.rewards:
            why = next(iter(played.failures.values()), ("no task was played",))[0]
            raise TrainingError(f"{group}: no held-out task was scored: {why}")
        rewards = {task: math.fsum(each) / len(each) for task, each in played.rewards.items()}
        return HeldOut(name=title, rewards=rewards, failed=sum(map(len, played.failures.values())))

    async def warm_start(self) -> Checkpoint | None:
        """Train on the player's runs with the cookbook's `supervised.train.main`; None where the recipe has no SFT."""
        from tinker_cookbook.supervised import train

        sft = self.recipe.sft
        if sft is None:
            return None
        log = self.folder / "sft"
        if (saved := _final_checkpoint(log)) is not None:
            return replace(saved, policy_step=0)
        builder = EpisodeSFTDatasetBuilder(
            runs=str(self.runs),
            group=player_group(self.run_name, sft.player),
            model_name_for_tokenizer=self.endpoint.model,
            renderer_name=self.endpoint.renderer,
            batch_size=sft.batch_size,
            steps=sft.steps,
            seed=self.seed,
            min_reward=sft.min_reward,
        )
        config = train.Config(
            log_path=str(log),
            model_name=self.endpoint.model,
            recipe_name="agent_env_sft",
            renderer_name=self.endpoint.renderer,
            dataset_builder=builder,
            learning_rate=sft.learning_rate,
            lr_schedule=sft.schedule,
            lora_rank=self.recipe.lora_rank,
            base_url=self.endpoint.base_url,
            max_steps=sft.steps,
            save_every=0,
            rolling_save_every=ROLLING_SAVE_EVERY,
            eval_every=0,
            infrequent_eval_every=0,
        )
        with self.progress.stage("warm start (SFT)", total=sft.steps) as stage, self._quiet():
            async with self._watched(lambda: _last_metrics(log, "train_mean_nll", "nll"), stage):
                await train.main(config)
        return replace(_required_checkpoint(log), policy_step=0)

    async def reinforce(self, start: Checkpoint | None) -> Checkpoint:
        """Train on the train split with the cookbook's `rl.train.main`, from the warm start where there is one."""
        from tinker_cookbook.rl import train

        rl = self.recipe.rl
        log = self.folder / "rl"
        if (saved := _final_checkpoint(log)) is not None:
            return saved
        config = train.Config(
            log_path=str(log),
            model_name=self.endpoint.model,
            recipe_name="agent_env_rl",
            renderer_name=self.endpoint.renderer,
            dataset_builder=self._dataset_builder(),
            learning_rate=rl.learning_rate,
            lora_rank=self.recipe.lora_rank,
            base_url=self.endpoint.base_url,
            load_checkpoint_path=None if start is None else start.state,
            max_tokens=self.recipe.max_generation_tokens,
            temperature=self.recipe.temperature,
            loss_fn=rl.loss,
            num_substeps=rl.substeps,
            max_steps=rl.steps,
            eval_every=0,
            save_every=0,
            rolling_save_every=ROLLING_SAVE_EVERY,
            remove_constant_reward_groups=True,
            num_groups_to_log=0,
            rollout_json_export=False,
        )
        with self.progress.stage("reinforcement learning", total=rl.steps) as stage, self._quiet():
            async with self._watched(lambda: _last_metrics(log, "env/all/reward/total", "reward"), stage):
                await train.main(config)
        return _required_checkpoint(log)

    def _policy_step(self, weights: Checkpoint | None) -> int | None:
        if weights is not None:
            return weights.policy_step
        return 0 if self.recipe.sft is None else None  # else reinforcement learning does not begin with this model

    def _filed(self, title: str, group: str, tasks: Sequence[Task]) -> HeldOut | None:
        """What a group holds, when every task was played to its end in it; else the group is emptied.

        A run whose model server was gone was not.
        """
        ended: dict[str, RunSummary] = {
            run.task_id: run
            for run in self.index.all_runs(group)
            if run.reward is not None or (run.failure is not None and run.failure.kind != FailureKind.MODEL_SERVER)
        }
        if not all(task.id in ended for task in tasks):
            self.index.delete_group(group)
            return None
        rewards = {task.id: reward for task in tasks if (reward := ended[task.id].reward) is not None}
        return HeldOut(name=title, rewards=rewards, failed=len(tasks) - len(rewards))

    def _dataset_builder(self) -> AgentEnvDatasetBuilder:
        recipe, rl = self.recipe, self.recipe.rl
        tasks = len(playable(self.bundle, recipe.train_split).tasks)
        return AgentEnvDatasetBuilder(
            bundle=str(self.bundle.root),
            model_name_for_tokenizer=self.endpoint.model,
            renderer_name=self.endpoint.renderer,
            train_split=recipe.train_split,
            reward=recipe.reward,
            groups_per_batch=rl.groups_per_batch,
            group_size=rl.group_size,
            epochs=math.ceil(rl.steps * rl.groups_per_batch / tasks),
            seed=self.seed,
            max_messages=recipe.max_messages,
            max_trajectory_tokens=recipe.max_trajectory_tokens,
            max_generation_tokens=recipe.max_generation_tokens,
            max_concurrent_episodes=recipe.max_concurrent_episodes,
            runs=str(self.runs),
            run_name=self.run_name,
        )

    @contextmanager
    def _quiet(self) -> Generator[None]:
        """Send what the trainers print and log to `trainer.log`, so that the progress line stays readable."""
        handlers, level = logging.root.handlers[:], logging.root.level
        with (
            (self.folder / "trainer.log").open("a", encoding="utf-8") as file,
            redirect_stdout(file),
            redirect_stderr(file),
        ):
            try:
                yield
            finally:
                # The cookbook puts handlers of its own on the root logger, one of them on the file closed here.
                for handler in set(logging.root.handlers) - set(handlers):
                    handler.close()
                logging.root.handlers[:] = handlers
                logging.root.setLevel(level)

    @asynccontextmanager
    async def _watched(self, look: Callable[[], tuple[int, str]], stage: Stage) -> AsyncGenerator[None]:
        """Show how far a trainer is, by looking now and then, until the block is left."""

        async def watch() -> None:
            while True:
                stage.update(*await asyncio.to_thread(look))
                await asyncio.sleep(POLL_S)

        # No task group: it would wrap what the trainer raises.
        watcher = asyncio.create_task(watch(), name="progress of a trainer")
        try:
            yield
        finally:
            watcher.cancel()
            await wait_until_done(watcher, grace_s=10.0, what="the progress of a trainer")
        stage.update(*look())


def _last_metrics(log: Path, key: str, name: str) -> tuple[int, str]:
    """The steps done, and one metric of the last of them, from a cookbook log folder; before the first, what is waited for."""
    try:
        lines = (log / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        lines = []
    if not lines:  # the trainer writes down its settings when it has been loaded
        return 0, "waiting for its first step" if (log / "config.json").exists() else "the trainer starts"
    done, value = 0, None
    for line in lines:
        try:
            metrics: Mapping[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            continue  # the last line, half written
        done = max(done, int(metrics.get("step", -1)) + 1)
        value = metrics.get(key, value)
    return done, "" if value is None else f"{name} {value:.3f}"


def _final_checkpoint(log: Path) -> Checkpoint | None:
    """The checkpoint that a trainer saved at its end, or None while it has not ended."""
    from tinker_cookbook import checkpoint_utils

    for record in reversed(checkpoint_utils.load_checkpoints_file(str(log))):
        if record.name == "final" and record.state_path and record.sampler_path:
            return Checkpoint(state=record.state_path, sampler=record.sampler_path, policy_step=record.batch)
    return None


def _required_checkpoint(log: Path) -> Checkpoint:
    if (saved := _final_checkpoint(log)) is None:
        raise TrainingError(f"{log}: the trainer ended and left no final checkpoint; see trainer.log beside it")
    return saved
