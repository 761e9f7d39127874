"""A session with a server through the SDK, in a task of its own that opens it and closes it.

The SDK's scopes belong to the task that has entered them, and where its HTTP transport fails it cancels that task. So it is
no episode's: an episode's task asks for calls, and hears why there is no answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, suppress
from http import HTTPStatus
from typing import Any, Protocol, TypeVar, cast

import mcp_types
from mcp.client.session import ClientSession
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, InputRequiredResult
from pydantic import TypeAdapter, ValidationError

from agent_env._cleanup import wait_until_done
from agent_env._version import __version__
from agent_env._wording import clipped
from agent_env.envs._mcp_http import CallStatus, noted_status, transport_error
from agent_env.envs._mcp_process import CannotStartError
from agent_env.envs._mcp_streams import Streams
from agent_env.envs._mcp_tools import ListedTool, McpTool, UnusableToolError, tools_of
from agent_env.envs._mcp_variables import Variables
from agent_env.envs._mcp_watch import Watch
from agent_env.errors import EnvBrokenError, McpServerError

__all__ = ["Connection", "RefusedError", "Server"]

Broken = TypeVar("Broken", bound=EnvBrokenError)

_CLOSE_S = 15.0
"""Seconds that closing may take; what it does is bounded itself, by less."""
_MAX_PAGES = 100
_MAX_TOOLS = 1000
_SAID_CHARS = 300
_CLIENT = mcp_types.Implementation(name="agent-env", version=__version__)
_RESULT: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(CallToolResult | InputRequiredResult)
_NO_MESSAGE = "something that is no message of the protocol"
_HTTP_ERROR = "Server returned an error response"
"""What the SDK says of an HTTP error; never an answer for a model, also where the status was not noted."""
_NOT_OFFERED = (
    mcp_types.MISSING_REQUIRED_CLIENT_CAPABILITY,
    mcp_types.URL_ELICITATION_REQUIRED,
)
_PROTOCOL = (
    mcp_types.PARSE_ERROR,
    mcp_types.INVALID_REQUEST,
    mcp_types.METHOD_NOT_FOUND,
    mcp_types.HEADER_MISMATCH,
    mcp_types.UNSUPPORTED_PROTOCOL_VERSION,
)
"""Errors that say that the server and we do not understand each other."""

for name in ("mcp", "client"):
    # The SDK logs what we say in an error. Who has set up logging sees it; else it would come on stderr, with tracebacks.
    logging.getLogger(name).addHandler(logging.NullHandler())

logger = logging.getLogger(__name__)


class RefusedError(Exception):
    """The server answered a call with an error that is the call's; the message is for the model."""


class Server(Protocol):
    """A transport to one server."""

    def streams(self) -> AbstractAsyncContextManager[Streams]:
        """Open it for one session."""
        ...

    @property
    def is_remote(self) -> bool:
        """Whether the SDK makes errors of its own of what happens on the way: they look like the server's."""
        ...

    async def ending(self) -> str:
        """Say how it ended, as what follows its name in a sentence."""
        ...


