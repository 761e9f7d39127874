"""An env whose tools are an MCP server's: a process started for each episode, one that episodes share, or one at a URL.

Covers tools. Not a server's prompts and resources, and nothing that a server asks of its client: sampling, elicitation and
roots are refused. docs/mcp.md says what follows from what a server does.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from anyio import to_thread

from agent_env._optional import MCP, require
from agent_env.bundle import McpSpec
from agent_env.envs._mcp_process import USUAL_PATIENCE, Patience
from agent_env.envs.contract import OpenTools
from agent_env.errors import MissingExtraError

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from typing import Protocol

    class _Sessions(Protocol):
        """`_mcp_session.py`, which imports the SDK."""

        def open_session(
            self,
            name: str,
            spec: McpSpec,
            *,
            folder: Path | None,
            params: Mapping[str, Any],
            task_id: str,
            patience: Patience,
        ) -> AbstractAsyncContextManager[OpenTools]: ...


__all__ = ["USUAL_PATIENCE", "Patience", "open_mcp_env"]

_SESSIONS = "agent_env.envs._mcp_session"


@asynccontextmanager
async def open_mcp_env(
    name: str,
    spec: McpSpec,
    *,
    folder: Path | None,
    params: Mapping[str, Any],
    task_id: str,
    patience: Patience = USUAL_PATIENCE,
) -> AsyncGenerator[OpenTools]:
    """Open an MCP server for one episode.

    Args:
        name: The env's name in the bundle.
        spec: The server. `${NAME}` in its command, environment, url and headers is filled in from the caller's environment.
        folder: The episode's own copy of the universe, which the server starts in, and which is the env's state. Without
            one it starts in an empty folder; a shared server, and one at a URL, never get to know of it.
        params: The task's, for `AGENT_ENV_PARAMS`, as JSON.
        task_id: For `AGENT_ENV_TASK_ID`.
        patience: How long a server is waited for that is to end, or seems to have ended.

    Yields:
        The open env. It is to be closed by the task that has opened it.

    Raises:
        MissingExtraError: When the MCP SDK is not installed.
        EnvBrokenError: When a variable is not set, the program is missing, or a tool cannot be shown to a model.
        McpServerError: When the server ends, or answers badly.

    Leaving the block, cancelled or not, ends the server and all that it has started: in a second or two when it does not
    end by itself.
    """
    sessions = await _sessions(f"env '{name}', an MCP server,")
    async with sessions.open_session(
        name, spec, folder=folder, params=params, task_id=task_id, patience=patience
    ) as session:
        yield session


async def _sessions(feature: str) -> _Sessions:
    loaded = sys.modules.get(_SESSIONS)
    # The SDK takes half a second to import, which the loop does not have.
    return cast("_Sessions", loaded or await to_thread.run_sync(_load, feature))


def _load(feature: str) -> object:
    require("mcp", install=MCP, feature=feature)
    version = metadata.version("mcp")
    if version.partition(".")[0] != "2":
        raise MissingExtraError(f"{feature} needs 'mcp' 2, and {version} is installed: {MCP}")
    return import_module(_SESSIONS)
