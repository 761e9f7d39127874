"""What a rehearsal listens for while gold is played, and what of it is a problem of which file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_env._wording import counted
from agent_env.bundle import Bundle, DeployEnv, Task, names_or_closest
from agent_env.envs import Refusal
from agent_env.episode.sink import Event, EventKind, RunHeader, new_run_id
from agent_env.errors import Problem
from agent_env.outcome import EpisodeResult, Failure, FailureKind, Place

__all__ = ["CallError", "Causes", "GoldAnswers"]

_STARTING = (FailureKind.ENV_START, FailureKind.UNIVERSE, FailureKind.MCP_DIED, FailureKind.STEP_TIMEOUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallError:
    """A call whose answer is an error."""

    tool: str
    text: str
    refusal: Refusal
    raised_at: Place | None
    """Where the tool raised; None where it refused."""
    known: tuple[str, ...]
    """The tools that the agent has."""


@dataclass(slots=True)
class GoldAnswers:
    """Listens to an episode, and keeps what its calls were refused with."""

    run_id: str = field(default_factory=new_run_id)
    errors: list[CallError] = field(default_factory=list[CallError])
    states: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """What is said of the state of each env."""
    turns: int = 0
    """Turns of whoever is played."""
    _tools: tuple[str, ...] = ()

    def opened(self, header: RunHeader) -> None:
        """Nothing to keep."""

    def event(self, event: Event) -> None:
        """Keep an answer that is an error, and count the turns."""
        data = event.data
        if event.kind is EventKind.STATE:
            self.states[data["env"]] = data
        if event.kind is EventKind.TURN_STARTED and data["kind"] == "played":
            self.turns += 1
            self._tools = tuple(tool["name"] for tool in data["tools"])
        if event.kind is EventKind.ANSWER and data["is_error"]:
            place = data.get("raised_at")
            self.errors.append(
                CallError(
                    tool=data["tool"],
                    text=data["text"],
                    refusal=Refusal(data["error_kind"]),
                    raised_at=None if place is None else Place.from_json(place),
                    known=self._tools,
                )
            )

    def ended(self, result: EpisodeResult) -> None:
        """Nothing to keep."""


@dataclass(frozen=True, slots=True)
class _Cause:
    place: Place
    what: str
    fix: str


class Causes:
    """What broke while golds were played: a problem for each cause, with the tasks that it was met in."""

    def __init__(self, bundle: Bundle, env_lines: Mapping[str, int]) -> None:
        self._bundle = bundle
        self._env_lines = env_lines
        self._found: dict[_Cause, list[str]] = {}

    def problems(self) -> list[Problem]:
        """Return them."""
        order = {task_id: at for at, task_id in enumerate(self._bundle.tasks)}
        for tasks in self._found.values():
            tasks.sort(key=order.__getitem__)
        return [
            Problem(
                path=cause.place.path, line=cause.place.line, what=f"{cause.what} ({_met_in(tasks)})", fix=cause.fix
            )
            for cause, tasks in self._found.items()
        ]

    def failed(self, task: Task, failure: Failure) -> None:
        """An episode of gold failed."""
        step = next((step for step in task.steps if step.id == failure.step), None)
        place = failure.place
        if place is None and isinstance(step, DeployEnv) and failure.kind in _STARTING:
            place = Place(path=Path("bundle.yaml"), line=self._env_lines.get(step.env, 1))
        what = f"step '{failure.step}' failed: {failure.message}"
        self._note(_Cause(place or _place(task), what, "so its gold cannot be played"), task)

    def broke(self, task: Task, errors: Sequence[CallError]) -> bool:
        """Take in the errors that gold's calls were answered with; return whether one is more than a refusal."""
        is_broken = False
        for error in errors:
            cause = self._cause(task, error)
            if cause is not None:
                is_broken = True
                self._note(cause, task)
        return is_broken

    def _cause(self, task: Task, error: CallError) -> _Cause | None:
        first, *rest = error.text.splitlines() or [""]
        match error.refusal:
            case Refusal.RAISED:
                what = f"tool '{error.tool}' raised {first}"
                return _Cause(error.raised_at or _place(task), what, "correct it, or raise ToolError to refuse")
            case Refusal.NO_SUCH_TOOL:
                what, fix = f"gold calls '{error.tool}', which is no tool", names_or_closest(error.tool, error.known)
                return _Cause(_place(task), what, fix)
            case Refusal.MISFIT:
                what = f"gold calls {error.tool} with arguments that do not fit ({'; '.join(rest or [first])})"
                return _Cause(_place(task), what, "write what the tool takes")
            case _:
                return None

    def _note(self, cause: _Cause, task: Task) -> None:
        tasks = self._found.setdefault(cause, [])
        if task.id not in tasks:
            tasks.append(task.id)


def _place(task: Task) -> Place:
    return Place(path=task.path, line=task.line)


def _met_in(tasks: Sequence[str]) -> str:
    if len(tasks) == 1:
        return f"in task '{tasks[0]}'"
    return f"in task '{tasks[0]}' and {counted(len(tasks) - 1, 'other')}"
