"""Runs for other programs: as JSON lines, as a Parquet file, and as a pandas DataFrame.

Files are written as runs are read: a million runs are never in memory. A run that cannot be read is left out and named in what
comes back.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_env._new_file import new_file
from agent_env._optional import FRAMES, require
from agent_env.errors import RunIndexError
from agent_env.runs._codec import column_text, encode
from agent_env.runs._listing import go_through
from agent_env.runs._reading import Reader, record_of, sampled_of
from agent_env.runs._where import Condition
from agent_env.runs.record import TIMES, RunEvent, RunRecord, RunSummary, SampledTokens

if TYPE_CHECKING:
    import pandas as pd  # pyright: ignore[reportMissingTypeStubs] -- it has types inside

__all__ = ["Exported", "columns_of", "frame_of", "write_jsonl", "write_parquet"]

_PAGE = 500
_EVENTS = 200
_FRAME_PAGE = 5_000
_SPOOL_BYTES = 8 << 20
_ROW_GROUP_RUNS = 1_000
_ROW_GROUP_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written."""

    runs: int
    damaged: tuple[str, ...]
    """Runs that are left out because their events cannot be read, by id."""
    unreadable: int
    """How many more are left out: a part of the file is damaged, and not even their ids can be read."""


def frame_of(reader: Reader, condition: Condition) -> pd.DataFrame:
    """See `RunIndex.frame`."""
    pandas = require("pandas", install=FRAMES, feature="RunIndex.frame")
    require("pyarrow", install=FRAMES, feature="RunIndex.frame")
    pages = (listed.runs for listed in go_through(reader, condition, size=_FRAME_PAGE))
    frames = [_frame(pandas, runs) for runs in pages if runs]
    return pandas.concat(frames, ignore_index=True) if frames else _frame(pandas, [])


def write_jsonl(reader: Reader, condition: Condition, path: Path, *, events: bool, tokens: bool) -> Exported:
    """See `RunIndex.export_jsonl`."""
    count = _Count()
    with new_file(path) as file:
        for key, run in count.of(reader, condition):
            # A run may be larger than memory, and turn out to be damaged in its middle: not a part of a line is left then.
            with tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES) as line:
                try:
                    _write_line(line, reader, key, run, events=events, tokens=tokens)
                except RunIndexError:
                    count.leave_out(run)
                    continue
                line.seek(0)
                shutil.copyfileobj(line, file)
    return count.exported()


def write_parquet(reader: Reader, condition: Condition, path: Path, *, events: bool, tokens: bool) -> Exported:
    """See `RunIndex.export_parquet`."""
    arrow = require("pyarrow", install=FRAMES, feature="RunIndex.export_parquet")
    parquet = require("pyarrow.parquet", install=FRAMES, feature="RunIndex.export_parquet")
    schema = _schema(arrow, events=events, tokens=tokens)
    count = _Count()
    rows: list[dict[str, Any]] = []
    size = 0
    with new_file(path) as file, parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for key, run in count.of(reader, condition):
            try:
                row, row_bytes = _row(reader, key, run, events=events, tokens=tokens)
            except RunIndexError:
                count.leave_out(run)
                continue
            rows.append(row)
            size += row_bytes
            if len(rows) >= _ROW_GROUP_RUNS or size >= _ROW_GROUP_BYTES:
                writer.write_table(arrow.Table.from_pylist(rows, schema=schema))
                rows, size = [], 0
        writer.write_table(arrow.Table.from_pylist(rows, schema=schema))
    return count.exported()


class _Count:
    """Goes through runs and keeps account of them."""

    def __init__(self) -> None:
        self._runs = 0
        self._unreadable = 0
        self._damaged: list[str] = []

    def of(self, reader: Reader, condition: Condition) -> Iterator[tuple[int, RunSummary]]:
        for listed in go_through(reader, condition, size=_PAGE):
            self._unreadable += listed.damaged
            for key, run in listed.runs_by_key.items():
                self._runs += 1
                yield key, run

    def leave_out(self, run: RunSummary) -> None:
        self._runs -= 1
        self._damaged.append(run.run_id)

    def exported(self) -> Exported:
        return Exported(runs=self._runs, damaged=tuple(self._damaged), unreadable=self._unreadable)


