"""`Episode` and `Turn`: one play of one task, driven from any task of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

from agent_env._cleanup import wait_until_done
from agent_env.bundle import Task
from agent_env.envs import Refusal, ToolAnswer, ToolSpec
from agent_env.episode._core import CallRequest, Core, EndRequest, EpisodeState, TurnState
from agent_env.episode._owner import own
from agent_env.episode.limits import DEFAULT_LIMITS, Limits
from agent_env.episode.sink import EpisodeSink, NullSink
from agent_env.errors import EpisodeStateError, UsageError
from agent_env.outcome import CutReason, EpisodeResult, Failure, FailureKind
from agent_env.verify import EpisodeView, Message

__all__ = ["Episode", "Turn", "held", "open_episode"]

_ROLES = ("system", "user", "assistant", "tool")


@asynccontextmanager
async def open_episode(
    task: Task, *, sink: EpisodeSink | None = None, limits: Limits = DEFAULT_LIMITS
) -> AsyncGenerator[Episode]:
    """Open one play of a task. Nothing is started yet: `Episode.start` does that.

    Args:
        task: One of a bundle's tasks.
        sink: Takes the episode down, and gives it its run id. Without one nothing is kept.
        limits: Bounds for steps that have none of their own.

    Yields:
        The episode, single use; there is no reset. Any task of the event loop may drive it, and the block may be left
        by another task than the one that entered it.

    Raises:
        RunIndexError: When the sink cannot take the episode down: at the start, from the call that was under way, or,
            where no call was, when the block is left. The episode is abandoned then. The same goes for whatever else a
            sink raises.

    Leaving the block, cancelled or not, abandons an episode that has not ended. When the block is left, everything that
    the episode held has been given back.
    """
    core = Core(task, NullSink() if sink is None else sink, limits)
    core.log.opened()
    async with held(core) as episode:
        yield episode


@asynccontextmanager
async def held(core: Core) -> AsyncGenerator[Episode]:
    """Give an episode that nobody has started yet, and give back what it holds when the block is left, as `open_episode` says."""
    try:
        yield Episode(core)
    finally:
        core.give_up()
        if core.owner is not None and core.result is None:
            what = f"run {core.run_id}: the episode's task"
            await wait_until_done(core.owner, grace_s=_grace_s(core.limits), what=what)
            core.abandon_and_leave()
    if not core.has_raised_broken:
        core.raise_broken()


class Episode:
    """One play of one task; made by `open_episode`.

    A call that does not fit the episode's state raises EpisodeStateError and changes nothing.
    """

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    @property
    def run_id(self) -> str:
        """The id of its run."""
        return self._core.run_id

    @property
    def task(self) -> Task:
        """The task that is played."""
        return self._core.task

    @property
    def state(self) -> EpisodeState:
        """Where it stands."""
        return self._core.state

    @property
    def turn(self) -> Turn | None:
        """The open turn, also when whoever was to get it has been cancelled; None when it is not the caller's move."""
        turn = self._core.turn
        if turn is None:
            return None
        if turn.shown is None:
            turn.shown = Turn(self, self._core, turn)
        return turn.shown

    @property
    def view(self) -> EpisodeView:
        """The episode so far, as a verifier sees it. Once it has ended or was abandoned, its envs are gone from it."""
        return self._core.view()

    async def start(self) -> Turn | None:
        """Start the envs, and go on to the first prompt. Being cancelled stops the waiting, not the episode.

        Returns:
            The first turn; None when a step failed before it, and the episode has gone on to its end.

        Raises:
            EpisodeStateError: When the episode was started before, or was abandoned, also while it starts.
        """
        core = self._core
        match core.state:
            case EpisodeState.READY:
                core.state = EpisodeState.RUNNING
                core.owner = asyncio.create_task(own(core), name=f"agent-env run {core.run_id}")
                core.owner.add_done_callback(core.owner_done)
            case EpisodeState.RUNNING | EpisodeState.TURN:
                raise EpisodeStateError("start(): the episode was started before; go on with `episode.turn`")
            case EpisodeState.ENDED:
                raise EpisodeStateError("start(): the episode has ended and cannot be played again, open another one")
            case EpisodeState.ABANDONED:
                raise core.abandoned("start()")
        await _until_move(core, "start()")
        return self.turn

    async def cut(self, reason: CutReason) -> None:
        """End the open turn without a reply, and let the verifiers score where it got to.

        No agent is prompted any more, and `run` steps that come before a later prompt are left out with it. A call that
        is under way is stopped; a tool that does not stop within `close_s` fails the episode, and is left. Between two
        turns it does the same. Once the last turn has ended, nothing is left to cut: then it waits for the end, and the
        result says nothing of a cut; a second cut does not change the reason. Being cancelled stops the waiting only.

        Args:
            reason: Why, for the run.

        Raises:
            EpisodeStateError: When the episode was not started, or was abandoned, also meanwhile.
        """
        core = self._core
        if core.state is EpisodeState.READY:
            raise EpisodeStateError("cut(): the episode was not started, so there is nothing to score; use abandon()")
        if core.state is EpisodeState.ABANDONED:
            raise core.abandoned("cut()")
        called = core.in_flight
        if core.cut is None and (core.turn is not None or core.prompts_left):
            self._cut(CutReason(reason))
        if called is not None and not await self._has_stopped(called):
            message = f"tool {called.name} did not stop within {core.limits.close_s:g} s after the turn was cut"
            with _recording(core):
                core.fail_and_leave(Failure(kind=FailureKind.ENV_BROKEN, step=core.log.step, message=message))
            return
        await _until_move(core, "cut()")

    async def _has_stopped(self, call: CallRequest) -> bool:
        """Wait for the end of a call that was told to stop, `close_s` at most."""
        core = self._core
        clock = asyncio.timeout(core.limits.close_s)
        try:
            async with clock:
                while core.in_flight is call and core.result is None:
                    await core.changed()
        except TimeoutError:
            if not clock.expired():
                raise
        return core.in_flight is not call or core.result is not None

    def _cut(self, reason: CutReason) -> None:
        core = self._core
        index = None if core.turn is None else core.turn.index

        def error(doing: str) -> EpisodeStateError:
            return EpisodeStateError(f"{doing}: turn {index} was cut ({reason}); await episode.result()")

        core.cut = reason
        with _recording(core):
            core.log.cut(reason)
        if core.turn is not None:
            core.close_turn(error)
            core.refuse_pending(error)
            core.put(EndRequest(None, is_cut=True))
        elif core.stop_leading is not None:
            core.stop_leading()

    async def result(self) -> EpisodeResult:
        """Wait for the end, and say how it ended. May be asked for as often as one likes, also after `abandon`.

        Raises:
            EpisodeStateError: When the episode was not started, or a turn is open.
        """
        core = self._core
        if core.state is EpisodeState.READY:
            raise EpisodeStateError("result(): the episode was not started, call start() first")
        while core.result is None and core.state is not EpisodeState.TURN:
            await core.changed()
        core.raise_broken()
        if core.result is None:
            assert core.turn is not None
            raise EpisodeStateError(f"result(): turn {core.turn.index} is open, end it with turn.end() or cut it")
        return core.result

    async def fail(self, kind: FailureKind, message: str, *, error: BaseException | None = None) -> None:
        """End the episode as failed, from any state: whoever drives it cannot go on, and its run is to say why.

        For what breaks outside of the episode: a player that raises, a model that cannot be reached. What breaks inside of it
        is noticed without this. Everything is given back as `abandon` does it, and nothing is scored any more; an episode
        that has ended or was abandoned stays so. Whoever else is inside it gets EpisodeFailedError.

        Args:
            kind: What broke.
            message: One line for a person.
            error: What was raised; the run keeps its traceback, and where in the bundle it came from.
        """
        core = self._core
        with _recording(core):
            core.fail(kind, message, error)
        await self._given_up()

    async def abandon(self) -> None:
        """Give everything back at once, from any state, as often as one likes; an episode that has ended stays so.

        Whoever else is inside the episode gets EpisodeStateError at once. When this returns, the envs are closed, or, where
        a bundle's code will not stop, were left after `close_s`; being cancelled stops the waiting, not the closing.
        """
        self._core.give_up()
        await self._given_up()

    async def _given_up(self) -> None:
        core = self._core
        if core.owner is not None and core.result is None:
            await asyncio.wait([core.owner], timeout=_grace_s(core.limits))
            core.abandon_and_leave()


