"""The run index with several real processes at work, some of them killed."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent_env.episode.sink import Event, EventKind, RunHeader
from agent_env.errors import RunIndexError
from agent_env.runs import RunIndex, RunState
from agent_env.runs._owner import UNSEEN_S, Owner, this_process

WRITER = """
import sys, time
from agent_env.episode.sink import Event, EventKind, RunHeader
from agent_env.outcome import EpisodeResult, Outcome
from agent_env.runs import RunIndex

folder, group, how_many = sys.argv[1], sys.argv[2], int(sys.argv[3])
header = RunHeader(task_id="day-1", bundle_name="b", bundle_version="1", params={}, tags=())
with RunIndex.open(folder) as index:
    for number in range(how_many):
        sink = index.run(group)
        sink.opened(header)
        for at in range(10):
            sink.event(Event(EventKind.MESSAGE, time.time(), "prompt", 0, {"message": {"content": f"{number} {at}"}}))
        sink.ended(EpisodeResult(outcome=Outcome.COMPLETED, run_id=sink.run_id, scores={}))
        sink.set_reward(1.0)
        if how_many > 10_000:
            index.flush()
            print(sink.run_id, flush=True)
"""

UNDER_WAY = """
import sys, time
from agent_env.episode.sink import Event, EventKind, RunHeader
from agent_env.runs import RunIndex

index = RunIndex.open(sys.argv[1])
sink = index.run("g")
sink.opened(RunHeader(task_id="day-1", bundle_name="b", bundle_version="1", params={}, tags=()))
sink.event(Event(EventKind.MESSAGE, time.time(), "prompt", 0, {"message": {"role": "assistant", "content": "half"}}))
index.flush()
print(sink.run_id, flush=True)
time.sleep(60)
"""


FORKS = """
import os, sys, time
from agent_env.episode.sink import Event, EventKind, RunHeader
from agent_env.outcome import EpisodeResult, Outcome
from agent_env.runs import RunIndex

def write():
    header = RunHeader(task_id="day-1", bundle_name="b", bundle_version="1", params={}, tags=())
    index = RunIndex.open(sys.argv[1])
    while True:
        sink = index.run("g")
        sink.opened(header)
        for at in range(10):
            sink.event(Event(EventKind.MESSAGE, time.time(), "prompt", 0, {"message": {"content": f"said {at}"}}))
        sink.ended(EpisodeResult(outcome=Outcome.COMPLETED, run_id=sink.run_id, scores={}))
        sink.set_reward(1.0)
        index.flush()
        os.write(1, f"{sink.run_id}\\n".encode())

for _ in sys.stdin:
    pid = os.fork()
    if pid == 0:
        os.write(1, f"{os.getpid()}\\n".encode())
        write()
    os.waitpid(pid, 0)
    os.write(1, b"dead\\n")
"""


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Run a script in a process of its own."""
    words = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def kill(process: subprocess.Popen[str]) -> str:
    """Kill it as the kernel would; returns what it had printed."""
    process.send_signal(signal.SIGKILL)
    printed, _ = process.communicate()
    return printed


def is_sound(folder: Path) -> bool:
    """Whether SQLite finds nothing wrong with the file."""
    conn = sqlite3.connect(folder / "index.sqlite3")
    found = conn.execute("PRAGMA integrity_check").fetchone()[0]
    conn.close()
    return bool(found == "ok")


