"""The grid env: a battery's day, read through tools, and the one schedule that counts."""

from __future__ import annotations

from typing import Literal

from agent_env import Env, ToolAnswer, ToolError, tool

from ..battery import Battery, Day, play, problem_of

Action = Literal["charge", "hold", "discharge"]


class Grid(Env):
    """One day of a site with a battery.

    The universe says what the battery is, how many simulations are left, and which schedule was submitted (none yet).
    """

    @tool
    def read_prices(self) -> str:
        """Read the price of each block of the day, in order, and its rank: 1 is the cheapest block."""
        day = Day.of(self.params)
        return "\n".join(
            f"{block}: rank {rank}, {price} EUR/MWh"
            for block, rank, price in zip(day.blocks, day.ranks, day.prices, strict=True)
        )

    @tool
    def read_forecast(self) -> str:
        """Read what the site will take in each block without the battery, and what charge left at the end is worth."""
        day = Day.of(self.params)
        lines = [f"{block}: {load} MWh" for block, load in zip(day.blocks, day.net_load, strict=True)]
        return "\n".join([*lines, f"left over: {day.leftover_price} EUR/MWh"])

    @tool
    def simulate(self, schedule: dict[str, Action]) -> str:
        """Find out what a schedule would save, without submitting it. Only a few simulations a day.

        Args:
            schedule: What the battery does in each block, by the block's name.
        """
        if self.state["simulations_left"] <= 0:
            raise ToolError("No simulation is left today: submit a schedule.")
        day = Day.of(self.params)
        if (problem := problem_of(day, schedule)) is not None:
            raise ToolError(problem)
        self.state["simulations_left"] -= 1
        outcome = play(self._battery, day, [schedule[block] for block in day.blocks])
        levels = ", ".join(f"{block} {level}" for block, level in zip(day.blocks, outcome.stored_mwh, strict=True))
        lines = [f"It would save {outcome.saving:.2f} EUR.", f"Stored at the end of each block, in MWh: {levels}."]
        if outcome.idle_blocks:
            names = ", ".join(day.blocks[block] for block in outcome.idle_blocks)
            lines.append(f"The battery is full or empty and can do nothing in: {names}.")
        return "\n".join([*lines, f"Simulations left: {self.state['simulations_left']}."])

    @tool
    def submit_schedule(self, schedule: dict[str, Action]) -> ToolAnswer:
        """Submit the schedule of the day. The first one that is accepted counts, and ends the work.

        Args:
            schedule: What the battery does in each block, by the block's name.
        """
        if self.state["submitted"] is not None:
            raise ToolError("A schedule was submitted already, and the first one counts.")
        day = Day.of(self.params)
        if (problem := problem_of(day, schedule)) is not None:
            raise ToolError(problem)
        self.state["submitted"] = [schedule[block] for block in day.blocks]
        return ToolAnswer("Accepted.", ends_turn=True)

    @property
    def _battery(self) -> Battery:
        return Battery(**self.state["battery"])
