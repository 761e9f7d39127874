"""Rewards: the one number of an episode, or an error; and what is said before training."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
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
    Task,
    load_bundle,
    resolve_reward,
    reward_of,
)
from agent_env.bundle import JudgeVerifier, ModelSpec, RewardSpec, TextSource, Verify
from agent_env.outcome import Skipped

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


SOLD, POLITE = Score(step="sold", value=0.5, weight=2.0), Score(step="polite", value=1.0, weight=-0.5)
GATE = Score(step="paid", value=0.0, required=True)


def ended(*steps: Score | Skipped) -> EpisodeResult:
    """How an episode ended whose verify steps say what they count."""
    return EpisodeResult(
        outcome=Outcome.COMPLETED,
        run_id="r1",
        scores={step.step: step for step in steps if isinstance(step, Score)},
        skipped={step.step: step for step in steps if isinstance(step, Skipped)},
    )


@pytest.mark.parametrize(
    ("steps", "rule", "reward"),
    [
        ((SOLD, POLITE), None, 0.5),
        ((SOLD, Score(step="seen", value=9.0)), None, 1.0),
        ((SOLD,), None, 1.0),
        ((SOLD, POLITE), RewardRule(weights={"polite": 3.0}), 3.0),
        ((SOLD, replace(GATE, value=1.0)), None, 1.0),
        ((SOLD, GATE), None, 0.0),
        ((SOLD, replace(GATE, value=0.999)), None, 0.0),
        ((replace(SOLD, weight=-1.0), GATE), None, -0.5),
        ((replace(SOLD, required=True),), None, 0.0),
        ((Score(step="sold", value=0.9, required=True),), None, 0.0),
        ((SOLD, GATE), RewardRule(weights={"sold": 1.0}), 0.0),
        ((SOLD, GATE), "sold", 0.5),
        ((SOLD, Skipped(step="kind", reason="off")), None, 1.0),
        ((SOLD, Skipped(step="kind", reason="off", required=True)), "sold", 0.5),
    ],
)
def test_steps_say_what_they_count(steps: tuple[Score | Skipped, ...], rule: Any, reward: float) -> None:
    """Weights add up, a step without one only gates, and a gate that is not passed leaves at most 0; a step that the
    trainer names counts alone.
    """
    assert reward_of(ended(*steps), rule) == reward


@pytest.mark.parametrize(
    ("steps", "rule", "said"),
    [
        ((SOLD, Skipped(step="kind", reason="judges are off", weight=1.0)), None, "no score 'kind' (judges are off)"),
        (
            (SOLD, Skipped(step="kind", reason="judges are off", required=True)),
            None,
            "no score 'kind' (judges are off)",
        ),
        ((SOLD, Skipped(step="kind", reason="judges are off")), "kind", "no score 'kind' (judges are off)"),
        ((Skipped(step="kind", reason="judges are off"),), None, "no score 'kind' (judges are off)"),
        ((result(sold=1.0).scores["sold"], Skipped(step="kind", reason="off")), None, "2 verify steps score it"),
        ((SOLD, replace(GATE, value=math.nan)), None, "its score 'paid' is nan"),
        ((SOLD, replace(GATE, value=math.inf)), RewardRule(weights={"sold": 1.0}), "its score 'paid' is inf"),
    ],
)
def test_a_score_that_is_left_out_is_no_zero(steps: tuple[Score | Skipped, ...], rule: Any, said: str) -> None:
    """Where the reward takes a score that is missing, or a gate's, the error says how to have it."""
    with pytest.raises(RewardError) as caught:
        reward_of(ended(*steps), rule)
    assert str(caught.value).startswith(f"run r1 has no reward: {said}")


