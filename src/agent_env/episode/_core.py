"""One episode's state, between the tasks that drive it and the task that owns its envs.

The driving tasks put requests in, the owner takes them out one by one; nothing here waits for anything but the other
side. `_episode.py` is what callers see, `_owner.py` is the owner.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from agent_env.bundle import AgentSpec, Prompt, Skill, Step, Task
from agent_env.bundle.raised import raised_at, trace_of
from agent_env.envs import EnvSession, Refusal, ToolAnswer, ToolSpec
from agent_env.envs.skills import skills_text
from agent_env.episode._log import EpisodeLog
from agent_env.episode.limits import Limits
from agent_env.episode.sink import EpisodeSink
from agent_env.errors import EpisodeError, EpisodeFailedError, EpisodeStateError, RunIndexError
from agent_env.outcome import CutReason, EpisodeResult, Failure, FailureKind, Outcome
from agent_env.verify import EpisodeView, Message
from agent_env.verify.step_failed import StepFailedError

if TYPE_CHECKING:
    from agent_env.episode._episode import Turn

__all__ = ["Agent", "CallRequest", "Core", "EndRequest", "EpisodeState", "TurnState"]

logger = logging.getLogger(__name__)


class EpisodeState(StrEnum):
    """Where an episode stands."""

    READY = "ready"
    """Open, not started."""
    RUNNING = "running"
    """Steps are under way, and no turn is open."""
    TURN = "turn"
    """A turn is open: it is the caller's move."""
    ENDED = "ended"
    """Every step that was to run has run, and everything was given back."""
    ABANDONED = "abandoned"
    """Given up before its end."""


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent as it is deployed in this episode."""

    spec: AgentSpec
    system_prompt: str
    """Its own; what it is shown names its skills too."""
    tools: tuple[ToolSpec, ...]
    routes: Mapping[str, EnvSession]
    """Which env has which tool."""
    skills: tuple[Skill, ...] = ()
    """What it was given so far."""

    @property
    def name(self) -> str:
        """Its name in the bundle."""
        return self.spec.name

    @property
    def shown_system_prompt(self) -> str:
        """What it is told before everything else: its system prompt, and the skills that it can read."""
        if not self.skills or not self.spec.skills:
            return self.system_prompt
        return "\n\n".join(filter(None, (self.system_prompt, skills_text(self.skills))))


class TurnState:
    """A turn's state. `closed` makes the error for whoever uses it after its end; it gets what they did."""

    __slots__ = ("agent", "closed", "index", "over", "prompt", "said", "shown", "step")

    def __init__(self, index: int, agent: Agent, prompt: str, step: str) -> None:
        self.index = index
        self.step = step
        self.agent = agent
        self.prompt = prompt
        self.closed: Callable[[str], EpisodeError] | None = None
        self.over: str | None = None
        """What a call is answered once a tool or a failure has ended the turn, and `end` was not called yet."""
        self.said: Message | None = None
        """What the agent said last."""
        self.shown: Turn | None = None
        """What callers have of it while it is open: asked for twice, it is the same one."""


class CallRequest:
    """A tool call that waits for its answer."""

    __slots__ = ("arguments", "call_id", "future", "name", "raw")

    def __init__(self, name: str, arguments: Mapping[str, Any], call_id: str, raw: str | None) -> None:
        self.name = name
        self.arguments = arguments
        self.call_id = call_id
        self.raw = raw
        self.future: asyncio.Future[ToolAnswer] = asyncio.get_running_loop().create_future()


class EndRequest:
    """The end of the turn, after the calls before it."""

    __slots__ = ("is_cut", "reply")

    def __init__(self, reply: Message | None, *, is_cut: bool) -> None:
        self.reply = reply
        self.is_cut = is_cut


