"""What an env is to an episode: tools over a private copy of a universe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from agent_env.outcome import Place
from agent_env.universe import StateChanges

__all__ = ["EnvSession", "OpenTools", "Refusal", "ToolAnswer", "ToolSpec"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as a model sees it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """A JSON Schema object (`type: object`), `$ref`s inlined."""
    ends_turn: bool = False
    """Whether an answer that is no error always ends the turn."""


class Refusal(StrEnum):
    """Why the answer to a call is an error."""

    NO_SUCH_TOOL = "no_such_tool"
    """There is no tool of that name."""
    MISFIT = "misfit"
    """The arguments do not fit the tool, or are no JSON object: it was not called."""
    REFUSED = "refused"
    """The tool said no."""
    RAISED = "raised"
    """The tool raised what it did not mean as an answer: it has a bug."""
    TIMED_OUT = "timed_out"
    """The tool took longer than it may."""
    CANCELLED = "cancelled"
    """Whoever made the call stopped it."""
    TURN_OVER = "turn_over"
    """The turn had ended before, with an answer or a failure."""
    BROKEN = "broken"
    """The env broke in the call, or the step's time was up: the episode has failed."""


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What a tool call came to."""

    text: str
    """What the model reads."""
    is_error: bool = False
    """The tool refused or raised; the model may try again."""
    ends_turn: bool = False
    """The tool ends the agent's turn with this answer; that is not a cut."""
    content: Sequence[Mapping[str, Any]] = field(default=())
    """Parts beyond text (images, structured content), as MCP content blocks."""
    traceback: str = field(default="", compare=False, repr=False)
    """The Python traceback when the tool raised: for the run, never for the model."""
    refusal: Refusal | None = None
    """Why it is an error; `refused` where nothing else is said. None where it is none."""
    raised_at: Place | None = field(default=None, compare=False, repr=False)
    """Where in the bundle's code the tool raised."""

    def __post_init__(self) -> None:
        """Check the parts, and see to it that every error has a kind.

        Raises:
            ValueError: When it has a `refusal` and is no error.
            TypeError: When the text is no text, or one is no content block: a mapping with a `type`, a text with its `text`, an image with its `data`.
        """
        if not isinstance(self.text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - a bundle's own value
            raise TypeError(f"ToolAnswer.text is text, not a {type(self.text).__name__}")
        for part in self.content:
            if not isinstance(part, Mapping) or "type" not in part:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f'a part of ToolAnswer.content is a mapping with a "type", not {part!r:.60}')
            if part["type"] == "image" and not isinstance(part.get("data"), str):
                raise TypeError('an image in ToolAnswer.content has its "data" as text in base64')
            if part["type"] == "text" and not isinstance(part.get("text"), str):
                raise TypeError('a text in ToolAnswer.content has its "text" as text')
        if self.is_error and self.refusal is None:
            object.__setattr__(self, "refusal", Refusal.REFUSED)
        elif self.refusal is not None and not self.is_error:
            raise ValueError(f"an answer that was refused ({self.refusal}) is an error: write is_error=True")


class OpenTools(Protocol):
    """Tools that are open: what an MCP server or a sandbox is to the env that has it."""

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """The tools it offers, in the order they are shown."""
        ...

    @property
    def state(self) -> Any:
        """The private copy of the universe as the episode has left it: what verifiers read."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        """Run one tool.

        What a tool raises comes back as an answer with `is_error`.

        Raises:
            EnvBrokenError: When the env itself is broken; the episode fails.
        """
        ...


class EnvSession(OpenTools, Protocol):
    """One episode's env, opened and closed by the episode in one task."""

    async def changes(self) -> StateChanges | None:
        """Return what the episode changed in the universe so far; None where it has none of its own to compare with.

        Raises:
            UniverseError: When that cannot be told.
        """
        ...
