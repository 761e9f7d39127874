"""What held-out play came to: means, standard errors, paired differences, and the table that says so."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from agent_env.bundle.recipe import RewardShare

__all__ = ["HeldOut", "PairedDifference", "paired_difference", "results_table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """The rewards of one policy on the held-out tasks."""

    name: str
    rewards: Mapping[str, float]
    """Reward by task id; where a task was played more than once, its mean."""
    failed: int = 0
    """Episodes that failed: they have no reward and are in no mean."""

    @property
    def mean(self) -> float:
        """The mean reward over tasks; NaN where nothing was scored."""
        return math.fsum(self.rewards.values()) / len(self.rewards) if self.rewards else math.nan

    @property
    def standard_error(self) -> float:
        """The standard error of the mean over tasks: the sample deviation over the root of their number."""
        return _standard_error(list(self.rewards.values()))

    def share(self, share: RewardShare) -> float:
        """The share of the scored tasks whose reward reaches a mark."""
        if not self.rewards:
            return math.nan
        reached = [
            (share.above is None or reward > share.above) and (share.at_least is None or reward >= share.at_least)
            for reward in self.rewards.values()
        ]
        return sum(reached) / len(reached)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """How much one policy earns over another on the same tasks."""

    mean: float
    standard_error: float
    tasks: int

    def __str__(self) -> str:
        in_errors = (
            f"{self.mean / self.standard_error:.1f} paired standard errors" if self.standard_error else "exactly"
        )
        return f"{self.mean:+.3f} ± {self.standard_error:.3f} ({in_errors}, {self.tasks} tasks)"


def paired_difference(after: HeldOut, before: HeldOut) -> PairedDifference:
    """The mean of `after - before` over the tasks that both scored, with its standard error.

    Pairing by task takes out how hard each task is, which is most of the spread.
    """
    both = sorted(after.rewards.keys() & before.rewards.keys())
    differences = [after.rewards[task] - before.rewards[task] for task in both]
    mean = math.fsum(differences) / len(differences) if differences else math.nan
    return PairedDifference(mean=mean, standard_error=_standard_error(differences), tasks=len(both))


def results_table(title: str, rows: Sequence[HeldOut], shares: Sequence[RewardShare]) -> Table:
    """The table that `agent-env train` ends with."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("held-out play", no_wrap=True)
    table.add_column("mean reward", justify="right")
    table.add_column("± s.e.", justify="right")
    for share in shares:
        table.add_column(share.name, justify="right")
    table.add_column("scored", justify="right")
    table.add_column("failed", justify="right")
    for row in rows:
        table.add_row(
            row.name,
            f"{row.mean:.3f}",
            f"{row.standard_error:.3f}",
            *(f"{row.share(share):.0%}" for share in shares),
            str(len(row.rewards)),
            str(row.failed),
        )
    return table


def _standard_error(values: Sequence[float]) -> float:
    """Sample standard deviation (n - 1) over the root of n; NaN under two values."""
    if len(values) < 2:
        return math.nan
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
