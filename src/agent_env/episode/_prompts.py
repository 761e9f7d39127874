"""A `prompt` step: whom it asks, what, and how often. What comes of a prompt is a turn (`_turns.py`)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from agent_env.bundle import AgentKind, Conversation, Prompt, PythonRef, TextSource, names_or_closest
from agent_env.envs.result_text import clean_text
from agent_env.episode._agents import OtherAgent
from agent_env.episode._calling import render, within
from agent_env.episode._core import Agent, Core
from agent_env.episode._deployed import DeployedAgents
from agent_env.episode._turns import Turns
from agent_env.outcome import FailureKind
from agent_env.verify.function import call_function
from agent_env.verify.step_failed import StepFailedError
from agent_env.verify.view import text_of

__all__ = ["Prompts"]


class Prompts:
    """Does the `prompt` steps of one episode."""

    __slots__ = ("_agents", "_core", "_log", "_turns")

    def __init__(self, core: Core, agents: DeployedAgents) -> None:
        self._core = core
        self._log = core.log
        self._agents = agents
        self._turns = Turns(core, agents)

    async def ask(self, step: Prompt) -> None:
        """Do one step.

        Raises:
            StepFailedError: When the prompt cannot be written, its time is up, an env breaks, or another agent does.
        """
        match step.source:
            case TextSource():
                self._core.prompts_left -= 1
                agent = await self._prompted(step)
                await self._turns.play(step, agent, await render(step.source, self._core.task), step.timeout_s)
            case PythonRef():
                self._core.prompts_left -= 1
                agent = await self._prompted(step)
                text = await self._written_by(step.source)
                if text is not None:
                    await self._turns.play(step, agent, text, step.timeout_s)
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

    async def _written_by(self, function: PythonRef) -> str | None:
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
        leader = self._agents.other(conversation.by)
        assert leader is not None  # a bundle in which the played agent leads has a problem
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
            if not await self._turns.play(step, agent, said, left) or self._core.cut is not None:
                return
            heard = self._last(agent)

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
        """Return what an agent said at the end of its turn."""
        heard = self._log.heard
        if agent.spec.kind is AgentKind.PLAYED:
            return heard.replies[-1]
        said = [message for message in heard.conversations[agent.name] if message["role"] == "assistant"]
        return text_of(said[-1]) if said else ""
