"""A question as endpoints read it: messages of ours, and tools, as the body of a `chat/completions` request."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol, cast

from agent_env.bundle import ModelSpec
from agent_env.chat._text import without_surrogates

__all__ = ["ToolLike", "request_body", "text_of_content"]


class ToolLike(Protocol):
    """A tool as a model is shown it; `agent_env.ToolSpec` is one."""

    @property
    def name(self) -> str:
        """What it is called by."""
        ...

    @property
    def description(self) -> str:
        """What it does."""
        ...

    @property
    def parameters(self) -> Mapping[str, Any]:
        """A JSON Schema object."""
        ...


def request_body(spec: ModelSpec, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolLike]) -> dict[str, Any]:
    """Write the body of a request.

    A field of `spec.extra` stands above the others; one that is null is left out, also `temperature` or `max_tokens`. With
    `max_completion_tokens` there, `max_tokens` is left out.
    """
    body: dict[str, Any] = {"model": spec.model, "messages": list(_messages(messages))}
    if tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
            }
            for tool in tools
        ]
    body["temperature"] = spec.temperature
    if "max_completion_tokens" not in spec.extra:
        body["max_tokens"] = spec.max_tokens
    body.update(spec.extra)
    return cast("dict[str, Any]", _sendable({key: value for key, value in body.items() if value is not None}))


def _messages(messages: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    waiting: list[str] = []
    for place, message in enumerate(messages):
        match message["role"]:
            case "assistant":
                calls, waiting = _calls(message, messages, place)
                text = text_of_content(message["content"])
                yield {"role": "assistant", "content": text or (None if calls else ""), **calls}
            case "tool" if message.get("tool_call_id") in waiting:
                yield {
                    "role": "tool",
                    "tool_call_id": message["tool_call_id"],
                    "content": text_of_content(message["content"]),
                }
            case (
                "tool"
            ):  # of a call that could not be read, so that no message has it: an endpoint refuses such an answer
                yield {
                    "role": "user",
                    "content": f"{message.get('name') or 'tool'}: {text_of_content(message['content'])}",
                }
            case role:
                yield {"role": role, "content": _content(message["content"])}


def _calls(
    message: Mapping[str, Any], messages: Sequence[Mapping[str, Any]], place: int
) -> tuple[dict[str, Any], list[str]]:
    """The calls of a message, and their ids. A call without one gets that of the answer that belongs to it."""
    calls = cast("Sequence[Mapping[str, Any]]", message.get("tool_calls") or ())
    if not calls:
        return {}, []
    ids = [str(call.get("id") or "") for call in calls]
    if "" in ids:
        answers = (answer for answer in _answers(messages, place + 1) if answer not in ids)
        ids = [call_id or next(answers, f"call-{number}") for number, call_id in enumerate(ids, 1)]
    written = [
        {
            "id": call_id,
            "type": "function",
            "function": {"name": call["name"], "arguments": _arguments(call["arguments"])},
        }
        for call_id, call in zip(ids, calls, strict=True)
    ]
    return {"tool_calls": written}, ids


def _answers(messages: Sequence[Mapping[str, Any]], first: int) -> Iterator[str]:
    """The ids of the answers that stand in a row from a place on."""
    for message in islice(messages, first, None):
        if message["role"] != "tool":
            return
        yield str(message.get("tool_call_id") or "")


def _arguments(raw: str) -> str:
    """What a model wrote as arguments, where that is a JSON object; else `{}`: servers that read the conversation with
    templates refuse another text, for ever, and the answer to such a call says what was wrong with it.
    """
    try:
        is_object = isinstance(json.loads(raw), dict)
    except (ValueError, RecursionError):
        is_object = False
    return raw if is_object else "{}"


def text_of_content(content: str | Sequence[Mapping[str, Any]]) -> str:
    """What a message's content says: its text parts, without thinking and images."""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content if part.get("type") == "text")


def _content(content: str | Sequence[Mapping[str, Any]]) -> str | list[dict[str, Any]]:
    """What a prompt holds: a text, or parts where images are among them."""
    if isinstance(content, str) or all(part.get("type") not in ("image", "image_url") for part in content):
        return text_of_content(content)
    return [part for part in map(_part, content) if part is not None]


def _part(part: Mapping[str, Any]) -> dict[str, Any] | None:
    match part.get("type"):
        case "text":
            return {"type": "text", "text": str(part.get("text", ""))}
        case "image_url":
            return {"type": "image_url", "image_url": part["image_url"]}
        case "image":  # MCP's form, or a data URL as renderers take it
            url = part.get("image") or f"data:{part.get('mimeType', 'image/png')};base64,{part['data']}"
            return {"type": "image_url", "image_url": {"url": url}}
        case _:
            return None


def _sendable(value: object) -> object:
    """The same value in dicts and lists; half of a surrogate pair, which is no text, is U+FFFD."""
    match value:
        case str():
            return without_surrogates(value)
        case Mapping():
            items = cast("Mapping[Any, Any]", value).items()
            return {_sendable(str(key)): _sendable(item) for key, item in items}
        case list() | tuple():
            return [_sendable(item) for item in cast("Sequence[Any]", value)]
        case _:
            return value
