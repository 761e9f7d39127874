"""Players to compare with: what scores without reading the prices, and what chance scores.

What looks like chance here depends on the task alone, so that a player scores the same each time.
"""

from __future__ import annotations

import json
from functools import cache
from random import Random
from typing import Any

from ..battery import ACTIONS, Day, best_schedule
from .reading import BATTERY, BUNDLE, day_of, read_then_submit


def idle(turn: Any) -> dict[str, Any]:
    """Holds all day."""
    return read_then_submit(turn, ["hold"] * len(day_of(turn).blocks))


def random(turn: Any) -> dict[str, Any]:
    """Does anything, each action as likely as the others."""
    chance = _chance(turn)
    return read_then_submit(turn, [chance.choice(ACTIONS) for _ in day_of(turn).blocks])


def fixed(turn: Any) -> dict[str, Any]:
    """Submits, every day, the one schedule that is best over the training days: the most that can be had unread."""
    schedules = json.loads((BUNDLE / "players" / "fixed.json").read_text(encoding="utf-8"))
    return read_then_submit(turn, schedules[_kind(day_of(turn))])


def copy(turn: Any) -> dict[str, Any]:
    """Submits the best schedule of some training day: a perfect memory of good plans, and no idea why."""
    return read_then_submit(turn, _chance(turn).choice(_training_plans(_kind(day_of(turn)))))


def _kind(day: Day) -> str:
    return "hourly" if len(day.blocks) == 24 else "short"


def _chance(turn: Any) -> Random:
    return Random(turn.task_id)


@cache
def _training_plans(kind: str) -> tuple[tuple[str, ...], ...]:
    lines = (BUNDLE / "tasks" / f"{kind}-train.jsonl").read_text(encoding="utf-8").splitlines()
    return tuple(best_schedule(BATTERY, Day.of(json.loads(line)["params"])) for line in lines)
