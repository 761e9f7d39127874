"""What an endpoint answered, its shape checked: an endpoint is anyone's program, and its answer may be anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard, cast

from agent_env.chat._text import printable_line, without_surrogates
from agent_env.chat.faults import ChatFaultError

__all__ = ["ChatReply", "ChatUsage", "read_reply"]

_MOST_TOKENS = 10**12
"""A larger count is a mistake, and sums of them are to fit 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatUsage:
    """What an answer took, as the endpoint counts."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    """One answer of a model."""

    message: dict[str, Any]
    """The assistant's message in the shape of `agent_env.Message`: the text of a call's arguments is as the model wrote it."""
    finish_reason: str
    """Why the model stopped, in the endpoint's words: `stop`, `tool_calls`, or `length` for one that was cut off at `max_tokens`."""
    model: str
    """Which model answered, as the endpoint says."""
    usage: ChatUsage | None
    """None where the endpoint does not say."""
    duration_s: float
    """Seconds from the question to the answer, tries that failed included."""
    tries: int
    """How often it was asked: 1, or more where the endpoint was busy or could not be reached at first."""


def read_reply(body: bytes, *, asked_for: str, duration_s: float, tries: int) -> ChatReply:
    """Read the body of an answer.

    Args:
        body: The body.
        asked_for: The model that was asked for, where the answer does not name one.
        duration_s: For the reply.
        tries: For the reply.

    Raises:
        ChatFaultError: When it is no answer to a chat, or none was given.
    """
    data = _object(_json(body), "the answer")
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices:
        raise _without_choice(data)
    choice = _object(cast("list[Any]", choices)[0], "choices[0]")
    finish_reason = choice.get("finish_reason")
    if finish_reason == "content_filter":
        raise ChatFaultError("the endpoint's content filter stopped the answer")
    message = _message(_object(choice.get("message"), "choices[0].message"))
    if not isinstance(finish_reason, str):
        finish_reason = "tool_calls" if "tool_calls" in message else "stop"
    model = data.get("model")
    return ChatReply(
        message=message,
        finish_reason=finish_reason,
        model=model if isinstance(model, str) and model else asked_for,
        usage=_usage(data.get("usage")),
        duration_s=duration_s,
        tries=tries,
    )


def _json(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        start = printable_line(body[:200].decode("utf-8", "replace"), 80)
        raise _misshapen(
            f"the answer is not JSON; it begins with {start!r}" if start else "the answer is empty"
        ) from None


def _object(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _misshapen(f"{what} is {_kind(value)}, not an object")
    return cast("dict[str, Any]", value)


def _without_choice(data: Mapping[str, Any]) -> ChatFaultError:
    """Say why there is no answer; some gateways send an error under the status 200."""
    error: object = data.get("error")
    if error:
        fields = cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": error}
        return ChatFaultError(f"it answers with an error: {printable_line(str(fields.get('message') or fields))}")
    if "choices" in data:
        return _misshapen("the list of choices is empty")
    return _misshapen("the answer has no choices")


def _message(said: Mapping[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": _content(said)}
    calls: object = said.get("tool_calls") or []
    if not isinstance(calls, list):
        raise _misshapen(f"tool_calls is {_kind(calls)}, not a list")
    taken: set[str] = set()
    read = [_call(call, taken) for call in cast("list[Any]", calls)]
    if read:
        message["tool_calls"] = read
    return message


def _content(said: Mapping[str, Any]) -> str | list[dict[str, Any]]:
    """What the model says: a text, and before it what it thought where the endpoint shows that."""
    content: object = said.get("content")
    if content is None:
        content = said.get("refusal") or ""
    if isinstance(content, list):
        parts = cast("list[Any]", content)
        texts: list[object] = [cast("dict[str, Any]", part).get("text") for part in parts if isinstance(part, dict)]
        content = "".join(text for text in texts if isinstance(text, str))
    if not isinstance(content, str):
        raise _misshapen(f"the content of the message is {_kind(content)}, not text")
    text = without_surrogates(content)
    thinking = said.get("reasoning_content") or said.get("reasoning")
    if not isinstance(thinking, str):
        return text
    return [{"type": "thinking", "thinking": without_surrogates(thinking)}, {"type": "text", "text": text}]


def _call(call: object, taken: set[str]) -> dict[str, Any]:
    """One call. Its id is made up where the endpoint gives none, or the same one twice: an answer must find its call."""
    function = _object(_object(call, "a tool call").get("function"), "the function of a tool call")
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str):
        raise _misshapen(f"the name of a called tool is {_kind(name)}, not text")
    if isinstance(arguments, dict):  # some servers parse them, against the protocol
        arguments = json.dumps(arguments)
    if arguments is None:
        arguments = ""
    if not isinstance(arguments, str):
        raise _misshapen(f"the arguments of a tool call are {_kind(arguments)}, not text")
    call_id = cast("Mapping[str, Any]", call).get("id")
    if not isinstance(call_id, str) or not call_id or call_id in taken:
        call_id = next(made for number in range(len(taken) + 1) if (made := f"call-{number + 1}") not in taken)
    taken.add(call_id)
    return {"id": call_id, "name": without_surrogates(name), "arguments": without_surrogates(arguments)}


def _usage(said: object) -> ChatUsage | None:
    """Both counts, or nothing: one that is missing or cannot be is not 0."""
    if not isinstance(said, dict):
        return None
    usage = cast("dict[str, Any]", said)
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if not (_is_count(prompt) and _is_count(completion)):
        return None
    return ChatUsage(prompt_tokens=prompt, completion_tokens=completion)


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= _MOST_TOKENS


def _kind(value: object) -> str:
    match value:
        case None:
            return "missing"
        case bool():
            return "true or false"
        case str():
            return "text"
        case int() | float():
            return "a number"
        case list():
            return "a list"
        case _:
            return "an object"


def _misshapen(what: str) -> ChatFaultError:
    return ChatFaultError(f"{what}: is base_url that of an OpenAI-compatible endpoint, with its /v1?")
