"""The best player: reads the prices, then submits the best schedule of the day.

It works the schedule out with the rules themselves, from the task's params, so it is a demonstration to learn from and
the upper end of the scale, not an agent that competes.
"""

from __future__ import annotations

from typing import Any

from ..battery import best_schedule
from .reading import BATTERY, day_of, read_then_submit


def play(turn: Any) -> dict[str, Any]:
    """The next message of the best player."""
    return read_then_submit(turn, best_schedule(BATTERY, day_of(turn)))
