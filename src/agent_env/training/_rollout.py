"""An episode at the level of messages, as the cookbook plays it: `EpisodeEnv`. `_adapter.py` plays it with tokens.

However the rollout ends, the episode is scored then or its failure is raised then:

- the agent's last turn ends: with a reply, or with a call whose answer ends the turn;
- the env ends it: `max_messages`, the limit of tool calls, a `ParseErrorPolicy` whose patience is over;
- the cookbook's adapter cuts it: scored at the cut, and the score is added to what the cookbook gives for that cut;
- the rollout's runner stops it (turns, tokens, its timeout) without telling the env: noticed when the rollout's task ends,
  and the score comes as the group's reward;
- its task is cancelled: the episode is abandoned; or it raises, as where sampling does: the episode has failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_env.envs import ToolAnswer, ToolSpec
from agent_env.episode import Turn
from agent_env.errors import EpisodeFailedError, EpisodeStateError, ModelServerError
from agent_env.outcome import CutReason, FailureKind
from agent_env.training._calls import WrittenCall
from agent_env.training._cookbook import (
    PARSE_ERROR_MASKED,
    Message,
    MessageEnv,
    MessageStepResult,
    ParseErrorPolicy,
    RolloutConfig,
    StopReason,
    TinkerError,
)
from agent_env.training._episodes import Ending, Rollout, next_prompt
from agent_env.training._framing import Framing
from agent_env.training._messages import answer_message, plain_text, shown_tools, to_record
from agent_env.verify import Message as RecordedMessage
from agent_env.verify.step_failed import exception_line

__all__ = ["EpisodeEnv", "RolloutSettings"]

_DETAIL_CHARS = 16_000
"""What a corrective message repeats of an error: as much as the cookbook's own."""


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
    config: RolloutConfig | None = None
    """The cookbook's own limits and policies."""

    @property
    def score_within_s(self) -> float | None:
        """Seconds that what comes after a turn may take: the config's `grader_timeout_seconds`."""
        termination = None if self.config is None else self.config.termination
        return None if termination is None else termination.grader_timeout_seconds