def _write_line(
    line: tempfile.SpooledTemporaryFile[bytes], reader: Reader, key: int, run: RunSummary, *, events: bool, tokens: bool
) -> None:
    record = _record(reader, key, run, limit=_EVENTS if events else 0)
    start = {**columns_of(run), "params": record.params, "tags": record.tags, "bundle_root": record.bundle_root}
    line.write(encode(start)[:-1])
    if events:
        line.write(b',"events":[')
        for at, event in enumerate(_events(reader, key, record)):
            line.write(b"," if at else b"")
            line.write(encode(_event(event)))
        line.write(b"]")
    if tokens:
        line.write(b',"sampled":[')
        for at, (message, sampled) in enumerate(_sampled(reader, key)):
            line.write(b"," if at else b"")
            line.write(encode(_tokens(message, sampled)))
        line.write(b"]")
    line.write(b"}\n")


def _row(reader: Reader, key: int, run: RunSummary, *, events: bool, tokens: bool) -> tuple[dict[str, Any], int]:
    """A row of a Parquet file, and about how many bytes it is."""
    record = _record(reader, key, run, limit=_EVENTS if events else 0)
    row = columns_of(run)
    for name in ("scores", "labels", "tools", "times"):
        row[name] = _text(row[name])
    row["params"] = _text(record.params)
    row |= {"tags": [column_text(tag) for tag in record.tags], "bundle_root": column_text(record.bundle_root)}
    size = 1_000
    if events:
        told = [
            {**_event(event), "step": column_text(event.step), "data": _text(event.data)}
            for event in _events(reader, key, record)
        ]
        size += sum(len(event["data"]) for event in told)
        row["events"] = told
    if tokens:
        row["sampled"] = [
            {**_tokens(message, sampled), "pieces": [column_text(piece) for piece in sampled.pieces]}
            for message, sampled in _sampled(reader, key)
        ]
        size += sum(16 * len(each["ids"]) for each in row["sampled"])
    return row, size


def _record(reader: Reader, key: int, run: RunSummary, *, first: int = 0, limit: int) -> RunRecord:
    with reader.asking() as conn:
        return record_of(conn, key, run, first=first, limit=limit)


def _events(reader: Reader, key: int, record: RunRecord) -> Iterator[RunEvent]:
    """The events of a run from those of `record` on."""
    yield from record.events
    while record.next_event is not None:
        record = _record(reader, key, record.run, first=record.next_event, limit=_EVENTS)
        yield from record.events


def _sampled(reader: Reader, key: int) -> Iterator[tuple[int, SampledTokens]]:
    first = 0
    while True:
        with reader.asking() as conn:
            found = sampled_of(conn, key, first_message=first, limit=50)
        yield from found.items()
        if not found:
            return
        first = max(found) + 1


def columns_of(run: RunSummary) -> dict[str, Any]:
    """A run for other programs: what it came to, by the names that a condition has for it."""
    return {
        "run_id": run.run_id,
        "group": run.group,
        "training": None if run.place is None else run.place.training,
        "split": None if run.place is None else run.place.split,
        "step": None if run.place is None else run.place.step,
        "task_id": run.task_id,
        "attempt": run.attempt,
        "rollout": run.rollout,
        "state": str(run.state),
        "cut": run.cut,
        "failure_kind": None if run.failure is None else run.failure.kind,
        "failure_step": None if run.failure is None else run.failure.step,
        "failure_message": None if run.failure is None else run.failure.message,
        "reward": run.reward,
        "scores": dict(run.scores),
        "labels": dict(run.labels),
        "policy_step": run.policy_step,
        "model": column_text(run.model) or None,
        "renderer": column_text(run.renderer) or None,
        "bundle_name": run.bundle_name,
        "bundle_version": run.bundle_version,
        "event_count": run.event_count,
        "messages": run.messages,
        "calls": run.calls,
        "call_errors": run.call_errors,
        "turns": run.turns,
        "tools": {name: {"calls": count.calls, "errors": count.errors} for name, count in run.tools.items()},
        "times": dict(run.times),
        "prompt_tokens": run.prompt_tokens,
        "sampled_tokens": run.sampled_tokens,
        "duration_s": run.duration_s,
        "opened_at_s": run.opened_at_s,
        "ended_at_s": run.ended_at_s,
        "last_at_s": run.last_at_s,
    }


