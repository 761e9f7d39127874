"""Importing packages that an extra brings."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from agent_env.errors import MissingExtraError

__all__ = ["TRAINER", "require"]

TRAINER = "torch==2.13.0 'tinker-cookbook>=0.5.8' 'agent-env[tinker]'"
"""What follows `pip install` to train or to run the embedded engine; `make demo` does it in an environment of its own."""


def require(module: str, *, install: str, feature: str) -> ModuleType:
    """Import `module`, or say what to install.

    Args:
        module: The dotted name to import.
        install: What follows `pip install`, e.g. `'agent-env[mcp]'`.
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
        raise MissingExtraError(f"{feature} needs {exc.name!r}, which is not installed: pip install {install}") from exc
