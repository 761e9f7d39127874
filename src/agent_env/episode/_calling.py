"""One tool call at the boundary of a bundle's code: what comes out of it is an answer, or a failed step."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from agent_env._cancellation import stops_us
from agent_env.envs import EnvSession, ToolAnswer
from agent_env.errors import AgentEnvError, EnvBrokenError, McpServerError, SandboxLostError
from agent_env.outcome import FailureKind
from agent_env.verify.step_failed import StepFailedError, broken_kind, exception_line, trace_of

__all__ = ["call_env", "failed"]


async def call_env(session: EnvSession, name: str, arguments: Mapping[str, Any]) -> ToolAnswer:
    """Run one tool.

    Raises:
        StepFailedError: When its env is broken.
    """
    task = asyncio.current_task()
    try:
        return await session.call(name, arguments)
    except BaseException as exc:
        if stops_us(exc, task):
            raise
        raise failed(FailureKind.ENV_BROKEN, exc, what=f"tool {name}: ") from exc


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
