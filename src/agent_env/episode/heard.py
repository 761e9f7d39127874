"""What was said and called in an episode, put together from its events: while it is played, and again from its record.

So a verifier is shown the same of an episode whenever it is scored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, cast

from agent_env.bundle import Task
from agent_env.outcome import CutReason, Score
from agent_env.verify import CallRecord, EpisodeView, Message

__all__ = ["EventLike", "Heard"]


class EventLike(Protocol):
    """An event as an episode tells it, or as a run has it."""

    @property
    def kind(self) -> str:
        """One of `EventKind`."""
        ...

    @property
    def turn(self) -> int | None:
        """The turn it happened in."""
        ...

    @property
    def data(self) -> Mapping[str, Any]:
        """The rest, by kind."""
        ...


class Heard:
    """What has come of the events so far; see `EpisodeView` for each."""

    __slots__ = ("_is_played", "_system", "_task", "_under_way", "calls", "conversations", "messages", "replies")

    def __init__(self, task: Task, events: Iterable[EventLike] = ()) -> None:
        """Args: the task that is played, and what has happened already."""
        self._task = task
        self.messages: list[Message] = []
        self.replies: list[str] = []
        self.calls: list[CallRecord] = []
        self.conversations: dict[str, list[Message]] = {name: [] for name in task.bundle.agents}
        self.conversations[task.bundle.played] = self.messages
        self._system = ""
        """The system prompt in force."""
        self._is_played = True
        """Whether the turn under way is the played agent's."""
        self._under_way: list[tuple[str, Mapping[str, Any] | None]] = []
        """Calls without an answer: the id and the arguments of each. Another may be refused while one is under way."""
        for event in events:
            self.take(event)

    def take(self, event: EventLike) -> None:
        """Take in what has happened."""
        match event.kind:
            case "message":
                self.messages.append(cast("Message", event.data["message"]))
            case "call":
                self._under_way.append((event.data["call_id"], event.data.get("arguments")))
            case "answer":
                self._answer(event)
            case "turn_started":
                self._turn_started(event.data)
            case "turn_ended":
                self._turn_ended(event.data.get("reply"))
            case "agent_said":
                self._agent_said(event.data)
            case "agent_called":
                self._agent_called(event.data)
            case _:
                pass

    def view(self, *, scores: Mapping[str, Score], cut: CutReason | None, states: Mapping[str, Any]) -> EpisodeView:
        """Return what a verifier is shown, in lists of its own.

        Args:
            scores: Of the verify steps before.
            cut: Why the episode was cut, if it was.
            states: What each env has as its state, by the env's name.
        """
        return EpisodeView(
            task_id=self._task.id,
            params=self._task.copy_params(),
            tags=self._task.tags,
            messages=list(self.messages),
            replies=list(self.replies),
            calls=list(self.calls),
            conversations={name: list(messages) for name, messages in self.conversations.items()},
            scores=dict(scores),
            cut=cut,
            states=states,
        )

    def _turn_started(self, data: Mapping[str, Any]) -> None:
        self._is_played = data.get("kind", "played") == "played"
        if not self._is_played:
            return
        system = data.get("system_prompt", "")
        if system and system != self._system:
            self._system = system
            self.messages.append(Message(role="system", content=system))
        self.messages.append(Message(role="user", content=data["prompt"]))

    def _answer(self, event: EventLike) -> None:
        data = event.data
        call_id, tool, text = data["call_id"], data["tool"], data["text"]
        called = next((call for call in reversed(self._under_way) if call[0] == call_id), None)
        if called is not None:
            self._under_way.remove(called)
        arguments = None if called is None else called[1]
        is_error = bool(data["is_error"])
        self.calls.append(
            CallRecord(tool=tool, arguments=arguments, text=text, is_error=is_error, turn=event.turn or 0)
        )
        self.messages.append(Message(role="tool", content=text, tool_call_id=call_id, name=tool))

    def _turn_ended(self, reply: str | None) -> None:
        if self._is_played and reply is not None:
            self.replies.append(reply)

    def _agent_said(self, data: Mapping[str, Any]) -> None:
        said = self.conversations.setdefault(data["agent"], [])
        if data.get("system_prompt"):
            said.append(Message(role="system", content=data["system_prompt"]))
        if data.get("heard") is not None:
            said.append(Message(role="user", content=data["heard"]))
        said.append(cast("Message", data["message"]))

    def _agent_called(self, data: Mapping[str, Any]) -> None:
        message = Message(role="tool", content=data["text"], tool_call_id=data["call_id"], name=data["tool"])
        self.conversations.setdefault(data["agent"], []).append(message)
