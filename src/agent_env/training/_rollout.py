"""One rollout of the cookbook over one episode: `EpisodeEnv` at the level of messages, `ScoredWhenCut` at that of tokens.

However the rollout ends, the episode is scored then or its failure is raised then:

- the agent's last turn ends: with a reply, or with a call whose answer ends the turn;
- the cookbook's adapter cuts it (length limit, context overflow, parse failure, first prompt over budget): scored at the
  cut, and the score is added to the `failed_reward` of that cut;
- `max_messages` is reached: likewise;
- the rollout's runner stops it (turns, tokens, tool calls, its timeout) without telling the env: noticed when the rollout's
  task ends, and the score comes as the group's reward;
- its task is cancelled or raises: the episode is abandoned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent_env.envs import ToolAnswer, parse_arguments
from agent_env.episode import Turn
from agent_env.errors import EpisodeFailedError, ToolError
from agent_env.outcome import CutReason
from agent_env.training._cookbook import (
    EnvFromMessageEnv,
    InitialObservationOverflow,
    Message,
    MessageEnv,
    MessageStepResult,
    ModelInput,
    StepResult,
    ToolCall,
)
from agent_env.training._episodes import Ending, Rollout, next_prompt
from agent_env.training._framing import Framing, extended
from agent_env.training._messages import answer_message, call_name, shown_tools, to_record

__all__ = ["EpisodeEnv", "RolloutSettings", "ScoredWhenCut"]

_CUTS = {
    "context_overflow": CutReason.CONTEXT_OVERFLOW,
    "parse_error": CutReason.PARSE_FAILURE,
    "max_tokens_reached": CutReason.TOKEN_LIMIT,
}
"""The metric with which the cookbook's adapter says why it ended a rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """What bounds one rollout."""

    max_messages: int | None = None
    """Messages that the agent may write."""
    max_trajectory_tokens: int | None = None
    """Tokens of the whole conversation."""
    max_generation_tokens: int | None = None
    """Tokens kept free for the next message."""
    failed_reward: float = 0.0
    """What a cut gives, in addition to the score at the cut."""


