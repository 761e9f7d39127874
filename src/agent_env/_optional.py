"""Importing packages that an extra brings."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from agent_env.errors import MissingExtraError

__all__ = ["FRAMES", "MCP", "MODELS", "TRAINER", "Extra", "require"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """One of AgentEnv's extras: what it brings is not installed unless it is asked for."""

    name: str
    beside: str = ""
    """What else is needed, which the extra does not bring: what follows `pip install`."""

    def __str__(self) -> str:
        """Say how to install it: the name for whoever has AgentEnv from elsewhere, the command for whoever has a clone."""
        command = " ".join(filter(None, ("pip install", f"'.[{self.name}]'", self.beside)))
        return f"install the extra '{self.name}' (in a clone of AgentEnv: {command})"


FRAMES = Extra(name="frames")
MCP = Extra(name="mcp")
MODELS = Extra(name="models")
TRAINER = Extra(name="tinker", beside="torch==2.13.0 'tinker-cookbook>=0.5.8'")
"""To train, and to run the embedded engine; `make demo` installs it in an environment of its own."""


def require(module: str, *, install: Extra, feature: str) -> ModuleType:
    """Import `module`, or say what to install.

    Args:
        module: The dotted name to import.
        install: What brings it.
        feature: What needs it, as the start of the sentence that the user reads.

    Raises:
        MissingExtraError: When the module's package is not installed. A package that is there but
            broken raises its own ImportError.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name != module.partition(".")[0]:
            raise
        raise MissingExtraError(f"{feature} needs {exc.name!r}, which is not installed: {install}") from exc
