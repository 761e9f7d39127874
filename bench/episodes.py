"""What an in-process episode costs without a model: time per tool call, and memory of those under way at once.

    python bench/episodes.py

Plays hourly GridSim days (24 blocks) with 8 tool calls each. Prints one table, measured in one run. A call's time is an
eighth of a whole episode's: opening, the copy of the universe, the calls, and the verifier with its exact best schedule.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agent_env import Bundle, Episode, EpisodeSink, RunIndex, Turn, load_bundle, open_episode

BUNDLE = Path(__file__).parent.parent / "bundles" / "gridsim"
CALLS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=500, help="one after the other, for the time")
    parser.add_argument("--under-way", type=int, default=1000, help="at once, for the memory")
    arguments = parser.parse_args()
    bundle = load_bundle(BUNDLE)
    table = Table(title=f"an episode with {CALLS} tool calls, without a model", title_justify="left")
    table.add_column("")
    table.add_column("measured", justify="right")
    table.add_column("bound", justify="right")
    for row in asyncio.run(measure(bundle, arguments.episodes, arguments.under_way)):
        table.add_row(*row)
    Console().print(table)


async def measure(bundle: Bundle, episodes: int, under_way: int) -> list[tuple[str, str, str]]:
    tasks = bundle.select("hourly-train")
    await in_turn(bundle, 20, None)  # imports and caches
    rows: list[tuple[str, str, str]] = []
    before = rss_bytes()
    async with AsyncExitStack() as stack:
        open_episodes = [
            await stack.enter_async_context(open_episode(tasks[at % len(tasks)])) for at in range(under_way)
        ]
        turns = [await started(episode) for episode in open_episodes]
        gc.collect()
        opened = rss_bytes() - before
        for turn in turns:
            await calls(turn, CALLS - 1)
        gc.collect()
        each = rss_bytes() - before
    rows += [
        (f"memory each, {under_way:,} opened and started at once", f"{opened / under_way / 1000:.1f} kB", "100 kB"),
        (f"memory each, {under_way:,} with {CALLS - 1} calls made", f"{each / under_way / 1000:.1f} kB", "100 kB"),
    ]
    rows += await timed(bundle, episodes, under_way, None, "not recorded")
    with tempfile.TemporaryDirectory() as folder, RunIndex.open(Path(folder)) as runs:
        rows += await timed(bundle, episodes, under_way, runs, "recorded in a run index")
    return rows


async def timed(
    bundle: Bundle, episodes: int, under_way: int, runs: RunIndex | None, name: str
) -> list[tuple[str, str, str]]:
    times = sorted(await in_turn(bundle, episodes, runs))
    together = await at_once(bundle, under_way, runs)
    return [
        (f"a call, {name}", per_call(statistics.median(times)), "1000 µs"),
        (f"  slowest hundredth of {episodes} episodes", per_call(times[-max(1, episodes // 100)]), ""),
        (f"  {under_way:,} episodes at once", per_call(together / under_way), "1000 µs"),
    ]


def per_call(episode_s: float) -> str:
    return f"{episode_s / CALLS * 1e6:.0f} µs"


async def in_turn(bundle: Bundle, episodes: int, runs: RunIndex | None) -> list[float]:
    """Seconds of each episode, from opening it to its result."""
    tasks = bundle.select("hourly-train")
    times: list[float] = []
    for at in range(episodes):
        sink = None if runs is None else runs.run("bench/in-turn")
        began = time.perf_counter()
        await one(bundle, tasks[at % len(tasks)].id, sink)
        times.append(time.perf_counter() - began)
    return times


async def at_once(bundle: Bundle, episodes: int, runs: RunIndex | None) -> float:
    """Seconds for all of them together."""
    tasks = bundle.select("hourly-train")
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for at in range(episodes):
            sink = None if runs is None else runs.run("bench/at-once")
            group.create_task(one(bundle, tasks[at % len(tasks)].id, sink))
    return time.perf_counter() - began


async def one(bundle: Bundle, task_id: str, sink: EpisodeSink | None) -> None:
    async with open_episode(bundle.task(task_id), sink=sink) as episode:
        turn = await started(episode)
        await calls(turn, CALLS - 1)
        schedule = dict.fromkeys(episode.task.params["blocks"], "hold")
        answer = await called(turn, "submit_schedule", {"schedule": schedule})
        assert answer, "the schedule is accepted and ends the turn"
        assert await turn.end() is None
        result = await episode.result()
        assert result.outcome == "completed"


async def started(episode: Episode) -> Turn:
    turn = await episode.start()
    assert turn is not None
    return turn


async def calls(turn: Turn, count: int) -> None:
    for at in range(count):
        await called(turn, ("read_prices", "read_forecast")[at % 2], {})


async def called(turn: Turn, tool: str, arguments: dict[str, object]) -> bool:
    raw = json.dumps(arguments)
    turn.record({"role": "assistant", "content": "", "tool_calls": [{"name": tool, "arguments": raw}]})
    answer = await turn.call(tool, arguments, raw=raw)
    assert not answer.is_error, answer.text
    return answer.ends_turn


def rss_bytes() -> int:
    """What this process has in memory now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
