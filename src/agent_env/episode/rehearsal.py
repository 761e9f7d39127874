"""Playing a bundle's reference solutions before anything is trained on: does each score what it claims?

Covers tasks with `gold`. Each is played twice, unrecorded: its gold, and an agent that does nothing. Tasks that would ask a
model are left out: a rehearsal costs no tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from agent_env._wording import counted, quoted
from agent_env.bundle import AddSkills, Bundle, Task
from agent_env.episode._nowhere import Nowhere, NowherePlace
from agent_env.episode._rehearsed import Causes, GoldAnswers
from agent_env.episode.gold import gold_player
from agent_env.episode.limits import Limits
from agent_env.episode.player_turn import PlayerTurn
from agent_env.episode.players import play
from agent_env.errors import Problem, RewardError
from agent_env.outcome import EpisodeResult, Outcome
from agent_env.verify import Message
from agent_env.verify.reward import resolve_reward

__all__ = ["Rehearsal", "rehearse"]

_AT_ONCE = 8
_LISTED = 5
_LIMITS = Limits(deploy_s=60.0, run_s=60.0, verify_s=120.0)
_CLOSE = 1e-9
"""Sums of weighted scores differ by less."""


@dataclass(slots=True, kw_only=True)
class Rehearsal:
    """What came of it."""

    played: int = 0
    """Tasks whose gold was played."""
    problems: list[Problem] = field(default_factory=list[Problem])
    """What broke when gold was played, a line for each cause; and golds that do not score what they claim."""
    refused: list[str] = field(default_factory=list[str])
    """Tasks whose gold has a call that its tool refuses."""
    other_turns: list[str] = field(default_factory=list[str])
    """Tasks whose gold has another number of turns than came about."""
    constant: list[str] = field(default_factory=list[str])
    """Tasks whose reward is the same for gold and for doing nothing: alone they teach nothing."""
    unshown_skills: list[str] = field(default_factory=list[str])
    """Tasks that give an agent skills which it is not shown: a trainer leaves them out."""
    nowhere: list[NowherePlace] = field(default_factory=list[NowherePlace])
    """Places that state verifiers leave out, and that are nowhere; something like them is."""
    asks_models: list[str] = field(default_factory=list[str])
    """Tasks that were left out, because playing them asks a model."""

    @property
    def notes(self) -> list[str]:
        """What is no mistake, but worth a look, a line each."""
        lines: list[str] = []
        if self.refused:
            lines.append(f"{_some(self.refused)}: a call of gold is refused by its tool")
        if self.other_turns:
            lines.append(f"{_some(self.other_turns)}: gold has more or fewer turns than were asked for")
        if self.constant:
            lines.append(f"{_some(self.constant)}: doing nothing scores as much as gold")
        if self.unshown_skills:
            fix = "write skills: true in the agent, or a trainer leaves the task out"
            lines.append(f"{_some(self.unshown_skills)}: skills are given to an agent that is not shown them, {fix}")
        for place in self.nowhere:
            what = f"nothing is at '{place.path}' in the state of env '{place.env}', which the verifier leaves out"
            lines.append(f"{_some(place.tasks)}: {what}, did you mean '{place.near}'?")
        if self.asks_models:
            lines.append(f"{_some(self.asks_models)}: not played, for that asks a model")
        return lines


async def rehearse(
    bundle: Bundle,
    tasks: Iterable[Task] | None = None,
    *,
    env_lines: Mapping[str, int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Rehearsal:
    """Play every reference solution of a bundle, and, beside it, an agent that does nothing.

    Args:
        bundle: A bundle without problems.
        tasks: Those to play; None is all of them.
        env_lines: The line of bundle.yaml that each env stands on, for problems with one.
        progress: Called with how many are done and how many there are.
    """
    chosen = [task for task in (bundle.tasks.values() if tasks is None else tasks) if task.gold is not None]
    found = Rehearsal(
        asks_models=[task.id for task in chosen if task.models(judges=True)],
        unshown_skills=[task.id for task in bundle.tasks.values() if _gives_unshown_skills(task)],
    )
    todo = [task for task in chosen if not task.models(judges=True)]
    causes, nowhere = Causes(bundle, env_lines or {}), Nowhere()
    done = 0
    waiting = iter(todo)

    async def work() -> None:
        nonlocal done
        for task in waiting:
            await _one(task, found, causes, nowhere)
            done += 1
            if progress is not None:
                progress(done, len(todo))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(_AT_ONCE, len(todo))):
            group.create_task(work())
    order = {task_id: at for at, task_id in enumerate(bundle.tasks)}
    for listed in (found.constant, found.refused, found.other_turns):
        listed.sort(key=order.__getitem__)
    found.problems += causes.problems()
    found.nowhere += nowhere.places()
    for place in found.nowhere:
        place.tasks.sort(key=order.__getitem__)
    return found


async def _one(task: Task, found: Rehearsal, causes: Causes, nowhere: Nowhere) -> None:
    found.played += 1
    answers = GoldAnswers()
    gold = await play(task, gold_player(task), sink=answers, limits=_LIMITS)
    if gold.failure is not None:
        causes.failed(task, gold.failure)
        return
    if causes.broke(task, answers.errors):
        return
    await nowhere.look(task, answers.states)
    if answers.errors:
        found.refused.append(task.id)
    if answers.turns != len(task.gold or ()):
        found.other_turns.append(task.id)
    try:
        reward = _reward(task, gold)
    except RewardError as exc:
        found.problems.append(_problem(task, f"playing gold makes no reward: {exc}", "correct the task or its gold"))
        return
    if abs(reward - task.gold_reward) > _CLOSE * max(1.0, abs(reward)):
        what = f"gold scores {reward:.6g} and claims {task.gold_reward:.6g}{_why(gold)}"
        found.problems.append(_problem(task, what, f"correct gold, or write gold_reward: {reward:.6g}"))
        return
    idle = await play(task, _idle, limits=_LIMITS)
    if idle.outcome is Outcome.COMPLETED and abs(_reward(task, idle) - reward) <= _CLOSE:
        found.constant.append(task.id)


def _reward(task: Task, result: EpisodeResult) -> float:
    return resolve_reward(task.bundle, None, [task], judges=True).reward_of(result)


def _idle(turn: PlayerTurn) -> Message:
    del turn
    return Message(role="assistant", content="")


def _why(result: EpisodeResult) -> str:
    said = [
        f"{score.step} {score.value:.6g}: {score.explanation}" for score in result.scores.values() if score.explanation
    ]
    text = " ".join("; ".join(said).split())
    return f" ({text[:300]})" if text else ""


def _problem(task: Task, what: str, fix: str) -> Problem:
    return Problem(path=task.path, line=task.line, what=f"task '{task.id}': {what}", fix=fix)


def _gives_unshown_skills(task: Task) -> bool:
    agents = task.bundle.agents
    return any(isinstance(step, AddSkills) and not agents[step.agent].skills for step in task.steps)


def _some(tasks: Sequence[str]) -> str:
    return f"{counted(len(tasks), 'task')} ({quoted(tasks, _LISTED)})"
