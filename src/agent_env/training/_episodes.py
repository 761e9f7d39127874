"""Episodes as a trainer plays them: one per rollout, in a slot, filed in the run index, ended exactly once.

Covers what holds for every trainer: the next prompt's text, and `RunGroup`, which keeps hold of a group's episodes. Needs
no trainer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from agent_env.bundle import Task
from agent_env.bundle.raised import described
from agent_env.episode import Episode, Turn, open_episode
from agent_env.errors import AgentEnvError, EpisodeFailedError, EpisodeStateError, RewardError
from agent_env.outcome import CutReason, EpisodeResult, FailureKind, Outcome
from agent_env.runs import RunIndex, RunSink
from agent_env.training._pace import paced
from agent_env.training._pieces import TokenPieces
from agent_env.training._sampled import SampledMessages, file_sampled
from agent_env.training._slots import Slot, Slots
from agent_env.verify import Message
from agent_env.verify.reward import RewardRule
from agent_env.verify.step_failed import exception_line

__all__ = ["LARGEST_REWARD", "Ending", "Rollout", "RunGroup", "can_be_trained_on", "next_prompt"]

logger = logging.getLogger(__name__)

LARGEST_REWARD = 1e30
"""Sums and squares of deviations over a group are left room in 32 bits, which end at 3.4e38."""


def can_be_trained_on(reward: float) -> bool:
    """Whether a trainer can compute with a reward: NaN, infinity and what overflows 32 bits spoil a whole group."""
    return abs(reward) <= LARGEST_REWARD


def next_prompt(prompt: str, system_prompt: str, *, first_system_prompt: str) -> str:
    """The text of a turn's prompt, for a model that has read `first_system_prompt` at the start of the conversation.

    A conversation has its system prompt once. Where a later turn has another one, that is text before the prompt.
    """
    if system_prompt in ("", first_system_prompt):
        return prompt
    return f"{system_prompt}\n\n{prompt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a rollout ended, with the reward that it makes."""

    result: EpisodeResult
    reward: float

    def metrics(self) -> dict[str, float]:
        """What a trainer logs of it. The mean over rollouts of `cut/<reason>` is the share that was cut for it."""
        result = self.result
        counts = {name: result.metrics.get(name, 0.0) for name in ("messages", "tool_calls", "tool_errors")}
        cuts = {f"cut/{reason}": float(result.cut is reason) for reason in CutReason}
        scores = {f"score/{step}": score.value for step, score in result.scores.items()}
        return {**scores, **counts, "cut": float(result.cut is not None), **cuts}


