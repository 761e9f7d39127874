"""The boundary to a bundle's code: what goes wrong in a tool call, in a text, or in whatever takes its time is a failed step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any, TypeVar

from anyio import to_thread

from agent_env._cancellation import stops_us
from agent_env.bundle import Task, TextSource
from agent_env.bundle.raised import trace_of
from agent_env.envs import EnvSession, ToolAnswer
from agent_env.errors import AgentEnvError, BundleError, EnvBrokenError, McpServerError, SandboxLostError
from agent_env.outcome import FailureKind
from agent_env.verify.step_failed import StepFailedError, broken_kind, exception_line

__all__ = ["call_env", "failed", "render", "within"]

T = TypeVar("T")


async def call_env(session: EnvSession, name: str, arguments: Mapping[str, Any]) -> ToolAnswer:
    """Run a tool.

    Raises:
        StepFailedError: When its env is broken.
    """
    task = asyncio.current_task()
    try:
        return await session.call(name, arguments)
    except BaseException as exc:  # an env is the bundle's own code
        if stops_us(exc, task):
            raise
        raise failed(FailureKind.ENV_BROKEN, exc, what=f"tool {name}: ") from exc


async def render(source: TextSource, task: Task) -> str:
    """Write a text for a task.

    Raises:
        StepFailedError: When it cannot be written.
    """
    try:
        text = source.at_once(params=task.params, task_id=task.id, tags=task.tags)
        if text is None:
            long = partial(source.render, params=task.params, task_id=task.id, tags=task.tags)
            text = await to_thread.run_sync(long, abandon_on_cancel=True)
        return text
    except BundleError as exc:
        raise failed(FailureKind.PROMPT, exc) from exc


async def within(doing: Awaitable[T], timeout_s: float | None, what: str, *, of_s: float | None = None) -> T:
    """Wait for something, but only so long; `of_s` is the whole time, where only a part of it was left.

    Raises:
        StepFailedError: When its time is up.
    """
    # asyncio's timeout and no cancel scope: what is entered here may hold scopes that stay open after it.
    clock = asyncio.timeout(timeout_s)
    try:
        async with clock:
            return await doing
    except TimeoutError as exc:
        if not clock.expired():
            raise
        # What was stopped may say where it stood: an MCP server's stderr, say.
        notes = "\n".join(getattr(exc.__cause__, "__notes__", ()))
        raise StepFailedError(
            FailureKind.STEP_TIMEOUT, f"{what} took longer than {of_s or timeout_s:g} s", notes
        ) from None


def failed(kind: FailureKind, exc: BaseException, *, what: str = "") -> StepFailedError:
    """Make the failure of a step of what was raised in it.

    Args:
        kind: What broke; a server that died and a sandbox that is gone have kinds of their own.
        exc: What was raised.
        what: What was done, before what it says.
    """
    if isinstance(exc, McpServerError | SandboxLostError):
        kind = broken_kind(exc)
    said = " ".join(str(exc).split()) if isinstance(exc, AgentEnvError) and str(exc) else exception_line(exc)
    details = exc.details if isinstance(exc, EnvBrokenError) else ""
    return StepFailedError(kind, f"{what}{said}", details or trace_of(exc))
