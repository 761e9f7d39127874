"""`open_chat` and `complete`: one question to a model, one answer, or one clear error."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread

from agent_env._optional import MODELS, require
from agent_env._secrets import note_secret_name
from agent_env.bundle import ModelSpec
from agent_env.chat.faults import ChatFaultError
from agent_env.chat.reply import ChatReply, read_reply
from agent_env.chat.wire import ToolLike, request_body
from agent_env.errors import ContextOverflowError, ModelServerError, UsageError

if TYPE_CHECKING:
    from agent_env.chat._sdk import Endpoints, RawAnswer

__all__ = ["Chat", "check_model", "complete", "open_chat"]

logger = logging.getLogger(__name__)

CLOSE_S = 5.0
"""Seconds that closing the connections may take."""

_KEY_CHARS = 8
"""A shorter one is a placeholder such as `none`, which stands in other words too."""

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(slots=True, eq=False)
class _Shared:
    """What all chats of one event loop share."""

    holders: int = 0
    endpoints: Endpoints | None = None
    making: asyncio.Lock = field(default_factory=asyncio.Lock)
    starting: anyio.Lock = field(default_factory=anyio.Lock)
    newer_limit: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """Endpoints and models that take `max_completion_tokens` and not `max_tokens`."""

    async def connected(self) -> Endpoints:
        """Return the connections, once it is this question's turn to begin."""
        if self.endpoints is None:
            async with self.making:
                if self.endpoints is None:
                    self.endpoints = await anyio.to_thread.run_sync(_connect)
        async with self.starting:  # writing a question takes a millisecond: of hundreds, one in a pass of the loop
            await asyncio.sleep(0)
        return self.endpoints


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = WeakKeyDictionary()


@asynccontextmanager
async def open_chat() -> AsyncGenerator[Chat]:
    """Hold connections to endpoints open for the questions asked within the block.

    All that is open on one event loop at a time shares its connections, and `complete` uses them too; they are closed when
    the last block is left. So whoever plays many episodes opens one around them, and each episode may open its own.

    Yields:
        The chat; any task of the event loop may use it, any number at once.
    """
    loop = asyncio.get_running_loop()
    shared = _shared.setdefault(loop, _Shared())
    shared.holders += 1
    chat = Chat(shared)
    try:
        yield chat
    finally:
        chat.close()
        shared.holders -= 1
        if not shared.holders:
            del _shared[loop]  # whoever comes while these close opens others
            await _close(shared)


async def complete(spec: ModelSpec, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolLike] = ()) -> ChatReply:
    """Ask a model one question: `Chat.complete`, over the connections of an open chat where this event loop has one."""
    async with open_chat() as chat:
        return await chat.complete(spec, messages, tools)


def check_model(spec: ModelSpec) -> None:
    """Say what keeps any question from being asked, before one is. Nobody is asked.

    Raises:
        ModelServerError: When a variable is not set.
        MissingExtraError: When the SDK is not installed.
        UsageError: When `base_url` is no URL.
    """
    _key(_resolved(spec)[0])
    _require_sdk()


class Chat:
    """Asks models; made by `open_chat`."""

    def __init__(self, shared: _Shared) -> None:
        self._shared: _Shared | None = shared

    def close(self) -> None:
        """Internal: the block is left."""
        self._shared = None

    async def complete(
        self, spec: ModelSpec, messages: Sequence[Mapping[str, Any]], tools: Sequence[ToolLike] = ()
    ) -> ChatReply:
        """Ask a model for the next message of a conversation.

        Args:
            spec: The model, where it is, and how to ask it. `${NAME}` in `model` and `base_url` stands for an environment
                variable.
            messages: The conversation, `agent_env.Message`s. Thinking is left out; arguments that are no JSON object are sent
                as `{}`, for many servers refuse a conversation with others.
            tools: What the model may call.

        Returns:
            The answer. One that was cut off at `max_tokens` is one too: see `finish_reason`.

        Raises:
            ContextOverflowError: When the conversation does not fit the model's context.
            ModelServerError: When a variable is not set, the endpoint cannot be reached, refuses, fails or does not answer in
                time, several times in a row where that may help; when its answer is none; when a content filter stops it.
            MissingExtraError: When the SDK is not installed.
            UsageError: When the block of this chat was left, or `base_url` is no URL.
        """
        if self._shared is None:
            raise UsageError("complete(): this chat is closed, ask within the block of open_chat()")
        started = time.perf_counter()
        spec, where = _resolved(spec)
        key = _key(spec)
        try:
            endpoints = await self._shared.connected()
            answer = await _ask(self._shared, endpoints, spec, key, request_body(spec, messages, tools))
            return read_reply(
                answer.body,
                asked_for=spec.model,
                duration_s=time.perf_counter() - started,
                tries=answer.tries,
            )
        except ChatFaultError as exc:
            kind = ContextOverflowError if exc.is_overflow else ModelServerError
            raise kind(_without_key(f"{where}: {exc}", key)) from None


