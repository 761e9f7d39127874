"""Recorded runs scored again, with the verifiers that their bundle has now. No agent plays, and no trainer is needed.

The conversation is the record's; an env's state is its universe with the changes that the run kept. A verifier that raised can
be mended, and its episodes scored after all. A score that cannot be made again is not made up: the reason is told instead.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from anyio import to_thread

from agent_env.bundle import (
    Bundle,
    CommandVerifier,
    DeployEnv,
    Prompt,
    RunCommand,
    RunPython,
    Step,
    Task,
    UniverseKind,
    UniverseSpec,
    Verify,
)
from agent_env.chat import complete
from agent_env.episode import EpisodeView
from agent_env.episode.limits import DEFAULT_LIMITS, Limits
from agent_env.episode.wanted_states import wanted_state
from agent_env.errors import AgentEnvError, RewardError
from agent_env.outcome import CutReason, EpisodeResult, FailureKind, Outcome, Score, Skipped
from agent_env.rescoring.heard import Heard, hear
from agent_env.runs import RunEvent, RunIndex, RunState, RunSummary
from agent_env.universe import StateChanges, apply, changes_on_disk, fingerprint, open_universe, open_universe_on_disk
from agent_env.verify import resolve_reward
from agent_env.verify.function import call_function
from agent_env.verify.permission import judges_allowed
from agent_env.verify.score import VerifyMeans, verify_step
from agent_env.verify.state import LeftState
from agent_env.verify.step_failed import StepFailedError
from agent_env.verify.verdict import JudgeRecord

__all__ = ["Rescored", "rescore"]

_IN_VERIFYING = {
    FailureKind.VERIFIER_RAISED,
    FailureKind.VERIFIER_TIMEOUT,
    FailureKind.SCORE_INVALID,
    FailureKind.MODEL_SERVER,
    FailureKind.STEP_TIMEOUT,
}
"""What may have broken a run whose agent had done its part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """What came of one run."""

    run: RunSummary
    """As it is recorded."""
    scores: Mapping[str, Score] = field(default_factory=dict[str, Score])
    """By verify step, now."""
    judges: Mapping[str, JudgeRecord] = field(default_factory=dict[str, JudgeRecord])
    """What judges were asked and answered, by verify step."""
    skipped: Mapping[str, Skipped] = field(default_factory=dict[str, Skipped])
    """Judges that are not allowed."""
    reward: float | None = None
    """Made of the scores; None where none can be made."""
    why_not: str = ""
    """Why it has no scores, or no reward; empty where it has."""

    @property
    def has_changed(self) -> bool:
        """Whether a score is another one than recorded, or was not there."""
        now = {name: score.value for name, score in self.scores.items()}
        return bool(now) and now != dict(self.run.scores)


class _CannotError(Exception):
    """Why a run cannot be scored again."""


