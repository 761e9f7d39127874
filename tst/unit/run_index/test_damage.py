"""A part of the file that is damaged costs what is in it, and nothing else."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent_env.errors import RunIndexError
from agent_env.outcome import Failure, FailureKind, Outcome
from agent_env.runs import RunIndex, RunOrder, RunSink, RunState, SampledTokens

Make = Callable[..., RunSink]
Do = Callable[..., None]

RUNS = 120


@pytest.fixture
def damaged(tmp_path: Path, record: Make) -> Iterator[RunIndex]:
    """An index of two groups, in whose table of runs one page is overwritten."""
    with RunIndex.open(tmp_path) as index:
        for number in range(RUNS):
            failure = Failure(kind=FailureKind.AGENT, step="s", message=f"marker-{number:04} {'x' * 300}")
            record(index, "g", task=f"t{number:04}", texts=["needle"], outcome=Outcome.FAILED, failure=failure)
        record(index, "other", texts=["needle"], reward=1.0)
    file = tmp_path / "index.sqlite3"
    body = bytearray(file.read_bytes())
    page = body.index(b"marker-0060") // 4096 * 4096
    body[page : page + 4096] = b"\xff" * 4096
    file.write_bytes(body)
    with RunIndex.open(tmp_path, read_only=True) as index:
        yield index


def test_a_damaged_page_leaves_out_its_runs_and_says_how_many(damaged: RunIndex) -> None:
    """In lists, in pages, by condition and in exports; counts and the other group are whole."""
    page = damaged.runs("g", limit=1000)
    assert 0 < page.damaged < 20
    assert len(page.runs) == RUNS - page.damaged
    assert len(list(damaged.all_runs("g"))) == RUNS - page.damaged
    for order in RunOrder:
        found = damaged.select(order=order, limit=1000)
        assert (len(found.runs), found.damaged) == (RUNS + 1 - page.damaged, page.damaged)
    assert len(damaged.select("failure_message LIKE '%marker-0001%'").runs) == 1
    assert damaged.group("g").runs == RUNS
    assert damaged.runs("other").damaged == 0
    assert len(damaged.frame()) == RUNS + 1 - page.damaged
    done = damaged.export_jsonl(damaged.folder / "all.jsonl")
    assert (done.runs, done.unreadable) == (RUNS + 1 - page.damaged, page.damaged)


def test_pages_go_on_behind_what_is_damaged(damaged: RunIndex) -> None:
    """A page that has nothing readable is no end."""
    listed = [run.run_id for run in damaged.runs("g", limit=1000).runs]
    for limit in (1, 7):
        ids: list[str] = []
        after = None
        while True:
            page = damaged.runs("g", limit=limit, after=after)
            ids += [run.run_id for run in page.runs]
            if (after := page.next_page) is None:
                break
        assert ids == listed
        ids, after = [], None
        while True:
            page = damaged.select(group="g", order=RunOrder.OLDEST, limit=limit, after=after)
            ids += [run.run_id for run in page.runs]
            if (after := page.next_page) is None:
                break
        assert ids == listed


def test_a_run_that_cannot_be_read_says_so_itself(damaged: RunIndex) -> None:
    """Asked for by its id, it is one clear line."""
    readable = {run.run_id for run in damaged.runs("g", limit=1000).runs}
    with damaged._reader.asking() as conn:
        every = {row[0] for row in conn.execute("SELECT run_id FROM runs INDEXED BY sqlite_autoindex_runs_1")}
    (lost, *_) = every - readable - {run.run_id for run in damaged.runs("other").runs}
    with pytest.raises(RunIndexError, match="the run index is damaged"):
        damaged.find(lost)


@pytest.mark.parametrize(
    ("column", "value"),
    [("scores", "'{'"), ("labels", "'7'"), ("tools", "'{\"t\": 1}'"), ("state", "'invented'"), ("times", "''")],
)
def test_a_column_that_says_nonsense_leaves_that_run_out(
    index: RunIndex, record: Make, column: str, value: str
) -> None:
    """The list has the others."""
    damaged, fine = record(index, task="a"), record(index, task="b")
    index.flush()
    with sqlite3.connect(index.folder / "index.sqlite3") as conn:
        conn.execute(f"UPDATE runs SET {column} = {value} WHERE run_id = ?", (damaged.run_id,))
    conn.close()
    page = index.runs("g")
    assert ([run.run_id for run in page.runs], page.damaged) == ([fine.run_id], 1)
    assert index.select().damaged == 1
    assert len(index.frame()) == 1
    with pytest.raises(RunIndexError, match="is damaged"):
        index.find(damaged.run_id)


@pytest.mark.parametrize(
    "body",
    [b"", b"\x00", b"\x28\xb5\x2f\xfd\xc4\x00\x00\x00\x00\x00\x00\x00\xff", b"\x28\xb5\x2f\xfd\xe0\xff\xff\xff\xff\xff\xff\x00\x00"],
)  # fmt: skip
def test_bytes_that_are_no_body_are_said(index: RunIndex, record: Make, body: bytes) -> None:
    """Also those that claim to be as large as a disk."""
    sink = record(index)
    sink.sampled(0, SampledTokens(ids=(1,), logprobs=None, pieces=("a",)))
    index.flush()
    with sqlite3.connect(index.folder / "index.sqlite3") as conn:
        conn.execute("UPDATE chunks SET body = ?", (body,))
        conn.execute("UPDATE tokens SET body = ?", (body,))
    conn.close()
    with pytest.raises(RunIndexError, match="a record in the run index is damaged"):
        index.read(sink.run_id)
    with pytest.raises(RunIndexError, match="a record in the run index is damaged"):
        index.sampled(sink.run_id)


@pytest.mark.parametrize("body", [b'"x"', b"null", b"[1]", b"5"])
def test_a_start_that_says_nothing_leaves_that_run_out(
    index: RunIndex, record: Make, tmp_path: Path, body: bytes
) -> None:
    """What a run was opened with is an object: of an export the others are in."""
    bad, good = record(index), record(index)
    index.flush()
    with closing(sqlite3.connect(index.folder / "index.sqlite3", isolation_level=None)) as conn:
        conn.execute(
            "UPDATE heads SET codec = 0, body = ? WHERE run_key = (SELECT key FROM runs WHERE run_id = ?)",
            (body, bad.run_id),
        )
    with pytest.raises(RunIndexError, match="damaged"):
        index.read(bad.run_id)
    done = index.export_jsonl(tmp_path / "all.jsonl")
    assert (done.runs, done.damaged) == (1, (bad.run_id,))
    assert index.read(good.run_id).params == {"hour": 3}


def test_a_bit_that_fell_over_is_noticed(index: RunIndex, record: Make) -> None:
    """Bodies carry a checksum: no text is shown that nobody wrote."""
    sink = record(index, texts=["a text that is not repeated, 0123456789"])
    index.flush()
    with sqlite3.connect(index.folder / "index.sqlite3", isolation_level=None) as conn:
        (body,) = conn.execute("SELECT body FROM chunks").fetchone()
        for at in range(6, len(body)):  # behind what says that it is a body, and how
            flipped = bytearray(body)
            flipped[at] ^= 1
            conn.execute("UPDATE chunks SET body = ?", (bytes(flipped),))
            with pytest.raises(RunIndexError, match="a record in the run index is damaged"):
                index.read(sink.run_id)
    conn.close()


def test_a_run_that_died_before_its_first_event_is_there(tmp_path: Path, begin: Make) -> None:
    """Interrupted, with what it was of, and no event."""
    with RunIndex.open(tmp_path) as index:
        sink = begin(index, task="day-9")
    with RunIndex.open(tmp_path, read_only=True) as index:
        record = index.read(sink.run_id)
        assert (record.run.state, record.run.task_id) == (RunState.INTERRUPTED, "day-9")
        assert (record.events, record.next_event, record.params) == ((), None, {"hour": 3})
        assert index.export_jsonl(tmp_path / "all.jsonl").runs == 1
