"""Playing an episode with a model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, cast

from agent_env.bundle import ModelSpec
from agent_env.chat import complete
from agent_env.episode.driving import Player
from agent_env.episode.player_turn import PlayerTurn
from agent_env.verify import Message
from agent_env.verify.view import text_of

__all__ = ["model_player"]


def model_player(spec: ModelSpec) -> Player:
    """Make a player of a model.

    It keeps nothing between messages: any number of episodes may be played with it at once. Within
    `agent_env.chat.open_chat()` they share their connections.

    The messages that it says also have `model`, `usage` (`prompt_tokens`, `completion_tokens`; None where the endpoint does
    not say), `finish_reason` and `duration_s`, for the run. `drive` cuts the episode at one that was cut off at `max_tokens`.

    Args:
        spec: The model, where it is, and how to ask it.

    What `agent_env.chat.complete` raises comes out of it.
    """

    async def say(turn: PlayerTurn) -> Message:
        reply = await complete(spec, list(_one_conversation(turn.messages)), turn.tools)
        more: dict[str, Any] = {
            "model": reply.model,
            "usage": None if reply.usage is None else asdict(reply.usage),
            "finish_reason": reply.finish_reason,
            "duration_s": reply.duration_s,
        }
        return cast("Message", {**reply.message, **more})

    return say


def _one_conversation(messages: Sequence[Message]) -> Iterator[Message]:
    """The conversation as trainers show it: its system prompt at the start, and text before each later prompt that has another."""
    first: str | None = None
    later = ""
    for place, message in enumerate(messages):
        if message["role"] == "system" and place == 0:
            first = text_of(message)
            yield message
        elif message["role"] == "system":
            text = text_of(message)
            later = "" if text == first else text
        elif message["role"] == "user" and later:
            yield Message(role="user", content=f"{later}\n\n{text_of(message)}")
        else:
            yield message