def test_processes_that_start_together_write_together(tmp_path: Path) -> None:
    """Three processes make the same new index at once and file all their runs; none meets a lock error."""
    writers = [start(WRITER, tmp_path, f"g/train/step-{number % 2:04}", 200) for number in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    for writer in writers:
        writer.communicate()
    with RunIndex.open(tmp_path, read_only=True) as index:
        groups = index.groups()
        assert sum(group.runs for group in groups) == 600
        assert all(group.states[RunState.COMPLETED] == group.runs == group.scored for group in groups)
        rollouts = sorted(run.rollout for run in index.all_runs("g/train/step-0000"))
        assert rollouts == list(range(400)), "each rollout has its own number"
        assert len(index.search("0", limit=1000, limit_s=30.0).hits) == 600


def test_a_killed_writer_leaves_its_run_interrupted(tmp_path: Path) -> None:
    """While it lives its run is running; once killed it is interrupted, for a reader and after the next open."""
    writer = start(UNDER_WAY, tmp_path)
    assert writer.stdout is not None
    run_id = writer.stdout.readline().strip()
    with RunIndex.open(tmp_path, read_only=True) as index:
        assert index.find(run_id).state is RunState.RUNNING
        kill(writer)
        assert index.find(run_id).state is RunState.INTERRUPTED
        group = index.group("g")
        assert (group.states[RunState.RUNNING], group.states[RunState.INTERRUPTED]) == (0, 1)
        assert [run.run_id for run in index.runs("g", state=RunState.INTERRUPTED).runs] == [run_id]
        assert index.runs("g", state=RunState.RUNNING).runs == ()
    with RunIndex.open(tmp_path) as index:
        run = index.find(run_id)
        assert run.state is RunState.INTERRUPTED
        assert run.ended_at_s == run.last_at_s
        assert len(index.read(run_id).events) == 1
    conn = sqlite3.connect(tmp_path / "index.sqlite3")
    assert conn.execute("SELECT state FROM runs").fetchall() == [("interrupted",)], "now it is written"
    conn.close()


def test_another_living_process_is_not_taken_for_dead(tmp_path: Path) -> None:
    """Opening the index for writing leaves the runs of a process that lives alone."""
    writer = start(UNDER_WAY, tmp_path)
    assert writer.stdout is not None
    run_id = writer.stdout.readline().strip()
    with RunIndex.open(tmp_path) as index:
        assert index.find(run_id).state is RunState.RUNNING
    kill(writer)


def test_killed_at_any_moment_the_index_is_sound_and_has_what_was_flushed(tmp_path: Path) -> None:
    """Killed twenty times in the middle of writing: no damage, no finished run lost, no half of a batch, no word forgotten."""
    dice = random.Random(3)
    forks = start(FORKS, tmp_path)
    assert forks.stdin is not None
    assert forks.stdout is not None
    printed: list[str] = []
    for _ in range(20):
        forks.stdin.write("\n")
        forks.stdin.flush()
        pid = int(forks.stdout.readline())
        printed.append(forks.stdout.readline().strip())
        time.sleep(dice.uniform(0, 0.05))
        os.kill(pid, signal.SIGKILL)
        # Up to the line that says that it is dead: each line is written in one piece.
        while (line := forks.stdout.readline()) != "dead\n":
            printed.append(line.strip())
        assert is_sound(tmp_path)
    forks.communicate()
    with RunIndex.open(tmp_path) as index:
        runs = {run.run_id: run for run in index.all_runs("g")}
        assert len(printed) >= 20
        assert set(printed) <= set(runs)
        assert all(runs[run_id].state is RunState.COMPLETED for run_id in printed)
        assert all(len(index.read(run_id).events) == run.event_count for run_id, run in runs.items())
        assert not any(group.states[RunState.RUNNING] for group in index.groups())
        page = index.search("0", limit=10_000, limit_s=30.0)
        while page.waiting:
            page = index.search("0", limit=10_000, limit_s=30.0)
        assert {hit.run.run_id for hit in page.hits} == {run_id for run_id, run in runs.items() if run.event_count}


def test_a_reader_sees_a_writer_at_work(tmp_path: Path) -> None:
    """Groups can be listed at any moment while another process writes."""
    writer = start(WRITER, tmp_path, "g", 1_000_000)
    assert writer.stdout is not None
    writer.stdout.readline()
    seen: list[int] = []
    with RunIndex.open(tmp_path, read_only=True) as index:
        while not seen or seen[-1] < seen[0] + 20:
            seen.append(index.group("g").runs)
    kill(writer)
    assert seen == sorted(seen)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process.*fork:DeprecationWarning")
def test_after_a_fork_the_index_says_to_open_it_again(tmp_path: Path) -> None:
    """A forked child may neither record nor close what its parent holds."""
    with RunIndex.open(tmp_path) as index:
        sink = index.run("g")
        sink.opened(RunHeader(task_id="t", bundle_name="b", bundle_version="1", params={}, tags=()))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                sink.event(Event(EventKind.MESSAGE, 0.0, "prompt", 0, {}))
            except RunIndexError as exc:
                code = 0 if "open the run index again in this process" in str(exc) else 2
            index.close()
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        index.flush()
        assert index.find(sink.run_id).state is RunState.RUNNING


def test_a_process_is_told_apart_from_a_later_one_with_its_number() -> None:
    """Another start time, or another boot, is another process."""
    here = this_process()
    now = time.time()
    assert here.is_alive(last_write_at_s=now)
    later = Owner(pid=here.pid, started="1", boot=here.boot, pid_space=here.pid_space)
    assert later.is_alive(last_write_at_s=now) is (here.started == "")
    assert not Owner(pid=here.pid, started=here.started, boot="b", pid_space=here.pid_space).is_alive(
        last_write_at_s=now
    )


def test_a_process_in_another_container_counts_as_dead_after_a_silence() -> None:
    """Its number means nothing here, so only its silence can tell."""
    here = this_process()
    other = Owner(pid=here.pid, started=here.started, boot=here.boot, pid_space="pid:[1]")
    assert other.is_alive(last_write_at_s=time.time() - UNSEEN_S / 2)
    assert not other.is_alive(last_write_at_s=time.time() - UNSEEN_S * 2)
