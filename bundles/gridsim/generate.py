"""Make GridSim's days from seeds: the same bytes each time, on every machine.

    python generate.py                       # write tasks/ and players/fixed.json beside this script
    python generate.py --folder DIR          # write them elsewhere
    python generate.py --test-seeds tune     # other held-out days, to tune on without looking at the real ones

A day's seed is its id, so that a day does not depend on how many there are. Chance is made of whole numbers only:
sums of `Random.randrange`, which no maths library rounds in its own way.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from battery import Battery, Day, best_fixed_schedule

BUNDLE = Path(__file__).resolve().parent
SPLITS = {"train": 160, "test": 200}
"""Days by split."""

SHORT_BLOCKS = ("night", "dawn", "morning", "noon", "evening", "late")
SHORT_PRICES = (34, 26, 48, 40, 66, 50)
"""What a short day's blocks cost on the average day, in EUR/MWh."""
HOURLY_BLOCKS = tuple(f"{hour:02d}:00" for hour in range(24))
HOURLY_PRICES = (38, 35, 33, 32, 33, 36, 45, 56, 60, 54, 46, 40, 36, 34, 36, 42, 52, 64, 72, 70, 62, 54, 47, 42)
HOURLY_LOAD = (14, 13, 12, 12, 12, 14, 18, 24, 28, 30, 31, 32, 33, 32, 31, 30, 29, 28, 27, 25, 22, 19, 17, 15)
"""What the site takes on the average day, in MWh by hour."""
SUN = (0, 0, 0, 0, 0, 0, 1, 3, 6, 9, 12, 13, 14, 13, 12, 9, 6, 3, 1, 0, 0, 0, 0, 0)
"""How the sun goes over the roof, by hour, in fourteenths of its height at noon."""


def normal(random: Random, sigma: int) -> float:
    """A number near a normal distribution's: the sum of twelve even ones has the variance of one."""
    return sigma * (sum(random.randrange(1000) for _ in range(12)) - 5994) / 1000


def price(value: float) -> int:
    """A whole price with two digits."""
    return min(99, max(10, round(value)))


def short_day(random: Random) -> dict[str, Any]:
    """Six blocks of four hours. The site always takes more than the battery gives, so that prices alone decide."""
    shift = normal(random, 5)
    prices = [price(base + shift + normal(random, 20)) for base in SHORT_PRICES]
    return {
        "blocks": list(SHORT_BLOCKS),
        "prices": prices,
        "net_load": [random.randrange(20, 60) for _ in SHORT_BLOCKS],
        "leftover_price": round(sum(prices) / len(prices)),
    }


def hourly_day(random: Random) -> dict[str, Any]:
    """Twenty-four hours, under a sky that is clear or not: where the roof makes too much, energy costs half its price."""
    shift, drift, roof = normal(random, 8), 0.0, random.randrange(0, 64)
    prices: list[int] = []
    loads: list[int] = []
    for base, load, sun in zip(HOURLY_PRICES, HOURLY_LOAD, SUN, strict=True):
        drift = 0.75 * drift + normal(random, 7)
        prices.append(price(base + shift + drift + normal(random, 5) - sun * roof / 100))
        loads.append(load + random.randrange(-4, 5) - sun * roof // 14)
    return {
        "blocks": list(HOURLY_BLOCKS),
        "prices": prices,
        "net_load": loads,
        "leftover_price": round(sum(prices) / len(prices) + normal(random, 4)),
    }


KINDS = {"hourly": hourly_day, "short": short_day}


def days(kind: str, split: str, seeds: str) -> Iterator[dict[str, Any]]:
    """The tasks of one kind and split; `seeds` is the word that the days' seeds have for the split."""
    for number in range(1, SPLITS[split] + 1):
        params = KINDS[kind](Random(f"gridsim {kind} {seeds} {number}"))
        yield {"id": f"{kind}-{split}-{number:03d}", "tags": [kind, split], "params": params}


def main() -> None:
    """Write the days, and the best fixed schedule of each kind of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=BUNDLE, help="where tasks/ and players/ are")
    parser.add_argument("--test-seeds", default="test", help="the word in the held-out days' seeds")
    options = parser.parse_args()
    battery = Battery(**json.loads((BUNDLE / "universes" / "site.json").read_text())["battery"])
    fixed: dict[str, tuple[str, ...]] = {}
    for kind in KINDS:
        for split, seeds in (("train", "train"), ("test", options.test_seeds)):
            tasks = list(days(kind, split, seeds))
            path = options.folder / "tasks" / f"{kind}-{split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes("".join(json.dumps(task) + "\n" for task in tasks).encode())
            if split == "train":
                fixed[kind] = best_fixed_schedule(battery, [Day.of(task["params"]) for task in tasks])
    path = options.folder / "players" / "fixed.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((json.dumps(fixed, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
