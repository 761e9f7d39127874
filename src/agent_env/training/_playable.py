"""Which tasks of a split a trainer can play; the others are left out before training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent_env._wording import quoted
from agent_env.bundle import AddSkills, AgentKind, Bundle, Prompt, Task
from agent_env.errors import TrainingError

__all__ = ["Playable", "playable"]

_LISTED = 20
"""How many tasks a message names before it counts the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Playable:
    """What of a split a trainer can play."""

    tasks: Sequence[Task]
    left_out: str
    """In words, which of its tasks are left out, and why; empty where all are played."""


def playable(bundle: Bundle, split: str) -> Playable:
    """Sort the tasks of a split by whether the played agent can play them as a trainer's rollout.

    Raises:
        UsageError: When the bundle has no such split.
        TrainingError: When it has no task, or none that can be played.
    """
    tasks = bundle.select(split)
    if not tasks:
        raise TrainingError(f"split {split!r} of bundle {bundle.name} has no task to play")
    left_out: dict[str, list[str]] = {}
    kept: list[Task] = []
    for task in tasks:
        why = _why_not(task)
        if why is None:
            kept.append(task)
        else:
            left_out.setdefault(why, []).append(task.id)
    said = "; ".join(f"{quoted(ids, _LISTED)} {why}" for why, ids in left_out.items())
    if not kept:
        raise TrainingError(f"split {split!r} of bundle {bundle.name} has no task that can be trained on: {said}")
    count = len(tasks) - len(kept)
    words = f"split {split!r} of bundle {bundle.name}: {count} of {len(tasks)} left out: {said}" if said else ""
    return Playable(tasks=kept, left_out=words)


def _why_not(task: Task) -> str | None:
    played, agents = task.bundle.played, task.bundle.agents
    prompted = dict.fromkeys(step.agent for step in task.steps if isinstance(step, Prompt))
    gives_skills = any(isinstance(step, AddSkills) and step.agent == played for step in task.steps)
    if gives_skills and not agents[played].skills:
        return f"(gives '{played}' skills, which it is not shown: write skills: true in the agent)"
    if played not in prompted:
        return f"(never prompts '{played}', the played agent)"
    by_hand = [agent for agent in prompted if agent != played and agents[agent].kind is AgentKind.PLAYED]
    if others := [f"'{agent}'" for agent in by_hand]:
        return f"(prompts {', '.join(others)}, and a trainer plays '{played}' only)"
    return None
