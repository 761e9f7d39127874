"""Asking a model behind an endpoint: what is sent, what comes back, and what is shared and given back."""

from __future__ import annotations

import asyncio
import base64
import sys
import threading
from typing import Any

import anyio
import pytest

from agent_env import MissingExtraError, ToolSpec, UsageError
from agent_env.bundle import ModelSpec
from agent_env.chat import ChatUsage, complete, open_chat

HELLO = [{"role": "user", "content": "Hello."}]


async def test_a_question_is_what_the_protocol_says(endpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Model, messages, tools and limits in the body; the key in the header."""
    monkeypatch.setenv("SHOP_KEY", "sk-shop-12345678 \n")
    endpoint.says(endpoint.reply())
    tool = ToolSpec(name="sell", description="Sell some.", parameters={"type": "object", "properties": {}})
    spec = endpoint.spec(api_key_env="SHOP_KEY", temperature=0.5, max_tokens=64, extra={"seed": 7})
    await complete(spec, [{"role": "system", "content": "Be short."}, *HELLO], [tool])
    assert endpoint.bodies == [
        {
            "model": "small",
            "messages": [{"role": "system", "content": "Be short."}, *HELLO],
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "sell",
                        "description": "Sell some.",
                        "parameters": {"type": "object", "properties": {}},
                    },
                }
            ],
            "temperature": 0.5,
            "max_tokens": 64,
            "seed": 7,
        }
    ]
    assert endpoint.headers[0]["authorization"] == "Bearer sk-shop-12345678"


async def test_no_key_of_another_program_is_sent(endpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's own variables are for another server than the one in the bundle."""
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "secret-of-another")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:1/v1")
    endpoint.says(endpoint.reply())
    await complete(endpoint.spec(), HELLO)
    assert "authorization" not in endpoint.headers[0]
    assert "secret-of-another" not in str(dict(endpoint.headers[0]))


async def test_a_reply_has_what_the_endpoint_said(endpoint: Any) -> None:
    """The text, the calls as they were written, the model, the tokens, and why it stopped."""
    endpoint.says(endpoint.reply("Let me see.", ("sell", '{"count":  3.0}'), ("look", "")))
    reply = await complete(endpoint.spec(), HELLO)
    assert reply.message == {
        "role": "assistant",
        "content": "Let me see.",
        "tool_calls": [
            {"id": "c0", "name": "sell", "arguments": '{"count":  3.0}'},
            {"id": "c1", "name": "look", "arguments": ""},
        ],
    }
    assert (reply.finish_reason, reply.model, reply.tries) == ("tool_calls", "small-001", 1)
    assert reply.usage == ChatUsage(prompt_tokens=12, completion_tokens=3)
    assert reply.duration_s > 0


async def test_a_reply_that_was_cut_off_is_returned(endpoint: Any) -> None:
    """What to do about it is for the caller: the reason says `length`."""
    endpoint.says(endpoint.reply("I will now", ("sell", '{"count": '), finish_reason="length"))
    reply = await complete(endpoint.spec(), HELLO)
    assert (reply.finish_reason, reply.message["tool_calls"][0]["arguments"]) == ("length", '{"count": ')


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"content": None}, ""),
        ({"content": None, "refusal": "I cannot."}, "I cannot."),
        ({"content": [{"type": "text", "text": "In "}, {"type": "text", "text": "parts."}]}, "In parts."),
        ({"content": "Half \ud800 a pair."}, "Half \ufffd a pair."),
        (
            {"content": "Yes.", "reasoning_content": "Well?"},
            [{"type": "thinking", "thinking": "Well?"}, {"type": "text", "text": "Yes."}],
        ),
    ],
)
async def test_what_servers_do_differently_is_read(endpoint: Any, message: dict[str, Any], expected: object) -> None:
    """No content, a refusal, parts, thinking beside the text, text that is none."""
    endpoint.says(endpoint.reply(**message))
    assert (await complete(endpoint.spec(), HELLO)).message["content"] == expected