class Core:
    """The state, and the changes of it. Every change is made at once, without waiting."""

    __slots__ = (
        "_arrival",
        "_gives_up_as",
        "_requests",
        "_waiters",
        "broken",
        "calls_made",
        "cut",
        "envs",
        "failure",
        "has_raised_broken",
        "in_flight",
        "is_closing",
        "limits",
        "log",
        "owner",
        "prompts_left",
        "result",
        "run_id",
        "sink",
        "state",
        "stop_leading",
        "task",
        "turn",
    )

    def __init__(self, task: Task, sink: EpisodeSink, limits: Limits) -> None:
        self.task = task
        self.sink = sink
        self.limits = limits
        self.run_id = sink.run_id
        self.log = EpisodeLog(task, sink)
        self.state = EpisodeState.READY
        self.owner: asyncio.Task[None] | None = None
        self.envs: dict[str, EnvSession] = {}
        self.turn: TurnState | None = None
        """The open turn."""
        self.in_flight: CallRequest | None = None
        self.calls_made = 0
        self.prompts_left = sum(isinstance(step, Prompt) for step in task.steps)
        self.cut: CutReason | None = None
        self.stop_leading: Callable[[], None] | None = None
        """Ends what another agent, which leads a conversation, is about to say."""
        self.failure: Failure | None = None
        """The first one."""
        self.is_closing = False
        """The steps are done and the envs are being closed: the outcome stands."""
        self.broken: BaseException | None = None
        """What the sink raised, or a mistake of ours: the episode is given up and nobody must miss it."""
        self.has_raised_broken = False
        self.result: EpisodeResult | None = None
        self._gives_up_as = Outcome.ABANDONED
        """What it is when it is given up: `failed` where whoever drives it has said what broke."""
        self._requests: deque[CallRequest | EndRequest] | None = None
        self._arrival: asyncio.Future[None] | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def view(self) -> EpisodeView:
        """Show the episode so far."""
        states = {name: session.state for name, session in self.envs.items()}
        return self.log.heard.view(scores=self.log.scores, cut=self.cut, states=states)

    # What waits: callers for a change, the owner for a request.

    async def changed(self) -> None:
        """Wait until the state has changed."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _notify(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def put(self, request: CallRequest | EndRequest) -> None:
        """Hand a request to the owner."""
        if self._requests is None:
            self._requests = deque()
        self._requests.append(request)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def next_request(self) -> CallRequest | EndRequest:
        """Wait for a request. For the owner."""
        while not self._requests:
            self.stop_if_abandoned()
            self._arrival = asyncio.get_running_loop().create_future()
            await self._arrival
        self.stop_if_abandoned()
        return self._requests.popleft()

    def stop_if_abandoned(self) -> None:
        """Stop the owner where a bundle's code has swallowed its cancellation."""
        if self.state is EpisodeState.ABANDONED or self.result is not None:
            raise asyncio.CancelledError

    # Changes.

    def open_turn(self, turn: TurnState) -> None:
        """Give the move to the caller."""
        self.turn = turn
        self.state = EpisodeState.TURN
        self._requests = None
        self._notify()

    def call_done(self) -> None:
        """The call under way is over."""
        self.in_flight = None
        if self._waiters:
            self._notify()

    def call_answered(self, request: CallRequest, answer: ToolAnswer) -> None:
        """Give a call's answer to whoever waits for it."""
        self.call_done()
        if not request.future.done():
            request.future.set_result(answer)

    def step_failed(self, step: Step, exc: StepFailedError) -> Failure:
        """Record a failure, and before it the answer of the call that it came in."""
        request = self.in_flight
        answer = ToolAnswer(exc.message, is_error=True, ends_turn=True, refusal=Refusal.BROKEN)
        if request is not None:
            self.log.answer(request.call_id, request.name, answer, 0.0)
        place = raised_at(exc, self.task.bundle.root)
        failure = Failure(kind=exc.kind, step=step.id, message=exc.message, traceback=exc.trace, place=place)
        if self.failure is None:
            self.failure = failure
        self.log.failure(failure)
        if request is not None and not step.fail_task_on_error:
            self.call_answered(request, answer)
        return failure

    def close_turn(self, closed: Callable[[str], EpisodeError]) -> None:
        """Take the move back from the caller."""
        if self.turn is not None:
            self.turn.closed = closed
            self.turn.shown = None  # else the episode, and the states of its envs, wait for the garbage collector
            self.turn = None
        if self.state is EpisodeState.TURN:
            self.state = EpisodeState.RUNNING

    def refuse_pending(self, error: Callable[[str], BaseException]) -> None:
        """Answer the calls that wait with an exception, and forget the requests."""
        pending = [self.in_flight, *(self._requests or ())]
        self._requests = None
        for request in pending:
            if isinstance(request, CallRequest) and not request.future.done():
                request.future.set_exception(error("call()"))
                self.has_raised_broken = self.broken is not None

    def fail_turn(self, failure: Failure) -> None:
        """Close the turn, because of a failure that ends the episode."""
        index = self.log.turns - 1

        def error(doing: str) -> EpisodeFailedError:
            return EpisodeFailedError(
                f"{doing}: turn {index} is over, the episode failed ({failure.kind}): {failure.message}"
            )

        self.close_turn(error)
        self.refuse_pending(error)

    def give_up(self) -> None:
        """Abandon the episode, from any state; the owner closes everything."""
        if not self._may_be_given_up():
            return
        self.close_turn(self.abandoned)
        self.state = EpisodeState.ABANDONED
        self.refuse_pending(self._interrupted)
        self._notify()
        if self.owner is None:
            self._give_up_finally()
        else:
            self.owner.cancel()

    def fail(self, kind: FailureKind, message: str, error: BaseException | None) -> None:
        """Give the episode up as failed, because of what broke outside of it; not where it is over, or as good as that."""
        if not self._may_be_given_up():
            return
        failure = Failure(
            kind=kind,
            step=self.log.step,
            message=message,
            traceback="" if error is None else trace_of(error),
            place=None if error is None else raised_at(error, self.task.bundle.root),
        )
        self.log.failure(failure)
        if self.log.turn is not None and self.in_flight is None:
            self.log.turn_ended(None)
        self.failure = self.failure or failure
        self._gives_up_as = Outcome.FAILED
        self.give_up()

    def _may_be_given_up(self) -> bool:
        return not self.is_closing and self.state not in (EpisodeState.ENDED, EpisodeState.ABANDONED)

    def _give_up_finally(self) -> None:
        has_failed = self._gives_up_as is Outcome.FAILED
        self.state = EpisodeState.ENDED if has_failed else EpisodeState.ABANDONED
        self._finish(self._gives_up_as)

    def break_off(self, exc: BaseException) -> None:
        """Abandon the episode because it cannot be recorded, or because of a mistake of ours."""
        if self.broken is None:
            self.broken = exc
        self._gives_up_as = Outcome.ABANDONED
        self.give_up()

    def fail_and_leave(self, failure: Failure) -> None:
        """End the episode as failed, though its owner is still inside a bundle's code that will not stop."""
        self.failure = self.failure or failure
        self.log.failure(failure)
        self._leave(EpisodeState.ENDED, Outcome.FAILED)

    def abandon_and_leave(self) -> None:
        """Say that the episode was given up, where its owner is still inside a bundle's code that will not stop."""
        if self.result is None and self.owner is not None and not self.owner.done():
            has_failed = self._gives_up_as is Outcome.FAILED
            self._leave(EpisodeState.ENDED if has_failed else EpisodeState.ABANDONED, self._gives_up_as)

    def _leave(self, state: EpisodeState, outcome: Outcome) -> None:
        assert self.owner is not None
        self.close_turn(self.abandoned)
        self.state = state
        self.owner.cancel()
        logger.error("run %s: a tool or a step will not stop, and is left to itself", self.run_id)
        self._finish(outcome)

    def owner_done(self, owner: asyncio.Task[None]) -> None:
        """Say how the episode ended: the done callback of the owner's task."""
        exc = None if owner.cancelled() else owner.exception()
        if self.result is not None:  # it was left, and has come to its end after all
            return
        if exc is not None:
            self.broken = self.broken or exc
            self._gives_up_as = Outcome.ABANDONED
        if owner.cancelled() or exc is not None or self.state is EpisodeState.ABANDONED:
            self.close_turn(self.abandoned)
            self._give_up_finally()
        else:
            self.state = EpisodeState.ENDED
            self._finish(Outcome.COMPLETED if self.failure is None else Outcome.FAILED)

    def _finish(self, outcome: Outcome) -> None:
        self.envs.clear()
        self.result = EpisodeResult(
            outcome=outcome,
            run_id=self.run_id,
            scores=dict(self.log.scores),
            skipped=dict(self.log.left_out),
            failure=self.failure if outcome is Outcome.FAILED else None,
            cut=self.cut,
            metrics=self.log.counts,
        )
        try:
            self.sink.ended(self.result)
        except Exception as exc:  # a sink of any kind: kept, and raised to whoever drives the episode
            if self.broken is None:
                self.broken = exc
            elif not isinstance(exc, RunIndexError):  # which says again what `broken` has said
                logger.exception("run %s: its end could not be recorded", self.run_id)
        self.refuse_pending(self._interrupted)
        self._notify()

    def _interrupted(self, doing: str) -> BaseException:
        """What a call that was under way gets when the episode is abandoned."""
        return self.abandoned(doing) if self.broken is None else self.broken

    def abandoned(self, doing: str) -> EpisodeError:
        """The error for whoever uses the episode after it was given up."""
        if self._gives_up_as is Outcome.FAILED and self.failure is not None:
            failure = self.failure
            return EpisodeFailedError(f"{doing}: the episode failed ({failure.kind}): {failure.message}")
        if self.broken is not None:
            return EpisodeStateError(f"{doing}: the episode was abandoned, because of {self.broken!r}")
        return EpisodeStateError(f"{doing}: the episode was abandoned, open another one")

    def raise_broken(self) -> None:
        """Raise what broke the episode off, if anything did."""
        if self.broken is not None:
            self.has_raised_broken = True
            raise self.broken