@given(
    values=st.lists(st.floats(allow_nan=False, width=16), min_size=1, max_size=4),
    gate=st.floats(max_value=0.9, allow_nan=False),
    weight=st.floats(-4, 4),
)
def test_no_reward_passes_a_closed_gate(values: list[float], gate: float, weight: float) -> None:
    """Whatever the other scores and their weights are, the reward is at most 0, or an error."""
    scores = [Score(step=f"s{at}", value=value, weight=weight) for at, value in enumerate(values)]
    try:
        assert reward_of(ended(*scores, Score(step="gate", value=gate, required=True))) <= 0
    except RewardError:
        assert any(map(math.isinf, (*values, gate)))


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
            "task 'a': 2 verify steps score it (sold, polite): name one of them with reward=, write reward: in "
            "bundle.yaml, or give those that count a weight:",
        ),
        (
            {"a": ["sold"], "b": ["polite"], "c": ["polite"]},
            None,
            "sold",
            "reward is the score 'sold', which tasks 'b', 'c' have not, write one of polite",
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


def with_steps(task: Task, **steps: Verify) -> Task:
    """The task with these verify steps."""
    others = tuple(step for step in task.steps if not isinstance(step, Verify))
    return replace(task, steps=(*others, *(replace(step, id=name) for name, step in steps.items())))


def judge(**said: Any) -> Verify:
    """A verify step whose verifier is a model."""
    model = ModelSpec(model="small", base_url="http://127.0.0.1:1/v1")
    return Verify(id="", verifier=JudgeVerifier(model=model, prompt=TextSource("How kind?", Path())), **said)


@pytest.fixture
def sold(make_bundle: Callable[..., Bundle]) -> Callable[..., tuple[Bundle, Verify]]:
    """A bundle with one task, and the verify step that it has."""

    def make(reward: Any = None) -> tuple[Bundle, Verify]:
        bundle = make_bundle({"a": ["sold"]}, reward)
        step = bundle.task("a").steps[-1]
        assert isinstance(step, Verify)
        return bundle, step

    return make


def test_weights_at_the_steps_are_clear_before_training(sold: Callable[..., tuple[Bundle, Verify]]) -> None:
    """Tasks may have different ones; each episode's scores carry what its own steps say."""
    bundle, step = sold()
    one = with_steps(bundle.task("a"), sold=replace(step, weight=0.5), polite=step)
    two = replace(with_steps(bundle.task("a"), other=step), id="b")
    assert resolve_reward(bundle, None, [one, two]) == RewardRule(weights=None)


def test_a_step_s_weight_that_is_not_finite_is_said(sold: Callable[..., tuple[Bundle, Verify]]) -> None:
    """With the task and the step."""
    bundle, step = sold()
    task = with_steps(bundle.task("a"), sold=replace(step, weight=math.inf))
    with pytest.raises(RewardError, match="task 'a': 'sold' has the weight inf: write a finite number"):
        resolve_reward(bundle, None, [task])


@pytest.mark.parametrize(
    ("said", "bundle_reward", "reward", "is_taken"),
    [
        ({"weight": 1.0}, None, None, True),
        ({"required": True}, None, None, True),
        ({}, None, None, False),
        ({}, None, "kind", True),
        ({}, {"kind": 1.0}, None, True),
        ({"required": True}, "sold", None, True),
        ({"required": True}, "sold", "sold", False),
    ],
)
def test_a_reward_that_takes_a_judge_is_said_before_training(
    sold: Callable[..., tuple[Bundle, Verify]],
    monkeypatch: pytest.MonkeyPatch,
    said: Mapping[str, Any],
    bundle_reward: Any,
    reward: str | None,
    *,
    is_taken: bool,
) -> None:
    """Where judges are off; with the variable, or where the trainer allows them, nothing is wrong."""
    monkeypatch.delenv("AGENT_ENV_JUDGES", raising=False)
    bundle, step = sold()
    if bundle_reward is not None:
        weights = {bundle_reward: 1.0} if isinstance(bundle_reward, str) else bundle_reward
        bundle = replace(bundle, reward=RewardSpec(weights=weights))
    task = with_steps(bundle.task("a"), sold=replace(step, weight=1.0), kind=judge(**said))
    if is_taken:
        with pytest.raises(RewardError) as caught:
            resolve_reward(bundle, reward, [task])
        assert str(caught.value) == (
            "task 'a': the reward takes the score 'kind' of a model judge, and model judges are off: set "
            "AGENT_ENV_JUDGES=1 to allow them"
        )
    else:
        resolve_reward(bundle, reward, [task])
    resolve_reward(bundle, reward, [task], judges=True)
    monkeypatch.setenv("AGENT_ENV_JUDGES", "1")
    resolve_reward(bundle, reward, [task])
