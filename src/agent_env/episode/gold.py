"""Playing a reference solution: what a task has as `gold`, or any list of turns like it.

One function for `play --gold` and `--script`, `validate`, examples to train on, and tests.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from agent_env.bundle import GoldCall, GoldTurn, Task
from agent_env.episode.driving import Player
from agent_env.episode.player_turn import PlayerTurn
from agent_env.errors import UsageError
from agent_env.verify import Message, ToolCall

__all__ = ["CLOSING", "gold_player", "turns_player"]

CLOSING = "That is all."
"""What is said where the solution has nothing more to say and a reply is due: in a conversation that goes on after its last
turn, or when a turn's last call was to end it and has not."""


def gold_player(task: Task) -> Player:
    """Make a player of a task's reference solution.

    Raises:
        UsageError: When the task has none.
    """
    if task.gold is None:
        raise UsageError(f"{task.path}:{task.line}: task '{task.id}' has no gold, add gold: to it")
    return turns_player(task.gold)


def turns_player(turns: Sequence[GoldTurn]) -> Player:
    """Make a player of turns: in each of its turns the calls, one a message, then the reply.

    The player keeps nothing between messages: any number of episodes may be played with it at once.

    Args:
        turns: The turns of the agent that is played. One whose `reply` is None ends with its last call; where that call does
            not end it, or the conversation goes on after the last of them, `CLOSING` is said.
    """

    def say(turn: PlayerTurn) -> Message:
        place, said = _where(turn.messages)
        if place >= len(turns):
            return _reply(CLOSING)
        gold = turns[place]
        if said < len(gold.calls):
            return _call(gold.calls[said], f"gold-{place + 1}-{said + 1}")
        return _reply(CLOSING if gold.reply is None else gold.reply)

    return say


def _where(messages: Sequence[Message]) -> tuple[int, int]:
    """Return which turn of the player it is, from 0, and how many messages it has said in it."""
    turns = said = 0
    for message in messages:
        if message["role"] == "user":
            turns, said = turns + 1, 0
        elif message["role"] == "assistant":
            said += 1
    return turns - 1, said


def _call(call: GoldCall, call_id: str) -> Message:
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
    return Message(role="assistant", content="", tool_calls=[ToolCall(id=call_id, name=call.tool, arguments=arguments)])


def _reply(text: str) -> Message:
    return Message(role="assistant", content=text)
