"""What recording costs: runs a second by processes, bytes a run, and how long an event loop waits meanwhile.

    python bench/index.py
    python bench/index.py --kills 200

A run has a prompt, 10 messages of about 200 characters, 5 calls with answers, a score and its reward. `written` is until all of
them are in the file, `searchable` until their words are in the search index too. `sqlite3 alone` inserts the same compressed
bodies and the same columns into two plain tables, in transactions of 100 runs. `--kills` kills a writer at random moments and
looks after each whether the file is whole and whether a run is missing that had ended more than 100 ms before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from made_runs import LABELS, Words, play
from rich.console import Console
from rich.table import Table

import agent_env.runs._sink as sink_module
from agent_env.episode.sink import EpisodeSink, NullSink
from agent_env.runs import RunIndex, RunState

LATE_S = 0.1
"""What a crash may lose."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=8000, help="in all, for each row of the table")
    parser.add_argument("--kills", type=int, default=0, help="kill a writer so many times instead")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        work(*arguments.worker)
    elif arguments.kills:
        kills(arguments.kills)
    else:
        tables(arguments.runs)


def tables(runs: int) -> None:
    table = Table(title=f"recording {runs} finished runs of 10 messages", title_justify="left")
    for name in (
        "processes",
        "search",
        "written runs/s",
        "searchable runs/s",
        "CPU µs/run",
        "bytes/run",
        "of sqlite3 alone",
    ):
        table.add_column(name, justify="right")
    for processes in (1, 4):
        alone = together(processes, runs, "alone").written
        for search in ("search", "none"):
            found = together(processes, runs, search)
            table.add_row(
                str(processes),
                "yes" if search == "search" else "no",
                f"{found.written:,.0f}",
                f"{found.searchable:,.0f}" if search == "search" else "",
                f"{found.cpu_us:.0f}",
                f"{found.size:,.0f}",
                f"{found.written / alone:.2f}",
            )
        table.add_row(str(processes), "sqlite3 alone", f"{alone:,.0f}", "", "", "", "1")
    Console().print(table)
    lags = Table(
        title="an event loop that plays 300 runs a second for 5 s: how late a sleep of 5 ms ends", title_justify="left"
    )
    for name in ("", "median ms", "99 % ms", "longest ms"):
        lags.add_column(name, justify="right")
    for label, is_recorded in (("not recorded", False), ("recorded", True)):
        lag = sorted(asyncio.run(loop_lag(is_recorded=is_recorded)))
        lags.add_row(
            label, *(f"{1000 * value:.2f}" for value in (statistics.median(lag), lag[int(len(lag) * 0.99)], lag[-1]))
        )
    Console().print(lags)


class Figures:
    """What several processes came to together."""

    def __init__(self, runs: int, size: int, told: Sequence[dict[str, float]]) -> None:
        start = min(each["start"] for each in told)
        self.written = runs / (max(each["written"] for each in told) - start)
        self.searchable = runs / (max(each["end"] for each in told) - start)
        self.cpu_us = 1e6 * sum(each["cpu_s"] for each in told) / runs
        self.size = size / runs


def together(processes: int, runs: int, how: str) -> Figures:
    """Have processes record at once, from a common start."""
    with tempfile.TemporaryDirectory() as folder:
        each = runs // processes
        workers = [start_worker(how, folder, each, number) for number in range(processes)]
        for worker in workers:
            line(worker)
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        told = [json.loads(line(worker)) for worker in workers]
        assert [worker.wait() for worker in workers] == [0] * processes
        for worker in workers:
            worker.communicate()
        if how != "alone":
            with RunIndex.open(folder, read_only=True) as index:
                assert sum(group.states[RunState.COMPLETED] for group in index.groups()) == each * processes
        size = sum(file.stat().st_size for file in Path(folder).iterdir())
        return Figures(each * processes, size, told)