class Turn:
    """From a prompt to the agent's reply without a tool call, or to an answer that ends the turn.

    Every method raises EpisodeStateError when the turn is no longer open, and EpisodeFailedError when it is not because
    the episode has failed.
    """

    __slots__ = ("_core", "_episode", "_state")

    def __init__(self, episode: Episode, core: Core, state: TurnState) -> None:
        self._episode = episode
        self._core = core
        self._state = state

    @property
    def index(self) -> int:
        """Its place among the episode's turns, from 0."""
        return self._state.index

    @property
    def step(self) -> str:
        """The id of the step that prompts."""
        return self._state.step

    @property
    def agent(self) -> str:
        """Who is prompted, by the name in the bundle."""
        return self._state.agent.name

    @property
    def system_prompt(self) -> str:
        """The agent's system prompt; empty when it has none."""
        return self._state.agent.shown_system_prompt

    @property
    def prompt(self) -> str:
        """What the agent is asked."""
        return self._state.prompt

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The agent's tools."""
        return self._state.agent.tools

    @property
    def skills(self) -> tuple[str, ...]:
        """The skills that the agent has been given so far, by the names of their folders under `skills/`."""
        return tuple(skill.name for skill in self._state.agent.skills)

    @property
    def is_open(self) -> bool:
        """Whether it may still be used."""
        return self._state.closed is None

    def record(
        self, message: Message, *, prompt_tokens: int | None = None, sampled_tokens: int | None = None
    ) -> int | None:
        """Take down what the agent said, before its calls run.

        Args:
            message: The message. Its top level is copied; change nothing inside it afterwards.
            prompt_tokens: What it was sampled from, in tokens, for the run.
            sampled_tokens: What it is, in tokens.

        Returns:
            Which of the agent's messages it is, from 0; None where its role is another one.

        Raises:
            UsageError: When it is no message.
        """
        self._check_open("record()")
        said = _checked(message)
        with _recording(self._core):
            index = self._core.log.message(said, prompt_tokens=prompt_tokens, sampled_tokens=sampled_tokens)
        self._state.said = said
        return index

    async def call(
        self, name: str, arguments: Mapping[str, Any], *, call_id: str | None = None, raw: str | None = None
    ) -> ToolAnswer:
        """Run a tool. Calls made at the same time run one after the other, in the order they were made.

        Being cancelled stops the tool, and leaves the turn open.

        Args:
            name: The tool.
            arguments: What it is called with, JSON values.
            call_id: What the model's message calls the call; made up when None.
            raw: The text that the model wrote for the arguments, for the run.

        Returns:
            The answer, for the model to read. With `is_error` it is what was wrong: no such tool, arguments that do not
            fit, what the tool raised. Once an answer has said `ends_turn`, further calls are refused with such an
            answer, and `end` is what is left.

        Raises:
            EpisodeFailedError: When the env breaks in it, or the step's time is up: the episode has failed, and
                `Episode.result` says how. With `fail_task_on_error: false` it is an answer instead that ends the turn.
            UsageError: When `arguments` is no mapping.
        """
        self._check_open("call()")
        if not isinstance(arguments, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - from a model's text
            raise UsageError(
                f"call(): the arguments are a {type(arguments).__name__}, not a mapping; "
                "answer what a model wrote wrong with turn.refuse()"
            )
        request = CallRequest(name, arguments, call_id or self._next_call_id(), raw)
        self._core.put(request)
        return await request.future

    def refuse(self, name: str, text: str, *, raw: str | None = None, call_id: str | None = None) -> ToolAnswer:
        """Answer a call that cannot be made, such as one whose arguments are no JSON, without running the tool.

        Args:
            name: The tool that the model named.
            text: What is wrong with the call, for the model to read.
            raw: The text that the model wrote for the arguments.
            call_id: What the model's message calls the call; made up when None.

        Returns:
            The answer, with `is_error`.
        """
        self._check_open("refuse()")
        call_id = call_id or self._next_call_id()
        over = self._state.over is not None
        answer = ToolAnswer(text, is_error=True, ends_turn=over, refusal=Refusal.MISFIT)
        with _recording(self._core):
            self._core.log.call(call_id, name, None, raw)
            self._core.log.answer(call_id, name, answer, 0.0)
        return answer

    async def end(self, reply: Message | None = None) -> Turn | None:
        """End the turn, after the calls that were made before, and go on to the next one.

        Being cancelled stops the waiting, not the episode: `Episode.turn` has the turn that was to come.

        Args:
            reply: What the agent said last. Taken down here unless it is what `record` got last. None when the agent
                said nothing more, as after an answer that ended the turn.

        Returns:
            The next turn; None when the episode has gone on to its end.

        Raises:
            EpisodeStateError: When the episode is abandoned meanwhile.
            UsageError: When `reply` is no message.
        """
        self._check_open("end()")
        said = None if reply is None else _checked(reply)
        index = self.index
        self._core.close_turn(
            lambda doing: EpisodeStateError(f"{doing}: turn {index} has ended, go on with the turn that end() returned")
        )
        self._core.put(EndRequest(said, is_cut=False))
        await _until_move(self._core, "end()")
        return self._episode.turn

    def _check_open(self, doing: str) -> None:
        if self._state.closed is not None:
            raise self._state.closed(doing)

    def _next_call_id(self) -> str:
        self._core.calls_made += 1
        return f"call-{self._core.calls_made}"


def _grace_s(limits: Limits) -> float:
    """How long an owner is waited for: closing its envs is bounded by `close_s`, and what is around that is short."""
    return limits.close_s + 5.0


async def _until_move(core: Core, doing: str) -> None:
    """Wait until it is the caller's move, or the end."""
    while core.state is EpisodeState.RUNNING:
        await core.changed()
    core.raise_broken()
    if core.state is EpisodeState.ABANDONED:
        raise core.abandoned(doing)


@contextmanager
def _recording(core: Core) -> Generator[None]:
    """Abandon the episode when the sink raises."""
    try:
        yield
    except BaseException as exc:  # a sink of any kind, and Ctrl-C in it
        core.has_raised_broken = True
        core.break_off(exc)
        raise


def _checked(message: Message) -> Message:
    """Return a copy of a message, its top level at least.

    Raises:
        UsageError: When it is none.
    """
    if not isinstance(message, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - from untyped code
        raise UsageError(f"a message is a mapping with role and content, not a {type(message).__name__}")
    copy = dict[str, object](message)
    if copy.get("role") not in _ROLES:
        raise UsageError(f"a message's role is one of {', '.join(_ROLES)}, not {copy.get('role')!r}")
    if copy.get("content") is None:
        copy["content"] = ""
    if not isinstance(copy["content"], str | list):
        raise UsageError(f"a message's content is text or a list of parts, not a {type(copy['content']).__name__}")
    return cast("Message", copy)