class EpisodeEnv(MessageEnv):
    """An episode as the cookbook plays it, message by message. Single use."""

    LOGGED_CHARS = 2_000
    """What a step's logs keep of a message, a call or an answer."""

    def __init__(self, rollout: Rollout, framing: Framing, settings: RolloutSettings) -> None:
        self.rollout = rollout
        self.example_id = rollout.task.id
        self.messages: list[Message] = []
        self._framing = framing
        self._settings = settings
        self._turn: Turn | None = None
        self._system_prompt = ""
        self._tools: list[str] = []
        self._written = 0
        self._ending: asyncio.Task[Ending] | None = None
        self._is_told = False

    @property
    def is_ending(self) -> bool:
        """Whether the episode was scored, or is being scored."""
        return self._ending is not None

    async def initial_observation(self) -> list[Message]:
        """Wait for a slot and start the episode.

        Raises:
            EpisodeFailedError: When the episode fails before the agent's first turn.
        """
        owner = asyncio.current_task()
        if owner is not None:
            owner.add_done_callback(self._on_owner_done)
        turn = self._turn = await self.rollout.start()
        try:
            self._system_prompt = turn.system_prompt
            self._tools = [tool.name for tool in turn.tools]
            prefix = self._framing.prefix(shown_tools(turn.tools), turn.system_prompt)
            self.messages = [*prefix, Message(role="user", content=turn.prompt)]
        except BaseException:
            await self.rollout.abandon()
            raise
        return self.messages

    async def step(self, message: Message) -> MessageStepResult:
        """Take the agent's message: run its calls, or end the turn with it.

        Raises:
            EpisodeFailedError: When the episode fails.
        """
        turn = self._open_turn()
        message = self._framing.cleaned(message)
        logs: dict[str, str | int | float] = {"assistant": self._clipped(message["content"])}
        self.messages.append(message)
        self._written += 1
        try:
            next_turn, stop = await self._play(turn, message, logs)
        except Exception as exc:  # noqa: BLE001 - whatever an episode raises is given on, once all was given back
            await self.rollout.fail(exc)
        if stop and next_turn is None:
            return self._done(await self.end(), stop, logs)
        if stop and next_turn is not None:
            await self._begin(next_turn)
        if self._settings.max_messages is not None and self._written >= self._settings.max_messages:
            ending = await self.end(CutReason.MESSAGE_LIMIT, penalty=self._settings.failed_reward)
            return self._done(ending, "max_turns", logs)
        return MessageStepResult(reward=0.0, episode_done=False, next_messages=self.messages, logs=logs)

    async def _play(self, turn: Turn, message: Message, logs: dict[str, Any]) -> tuple[Turn | None, str]:
        """Return the next turn, and the cookbook's word for why this one ended; an empty one while it goes on."""
        calls, unreadable = message.get("tool_calls") or [], message.get("unparsed_tool_calls") or []
        if not calls and not unreadable:
            return await turn.end(to_record(message)), "completed"
        turn.record(to_record(message))
        answers = [(call.function.name, call.id, await self._call(turn, call)) for call in calls]
        for call in unreadable:
            name = call_name(call)
            text = f"this tool call could not be read: {call.error}"
            answers.append((name, None, turn.refuse(name, text, raw=call.raw_text)))
        for at, (name, call_id, answer) in enumerate(answers):
            self.messages.append(answer_message(answer.text, name=name, call_id=call_id))
            logs[f"answer_{at} {name}"] = self._clipped(answer.text)
        if any(answer.ends_turn for _, _, answer in answers):
            return await turn.end(None), "tool_stopped"
        return None, ""

    async def _call(self, turn: Turn, call: ToolCall) -> ToolAnswer:
        name, raw = call.function.name, call.function.arguments
        try:
            arguments = parse_arguments(raw)
        except ToolError as exc:
            return turn.refuse(name, str(exc), raw=raw, call_id=call.id)
        return await turn.call(name, arguments, raw=raw, call_id=call.id)

    async def _begin(self, turn: Turn) -> None:
        tools = [tool.name for tool in turn.tools]
        if tools != self._tools:
            await self.rollout.fail(
                EpisodeFailedError(
                    f"task '{self.example_id}': turn {turn.index} offers other tools than the first ({tools} and not"
                    f" {self._tools}), and a conversation says its tools once"
                )
            )
        self._turn = turn
        prompt = next_prompt(turn.prompt, turn.system_prompt, first_system_prompt=self._system_prompt)
        self.messages.append(Message(role="user", content=prompt))

    async def end(self, cut: CutReason | None = None, *, penalty: float = 0.0) -> Ending:
        """Score the episode and give its slot back; its reward is then the caller's to report.

        The scoring goes on when the caller is cancelled: who asks with `settled` gets it.

        Raises:
            EpisodeFailedError: When the episode failed or makes no reward.
        """
        if self._ending is None:
            self._ending = asyncio.create_task(self.rollout.end(cut, penalty=penalty), name=f"score {self.example_id}")
        ending = await asyncio.shield(self._ending)
        self._is_told = True
        return ending

    async def settled(self, stop_reason: str | None) -> tuple[float, dict[str, float]]:
        """What the rollout earned that no step has told: nothing, or all of it where its runner stopped it.

        Raises:
            EpisodeFailedError: When the episode failed, or was given up before it could be scored.
        """
        if self._is_told:
            return 0.0, {}
        if self._ending is None and self.rollout.is_over:
            raise EpisodeFailedError(f"task '{self.example_id}': the rollout was stopped before it could be scored")
        ending = await self.end(_runner_cut(stop_reason))
        return ending.reward, ending.metrics()

    def _on_owner_done(self, owner: asyncio.Task[Any]) -> None:
        """The task that played the rollout has ended: the episode must not be under way any more."""
        was_stopped = owner.cancelled() or owner.exception() is not None
        if was_stopped and self._ending is not None:
            self._ending.cancel()
        if self.rollout.is_over or self._ending is not None:
            return
        if was_stopped or self._turn is None:
            self.rollout.abandon_soon()
        else:
            stop_reason = getattr(owner.result(), "stop_reason", None)
            self._ending = asyncio.create_task(self.rollout.end(_runner_cut(stop_reason)))

    def _open_turn(self) -> Turn:
        if self._turn is None:
            raise EpisodeFailedError(f"task '{self.example_id}': step() comes after initial_observation()")
        return self._turn

    def _done(self, ending: Ending, stop: str, logs: dict[str, Any]) -> MessageStepResult:
        metrics = {**ending.metrics(), f"stop/{stop}": 1.0}
        return MessageStepResult(
            reward=ending.reward, episode_done=True, next_messages=self.messages, metrics=metrics, logs=logs
        )

    def _clipped(self, content: object) -> str:
        text = content if isinstance(content, str) else str(content)
        return text if len(text) <= self.LOGGED_CHARS else text[: self.LOGGED_CHARS] + "…"


