"""Answers to calls that no tool gets to see."""

from __future__ import annotations

from collections.abc import Iterable

from agent_env.bundle import names_or_closest
from agent_env.envs.contract import ToolAnswer
from agent_env.envs.result_text import clean_text

__all__ = ["no_such_tool", "not_called"]


def no_such_tool(name: str, known: Iterable[str]) -> ToolAnswer:
    """Answer a call of a tool that there is not."""
    return ToolAnswer(clean_text(f"there is no tool '{name}', {names_or_closest(name, known)}"), is_error=True)


def not_called(name: str, misfit: str) -> ToolAnswer:
    """Answer a call whose arguments do not fit.

    Args:
        name: The tool.
        misfit: What does not fit, a line for each parameter.
    """
    return ToolAnswer(clean_text(f"{name} was not called:\n{misfit}"), is_error=True)
