"""The bundle the training pages use: its rules, its days, its tools and its players."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import pytest

from agent_env.bundle import Bundle, PythonRef, load_bundle, validate_bundle
from agent_env.envs import EnvSession, open_env
from agent_env.episode import play
from agent_env.outcome import Outcome

BUNDLE = Path(__file__).parents[2] / "bundles" / "gridsim"
BLOCKS = ("night", "dawn", "morning", "noon", "evening", "late")
IDLE = dict.fromkeys(BLOCKS, "hold")


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    """GridSim as it ships."""
    return load_bundle(BUNDLE)


@pytest.fixture(scope="module")
def rules(bundle: Bundle) -> Any:
    """The bundle's `battery` module."""
    play = PythonRef(bundle.root, Path("battery.py"), "play").load()
    return sys.modules[play.__module__]


@pytest.fixture(scope="module")
def battery(rules: Any) -> Any:
    """The battery of every day that ships."""
    return rules.Battery(**json.loads((BUNDLE / "universes" / "site.json").read_text())["battery"])


@asynccontextmanager
async def opened(bundle: Bundle, task_id: str = "short-train-001") -> AsyncGenerator[EnvSession]:
    """The grid env, open on a task."""
    async with open_env(bundle.envs["grid"], task=bundle.task(task_id)) as session:
        yield session


def days_in(path: Path) -> set[str]:
    """The params of the tasks in a file."""
    return {json.dumps(json.loads(line)["params"]) for line in path.read_text().splitlines()}


def random_day(rules: Any, random: Random, blocks: int) -> Any:
    """A small day with sun, where exports happen and prices tie."""
    return rules.Day(
        blocks=tuple(f"b{block}" for block in range(blocks)),
        prices=tuple(random.randrange(1, 8) for _ in range(blocks)),
        net_load=tuple(random.randrange(-12, 20) for _ in range(blocks)),
        leftover_price=random.randrange(1, 8),
    )


def test_the_bundle_has_no_problem() -> None:
    """What ships validates, its Python and its prompts for every task included."""
    assert validate_bundle(BUNDLE) == []


def test_it_has_160_days_to_train_on_and_200_held_out_of_each_kind(bundle: Bundle) -> None:
    """Both kinds of day have the two splits, and no day is in both."""
    for kind, blocks in (("hourly", 24), ("short", 6)):
        train, test = bundle.select(f"{kind}-train"), bundle.select(f"{kind}-test")
        assert (len(train), len(test)) == (160, 200)
        assert {len(task.params["prices"]) for task in (*train, *test)} == {blocks}
        assert not {json.dumps(task.params) for task in train} & {json.dumps(task.params) for task in test}


def test_generating_it_again_gives_the_same_bytes(tmp_path: Path) -> None:
    """The committed days and the best fixed schedules are what the script writes."""
    subprocess.run([sys.executable, BUNDLE / "generate.py", "--folder", tmp_path], check=True, timeout=50)
    written = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.json*"))
    assert len(written) == 5
    for path in written:
        assert (tmp_path / path).read_bytes() == (BUNDLE / path).read_bytes(), path


def test_other_seeds_give_other_held_out_days_and_the_same_training_days(tmp_path: Path) -> None:
    """Tuning has days of its own, so that nobody needs to look at the held-out ones."""
    command = [sys.executable, BUNDLE / "generate.py", "--folder", tmp_path, "--test-seeds", "tune"]
    subprocess.run(command, check=True, timeout=50)
    for kind in ("hourly", "short"):
        name = f"tasks/{kind}-train.jsonl"
        assert (tmp_path / name).read_bytes() == (BUNDLE / name).read_bytes()
        held_out = days_in(BUNDLE / f"tasks/{kind}-test.jsonl")
        assert not held_out & days_in(tmp_path / f"tasks/{kind}-test.jsonl")


def test_the_best_schedule_is_as_good_as_trying_every_one(rules: Any) -> None:
    """The dynamic program is exact, for batteries of every size and days that export."""
    random = Random(0)
    for _ in range(60):
        battery = rules.Battery(
            capacity_mwh=random.choice((3, 6, 10)),
            start_mwh=random.choice((0, 1, 3)),
            buys_mwh=random.choice((3, 4)),
            stores_mwh=3,
            gives_mwh=random.choice((2, 3)),
            export_share=0.5,
        )
        day = random_day(rules, random, 5)
        most = max(rules.play(battery, day, plan).saving for plan in product(rules.ACTIONS, repeat=5))
        assert rules.play(battery, day, rules.best_schedule(battery, day)).saving == most


def test_the_best_schedule_of_every_short_day_is_as_good_as_trying_every_one(
    bundle: Bundle, rules: Any, battery: Any
) -> None:
    """Also on the days that ship."""
    for task in bundle.select("short-test")[:40]:
        day = rules.Day.of(task.params)
        most = max(rules.play(battery, day, plan).saving for plan in product(rules.ACTIONS, repeat=6))
        assert rules.play(battery, day, rules.best_schedule(battery, day)).saving == most


