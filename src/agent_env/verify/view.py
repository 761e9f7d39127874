"""What a verifier is shown: the conversation, the calls, and the state that the episode left.

Covers the values. Not how they come about: `agent_env.episode` plays, and makes a view when one is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, TypedDict

from agent_env.bundle import names_or_closest
from agent_env.chat.wire import text_of_content
from agent_env.errors import UsageError
from agent_env.outcome import CutReason, Score

__all__ = ["CallRecord", "EpisodeView", "Message", "ToolCall", "UnreadableCall", "text_of"]


class ToolCall(TypedDict):
    """A call that an assistant message asks for."""

    id: NotRequired[str]
    name: str
    arguments: str
    """The text that the model wrote, not parsed."""


class UnreadableCall(TypedDict):
    """A call that an assistant message asks for and that could not be read."""

    raw: str
    """The text that the model wrote."""
    error: str
    """What is wrong with it."""


class Message(TypedDict):
    """One message of a conversation, as model servers have it."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]]
    """Text, or parts (`{"type": "text", "text": ...}` and others)."""
    tool_calls: NotRequired[list[ToolCall]]
    unreadable_calls: NotRequired[list[UnreadableCall]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


def text_of(message: Message) -> str:
    """Return what a message says: its text parts, without thinking and images."""
    return text_of_content(message["content"])


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRecord:
    """One tool call and what it came to."""

    tool: str
    arguments: Mapping[str, Any] | None
    """None when what the model wrote could not be read as arguments."""
    text: str
    """The answer that the model read."""
    is_error: bool
    turn: int
    """The turn it was made in, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeView:
    """An episode so far: what `score(episode)` and the function of a `run` step get."""

    task_id: str
    params: Mapping[str, Any]
    """The task's params, a copy of the episode's own."""
    tags: tuple[str, ...]
    messages: list[Message]
    """The played agent's conversation: system prompts, prompts, what it said, answers of tools."""
    replies: list[str]
    """What the agent said at the end of each turn that it ended; empty where it ended with a call."""
    calls: list[CallRecord]
    """The agent's, not those of other agents."""
    conversations: Mapping[str, list[Message]] = field(default_factory=dict[str, "list[Message]"], repr=False)
    """Every agent's conversation as that agent has it, by its name in the bundle; the played one's is `messages`."""
    scores: Mapping[str, Score]
    """Of the verify steps before, by step id."""
    cut: CutReason | None
    """Why the trainer ended the episode, if it did."""
    states: Mapping[str, Any] = field(repr=False)
    """What each env has as its state, by the env's name."""

    def state(self, env: str | None = None) -> Any:
        """Return an env's state as the agent left it, the thing itself: what a `run` step changes stays changed.

        Args:
            env: The env's name; may be left out with one env.

        Raises:
            UsageError: When there is no such env, or several and none is named.
        """
        if env is None:
            if len(self.states) == 1:
                return next(iter(self.states.values()))
            if not self.states:
                raise UsageError("the episode has no env, so there is no state")
            raise UsageError(
                f"the episode has several envs: write state('{next(iter(self.states))}'), or another of "
                f"{', '.join(self.states)}"
            )
        try:
            return self.states[env]
        except KeyError:
            raise UsageError(f"the episode has no env '{env}', {names_or_closest(env, self.states)}") from None
