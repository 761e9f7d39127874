"""What may go wrong between a question and its answer: one line each, that says where and what to do."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from agent_env import ContextOverflowError, ModelServerError, UsageError
from agent_env.bundle import ModelSpec
from agent_env.chat import complete

HELLO = [{"role": "user", "content": "Hello."}]
KEY = "sk-secret-0123456789"

ERRORS = [
    (401, {"error": {"message": "Wrong key."}}, "the key in SHOP_KEY is refused (HTTP 401): Wrong key."),
    (403, {"error": {"message": "Not you."}}, "the key in SHOP_KEY may not use this model (HTTP 403): Not you."),
    (
        404,
        {"detail": "Not Found"},
        "there is no such model, or no such path: does base_url end with its /v1? (HTTP 404): Not Found",
    ),
    (422, {"detail": [{"msg": "bad"}]}, 'it refuses the request (HTTP 422): [{"msg": "bad"}]'),
    (400, '{"error": "no\\u001b[31m such\\n\\n field"}', "it refuses the request (HTTP 400): no\ufffd[31m such field"),
    (
        502,
        "<html><head><style>p {color: red}</style></head><body><h1>Bad gateway</h1></body></html>",
        "the server failed, 5 times in a row (HTTP 502): Bad gateway",
    ),
    (503, "", "the server failed, 5 times in a row (HTTP 503)"),
    (
        429,
        {"error": {"message": "Slow down.", "code": "rate_limit"}},
        "too many requests, or the quota is used up, 5 times in a row (HTTP 429): Slow down.",
    ),
    (
        400,
        {"error": {"message": "Filtered.", "code": "content_filter"}},
        "the endpoint's content filter refuses the conversation (HTTP 400): Filtered.",
    ),
    (302, "", "it sends somewhere else (HTTP 302)"),
    (400, f"you sent {KEY}", "it refuses the request (HTTP 400): you sent [key]"),
]


@pytest.mark.parametrize(("status", "body", "expected"), ERRORS)
async def test_an_error_of_the_endpoint_is_one_line(
    endpoint: Any, monkeypatch: pytest.MonkeyPatch, status: int, body: object, expected: str
) -> None:
    """What it means, and what the endpoint says about it, whatever form that has."""
    monkeypatch.setenv("SHOP_KEY", KEY)
    endpoint.fails(status, body)
    with pytest.raises(ModelServerError) as raised:
        await complete(endpoint.spec(api_key_env="SHOP_KEY"), HELLO)
    assert str(raised.value) == f"model 'small' at {endpoint.base_url}: {expected}"
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


async def test_a_key_that_is_missing_at_the_endpoint_is_asked_for(endpoint: Any) -> None:
    """A bundle that names no variable for it."""
    endpoint.fails(401, {"error": {"message": "No key."}})
    with pytest.raises(ModelServerError, match=r"it wants a key: name the variable that holds it \(api_key_env\)"):
        await complete(endpoint.spec(), HELLO)


@pytest.mark.parametrize(
    "error",
    [
        {"message": "This model's maximum context length is 8192 tokens.", "code": "context_length_exceeded"},
        {"message": "The input is longer than the model's context length.", "type": "BadRequestError"},
        {"message": "the request exceeds the available context size", "type": "exceed_context_size_error"},
        {"message": "prompt is too long: 210000 tokens > 200000 maximum"},
    ],
)
async def test_a_conversation_that_does_not_fit_is_an_error_of_its_own(endpoint: Any, error: dict[str, str]) -> None:
    """Whoever plays can tell it from a broken server."""
    endpoint.fails(400, {"error": error})
    with pytest.raises(ContextOverflowError, match=r"does not fit the model's context \(HTTP 400\)"):
        await complete(endpoint.spec(), HELLO)


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
async def test_an_endpoint_that_is_busy_is_asked_again(endpoint: Any, status: int) -> None:
    """After as long as it says."""
    endpoint.fails(status)
    endpoint.fails(status)
    endpoint.says(endpoint.reply())
    assert (await complete(endpoint.spec(), HELLO)).tries == 3


async def test_an_endpoint_that_says_to_wait_for_long_is_not_waited_for(endpoint: Any) -> None:
    """An hour is no retry."""
    endpoint.fails(429, "", retry_after_ms="3600000", retry_after="3600")
    with pytest.raises(ModelServerError, match=r"quota is used up \(HTTP 429\)"):
        await complete(endpoint.spec(), HELLO)
    assert len(endpoint.bodies) == 1


IS_IT = ": is base_url that of an OpenAI-compatible endpoint, with its /v1?"
BAD = [
    (b"<html>hello</html>", f"the answer is not JSON; it begins with '<html>hello</html>'{IS_IT}"),
    (b"\xff\xfe", f"the answer is not JSON; it begins with '\ufffd\ufffd'{IS_IT}"),
    (b"", f"the answer is empty{IS_IT}"),
    (b"[" * 100_000, "the answer is not JSON; it begins with"),
    (b"[1]", f"the answer is a list, not an object{IS_IT}"),
    (b"{}", f"the answer has no choices{IS_IT}"),
    (b'{"choices": []}', f"the list of choices is empty{IS_IT}"),
    (b'{"choices": null}', f"the list of choices is empty{IS_IT}"),
    (b'{"choices": [null]}', f"choices[0] is missing, not an object{IS_IT}"),
    (b'{"choices": [{}]}', f"choices[0].message is missing, not an object{IS_IT}"),
    (b'{"choices": [{"message": {"content": 5}}]}', f"the content of the message is a number, not text{IS_IT}"),
    (b'{"choices": [{"message": {"tool_calls": {"a": 1}}}]}', f"tool_calls is an object, not a list{IS_IT}"),
    (
        b'{"choices": [{"message": {"tool_calls": [{"function": {"arguments": "{}"}}]}}]}',
        f"the name of a called tool is missing, not text{IS_IT}",
    ),
    (
        b'{"choices": [{"message": {"tool_calls": [{"function": {"name": "a", "arguments": true}}]}}]}',
        f"the arguments of a tool call are true or false, not text{IS_IT}",
    ),
    (b'{"error": {"message": "No provider.", "code": 502}}', "it answers with an error: No provider."),
    (b'{"error": "No\\n provider."}', "it answers with an error: No provider."),
    (
        b'{"choices": [{"message": {"content": "I"}, "finish_reason": "content_filter"}]}',
        "the endpoint's content filter stopped the answer",
    ),
]


@pytest.mark.parametrize(("body", "expected"), BAD)
async def test_an_answer_that_is_none_is_one_line(endpoint: Any, body: bytes, expected: str) -> None:
    """It says what is wrong with it, and never goes on with half of it."""
    endpoint.sends(body)
    with pytest.raises(ModelServerError) as raised:
        await complete(endpoint.spec(), HELLO)
    assert str(raised.value).startswith(f"model 'small' at {endpoint.base_url}: {expected}")
    assert "\n" not in str(raised.value)


@pytest.fixture
def two_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a test does not wait for four of them."""
    monkeypatch.setattr("agent_env.chat._sdk.TRIES", 2)