class EpisodeEnv(MessageEnv):
    """An episode as the cookbook plays it, message by message. Single use.

    What raises here is raised to the adapter, which gives everything back (`Rollout.fail`).
    """

    LOGGED_CHARS = 2_000
    """What a step's logs keep of a message, a call or an answer."""

    def __init__(self, rollout: Rollout, framing: Framing, settings: RolloutSettings) -> None:
        config = settings.config
        self.rollout = rollout
        self.example_id = rollout.task.id
        self.messages: list[Message] = []
        self._sampled: Sequence[int] = ()
        """What the next message is read from."""
        self._counts: dict[str, int | None] = {}
        """What it was sampled as, and from, in tokens."""
        self.is_recorded = False
        """Whether the run has the message that was sampled last."""
        self._framing = framing
        self._settings = settings
        self._turn: Turn | None = None
        self._system_prompt = ""
        self._tools: dict[str, ToolSpec] = {}
        self._written = 0
        self._max_tool_calls = None if config is None else config.limits.max_tool_calls
        self._tool_calls = 0
        self._parse_errors = None if config is None else config.parse_errors
        self._parse_failures = 0
        """In a row."""
        self._earned = 0.0
        """What the rollout's steps have given, before the one that ends it."""
        self._ending: asyncio.Task[Ending] | None = None
        self._is_told = False

    @property
    def has_ended(self) -> bool:
        """Whether the episode was scored, or is being scored."""
        return self._ending is not None

    @property
    def limit_reached(self) -> CutReason | None:
        """Why the agent may not write another message; None while it may.

        The turns of the config are bounded here and not only by the runner, as in the cookbook's own env: a failure is then
        the rollout's, which a strategy may retry, and not its group's.
        """
        settings, written = self._settings, self._written
        if settings.max_messages is not None and written >= settings.max_messages:
            return CutReason.MESSAGE_LIMIT
        turns = None if settings.config is None else settings.config.limits.max_turns
        return CutReason.RUNNER_LIMIT if turns is not None and written >= turns else None

    # What the adapter tells.

    def begin_message(self, sampled: Sequence[int], *, prompt_tokens: int | None) -> None:
        """Say what the next message was sampled as, and from how many tokens, for the run."""
        self._counts = {"prompt_tokens": prompt_tokens, "sampled_tokens": len(sampled)}
        self.is_recorded = False
        if self.rollout.sampled is not None:
            self.rollout.sampled.add(sampled)

    def read_from(self, sampled: Sequence[int]) -> None:
        """Say what the next message was sampled as: its arguments are what is written there, not what a parser made of it."""
        self._sampled = sampled

    def add_earned(self, reward: float) -> None:
        """Say what a step has given that did not end the rollout."""
        self._earned += reward

    # What the rollout's runner sets, and what its hooks add.

    def set_max_tool_calls(self, max_tool_calls: int) -> None:
        """Bound the tool calls of the rollout; the tighter bound wins."""
        known = self._max_tool_calls
        self._max_tool_calls = max_tool_calls if known is None else min(known, max_tool_calls)

    def set_parse_error_policy(self, policy: ParseErrorPolicy) -> None:
        """Say what follows on a message none of whose calls can be read; without one, each is answered as an error."""
        self._parse_errors = policy

    async def observe_truncated_response(self, message: Message) -> list[Message] | None:
        """Keep a message that sampling broke off, and go on: nothing of it is run.

        Returns:
            None when the agent may not write another one.
        """
        turn = self._open_turn()
        self._written += 1
        if self.limit_reached is not None:
            return None
        self._record(turn, to_record(message))
        self.messages.append(message)
        return self.messages

    def record_unfinished(self, text: str) -> None:
        """Keep in the run what was sampled of a message that has no end, before the rollout is cut for it."""
        turn = self._open_turn()
        if turn.is_open:
            self._record(turn, {"role": "assistant", "content": text})

    def _record(self, turn: Turn, message: RecordedMessage) -> None:
        """Take down what the agent said, with what it was sampled as."""
        index = turn.record(message, **self._counts)
        self._counts, self.is_recorded = {}, True
        if self.rollout.sampled is not None and index is not None:
            self.rollout.sampled.recorded(index)

    async def add_messages(self, messages: list[Message]) -> list[Message]:
        """Put messages of a hook into the conversation, before the agent's next one."""
        if self.has_ended:  # a hook has cleared the end: the next message ends the rollout again
            self.messages.extend(messages)
            return self.messages
        turn = self._open_turn()
        for message in messages:
            # Their text only: a hook's image may be an object that no run can keep.
            turn.record(to_record({**message, "content": plain_text(message["content"])}))
        self.messages.extend(messages)
        return self.messages

    # The conversation.

    async def initial_observation(self) -> list[Message]:
        """Wait for a slot and start the episode.

        Raises:
            EpisodeFailedError: When the episode fails before the agent's first turn.
        """
        owner = asyncio.current_task()
        if owner is not None:
            owner.add_done_callback(self._on_owner_done)
        turn = self._turn = await self.rollout.start()
        self._system_prompt = turn.system_prompt
        self._tools = {tool.name: tool for tool in turn.tools}
        prefix = self._framing.prefix(shown_tools(turn.tools), turn.system_prompt)
        self.messages = [*prefix, Message(role="user", content=turn.prompt)]
        return self.messages

    async def step(self, message: Message) -> MessageStepResult:
        """Take the agent's message: run its calls, or end the turn with it.

        Raises:
            EpisodeFailedError: When the episode fails.
        """
        turn = self._open_turn()
        sampled, self._sampled = self._sampled or self._framing.written(message), ()
        message, calls = self._framing.read(message, sampled, self._tools)
        self.messages.append(message)
        self._written += 1
        logs: dict[str, str | int | float] = {"assistant_content": self._clipped(plain_text(message["content"]))}
        unreadable = message.get("unparsed_tool_calls") or ()
        metrics = {"parse_error": 1.0} if unreadable else {}
        if unreadable:
            logs["parse_errors"] = self._clipped("\n".join(call.error for call in unreadable))
        if self._parse_errors is not None and unreadable and not message.get("tool_calls"):
            self._record(turn, to_record(message))
            return await self._after_parse_failure(calls, self._parse_errors, metrics, logs)
        self._parse_failures = 0
        next_turn, stop = await self._play(turn, message, calls, logs)
        if stop is StopReason.MAX_TOOL_CALLS:
            return self._done(await self.cut(CutReason.RUNNER_LIMIT), stop, metrics, logs)
        if stop is not None and next_turn is None:
            return self._done(await self.end(), stop, metrics, logs)
        if next_turn is not None:
            await self._begin(next_turn)
        if self.limit_reached is not None:
            return self._done(await self.cut(self.limit_reached), StopReason.MAX_TURNS, metrics, logs)
        return MessageStepResult(
            reward=0.0, episode_done=False, next_messages=self.messages, metrics=metrics, logs=logs
        )

    async def _play(
        self, turn: Turn, message: Message, calls: Sequence[WrittenCall], logs: dict[str, Any]
    ) -> tuple[Turn | None, StopReason | None]:
        """Return the next turn, and why this one ended; no reason while it goes on."""
        said = to_record(message)
        self._record(turn, said)
        if not calls:
            return await self.rollout.end_turn(turn, said), StopReason.COMPLETED
        answers = await self._run(turn, calls)
        for at, (call, answer) in enumerate(zip(calls, answers, strict=False)):
            self.messages.append(
                answer_message(
                    answer.text,
                    answer.content,
                    name=call.name,
                    call_id=call.call_id,
                    images=self._framing.shows_images,
                )
            )
            logs[f"tool_call_{at}"] = self._clipped(f"{call.name}({call.raw})")
            logs[f"tool_result_{at}"] = self._clipped(answer.text)
        if any(answer.ends_turn for answer in answers):
            return await self.rollout.end_turn(turn, None), StopReason.TOOL_STOPPED
        if left_undone := len(calls) - len(answers):
            logs["tool_calls_dropped"] = f"{left_undone}: at most {self._max_tool_calls} may be made"
            return None, StopReason.MAX_TOOL_CALLS
        return None, None

    async def _run(self, turn: Turn, calls: Sequence[WrittenCall]) -> list[ToolAnswer]:
        """Answer a message's calls, one after the other, up to the limit of tool calls."""
        answers: list[ToolAnswer] = []
        for call in calls:
            if call.is_made and self._max_tool_calls is not None and self._tool_calls >= self._max_tool_calls:
                break
            self._tool_calls += call.is_made
            if call.arguments is None:
                answers.append(turn.refuse(call.name, call.error, raw=call.raw, call_id=call.call_id))
            else:
                answers.append(await turn.call(call.name, call.arguments, raw=call.raw, call_id=call.call_id))
        return answers

    async def _after_parse_failure(
        self,
        unreadable: Sequence[WrittenCall],
        policy: ParseErrorPolicy,
        metrics: dict[str, float],
        logs: dict[str, Any],
    ) -> MessageStepResult:
        """Tell the model what could not be read and go on, or cut the rollout when that was said often enough."""
        self._parse_failures += 1
        logs["parse_failure_kind"] = "content"
        if policy.mask_error_turns:
            metrics[PARSE_ERROR_MASKED] = 1.0
        if self._parse_failures > policy.max_consecutive or self.limit_reached is not None:
            ending = await self.cut(CutReason.PARSE_FAILURE, penalty=policy.terminal_reward)
            return self._done(ending, StopReason.PARSE_ERROR, metrics, logs)
        details = "\n".join(call.error for call in unreadable)[:_DETAIL_CHARS]
        said = Message(role="user", content=policy.retry_message_template.format(details=details))
        await self.add_messages([said])
        logs["parse_error_retry"] = f"{self._parse_failures} of {policy.max_consecutive}"
        return MessageStepResult(
            reward=-policy.penalty_per_error,
            episode_done=False,
            next_messages=self.messages,
            metrics=metrics,
            logs=logs,
        )

    async def _begin(self, turn: Turn) -> None:
        await self.rollout.go_on(turn, list(self._tools))
        self._turn = turn
        prompt = next_prompt(turn.prompt, turn.system_prompt, first_system_prompt=self._system_prompt)
        self.messages.append(Message(role="user", content=prompt))

    # The end.

    async def end(self, cut: CutReason | None = None, *, penalty: float = 0.0) -> Ending:
        """Score the episode and give its slot back; its reward is then the caller's to report.

        The scoring goes on when the caller is cancelled: who asks with `settled` gets it.

        Args:
            cut: Why the episode ends before the agent is done.
            penalty: What the trainer gives for that cut, in addition to the score.

        Raises:
            EpisodeFailedError: When the episode failed or makes no reward.
        """
        ending = await asyncio.shield(self._score(cut, penalty))
        self._is_told = True
        return ending

    async def cut(self, reason: CutReason, *, penalty: float | None = None) -> Ending:
        """End the open turn without a reply, and score where it got to. Raises as `end` does.

        Args:
            reason: Why.
            penalty: What the trainer gives for it, in addition to the score; None is `failed_reward`.
        """
        return await self.end(reason, penalty=self._settings.failed_reward if penalty is None else penalty)

    def _score(self, cut: CutReason | None, penalty: float) -> asyncio.Task[Ending]:
        if self._ending is None:
            scoring = self.rollout.end(cut, penalty=penalty, earned=self._earned)
            self._ending = asyncio.create_task(scoring, name=f"score {self.example_id}")
            self.rollout.keep(self._ending)
        return self._ending

    async def settled(self, stop_reason: str | None) -> tuple[float, dict[str, float]]:
        """What the rollout earned that no step has told: nothing, or all of it where its runner stopped it.

        Raises:
            EpisodeFailedError: When the episode failed, or was given up before it could be scored.
        """
        if self._is_told:
            return 0.0, {}
        if self._turn is None:
            raise EpisodeFailedError(
                f"task '{self.example_id}': the rollout was stopped before its first turn ({stop_reason}): waiting for a"
                " slot counts as its time, so give it more time, or more max_concurrent_episodes"
            )
        if self._ending is None and self.rollout.is_over:
            raise EpisodeFailedError(f"task '{self.example_id}': the rollout was given up before it could be scored")
        ending = await self.cut(_runner_cut(stop_reason))
        return ending.reward, ending.metrics()

    def _on_owner_done(self, owner: asyncio.Task[Any]) -> None:
        """The task that played the rollout has ended: the episode must not be under way any more."""
        error = None if owner.cancelled() else owner.exception()
        was_stopped = owner.cancelled() or error is not None
        if was_stopped and self._ending is not None:
            self._ending.cancel()
        if self.rollout.is_over or self._ending is not None:
            return
        if isinstance(error, Exception):
            self.rollout.fail_soon(_kind_of(error), f"the trainer's rollout raised {exception_line(error)}", error)
        elif was_stopped or self._turn is None:
            self.rollout.abandon_soon()
        else:
            stop_reason = getattr(owner.result(), "stop_reason", None)
            self._score(_runner_cut(stop_reason), self._settings.failed_reward)

    def _open_turn(self) -> Turn:
        if self._turn is None:
            raise EpisodeStateError(f"task '{self.example_id}': step() comes after initial_observation()")
        return self._turn

    def _done(
        self, ending: Ending, stop: StopReason, metrics: Mapping[str, float], logs: dict[str, Any]
    ) -> MessageStepResult:
        return MessageStepResult(
            reward=ending.reward,
            episode_done=True,
            next_messages=self.messages,
            metrics={**metrics, **ending.metrics(), f"stop/{stop}": 1.0},
            logs=logs,
        )

    def _clipped(self, text: str) -> str:
        return text if len(text) <= self.LOGGED_CHARS else text[: self.LOGGED_CHARS] + "…"


def _kind_of(error: Exception) -> FailureKind:
    """What broke where a rollout raised outside of its env: what samples for it, or a hook."""
    is_server = isinstance(error, TinkerError | ModelServerError | ConnectionError | TimeoutError)
    return FailureKind.MODEL_SERVER if is_server else FailureKind.AGENT


def _runner_cut(stop_reason: str | None) -> CutReason:
    return CutReason.TIMEOUT if stop_reason == StopReason.ROLLOUT_TIMEOUT else CutReason.RUNNER_LIMIT
