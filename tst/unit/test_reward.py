"""Rewards: the one number of an episode, or an error; and what is said before training."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env import (
    Bundle,
    EpisodeResult,
    Failure,
    FailureKind,
    Outcome,
    RewardError,
    RewardRule,
    Score,
    load_bundle,
    resolve_reward,
    reward_of,
)

WriteBundle = Callable[[Mapping[str, str | bytes | None]], Path]


def result(outcome: Outcome = Outcome.COMPLETED, **scores: float) -> EpisodeResult:
    """How an episode ended, with these scores."""
    return EpisodeResult(
        outcome=outcome, run_id="r1", scores={name: Score(step=name, value=value) for name, value in scores.items()}
    )


@pytest.fixture
def make_bundle(small_bundle: dict[str, str], write_bundle: WriteBundle) -> Callable[..., Bundle]:
    """Makes a bundle whose tasks have the given verify steps, by task id."""

    def make(steps: Mapping[str, list[str]], reward: Any = None) -> Bundle:
        files = {**small_bundle, "tasks/a.yaml": None, "tasks/b.jsonl": None, "evals/test.yaml": None}
        files["bundle.yaml"] += f"reward: {json.dumps(reward)}\n" if reward is not None else ""
        for task_id, names in steps.items():
            verify = [{"python": "verifiers/sold.py", "id": name} for name in names]
            files[f"tasks/{task_id}.yaml"] = json.dumps({"id": task_id, "prompt": "Sell.", "verify": verify})
        return load_bundle(write_bundle(files))

    return make


def test_the_only_score_is_the_reward() -> None:
    """With one score nothing need be said."""
    assert reward_of(result(sold=0.75)) == 0.75


def test_a_named_score_is_the_reward() -> None:
    """Among several scores the named one counts."""
    assert reward_of(result(sold=0.75, polite=0.5), "polite") == 0.5


def test_weights_add_up() -> None:
    """The reward is the sum of weight times score."""
    assert reward_of(result(sold=0.5, polite=1.0), RewardRule(weights={"sold": 0.5, "polite": -0.25})) == 0.0


@pytest.mark.parametrize(
    ("given_result", "rule", "said"),
    [
        (result(sold=math.nan), None, "run r1 has no reward: its score 'sold' is nan"),
        (result(sold=math.inf), "sold", "run r1 has no reward: its score 'sold' is inf"),
        (result(sold=1.0), "polite", "run r1 has no reward: no score 'polite' (it has sold)"),
        (result(), "polite", "run r1 has no reward: no score 'polite' (it has none)"),
        (result(), None, "no verify step scores it"),
        (result(sold=1.0, polite=1.0), None, "2 verify steps score it (sold, polite): name one of them with reward="),
        (result(Outcome.ABANDONED, sold=1.0), None, "run r1 has no reward: it was abandoned"),
        (result(Outcome.FAILED, sold=1.0), None, "run r1 has no reward: it failed"),
        (result(sold=1e308, polite=1e308), RewardRule(weights={"sold": 1.0, "polite": 1.0}), "add up to nan"),
        (result(sold=1e308), RewardRule(weights={"sold": 10.0}), "add up to inf"),
    ],
)
def test_what_has_no_reward_raises(given_result: EpisodeResult, rule: Any, said: str) -> None:
    """A missing or infinite score, a failure, an abandonment: an error that says which, never 0."""
    with pytest.raises(RewardError) as caught:
        reward_of(given_result, rule)
    assert said in str(caught.value)


def test_a_failure_is_named() -> None:
    """The message says what broke."""
    failure = Failure(kind=FailureKind.ENV_BROKEN, step="prompt", message="tool look: gone")
    failed = EpisodeResult(outcome=Outcome.FAILED, run_id="r1", scores={}, failure=failure)
    with pytest.raises(RewardError, match=r"it failed \(env_broken: tool look: gone\)"):
        reward_of(failed)


@given(
    scores=st.dictionaries(st.sampled_from("abc"), st.floats(), min_size=1),
    weights=st.dictionaries(st.sampled_from("abc"), st.floats(allow_nan=False, allow_infinity=False), min_size=1),
    outcome=st.sampled_from(Outcome),
)
def test_a_reward_is_finite_or_an_error(scores: dict[str, float], weights: dict[str, float], outcome: Outcome) -> None:
    """Whatever the scores and weights are, no number comes out that is not finite or not earned."""
    try:
        reward = reward_of(result(outcome, **scores), RewardRule(weights=weights))
    except RewardError:
        return
    assert math.isfinite(reward)
    assert outcome is Outcome.COMPLETED
    assert weights.keys() <= scores.keys()


def test_tasks_with_one_verify_step_each_need_no_name(make_bundle: Callable[..., Bundle]) -> None:
    """The steps may have different names."""
    bundle = make_bundle({"a": ["sold"], "b": ["polite"]})
    rule = resolve_reward(bundle, None, bundle.tasks.values())
    assert rule.reward_of(result(polite=0.5)) == 0.5


def test_the_bundle_s_weights_are_taken(make_bundle: Callable[..., Bundle]) -> None:
    """What the bundle says holds where the trainer says nothing; what the trainer says comes first."""
    bundle = make_bundle({"a": ["sold", "polite"]}, {"sold": 0.5, "polite": 0.25})
    assert resolve_reward(bundle, None, bundle.tasks.values()).reward_of(result(sold=1.0, polite=1.0)) == 0.75
    assert resolve_reward(bundle, "polite", bundle.tasks.values()).reward_of(result(sold=0.0, polite=1.0)) == 1.0


@pytest.mark.parametrize(
    ("steps", "said_by_bundle", "reward", "said"),
    [
        (
            {"a": ["sold", "polite"]},
            None,
            None,
            "task 'a': 2 verify steps score it (sold, polite): name one of them with reward=, or write reward: in "
            "bundle.yaml",
        ),
        (
            {"a": ["sold"], "b": ["polite"], "c": ["polite"]},
            None,
            "sold",
            "reward is the score 'sold', which tasks 'b', 'c' has not, write one of polite",
        ),
        ({"a": ["sold"]}, None, "sald", "reward is the score 'sald', which task 'a' has not, did you mean 'sold'?"),
    ],
)
def test_an_unclear_reward_is_said_before_training(
    make_bundle: Callable[..., Bundle], steps: Any, said_by_bundle: Any, reward: str | None, said: str
) -> None:
    """The error names the tasks and the steps that there are."""
    bundle = make_bundle(steps, said_by_bundle)
    with pytest.raises(RewardError) as caught:
        resolve_reward(bundle, reward, bundle.tasks.values())
    assert str(caught.value) == said


def test_a_weight_that_is_not_finite_is_said_before_training(make_bundle: Callable[..., Bundle]) -> None:
    """No reward could come of it."""
    bundle = make_bundle({"a": ["sold"]})
    rule = RewardRule(weights={"sold": math.nan})
    with pytest.raises(RewardError, match="add up to nan"):
        rule.reward_of(result(sold=1.0))
    assert bundle.reward is None
