"""The conversations of a recorded run, as a verifier is shown those of an episode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from agent_env.runs import RunEvent
from agent_env.verify import CallRecord, Message

__all__ = ["Heard", "hear"]


@dataclass(slots=True)
class Heard:
    """What was said and called in a run; see `EpisodeView` for each."""

    messages: list[Message] = field(default_factory=list[Message])
    replies: list[str] = field(default_factory=list[str])
    calls: list[CallRecord] = field(default_factory=list[CallRecord])
    conversations: dict[str, list[Message]] = field(default_factory=dict[str, "list[Message]"])


def hear(events: Iterable[RunEvent], *, played: str) -> Heard:
    """Read a run's conversations.

    Args:
        events: The run's events, from the first on.
        played: The agent that is played, by its name.
    """
    reading = _Reading()
    reading.heard.conversations[played] = reading.heard.messages
    for event in events:
        reader = _READERS.get(event.kind)
        if reader is not None:
            reader(reading, event)
    return reading.heard


@dataclass(slots=True)
class _Reading:
    heard: Heard = field(default_factory=Heard)
    system: str = ""
    is_played: bool = True
    """Whether the turn under way is the played agent's."""
    is_broken_off: bool = False
    arguments: dict[str, Mapping[str, Any] | None] = field(default_factory=dict[str, "Mapping[str, Any] | None"])


def _turn_started(reading: _Reading, event: RunEvent) -> None:
    data = event.data
    reading.is_played = data.get("kind", "played") == "played"
    reading.is_broken_off = False
    if not reading.is_played:
        return
    system = data.get("system_prompt", "")
    if system and system != reading.system:
        reading.system = system
        reading.heard.messages.append(Message(role="system", content=system))
    reading.heard.messages.append(Message(role="user", content=data["prompt"]))


def _message(reading: _Reading, event: RunEvent) -> None:
    reading.heard.messages.append(cast("Message", event.data["message"]))


def _call(reading: _Reading, event: RunEvent) -> None:
    reading.arguments[event.data["call_id"]] = event.data.get("arguments")


def _answer(reading: _Reading, event: RunEvent) -> None:
    data = event.data
    call_id, tool, text = data["call_id"], data["tool"], data["text"]
    arguments = reading.arguments.pop(call_id, None)
    reading.heard.calls.append(
        CallRecord(tool=tool, arguments=arguments, text=text, is_error=bool(data["is_error"]), turn=event.turn or 0)
    )
    reading.heard.messages.append(Message(role="tool", content=text, tool_call_id=call_id, name=tool))


def _broken_off(reading: _Reading, event: RunEvent) -> None:
    del event
    reading.is_broken_off = True


def _turn_ended(reading: _Reading, event: RunEvent) -> None:
    if reading.is_played and not reading.is_broken_off:
        reading.heard.replies.append(event.data.get("reply") or "")


def _agent_said(reading: _Reading, event: RunEvent) -> None:
    data = event.data
    said = reading.heard.conversations.setdefault(data["agent"], [])
    if data.get("system_prompt"):
        said.append(Message(role="system", content=data["system_prompt"]))
    if data.get("heard") is not None:
        said.append(Message(role="user", content=data["heard"]))
    said.append(cast("Message", data["message"]))


def _agent_called(reading: _Reading, event: RunEvent) -> None:
    data = event.data
    message = Message(role="tool", content=data["text"], tool_call_id=data["call_id"], name=data["tool"])
    reading.heard.conversations.setdefault(data["agent"], []).append(message)


_READERS = {
    "turn_started": _turn_started,
    "message": _message,
    "call": _call,
    "answer": _answer,
    "cut": _broken_off,
    "failure": _broken_off,
    "turn_ended": _turn_ended,
    "agent_said": _agent_said,
    "agent_called": _agent_called,
}
