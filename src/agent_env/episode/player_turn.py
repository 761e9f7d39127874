"""What a Python function sees that answers in an agent's place: a player, or a scripted agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_env.envs import ToolSpec
from agent_env.verify import Message

__all__ = ["PlayerTurn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayerTurn:
    """What a player, or a scripted agent, sees when it is its move."""

    prompt: str
    system_prompt: str
    tools: tuple[ToolSpec, ...]
    messages: Sequence[Message]
    """The conversation so far as the one who moves has it: its own messages have the role `assistant`."""
    params: Mapping[str, Any]
    """The task's params."""
    task_id: str
    turn: int
    """The turn's place in the episode, from 0."""