@pytest.mark.usefixtures("two_tries")
async def test_a_server_that_is_not_there_is_one_line() -> None:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
    with pytest.raises(ModelServerError, match="the connection is refused, 2 times in a row: is the server running"):
        await complete(ModelSpec(model="small", base_url=url), HELLO)


@pytest.mark.usefixtures("two_tries")
async def test_a_host_that_is_not_known_is_one_line() -> None:
    """A name that no name server has."""
    spec = ModelSpec(model="small", base_url="http://nowhere.invalid/v1")
    with pytest.raises(ModelServerError, match="the host's name is not known, 2 times in a row"):
        await complete(spec, HELLO)


@pytest.mark.usefixtures("two_tries")
async def test_https_to_a_server_without_it_is_one_line(endpoint: Any) -> None:
    """A wrong letter in a URL."""
    spec = endpoint.spec(base_url=endpoint.base_url.replace("http:", "https:"))
    with pytest.raises(ModelServerError, match=r"no TLS connection can be made, .*: http or https\?"):
        await complete(spec, HELLO)


@contextmanager
def _server(sends: bytes) -> Generator[str]:
    """A server that reads a question, sends some bytes, and hangs up."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(sends)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.usefixtures("two_tries")
@pytest.mark.parametrize(
    "sends",
    [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200 OK\r\n"],
)
async def test_a_server_that_hangs_up_is_one_line(sends: bytes) -> None:
    """Before an answer, in the middle of it, or because it speaks something else."""
    with _server(sends) as url, pytest.raises(ModelServerError) as raised:
        await complete(ModelSpec(model="small", base_url=url), HELLO)
    assert re.fullmatch(
        rf"model 'small' at {url}: (the connection broke|connection reset by peer), 2 times in a row.*",
        str(raised.value),
    )


@pytest.mark.usefixtures("two_tries")
@pytest.mark.parametrize("how", ["hangs", "drips"])
async def test_a_server_that_does_not_come_to_an_end_is_given_up(endpoint: Any, how: str) -> None:
    """Also one that sends something now and then: the time is that of the whole try."""
    getattr(endpoint, how)()
    with pytest.raises(ModelServerError, match=r"no answer within 0\.2 s, 2 times in a row: is timeout_s enough"):
        await complete(endpoint.spec(timeout_s=0.2), HELLO)


@pytest.mark.usefixtures("two_tries")
async def test_a_server_that_floods_is_given_up(endpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer has a bound."""
    monkeypatch.setattr("agent_env.chat._sdk.ANSWER_BYTES", 3 << 20)
    endpoint.floods(5)
    with pytest.raises(ModelServerError, match="the answer is longer than 3 MB"):
        await complete(endpoint.spec(), HELLO)


