"""Runs: the record of every episode, written as it happens, and the index that finds them again.

The explorer, which shows them, is `agent_env.runs.explorer` and is not imported from here.
"""

from __future__ import annotations

from agent_env.runs._sink import RunSink
from agent_env.runs.export import Exported
from agent_env.runs.index import RunIndex
from agent_env.runs.record import (
    GroupPlace,
    GroupSummary,
    RunEvent,
    RunFailure,
    RunOrder,
    RunPage,
    RunRecord,
    RunState,
    RunSummary,
    SampledTokens,
    SearchHit,
    SearchPage,
    ToolCount,
    Vacuumed,
    place_of,
)

__all__ = [
    "Exported",
    "GroupPlace",
    "GroupSummary",
    "RunEvent",
    "RunFailure",
    "RunIndex",
    "RunOrder",
    "RunPage",
    "RunRecord",
    "RunSink",
    "RunState",
    "RunSummary",
    "SampledTokens",
    "SearchHit",
    "SearchPage",
    "ToolCount",
    "Vacuumed",
    "place_of",
]
