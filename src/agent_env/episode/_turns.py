"""A `prompt` step: whom it asks, what, how often; and the turns that come of it.

The played agent's turns are the caller's: its requests are taken one by one. Another agent's turn is played here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TypeVar

from anyio import to_thread

from agent_env.bundle import AgentKind, Conversation, Prompt, PythonRef, Step, Task, TextSource, names_or_closest
from agent_env.bundle.raised import raised_at
from agent_env.envs import Refusal, ToolAnswer
from agent_env.envs.refusals import no_such_tool
from agent_env.envs.result_text import clean_text
from agent_env.episode._agents import OtherAgent
from agent_env.episode._calling import call_env, failed
from agent_env.episode._core import Agent, CallRequest, Core, EndRequest, TurnState
from agent_env.errors import BundleError
from agent_env.outcome import Failure, FailureKind
from agent_env.verify.function import call_function
from agent_env.verify.step_failed import StepFailedError
from agent_env.verify.view import text_of

__all__ = ["Agents", "Turns", "fail", "render", "within"]

T = TypeVar("T")

_TURN_ENDED = "the turn has ended with an answer before, so this was not done"
_CANCELLED = "the call was cancelled before it was done"


class Agents:
    """The agents that an episode has deployed."""

    __slots__ = ("_agents", "others")

    def __init__(self) -> None:
        self._agents: dict[str, Agent] = {}
        self.others: dict[str, OtherAgent] = {}
        """Those that answer by themselves."""

    def put(self, agent: Agent) -> None:
        """Deploy an agent, or change one."""
        self._agents[agent.name] = agent
        if agent.name in self.others:
            self.others[agent.name].agent = agent

    def get(self, name: str, doing: str) -> Agent:
        """Return an agent.

        Raises:
            StepFailedError: When it was not deployed.
        """
        agent = self._agents.get(name)
        if agent is None:
            message = f"agent '{name}' was not deployed, so it cannot {doing}"
            raise StepFailedError(FailureKind.PROMPT, message)
        return agent


class Turns:
    """Does the `prompt` steps of one episode."""

    __slots__ = ("_agents", "_core", "_log")

    def __init__(self, core: Core, agents: Agents) -> None:
        self._core = core
        self._log = core.log
        self._agents = agents

    async def prompt(self, step: Prompt) -> None:
        """Do one step.

        Raises:
            StepFailedError: When the prompt cannot be written, its time is up, an env breaks, or another agent does.
        """
        match step.source:
            case TextSource():
                self._core.prompts_left -= 1
                agent = await self._prompted(step)
                await self._turn(step, agent, await render(step.source, self._core.task), step.timeout_s)
            case PythonRef():
                self._core.prompts_left -= 1
                agent = await self._prompted(step)
                text = await self._ask(step.source)
                if text is not None:
                    await self._turn(step, agent, text, step.timeout_s)
            case Conversation():
                try:
                    await self._converse(step, step.source)
                finally:
                    self._core.prompts_left -= 1

    async def _prompted(self, step: Prompt) -> Agent:
        """Return the agent as it is for this step."""
        agent = self._agents.get(step.agent, "be prompted")
        if step.system_prompt is not None:
            agent = replace(agent, system_prompt=await render(step.system_prompt, self._core.task))
            self._agents.put(agent)
        if step.tools is None:
            return agent
        unknown = [name for name in step.tools if name not in agent.routes]
        if unknown:
            what = f"agent '{step.agent}' has no tool '{unknown[0]}'"
            raise StepFailedError(FailureKind.PROMPT, f"{what}, {names_or_closest(unknown[0], agent.routes)}")
        return replace(
            agent,
            tools=tuple(tool for tool in agent.tools if tool.name in step.tools),
            routes={name: agent.routes[name] for name in step.tools},
        )

    async def _ask(self, function: PythonRef) -> str | None:
        said = await call_function(
            function,
            self._core.view(),
            timeout_s=self._core.limits.run_s,
            raised=FailureKind.PROMPT,
            timed_out=FailureKind.STEP_TIMEOUT,
        )
        if said is None or isinstance(said, str):
            return None if said is None else clean_text(said)
        what = f"{function} returned a {type(said).__name__}"
        raise StepFailedError(FailureKind.PROMPT, f"{what}: return the prompt's text, or None to ask nothing")

    async def _converse(self, step: Prompt, conversation: Conversation) -> None:
        agent = await self._prompted(step)
        self._agents.get(conversation.by, "lead a conversation")
        leader = self._agents.others[conversation.by]
        heard: str | None = None
        loop = asyncio.get_running_loop()
        deadline = None if step.timeout_s is None else loop.time() + step.timeout_s
        turns = self._log.turns
        for _ in range(conversation.max_turns):
            left = None if deadline is None else max(0.0, deadline - loop.time())
            said = await self._led(leader, heard, step, left)
            if self._core.cut is not None:
                return
            if said is None and turns == 0 and self._log.turns == 0:
                what = f"agent '{conversation.by}' had nothing to say, so agent '{agent.name}' was never asked"
                raise StepFailedError(FailureKind.AGENT, f"{what}: have it say something first")
            if said is None:
                return
            left = None if deadline is None else max(0.0, deadline - loop.time())
            if not await self._turn(step, agent, said, left) or self._core.cut is not None:
                return
            heard = self._log.replies[-1] if agent.spec.kind is AgentKind.PLAYED else self._last(agent)

    async def _led(self, leader: OtherAgent, heard: str | None, step: Prompt, left_s: float | None) -> str | None:
        """Have another agent say what comes next; a cut ends that at once."""
        loop, clock = asyncio.get_running_loop(), asyncio.timeout(None)
        try:
            async with clock:
                self._core.stop_leading = lambda: clock.reschedule(loop.time())
                try:
                    what = f"the conversation of step '{step.id}'"
                    return await within(leader.lead(heard), left_s, what, of_s=step.timeout_s)
                finally:
                    self._core.stop_leading = None
        except TimeoutError:
            if not clock.expired():
                raise
        return None

    def _last(self, agent: Agent) -> str:
        said = [message for message in self._log.conversations[agent.name] if message["role"] == "assistant"]
        return text_of(said[-1]) if said else ""

    async def _turn(self, step: Prompt, agent: Agent, prompt: str, timeout_s: float | None) -> bool:
        """Play a turn, and return whether it went well."""
        self._log.turn_started(agent.name, agent.shown_system_prompt, prompt, agent.tools)
        index = self._log.turns - 1
        other = self._agents.others.get(agent.name)
        if other is not None:
            other.agent = agent
            reply = await within(other.answer(prompt), timeout_s, f"turn {index}", of_s=step.timeout_s)
            self._log.turn_ended(reply)
            return True
        turn = TurnState(index, agent, prompt, step.id)
        self._core.open_turn(turn)
        try:
            await within(self._serve(turn), timeout_s, f"turn {index}", of_s=step.timeout_s)
        except StepFailedError as exc:
            if step.fail_task_on_error:
                raise
            fail(self._core, step, exc)
            turn.over = exc.message
            await self._serve(turn)
            return False
        return True

    async def _serve(self, turn: TurnState) -> None:
        """Do what callers ask for, one after the other, until they end the turn."""
        while True:
            request = await self._core.next_request()
            if isinstance(request, EndRequest):
                self._end(turn, request)
                return
            if not request.future.done():  # else its caller has been cancelled
                await self._answer(turn, request)

    def _end(self, turn: TurnState, request: EndRequest) -> None:
        reply = request.reply
        if reply is not None and reply != turn.said:
            self._log.message(reply)
        if not request.is_cut:
            self._log.replied(reply)
        self._log.turn_ended(reply)

    async def _answer(self, turn: TurnState, request: CallRequest) -> None:
        self._core.in_flight = request
        self._log.call(request.call_id, request.name, request.arguments, request.raw)
        began = perf_counter()
        if turn.over is not None:
            answer = ToolAnswer(turn.over, is_error=True, ends_turn=True, refusal=Refusal.TURN_OVER)
        else:
            answer = await _run(turn, request)
            if answer.ends_turn:
                turn.over = _TURN_ENDED
        self._log.answer(request.call_id, request.name, request.arguments, answer, perf_counter() - began)
        settle(self._core, request, answer)


async def render(source: TextSource, task: Task) -> str:
    """Write a text for a task.

    Raises:
        StepFailedError: When it cannot be written.
    """
    try:
        text = source.at_once(params=task.params, task_id=task.id, tags=task.tags)
        if text is None:
            long = partial(source.render, params=task.params, task_id=task.id, tags=task.tags)
            text = await to_thread.run_sync(long, abandon_on_cancel=True)
        return text
    except BundleError as exc:
        raise failed(FailureKind.PROMPT, exc) from exc


def fail(core: Core, step: Step, exc: StepFailedError) -> Failure:
    """Record a failure, and before it the answer of the call that it came in."""
    request = core.in_flight
    broken = ToolAnswer(exc.message, is_error=True, ends_turn=True, refusal=Refusal.BROKEN)
    if request is not None:
        core.log.answer(request.call_id, request.name, request.arguments, broken, 0.0)
    place = raised_at(exc, core.task.bundle.root)
    failure = Failure(kind=exc.kind, step=step.id, message=exc.message, traceback=exc.trace, place=place)
    if core.failure is None:
        core.failure = failure
    core.log.failure(failure)
    if request is not None and not step.fail_task_on_error:
        settle(core, request, broken)
    return failure


def settle(core: Core, request: CallRequest, answer: ToolAnswer) -> None:
    """Give a call's answer to whoever waits for it."""
    core.call_done()
    if not request.future.done():
        request.future.set_result(answer)


