"""The cookbook's adapter from messages to tokens, whose cuts are scored and whose prompts extend one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from agent_env.errors import EpisodeStateError
from agent_env.outcome import CutReason
from agent_env.training._cookbook import (
    PARSE_ERROR_MASKED,
    EnvFromMessageEnv,
    InitialObservationOverflow,
    Message,
    ModelInput,
    StepResult,
    StopReason,
    Trajectory,
)
from agent_env.training._framing import Framing, extended
from agent_env.training._pace import paced
from agent_env.training._rollout import EpisodeEnv, RolloutSettings

__all__ = ["ScoredWhenCut"]

_CUTS = {
    StopReason.CONTEXT_OVERFLOW: CutReason.CONTEXT_OVERFLOW,
    StopReason.PARSE_ERROR: CutReason.PARSE_FAILURE,
    StopReason.MAX_TOKENS: CutReason.TOKEN_LIMIT,
}
"""Why the cookbook's adapter ends a rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sampling:
    """What was sampled last, and from what."""

    prompt: ModelInput
    tokens: Sequence[int]
    messages: int
    """How many messages the prompt and the sampled one are together."""
    is_truncated: bool
    """Whether sampling broke off."""

    def all_tokens(self) -> ModelInput:
        return extended(self.prompt, self.tokens)


