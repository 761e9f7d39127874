"""What a sandbox costs: to start one, to run a command in it, to have many at once; and what is left of them.

    python bench/sandboxes.py

Prints what is promised beside what is measured, in one run. A bare `subprocess.run(["true"])` is there to compare with: what
the machine itself takes. "At once" is from the first start until all have run a command, and each is open until then. The first
start is that of a process whose event loop has used a thread before, as an episode's has: else it is mostly anyio's import.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path, PurePosixPath

from anyio import to_thread
from rich.console import Console
from rich.table import Table

from agent_env.bundle import SandboxProvider, SandboxSpec
from agent_env.envs.sandbox_env import open_sandbox_env
from agent_env.sandbox import PlacedFile, open_sandbox, open_verifier_side

MARK = "86399.25"
"""Seconds that no other process sleeps: how what is left is found."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", choices=["bwrap", "host"], default="bwrap")
    parser.add_argument("--times", type=int, default=30, help="of each, one after the other")
    parser.add_argument("--at-once", type=int, default=100)
    arguments = parser.parse_args()
    spec = SandboxSpec(provider=SandboxProvider(arguments.provider))
    table = Table(title=f"{arguments.provider}, on {os.cpu_count()} cores", title_justify="left")
    table.add_column("")
    for column in ("promised", "measured", "slowest"):
        table.add_column(column, justify="right")
    for row in asyncio.run(measure(spec, arguments.times, arguments.at_once)):
        table.add_row(*row)
    Console().print(table)


async def measure(spec: SandboxSpec, times: int, at_once: int) -> list[tuple[str, str, str, str]]:
    bare = [timed(lambda: subprocess.run(["true"], check=True)) for _ in range(times)]
    await to_thread.run_sync(gc.collect)
    gc.freeze()  # as a training does: a full round of the collector is not the sandboxes'
    began = time.perf_counter()
    async with open_sandbox(spec):
        first = time.perf_counter() - began
    sides = await verifiers(spec, times)
    starts, commands, calls, ends, stalls = await in_turn(spec, times)
    together, closed, stall, memory = await all_at_once(spec, at_once)
    jail = spec.provider is SandboxProvider.BWRAP
    true = statistics.median(commands)
    return [
        ("a bare `subprocess.run(['true'])`", "", *row(bare)),
        ("first start of a process, with looking what the machine can do", "60 ms" if jail else "", ms(first), ""),
        ("start", "60 ms" if jail else "", *row(starts)),
        ("`true`", "30 ms" if jail else "", *row(commands)),
        ("  times a bare `true`", "", f"{true / statistics.median(bare):.1f}", ""),
        ("`true` by the tool `bash`, with what it keeps", "", *row(calls)),
        ("end", "", *row(ends)),
        ("a verifier's side, with a file and `true`, from its start to its end", "", *row(sides)),
        ("longest that the event loop stood still meanwhile", "50 ms", ms(stalls), ""),
        (f"{at_once} at once, each with a command", "3 s" if jail else "", f"{together:.2f} s", ""),
        ("  until all are closed", "", f"{closed:.2f} s", ""),
        ("  longest that the event loop waited, with all cores taken", "", ms(stall), ""),
        ("  memory of each, its processes'", "", f"{memory / 1e6:.1f} MB", ""),
        ("processes and folders left", "0", str(left()), ""),
    ]


def timed(function: object) -> float:
    began = time.perf_counter()
    assert callable(function)
    function()
    return time.perf_counter() - began


def row(seconds: list[float]) -> tuple[str, str]:
    return ms(statistics.median(seconds)), ms(max(seconds))


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


class Stalls:
    """Watches the event loop: how late it wakes at most."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.001)
            self.longest = max(self.longest, time.perf_counter() - began - 0.001)

    async def stop(self) -> float:
        """Stop watching, and return how late at most."""
        self._task.cancel()
        await asyncio.wait([self._task])
        return self.longest


async def in_turn(spec: SandboxSpec, times: int) -> tuple[list[float], list[float], list[float], list[float], float]:
    starts, commands, calls, ends = ([0.0] * times for _ in range(4))
    stalls = Stalls()
    for at in range(times):
        began = time.perf_counter()
        async with open_sandbox_env("box", spec, folder=None) as session:
            starts[at] = time.perf_counter() - began
            await session.state.run(f"sleep {MARK} &")
            await session.state.run("true")
            began = time.perf_counter()
            await session.state.run("true")
            commands[at] = time.perf_counter() - began
            await session.call("bash", {"command": "true"})
            began = time.perf_counter()
            await session.call("bash", {"command": "true"})
            calls[at] = time.perf_counter() - began
            began = time.perf_counter()
        ends[at] = time.perf_counter() - began
    return starts, commands, calls, ends, await stalls.stop()


async def verifiers(spec: SandboxSpec, times: int) -> list[float]:
    """Seconds of each of so many verifiers, one after the other in a sandbox."""
    took = [0.0] * times
    files = (PlacedFile(path=PurePosixPath("check.sh"), content=b"true\n"),)
    async with open_sandbox(spec) as sandbox:
        for at in range(times):
            began = time.perf_counter()
            async with open_verifier_side(sandbox, files) as side:
                assert (await side.run('sh "$AGENT_ENV_VERIFIER/check.sh"')).is_ok
            took[at] = time.perf_counter() - began
    return took


async def all_at_once(spec: SandboxSpec, count: int) -> tuple[float, float, float, float]:
    """Seconds until all are open and used, and until all are closed; the loop's longest stall; bytes of each."""
    ready = 0
    all_ready = asyncio.Event()
    measured: list[float] = []
    stalls = Stalls()
    began = time.perf_counter()

    async def one() -> None:
        nonlocal ready
        async with open_sandbox(spec) as sandbox:
            assert (await sandbox.run(f"sleep {MARK} & true")).is_ok
            ready += 1
            if ready == count:
                measured.append(time.perf_counter() - began)
                measured.append(await asyncio.to_thread(memory_of_children))
                all_ready.set()
            await all_ready.wait()

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(one())
    together, memory = measured
    return together, time.perf_counter() - began, await stalls.stop(), memory / count


def memory_of_children() -> float:
    """Bytes of the processes below this one that are theirs alone, or their share of."""
    parents: dict[int, int] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    below = {os.getpid()}
    grew = True
    while grew:
        more = {pid for pid, parent in parents.items() if parent in below} - below
        grew = bool(more)
        below |= more
    total = 0.0
    for pid in below - {os.getpid()}:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


def left() -> int:
    """How many processes and folders of sandboxes there still are."""
    base = Path(tempfile.gettempdir()) / f"agent-env-sandboxes-{os.geteuid()}"
    folders = [path for path in base.iterdir() if path.name.startswith(f"{os.getpid()}-")]
    processes = 0
    for path in Path("/proc").iterdir():
        try:
            processes += path.name.isdigit() and f"sleep\0{MARK}".encode() in (path / "cmdline").read_bytes()
        except OSError:
            continue
    return len(folders) + processes


if __name__ == "__main__":
    main()
