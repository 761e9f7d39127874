"""How fast the explorer answers with a million runs, what it takes in memory, and how fast those runs were written.

    python bench/explorer.py [--folder FOLDER] [--steps 2000]

Makes 512 runs a step in two trainings (with 2,000 steps: 1,024,000 runs, some gigabytes and several minutes), one run of 7,000
events and one of 130 MB, all through the run index; with `--folder` they are kept, and taken again the next time. Then it serves
them in a process of its own and asks for each kind of page at random places, one request after the other, over a real socket:
"first byte" and "whole page" are what the client waits.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from made_runs import ROLLOUTS, TASKS, Step, write_long_run, write_steps
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from agent_env.runs import RunIndex

TRAININGS = ("made-a", "made-b")
PAGE_MS, FIRST_BYTE_MS = 100.0, 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What the folder has."""

    steps: int
    """Of each training."""
    long_run: str
    large_run: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How long a request took, in milliseconds."""

    first_byte_ms: float
    whole_ms: float
    size: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="keep the runs here, and take those that are there")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--requests", type=int, default=100, help="of each kind of page")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or Path(scratch) / "runs"
        made = make(folder, arguments.steps)
        with served(folder) as server:
            table = Table(title=f"{made.steps * 2 * TASKS * ROLLOUTS:,} runs", title_justify="left")
            for column in ("page", "first byte p50", "p95", "whole p50", "p95 (ms)", "kB", "promised"):
                table.add_column(column, justify="left" if column == "page" else "right")
            for name, address in pages(folder, made).items():
                table.add_row(*measured(server, name, address, arguments.requests))
            Console().print(table)
            Console().print(
                f"server: opened in {server.opened_s:.2f} s (1 promised), {memory_mb(server.pid)} (300 promised)"
            )


def make(folder: Path, steps: int) -> Made:
    """Write the runs, unless they are there."""
    noted = folder / "made.json"
    if noted.is_file():
        return Made(**json.loads(noted.read_text()))
    folder.mkdir(parents=True, exist_ok=True)
    of = steps // len(TRAININGS)
    wanted = [Step(training=training, step=step, of=of) for step in range(of) for training in TRAININGS]
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("writing runs", total=len(wanted))
        took_s = write_steps(folder, wanted, processes=4, report=lambda: progress.advance(bar))
    runs = len(wanted) * TASKS * ROLLOUTS
    size = sum(file.stat().st_size for file in folder.glob("index.sqlite3*"))
    Console().print(
        f"{runs:,} runs in {took_s:.0f} s: {runs / took_s:,.0f} a second from 4 processes (2,000 promised), "
        f"{size / runs / 1000:.2f} kB each"
    )
    made = Made(
        steps=of,
        long_run=write_long_run(folder, "long", events=7_000, chars=300),
        large_run=write_long_run(folder, "large", events=302, chars=650_000),
    )
    noted.write_text(json.dumps(asdict(made)))
    return made


def pages(folder: Path, made: Made) -> dict[str, Callable[[], str]]:
    """Of each kind of page, what gives the address of one."""
    chance = random.Random(3)

    def group() -> str:
        return f"{chance.choice(TRAININGS)}/train/step-{chance.randrange(made.steps):04d}"

    def task() -> str:
        return f"task-{chance.randrange(TASKS):02d}"

    with RunIndex.open(folder, read_only=True) as index:
        runs = [run.run_id for _ in range(20) for run in index.runs(group(), limit=50).runs]
    some = "/group?name={}&outcome=completed&tool=cancel_order&reward_from=0.5"
    return {
        "home": lambda: "/",
        "training": lambda: f"/training?name={chance.choice(TRAININGS)}",
        "two trainings": lambda: f"/training?name={TRAININGS[0]}&with={TRAININGS[1]}",
        "step": lambda: f"/group?name={quote(group(), safe='')}",
        "step, filtered": lambda: some.format(quote(group(), safe="")),
        "step, by text": lambda: f"/group?name={quote(group(), safe='')}&text=baling",
        "task over the steps": lambda: f"/task?training={chance.choice(TRAININGS)}&split=train&task={task()}",
        "search, frequent word": lambda: "/search?q=bal",
        "search, rare words": lambda: "/search?q=zuckism+zuckive",
        "search, a phrase": lambda: "/search?q=%22bal+bala%22",
        "episode": lambda: f"/run/{chance.choice(runs)}",
        "two episodes": lambda: f"/compare?left={chance.choice(runs)}&right={chance.choice(runs)}",
        "7,000 events, first screen": lambda: f"/run/{made.long_run}",
        "7,000 events, somewhere": lambda: f"/run/{made.long_run}?from={chance.randrange(6_900)}",
        "130 MB, first screen": lambda: f"/run/{made.large_run}",
        "130 MB, somewhere": lambda: f"/run/{made.large_run}?from={chance.randrange(290)}",
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running explorer."""

    pid: int
    port: int
    opened_s: float

    def ask(self, address: str) -> Answer:
        """Ask for a page on a new connection.

        Raises:
            RuntimeError: When the answer is no page.
        """
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        began = time.perf_counter()
        link.request("GET", address)
        answer = link.getresponse()
        first = time.perf_counter()
        body = answer.read()
        end = time.perf_counter()
        link.close()
        if answer.status != 200:
            raise RuntimeError(f"{address}: {answer.status}")
        return Answer(first_byte_ms=(first - began) * 1e3, whole_ms=(end - began) * 1e3, size=len(body))


@contextmanager
def served(folder: Path) -> Generator[Server]:
    """Serve the explorer in a process of its own; opened when it has answered for the first time."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "agent_env", "explore", str(folder), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r":(\d+)/", process.stdout.readline())
        assert found is not None
        port = int(found[1])
        Server(pid=process.pid, port=port, opened_s=0.0).ask("/")
        yield Server(pid=process.pid, port=port, opened_s=time.perf_counter() - began)
    finally:
        process.terminate()
        process.wait()


def measured(server: Server, name: str, address: Callable[[], str], requests: int) -> Sequence[str]:
    answers = [server.ask(address()) for _ in range(requests)]
    firsts = [answer.first_byte_ms for answer in answers]
    wholes = [answer.whole_ms for answer in answers]
    promised = "1 s" if "first screen" in name else f"{FIRST_BYTE_MS:.0f} and {PAGE_MS:.0f}"
    size = statistics.median(answer.size for answer in answers) / 1000
    return (
        name,
        f"{statistics.median(firsts):.1f}",
        f"{p95(firsts):.1f}",
        f"{statistics.median(wholes):.1f}",
        f"{p95(wholes):.1f}",
        f"{size:.0f}",
        promised,
    )


def p95(values: Sequence[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.95))]


def memory_mb(pid: int) -> str:
    """What the process holds and has held at most."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = {name: int(kb) // 1000 for name, kb in re.findall(r"(VmRSS|VmHWM):\s+(\d+) kB", status)}
    return f"{found['VmRSS']} MB of memory, {found['VmHWM']} MB at most"


if __name__ == "__main__":
    main()
