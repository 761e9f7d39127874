"""Files of older and newer versions."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from agent_env.errors import RunIndexError
from agent_env.runs import RunIndex, RunSink, RunState, ToolCount
from agent_env.runs import _versions as versions

Make = Callable[..., RunSink]

EVENTS = [
    ("turn_started", 1.0, {"agent": "a", "kind": "played", "system_prompt": "", "prompt": "needle in a prompt", "tools": []}),
    ("message", 3.0, {"message": {"role": "assistant", "content": "I read it"}}),
    ("call", 3.0, {"call_id": "1", "tool": "read", "arguments": {}}),
    ("answer", 4.0, {"call_id": "1", "tool": "read", "text": "no", "is_error": True}),
]  # fmt: skip


def version_1(folder: Path, *, runs: int) -> None:
    """A file as version 1 wrote it, by a process that is gone; the last run was under way."""
    conn = sqlite3.connect(folder / "index.sqlite3", isolation_level=None)
    conn.execute("PRAGMA journal_mode=WAL")
    conn.execute("CREATE TABLE migrations (version INTEGER PRIMARY KEY, applied_at_s REAL, agent_env TEXT) STRICT")
    for statement in versions._statements(versions._VERSIONS[1]):
        conn.execute(statement)
    conn.execute("INSERT INTO migrations VALUES (1, 0.0, '0.1.0')")
    conn.execute("PRAGMA application_id=0x41674576")
    conn.execute("PRAGMA user_version=1")
    conn.execute(
        "INSERT INTO writers (pid, started, boot, pid_space, opened_at_s, last_write_at_s) VALUES (1, '', '', '', 0, 0)"
    )
    conn.execute(
        "INSERT INTO groups (name, training, split, step, first_at_s, last_at_s) VALUES ('g', NULL, NULL, NULL, 0, 9)"
    )
    body = b"\n".join(
        json.dumps({"kind": kind, "at_s": at_s, "step": "prompt", "turn": 0, "data": data}).encode()
        for kind, at_s, data in EVENTS
    )
    pack = zstandard.ZstdCompressor().compress
    for key in range(1, runs + 1):
        state = "completed" if key < runs else "running"
        conn.execute(
            "INSERT INTO runs VALUES (?, ?, 1, 1, 1, 'day', 0, ?, ?, NULL, ?, NULL, NULL, NULL, '{}', '{}', 'b', '1',"
            " 4, 1, 1, 1, 1, 0.0, ?, 5.0)",
            (key, f"{key:016x}", key - 1, state, 0.5 if key < runs else None, 5.0 if key < runs else None),
        )
        conn.execute(
            "INSERT INTO heads VALUES (?, 1, ?)", (key, pack(b'{"params":{"a":1},"tags":[],"bundle_root":""}'))
        )
        conn.execute(
            "INSERT INTO chunks (run_key, first_seq, count, raw_bytes, codec, body) VALUES (?, 0, 4, ?, 1, ?)",
            (key, len(body), pack(body)),
        )
    conn.close()


def test_a_file_of_version_1_has_all_that_version_2_has(tmp_path: Path, record: Make) -> None:
    """Sums at once; tools, times and the search a moment later."""
    version_1(tmp_path, runs=3)
    with pytest.raises(RunIndexError, match="open it once for writing"):
        RunIndex.open(tmp_path, read_only=True)
    with RunIndex.open(tmp_path) as index:
        group = index.group("g")
        assert (group.finished, group.messages_mean, group.duration_s_mean, group.reward_max) == (2, 1.0, 5.0, 0.5)
        assert (group.states[RunState.COMPLETED], group.states[RunState.INTERRUPTED]) == (2, 1)
        while index.search("needle").waiting or not index.find(f"{3:016x}").tools:
            time.sleep(0.001)
        for run in index.all_runs("g"):
            assert run.tools == {"read": ToolCount(calls=1, errors=1)}
            assert run.times == {"other": 1.0, "model": 3.0, "tools": 1.0}
            assert (run.prompt_tokens, index.sampled(run.run_id)) == (None, {})
        assert {hit.run.run_id[-1] for hit in index.search("needle prompt").hits} == {"1", "2", "3"}
        assert index.read(f"{1:016x}").params == {"a": 1}
        record(index, "g", task="day", reward=1.5)
        index.flush()
        assert index.group("g").reward_mean == pytest.approx(2.5 / 3)
        assert [run.rollout for run in index.runs("g").runs] == [0, 1, 2, 3]
    with sqlite3.connect(tmp_path / "index.sqlite3") as conn:
        assert [row[0] for row in conn.execute("SELECT version FROM migrations")] == [1, 2]
        assert conn.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert conn.execute("SELECT name FROM marks").fetchall() == []
    conn.close()


def test_a_file_that_was_brought_up_to_date_is_as_a_new_one(tmp_path: Path) -> None:
    """The same tables, columns, indexes and triggers."""
    shapes: list[list[tuple[str, ...]]] = []
    for name in ("old", "new"):
        folder = tmp_path / name
        folder.mkdir()
        if name == "old":
            version_1(folder, runs=1)
        RunIndex.open(folder).close()
        with sqlite3.connect(folder / "index.sqlite3") as conn:
            rows = conn.execute(
                "SELECT type, name, sql FROM sqlite_schema WHERE name != 'migrations' ORDER BY type, name"
            )
            shapes.append(rows.fetchall())
        conn.close()
    assert shapes[0] == shapes[1]


def test_catching_up_goes_on_where_it_was_left(tmp_path: Path) -> None:
    """Closed in the middle, it is done after the next open; nothing is put in twice."""
    version_1(tmp_path, runs=400)
    opened = 0
    while True:
        with RunIndex.open(tmp_path) as index:
            opened += 1
            page = index.search("needle", limit=1000, limit_s=20.0)
            if not page.waiting and index.find(f"{399:016x}").tools and index.find(f"{400:016x}").tools:
                break
    assert len(page.hits) == 400
    assert opened < 400


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it or nothing: the file is of version 1 still."""
    version_1(tmp_path, runs=1)
    broken = {1: versions._VERSIONS[1], 2: f"{versions._VERSIONS[2]}\nSELECT nonsense;\n"}
    monkeypatch.setattr(versions, "_VERSIONS", broken)
    with pytest.raises(RunIndexError, match="no such column: nonsense"):
        RunIndex.open(tmp_path)
    monkeypatch.undo()
    with sqlite3.connect(tmp_path / "index.sqlite3") as conn:
        assert conn.execute("PRAGMA user_version").fetchone()[0] == 1
    conn.close()
    with RunIndex.open(tmp_path) as index:
        assert index.group("g").runs == 1
