"""Scoring an episode with one verify step, whatever kind its verifier is of."""

from __future__ import annotations

from dataclasses import replace

from agent_env.bundle import CheckVerifier, CommandVerifier, JudgeVerifier, PythonRef, StateVerifier, Verify
from agent_env.outcome import FailureKind, Score, Skipped
from agent_env.verify.checks import check_score
from agent_env.verify.function import StepFailedError, call_function
from agent_env.verify.returned import score_of
from agent_env.verify.view import EpisodeView

__all__ = ["run_verifier", "score_of"]


async def run_verifier(step: Verify, view: EpisodeView, *, timeout_s: float | None) -> Score:
    """Score an episode with one verify step.

    Args:
        step: The step.
        view: The episode so far.
        timeout_s: Seconds that the verifier itself may take.

    Raises:
        StepFailedError: When the verifier raises, takes too long, or returns no finite number.
    """
    match step.verifier:
        case PythonRef() as target:
            score = await _python_score(step, target, view, timeout_s)
        case CheckVerifier() as check:
            try:
                score = check_score(step.id, check, view)
            except ValueError as exc:
                raise StepFailedError(FailureKind.SCORE_INVALID, f"the check {exc}") from None
        case _:
            raise StepFailedError(FailureKind.VERIFIER_RAISED, "this kind of verifier cannot be run yet")
    return replace(score, weight=step.weight, required=step.required)


async def _python_score(step: Verify, target: PythonRef, view: EpisodeView, timeout_s: float | None) -> Score:
    returned = await call_function(
        target,
        view,
        timeout_s=timeout_s,
        raised=FailureKind.VERIFIER_RAISED,
        timed_out=FailureKind.VERIFIER_TIMEOUT,
    )
    try:
        return score_of(step.id, returned)
    except ValueError as exc:
        raise StepFailedError(FailureKind.SCORE_INVALID, f"{target} {exc}") from None
