"""What a rehearsal listens for while gold is played, and what of it is a problem of which file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent_env._wording import counted
from agent_env.bundle import Bundle, DeployEnv, Task
from agent_env.episode.sink import Event, EventKind, RunHeader, new_run_id
from agent_env.errors import Problem
from agent_env.outcome import EpisodeResult, Failure, FailureKind

__all__ = ["CallError", "Causes", "GoldAnswers"]

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>[0-9]+)')
_NO_TOOL = "there is no tool "
_NOT_CALLED = " was not called:\n"
_STARTING = (FailureKind.ENV_START, FailureKind.UNIVERSE, FailureKind.MCP_DIED, FailureKind.STEP_TIMEOUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallError:
    """A call whose answer is an error."""

    tool: str
    text: str
    traceback: str
    """Of what the tool raised; empty where it refused."""


@dataclass(slots=True)
class GoldAnswers:
    """Listens to an episode, and keeps what its calls were refused with."""

    run_id: str = field(default_factory=new_run_id)
    errors: list[CallError] = field(default_factory=list[CallError])
    turns: int = 0
    """Turns of whoever is played."""

    def opened(self, header: RunHeader) -> None:
        """Nothing to keep."""

    def event(self, event: Event) -> None:
        """Keep an answer that is an error, and count the turns."""
        data = event.data
        if event.kind is EventKind.TURN_STARTED and data["kind"] == "played":
            self.turns += 1
        if event.kind is EventKind.ANSWER and data["is_error"]:
            self.errors.append(CallError(tool=data["tool"], text=data["text"], traceback=data.get("traceback", "")))

    def ended(self, result: EpisodeResult) -> None:
        """Nothing to keep."""


@dataclass(frozen=True, slots=True)
class _Cause:
    path: Path
    line: int
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
            Problem(path=cause.path, line=cause.line, what=f"{cause.what} ({_met_in(tasks)})", fix=cause.fix)
            for cause, tasks in self._found.items()
        ]

    def failed(self, task: Task, failure: Failure) -> None:
        """An episode of gold failed."""
        step = next((step for step in task.steps if step.id == failure.step), None)
        place = self._frame(failure.traceback)
        if place is None and isinstance(step, DeployEnv) and failure.kind in _STARTING:
            place = Path("bundle.yaml"), self._env_lines.get(step.env, 1)
        path, line = place or (task.path, task.line)
        what = f"step '{failure.step}' failed: {failure.message}"
        self._note(_Cause(path, line, what, "so its gold cannot be played"), task)

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
        first = error.text.splitlines()[0] if error.text else ""
        if error.traceback:
            path, line = self._frame(error.traceback) or (task.path, task.line)
            return _Cause(path, line, f"tool '{error.tool}' raised {first}", "correct it, or raise ToolError to refuse")
        if error.text.startswith(_NO_TOOL):
            _, _, fix = first.partition(", ")
            return _Cause(task.path, task.line, f"gold calls '{error.tool}', which is no tool", fix or "name a tool")
        if _NOT_CALLED in error.text:
            misfit = "; ".join(error.text.partition(_NOT_CALLED)[2].splitlines())
            what = f"gold calls {error.tool} with arguments that do not fit ({misfit})"
            return _Cause(task.path, task.line, what, "write what the tool takes")
        return None

    def _frame(self, traceback: str) -> tuple[Path, int] | None:
        """Return the innermost place in a file of the bundle that a traceback names."""
        places = [
            (Path(frame["file"]).relative_to(self._bundle.root), int(frame["line"]))
            for frame in _FRAME.finditer(traceback)
            if Path(frame["file"]).is_relative_to(self._bundle.root)
        ]
        return places[-1] if places else None

    def _note(self, cause: _Cause, task: Task) -> None:
        tasks = self._found.setdefault(cause, [])
        if task.id not in tasks:
            tasks.append(task.id)


def _met_in(tasks: Sequence[str]) -> str:
    if len(tasks) == 1:
        return f"in task '{tasks[0]}'"
    return f"in task '{tasks[0]}' and {counted(len(tasks) - 1, 'other')}"
