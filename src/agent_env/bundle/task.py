"""A task as it is played: its steps, all of them written out, and what they need."""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agent_env.bundle.code import PythonRef
from agent_env.bundle.skills import Skill
from agent_env.bundle.specs import ModelSpec, UniverseSpec
from agent_env.bundle.text import TextSource

if TYPE_CHECKING:
    from agent_env.bundle.bundle import Bundle

__all__ = [
    "AddSkills",
    "CallPattern",
    "CheckVerifier",
    "Command",
    "CommandVerifier",
    "Conversation",
    "DeployAgent",
    "DeployEnv",
    "GoldCall",
    "GoldTurn",
    "JudgeVerifier",
    "Prompt",
    "RunCommand",
    "RunPython",
    "StateVerifier",
    "Step",
    "Task",
    "Verifier",
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
    skills: tuple[Skill, ...]
    """In the order that they are named."""


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
class Conversation:
    """Another agent leads: each thing that it says is a prompt, until it has nothing more to say."""

    by: str
    """Who leads, by the name in `Bundle.agents`: a scripted agent, or a model."""
    max_turns: int = 20
    """Prompts at most; the conversation is over then, and the steps after it follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt(_Step):
    """Ask an agent something: a turn; several where another agent leads."""

    agent: str
    """Who is asked, by the name in `Bundle.agents`."""
    source: TextSource | PythonRef | Conversation
    """What is asked: a text; a function of the episode so far, whose None asks nothing; or a conversation."""
    system_prompt: TextSource | None = None
    """From this turn on, instead of the agent's own."""
    tools: tuple[str, ...] | None = None
    """The tools that the agent has in this turn, by name; None is all that it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPython(_Step):
    """Run a Python function of the bundle."""

    target: PythonRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A shell command in a sandbox."""

    env: str
    """The sandbox, by its name in `Bundle.envs`."""
    command: str
    """For the sandbox's shell, in its working directory."""
    files: Path | None = None
    """A folder of the bundle that is put into the sandbox just for the command, which finds it in `$AGENT_ENV_VERIFIER`; relative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCommand(_Step):
    """Run a command in a sandbox; an exit code other than 0 fails the step."""

    command: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class StateVerifier:
    """Compare the state that the agent left with the one wanted: 1.0 where they are equal, else 0.0."""

    env: str
    """Whose state, by the name in `Bundle.envs`."""
    wanted: Literal["gold", "start"] | tuple[GoldCall, ...] | UniverseSpec
    """What the task's gold calls leave; what the episode started with; what these calls leave; or a file's state."""
    ignore: tuple[str, ...] = ()
    """Places that do not count, as JSON Pointers whose segments may be `*`."""
    unordered: tuple[str, ...] = ()
    """Lists whose order does not count, in the same form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandVerifier:
    """Run a command in a sandbox: 1.0 for the exit code 0 and 0.0 for another, or what it writes to a file."""

    command: Command
    score_file: str | None = None
    """The file, in a folder of the verifier's own, with a number, or with JSON as a Python verifier returns it; None is the exit
    code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPattern:
    """Which calls are meant: those of a tool, with these arguments where any are named."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    """Those that count; a call may have others. Numbers are equal by value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckVerifier:
    """Check the conversation: the share of the checks that hold."""

    called: tuple[CallPattern, ...] = ()
    """Each was called, and the call was no error."""
    not_called: tuple[CallPattern, ...] = ()
    """None was called, not even with an error as its answer."""
    said: tuple[str, ...] = ()
    """Each is in what the agent said to whoever asks; case, and commas within numbers, do not count."""
    not_said: tuple[str, ...] = ()
    """None is in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeVerifier:
    """Ask a model for a score. Judges are off unless whoever plays the task allows them."""

    model: ModelSpec
    prompt: TextSource
    """What the model is asked. Beside the usual names the template has `conversation`, a text, and `replies`."""
    max_score: float = 1.0
    """What the judge's scale ends at: its number is divided by this, and one beyond 0..max_score fails the step."""


Verifier = PythonRef | StateVerifier | CommandVerifier | CheckVerifier | JudgeVerifier
"""What scores an episode; a `PythonRef` is the function `score(episode)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify(_Step):
    """Score what the agent did; the step's id is the score's name."""

    verifier: Verifier
    weight: float | None = None
    """What the score is multiplied by in the reward; None where the step says no weight."""
    required: bool = False
    """A gate: below 1 the whole reward is at most 0."""


Step = DeployEnv | DeployAgent | AddSkills | Prompt | RunPython | RunCommand | Verify


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
    gold_reward: float = field(default=1.0, repr=False)
    """The reward that the reference solution claims."""
    path: Path = field(default=Path(), compare=False, repr=False)
    """The file that has the task, relative to the bundle's folder."""
    line: int = field(default=1, compare=False, repr=False)
    """The line in that file, from 1."""

    @property
    def after_the_agents(self) -> tuple[Step, ...]:
        """The steps after the last prompt: agents do nothing in them, so that they can be done again on a recorded episode."""
        last = max((at for at, step in enumerate(self.steps) if isinstance(step, Prompt)), default=-1)
        return self.steps[last + 1 :]

    def models(self, *, judges: bool) -> tuple[ModelSpec, ...]:
        """Return the models that playing the task asks, each once: those of agents that are prompted or lead, and of judges.

        Args:
            judges: Whether judges may be asked.
        """
        found: dict[ModelSpec, None] = {}
        for step in self.steps:
            match step:
                case Prompt():
                    names = [step.agent, *([step.source.by] if isinstance(step.source, Conversation) else ())]
                    models = [self.bundle.agents[name].model for name in names]
                    found |= dict.fromkeys(model for model in models if model is not None)
                case Verify(verifier=JudgeVerifier(model=model)) if judges:
                    found[model] = None
                case _:
                    pass
        return tuple(found)

    def copy_params(self) -> dict[str, Any]:
        """Return `params` as a copy of one's own."""
        return marshal.loads(marshal.dumps(dict(self.params)))