async def rescore(
    index: RunIndex,
    bundle: Bundle,
    runs: Iterable[RunSummary],
    *,
    reward: str | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> AsyncGenerator[Rescored]:
    """Score recorded runs again. The records stay as they are.

    Args:
        index: Where they are recorded.
        bundle: The bundle that they were played on, with the verifiers that it has now.
        runs: Those to score.
        reward: As a trainer names it: one verify step; None leaves it to the bundle.
        limits: How long a verifier may take where its step does not say, and whether judges may be asked.

    Yields:
        One value for each run, in their order.
    """
    for run in runs:
        try:
            yield await _one(index, bundle, run, reward, limits)
        except (_CannotError, StepFailedError, AgentEnvError) as exc:
            yield Rescored(run=run, why_not=" ".join(str(exc).split()))


async def _one(index: RunIndex, bundle: Bundle, run: RunSummary, reward: str | None, limits: Limits) -> Rescored:
    task = bundle.tasks.get(run.task_id)
    if task is None:
        raise _CannotError(f"bundle {bundle.name} has no task '{run.task_id}' any more")
    record = await to_thread.run_sync(partial(index.read, run.run_id, limit=1))
    if dict(record.params) != dict(task.params):
        raise _CannotError("the task's params are others than those it was played with")
    steps = _after_the_agent(task)
    _check_run(run, steps)
    events = await to_thread.run_sync(lambda: list(index.events(run.run_id)))
    heard = hear(events, played=bundle.played)
    scores, judges, skipped = _kept_scores(task, steps, events), dict[str, JudgeRecord](), dict[str, Skipped]()
    async with AsyncExitStack() as stack:
        lefts = await _states(task, events, steps, stack)
        states = {name: left.state for name, left in lefts.items()}
        ask = complete if judges_allowed(limits.judges) else None
        for step in steps:
            view = _view(task, run, heard, scores, states)
            if isinstance(step, RunPython):
                await _run(step, view, limits)
            elif isinstance(step, Verify):
                timeout_s = limits.bound_s(step)
                wanted = partial(wanted_state, task, timeout_s=timeout_s)
                means = VerifyMeans(root=bundle.root, sandboxes={}, ask=ask, wanted=wanted, lefts=lefts)
                verdict = await verify_step(step, view, means, timeout_s=timeout_s)
                if isinstance(verdict.outcome, Skipped):
                    skipped[step.id] = verdict.outcome
                    continue
                scores[step.id] = verdict.outcome
                if verdict.judge is not None:
                    judges[step.id] = verdict.judge
    result = EpisodeResult(outcome=Outcome.COMPLETED, run_id=run.run_id, scores=scores, skipped=skipped)
    made, why_not = _reward(task, result, reward, limits)
    return Rescored(run=run, scores=scores, judges=judges, skipped=skipped, reward=made, why_not=why_not)


def _reward(task: Task, result: EpisodeResult, reward: str | None, limits: Limits) -> tuple[float | None, str]:
    try:
        return resolve_reward(task.bundle, reward, [task], judges=limits.judges).reward_of(result), ""
    except RewardError as exc:
        return None, str(exc)


def _after_the_agent(task: Task) -> Sequence[Step]:
    """Return the steps after the last prompt: those that are done again."""
    last = max((at for at, step in enumerate(task.steps) if isinstance(step, Prompt)), default=-1)
    return task.steps[last + 1 :]


def _check_run(run: RunSummary, steps: Sequence[Step]) -> None:
    for step in steps:
        if isinstance(step, RunCommand) or (isinstance(step, Verify) and isinstance(step.verifier, CommandVerifier)):
            raise _CannotError(f"step '{step.id}' works in a sandbox, which is gone")
    if run.state is RunState.COMPLETED:
        return
    failure = run.failure
    if run.state is RunState.FAILED and failure is not None:
        if failure.kind in _IN_VERIFYING and any(step.id == failure.step for step in steps):
            return
        raise _CannotError(f"it failed before it could be scored ({failure.kind} in '{failure.step}')")
    raise _CannotError(f"it was not played to its end ({run.state})")


def _kept_scores(task: Task, again: Sequence[Step], events: Sequence[RunEvent]) -> dict[str, Score]:
    """Return the scores of verify steps between turns: the state that they saw is not kept, so they stay."""
    steps = {step.id: step for step in task.steps if isinstance(step, Verify) and step not in again}
    kept: dict[str, Score] = {}
    for event in events:
        step = steps.get(event.step)
        if event.kind == "score" and step is not None:
            kept[step.id] = Score(
                step=step.id,
                value=float(event.data["value"]),
                explanation=str(event.data.get("explanation", "")),
                metrics=event.data.get("metrics", {}),
                weight=step.weight,
                required=step.required,
            )
    missing = [name for name in steps if name not in kept]
    if missing:
        raise _CannotError(f"its verify step '{missing[0]}' comes between turns, and was not scored when it was played")
    return kept


async def _states(
    task: Task, events: Sequence[RunEvent], steps: Sequence[Step], stack: AsyncExitStack
) -> dict[str, LeftState]:
    """Make each env's state again, as the agent left it."""
    recorded = {str(event.data.get("env")): event.data for event in events if event.kind == "state"}
    states: dict[str, LeftState] = {}
    for step in task.steps:
        if not isinstance(step, DeployEnv) or step in steps:
            continue
        spec = task.bundle.envs[step.env]
        if spec.sandbox is not None:
            continue  # gone; a step that needs it has been refused before
        data = recorded.get(step.env)
        if data is None:
            raise _CannotError(f"the run did not keep what was left of env '{step.env}'")
        if "error" in data:
            raise _CannotError(f"the run could not keep what was left of env '{step.env}': {data['error']}")
        if spec.universe is not None and data.get("universe") != await fingerprint(spec.universe):
            raise _CannotError(f"the universe of env '{step.env}' is another than the one it was played in")
        changes = StateChanges.from_json(data)
        if spec.python is not None:
            copy = await stack.enter_async_context(open_universe(spec.universe))
            state = await to_thread.run_sync(apply, changes, copy.state)
            told = partial(copy.changes, state)
        else:
            folder = await stack.enter_async_context(open_universe_on_disk(spec.universe))
            await to_thread.run_sync(_apply_in_folder, changes, spec.universe, folder)
            state, told = folder, partial(changes_on_disk, folder)
        states[step.env] = LeftState(spec=spec.universe, state=state, changes=told)
    return states


def _apply_in_folder(changes: StateChanges, universe: UniverseSpec | None, folder: Path) -> None:
    """Make changes again in a folder that has a universe as files: an MCP server's."""
    if universe is None or universe.kind is UniverseKind.DIRECTORY:
        apply(changes, folder)
        return
    file = folder / universe.path.name
    if universe.kind is UniverseKind.JSON:
        left = apply(changes, json.loads(file.read_text(encoding="utf-8-sig")))
        file.write_text(json.dumps(left, ensure_ascii=False), encoding="utf-8")
        return
    with closing(sqlite3.connect(file)) as connection:
        apply(changes, connection)
        connection.commit()


def _view(
    task: Task, run: RunSummary, heard: Heard, scores: Mapping[str, Score], states: Mapping[str, Any]
) -> EpisodeView:
    return EpisodeView(
        task_id=task.id,
        params=task.copy_params(),
        tags=task.tags,
        messages=list(heard.messages),
        replies=list(heard.replies),
        calls=list(heard.calls),
        conversations={name: list(messages) for name, messages in heard.conversations.items()},
        scores=dict(scores),
        cut=None if run.cut is None else CutReason(run.cut),
        states=states,
    )


async def _run(step: RunPython, view: EpisodeView, limits: Limits) -> None:
    await call_function(
        step.target,
        view,
        timeout_s=limits.bound_s(step),
        raised=FailureKind.RUN_STEP,
        timed_out=FailureKind.STEP_TIMEOUT,
    )
