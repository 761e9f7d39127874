"""The steps at which a training run's reward fell the most, and whether their tasks explain it.

A step mostly plays other tasks than the one before, and harder tasks are no worse policy: so what a drop says is said of the
tasks that both steps played, where there are any.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from agent_env.runs.explorer.group_tasks import task_means
from agent_env.runs.explorer.points import StepPoint

__all__ = ["Drop", "SharedTasks", "largest_drops", "with_tasks"]

_DROPS = 3
_CLEAR = 2.0
"""A drop of fewer standard errors of the difference than this is taken for chance."""
_MOST_RUNS = 20_000
"""Of a larger step the tasks are not compared: that would be read again at each look while a training runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedTasks:
    """How the tasks fared that a step and the one before it both played."""

    count: int
    of: int
    """All tasks of the step that have a reward."""
    change: float | None
    """The mean over them of how each task's mean reward changed; None where there are none."""
    se: float | None
    """The standard error of `change` over the tasks, paired; None of fewer than two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """A step whose mean reward is clearly below that of the step before."""

    group: str
    group_before: str
    split: str
    step: int
    step_before: int
    before: float
    after: float
    runs: int
    """Of both steps."""
    tasks: SharedTasks | None = None
    """None where they were not compared."""

    @property
    def sort(self) -> str:
        """How the step's tasks are to be sorted, so that those that lost the most are first."""
        return "change" if self.tasks is not None and self.tasks.count else "mean"


def largest_drops(splits: Iterable[Sequence[StepPoint]]) -> list[Drop]:
    """The steps whose mean fell by the most, where chance alone would seldom do it; the greatest first.

    Args:
        splits: The points of each split, by step.
    """
    found = [drop for points in splits for drop in _falls(points)]
    return sorted(found, key=lambda drop: drop.after - drop.before)[:_DROPS]


def with_tasks(conn: sqlite3.Connection, drop: Drop) -> Drop:
    """The drop with what its tasks say.

    Raises:
        sqlite3.Error: When the index cannot be read.
    """
    if drop.runs > _MOST_RUNS:
        return drop
    before, after = (task_means(conn, group) for group in (drop.group_before, drop.group))
    changes = [after[task] - before[task] for task in after if task in before]
    count = len(changes)
    change = math.fsum(changes) / count if count else None
    se = None
    if change is not None and count > 1:
        se = math.sqrt(math.fsum((one - change) ** 2 for one in changes) / (count - 1) / count)
    return replace(drop, tasks=SharedTasks(count=count, of=len(after), change=change, se=se))


def _falls(points: Sequence[StepPoint]) -> Generator[Drop]:
    scored = [point for point in points if point.mean is not None and point.se is not None]
    for earlier, later in pairwise(scored):
        before, after = earlier.mean or 0.0, later.mean or 0.0
        error = math.hypot(earlier.se or 0.0, later.se or 0.0)
        if error > 0 and before - after >= _CLEAR * error:
            yield Drop(
                group=later.group,
                group_before=earlier.group,
                split=later.split,
                step=later.step,
                step_before=earlier.step,
                before=before,
                after=after,
                runs=earlier.runs + later.runs,
            )