class Rollout:
    """One episode of a group, from its slot to its reward. Made by `RunGroup.rollout`."""

    def __init__(self, group: RunGroup, *, attempt: int) -> None:
        self._group = group
        self._attempt = attempt
        self._slot: Slot | None = None
        self._stack = AsyncExitStack()
        self._episode: Episode | None = None
        self._sink: RunSink | None = None
        self.sampled: SampledMessages | None = None
        """What its messages are sampled as, once it has started; None where nobody keeps that."""
        self._is_over = False
        self._broken: tuple[FailureKind, str, BaseException] | None = None
        """What broke outside of the episode, while it is being closed for that."""
        self._closing: asyncio.Task[None] | None = None

    @property
    def task(self) -> Task:
        """The task that is played."""
        return self._group.task

    @property
    def is_over(self) -> bool:
        """Whether it was scored, failed or was abandoned."""
        return self._is_over

    @property
    def _run_id(self) -> str:
        return "" if self._episode is None else self._episode.run_id

    async def start(self) -> Turn:
        """Wait for a slot, open the episode, and return its first turn.

        Raises:
            EpisodeFailedError: When the episode fails before it, or has no turn for the played agent.
            EpisodeStateError: When it was started before, or the group is closed already.
        """
        group = self._group
        if self._is_over or self._slot is not None:
            raise EpisodeStateError(
                f"task '{self.task.id}': a rollout is started once, before its group is closed; ask make_envs() for another"
            )
        self._slot = await group.slots.take()
        try:
            await group.index.ready()
            await paced()
            self._check_wanted()
            self._sink = group.index.run(group.name, attempt=self._attempt, labels=group.labels)
            self.sampled = group.sampled_into(self._sink)
            self._episode = await self._stack.enter_async_context(open_episode(self.task, sink=self._sink))
            turn = await self._episode.start()
            if turn is None:
                result = await self._episode.result()
                raise self._failed(result, "it has no prompt for the played agent")
            await self._check_playable(turn)
        except BaseException:  # also a cancellation: no slot outlives its rollout
            await self.abandon()
            raise
        return turn

    async def go_on(self, turn: Turn, tools: Sequence[str]) -> None:
        """See that a later turn can be played in the same conversation as the first.

        Args:
            turn: The later one.
            tools: The names of the first one's tools, as they were shown.

        Raises:
            EpisodeFailedError: When it offers other tools, which a conversation says once, or gives the agent skills.
        """
        try:
            await self._check_playable(turn)
            offered = [tool.name for tool in turn.tools]
            if offered != list(tools):
                what = f"turn {turn.index} offers other tools than the first ({offered} and not {list(tools)})"
                raise await self._refused(turn, f"{what}, and a conversation says its tools once")
        except EpisodeFailedError:
            await self.abandon()
            raise

    async def _check_playable(self, turn: Turn) -> None:
        if turn.agent != self.task.bundle.played:
            raise await self._refused(turn, f"it prompts agent '{turn.agent}', which is not the played one")
        if turn.skills and not self.task.bundle.agents[turn.agent].skills:
            what = f"agent '{turn.agent}' has skills ({', '.join(turn.skills)}) that it is not shown: write skills: true in the agent"
            raise await self._refused(turn, what)

    async def _refused(self, turn: Turn, why: str, error: Exception | None = None) -> EpisodeFailedError:
        """Have the run say why the rollout cannot go on, and return the error that says it to the trainer."""
        await self._fail_episode(FailureKind.AGENT, why, error)
        return EpisodeFailedError(f"task '{self.task.id}' at step '{turn.step}': {why}; run {self._run_id}")

    async def end_turn(self, turn: Turn, reply: Message | None) -> Turn | None:
        """End a turn with the agent's reply, if it said one more, and return the next turn; after the last, all is scored.

        Raises:
            EpisodeFailedError: When that took longer than `score_within_s`.
        """
        async with self._bounded():
            return await turn.end(reply)

    async def end(self, cut: CutReason | None = None, *, penalty: float = 0.0, earned: float = 0.0) -> Ending:
        """Let the episode be scored and give its slot back.

        Args:
            cut: Why the episode ends before the agent is done; None when its last turn has ended.
            penalty: What the trainer gives for that cut, in addition to the score; not where the last turn had ended already.
            earned: What the trainer has been given for the rollout before: the run's reward has it too.

        Raises:
            EpisodeFailedError: When the episode failed, makes no reward, or was not scored in that time.
        """
        episode, sink = self._episode, self._sink
        if episode is None or sink is None or self._is_over:
            raise EpisodeStateError(f"task '{self.task.id}': the rollout is not under way")
        try:
            async with self._bounded():
                if cut is not None:
                    await episode.cut(cut)
                result = await episode.result()
            if result.outcome is not Outcome.COMPLETED:
                raise self._failed(result, "")
            try:
                # An agent that was done before it could be cut pays for no cut.
                reward = self._group.reward.reward_of(result) + (0.0 if result.cut is None else penalty)
            except RewardError as exc:
                raise EpisodeFailedError(f"task '{self.task.id}': {exc}") from exc
            if not can_be_trained_on(reward + earned):
                raise EpisodeFailedError(
                    f"task '{self.task.id}': run {result.run_id} has the reward {reward + earned:g}, and trainers compute in"
                    f" 32 bits: beyond {LARGEST_REWARD:g} it spoils its whole group"
                )
            sink.set_reward(reward + earned)
        finally:
            await self.abandon()
        return Ending(result=result, reward=reward)

    @asynccontextmanager
    async def _bounded(self) -> AsyncGenerator[None]:
        within_s = self._group.score_within_s
        clock = asyncio.timeout(within_s)
        try:
            async with clock:
                yield
        except TimeoutError as exc:
            if not clock.expired():
                raise
            what = f"what comes after the agent's turn took longer than score_within_s={within_s:g} s"
            try:
                await self._fail_episode(FailureKind.STEP_TIMEOUT, what)
            finally:
                await self.abandon()
            raise EpisodeFailedError(f"task '{self.task.id}': {what}; run {self._run_id}") from exc

    async def fail(self, error: Exception) -> NoReturn:
        """Give everything back after something raised, and raise what a trainer is to know of it.

        Raises:
            EpisodeFailedError: With the task, the step and the run, when the episode failed or `error` is not one of ours;
                else `error`.
        """
        episode, is_over = self._episode, self._is_over
        try:
            if episode is None or is_over:
                raise error
            if isinstance(error, EpisodeFailedError) and episode.turn is None:
                raise self._failed(await episode.result(), str(error)) from error
            if isinstance(error, AgentEnvError) or episode.turn is None:
                await self._fail_episode(FailureKind.AGENT, exception_line(error), error)
                raise error
            raise await self._refused(episode.turn, described(error), error) from error
        finally:
            await self.abandon()

    async def _fail_episode(self, kind: FailureKind, message: str, error: BaseException | None = None) -> None:
        """Have the run say what keeps the rollout from going on; not where the episode is over."""
        if self._episode is not None and not self._is_over:
            await self._episode.fail(kind, " ".join(message.split()), error=error)

    def fail_soon(self, kind: FailureKind, message: str, error: BaseException) -> None:
        """Give everything back as `abandon_soon` does, and have the run say that the episode has failed of `error`."""
        if not self._is_over:
            self._broken = (kind, message, error)
            self.abandon_soon()

    async def abandon(self) -> None:
        """Give the slot and all that the episode holds back, at any moment and any number of times.

        Being cancelled stops the waiting, not the closing. What the closing raises is logged.
        """
        self.abandon_soon()
        if self._closing is not None:
            await asyncio.shield(self._closing)

    def abandon_soon(self) -> None:
        """The same without waiting for it; `RunGroup.close` does."""
        if not self._is_over:
            self._is_over = True
            self._group.forget(self)
            if self._episode is not None:
                self._closing = asyncio.create_task(self._close(), name=f"close {self.task.id}")
                self.keep(self._closing)
        if self._closing is None:
            self._give_slot_back()

    async def _close(self) -> None:
        try:
            try:
                if self._broken is not None and self._episode is not None:
                    kind, message, error = self._broken
                    await self._episode.fail(kind, message, error=error)
            finally:
                await self._stack.aclose()
        except Exception:  # raised here it would mask why the rollout is over
            logger.exception("task '%s': closing its episode raised", self.task.id)
        finally:
            self._give_slot_back()

    def _give_slot_back(self) -> None:
        if self._slot is not None:
            self._slot.give_back()

    def _check_wanted(self) -> None:
        if self._is_over:  # given up while it waited
            raise EpisodeStateError(f"task '{self.task.id}': the rollout's group is closed")

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Have the group's `close` wait for a task."""
        self._group.keep(task)

    def _failed(self, result: EpisodeResult, why: str) -> EpisodeFailedError:
        failure = result.failure
        if failure is not None:
            why = f"at step '{failure.step}' ({failure.kind}): {failure.message}"
        said = f"{result.outcome}: {why}" if why else str(result.outcome)
        return EpisodeFailedError(f"task '{self.task.id}' {said}; run {result.run_id}")


