"""Messages between the cookbook's shape, which renderers read, and the episode's, which runs keep.

Both ways, so that a recorded conversation renders to the tokens that the rollout had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from agent_env.envs import ToolSpec
from agent_env.training._cookbook import Message, ToolCall
from agent_env.training._cookbook import ToolSpec as CookbookToolSpec
from agent_env.verify import Message as RecordedMessage
from agent_env.verify import ToolCall as RecordedToolCall
from agent_env.verify import UnreadableCall

__all__ = ["answer_message", "from_record", "plain_text", "shown_tools", "to_record"]


def to_record(message: Message) -> RecordedMessage:
    """A message as the episode keeps it."""
    role = cast("Literal['system', 'user', 'assistant', 'tool']", message["role"])
    recorded = RecordedMessage(role=role, content=message["content"])
    if calls := message.get("tool_calls"):
        recorded["tool_calls"] = [_recorded_call(call) for call in calls]
    if unreadable := message.get("unparsed_tool_calls"):
        recorded["unreadable_calls"] = [UnreadableCall(raw=call.raw_text, error=call.error) for call in unreadable]
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


def answer_message(
    text: str, content: Sequence[Mapping[str, Any]] = (), *, name: str, call_id: str | None, images: bool = False
) -> Message:
    """A tool's answer as a renderer reads it.

    Args:
        text: What the tool said.
        content: Its parts beyond text, as MCP content blocks.
        name: The tool.
        call_id: What the model's message calls the call.
        images: Whether the renderer can write images; else each is a placeholder in the text.
    """
    shown: list[dict[str, Any]] = []
    said = {text, *text.splitlines()}
    for part in content:
        if part["type"] == "image" and images:
            shown.append({"type": "image", "image": f"data:{part.get('mimeType', 'image/png')};base64,{part['data']}"})
        elif (
            part["type"] != "structured" and (more := _as_text(part)) not in said
        ):  # an MCP tool's text has those already
            text += f"\n{more}" if text else more
    message: Message = {"role": "tool", "content": text, "name": name, "tool_call_id": call_id or ""}
    if shown:
        message["content"] = [*([{"type": "text", "text": text}] if text else []), *shown]
    return message


def _as_text(part: Mapping[str, Any]) -> str:
    """A part of an answer for a model without eyes and ears."""
    if part["type"] == "text":
        return str(part["text"])
    return f"[{part['type']}: {part['mimeType']}]" if "mimeType" in part else f"[{part['type']}]"


def plain_text(content: str | Sequence[Mapping[str, Any]]) -> str:
    """What a message says, its thinking too, for a log."""
    if isinstance(content, str):
        return content
    parts = (part.get("text") or part.get("thinking") or f"[{part.get('type')}]" for part in content)
    return "\n".join(str(part) for part in parts)


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
