"""An open MCP env: its connection, and what a call of one of its tools comes to."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from agent_env.bundle import McpSpec
from agent_env.envs._mcp_answer import BadAnswerError, answer_of
from agent_env.envs._mcp_command import empty_folder, episode_variables, server_command
from agent_env.envs._mcp_connection import Connection, RefusedError, Server
from agent_env.envs._mcp_http import HttpServer
from agent_env.envs._mcp_process import Patience, ServerCommand
from agent_env.envs._mcp_shared import shared_connection
from agent_env.envs._mcp_stdio import StdioServer
from agent_env.envs._mcp_tail import Tail
from agent_env.envs._mcp_variables import Variables
from agent_env.envs._mcp_watch import Watch
from agent_env.envs.contract import ToolAnswer, ToolSpec
from agent_env.envs.faults import first_lines
from agent_env.envs.parameter_check import Work, check_of
from agent_env.envs.refusals import no_such_tool, not_called
from agent_env.envs.result_text import clean_text
from agent_env.errors import EnvBrokenError

__all__ = ["McpSession", "open_session"]

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")


@asynccontextmanager
async def open_session(
    name: str, spec: McpSpec, *, folder: Path | None, params: Mapping[str, Any], task_id: str, patience: Patience
) -> AsyncGenerator[McpSession]:
    """Open an env; see `open_mcp_env`."""
    variables = Variables()
    async with AsyncExitStack() as stack:
        if spec.url is not None:
            key, make_server = _at_url(name, spec, variables)
        elif spec.shared:
            command = server_command(name, spec, variables, folder=None, episode={})
            key, make_server = _started(name, command, patience)
        else:
            if folder is None:
                folder = await stack.enter_async_context(empty_folder())
            episode = episode_variables(folder=folder, params=params, task_id=task_id)
            command = server_command(name, spec, variables, folder=folder, episode=episode)
            key, make_server = _started(name, command, patience)

        def make() -> Connection:
            watch = Watch(Tail())
            return Connection(name, make_server(watch), watch, variables, reason_s=patience.reason_s)

        if spec.shared:
            connection = await stack.enter_async_context(shared_connection(key, make))
        else:
            connection = make()
            stack.push_async_callback(connection.close)
            await connection.opened()
        yield McpSession(connection, state=folder, timeout_s=spec.call_timeout_s)


_MakeServer = Callable[[Watch], Server]


def _started(name: str, command: ServerCommand, patience: Patience) -> tuple[str, _MakeServer]:
    """Return what tells a server that is started from another, and what makes the transport to it."""
    key = json.dumps([name, command.program, command.arguments, dict(command.environment)])
    return key, lambda watch: StdioServer(command, watch, patience)


def _at_url(name: str, spec: McpSpec, variables: Variables) -> tuple[str, _MakeServer]:
    """As `_started`, for a server at a URL.

    Raises:
        EnvBrokenError: When a variable is not set, or a header or the URL is none.
    """
    url = variables.fill(spec.url or "", "url")
    headers = {key: variables.fill(value, f"headers.{key}") for key, value in spec.headers.items()}
    variables.check(name)
    if not url.startswith(("http://", "https://")):
        raise EnvBrokenError(
            f"the MCP server of env '{name}' has the url {spec.url}: write one that starts with https://"
        )
    for key, value in headers.items():
        if not (_HEADER_NAME.fullmatch(key) and _HEADER_VALUE.fullmatch(value)):
            what = "holds characters that no HTTP header can have (a line's end?)"
            raise EnvBrokenError(f"the MCP server of env '{name}' cannot be reached: its header {key} {what}")
    return json.dumps([name, url, headers]), lambda watch: HttpServer(url, headers, watch)


class McpSession:
    """An open env whose tools are an MCP server's."""

    def __init__(self, connection: Connection, *, state: Path | None, timeout_s: float) -> None:
        self._connection = connection
        self._state = state
        self._timeout_s = timeout_s
        self._tools = connection.tools
        self._specs = tuple(tool.spec for tool in self._tools.values())

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """The tools that the server listed at its start."""
        return self._specs

    @property
    def state(self) -> Path | None:
        """The folder that the server works in; None where it is not ours to know."""
        return self._state

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        """Call a tool.

        What the server refuses comes back as an answer with `is_error`, as do arguments that do not fit.

        Raises:
            McpServerError: When the server does not answer in time, has ended, or answers badly; the episode fails.
        """
        tool = self._tools.get(name)
        if tool is None:
            return no_such_tool(name, self._tools)
        problem = _not_json(arguments)
        lines = [problem] if problem else check_of(tool.listed.input_schema).misfits(arguments, Work())
        if lines:
            return not_called(name, "\n".join(first_lines(lines)))
        try:
            result = await self._connection.call(tool.listed.name, arguments, timeout_s=self._timeout_s)
            return answer_of(result, tool.listed.output_schema)
        except RefusedError as exc:
            return ToolAnswer(clean_text(str(exc)), is_error=True)
        except BadAnswerError as exc:
            raise self._connection.bad_answer(name, str(exc)) from None


def _not_json(arguments: Mapping[str, Any]) -> str:
    """Say what keeps arguments from being sent; nothing does with what a model wrote and was read strictly."""
    try:
        json.dumps(dict(arguments), allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as exc:
        return f"the arguments are not JSON: {exc}"
    return ""