@pytest.mark.parametrize(
    "usage",
    [
        None,
        "12",
        {},
        {"prompt_tokens": 12},
        {"prompt_tokens": 12, "completion_tokens": True},
        {"prompt_tokens": 12.0, "completion_tokens": 3},
        {"prompt_tokens": -12, "completion_tokens": 3},
        {"prompt_tokens": 12, "completion_tokens": 10**40},
    ],
)
async def test_a_usage_that_does_not_say_both_counts_is_none(endpoint: Any, usage: object) -> None:
    """A count that is missing, or cannot be one, is not taken for 0 or any other."""
    endpoint.says({**endpoint.reply("Done."), "usage": usage})
    assert (await complete(endpoint.spec(), HELLO)).usage is None


async def test_every_call_has_an_id_of_its_own(endpoint: Any) -> None:
    """Servers that give none, or one twice, or that parse the arguments, are put right."""
    body = endpoint.reply(None, ("a", "{}"), ("b", "{}"), ("c", "{}"))
    calls = body["choices"][0]["message"]["tool_calls"]
    calls[0]["id"], calls[1]["id"], calls[2]["id"] = None, "x", "x"
    calls[1]["function"]["arguments"] = {"count": 3}
    del calls[2]["function"]["arguments"]
    endpoint.says(body)
    read = (await complete(endpoint.spec(), HELLO)).message["tool_calls"]
    assert len({call["id"] for call in read}) == 3
    assert [call["arguments"] for call in read] == ["{}", '{"count": 3}', ""]


