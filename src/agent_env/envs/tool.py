"""`@tool`: a method of an env that an agent can call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

__all__ = ["ToolOptions", "tool", "tool_options"]

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "_agent_env_tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    """What `@tool(...)` was given."""

    name: str | None = None
    """The name the agent sees; None is the method's."""
    ends_turn: bool = False
    blocking: bool = False
    timeout_s: float | None = None


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *, name: str | None = None, ends_turn: bool = False, blocking: bool = False, timeout_s: float | None = None
) -> Callable[[F], F]: ...
def tool(
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    ends_turn: bool = False,
    blocking: bool = False,
    timeout_s: float | None = None,
) -> F | Callable[[F], F]:
    """Offer a method of an `Env` to the agent.

    The parameters' type hints are what the agent may write, their defaults make them optional, and the docstring's
    first part and its `Args:` section describe them to it. What the method returns is the answer; what it raises is an
    answer too, marked as an error.

    Args:
        function: The method, when `@tool` is written without parentheses.
        name: What the agent sees instead of the method's name.
        ends_turn: Whether an answer that is no error ends the agent's turn.
        blocking: Run the method in a thread, because it waits for something other than the processor. A cancelled
            episode does not wait for that thread. An `async def` method needs no thread.
        timeout_s: Seconds a call may take; then the answer is an error. For `async def` and `blocking` methods: a plain
            method cannot be interrupted.
    """
    options = ToolOptions(name=name, ends_turn=ends_turn, blocking=blocking, timeout_s=timeout_s)

    def mark(marked: F) -> F:
        setattr(marked, _MARK, options)
        return marked

    return mark if function is None else mark(function)


def tool_options(value: object) -> ToolOptions | None:
    """Return what `@tool` said about a function; None when it is no tool."""
    options = getattr(value, _MARK, None)
    return options if isinstance(options, ToolOptions) else None
