"""The reward: the one number that a trainer gets for an episode, made of its scores. The only place that makes it.

`resolve_reward` is asked before training and says what is wrong then; `reward_of` makes the number. An episode that
failed or was abandoned has none, and neither has one whose scores are missing or not finite: that raises, and is
never 0.

What the reward is, the first of these that is said:

1. the trainer names a verify step: that score, alone, without gates;
2. the bundle's `reward:` has weights: the sum of weight times score;
3. verify steps of the task have a `weight`: likewise, over those steps;
4. the task has one verify step: its score.

In 2 to 4 every step with `required: true` is a gate: when its score is below 1, the reward is at most 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent_env._wording import quoted
from agent_env.bundle import Bundle, JudgeVerifier, RewardSpec, Task, Verify, names_or_closest
from agent_env.errors import RewardError
from agent_env.outcome import EpisodeResult, Outcome, Score, Skipped
from agent_env.verify.permission import JUDGES_OFF, judges_allowed

__all__ = ["RewardRule", "resolve_reward", "reward_of"]

_LISTED = 5
"""How many tasks a message names before it counts the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRule:
    """How the reward is made of the scores."""

    weights: Mapping[str, float] | None
    """By verify step id: the reward is the sum of weight times score, which is not divided by anything. None is what
    the verify steps themselves say: their weights, or the score of the only one."""
    gated: bool = True
    """Whether a required score below 1 keeps the reward from being more than 0."""

    def reward_of(self, result: EpisodeResult) -> float:
        """Return an episode's reward, a finite number.

        Raises:
            RewardError: When the episode did not complete, has not all the scores, or one is not finite.
        """
        try:
            return self._reward(result)
        except _NoRewardError as exc:
            raise RewardError(f"run {result.run_id} has no reward: {exc}") from None

    def _reward(self, result: EpisodeResult) -> float:
        if result.outcome is not Outcome.COMPLETED:
            why = "" if result.failure is None else f" ({result.failure.kind}: {result.failure.message})"
            raise _NoRewardError(f"it {_SAID[result.outcome]}{why}")
        steps = {**result.skipped, **result.scores}
        weights = _said_weights(steps.values()) if self.weights is None else self.weights
        if weights is None:
            raise _NoRewardError(_not_one(steps))
        gates = [step.step for step in steps.values() if step.required] if self.gated else []
        values = {step: _value(result, step) for step in (*weights, *gates)}
        reward = _sum(weight * values[step] for step, weight in weights.items())
        if not math.isfinite(reward):
            raise _NoRewardError(f"its weighted scores add up to {reward}")
        return reward if all(values[step] >= 1 for step in gates) else min(0.0, reward)


class _NoRewardError(Exception):
    """Why there is no reward, as it goes on after the run's id."""


_SAID = {Outcome.FAILED: "failed", Outcome.ABANDONED: "was abandoned"}


def reward_of(result: EpisodeResult, rule: RewardRule | RewardSpec | str | None = None) -> float:
    """Return an episode's reward.

    Args:
        result: How the episode ended.
        rule: What the reward is: a rule, what a bundle says, a verify step's id (that score alone, whatever the gates
            say), or None for what the verify steps say themselves.

    Raises:
        RewardError: When the episode did not complete, has not all the scores, or one is not finite.
    """
    return _rule(rule).reward_of(result)


def resolve_reward(
    bundle: Bundle, reward: str | None, tasks: Iterable[Task], *, judges: bool | None = None
) -> RewardRule:
    """Say what the reward of some tasks is, before any of them is played.

    Args:
        bundle: Says what the reward is where `reward` does not.
        reward: The verify step whose score alone is the reward; None leaves it to the bundle and its tasks.
        tasks: The tasks that will be played: each must have the scores that it takes.
        judges: Whether model judges will be asked; None leaves it to the environment variable `AGENT_ENV_JUDGES`.

    Raises:
        RewardError: When a task has not the verify steps that the reward takes; when nobody says what the reward is and
            a task has no verify step, or several without a weight; when the reward takes the score of a model judge,
            and judges are off.
    """
    rule = _rule(bundle.reward if reward is None else reward)
    who = f"bundle {bundle.name}'s reward" if reward is None else "reward"
    by_task = {task.id: _verify_steps(task) for task in tasks}
    if rule.weights is None:
        _check_said_weights(by_task)
    else:
        _check_weights(rule.weights, who, by_task)
    if not judges_allowed(judges):
        _check_judges(rule, by_task)
    return rule


