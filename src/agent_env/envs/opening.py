"""Opening an env for an episode, whatever it is made of: a Python class, an MCP server, a sandbox."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent_env.bundle import EnvSpec, SandboxProvider, SandboxSpec, Task
from agent_env.envs.contract import EnvSession, OpenTools, ToolAnswer, ToolSpec
from agent_env.envs.env import open_python_env
from agent_env.envs.mcp import open_mcp_env
from agent_env.envs.sandbox_env import open_sandbox_env
from agent_env.universe import StateChanges, changes_on_disk, open_universe_on_disk

__all__ = ["open_env"]


@asynccontextmanager
async def open_env(spec: EnvSpec, *, task: Task) -> AsyncGenerator[EnvSession]:
    """Open an env for one episode, in a private copy of its universe.

    Args:
        spec: One of the bundle's envs.
        task: The task that is played: its params reach the env.

    Yields:
        The open env. Call its tools one after another: they share one state. It is to be closed by the task of the event
        loop that has opened it.

    Raises:
        BundleError: When a class cannot be imported, is no `Env`, or has a tool that no model can be shown.
        UniverseError: When the universe cannot be copied.
        EnvBrokenError: When the env cannot start; McpServerError and SandboxLostError are of this kind.
        SandboxUnavailableError: When this machine cannot open such a sandbox.
        MissingExtraError: When what speaks to MCP servers is not installed.
    """
    if spec.mcp is None and spec.sandbox is None:
        async with open_python_env(spec, task=task) as session:
            yield session
    elif spec.mcp is not None and (spec.mcp.shared or spec.mcp.url is not None):
        async with open_mcp_env(
            spec.name, spec.mcp, folder=None, params=task.copy_params(), task_id=task.id
        ) as session:
            yield _InFolder(session, None, is_lent=False)
    else:
        async with open_universe_on_disk(spec.universe) as folder, _opened(spec, task, folder) as session:
            known = folder if spec.sandbox is None or _works_in_folder(spec.sandbox) else None
            yield _InFolder(session, known, is_lent=spec.sandbox is not None)


@asynccontextmanager
async def _opened(spec: EnvSpec, task: Task, folder: Path) -> AsyncGenerator[OpenTools]:
    if spec.mcp is not None:
        params = task.copy_params()
        async with open_mcp_env(spec.name, spec.mcp, folder=folder, params=params, task_id=task.id) as session:
            yield session
    elif spec.sandbox is not None:
        async with open_sandbox_env(spec.name, spec.sandbox, folder=folder) as session:
            yield session


def _works_in_folder(sandbox: SandboxSpec) -> bool:
    """Whether the sandbox works in the very folder that it was given, and not in a copy elsewhere."""
    return sandbox.provider in (SandboxProvider.BWRAP, SandboxProvider.HOST)


class _InFolder:
    """An env that works in a folder of its own, or in none that is the episode's."""

    def __init__(self, session: OpenTools, folder: Path | None, *, is_lent: bool) -> None:
        self._session = session
        self._folder = folder
        self._is_lent = is_lent

    @property
    def tools(self) -> Sequence[ToolSpec]:
        return self._session.tools

    @property
    def state(self) -> Any:
        return self._session.state

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        return await self._session.call(name, arguments)

    async def changes(self) -> StateChanges | None:
        return None if self._folder is None else await changes_on_disk(self._folder, is_lent=self._is_lent)
