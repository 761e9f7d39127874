"""The rules of GridSim: what a schedule does to a battery and to the bill, and which schedule is the best.

A day is a number of blocks, each with a price and a net load. In each block the battery charges, holds or discharges,
always at full power. Energy is in whole MWh, so the states a battery can be in are few and the dynamic program over
them is exact, not an approximation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ACTIONS = ("charge", "hold", "discharge")
"""What the battery can do in a block, in the order that ties are broken: the best schedule prefers the earlier."""

IDLE_SCORE = 0.2
"""The score of a day on which the battery does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Battery:
    """A battery, by what it does in one block at full power."""

    capacity_mwh: int
    """What it can hold."""
    start_mwh: int
    """What it holds when the day begins."""
    buys_mwh: int
    """What a block of charging takes from the site's connection."""
    stores_mwh: int
    """What of that is stored; the rest is lost."""
    gives_mwh: int
    """What a block of discharging takes out of the battery; the site gets all of it."""
    export_share: float
    """The share of the price that the site is paid for what it gives to the grid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """A day, as the task's params say it."""

    blocks: tuple[str, ...]
    """The blocks' names, in order."""
    prices: tuple[int, ...]
    """EUR for a MWh, by block."""
    net_load: tuple[int, ...]
    """What the site takes without the battery, in MWh by block; below zero when its solar roof makes more than it needs."""
    leftover_price: int
    """What a MWh left in the battery at the end of the day is worth, in EUR."""

    @classmethod
    def of(cls, params: Mapping[str, Any]) -> Day:
        """The day of a task."""
        return cls(
            blocks=tuple(params["blocks"]),
            prices=tuple(params["prices"]),
            net_load=tuple(params["net_load"]),
            leftover_price=params["leftover_price"],
        )

    @property
    def ranks(self) -> tuple[int, ...]:
        """Each block's place among the day's prices, 1 for the cheapest; of equal prices the earlier is first."""
        order = sorted(range(len(self.prices)), key=lambda block: self.prices[block])
        ranks = [0] * len(order)
        for rank, block in enumerate(order, start=1):
            ranks[block] = rank
        return tuple(ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a schedule comes to."""

    saving: float
    """EUR that the battery saves: the bill without it less the bill with it, leftover charge counted."""
    stored_mwh: tuple[int, ...]
    """What the battery holds at the end of each block."""
    idle_blocks: tuple[int, ...]
    """Blocks that were to charge a full battery or discharge an empty one, and so did nothing."""


def play(battery: Battery, day: Day, schedule: Sequence[str]) -> Outcome:
    """What a schedule, one action a block, comes to on a day."""
    stored, saving = battery.start_mwh, 0.0
    levels: list[int] = []
    idle: list[int] = []
    for block, action in enumerate(schedule):
        after = level_after(battery, stored, action)
        if after == stored and action != "hold":
            idle.append(block)
        saving += block_saving(battery, day, block, after - stored)
        stored = after
        levels.append(stored)
    saving += (stored - battery.start_mwh) * day.leftover_price
    return Outcome(saving=saving, stored_mwh=tuple(levels), idle_blocks=tuple(idle))


def level_after(battery: Battery, stored_mwh: int, action: str) -> int:
    """What the battery holds after a block. Without room, or charge, for a whole block it does nothing."""
    if action == "charge" and stored_mwh + battery.stores_mwh <= battery.capacity_mwh:
        return stored_mwh + battery.stores_mwh
    if action == "discharge" and stored_mwh >= battery.gives_mwh:
        return stored_mwh - battery.gives_mwh
    return stored_mwh


def block_saving(battery: Battery, day: Day, block: int, change_mwh: int) -> float:
    """What a block's bill is lower by, when the battery's charge changes by so much in it."""
    draws = 0 if change_mwh == 0 else battery.buys_mwh if change_mwh > 0 else change_mwh
    load, price = day.net_load[block], day.prices[block]
    return _bill(battery, price, load) - _bill(battery, price, load + draws)


def _bill(battery: Battery, price: int, grid_mwh: int) -> float:
    """What the site pays in a block: the price for what it takes, less a share of it for what it gives."""
    return price * grid_mwh if grid_mwh >= 0 else battery.export_share * price * grid_mwh


def best_schedule(battery: Battery, day: Day) -> tuple[str, ...]:
    """The schedule that saves the most, by dynamic programming over what the battery can hold.

    It never asks a full battery to charge or an empty one to discharge. Of schedules that save the same it is the first
    one in the order of `ACTIONS`, block by block.
    """
    return _best(
        battery,
        len(day.prices),
        saving=lambda block, change: block_saving(battery, day, block, change),
        leftover_price=day.leftover_price,
    )


def best_fixed_schedule(battery: Battery, days: Sequence[Day]) -> tuple[str, ...]:
    """The one schedule that is best for all of these days together: what can be done without reading a day's prices.

    A day counts by its saving over its best saving, as its score does before it is clipped at 0. The sum of those is
    the saving of one day with weighted prices, so the dynamic program finds its best.
    """
    weights = [1 / play(battery, day, best_schedule(battery, day)).saving for day in days]
    return _best(
        battery,
        len(days[0].prices),
        saving=lambda block, change: sum(
            weight * block_saving(battery, day, block, change) for weight, day in zip(weights, days, strict=True)
        ),
        leftover_price=sum(weight * day.leftover_price for weight, day in zip(weights, days, strict=True)),
    )


def _best(
    battery: Battery, blocks: int, *, saving: Callable[[int, int], float], leftover_price: float
) -> tuple[str, ...]:
    """The best schedule, where `saving` says what a change of the charge saves in a block."""
    reachable = [{battery.start_mwh}]
    for _ in range(blocks):
        reachable.append({level_after(battery, level, action) for level in reachable[-1] for action in ACTIONS})
    value = {level: (level - battery.start_mwh) * leftover_price for level in reachable[-1]}
    choices: list[dict[int, str]] = []
    for block in reversed(range(blocks)):
        chosen: dict[int, str] = {}
        values: dict[int, float] = {}
        saved = {0: 0.0, battery.stores_mwh: saving(block, battery.stores_mwh)}
        saved[-battery.gives_mwh] = saving(block, -battery.gives_mwh)
        for level in reachable[block]:
            worth = {
                action: saved[after - level] + value[after]
                for action in ACTIONS
                if (after := level_after(battery, level, action)) != level or action == "hold"
            }
            chosen[level] = max(worth, key=lambda action: worth[action])
            values[level] = worth[chosen[level]]
        choices.append(chosen)
        value = values
    level, schedule = battery.start_mwh, list[str]()
    for chosen in reversed(choices):
        schedule.append(chosen[level])
        level = level_after(battery, level, schedule[-1])
    return tuple(schedule)


def score(battery: Battery, day: Day, schedule: Sequence[str]) -> float:
    """The day's score: 0.2 for the saving of an idle battery (0 EUR), 1 for the best saving, on a line, and not below 0."""
    best = play(battery, day, best_schedule(battery, day)).saving
    saving = play(battery, day, schedule).saving
    if best <= 0:
        raise ValueError(f"the best schedule saves {best} EUR: on such a day nothing can be scored")
    # The share first: it is exactly 1 for the best saving, and so is the score. Times 0.8 and then divided it is at times more.
    return max(0.0, IDLE_SCORE + (1 - IDLE_SCORE) * (saving / best))


def problem_of(day: Day, schedule: Mapping[str, str]) -> str | None:
    """Say what is wrong with a schedule, an action for each block by name; None when it can be played."""
    unknown = [name for name in schedule if name not in day.blocks]
    if unknown:
        return f"The day has no block {unknown[0]!r}: write one action for each of {', '.join(day.blocks)}."
    missing = [name for name in day.blocks if name not in schedule]
    if missing:
        return (
            f"The schedule has {len(schedule)} actions and the day has {len(day.blocks)} blocks: "
            f"write one for {', '.join(missing)} too."
        )
    for name, action in schedule.items():
        if action not in ACTIONS:
            return f"{action!r} in block {name} is not an action: write charge, hold or discharge."
    return None