class ScoredWhenCut(EnvFromMessageEnv):
    """An `EpisodeEnv` as the cookbook's rollouts play it. Single use."""

    def __init__(self, episode: EpisodeEnv, framing: Framing, settings: RolloutSettings) -> None:
        config = settings.config
        super().__init__(
            framing.parser,
            episode,
            failed_parse_reward=settings.failed_reward,
            context_overflow_reward=settings.failed_reward,
            max_trajectory_tokens=settings.max_trajectory_tokens,
            max_generation_tokens=settings.max_generation_tokens,
            terminate_on_length=not _goes_on_after_length(settings),
            parse_error_policy=None if config is None else config.parse_errors,
            rollout_limits=None if config is None else config.limits,
        )
        self.episode = episode
        self._framing = framing
        self._prompt: ModelInput | None = None
        """The last one that was rendered."""
        self._sampling: _Sampling | None = None
        self._stop: dict[str, float] | None = None
        """How the rollout ended; the runner's hooks may clear that."""
        self._was_cleared = False

    async def initial_observation(self) -> tuple[ModelInput, Any] | InitialObservationOverflow:
        """The first prompt, or the score of an episode whose first prompt is over budget.

        Raises:
            EpisodeFailedError: When the episode fails before it, or the renderer cannot write it.
        """
        try:
            first = await super().initial_observation()
        except Exception as exc:  # noqa: BLE001 - a renderer of anyone's; the slot is given back, the error goes on
            await self.episode.rollout.fail(exc)
        if isinstance(first, InitialObservationOverflow):
            ending = await self.episode.cut(CutReason.PROMPT_OVER_BUDGET)
            return replace(first, reward=ending.reward, metrics={**first.metrics, **ending.metrics()})
        return first

    async def step(self, action: list[int], *, extra: Mapping[str, Any] | None = None) -> StepResult:
        """Take the sampled tokens; when the adapter ends the rollout there, score it.

        Raises:
            EpisodeFailedError: When the episode fails, or the renderer cannot read or write a message.
            EpisodeStateError: When a hook has cleared the end of the episode a second time.
        """
        await paced()
        if self._stop is not None:
            return self._ended_before(self._stop)
        sampling = self._sampling = _Sampling(
            prompt=self._prompt or ModelInput.empty(),
            tokens=action,
            messages=len(self.episode.messages) + 1,
            is_truncated=(extra or {}).get("stop_reason") == "length",
        )
        self.episode.begin_message(action, prompt_tokens=_length(sampling.prompt))
        try:
            ended = self._framing.ended(action)
            self.episode.read_from(ended)
            result = await super().step(ended, extra=extra)
            if result.episode_done and not self.episode.has_ended and len(self.episode.messages) < sampling.messages:
                self.episode.record_unfinished(str(self._framing.renderer.tokenizer.decode(action)))
        except Exception as exc:  # noqa: BLE001 - a renderer of anyone's; the slot is given back, the error goes on
            self._keep_unread(action)
            await self.episode.rollout.fail(exc)
        if result.episode_done and not self.episode.has_ended:
            ending = await self.episode.cut(self._reason(result, sampling), penalty=result.reward)
            result.reward = ending.reward
            result.metrics.update(ending.metrics())
        if result.episode_done:
            self._stop = {key: 1.0 for key in result.metrics if key.startswith("stop/")}
            # The cookbook gives none where it cuts, and a hook may clear the stop: then the policy is asked once more.
            result.next_observation = sampling.all_tokens()
        else:
            self.episode.add_earned(result.reward)
        return result

    def _keep_unread(self, action: list[int]) -> None:
        """Have the run show what was sampled, where it is what could not be read."""
        if not self.episode.is_recorded:
            with suppress(Exception):  # what is raised already says more
                self.episode.record_unfinished(str(self._framing.renderer.tokenizer.decode(action)))

    def learn(self, trajectory: Trajectory) -> None:
        """Take the log-probabilities of what was sampled, for the run."""
        sampled = self.episode.rollout.sampled
        if sampled is not None:
            sampled.learn((done.ac.tokens, done.ac.maybe_logprobs) for done in trajectory.transitions)

    def _reason(self, result: StepResult, sampling: _Sampling) -> CutReason:
        if sampling.is_truncated and self.episode.limit_reached is not None:
            return self.episode.limit_reached
        return next((cut for stop, cut in _CUTS.items() if f"stop/{stop}" in result.metrics), CutReason.RUNNER_LIMIT)

    def _ended_before(self, stop: Mapping[str, float]) -> StepResult:
        """End the rollout once more, without a second score: a hook has cleared the stop, and the episode is over.

        What was sampled after the end is not trained on: nobody has answered or scored it.
        """
        if self._was_cleared:
            raise EpisodeStateError(
                f"task '{self.episode.example_id}': the episode has ended ({', '.join(stop)}) and was scored; a hook can"
                " clear what the rollout's limits stop, not this"
            )
        self._was_cleared = True
        return StepResult(
            reward=0.0,
            episode_done=True,
            next_observation=ModelInput.empty() if self._sampling is None else self._sampling.all_tokens(),
            next_stop_condition=self._framing.renderer.get_stop_sequences(),
            metrics={**stop, PARSE_ERROR_MASKED: 1.0},
        )

    async def _render_in_thread(self, messages: list[Message], **kwargs: Any) -> ModelInput:
        """Render on the event loop, and of a conversation that goes on only what is new.

        The host's own method, under its private name, which `test_cookbook_shapes` sees to be there. The adapter would render all of it each time, which is quadratic, and in a thread: `_framing.py` says why not here.
        """
        sampling, rendered = self._sampling, None
        if sampling is None:
            rendered = self._framing.first(messages) if self._prompt is None else None
        elif self.episode.has_ended:
            return sampling.all_tokens()
        else:
            new = messages[sampling.messages :]
            rendered = self._framing.continued(sampling.prompt, sampling.tokens, new, truncated=sampling.is_truncated)
        self._prompt = self._framing.whole(messages) if rendered is None else rendered
        return self._prompt


def _length(prompt: ModelInput) -> int | None:
    try:
        return prompt.length
    except ValueError:  # it has an image whose tokens nobody has counted
        return None


def _goes_on_after_length(settings: RolloutSettings) -> bool:
    """Whether a message that sampling broke off is kept and the agent goes on: as the cookbook does under token budgets.

    Source: `build_agent_tool_env` of the cookbook.
    """
    limits = None if settings.config is None else settings.config.limits
    budgets = (
        () if limits is None else (limits.max_trajectory_tokens, limits.max_sampled_tokens, limits.max_turn_tokens)
    )
    return any(budget is not None for budget in budgets)
