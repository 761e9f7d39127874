"""What GridSim's players have in common: read the prices, then submit one schedule."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..battery import Battery, Day

BUNDLE = Path(__file__).resolve().parent.parent

BATTERY = Battery(**json.loads((BUNDLE / "universes" / "site.json").read_text(encoding="utf-8"))["battery"])
"""The battery of every day."""


def day_of(turn: Any) -> Day:
    """The day that a player is asked to plan."""
    return Day.of(turn.params)


def read_then_submit(turn: Any, schedule: Sequence[str]) -> dict[str, Any]:
    """The message that reads the prices, or, once they were read, the one that submits a schedule.

    The schedule is written block by block in the order of the prices.
    """
    if any(message["role"] == "tool" for message in turn.messages):
        return _call("submit_schedule", {"schedule": dict(zip(turn.params["blocks"], schedule, strict=True))})
    return _call("read_prices", {})


def _call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"name": name, "arguments": json.dumps(arguments)}],
    }
