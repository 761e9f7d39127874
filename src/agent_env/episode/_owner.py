"""The task that owns an episode: it opens the envs, goes through the steps, runs the calls, and closes everything.

One task does all of it, because some envs (MCP sessions) can only be closed by the task that opened them. What a
bundle's code raises is caught here, at the boundary of each step, and becomes a `Failure`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from dataclasses import replace
from time import perf_counter
from typing import TypeVar

from agent_env._cleanup import close_stack
from agent_env.bundle import (
    AddSkills,
    DeployAgent,
    DeployEnv,
    Prompt,
    RunCommand,
    RunPython,
    Step,
    TextSource,
    Verify,
    names_or_closest,
)
from agent_env.envs import EnvSession, ToolAnswer, ToolSpec, open_env
from agent_env.episode._core import Agent, CallRequest, Core, EndRequest, TurnState
from agent_env.errors import AgentEnvError, BundleError, UniverseError
from agent_env.outcome import Failure, FailureKind
from agent_env.verify.function import StepFailedError, call_function, one_line, trace_of
from agent_env.verify.score import run_verifier

__all__ = ["own"]

T = TypeVar("T")

_KINDS: dict[type[Step], str] = {
    DeployEnv: "deploy_env",
    DeployAgent: "deploy_agent",
    AddSkills: "add_skills",
    Prompt: "prompt",
    RunPython: "run",
    RunCommand: "run",
    Verify: "verify",
}
_TURN_ENDED = "the turn has ended with an answer before, so this was not done"
_CANCELLED = "the call was cancelled before it was done"


async def own(core: Core) -> None:
    """Play an episode's steps, and close whatever they opened. What the sink raises comes out of here."""
    stack = AsyncExitStack()
    try:
        await _Steps(core, stack).play()
    finally:
        core.is_closing = True
        await close_stack(stack, grace_s=core.limits.close_s, what=f"run {core.run_id}")