@pytest.mark.parametrize("value", [None, "", "  "])
async def test_a_key_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    """Nobody is asked."""
    monkeypatch.delenv("SHOP_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("SHOP_KEY", value)
    spec = ModelSpec(model="small", base_url="http://localhost:1/v1", api_key_env="SHOP_KEY")
    with pytest.raises(
        ModelServerError, match="model 'small': the variable SHOP_KEY is not set, which is to hold the key"
    ):
        await complete(spec, HELLO)


async def test_a_key_that_is_none_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A header cannot hold it."""
    monkeypatch.setenv("SHOP_KEY", "sk-secret\nX-Other: 1")
    spec = ModelSpec(model="small", base_url="http://localhost:1/v1", api_key_env="SHOP_KEY")
    with pytest.raises(ModelServerError, match="what the variable SHOP_KEY holds is no key") as raised:
        await complete(spec, HELLO)
    assert "secret" not in str(raised.value)


async def test_a_variable_of_the_url_that_is_not_set_is_named() -> None:
    """As it stands in the bundle."""
    spec = ModelSpec(model="small", base_url="${NOT_SET_ANYWHERE}/v1")
    with pytest.raises(
        ModelServerError, match=r"at \$\{NOT_SET_ANYWHERE\}/v1: the variable NOT_SET_ANYWHERE is not set"
    ):
        await complete(spec, HELLO)


@pytest.mark.parametrize("url", ["localhost:8000/v1", "", "http://", "http://x:abc/v1", "ftp://x/v1", "http://[x/v1"])
async def test_what_is_no_url_is_a_usage_error(url: str) -> None:
    """With one to copy."""
    with pytest.raises(UsageError, match=r"is no URL, write one such as http://localhost:8000/v1"):
        await complete(ModelSpec(model="small", base_url=url), HELLO)


async def test_what_may_be_a_secret_in_a_url_is_not_shown(endpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A password before the host, and what comes from a variable after it."""
    monkeypatch.setenv("WHERE", endpoint.base_url.replace("//", "//me:hidden@").replace("/v1", "/v1/hidden"))
    endpoint.sends(b"")
    with pytest.raises(ModelServerError) as raised:
        await complete(endpoint.spec(base_url="${WHERE}"), HELLO)
    assert "hidden" not in str(raised.value)
