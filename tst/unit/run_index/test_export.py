"""Runs for other programs."""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from agent_env.episode.sink import Event, EventKind, RunHeader
from agent_env.errors import MissingExtraError, UsageError
from agent_env.runs import RunIndex, RunSink, SampledTokens

Make = Callable[..., RunSink]
Do = Callable[..., None]


@pytest.fixture
def filled(index: RunIndex, begin: Make, say: Do, tell: Do, end: Do, record: Make) -> RunIndex:
    """One run with everything in it, one with hardly anything."""
    sink = begin(index, "grid/train/step-0003", "day-1", policy_step=3, model="m")
    say(sink, "höllo \ud800\x00", index=0, prompt_tokens=10, sampled_tokens=2)
    tell(sink, EventKind.CALL, {"call_id": "1", "tool": "read", "arguments": {"hour": 3}})
    tell(sink, EventKind.ANSWER, {"call_id": "1", "tool": "read", "text": "no", "is_error": True})
    end(sink, reward=0.25, scores={"saving": 0.25, "polite": 1.0})
    sink.sampled(0, SampledTokens(ids=(4, 5), logprobs=(-0.5, -1.0), pieces=("hö", "llo")))
    begin(index, "other", "day-2")
    index.flush()
    return index


def test_a_line_of_json_has_all_of_a_run(filled: RunIndex, tmp_path: Path) -> None:
    """Oldest first; events and tokens where they are asked for."""
    done = filled.export_jsonl(tmp_path / "all.jsonl", tokens=True)
    assert (done.runs, done.damaged, done.unreadable) == (2, (), 0)
    first, second = map(json.loads, (tmp_path / "all.jsonl").read_text().splitlines())
    assert (first["group"], first["step"], first["task_id"], first["reward"]) == (
        "grid/train/step-0003",
        3,
        "day-1",
        0.25,
    )
    assert first["tools"] == {"read": {"calls": 1, "errors": 1}}
    assert (first["params"], first["tags"], first["policy_step"]) == ({"hour": 3}, ["short"], 3)
    assert [(event["seq"], event["kind"]) for event in first["events"]] == [(0, "message"), (1, "call"), (2, "answer")]
    assert first["events"][0]["data"]["message"]["content"] == "höllo \ud800\x00"
    assert first["sampled"] == [{"message": 0, "ids": [4, 5], "logprobs": [-0.5, -1.0], "pieces": ["hö", "llo"]}]
    assert (second["state"], second["reward"], second["events"]) == ("running", None, [])
    filled.export_jsonl(tmp_path / "all.jsonl", "reward > 0", events=False)
    (only,) = map(json.loads, (tmp_path / "all.jsonl").read_text().splitlines())
    assert "events" not in only


def test_what_is_exported_can_be_asked_by_the_same_name(filled: RunIndex, tmp_path: Path) -> None:
    """All but what the index keeps apart from a run's row; and a run in Python has the names that are not made of others."""
    filled.export_jsonl(tmp_path / "all.jsonl", "reward > 0", tokens=True)
    (line,) = map(json.loads, (tmp_path / "all.jsonl").read_text().splitlines())
    apart = {"params", "tags", "bundle_root", "events", "sampled"}
    for name, value in line.items():
        if name not in apart:
            asked = f"json_type({name}) = 'object'" if isinstance(value, dict) else f"{name} IS {_as_sql(value)}"
            assert 0.25 in [run.reward for run in filled.select(asked).runs], name
    made = {"training", "split", "step", "failure_kind", "failure_step", "failure_message"}
    run = filled.select("reward > 0").runs[0]
    assert all(hasattr(run, name) for name in set(line) - apart - made)


def _as_sql(value: str | float | None) -> str:
    return "NULL" if value is None else f"'{value}'" if isinstance(value, str) else repr(value)


def test_a_parquet_file_has_typed_columns(filled: RunIndex, tmp_path: Path) -> None:
    """Numbers as numbers, events as a list, objects as JSON; none at all as an empty table of the same columns."""
    filled.export_parquet(tmp_path / "all.parquet", tokens=True)
    table = pq.read_table(tmp_path / "all.parquet")
    first, second = table.to_pylist()
    assert (first["reward"], second["reward"]) == (0.25, None)
    assert json.loads(first["scores"]) == {"saving": 0.25, "polite": 1.0}
    assert json.loads(first["events"][0]["data"])["message"]["content"] == "höllo \ud800\x00"
    assert first["sampled"][0]["ids"] == [4, 5]
    done = filled.export_parquet(tmp_path / "none.parquet", "false", tokens=True)
    assert done.runs == 0
    assert pq.read_table(tmp_path / "none.parquet").schema == table.schema


