"""A bundle that has been read: its envs, agents, tasks and evals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent_env.bundle._suggest import names_or_closest
from agent_env.bundle.code import PythonRef
from agent_env.bundle.specs import AgentSpec, EnvSpec
from agent_env.bundle.task import Task
from agent_env.errors import UsageError

__all__ = ["Bundle", "RewardSpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSpec:
    """What the bundle says about the reward."""

    weights: Mapping[str, float]
    """By verify step id. A step named alone has the weight 1."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bundle:
    """A folder of tasks, read and checked. Immutable; a process that needs it reads it from its path."""

    root: Path
    """The bundle's folder, resolved."""
    name: str
    version: str
    description: str
    license: str
    envs: Mapping[str, EnvSpec]
    agents: Mapping[str, AgentSpec]
    played: str
    """The agent that a trainer plays."""
    reward: RewardSpec | None
    """None when the bundle does not say: with one verify step in a task, the reward is that one's score."""
    players: Mapping[str, PythonRef]
    """Python policies that come with the bundle."""
    tasks: Mapping[str, Task] = field(repr=False)
    """By id, in the order of the files and lines."""
    evals: Mapping[str, tuple[str, ...]] = field(repr=False)
    """Task ids by eval, in the order of `tasks`; `all` is every task."""

    def task(self, task_id: str) -> Task:
        """Return one task.

        Raises:
            UsageError: When there is none with this id.
        """
        try:
            return self.tasks[task_id]
        except KeyError:
            raise UsageError(f"{self.name} has no task '{task_id}', {names_or_closest(task_id, self.tasks)}") from None

    def select(self, eval_name: str) -> tuple[Task, ...]:
        """Return the tasks of an eval.

        Raises:
            UsageError: When there is no such eval.
        """
        try:
            return tuple(self.tasks[task_id] for task_id in self.evals[eval_name])
        except KeyError:
            raise UsageError(
                f"{self.name} has no eval '{eval_name}', {names_or_closest(eval_name, self.evals)}"
            ) from None
