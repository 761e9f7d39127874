"""All that touches the `openai` SDK: sending a request, with its tries. Imported when the first question is asked."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import httpx2
import openai

from agent_env.bundle import ModelSpec
from agent_env.chat.faults import status_fault, timeout_fault, unreachable_fault

__all__ = ["Endpoints", "RawAnswer"]

TRIES = 5
"""How often a request is sent at most, where the server cannot be reached, is busy or fails. The SDK waits half a second
before the second try, twice as long before each further one, and as long as the server says where it says so."""

CONNECTIONS = 500
"""Requests under way at once; more wait their turn, which does not count as their time."""

_LANE = 50
"""Requests of one HTTP client at once: what its pool does for each grows with the number of its connections."""

ANSWER_BYTES = 64 << 20
"""How much of an answer is read."""

_IDLE_S = 30.0
"""Seconds that an idle connection is kept."""

_ENCODING = ("content-encoding", "content-length", "transfer-encoding")


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """The body of an answer that is no error."""

    body: bytes
    tries: int


class _BoundedClient(openai.DefaultAsyncHttpxClient):
    """Bounds what the SDK leaves open: the time of a whole try, the size of an answer, the requests under way."""

    def __init__(self, context: ssl.SSLContext, turn: anyio.Semaphore) -> None:
        super().__init__(
            verify=context,
            limits=httpx2.Limits(max_keepalive_connections=_LANE, keepalive_expiry=_IDLE_S),
        )
        self._turn = turn

    async def send(
        self,
        request: httpx2.Request,
        *,
        stream: bool = False,
        auth: Any = httpx2.USE_CLIENT_DEFAULT,
        follow_redirects: Any = httpx2.USE_CLIENT_DEFAULT,
    ) -> httpx2.Response:
        """Send a request and read the answer, also where it could be streamed."""
        async with self._turn:
            try:
                async with asyncio.timeout(request.extensions["timeout"]["read"]):
                    response = await super().send(request, stream=True, auth=auth, follow_redirects=follow_redirects)
                    try:
                        body = await _read(response)
                    finally:
                        await response.aclose()
            except TimeoutError as exc:
                raise httpx2.ReadTimeout("", request=request) from exc
        headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in _ENCODING]
        return httpx2.Response(response.status_code, headers=headers, content=body, request=response.request)


async def _read(response: httpx2.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > ANSWER_BYTES:
            raise httpx2.ReadError(f"the answer is longer than {ANSWER_BYTES >> 20} MB", request=response.request)
    return bytes(body)


class _Lane:
    """An HTTP client, and the SDK's clients that use it, one for each endpoint."""

    def __init__(self, http: _BoundedClient) -> None:
        self.http = http
        self.asked = 0
        """Questions under way."""
        self._clients: dict[str, openai.AsyncOpenAI] = {}

    def client(self, base_url: str) -> openai.AsyncOpenAI:
        client = self._clients.get(base_url)
        if client is None:
            client = self._clients[base_url] = openai.AsyncOpenAI(
                base_url=base_url,
                api_key="none",  # without one the SDK takes that of a variable of its own
                max_retries=TRIES - 1,
                http_client=self.http,
            )
        return client


class Endpoints:
    """The connections of one event loop to any number of endpoints. To be made in a thread: it reads certificates."""

    def __init__(self) -> None:
        self._context = httpx2.create_ssl_context()
        self._turn = anyio.Semaphore(CONNECTIONS)
        self._lanes: list[_Lane] = []

    async def ask(self, spec: ModelSpec, key: str | None, body: Mapping[str, Any]) -> RawAnswer:
        """Send one question.

        Args:
            spec: The model, and where it is.
            key: The endpoint's key; None sends none.
            body: The request's body.

        Raises:
            ChatFaultError: When the endpoint cannot be reached, answers with an error, also at the last try, or not in time.
        """
        headers = {
            "Authorization": openai.omit if key is None else f"Bearer {key}",
            # The SDK has these two from variables of its own, and would send them to whoever is at base_url.
            "OpenAI-Organization": openai.omit,
            "OpenAI-Project": openai.omit,
        }
        lane = self._lane()
        lane.asked += 1
        try:
            response = await lane.client(spec.base_url).post(
                "/chat/completions",
                cast_to=httpx2.Response,
                body=body,
                options={"timeout": httpx2.Timeout(spec.timeout_s, pool=None), "headers": headers},
            )
        except openai.APIStatusError as exc:
            raise status_fault(exc.status_code, exc.response.text, spec, tries=_tries(exc.request)) from None
        except openai.APITimeoutError as exc:
            raise timeout_fault(spec, tries=_tries(exc.request)) from None
        except openai.APIConnectionError as exc:
            raise unreachable_fault(exc, tries=_tries(exc.request)) from None
        finally:
            lane.asked -= 1
        return RawAnswer(response.content, _tries(response.request))

    def _lane(self) -> _Lane:
        for lane in self._lanes:
            if lane.asked < _LANE:
                return lane
        self._lanes.append(_Lane(_BoundedClient(self._context, self._turn)))
        return self._lanes[-1]

    async def aclose(self) -> None:
        """Close every connection."""
        for lane in self._lanes:
            await lane.http.aclose()


def _tries(request: httpx2.Request) -> int:
    """How often a request was sent, as the SDK writes on each."""
    return int(request.headers.get("x-stainless-retry-count", "0")) + 1