def start_worker(*arguments: object) -> subprocess.Popen[str]:
    words = [sys.executable, __file__, "--worker", *map(str, arguments)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline()


def work(how: str, folder: str, runs: str, seed: str) -> None:
    """One process: says that it is ready, waits for the word, records, says how long it took."""
    words, dice = Words(random.Random(7)), random.Random(int(seed))
    if how == "kill":
        fork_writers(folder, words)
        return
    if how == "alone":
        rows = packed_rows(words, dice, int(runs))
        conn = plain_database(folder)
    print("ready", flush=True)
    sys.stdin.readline()
    start, cpu = time.time(), time.process_time()
    if how == "alone":
        insert_plainly(conn, rows)
        written = time.time()
        conn.close()
    else:
        if how == "none":
            sink_module.searchable = lambda kind, data: ""
        with RunIndex.open(folder) as index:
            for number in range(int(runs)):
                record(index.run(f"grid/train/step-{number // 128:04}", labels=LABELS), words, dice)
            index._writer.do(lambda _: None)
            written = time.time()
    print(
        json.dumps({"start": start, "written": written, "end": time.time(), "cpu_s": time.process_time() - cpu}),
        flush=True,
    )


def record(sink: EpisodeSink, words: Words, dice: random.Random) -> None:
    """Tell a sink of one episode."""
    play(sink, f"task-{dice.randrange(64)}", words, dice, reward=dice.random())


def packed_rows(words: Words, dice: random.Random, runs: int) -> list[tuple[tuple[Any, ...], list[tuple[Any, ...]]]]:
    """The rows that some recorded runs have, to insert again: as many as `runs`, 500 different ones."""
    with tempfile.TemporaryDirectory() as folder:
        with RunIndex.open(folder) as index:
            for _ in range(500):
                record(index.run("g", labels=LABELS), words, dice)
        with closing(sqlite3.connect(Path(folder) / "index.sqlite3")) as conn:
            found = [
                (
                    row[1:],
                    conn.execute("SELECT first_seq, count, body FROM chunks WHERE run_key = ?", row[:1]).fetchall(),
                )
                for row in conn.execute("SELECT * FROM runs").fetchall()
            ]
    return [found[number % len(found)] for number in range(runs)]


def plain_database(folder: str) -> sqlite3.Connection:
    conn = sqlite3.connect(Path(folder) / "plain.sqlite3", isolation_level=None, timeout=60)
    conn.execute("PRAGMA journal_mode=WAL")
    conn.execute("PRAGMA synchronous=NORMAL")
    conn.execute(
        f"CREATE TABLE IF NOT EXISTS runs (key INTEGER PRIMARY KEY, {', '.join(f'c{at}' for at in range(29))})"
    )
    conn.execute("CREATE TABLE IF NOT EXISTS chunks (run_key, first_seq, count, body)")
    return conn


def insert_plainly(conn: sqlite3.Connection, rows: Sequence[tuple[tuple[Any, ...], list[tuple[Any, ...]]]]) -> None:
    for first in range(0, len(rows), 100):
        conn.execute("BEGIN IMMEDIATE")
        for row, chunks in rows[first : first + 100]:
            names, marks = ", ".join(f"c{at}" for at in range(len(row))), ", ".join("?" * len(row))
            key = conn.execute(f"INSERT INTO runs ({names}) VALUES ({marks})", row).lastrowid
            conn.executemany("INSERT INTO chunks VALUES (?, ?, ?, ?)", [(key, *chunk) for chunk in chunks])
        conn.execute("COMMIT")


async def loop_lag(*, is_recorded: bool) -> list[float]:
    """How late sleeps end on a loop that plays, in seconds."""
    words, dice = Words(random.Random(7)), random.Random(1)
    lags: list[float] = []

    async def watch() -> None:
        while True:
            start = time.perf_counter()
            await asyncio.sleep(0.005)
            lags.append(time.perf_counter() - start - 0.005)

    with tempfile.TemporaryDirectory() as folder, RunIndex.open(folder) as index:
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch())
            start = time.perf_counter()
            for number in range(1500):
                record(index.run("g", labels=LABELS) if is_recorded else NullSink(), words, dice)
                await asyncio.sleep(max(0.0, start + number / 300 - time.perf_counter()))
            watching.cancel()
        return lags


def record_until_killed(folder: str, words: Words, dice: random.Random) -> None:
    """Play, and say when each run had ended."""
    index = RunIndex.open(folder)
    while True:
        sink = index.run("grid/train/step-0001", labels=LABELS)
        record(sink, words, dice)
        os.write(1, f"{sink.run_id} {time.time()}\n".encode())
        if index._writer.waiting_bytes > 1 << 20:
            time.sleep(0.01)


def fork_writers(folder: str, words: Words) -> None:
    """For each line that comes in, a writer, until somebody kills it."""
    for number, _ in enumerate(sys.stdin):
        pid = os.fork()
        if pid == 0:
            os.write(1, f"{os.getpid()}\n".encode())
            record_until_killed(folder, words, random.Random(number))
        os.waitpid(pid, 0)
        os.write(1, b"dead\n")


def kills(times: int) -> None:
    """Kill a writer at random moments."""
    dice = random.Random(5)
    finished = missing = unsound = left_over = 0
    worst_s = 0.0
    with tempfile.TemporaryDirectory() as folder:
        forks = start_worker("kill", folder, 0, 0)
        assert forks.stdin is not None
        for number in range(times):
            forks.stdin.write("next\n")
            forks.stdin.flush()
            pid = int(line(forks))
            told = [line(forks)]
            time.sleep(dice.uniform(0.0, 0.4))
            os.kill(pid, signal.SIGKILL)
            killed_at = time.time()
            while (each := line(forks)) != "dead\n":
                told.append(each)
            with closing(sqlite3.connect(Path(folder) / "index.sqlite3")) as conn:
                unsound += conn.execute("PRAGMA integrity_check").fetchone()[0] != "ok"
                states = dict(conn.execute("SELECT run_id, state FROM runs").fetchall())
            for each in told:
                run_id, _, ended_at = each.partition(" ")
                finished += 1
                if states.get(run_id) != "completed":
                    late_s = killed_at - float(ended_at)
                    worst_s = max(worst_s, late_s)
                    missing += late_s > LATE_S
            with RunIndex.open(folder) as index:
                left_over += sum(group.states[RunState.RUNNING] for group in index.groups())
                if number % 20 == 19:
                    index.delete_group("grid")
        forks.communicate()
    Console().print(
        f"killed {times} times: {finished} runs had ended. {unsound} times the file was not sound, {left_over} runs were left as"
        f" running, {missing} runs were missing that had ended over {1000 * LATE_S:.0f} ms before; the longest that was lost was"
        f" {1000 * worst_s:.0f} ms."
    )


if __name__ == "__main__":
    main()
