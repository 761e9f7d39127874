"""Runs of any length are written within bounds, and read a page at a time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from agent_env.runs import RunIndex, RunSink

Make = Callable[..., RunSink]
Do = Callable[..., None]

LONG = """
import asyncio, resource, sys, time
from agent_env.episode.sink import Event, EventKind, RunHeader
from agent_env.runs import RunIndex

def mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

async def main(folder):
    with RunIndex.open(folder) as index:
        sink = index.run("g")
        sink.opened(RunHeader(task_id="t", bundle_name="b", bundle_version="1", params={}, tags=()))
        sink.event(Event(EventKind.MESSAGE, time.time(), "prompt", 0, {"message": {"content": "warm"}}))
        await asyncio.to_thread(index.flush)
        text = "0123456789 words that can be compressed " * 25_000
        before = mb()
        for number in range(130):
            await index.ready()
            sink.event(Event(EventKind.MESSAGE, time.time(), "prompt", 0, {"message": {"content": f"{number} {text}"}}))
        await asyncio.to_thread(index.flush)
        written = mb()
        place, pages = 0, 0
        while place is not None:
            record = index.read(sink.run_id, first=place)
            place, pages = record.next_event, pages + 1
        print(written - before, mb() - before, pages)

asyncio.run(main(sys.argv[1]))
"""


def test_a_run_of_130_mb_takes_a_bounded_part_of_the_memory(tmp_path: Path) -> None:
    """To write it, 64 MB wait at most, and what is being compressed; to read it, a page at a time."""
    words = [sys.executable, "-c", LONG, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    writing_mb, reading_mb, pages = map(int, done.stdout.split())
    assert writing_mb < 250
    assert reading_mb < 300
    assert pages >= 30


def test_a_run_of_7000_events_is_read_from_any_place(index: RunIndex, begin: Make, say: Do) -> None:
    """Each page has the events that were asked for, in order."""
    sink = begin(index)
    for number in range(7000):
        say(sink, f"message {number}")
        if number % 500 == 0:
            index.flush()
    index.flush()
    for first in (0, 1, 3499, 6950, 6999):
        record = index.read(sink.run_id, first=first, limit=50)
        assert [event.seq for event in record.events] == list(range(first, min(first + 50, 7000)))
    assert index.read(sink.run_id, first=7000).events == ()
    assert len(list(index.events(sink.run_id))) == 7000


def test_an_event_of_20_mb_is_a_page_of_its_own(index: RunIndex, begin: Make, say: Do) -> None:
    """It is written, read and searched, in part, as any other."""
    sink = begin(index)
    say(sink, "before")
    say(sink, "needle " + "x" * 20_000_000 + " far")
    say(sink, "after")
    index.flush()
    sizes = [len(index.read(sink.run_id, first=first).events) for first in (0, 1, 2)]
    assert sizes == [1, 1, 1]
    assert len(index.read(sink.run_id, first=1).events[0].data["message"]["content"]) == 20_000_011
    assert len(index.search("needle").hits) == 1
    assert index.search("far").hits == (), "of each text the first 20,000 characters are searched"