@dataclass(kw_only=True)
class RunGroup:
    """The rollouts of one task that a trainer plays together, filed under one name."""

    task: Task
    name: str
    """The group in the run index."""
    index: RunIndex
    slots: Slots
    reward: RewardRule
    score_within_s: float | None = None
    """Seconds that what comes after a turn may take: `run` steps, the next prompt, or the scoring."""
    labels: Mapping[str, Any] = field(default_factory=dict[str, Any])
    attempts: int = 0
    """How many times the trainer has asked for the group's rollouts."""
    pieces: TokenPieces | None = None
    """The texts of the tokens that messages are sampled in; None keeps no tokens."""
    _sampled: list[SampledMessages] = field(default_factory=list[SampledMessages])
    _open: set[Rollout] = field(default_factory=set[Rollout])
    _tasks: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])
    _is_closed: bool = False

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    def rollouts(self, size: int) -> list[Rollout]:
        """`size` more rollouts; nothing is opened before they start."""
        attempt, self.attempts = self.attempts, self.attempts + 1
        made = [Rollout(self, attempt=attempt) for _ in range(size)]
        self._open.update(made)
        return made

    def sampled_into(self, sink: RunSink) -> SampledMessages | None:
        """Keep what a rollout is sampled as; `close` files it."""
        if self.pieces is None:
            return None
        sampled = SampledMessages(sink, self.pieces)
        self._sampled.append(sampled)
        return sampled

    def forget(self, rollout: Rollout) -> None:
        """A rollout is over."""
        self._open.discard(rollout)

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Have `close` wait for a task. What it raises is for whoever awaits it, and lost where nobody does."""
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    async def close(self) -> None:
        """Abandon what is not over, and file what was sampled.

        Cancelled meanwhile, it is abandoned all the same; nothing else is raised.
        """
        self._is_closed = True
        for rollout in list(self._open):
            rollout.abandon_soon()
        sampled, self._sampled = self._sampled, []
        await file_sampled(sampled)
        while self._tasks:
            await asyncio.wait(self._tasks)