def test_a_frame_has_a_row_a_run_and_the_types_of_its_columns(filled: RunIndex) -> None:
    """Missing numbers are missing, times are times, scores are columns."""
    frame = filled.frame()
    assert list(frame["task_id"]) == ["day-1", "day-2"]
    assert frame["reward"].mean() == 0.25
    assert list(frame["scores.polite"].fillna(-1)) == [1.0, -1.0]
    assert frame["step"].isna().tolist() == [False, True]
    assert frame["sampled_tokens"].sum() == 2
    assert str(frame["opened_at"].dtype) == "datetime64[us, UTC]"
    assert frame["tools"][0] == {"read": {"calls": 1, "errors": 1}}
    assert len(filled.frame("reward > 0.2", group="grid")) == 1


def test_what_a_column_has_no_type_for_stops_no_export(index: RunIndex, tmp_path: Path) -> None:
    """A folder's name that is no UTF-8, half a character, a step that is no 64-bit number."""
    sink = index.run("g", labels={"policy_step": 10**30, "model": "m\ud800"})
    header = RunHeader(
        task_id="t", bundle_name="b", bundle_version="1", params={}, tags=("\ud800",), bundle_root="/b\udcff"
    )
    sink.opened(header)
    index.flush()
    sink.event(Event(EventKind.SKIPPED, time.time(), "step \ud800", 0, {}))
    sink.sampled(0, SampledTokens(ids=(1, 2), logprobs=None, pieces=("half \ud83d", "\ude00")))
    index.flush()
    index.export_parquet(tmp_path / "all.parquet", tokens=True)
    (row,) = pq.read_table(tmp_path / "all.parquet").to_pylist()
    assert (row["policy_step"], row["model"], row["tags"]) == (None, "m\\ud800", ["\\ud800"])
    assert row["bundle_root"] == "/b\\udcff"
    assert json.loads(row["labels"]) == {"policy_step": 10**30, "model": "m\ud800"}
    assert [event["step"] for event in row["events"]] == ["step \\ud800"]
    assert row["sampled"][0]["pieces"] == ["half \\ud83d", "\\ude00"]
    assert list(index.frame()["model"]) == ["m\\ud800"]


def test_a_frame_without_rows_has_the_same_types(filled: RunIndex) -> None:
    """So that a notebook that works on many runs works on none."""
    full, empty = filled.frame(), filled.frame("false")
    assert len(empty) == 0
    assert empty.dtypes.to_dict() == {
        name: kind for name, kind in full.dtypes.items() if not name.startswith("scores.")
    }
    assert pd.concat([empty, full])["reward"].sum() == 0.25


def test_a_run_that_cannot_be_read_is_left_out_and_named(filled: RunIndex, tmp_path: Path, record: Make) -> None:
    """In its middle: not a part of a line is written."""
    damaged = record(filled, texts=["x" * 300_000, "y" * 300_000])
    fine = record(filled, "last")
    filled.flush()
    with sqlite3.connect(filled.folder / "index.sqlite3") as conn:
        conn.execute(
            "UPDATE chunks SET body = x'00' WHERE first_seq = 1 AND run_key = (SELECT key FROM runs WHERE run_id = ?)",
            (damaged.run_id,),
        )
    conn.close()
    for name, export in (("all.jsonl", filled.export_jsonl), ("all.parquet", filled.export_parquet)):
        done = export(tmp_path / name)
        assert (done.runs, done.damaged) == (3, (damaged.run_id,))
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [line["run_id"] for line in lines][-1] == fine.run_id
    assert len(lines) == 3
    assert len(filled.frame()) == 4, "what a frame shows is whole"


def test_a_file_that_cannot_be_written_is_said_and_nothing_is_left(filled: RunIndex, tmp_path: Path) -> None:
    """A folder that is not there; and a condition that is none leaves what was there."""
    with pytest.raises(UsageError, match="choose a file in a folder that can be written"):
        filled.export_jsonl(tmp_path / "missing" / "all.jsonl")
    (tmp_path / "old.jsonl").write_text("old")
    with pytest.raises(UsageError, match="no column"):
        filled.export_jsonl(tmp_path / "old.jsonl", "nonsense")
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["old.jsonl"]
    assert (tmp_path / "old.jsonl").read_text() == "old"


def test_runs_that_are_filed_meanwhile_are_left_out(
    index: RunIndex, record: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or an export of a training under way would not end."""
    from agent_env.runs import export

    monkeypatch.setattr(export, "_PAGE", 3)
    for _ in range(5):
        record(index)
    index.flush()
    written: list[Any] = []
    columns = export.columns_of

    def filing(run: Any) -> Any:
        record(index)
        index.flush()
        written.append(run)
        return columns(run)

    monkeypatch.setattr(export, "columns_of", filing)
    assert index.export_jsonl(index.folder / "all.jsonl").runs == 5
    assert len(written) == 5


def test_without_the_extra_it_is_said_what_to_install(filled: RunIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON needs nothing."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingExtraError, match="frames"):
        filled.frame()
    with pytest.raises(MissingExtraError, match="frames"):
        filled.export_parquet(filled.folder / "all.parquet")
    assert filled.export_jsonl(filled.folder / "all.jsonl").runs == 2
