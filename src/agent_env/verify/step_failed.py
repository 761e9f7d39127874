"""A step that broke: what is raised inside an episode, and what is kept of what a bundle's code, an env or a model raised."""

from __future__ import annotations

import traceback

from agent_env._wording import clipped
from agent_env.errors import EnvBrokenError, McpServerError, SandboxLostError
from agent_env.outcome import FailureKind

__all__ = ["StepFailedError", "broken_kind", "exception_line", "trace_of"]

_MESSAGE_CHARS = 500
_TRACE_CHARS = 20_000


class StepFailedError(Exception):
    """A step of an episode broke. Never leaves the library: the episode makes a `Failure` of it."""

    def __init__(self, kind: FailureKind, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.trace = trace


def broken_kind(exc: EnvBrokenError) -> FailureKind:
    """Return the kind of failure that a broken env is."""
    match exc:
        case McpServerError():
            return FailureKind.MCP_DIED
        case SandboxLostError():
            return FailureKind.SANDBOX_LOST
        case _:
            return FailureKind.ENV_BROKEN


def exception_line(exc: BaseException) -> str:
    """Say an exception in one line: its type and what it says."""
    try:
        said = " ".join(str(exc).split())
    except Exception:  # noqa: BLE001 - a bundle's own __str__
        said = ""
    text = f"{type(exc).__name__}: {said}" if said else type(exc).__name__
    return clipped(text, _MESSAGE_CHARS, mark="…")


def trace_of(exc: BaseException) -> str:
    """Return the traceback as text, its end when it is long."""
    try:
        text = "".join(traceback.format_exception(exc))
    except Exception:  # noqa: BLE001 - a bundle's own exception may not print
        return f"{type(exc).__name__} (its traceback cannot be printed)"
    return text[-_TRACE_CHARS:]
