"""Answers that are errors, each with its kind."""

from __future__ import annotations

from collections.abc import Iterable

from agent_env._wording import in_line
from agent_env.bundle import names_or_closest
from agent_env.envs.contract import Refusal, ToolAnswer
from agent_env.envs.result_text import clean_text

__all__ = ["no_such_tool", "not_called", "refused"]


def no_such_tool(name: str, known: Iterable[str]) -> ToolAnswer:
    """Answer a call of a tool that there is not."""
    return refused(
        Refusal.NO_SUCH_TOOL, f"there is no tool '{in_line(clean_text(name))}', {names_or_closest(name, known)}"
    )


def not_called(name: str, misfit: str) -> ToolAnswer:
    """Answer a call whose arguments do not fit.

    Args:
        name: The tool.
        misfit: What does not fit, a line for each parameter. They are the lines of the answer from the second one on.
    """
    return refused(Refusal.MISFIT, f"{name} was not called:\n{misfit}")


def refused(kind: Refusal, text: str) -> ToolAnswer:
    """Answer a call with an error, in a text that any model can be shown."""
    return ToolAnswer(clean_text(text), is_error=True, refusal=kind)