async def _ask(
    shared: _Shared, endpoints: Endpoints, spec: ModelSpec, key: str | None, body: dict[str, Any]
) -> RawAnswer:
    asked = (spec.base_url, spec.model)
    if asked in shared.newer_limit:
        _use_newer_limit(body)
    try:
        return await endpoints.ask(spec, key, body)
    except ChatFaultError as exc:
        if not exc.wants_newer_limit or "max_tokens" not in body:
            raise
    shared.newer_limit.add(asked)
    _use_newer_limit(body)
    return await endpoints.ask(spec, key, body)


def _use_newer_limit(body: dict[str, Any]) -> None:
    if "max_tokens" in body:
        body["max_completion_tokens"] = body.pop("max_tokens")


def _require_sdk() -> None:
    require("openai", install=MODELS, feature="A model behind an OpenAI-compatible endpoint")


def _connect() -> Endpoints:
    _require_sdk()
    from agent_env.chat._sdk import Endpoints

    return Endpoints()


async def _close(shared: _Shared) -> None:
    if shared.endpoints is None:
        return
    with anyio.move_on_after(CLOSE_S, shield=True) as scope:
        try:
            await shared.endpoints.aclose()
        except Exception:  # raised here it would replace what the block is left with
            logger.exception("connections to models: closing raised")
    if scope.cancelled_caught:
        logger.error("connections to models: not closed after %s s", CLOSE_S)


def _resolved(spec: ModelSpec) -> tuple[ModelSpec, str]:
    """Put the variables of the environment into a model's name and URL.

    Returns:
        The spec, and how to name it in a message: without what may be a secret in the URL.
    """

    def value(found: re.Match[str]) -> str:
        said = os.environ.get(found[1])
        if not said:
            raise ModelServerError(f"model {spec.model!r} at {spec.base_url}: the variable {found[1]} is not set")
        return said

    model = _VARIABLE.sub(value, spec.model)
    base_url = _VARIABLE.sub(value, spec.base_url).strip()
    url = _url(base_url)
    if url is None:
        raise UsageError(
            f"model {model!r}: base_url {spec.base_url!r} is no URL, write one such as http://localhost:8000/v1"
        )
    path = "" if "${" in spec.base_url else url.path
    where = f"model {model!r} at {url.scheme}://{url.netloc.rpartition('@')[2]}{path}"
    return replace(spec, model=model, base_url=base_url), where


def _url(text: str) -> SplitResult | None:
    try:
        url = urlsplit(text)
        return url if url.scheme in ("http", "https") and url.hostname and url.port != 0 else None
    except ValueError:
        return None


def _key(spec: ModelSpec) -> str | None:
    if spec.api_key_env is None:
        return None
    note_secret_name(spec.api_key_env)
    key = os.environ.get(spec.api_key_env, "").strip()
    if not key:
        raise ModelServerError(
            f"model {spec.model!r}: the variable {spec.api_key_env} is not set, which is to hold the key"
        )
    if not (key.isascii() and key.isprintable()):
        raise ModelServerError(f"model {spec.model!r}: what the variable {spec.api_key_env} holds is no key")
    return key


def _without_key(text: str, key: str | None) -> str:
    return text.replace(key, "[key]") if key and len(key) >= _KEY_CHARS else text
