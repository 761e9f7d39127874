"""Reference solutions, from what a file says to the values that are played."""

from __future__ import annotations

from collections.abc import Iterable

from agent_env.bundle.schema_tasks import GoldCallFile, GoldTurnFile
from agent_env.bundle.task import GoldCall, GoldTurn

__all__ = ["gold_calls", "gold_turns"]


def gold_calls(written: Iterable[GoldCallFile]) -> tuple[GoldCall, ...]:
    """Return calls as they are made."""
    return tuple(GoldCall(tool=call.tool, arguments=call.arguments) for call in written)


def gold_turns(written: Iterable[GoldTurnFile]) -> tuple[GoldTurn, ...]:
    """Return turns as they are played."""
    return tuple(GoldTurn(calls=gold_calls(turn.calls), reply=turn.reply) for turn in written)
