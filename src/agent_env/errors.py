"""Every exception that AgentEnv raises on purpose, in one tree.

    AgentEnvError
    ├── UsageError             the call or command itself is wrong (exit code 2)
    │   └── MissingExtraError  a feature needs a package that is not installed
    ├── BundleError            a bundle has problems, all of them listed
    ├── UniverseError          a private copy of a task's state cannot be made
    ├── EnvBrokenError         an environment is broken: fails the episode
    │   ├── McpServerError       an MCP server died, hung or answered badly
    │   └── SandboxLostError     a sandbox is gone, or no longer does what it is told
    ├── SandboxUnavailableError  this machine cannot make such a sandbox; the message says the fix
    ├── ModelServerError       a model's endpoint cannot be reached, or answers badly
    │   └── ContextOverflowError a conversation does not fit the model's context any more
    ├── ToolError              a tool refuses: an answer to the model, never a failure
    ├── EpisodeError           an episode cannot go on
    │   ├── EpisodeStateError    a call that does not fit the episode's state
    │   └── EpisodeFailedError   a rollout whose episode failed: raised, never trained
    ├── RewardError            no finite number can be made of the scores
    ├── RunIndexError          the run index cannot be opened, read or written
    ├── EngineError            the embedded engine cannot start or cannot do what was asked
    └── TrainingError          a training run cannot start or go on

A model's mistake is not here: bad arguments and refused calls are answers to the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "AgentEnvError",
    "BundleError",
    "ContextOverflowError",
    "EngineError",
    "EnvBrokenError",
    "EpisodeError",
    "EpisodeFailedError",
    "EpisodeStateError",
    "McpServerError",
    "MissingExtraError",
    "ModelServerError",
    "Problem",
    "RewardError",
    "RunIndexError",
    "SandboxLostError",
    "SandboxUnavailableError",
    "ToolError",
    "TrainingError",
    "UniverseError",
    "UsageError",
]


class AgentEnvError(Exception):
    """The root: `except AgentEnvError` catches all that this library raises on purpose."""


class UsageError(AgentEnvError):
    """The call or command itself is wrong. The command line exits with 2."""


class MissingExtraError(UsageError):
    """A feature needs a package that is not installed; the message says which extra to install."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong in a bundle, where it is, and what to write instead."""

    path: Path
    """The file, relative to the bundle's folder."""
    line: int
    """The line in that file, from 1."""
    what: str
    """What is wrong."""
    fix: str
    """What to write instead."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}, {self.fix}"


class BundleError(AgentEnvError):
    """A bundle cannot be used. `problems` lists everything found, not the first only."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type[BundleError], tuple[tuple[Problem, ...]]]:
        return (type(self), (self.problems,))


class UniverseError(AgentEnvError):
    """A private copy of a task's state cannot be made."""


class EnvBrokenError(AgentEnvError):
    """An environment is broken (a dead server, a lost sandbox). Raised in a tool, it fails the episode."""

    def __init__(self, message: str, *, details: str = "") -> None:
        self.details = details
        """More than a line, for the run: what a server wrote to its stderr last, say."""
        super().__init__(message)


class McpServerError(EnvBrokenError):
    """An MCP server died, hung, flooded or answered badly. `details` has the end of its stderr."""


class SandboxLostError(EnvBrokenError):
    """A sandbox is gone, or no longer does what it is told."""


class SandboxUnavailableError(AgentEnvError):
    """This machine cannot make such a sandbox: a program is missing, or the kernel forbids it. The message says the fix."""


class ModelServerError(AgentEnvError):
    """A model's endpoint cannot be reached, refuses, or answers badly."""


class ContextOverflowError(ModelServerError):
    """The conversation does not fit the model's context any more."""


class ToolError(AgentEnvError):
    """A tool refuses a call. Its message is the answer that the model reads; the episode goes on."""


class EpisodeError(AgentEnvError):
    """An episode cannot go on."""


class EpisodeStateError(EpisodeError):
    """A call that does not fit the episode's state: before `start`, after the end, with no turn open."""


class EpisodeFailedError(EpisodeError):
    """A rollout whose episode failed. Raised to the trainer, so that it is never trained as a made-up number."""


class RewardError(AgentEnvError):
    """No finite number can be made of an episode's scores, or the bundle does not say which score is the reward."""


class RunIndexError(AgentEnvError):
    """The run index cannot be opened, read or written."""


class EngineError(AgentEnvError):
    """The embedded engine cannot start, or cannot do what was asked."""


class TrainingError(AgentEnvError):
    """A training run cannot start or cannot go on."""