def _check_said_weights(by_task: Mapping[str, Mapping[str, Verify]]) -> None:
    unclear = [task_id for task_id, steps in by_task.items() if _said_weights(steps.values()) is None]
    if unclear:
        raise RewardError(f"{_tasks(unclear)}: {_not_one(by_task[unclear[0]])}")
    for task_id, steps in by_task.items():
        for name, step in steps.items():
            if step.weight is not None and not math.isfinite(step.weight):
                raise RewardError(f"task '{task_id}': '{name}' has the weight {step.weight}: write a finite number")


def _check_weights(weights: Mapping[str, float], who: str, by_task: Mapping[str, Mapping[str, Verify]]) -> None:
    for step, weight in weights.items():
        if not math.isfinite(weight):
            raise RewardError(f"{who} has the weight {weight} for '{step}': write a finite number")
        without = [task_id for task_id, steps in by_task.items() if step not in steps]
        if without:
            have = "has" if len(without) == 1 else "have"
            fix = names_or_closest(step, by_task[without[0]])
            raise RewardError(f"{who} is the score '{step}', which {_tasks(without)} {have} not, {fix}")


def _check_judges(rule: RewardRule, by_task: Mapping[str, Mapping[str, Verify]]) -> None:
    by_step: dict[str, list[str]] = {}
    for task_id, steps in by_task.items():
        weights = _said_weights(steps.values()) if rule.weights is None else rule.weights
        for name, step in steps.items():
            is_taken = name in (weights or ()) or (rule.gated and step.required)
            if is_taken and isinstance(step.verifier, JudgeVerifier):
                by_step.setdefault(name, []).append(task_id)
    for name, task_ids in by_step.items():
        raise RewardError(f"{_tasks(task_ids)}: the reward takes the score '{name}' of a model judge, and {JUDGES_OFF}")


def _verify_steps(task: Task) -> dict[str, Verify]:
    return {step.id: step for step in task.steps if isinstance(step, Verify)}


def _rule(rule: RewardRule | RewardSpec | str | None) -> RewardRule:
    match rule:
        case RewardRule():
            return rule
        case RewardSpec():
            return RewardRule(weights=dict(rule.weights))
        case str():
            return RewardRule(weights={rule: 1.0}, gated=False)
        case None:
            return RewardRule(weights=None)


def _said_weights(steps: Iterable[Score | Skipped | Verify]) -> dict[str, float] | None:
    """Return the weights that a task's verify steps have; 1 for the only one; None when nobody says what counts."""
    steps = list(steps)
    weights = {_name(step): step.weight for step in steps if step.weight is not None}
    if not weights and len(steps) == 1:
        return {_name(steps[0]): 1.0}
    return weights or None


def _name(step: Score | Skipped | Verify) -> str:
    return step.id if isinstance(step, Verify) else step.step


def _value(result: EpisodeResult, step: str) -> float:
    score = result.scores.get(step)
    if score is None:
        skipped = result.skipped.get(step)
        has = f"it has {', '.join(result.scores) or 'none'}" if skipped is None else skipped.reason
        raise _NoRewardError(f"no score '{step}' ({has})")
    if not math.isfinite(score.value):
        raise _NoRewardError(f"its score '{step}' is {score.value}")
    return score.value


def _not_one(steps: Iterable[str]) -> str:
    names = list(steps)
    if not names:
        return "no verify step scores it: add verify: to the task"
    return (
        f"{len(names)} verify steps score it ({', '.join(names)}): name one of them with reward=, "
        "write reward: in bundle.yaml, or give those that count a weight:"
    )


def _tasks(ids: Sequence[str]) -> str:
    return f"{'task' if len(ids) == 1 else 'tasks'} {quoted(ids, _LISTED)}"


def _sum(values: Iterable[float]) -> float:
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):  # beyond the largest float; inf - inf
        return math.nan
