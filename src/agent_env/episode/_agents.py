"""Agents that answer by themselves: scripted ones (Python) and models behind an endpoint.

Each has a conversation of its own, as it has it: what it hears has the role `user`, what it says `assistant`. It lives as
long as its episode; everything it says and calls is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from time import perf_counter
from typing import Any, cast

from agent_env.bundle import PythonRef, Task
from agent_env.chat import complete
from agent_env.envs import Refusal, parse_arguments
from agent_env.envs.refusals import no_such_tool, refused
from agent_env.envs.result_text import clean_text
from agent_env.episode._calling import call_env
from agent_env.episode._core import Agent
from agent_env.episode._log import EpisodeLog
from agent_env.episode.player_turn import PlayerTurn
from agent_env.errors import MissingExtraError, ModelServerError, ToolError
from agent_env.outcome import FailureKind
from agent_env.verify import Message
from agent_env.verify.function import call_function
from agent_env.verify.step_failed import StepFailedError
from agent_env.verify.view import text_of

__all__ = ["OtherAgent"]


class OtherAgent:
    """A scripted agent or a model, in one episode."""

    __slots__ = ("_heard", "_log", "_messages", "_run_s", "_said", "_system", "_task", "_turns", "agent")

    def __init__(self, agent: Agent, task: Task, log: EpisodeLog, *, run_s: float) -> None:
        self.agent = agent
        """As it is deployed; whoever prompts it puts another in its place where tools or the system prompt change."""
        self._task = task
        self._log = log
        self._run_s = run_s
        self._messages: list[Message] = []
        self._system = ""
        self._heard = ""
        self._turns = 0
        self._said = 0

    async def answer(self, prompt: str) -> Message:
        """Hear a prompt, call tools, and say something in the end.

        Raises:
            StepFailedError: When the script raises, the model's endpoint fails, an env breaks, or it never comes to an end.
        """
        message = await self._turn(prompt)
        return Message(role="assistant", content="") if message is None else message

    async def lead(self, heard: str | None) -> str | None:
        """Say what comes next in a conversation that it leads.

        Args:
            heard: What the other side said last; None at the start.

        Returns:
            The next prompt for the other side; None when it has nothing more to say.

        Raises:
            StepFailedError: As `answer`, and when a model says nothing, not even that it is done.
        """
        spec = self.agent.spec
        is_model = spec.model is not None
        message = await self._turn(spec.opening if heard is None and is_model else heard or "")
        if message is None:
            return None
        text = clean_text(text_of(message))
        if is_model and spec.stop in text:
            return None
        if text.strip():
            return text
        if is_model:
            what = f"agent '{spec.name}' (model {spec.model.model if spec.model else ''}) said nothing"
            raise StepFailedError(
                FailureKind.AGENT, f"{what}: its system prompt is to ask for a line, or for {spec.stop}"
            )
        return None

    async def _turn(self, heard: str) -> Message | None:
        new = self._hear(heard)
        for _ in range(self.agent.spec.max_messages):
            message = await self._say(new)
            new = {}
            if message is None:
                return None
            calls = message.get("tool_calls") or []
            for call in calls:
                await self._call(call)
            if not calls:
                return message
        what = f"agent '{self.agent.name}' said {self.agent.spec.max_messages} messages and was not done"
        raise StepFailedError(FailureKind.AGENT, f"{what}: raise its max_messages, or its script goes in a circle")

    def _hear(self, heard: str) -> dict[str, Any]:
        """Take in what the other side said; return what of it is new, for the run."""
        new: dict[str, Any] = {}
        system = self.agent.shown_system_prompt
        if system and system != self._system:
            self._system = new["system_prompt"] = system
            self._messages.append(Message(role="system", content=system))
        if heard or self._turns:
            new["heard"] = heard
            self._messages.append(Message(role="user", content=heard))
        self._heard = heard
        self._turns += 1
        return new

    async def _say(self, new: Mapping[str, Any]) -> Message | None:
        began = perf_counter()
        more = dict(new)
        model = self.agent.spec.model
        if model is None:
            message = await self._scripted()
        else:
            try:
                reply = await complete(model, self._messages, self.agent.tools)
            except (ModelServerError, MissingExtraError) as exc:
                raise StepFailedError(FailureKind.MODEL_SERVER, f"agent '{self.agent.name}': {exc}") from exc
            message = cast("Message", reply.message)
            usage = None if reply.usage is None else asdict(reply.usage)
            more |= {"model": reply.model, "usage": usage, "finish_reason": reply.finish_reason}
        if message is None:
            return None
        self._messages.append(message)
        self._log.agent_said(self.agent.name, message, duration_s=perf_counter() - began, more=more)
        return message

    async def _scripted(self) -> Message | None:
        script = self.agent.spec.python
        assert script is not None
        turn = PlayerTurn(
            prompt=self._heard,
            system_prompt=self.agent.shown_system_prompt,
            tools=self.agent.tools,
            messages=list(self._messages),
            params=self._task.copy_params(),
            task_id=self._task.id,
            turn=self._turns - 1,
        )
        said = await call_function(
            script, turn, timeout_s=self._run_s, raised=FailureKind.AGENT, timed_out=FailureKind.AGENT
        )
        return _message(said, script)

    async def _call(self, call: Mapping[str, Any]) -> None:
        began = perf_counter()
        self._said += 1
        name, raw = str(call.get("name")), call.get("arguments")
        call_id = str(call.get("id") or f"{self.agent.name}-{self._said}")
        arguments: Mapping[str, Any] | None = None
        try:
            arguments = parse_arguments(raw if isinstance(raw, str) else "")
        except ToolError as exc:
            answer = refused(Refusal.MISFIT, str(exc))
        else:
            session = self.agent.routes.get(name)
            if session is None:
                answer = no_such_tool(name, self.agent.routes)
            else:
                answer = await call_env(session, name, arguments)
        self._messages.append(Message(role="tool", content=answer.text, tool_call_id=call_id, name=name))
        self._log.agent_called(self.agent.name, call_id, name, arguments, answer, perf_counter() - began)


def _message(said: object, script: PythonRef) -> Message | None:
    """Make a message of what a script returned: text, a message, or None."""
    if said is None:
        return None
    if isinstance(said, str):
        return Message(role="assistant", content=said)
    if isinstance(said, Mapping):
        message: dict[str, object] = {"content": "", **cast("Mapping[str, object]", said)}
        message["role"] = "assistant"
        if isinstance(message["content"], str | list) and isinstance(message.get("tool_calls", []), list):
            return cast("Message", message)
    what = f"{script} returned a {type(cast('object', said)).__name__}"
    raise StepFailedError(FailureKind.AGENT, f"{what}: return the text that the agent says, a message, or None")
