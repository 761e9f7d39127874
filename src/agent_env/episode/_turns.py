"""A turn: from a prompt to the agent's reply without a tool call.

The played agent's turns are the caller's: its requests are taken one by one. Another agent's turn is played here.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

from agent_env.bundle import Prompt
from agent_env.envs import Refusal, ToolAnswer
from agent_env.envs.refusals import no_such_tool, refused
from agent_env.episode._calling import call_env, within
from agent_env.episode._core import Agent, CallRequest, Core, EndRequest, TurnState
from agent_env.episode._deployed import DeployedAgents
from agent_env.verify.step_failed import StepFailedError
from agent_env.verify.view import text_of

__all__ = ["Turns"]

_TURN_ENDED = "the turn has ended with an answer before, so this was not done"
_CANCELLED = "the call was cancelled before it was done"


class Turns:
    """Plays the turns of one episode."""

    __slots__ = ("_agents", "_core", "_log")

    def __init__(self, core: Core, agents: DeployedAgents) -> None:
        self._core = core
        self._log = core.log
        self._agents = agents

    async def play(self, step: Prompt, agent: Agent, prompt: str, timeout_s: float | None) -> bool:
        """Play a turn, and return whether it went well.

        Args:
            step: The step that it is of.
            agent: Who is asked, as it is for this step.
            prompt: What it is asked.
            timeout_s: Seconds that are left for it.

        Raises:
            StepFailedError: When its time is up, an env breaks or another agent does. Not where the step goes on after a
                failure: the caller is told of that by its calls, and ends the turn.
        """
        self._log.turn_started(agent.name, agent.shown_system_prompt, prompt, agent.tools)
        index = self._log.turns - 1
        other = self._agents.other(agent.name)
        if other is not None:
            other.agent = agent
            reply = await within(other.answer(prompt), timeout_s, f"turn {index}", of_s=step.timeout_s)
            self._log.turn_ended(text_of(reply))
            return True
        turn = TurnState(index, agent, prompt, step.id)
        self._core.open_turn(turn)
        try:
            await within(self._serve(turn), timeout_s, f"turn {index}", of_s=step.timeout_s)
        except StepFailedError as exc:
            if step.fail_task_on_error:
                raise
            self._core.step_failed(step, exc)
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
        said = "" if reply is None else text_of(reply)
        self._log.turn_ended(None if request.is_cut else said)

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
        self._log.answer(request.call_id, request.name, answer, perf_counter() - began)
        self._core.call_answered(request, answer)


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
    return refused(Refusal.CANCELLED, _CANCELLED)
