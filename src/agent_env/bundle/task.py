"""A task as it is played: its steps, all of them written out, and what they need."""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_env.bundle.code import PythonRef
from agent_env.bundle.text import TextSource

if TYPE_CHECKING:
    from agent_env.bundle.bundle import Bundle

__all__ = [
    "AddSkills",
    "DeployAgent",
    "DeployEnv",
    "GoldCall",
    "GoldTurn",
    "Prompt",
    "RunPython",
    "Step",
    "Task",
    "Verify",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    id: str
    """Unique in the task."""
    timeout_s: float | None = None
    """Seconds that the step may take; None when the bundle does not say."""
    fail_task_on_error: bool = True
    """Whether the episode stops when the step fails. It ends `failed` either way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployEnv(_Step):
    """Start an env."""

    env: str
    """Its name in `Bundle.envs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployAgent(_Step):
    """Start an agent."""

    agent: str
    """Its name in `Bundle.agents`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddSkills(_Step):
    """Give an agent skills, for the prompts that follow."""

    agent: str
    """Its name in `Bundle.agents`."""
    skills: tuple[str, ...]
    """Folders under `skills/` of the bundle, each with a SKILL.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt(_Step):
    """Ask an agent something: a turn."""

    agent: str
    """Its name in `Bundle.agents`."""
    text: TextSource


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPython(_Step):
    """Run a Python function of the bundle."""

    target: PythonRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify(_Step):
    """Score what the agent did; the step's id is the score's name."""

    target: PythonRef


Step = DeployEnv | DeployAgent | AddSkills | Prompt | RunPython | Verify


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldCall:
    """One tool call of a reference solution."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldTurn:
    """One turn of a reference solution: the calls in order, then the reply."""

    calls: tuple[GoldCall, ...]
    reply: str | None
    """None when the last call ends the turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task of a bundle."""

    bundle: Bundle = field(repr=False, compare=False)
    id: str
    """Unique in the bundle."""
    tags: tuple[str, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    """JSON values. Shared by all episodes: what may write to them takes `copy_params()`."""
    steps: tuple[Step, ...]
    """What is done, in order."""
    gold: tuple[GoldTurn, ...] | None = field(default=None, hash=False, repr=False)
    """A reference solution, turn by turn; None when the task has none."""
    path: Path = field(default=Path(), compare=False, repr=False)
    """The file that has the task, relative to the bundle's folder."""
    line: int = field(default=1, compare=False, repr=False)
    """The line in that file, from 1."""

    def copy_params(self) -> dict[str, Any]:
        """Return `params` as a copy of one's own."""
        return marshal.loads(marshal.dumps(dict(self.params)))