def test_the_best_fixed_schedule_is_the_best_of_all_for_the_days_together(rules: Any, battery: Any) -> None:
    """Its days count by their saving over their best saving."""
    random = Random(1)
    days = [random_day(rules, random, 4) for _ in range(12)]
    most = [rules.play(battery, day, rules.best_schedule(battery, day)).saving for day in days]
    days, most = zip(*[(day, best) for day, best in zip(days, most, strict=True) if best > 0], strict=True)

    def worth(plan: Any) -> float:
        return sum(rules.play(battery, day, plan).saving / best for day, best in zip(days, most, strict=True))

    found = worth(rules.best_fixed_schedule(battery, days))
    assert found == pytest.approx(max(worth(plan) for plan in product(rules.ACTIONS, repeat=4)))


def test_losses_make_a_round_trip_at_one_price_cost_money(rules: Any, battery: Any) -> None:
    """Ten MWh are bought for the nine that come back."""
    day = rules.Day(blocks=("a", "b"), prices=(50, 50), net_load=(30, 30), leftover_price=50)
    assert rules.play(battery, day, ("charge", "discharge")).saving == 50 * (9 - 10)
    assert rules.best_schedule(battery, day) in {("hold", "hold"), ("hold", "discharge"), ("discharge", "hold")}


def test_what_goes_to_the_grid_earns_half_the_price(rules: Any, battery: Any) -> None:
    """Discharging into surplus sun is paid half; charging from it costs half."""
    day = rules.Day(blocks=("a",), prices=(40,), net_load=(-20,), leftover_price=0)
    assert rules.play(battery, day, ("discharge",)).saving == 9 * 20
    assert rules.play(battery, day, ("charge",)).saving == -10 * 20


def test_a_full_battery_does_not_charge_and_an_empty_one_does_not_discharge(rules: Any, battery: Any) -> None:
    """The block passes as if it held, and the outcome says so."""
    day = rules.Day(blocks=tuple("abcd"), prices=(10,) * 4, net_load=(30,) * 4, leftover_price=0)
    full = rules.play(battery, day, ["charge"] * 4)
    assert (full.stored_mwh, full.idle_blocks) == ((27, 36, 36, 36), (2, 3))
    empty = rules.play(battery, day, ["discharge"] * 4)
    assert (empty.stored_mwh, empty.idle_blocks) == ((9, 0, 0, 0), (2, 3))


def test_idling_scores_a_fifth_the_best_one_and_a_costly_plan_nothing(bundle: Bundle, rules: Any, battery: Any) -> None:
    """The scale's three points."""
    for task in (*bundle.select("short-test")[:20], *bundle.select("hourly-test")[:20]):
        day = rules.Day.of(task.params)
        assert rules.score(battery, day, ["hold"] * len(day.blocks)) == pytest.approx(0.2)
        assert rules.score(battery, day, rules.best_schedule(battery, day)) == 1.0
        backwards = ["discharge" if rank <= len(day.blocks) // 2 else "charge" for rank in day.ranks]
        assert rules.score(battery, day, backwards) == 0.0


def test_every_day_that_ships_can_be_scored(bundle: Bundle, rules: Any, battery: Any) -> None:
    """On each of them a battery can save something, and the best schedule scores one exactly."""
    for task in bundle.select("all"):
        day = rules.Day.of(task.params)
        best = rules.best_schedule(battery, day)
        assert rules.play(battery, day, best).saving > 100
        assert rules.score(battery, day, best) == 1.0


async def test_the_order_that_the_blocks_are_written_in_does_not_matter(bundle: Bundle) -> None:
    """A schedule is by name; what is kept is in the day's order."""
    async with opened(bundle) as session:
        written = {block: "charge" if block == "late" else "hold" for block in reversed(BLOCKS)}
        assert not (await session.call("submit_schedule", {"schedule": written})).is_error
        assert session.state["submitted"] == [*["hold"] * 5, "charge"]


async def test_prices_come_with_their_rank_block_by_block(bundle: Bundle) -> None:
    """One line a block, in the order that a schedule is written in."""
    async with opened(bundle) as session:
        lines = (await session.call("read_prices", {})).text.splitlines()
    params = bundle.task("short-train-001").params
    assert [line.split(":")[0] for line in lines] == params["blocks"]
    ranks = [int(line.split("rank ")[1].split(",")[0]) for line in lines]
    assert sorted(ranks) == [1, 2, 3, 4, 5, 6]
    assert [price for _, price in sorted(zip(ranks, params["prices"], strict=True))] == sorted(params["prices"])


async def test_the_first_accepted_schedule_counts_and_ends_the_turn(bundle: Bundle) -> None:
    """Later ones are refused, and change nothing."""
    async with opened(bundle) as session:
        accepted = await session.call("submit_schedule", {"schedule": IDLE})
        later = await session.call("submit_schedule", {"schedule": dict.fromkeys(BLOCKS, "charge")})
        assert (accepted.is_error, accepted.ends_turn) == (False, True)
        assert (later.is_error, later.ends_turn) == (True, False)
        assert "first one counts" in later.text
        assert session.state["submitted"] == ["hold"] * 6


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"schedule": dict.fromkeys(BLOCKS[:4], "hold")}, "write one for evening, late too"),
        ({"schedule": {**IDLE, "midnight": "hold"}}, "no block 'midnight'"),
        ({"schedule": {**IDLE, "noon": "sell"}}, '"sell"'),
        ({"schedule": ["hold"] * 6}, "schedule: expected"),
        ({}, "schedule"),
    ],
)
async def test_a_bad_schedule_is_refused_with_a_way_out_and_does_not_count(
    bundle: Bundle, arguments: dict[str, Any], said: str
) -> None:
    """The model may try again, and what it then submits is the first one accepted."""
    async with opened(bundle) as session:
        refused = await session.call("submit_schedule", arguments)
        assert (refused.is_error, refused.ends_turn) == (True, False)
        assert said in refused.text
        assert session.state["submitted"] is None
        assert not (await session.call("submit_schedule", {"schedule": IDLE})).is_error