async def _run(turn: TurnState, request: CallRequest) -> ToolAnswer:
    name, routes = request.name, turn.agent.routes
    session = routes.get(name)
    if session is None:
        return no_such_tool(name, routes)
    # A timeout that is set when the call is to stop: it cancels once. A scope of anyio's would cancel again in each pass
    # of the loop, and a tool that will not be cancelled would take the whole processor.
    clock = asyncio.timeout(None)
    is_under_way = True

    def stop(_: asyncio.Future[ToolAnswer]) -> None:
        if is_under_way:  # the loop may have this on its list already when the call ends
            clock.reschedule(asyncio.get_running_loop().time())

    try:
        async with clock:
            # Whoever waits for the answer ends the call by being cancelled; a cut ends it by answering.
            request.future.add_done_callback(stop)
            try:
                return await call_env(session, name, request.arguments)
            finally:
                is_under_way = False
                request.future.remove_done_callback(stop)
    except TimeoutError:
        if not clock.expired():
            raise
    return ToolAnswer(_CANCELLED, is_error=True, refusal=Refusal.CANCELLED)


async def within(doing: Awaitable[T], timeout_s: float | None, what: str, *, of_s: float | None = None) -> T:
    """Wait for something, but only so long; `of_s` is the whole time, where only a part of it was left.

    Raises:
        StepFailedError: When its time is up.
    """
    # asyncio's timeout and no cancel scope: what is entered here may hold scopes that stay open after it.
    clock = asyncio.timeout(timeout_s)
    try:
        async with clock:
            return await doing
    except TimeoutError as exc:
        if not clock.expired():
            raise
        # What was stopped may say where it stood: an MCP server's stderr, say.
        notes = "\n".join(getattr(exc.__cause__, "__notes__", ()))
        raise StepFailedError(
            FailureKind.STEP_TIMEOUT, f"{what} took longer than {of_s or timeout_s:g} s", notes
        ) from None