async def test_a_conversation_is_sent_so_that_every_server_takes_it(endpoint: Any) -> None:
    """Each answer finds its call; thinking, arguments that are no JSON, and half of a surrogate pair do not go out."""
    endpoint.says(endpoint.reply())
    image = base64.b64encode(b"png").decode()
    await complete(
        endpoint.spec(),
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look \udfff:"},
                    {"type": "image", "data": image, "mimeType": "image/png"},
                ],
            },
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Nice."}],
                "tool_calls": [
                    {"name": "sell", "arguments": '{"count": '},
                    {"id": "b", "name": "look", "arguments": ""},
                ],
                "usage": {"prompt_tokens": 1},
            },
            {"role": "tool", "content": "no JSON", "tool_call_id": "call-1", "name": "sell"},
            {"role": "tool", "content": "a shop", "tool_call_id": "b", "name": "look"},
            {"role": "tool", "content": "what was that?", "tool_call_id": "call-3", "name": "unreadable"},
            {"role": "assistant", "content": ""},
        ],
    )
    assert endpoint.bodies[0]["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Look \ufffd:"},
                {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}},
            ],
        },
        {
            "role": "assistant",
            "content": "Nice.",
            "tool_calls": [
                {"id": "call-1", "type": "function", "function": {"name": "sell", "arguments": "{}"}},
                {"id": "b", "type": "function", "function": {"name": "look", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "call-1", "content": "no JSON"},
        {"role": "tool", "tool_call_id": "b", "content": "a shop"},
        {"role": "user", "content": "unreadable: what was that?"},
        {"role": "assistant", "content": ""},
    ]


async def test_a_field_that_is_null_is_left_out(endpoint: Any) -> None:
    """`extra` stands above what is sent otherwise."""
    endpoint.says(endpoint.reply())
    await complete(endpoint.spec(extra={"temperature": None, "max_completion_tokens": 9}), HELLO)
    assert endpoint.bodies == [{"model": "small", "messages": HELLO, "max_completion_tokens": 9}]


async def test_a_model_that_has_a_newer_limit_is_asked_with_it(endpoint: Any) -> None:
    """`max_tokens` is refused by some models; the second question goes right at once."""
    error = {"error": {"message": "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."}}
    endpoint.fails(400, error)
    endpoint.says(endpoint.reply())
    async with open_chat() as chat:
        await chat.complete(endpoint.spec(max_tokens=5), HELLO)
        await chat.complete(endpoint.spec(max_tokens=5), HELLO)
    assert [sorted(body.keys() - {"model", "messages", "temperature"}) for body in endpoint.bodies] == [
        ["max_tokens"],
        ["max_completion_tokens"],
        ["max_completion_tokens"],
    ]


async def test_variables_stand_in_the_name_and_the_url(endpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a bundle names neither."""
    monkeypatch.setenv("WHERE", endpoint.base_url)
    monkeypatch.setenv("WHICH", "tiny")
    endpoint.says(endpoint.reply())
    await complete(ModelSpec(model="${WHICH}", base_url="${WHERE}"), HELLO)
    assert endpoint.bodies[0]["model"] == "tiny"


async def test_chats_of_a_loop_share_their_connections(endpoint: Any) -> None:
    """One after the other they go over one connection, which is closed when the last chat is."""
    endpoint.says(endpoint.reply())
    async with open_chat() as first:
        await first.complete(endpoint.spec(), HELLO)
        async with open_chat() as second:
            await second.complete(endpoint.spec(), HELLO)
        await complete(endpoint.spec(), HELLO)
        await first.complete(endpoint.spec(), HELLO)
        assert len(endpoint.connections) == 1
    await _until(lambda: endpoint.open_connections == 0)
    await complete(endpoint.spec(), HELLO)
    assert len(endpoint.connections) == 2


async def test_a_closed_chat_says_so(endpoint: Any) -> None:
    """Its connections may be gone."""
    async with open_chat() as chat:
        pass
    with pytest.raises(UsageError, match="within the block of open_chat"):
        await chat.complete(endpoint.spec(), HELLO)


async def test_hundreds_at_once_are_all_answered(endpoint: Any) -> None:
    """More than are under way at a time."""
    endpoint.says(endpoint.reply())
    async with open_chat() as chat, asyncio.TaskGroup() as asking:
        asked = [asking.create_task(chat.complete(endpoint.spec(), HELLO)) for _ in range(600)]
    assert {task.result().message["content"] for task in asked} == {"Fine."}
    await _until(lambda: endpoint.open_connections == 0)


async def test_a_cancelled_question_lets_go_of_its_connection(endpoint: Any) -> None:
    """The server sees it go, and nothing stays open."""
    endpoint.hangs()
    async with open_chat() as chat:
        asking = asyncio.create_task(chat.complete(endpoint.spec(), HELLO))
        await _acquired(endpoint.under_way)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await _acquired(endpoint.given_up)
    await _until(lambda: endpoint.open_connections == 0)


async def test_a_chat_that_is_cancelled_closes(endpoint: Any) -> None:
    """Also with questions under way."""
    endpoint.hangs()

    async def ask() -> None:
        async with open_chat() as chat, asyncio.TaskGroup() as asking:
            for _ in range(3):
                asking.create_task(chat.complete(endpoint.spec(), HELLO))

    task = asyncio.create_task(ask())
    for _ in range(3):
        await _acquired(endpoint.under_way)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await _until(lambda: endpoint.open_connections == 0)


def test_each_loop_has_connections_of_its_own(endpoint: Any) -> None:
    """One run of a loop after another works, and so do two."""
    endpoint.says(endpoint.reply())
    for _ in range(2):
        asyncio.run(complete(endpoint.spec(), HELLO))
    assert len(endpoint.connections) == 2


async def test_a_missing_sdk_is_one_line(endpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to install."""
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingExtraError, match=r"needs 'openai', .*extra 'models' .*pip install '\.\[models\]'"):
        await complete(endpoint.spec(), HELLO)


async def _until(is_so: Any) -> None:
    with anyio.fail_after(30):
        while not is_so():  # noqa: ASYNC110 - the server is in another thread
            await anyio.sleep(0.005)


async def _acquired(semaphore: threading.Semaphore) -> None:
    assert await asyncio.to_thread(semaphore.acquire, timeout=50)