def _event(event: RunEvent) -> dict[str, Any]:
    return {
        "seq": event.seq,
        "kind": event.kind,
        "at_s": event.at_s,
        "step": event.step,
        "turn": event.turn,
        "data": event.data,
    }


def _tokens(message: int, tokens: SampledTokens) -> dict[str, Any]:
    return {"message": message, "ids": tokens.ids, "logprobs": tokens.logprobs, "pieces": tokens.pieces}


def _frame(pandas: Any, runs: Sequence[RunSummary]) -> pd.DataFrame:
    """Some runs as a frame whose columns have their types whatever is in them, or nothing."""
    rows = [columns_of(run) for run in runs]
    columns: dict[str, Any] = {}
    for name, kind in _KINDS.items():
        values = [row[name] for row in rows]
        if kind == "time":
            times = pandas.Series(values, dtype="float64")
            columns[name.removesuffix("_s")] = pandas.to_datetime(times, unit="s", utc=True).astype(
                "datetime64[us, UTC]"
            )
        else:
            columns[name] = pandas.Series(values, dtype=_DTYPES[kind])
    for name in TIMES:
        columns[f"times.{name}"] = pandas.Series([row["times"].get(name, 0.0) for row in rows], dtype="float64")
    for name in dict.fromkeys(score for row in rows for score in row["scores"]):
        columns[f"scores.{name}"] = pandas.Series([row["scores"].get(name) for row in rows], dtype="float64")
    return pandas.DataFrame(columns)


def _schema(arrow: Any, *, events: bool, tokens: bool) -> Any:
    types = {
        "text": arrow.string(),
        "integer": arrow.int64(),
        "maybe integer": arrow.int64(),
        "number": arrow.float64(),
        "time": arrow.float64(),
        "object": arrow.string(),
    }
    fields = [arrow.field(name, types[kind]) for name, kind in {**_KINDS, **_MORE_KINDS}.items()]
    fields.append(arrow.field("tags", arrow.list_(arrow.string())))
    if events:
        event = {"seq": "integer", "kind": "text", "at_s": "number", "step": "text", "turn": "integer", "data": "text"}
        struct = arrow.struct([arrow.field(name, types[kind]) for name, kind in event.items()])
        fields.append(arrow.field("events", arrow.list_(struct)))
    if tokens:
        struct = arrow.struct(
            [
                arrow.field("message", arrow.int64()),
                arrow.field("ids", arrow.list_(arrow.int32())),
                arrow.field("logprobs", arrow.list_(arrow.float32())),
                arrow.field("pieces", arrow.list_(arrow.string())),
            ]
        )
        fields.append(arrow.field("sampled", arrow.list_(struct)))
    return arrow.schema(fields)


def _text(value: object) -> str:
    return encode(value).decode("ascii")


_KINDS: Mapping[str, str] = {
    "run_id": "text",
    "group": "text",
    "training": "text",
    "split": "text",
    "step": "maybe integer",
    "task_id": "text",
    "attempt": "integer",
    "rollout": "integer",
    "state": "text",
    "cut": "text",
    "failure_kind": "text",
    "failure_step": "text",
    "failure_message": "text",
    "reward": "number",
    "scores": "object",
    "labels": "object",
    "policy_step": "maybe integer",
    "model": "text",
    "renderer": "text",
    "bundle_name": "text",
    "bundle_version": "text",
    "event_count": "integer",
    "messages": "integer",
    "calls": "integer",
    "call_errors": "integer",
    "turns": "integer",
    "tools": "object",
    "times": "object",
    "prompt_tokens": "maybe integer",
    "sampled_tokens": "maybe integer",
    "duration_s": "number",
    "opened_at_s": "time",
    "ended_at_s": "time",
    "last_at_s": "time",
}
_MORE_KINDS: Mapping[str, str] = {"params": "object", "bundle_root": "text"}
_DTYPES = {"text": "string", "integer": "int64", "maybe integer": "Int64", "number": "float64", "object": "object"}