class Connection:
    """One session with a server, and the tools that it listed at its start.

    Args:
        env: The env's name, for messages.
        server: The transport.
        watch: What the transport is watched with.
        variables: Whose values are kept out of messages.
        reason_s: Seconds to find out why it has ended, when it has.
    """

    def __init__(self, env: str, server: Server, watch: Watch, variables: Variables, *, reason_s: float) -> None:
        self.env = env
        self.tools: Mapping[str, McpTool] = {}
        """By the name that a model sees."""
        self.is_fit = True
        """Whether nothing has gone wrong: a shared one that is not fit is used no more for new episodes."""
        self._server = server
        self._watch = watch
        self._variables = variables
        self._reason_s = reason_s
        self._session: ClientSession | None = None
        self._is_open = asyncio.Event()
        self._is_told = asyncio.Event()
        """Whether it is known why the connection has ended."""
        self._wake = asyncio.Event()
        self._start_status = CallStatus()
        self._doing = ""
        self._why = ""
        self._is_ours = False
        """Whether it ended because of what the bundle says, not because of the server."""
        watch.when_over = self._wake.set
        self._task = asyncio.get_running_loop().create_task(self._own(), name=f"MCP server of env {env}")

    @property
    def is_open(self) -> bool:
        """Whether it can be called."""
        return self._session is not None

    async def opened(self) -> None:
        """Wait until the server has listed its tools.

        Raises:
            EnvBrokenError: When it cannot be started, or has no tools that a model can be shown.
            McpServerError: When it ends, or answers badly.
        """
        try:
            await self._is_open.wait()
        except asyncio.CancelledError as exc:
            # Why it took so long is often in what the server said; it goes with the timeout that this becomes.
            if details := self._details():
                exc.add_note(details)
            raise
        if self._session is None:
            raise self._made(EnvBrokenError if self._is_ours else McpServerError, self._why)

    def stop(self) -> None:
        """Have it end, now or when it has opened."""
        if self._is_open.is_set():
            self._wake.set()
        else:
            self._task.cancel()

    async def close(self) -> None:
        """End it, in bounded time, and wait for that, also while being cancelled."""
        self.stop()
        await wait_until_done(self._task, grace_s=_CLOSE_S, what=f"closing the MCP server of env '{self.env}'")

    async def call(self, name: str, arguments: Mapping[str, Any], *, timeout_s: float) -> CallToolResult:
        """Call a tool by the server's name for it.

        Raises:
            RefusedError: When the server answers with an error that is the call's.
            McpServerError: When it does not answer in time, or ends, or answers badly.
        """
        session = self._session
        if session is None:
            raise await self._ended(f", before '{name}' was called")
        params = mcp_types.CallToolRequestParams(name=name, arguments=dict(arguments))
        status = CallStatus()
        token = noted_status.set(status)
        clock = asyncio.timeout(timeout_s)
        try:
            async with clock:
                result = await session.send_request(mcp_types.CallToolRequest(params=params), _RESULT)
        except TimeoutError:
            if not clock.expired():
                raise
            raise self._error(f"did not answer '{name}' in {timeout_s:g} s") from None
        except MCPError as exc:
            raise await self._refusal(exc, status, name) from None
        except ValidationError as exc:
            raise self._error(f"answered '{name}' with something that is no result: {_first(exc)}") from None
        finally:
            noted_status.reset(token)
        if isinstance(result, InputRequiredResult):
            raise self._error(f"asks for input to '{name}' (sampling, elicitation, roots), which there is not")
        return result

    def bad_answer(self, name: str, what: str) -> McpServerError:
        """Make the error of an answer that is none."""
        return self._error(f"answered '{name}' with {what}")

    async def _refusal(self, exc: MCPError, status: CallStatus, name: str) -> RefusedError | McpServerError:
        """Say what an error is that a call was answered with."""
        said = _one_line(exc.message)
        is_over = self._watch.is_over or self._session is None
        if _is_closed(exc) or (exc.code == mcp_types.CONNECTION_CLOSED and is_over):
            return await self._ended(f", while it ran '{name}'")
        if self._watch.fault:
            return self._error(f"{self._watch.fault}, while it ran '{name}'")
        if status.is_error(exc.code):
            return self._error(f"answered '{name}' with {status}{_advice(status, said)}")
        if self._server.is_remote and (exc.code == mcp_types.CONNECTION_CLOSED or exc.message == _HTTP_ERROR):
            return self._error(f"gave no answer to '{name}': {said}")
        if exc.code in _NOT_OFFERED:
            return self._error(f"asks for what AgentEnv does not offer to servers: {said}")
        if exc.code == mcp_types.PARSE_ERROR and self._server.is_remote:
            return self._error(f"answered '{name}' with {_NO_MESSAGE}")
        if exc.code in _PROTOCOL:
            return self._error(f"answered '{name}' with a protocol error: {said}")
        return RefusedError(exc.message or f"the server answered with error {exc.code}")

    async def _ended(self, when: str) -> McpServerError:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._reason_s):
                await self._is_told.wait()
        return self._error(f"{self._why or 'does not read what is sent to it'}{when}")

    async def _own(self) -> None:
        """Open the session, keep it until it is to end or has ended, and close it."""
        noted_status.set(self._start_status)
        try:
            async with (
                self._server.streams() as (reading, writing),
                ClientSession(reading, writing, client_info=_CLIENT, logging_callback=self._log) as session,
            ):
                try:
                    self.tools = tools_of(await self._listed(session))
                    self._session = session
                    self._is_open.set()
                    await self._wake.wait()
                except Exception as exc:  # noqa: BLE001 - told to whoever asks; it would come out in a group of the SDK's
                    await self._tell(exc)
                finally:
                    self._session = None
                if self._watch.is_over:
                    await self._tell(None)
        except Exception as exc:  # noqa: BLE001 - the task is nobody's: what it hears is told to whoever asks
            await self._tell(exc)
        finally:
            self._why = self._why or "was closed"
            self._is_told.set()
            self._is_open.set()

    async def _listed(self, session: ClientSession) -> list[ListedTool]:
        """Begin the session, and return the server's tools.

        Raises:
            _BadListError: When the list has no end.
        """
        self._doing = "initialize"
        try:
            await session.initialize()
        except MCPError as exc:
            if exc.code not in (mcp_types.UNSUPPORTED_PROTOCOL_VERSION, mcp_types.METHOD_NOT_FOUND):
                raise
            # A server of the protocol's newer kind, which begins without a handshake.
            try:
                await session.discover()
            except MCPError:
                raise exc from None
        self._doing = "tools/list"
        listed: list[ListedTool] = []
        cursors: set[str] = set()
        params: mcp_types.PaginatedRequestParams | None = None
        while True:
            page = await session.list_tools(params=params)
            listed += (ListedTool(t.name, t.description or "", t.input_schema, t.output_schema) for t in page.tools)
            cursor = page.next_cursor
            if not cursor:
                return listed
            if cursor in cursors or len(cursors) >= _MAX_PAGES or len(listed) > _MAX_TOOLS:
                raise _BadListError(f"{len(listed):,} tools on {len(cursors) + 1} pages, and goes on")
            cursors.add(cursor)
            params = mcp_types.PaginatedRequestParams(cursor=cursor)

    async def _tell(self, exc: Exception | None) -> None:
        """Find out why the connection has ended, and let those know who wait for it."""
        cause = _cause(exc)
        if not self._why:
            self._why = await self._reason(cause)
            self._is_ours = isinstance(cause, CannotStartError | UnusableToolError)
        self._is_told.set()

    async def _reason(self, cause: BaseException | None) -> str:
        """Say why, as what follows the server's name in a sentence."""
        while_starting = "" if self._is_open.is_set() else f", before it had answered {self._doing}"
        if self._watch.fault:
            return self._watch.fault + while_starting
        if cause is None or self._watch.is_over or _is_closed(cause):
            return await self._server.ending() + while_starting
        match cause:
            case CannotStartError():
                return str(cause)
            case UnusableToolError():
                return f"lists tool {cause}"
            case _BadListError():
                return f"lists its tools without end: {cause}"
            case MCPError():
                return f"answered {self._doing} with {self._refused_start(cause)}"
            case ValidationError():
                return f"answered {self._doing} with something that is no result: {_first(cause)}"
            case _ if (said := transport_error(cause)) is not None:
                return said
            case _:
                logger.error("MCP server of env '%s': the session failed", self.env, exc_info=cause)
                return f"cannot be used: {_one_line(str(cause)) or type(cause).__name__}"

    def _refused_start(self, exc: MCPError) -> str:
        """Say what an error is that the handshake or the listing was answered with."""
        said, status = _one_line(exc.message), self._start_status
        if exc.code == mcp_types.PARSE_ERROR and self._server.is_remote:
            return _NO_MESSAGE
        return f"{status}{_advice(status, said)}" if status.is_error(exc.code) else f"an error: {said}"

    async def _log(self, params: mcp_types.LoggingMessageNotificationParams) -> None:
        self._watch.tail.line(f"[{params.level}] {_one_line(str(params.data))}")

    def _error(self, what: str) -> McpServerError:
        """Make the error that says what the server did, with the end of what it said itself."""
        return self._made(McpServerError, what)

    def _made(self, kind: type[Broken], what: str) -> Broken:
        self.is_fit = False
        last = self._watch.tail.last_line()
        text = f"the MCP server of env '{self.env}' {what}{f'; it said last: {last}' if last else ''}"
        return kind(self._variables.hide(text), details=self._details())

    def _details(self) -> str:
        said = self._watch.tail.text()
        return f"The end of what the MCP server of env '{self.env}' said:\n{self._variables.hide(said)}" if said else ""


class _BadListError(Exception):
    """A list of tools that has no end."""


def _cause(exc: BaseException | None) -> BaseException | None:
    """The exception that a group of the SDK's was raised for."""
    while isinstance(exc, BaseExceptionGroup):
        exc = cast("BaseExceptionGroup[BaseException]", exc).exceptions[0]
    return exc


def _is_closed(exc: BaseException) -> bool:
    """Whether an error is not a server's, but the SDK's, that there is no connection any more."""
    return isinstance(exc, MCPError) and (exc.code, exc.message) == (mcp_types.CONNECTION_CLOSED, "Connection closed")


def _one_line(text: str) -> str:
    return clipped(" ".join(text.split()).removesuffix("."), _SAID_CHARS)


def _first(exc: ValidationError) -> str:
    """What is wrong with a result, the first of it."""
    first = exc.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return _one_line(f"{place}: {first['msg']}" if place else first["msg"])


def _advice(status: CallStatus, said: str) -> str:
    if status.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return ": see the headers of its env in the bundle"
    if said == "Session terminated":
        return ": it does not know the session any more, because it was started again or the session has expired"
    if status.status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
        return ": see the url of its env in the bundle"
    return ""
