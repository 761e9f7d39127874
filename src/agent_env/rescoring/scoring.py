"""Recorded runs scored again, with the verifiers that their bundle has now. No agent plays, and no trainer is needed.

The conversation is the record's; an env's state is its universe with the changes that the run kept. A verifier that raised can
be mended, and its episodes scored after all. A score that cannot be made again is not made up: the reason is told instead.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
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
    RunCommand,
    Step,
    Task,
    UniverseKind,
    UniverseSpec,
    Verify,
)
from agent_env.envs import EnvSession, ToolAnswer, ToolSpec
from agent_env.envs.refusals import no_such_tool
from agent_env.episode.again import AgentsPart, score_again
from agent_env.episode.heard import Heard
from agent_env.episode.limits import DEFAULT_LIMITS, Limits
from agent_env.errors import AgentEnvError, RewardError
from agent_env.outcome import CutReason, EpisodeResult, FailureKind, Score, Skipped
from agent_env.runs import RunEvent, RunIndex, RunState, RunSummary
from agent_env.universe import StateChanges, apply, changes_on_disk, fingerprint, open_universe, open_universe_on_disk
from agent_env.verify import resolve_reward
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
        except (_CannotError, AgentEnvError) as exc:
            yield Rescored(run=run, why_not=" ".join(str(exc).split()))


async def _one(index: RunIndex, bundle: Bundle, run: RunSummary, reward: str | None, limits: Limits) -> Rescored:
    task = bundle.tasks.get(run.task_id)
    if task is None:
        raise _CannotError(f"bundle {bundle.name} has no task '{run.task_id}' any more")
    record = await to_thread.run_sync(partial(index.read, run.run_id, limit=1))
    if dict(record.params) != dict(task.params):
        raise _CannotError("the task's params are others than those it was played with")
    _check_run(run, task)
    events = await to_thread.run_sync(lambda: list(index.events(run.run_id)))
    async with AsyncExitStack() as stack:
        part = AgentsPart(
            run_id=run.run_id,
            heard=Heard(task, events),
            scores=_kept_scores(task, events),
            cut=None if run.cut is None else CutReason(run.cut),
            envs=await _left_envs(task, events, stack),
        )
        again = await score_again(task, part, limits=limits)
    result = again.result
    if result.failure is not None:
        raise _CannotError(result.failure.message)
    made, why_not = _reward(task, result, reward, limits)
    return Rescored(
        run=run, scores=result.scores, judges=again.judges, skipped=result.skipped, reward=made, why_not=why_not
    )


def _reward(task: Task, result: EpisodeResult, reward: str | None, limits: Limits) -> tuple[float | None, str]:
    try:
        return resolve_reward(task.bundle, reward, [task], judges=limits.judges).reward_of(result), ""
    except RewardError as exc:
        return None, str(exc)


def _check_run(run: RunSummary, task: Task) -> None:
    steps = task.after_the_agents
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


def _kept_scores(task: Task, events: Sequence[RunEvent]) -> dict[str, Score]:
    """Return the scores of verify steps between turns: the state that they saw is not kept, so they stay."""
    steps = {step.id: step for step in _before(task) if isinstance(step, Verify)}
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


def _before(task: Task) -> Sequence[Step]:
    """Return the steps up to the last prompt: those that are not done again."""
    return task.steps[: len(task.steps) - len(task.after_the_agents)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LeftEnv:
    """An env as its agents have left it. Has the shape of an `EnvSession`, and no tools: no agent goes on."""

    state: Any
    told: Callable[[], Awaitable[StateChanges]]
    tools: Sequence[ToolSpec] = ()

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        """Refuse a call."""
        return no_such_tool(name, ())

    async def changes(self) -> StateChanges:
        """Return what is different from the universe by now: a step may have changed more."""
        return await self.told()


async def _left_envs(task: Task, events: Sequence[RunEvent], stack: AsyncExitStack) -> dict[str, EnvSession]:
    """Make each env's state again, as its agents have left it."""
    recorded = {str(event.data.get("env")): event.data for event in events if event.kind == "state"}
    envs: dict[str, EnvSession] = {}
    for step in _before(task):
        if not isinstance(step, DeployEnv):
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
            envs[step.env] = _LeftEnv(state=state, told=partial(copy.changes, state))
        else:
            folder = await stack.enter_async_context(open_universe_on_disk(spec.universe))
            await to_thread.run_sync(_apply_in_folder, changes, spec.universe, folder)
            envs[step.env] = _LeftEnv(state=folder, told=partial(changes_on_disk, folder))
    return envs


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