async def test_simulations_run_out_and_refused_ones_are_not_counted(bundle: Bundle) -> None:
    """Three a day; a schedule that cannot be played costs none."""
    async with opened(bundle) as session:
        assert (await session.call("simulate", {"schedule": {"noon": "hold"}})).is_error
        for left in (2, 1, 0):
            answer = await session.call("simulate", {"schedule": IDLE})
            assert answer.text.startswith("It would save 0.00 EUR.")
            assert answer.text.endswith(f"Simulations left: {left}.")
        refused = await session.call("simulate", {"schedule": IDLE})
        assert refused.is_error
        assert "submit" in refused.text
        assert not (await session.call("submit_schedule", {"schedule": IDLE})).is_error


async def test_the_forecast_says_the_net_load_and_what_is_left_over_is_worth(bundle: Bundle) -> None:
    """Everything that the score depends on can be read."""
    async with opened(bundle, "hourly-test-003") as session:
        lines = (await session.call("read_forecast", {})).text.splitlines()
    params = bundle.task("hourly-test-003").params
    loads = [f"{block}: {load} MWh" for block, load in zip(params["blocks"], params["net_load"], strict=True)]
    assert lines == [*loads, f"left over: {params['leftover_price']} EUR/MWh"]


def test_the_system_prompt_says_the_battery_that_the_universe_has(bundle: Bundle, battery: Any) -> None:
    """The numbers are written in two places and are the same."""
    told = (BUNDLE / "prompts" / "operator.md").read_text()
    assert f"room for {battery.capacity_mwh} MWh and starts the day half full" in told
    assert battery.start_mwh * 2 == battery.capacity_mwh
    assert f"buys {battery.buys_mwh} MWh and stores {battery.stores_mwh}" in told
    assert f"discharging gives {battery.gives_mwh}" in told
    assert (battery.export_share, "earns half the price" in told) == (0.5, True)


async def scores(bundle: Bundle, player: str, tasks: int) -> list[float]:
    """What a player of the bundle scores on the first held-out days of each kind."""
    days = [task for kind in ("short", "hourly") for task in bundle.select(f"{kind}-test")[:tasks]]
    return [(await play(task, bundle.players[player])).scores["saving"].value for task in days]


async def test_the_best_player_scores_one_on_every_day(bundle: Bundle) -> None:
    """It reads the prices, submits once, and nothing can beat it: one exactly, so that `reward = 1` finds it."""
    assert await scores(bundle, "best", 15) == [1.0] * 30


async def test_the_idle_player_scores_a_fifth(bundle: Bundle) -> None:
    """The other fixed point of the scale."""
    assert await scores(bundle, "idle", 5) == pytest.approx([0.2] * 10)


async def test_the_reference_players_score_the_same_each_time_and_less_than_the_best(bundle: Bundle) -> None:
    """Chance is the task's. Fixed beats copying, and copying beats chance."""
    means: dict[str, float] = {}
    for player in ("fixed", "copy", "random"):
        first = await scores(bundle, player, 40)
        assert await scores(bundle, player, 40) == first
        means[player] = fmean(first)
    assert 1 > means["fixed"] > means["copy"] > means["random"]


async def test_a_day_on_which_nothing_is_submitted_scores_zero(bundle: Bundle) -> None:
    """Talking is not planning."""
    result = await play(
        bundle.task("short-train-001"), lambda turn: {"role": "assistant", "content": "Charge, I think."}
    )
    assert (result.outcome, result.scores["saving"].value) == (Outcome.COMPLETED, 0.0)
