"""Messages between the cookbook's shape, which renderers read, and the episode's, which runs keep.

Both ways, so that a recorded conversation renders to the tokens that the rollout had.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from agent_env.envs import ToolSpec
from agent_env.training._cookbook import Message, ToolCall, UnparsedToolCall
from agent_env.training._cookbook import ToolSpec as CookbookToolSpec
from agent_env.verify import Message as RecordedMessage
from agent_env.verify import ToolCall as RecordedToolCall

__all__ = ["answer_message", "call_name", "from_record", "shown_tools", "to_record"]

_NAME = re.compile(r'"name"\s*:\s*"([^"]+)"|<function=([^>\s]+)')


def to_record(message: Message) -> RecordedMessage:
    """An assistant's message as the episode keeps it."""
    recorded = RecordedMessage(role="assistant", content=message["content"])
    if calls := message.get("tool_calls"):
        recorded["tool_calls"] = [_recorded_call(call) for call in calls]
    return recorded


def _recorded_call(call: ToolCall) -> RecordedToolCall:
    recorded = RecordedToolCall(name=call.function.name, arguments=call.function.arguments)
    if call.id:
        recorded["id"] = call.id
    return recorded


def from_record(recorded: Mapping[str, Any]) -> Message:
    """An assistant's message as the cookbook has it.

    Args:
        recorded: The message of a run's `message` event, or what a player returned.
    """
    message = Message(role="assistant", content=recorded.get("content") or "")
    if calls := cast("Sequence[Mapping[str, Any]]", recorded.get("tool_calls") or ()):
        message["tool_calls"] = [
            ToolCall(
                function=ToolCall.FunctionBody(name=call["name"], arguments=call["arguments"]),
                id=call.get("id") or None,
            )
            for call in calls
        ]
    return message


def answer_message(text: str, *, name: str, call_id: str | None) -> Message:
    """A tool's answer as a renderer reads it."""
    return {"role": "tool", "content": text, "name": name, "tool_call_id": call_id or ""}


def call_name(call: UnparsedToolCall) -> str:
    """The tool that an unreadable call most likely meant."""
    found = _NAME.search(call.raw_text)
    return (found[1] or found[2]) if found else "unreadable"


def shown_tools(tools: Sequence[ToolSpec | Mapping[str, Any]]) -> list[CookbookToolSpec]:
    """Tools as a renderer shows them, from an episode's turn or from a run's `turn_started` event."""
    return [
        CookbookToolSpec(name=tool.name, description=tool.description, parameters=_plain(tool.parameters))
        if isinstance(tool, ToolSpec)
        else CookbookToolSpec(name=tool["name"], description=tool["description"], parameters=_plain(tool["parameters"]))
        for tool in tools
    ]


def _plain(value: Any) -> Any:
    """The same JSON value in dicts and lists, as renderers write it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("Sequence[Any]", value)]
    return value