class _Steps:
    __slots__ = ("_agents", "_bundle", "_core", "_log", "_stack")

    def __init__(self, core: Core, stack: AsyncExitStack) -> None:
        self._core = core
        self._log = core.log
        self._bundle = core.task.bundle
        self._stack = stack
        self._agents: dict[str, Agent] = {}

    async def play(self) -> None:
        steps = self._core.task.steps
        last_prompt = max((at for at, step in enumerate(steps) if isinstance(step, Prompt)), default=-1)
        for at, step in enumerate(steps):
            # After a cut no agent is prompted, and what only leads up to a prompt is left out with it.
            leads_up = isinstance(step, Prompt) or (isinstance(step, RunPython) and at < last_prompt)
            if self._core.cut is not None and leads_up:
                continue
            if not await self._step(step):
                return

    async def _step(self, step: Step) -> bool:
        """Do a step and return whether the next one follows."""
        self._core.stop_if_abandoned()
        self._log.step_started(step.id, _KINDS[type(step)])
        began = perf_counter()
        goes_on = True
        try:
            await self._do(step)
        except StepFailedError as exc:
            failure = self._fail(step, exc)
            if self._log.turn is not None:
                self._log.turn_ended(None)
                self._core.fail_turn(failure)
                self._core.call_done()
            goes_on = not step.fail_task_on_error
        self._core.stop_if_abandoned()
        self._log.step_ended(perf_counter() - began)
        return goes_on

    async def _do(self, step: Step) -> None:
        limits = self._core.limits
        match step:
            case DeployEnv():
                await self._deploy_env(step)
            case DeployAgent():
                self._deploy_agent(step)
            case AddSkills():
                self._add_skills(step)
            case Prompt():
                await self._prompt(step)
            case RunPython():
                await call_function(
                    step.target,
                    self._core.view(),
                    timeout_s=limits.run_s if step.timeout_s is None else step.timeout_s,
                    raised=FailureKind.RUN_STEP,
                    timed_out=FailureKind.STEP_TIMEOUT,
                )
            case RunCommand():
                raise StepFailedError(FailureKind.RUN_STEP, "commands cannot be run yet")
            case Verify():
                timeout_s = limits.verify_s if step.timeout_s is None else step.timeout_s
                self._log.score(await run_verifier(step, self._core.view(), timeout_s=timeout_s))

    def _fail(self, step: Step, exc: StepFailedError) -> Failure:
        """Record a failure, and before it the answer of the call that it came in."""
        request = self._core.in_flight
        if request is not None:
            answer = ToolAnswer(exc.message, is_error=True, ends_turn=True)
            self._log.answer(request.call_id, request.name, request.arguments, answer, 0.0)
        failure = Failure(kind=exc.kind, step=step.id, message=exc.message, traceback=exc.trace)
        if self._core.failure is None:
            self._core.failure = failure
        self._log.failure(failure)
        if request is not None and not step.fail_task_on_error:
            self._settle(request, ToolAnswer(exc.message, is_error=True, ends_turn=True))
        return failure

    async def _deploy_env(self, step: DeployEnv) -> None:
        timeout_s = self._core.limits.deploy_s if step.timeout_s is None else step.timeout_s
        opening = self._stack.enter_async_context(open_env(self._bundle.envs[step.env], task=self._core.task))
        try:
            self._core.envs[step.env] = await _within(opening, timeout_s, f"starting env '{step.env}'")
        except StepFailedError:
            raise
        except UniverseError as exc:
            raise _failed(FailureKind.UNIVERSE, exc) from exc
        except asyncio.CancelledError as exc:
            _raise_if_ours(exc)
            raise _failed(FailureKind.ENV_START, exc) from exc
        except (Exception, SystemExit) as exc:
            raise _failed(FailureKind.ENV_START, exc) from exc

    def _deploy_agent(self, step: DeployAgent) -> None:
        spec = self._bundle.agents[step.agent]
        tools: list[ToolSpec] = []
        routes: dict[str, EnvSession] = {}
        for env in spec.envs:
            session = self._core.envs.get(env)
            if session is None:
                continue  # it failed to start, and the bundle says to go on
            for tool in session.tools:
                if tool.name in routes:
                    message = f"agent '{step.agent}' has two tools '{tool.name}': rename the one in env '{env}'"
                    raise StepFailedError(FailureKind.ENV_START, message)
                tools.append(tool)
                routes[tool.name] = session
        system_prompt = "" if spec.system_prompt is None else self._text(spec.system_prompt)
        self._agents[step.agent] = Agent(step.agent, system_prompt, tuple(tools), routes)

    def _add_skills(self, step: AddSkills) -> None:
        agent = self._agents.get(step.agent)
        if agent is None:
            message = f"agent '{step.agent}' was not deployed, so it cannot be given skills"
            raise StepFailedError(FailureKind.PROMPT, message)
        self._agents[step.agent] = replace(agent, skills=tuple(dict.fromkeys((*agent.skills, *step.skills))))

    def _text(self, source: TextSource) -> str:
        task = self._core.task
        try:
            return source.render(params=task.params, task_id=task.id, tags=task.tags)
        except BundleError as exc:
            raise _failed(FailureKind.PROMPT, exc) from exc

    async def _prompt(self, step: Prompt) -> None:
        self._core.prompts_left -= 1
        agent = self._agents.get(step.agent)
        if agent is None:
            message = f"agent '{step.agent}' was not deployed, so it cannot be prompted"
            raise StepFailedError(FailureKind.PROMPT, message)
        assert isinstance(step.source, TextSource)
        prompt = self._text(step.source)
        self._log.turn_started(agent.name, agent.system_prompt, prompt, agent.tools)
        turn = TurnState(self._log.turns - 1, agent, prompt, step.id)
        self._core.open_turn(turn)
        try:
            await _within(self._serve(turn), step.timeout_s, f"turn {turn.index}")
        except StepFailedError as exc:
            if step.fail_task_on_error:
                raise
            self._fail(step, exc)
            turn.over = exc.message
            await self._serve(turn)

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
            answer = ToolAnswer(turn.over, is_error=True, ends_turn=True)
        else:
            answer = await self._run(turn, request)
            if answer.ends_turn:
                turn.over = _TURN_ENDED
        self._log.answer(request.call_id, request.name, request.arguments, answer, perf_counter() - began)
        self._settle(request, answer)

    def _settle(self, request: CallRequest, answer: ToolAnswer) -> None:
        self._core.call_done()
        if not request.future.done():
            request.future.set_result(answer)

    async def _run(self, turn: TurnState, request: CallRequest) -> ToolAnswer:
        name, routes = request.name, turn.agent.routes
        session = routes.get(name)
        if session is None:
            return ToolAnswer(f"there is no tool '{name}', {names_or_closest(name, routes)}", is_error=True)
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
                    return await session.call(name, request.arguments)
                except asyncio.CancelledError as exc:
                    _raise_if_ours(exc)
                    return ToolAnswer(one_line(exc), is_error=True)
                except (KeyboardInterrupt, GeneratorExit):
                    raise
                except BaseException as exc:
                    raise StepFailedError(FailureKind.ENV_BROKEN, f"tool {name}: {_said(exc)}", trace_of(exc)) from exc
                finally:
                    is_under_way = False
                    request.future.remove_done_callback(stop)
        except TimeoutError:
            if not clock.expired():
                raise
        return ToolAnswer(_CANCELLED, is_error=True)


async def _within(doing: Awaitable[T], timeout_s: float | None, what: str) -> T:
    # asyncio's timeout and no cancel scope: what is entered here may hold scopes that stay open after it.
    clock = asyncio.timeout(timeout_s)
    try:
        async with clock:
            return await doing
    except TimeoutError:
        if not clock.expired():
            raise
        raise StepFailedError(FailureKind.STEP_TIMEOUT, f"{what} took longer than {timeout_s:g} s") from None


def _raise_if_ours(exc: asyncio.CancelledError) -> None:
    """Raise a cancellation that somebody asked for; a bundle's code may raise one of its own."""
    task = asyncio.current_task()
    if task is None or task.cancelling():
        raise exc


def _failed(kind: FailureKind, exc: BaseException) -> StepFailedError:
    return StepFailedError(kind, _said(exc), trace_of(exc))


def _said(exc: BaseException) -> str:
    return " ".join(str(exc).split()) if isinstance(exc, AgentEnvError) and str(exc) else one_line(exc)
