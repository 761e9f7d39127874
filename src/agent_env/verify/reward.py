"""The reward: the one number that a trainer gets for an episode, made of its scores. The only place that makes it.

`resolve_reward` is asked before training and says what is wrong then; `reward_of` makes the number. An episode that
failed or was abandoned has none, and neither has one whose scores are missing or not finite: that raises, and is
never 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent_env.bundle import Bundle, RewardSpec, Task, Verify, names_or_closest
from agent_env.errors import RewardError
from agent_env.outcome import EpisodeResult, Outcome

__all__ = ["RewardRule", "resolve_reward", "reward_of"]

_LISTED = 5
"""How many tasks a message names before it counts the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRule:
    """How the reward is made of the scores."""

    weights: Mapping[str, float] | None
    """By verify step id: the reward is the sum of weight times score, which is not divided by anything. None is the
    score of the only verify step."""

    def reward_of(self, result: EpisodeResult) -> float:
        """Return an episode's reward, a finite number.

        Raises:
            RewardError: When the episode did not complete, has not all the scores, or one is not finite.
        """
        if result.outcome is not Outcome.COMPLETED:
            why = "" if result.failure is None else f" ({result.failure.kind}: {result.failure.message})"
            raise RewardError(f"run {result.run_id} has no reward: it {_SAID[result.outcome]}{why}")
        weights = self.weights
        if weights is None:
            if len(result.scores) != 1:
                raise RewardError(f"run {result.run_id} has no reward: {_not_one(result.scores)}")
            weights = dict.fromkeys(result.scores, 1.0)
        missing = [step for step in weights if step not in result.scores]
        if missing:
            has = ", ".join(result.scores) or "none"
            raise RewardError(f"run {result.run_id} has no reward: no score '{missing[0]}' (it has {has})")
        for step in weights:
            if not math.isfinite(result.scores[step].value):
                value = result.scores[step].value
                raise RewardError(f"run {result.run_id} has no reward: its score '{step}' is {value}")
        reward = _sum(weight * result.scores[step].value for step, weight in weights.items())
        if not math.isfinite(reward):
            raise RewardError(f"run {result.run_id} has no reward: its weighted scores add up to {reward}")
        return reward


_SAID = {Outcome.FAILED: "failed", Outcome.ABANDONED: "was abandoned"}


def reward_of(result: EpisodeResult, rule: RewardRule | RewardSpec | str | None = None) -> float:
    """Return an episode's reward.

    Args:
        result: How the episode ended.
        rule: What the reward is: a rule, what a bundle says, a verify step's id, or None for the only score.

    Raises:
        RewardError: When the episode did not complete, has not all the scores, or one is not finite.
    """
    return _rule(rule).reward_of(result)


def resolve_reward(bundle: Bundle, reward: str | None, tasks: Iterable[Task]) -> RewardRule:
    """Say what the reward of some tasks is, before any of them is played.

    Args:
        bundle: Says what the reward is where `reward` does not.
        reward: The verify step whose score is the reward; None leaves it to the bundle.
        tasks: The tasks that will be played: each must have the scores that it takes.

    Raises:
        RewardError: When a task has not the verify steps that the reward takes; when nobody says what the reward is and
            a task has no verify step, or several.
    """
    rule = _rule(bundle.reward if reward is None else reward)
    who = f"bundle {bundle.name}'s reward" if reward is None else "reward"
    by_task = {task.id: [step.id for step in task.steps if isinstance(step, Verify)] for task in tasks}
    if rule.weights is None:
        unclear = [task_id for task_id, steps in by_task.items() if len(steps) != 1]
        if unclear:
            raise RewardError(f"{_tasks(unclear)}: {_not_one(by_task[unclear[0]])}")
        return rule
    for step, weight in rule.weights.items():
        if not math.isfinite(weight):
            raise RewardError(f"{who} has the weight {weight} for '{step}': write a finite number")
        without = [task_id for task_id, steps in by_task.items() if step not in steps]
        if without:
            fix = names_or_closest(step, by_task[without[0]])
            raise RewardError(f"{who} is the score '{step}', which {_tasks(without)} has not, {fix}")
    return rule


def _rule(rule: RewardRule | RewardSpec | str | None) -> RewardRule:
    match rule:
        case RewardRule():
            return rule
        case RewardSpec():
            return RewardRule(weights=dict(rule.weights))
        case str():
            return RewardRule(weights={rule: 1.0})
        case None:
            return RewardRule(weights=None)


def _not_one(steps: Iterable[str]) -> str:
    names = list(steps)
    if not names:
        return "no verify step scores it: add verify: to the task"
    return (
        f"{len(names)} verify steps score it ({', '.join(names)}): name one of them with reward=, "
        "or write reward: in bundle.yaml"
    )


def _tasks(ids: Sequence[str]) -> str:
    if len(ids) == 1:
        return f"task '{ids[0]}'"
    listed = ", ".join(f"'{task_id}'" for task_id in ids[:_LISTED])
    more = f" and {len(ids) - _LISTED} others" if len(ids) > _LISTED else ""
    return f"tasks {listed}{more}"


def _sum(values: Iterable[float]) -> float:
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # beyond the largest float; inf - inf
        return math.nan
