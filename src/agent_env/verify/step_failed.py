"""A step that broke: what is raised inside an episode, and what is kept of what a bundle's code, an env or a model raised."""

from __future__ import annotations

from agent_env._wording import clipped
from agent_env.bundle.raised import described
from agent_env.errors import EnvBrokenError, McpServerError, SandboxLostError
from agent_env.outcome import FailureKind

__all__ = ["StepFailedError", "broken_kind", "exception_line"]

_MESSAGE_CHARS = 500


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
    """Say an exception in one line: its type, and what it says."""
    return clipped(" ".join(described(exc).split()), _MESSAGE_CHARS, mark="…")
