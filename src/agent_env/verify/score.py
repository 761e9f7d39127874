"""Scoring an episode with one verify step, whatever kind its verifier is of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent_env.bundle import CheckVerifier, CommandVerifier, JudgeVerifier, PythonRef, StateVerifier, Verify
from agent_env.outcome import FailureKind, Score, Skipped
from agent_env.sandbox.contract import Sandbox
from agent_env.verify.checks import check_score
from agent_env.verify.command import command_score, sandbox_of
from agent_env.verify.function import call_function
from agent_env.verify.judge import Ask, judge_verdict
from agent_env.verify.permission import JUDGES_OFF
from agent_env.verify.returned import score_of
from agent_env.verify.state import LeftState, WantedState, state_score
from agent_env.verify.step_failed import StepFailedError
from agent_env.verify.verdict import Verdict
from agent_env.verify.view import EpisodeView

__all__ = ["VerifyMeans", "verify_step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyMeans:
    """What verifiers work with beside the episode so far; handed in by whoever plays it."""

    root: Path
    """The bundle's folder."""
    sandboxes: Mapping[str, Sandbox]
    """Those that are open in the episode, by their env's name."""
    ask: Ask | None
    """Asks a judge; None where judges are not allowed."""
    wanted: Callable[[StateVerifier], Awaitable[WantedState]] | None = None
    """Makes the state that a state verifier compares with."""
    lefts: Mapping[str, LeftState] = field(default_factory=dict[str, LeftState])
    """The states of the episode's envs, by the env's name."""


async def verify_step(step: Verify, view: EpisodeView, means: VerifyMeans, *, timeout_s: float | None) -> Verdict:
    """Score an episode with one verify step, or leave the step out where its judge is not allowed.

    Args:
        step: The step.
        view: The episode so far.
        means: What its verifier works with.
        timeout_s: Seconds that the verifier itself may take.

    Raises:
        StepFailedError: When the verifier breaks, takes too long, or comes to no finite number.
    """
    verdict = await _verdict(step, view, means, timeout_s)
    return replace(verdict, outcome=replace(verdict.outcome, weight=step.weight, required=step.required))


async def _verdict(step: Verify, view: EpisodeView, means: VerifyMeans, timeout_s: float | None) -> Verdict:
    match step.verifier:
        case PythonRef() as target:
            return Verdict(outcome=await _python_score(step, target, view, timeout_s))
        case CheckVerifier() as check:
            try:
                return Verdict(outcome=check_score(step.id, check, view))
            except ValueError as exc:
                raise StepFailedError(FailureKind.SCORE_INVALID, f"the check {exc}") from None
        case CommandVerifier() as command:
            sandbox = sandbox_of(command.command, means.sandboxes, FailureKind.VERIFIER_RAISED)
            score = await command_score(step.id, command, sandbox, root=means.root, timeout_s=timeout_s)
            return Verdict(outcome=score)
        case JudgeVerifier() as judge:
            if means.ask is None:
                return Verdict(outcome=Skipped(step=step.id, reason=JUDGES_OFF))
            return await judge_verdict(step.id, judge, view, ask=means.ask, timeout_s=timeout_s)
        case StateVerifier() as state:
            return Verdict(outcome=await _state_score(step, state, means, timeout_s))


async def _state_score(step: Verify, verifier: StateVerifier, means: VerifyMeans, timeout_s: float | None) -> Score:
    env = verifier.env
    if env not in means.lefts or means.wanted is None:
        message = f"env '{env}' was not deployed, so its state cannot be compared"
        raise StepFailedError(FailureKind.VERIFIER_RAISED, message)
    wanted = await means.wanted(verifier)
    return await state_score(step.id, verifier, wanted, means.lefts[env], timeout_s=timeout_s)


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