class ScoredWhenCut(EnvFromMessageEnv):
    """The cookbook's adapter from messages to tokens, whose cuts are scored and whose prompts extend one another."""

    def __init__(self, episode: EpisodeEnv, framing: Framing, settings: RolloutSettings) -> None:
        super().__init__(
            framing.renderer,
            episode,
            failed_parse_reward=settings.failed_reward,
            context_overflow_reward=settings.failed_reward,
            max_trajectory_tokens=settings.max_trajectory_tokens,
            max_generation_tokens=settings.max_generation_tokens,
        )
        self.episode = episode
        self._framing = framing
        self._prompt: ModelInput | None = None
        self._sampled: Sequence[int] | None = None
        self._rendered = 0
        """How many messages `_prompt` has."""

    async def initial_observation(self) -> tuple[ModelInput, Any] | InitialObservationOverflow:
        """The first prompt, or the score of an episode whose first prompt is over budget."""
        first = await super().initial_observation()
        if isinstance(first, InitialObservationOverflow):
            ending = await self.episode.end(CutReason.PROMPT_OVER_BUDGET, penalty=first.reward)
            return replace(first, reward=ending.reward, metrics={**first.metrics, **ending.metrics()})
        return first

    async def step(self, action: list[int], *, extra: Mapping[str, Any] | None = None) -> StepResult:
        """Take the sampled tokens; when the adapter ends the rollout there, score it."""
        self._sampled = action
        result = await super().step(action, extra=extra)
        if result.episode_done and not self.episode.is_ending:
            reason = next((cut for metric, cut in _CUTS.items() if metric in result.metrics), CutReason.RUNNER_LIMIT)
            ending = await self.episode.end(reason, penalty=result.reward)
            result.reward = ending.reward
            result.metrics.update(ending.metrics())
        return result

    async def _render_in_thread(self, messages: list[Message], **kwargs: Any) -> ModelInput:
        """Render on the event loop, and of a conversation that goes on only what is new.

        The adapter would render all of it in a thread: a tokenizer is not thread-safe, and the whole is quadratic.
        """
        prompt, sampled, self._sampled = self._prompt, self._sampled, None
        if prompt is None:
            rendered = self._framing.first(messages)
        elif sampled is not None and self.episode.is_ending:
            return extended(prompt, sampled)
        else:
            new = messages[self._rendered + 1 :]
            rendered = None if sampled is None else self._framing.continued(prompt, sampled, new)
            if rendered is None:
                rendered = self._framing.whole(messages)
        self._prompt, self._rendered = rendered, len(messages)
        return rendered


def _runner_cut(stop_reason: str | None) -> CutReason:
    return CutReason.TIMEOUT if stop_reason == "rollout_timeout" else CutReason.RUNNER_LIMIT
