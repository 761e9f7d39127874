"""Training runs, summed up from their groups: what a list shows instead of a line for every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agent_env.runs.record import GroupSummary, RunState

__all__ = ["SplitMean", "TrainingTotals", "sum_up"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitMean:
    """What a split's last step with a scored run earned."""

    step: int
    scored: int
    """Completed runs with a reward: what the mean is of."""
    reward_mean: float
    reward_se: float | None
    """The standard error of that mean; None under two scored runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTotals:
    """A training run: all groups that are named `<training>/<split>/step-<step>`, counted together."""

    name: str
    groups: int
    steps: int
    """How many different steps they are of."""
    last_step: int
    latest: Mapping[str, SplitMean]
    """By split, those that have a scored run; `train` first."""
    runs: int
    states: Mapping[RunState, int]
    """How many runs stand how; every state is there."""
    failures: Mapping[str, int]
    """Failed runs by kind of failure."""
    cuts: Mapping[str, int]
    """Cut runs by reason."""
    first_at_s: float
    """When its first run was opened, in Unix seconds."""
    last_at_s: float
    """When one of its runs last wrote, in Unix seconds."""

    @property
    def cut(self) -> int:
        """How many runs were cut."""
        return sum(self.cuts.values())


def sum_up(groups: Iterable[GroupSummary]) -> list[TrainingTotals]:
    """The training runs that some groups are of, the one that wrote last first. Groups of none are left out."""
    found: dict[str, list[tuple[int, str, GroupSummary]]] = {}
    for group in groups:
        if group.place is not None:
            found.setdefault(group.place.training, []).append((group.place.step, group.place.split, group))
    trainings = [_totals(name, placed) for name, placed in found.items()]
    return sorted(trainings, key=lambda training: (-training.last_at_s, training.name))


def _totals(name: str, placed: list[tuple[int, str, GroupSummary]]) -> TrainingTotals:
    placed.sort(key=lambda place: (place[1] != "train", place[1], place[0]))
    latest: dict[str, SplitMean] = {}
    states: Counter[RunState] = Counter()
    failures: Counter[str] = Counter()
    cuts: Counter[str] = Counter()
    for step, split, group in placed:
        states.update(group.states)
        failures.update(group.failures)
        cuts.update(group.cuts)
        if group.reward_mean is not None:
            latest[split] = SplitMean(
                step=step, scored=group.scored, reward_mean=group.reward_mean, reward_se=group.reward_se
            )
    return TrainingTotals(
        name=name,
        groups=len(placed),
        steps=len({step for step, _, _ in placed}),
        last_step=max(step for step, _, _ in placed),
        latest=latest,
        runs=sum(states.values()),
        states={state: states[state] for state in RunState},
        failures=dict(failures.most_common()),
        cuts=dict(cuts.most_common()),
        first_at_s=min(group.first_at_s for _, _, group in placed),
        last_at_s=max(group.last_at_s for _, _, group in placed),
    )
