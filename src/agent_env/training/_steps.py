"""Where the runs of a training are filed: a group of runs for each step that is trained on or evaluated."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agent_env.training import _process

__all__ = ["EvalGroup", "Filing", "TrainingSteps", "eval_group", "train_group"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filing:
    """Where the runs of a group are filed, and what plays them."""

    group: str
    policy_step: int | None = None
    """The step of the weights that sample; None where the trainer does not say."""


def train_group(run_name: str, step: int) -> str:
    """The group of the runs that step `step` trains on."""
    return f"{run_name}/train/step-{step:04d}"


def eval_group(run_name: str, step: int) -> str:
    """The group of the runs of the evaluation before step `step`."""
    return f"{run_name}/eval/step-{step:04d}"


class TrainingSteps:
    """Which step a training is at, and which groups this process has begun to file.

    A training that was stopped plays the steps since its last checkpoint again: the runs it left of such a step are deleted
    when the step is begun, once. Nothing here waits for the disk, and every method may be called in any thread.
    """

    def __init__(self, runs: Path, ask_trainer: Callable[[asyncio.AbstractEventLoop], int | None]) -> None:
        """Args: the runs folder, an absolute path, and what asks the trainer on a loop for the step it evaluates."""
        self._runs = runs
        self._ask_trainer = ask_trainer
        self._loop: asyncio.AbstractEventLoop | None = None
        self._last_trained: int | None = None
        self._begun: set[str] = set()
        self._lock = threading.Lock()

    def on_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Note the trainer's loop."""
        self._loop = loop

    def train(self, step: int) -> None:
        """The trainer has asked for the batch of `step`."""
        self._last_trained = step

    @property
    def under_evaluation(self) -> int | None:
        """The step that is evaluated now, by the weights of that step; None where the trainer does not say."""
        return None if self._loop is None or self._loop.is_closed() else self._ask_trainer(self._loop)

    @property
    def evaluated(self) -> int:
        """The step that is evaluated now: what the trainer says, else the one after the last that it asked a batch for."""
        said = self.under_evaluation
        if said is not None:
            return said
        return 0 if self._last_trained is None else self._last_trained + 1

    def begin(self, group: str) -> str:
        """Delete what an earlier process left in `group`, the first time this one files there; return `group`."""
        with self._lock:
            if group not in self._begun:
                self._begun.add(group)
                _process.run_index(self._runs).begin_group(group)
        return group


class EvalGroup:
    """Where an evaluation's runs are filed, which depends on when it is played."""

    def __init__(self, run_name: str, steps: TrainingSteps) -> None:
        self._run_name = run_name
        self._steps = steps

    def begin(self) -> Filing:
        """Say where an evaluation is filed that is played now, and begin that group (see `TrainingSteps.begin`)."""
        said = self._steps.under_evaluation
        step = self._steps.evaluated if said is None else said
        return Filing(group=self._steps.begin(eval_group(self._run_name, step)), policy_step=said)
