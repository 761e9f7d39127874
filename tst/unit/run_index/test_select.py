"""Runs by a condition, and deleting by one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_env.episode.sink import EventKind
from agent_env.errors import RunIndexError, UsageError
from agent_env.outcome import CutReason, Failure, FailureKind, Outcome
from agent_env.runs import RunIndex, RunOrder, RunSink, RunState

Make = Callable[..., RunSink]
Do = Callable[..., None]


@pytest.fixture
def filled(index: RunIndex, record: Make, begin: Make) -> RunIndex:
    """Twelve runs of a training, a failed one and one under way."""
    for number in range(12):
        record(
            index,
            f"grid/train/step-{number // 4:04}",
            task=f"day-{number % 4}",
            texts=["x"] * (number + 1),
            reward=number / 10,
            scores={"saving": number / 10},
            labels={"policy_step": number // 4, "model": "m"},
            cut=CutReason.TOKEN_LIMIT if number == 5 else None,
        )
    failure = Failure(kind=FailureKind.MCP_DIED, step="prompt", message="it died")
    record(index, "other", outcome=Outcome.FAILED, failure=failure)
    begin(index, "other")
    index.flush()
    return index


@pytest.mark.parametrize(
    ("where", "count"),
    [
        (None, 14),
        ("", 14),
        ("true", 14),
        ("reward >= 0.5", 7),
        ("reward IS NULL", 2),
        ("group = 'other'", 2),
        ("\"group\" = 'other'", 2),
        ("GROUP LIKE 'grid/%' AND step = 1", 4),
        ("training = 'grid' AND split = 'train'", 12),
        ("task_id IN ('day-1', 'day-2')", 8),
        ("state = 'failed' OR state = 'running'", 2),
        ("failure_kind = 'mcp_died' AND failure_message LIKE '%died%'", 1),
        ("cut = 'token_limit'", 1),
        ("scores ->> 'saving' < 0.2", 2),
        ("labels ->> 'policy_step' = 2", 4),
        ("policy_step = 2 AND model = 'm'", 4),
        ("messages > 10", 2),
        ("duration_s < 100000", 14),
        ("opened_at > '2020-01-01' AND ended_at < '2999-01-01'", 13),
        ("bundle_name = 'gridsim' AND bundle_version = '1.0'", 14),
        ("reward > (SELECT avg(reward) FROM run)", 6),
        ("task_id = 'a ) ; -- b'", 0),
        ("reward = 0.5 -- half", 1),
        ("/* (;' */ reward = 0.5", 1),
    ],
)
def test_a_condition_says_which_runs(filled: RunIndex, where: str | None, count: int) -> None:
    """Over what is known of each run, read-only use included."""
    with RunIndex.open(filled.folder, read_only=True) as reading:
        assert len(reading.select(where).runs) == count


@pytest.mark.parametrize("name", ["read", "x], y", ":[", "ß;", "\\", "\ud800"])
def test_what_is_exported_of_tools_can_be_asked(index: RunIndex, begin: Make, tell: Do, end: Do, name: str) -> None:
    """Whatever a model called: calls and errors by the tool's name, and each tool's own beside the next one's."""
    sink = begin(index)
    for tool, is_error in ((name, True), (name, False), ("other", False)):
        tell(sink, EventKind.CALL, {"call_id": "1", "tool": tool, "arguments": {}, "raw": "{}"})
        tell(sink, EventKind.ANSWER, {"call_id": "1", "tool": tool, "text": "", "is_error": is_error})
    end(sink)
    index.flush()
    exported = index.frame()["tools"][0]
    assert exported == {name: {"calls": 2, "errors": 1}, "other": {"calls": 1, "errors": 0}}
    for condition in (
        "json_extract(tools, '$.other.calls') = 1 AND tools ->> '$.other.errors' = 0",
        "TOOLS->>'$.other.calls' = 1 AND run.tools /* 1 */ ->> '$.other.errors' IS 0",
        "(SELECT max(tools ->> '$.other.calls') FROM run) = 1",
        "(SELECT max(tools ->> '$.other.calls') FROM (SELECT '{\"other\": {\"calls\": 7}}' AS tools)) = 7",
        "tools ->> '$.none.errors' IS NULL AND tools ->> '$.errors' IS NULL",
    ):
        assert index.count(condition) == 1, condition
    assert index.count('instr(tools, \':{"calls":2,"errors":1}\') > 0') == 1


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("rewart > 1", "there is no column 'rewart', only run_id, group, training"),
        ("reward >", "syntax error.*over run_id, group"),
        ("1) OR (1", "closed that was not opened"),
        ("(1", "opened and not closed"),
        ("'abc", "' is opened and not closed"),
        ("1; DROP TABLE runs", "without ';'"),
        ("reward > ?", r"no placeholder \?"),
        ("reward > :x", "no placeholder :"),
        ("load_extension('x')", "the function load_extension cannot be used"),
        ("randomblob(1000000000)", "the function randomblob cannot be used"),
        ("(SELECT count(*) FROM chunks)", "the table chunks cannot be used"),
        ("(SELECT count(*) FROM sqlite_master)", "the table sqlite_master cannot be used"),
        ("(SELECT count(*) FROM pragma_table_info('runs'))", "cannot be used"),
        ("(WITH RECURSIVE a(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM a) SELECT max(x) FROM a)", "cannot be used"),
        ("count(*) > 1", "misuse of aggregate"),
        ("json_extract(labels, 'bad')", "path"),
        ("reward = '\x00'", "no text"),
        ("reward = '\ud800'", "no text"),
        ("reward = 1 " * 2000, "at most 10000 characters, not 22000"),
        ("(" * 4000 + "1" + ")" * 4000, "where: "),
    ],
)
def test_what_is_no_condition_is_refused_in_a_line(filled: RunIndex, where: str, words: str) -> None:
    """With what there is instead; nothing but reading can be asked for."""
    with pytest.raises(UsageError, match=words) as caught:
        filled.select(where)
    assert "\n" not in str(caught.value)
    assert len(filled.select().runs) == 14


def test_a_condition_that_takes_forever_is_ended(filled: RunIndex) -> None:
    """Nobody waits for it, and the index goes on."""
    many = ", ".join(f"run AS r{number}" for number in range(9))
    with pytest.raises(RunIndexError, match="took too long"):
        filled.select(f"(SELECT count(*) FROM {many}) > 0", limit_s=0.1)
    assert len(filled.select().runs) == 14


@pytest.mark.parametrize("order", RunOrder)
def test_pages_have_every_run_once(filled: RunIndex, order: RunOrder) -> None:
    """In the order of filing, or the other way round."""
    every = [run.run_id for run in filled.select(order=order).runs]
    page = filled.select(order=order, limit=3)
    ids = [run.run_id for run in page.runs]
    while page.next_page is not None:
        page = filled.select(order=order, limit=3, after=page.next_page)
        ids += [run.run_id for run in page.runs]
    assert ids == every
    first = filled.find(every[0])
    assert first.group == ("other" if order is RunOrder.NEWEST else "grid/train/step-0000")
    with pytest.raises(UsageError, match="from no page"):
        filled.select(after="x'")


def test_a_group_bounds_a_condition(filled: RunIndex) -> None:
    """With what is below it."""
    assert len(filled.select(group="grid").runs) == 12
    assert len(filled.select("reward > 0.1", group="grid/train/step-0000").runs) == 2
    assert filled.select(group="gri").runs == ()


def test_a_run_whose_process_died_is_interrupted_in_a_condition(filled: RunIndex) -> None:
    """Also before anybody has written that down."""
    with sqlite3.connect(filled.folder / "index.sqlite3") as conn:
        conn.execute("UPDATE writers SET started = '1'")
    conn.close()
    with RunIndex.open(filled.folder, read_only=True) as index:
        (run,) = index.select("state = 'interrupted'").runs
        assert run.state is RunState.INTERRUPTED
        assert index.select("state = 'running'").runs == ()
        assert index.count(f"ended_at_s = {run.ended_at_s!r} AND ended_at IS NOT NULL AND state = 'interrupted'") == 1


def test_deleting_takes_what_the_condition_says_and_their_groups(filled: RunIndex) -> None:
    """Events and words go with them; groups without runs are gone."""
    assert filled.delete("step = 1") == 4
    assert filled.delete("reward > 0.05", group="grid/train/step-0000") == 3
    assert [(group.name, group.runs) for group in filled.groups()] == [
        ("grid/train/step-0000", 1),
        ("grid/train/step-0002", 4),
        ("other", 2),
    ]
    assert filled.delete("step = 1") == 0


def test_deleting_everything_has_to_be_said(filled: RunIndex) -> None:
    """An empty condition may be a mistake; `true` is none."""
    for where in ("", "  "):
        with pytest.raises(UsageError, match="`true` is every run"):
            filled.delete(where)
    with pytest.raises(UsageError, match="no column"):
        filled.delete("nonsense")
    assert filled.delete("true") == 14
    assert filled.groups() == []


def test_deleting_waits_for_what_was_recorded_before(index: RunIndex, record: Make) -> None:
    """Also for what is not on the disk yet; more than one transaction takes."""
    for _ in range(1100):
        record(index, texts=[], reward=1.0)
    assert index.delete("reward = 1") == 1100


def test_a_read_only_index_deletes_nothing(filled: RunIndex) -> None:
    """It says that it was opened read-only."""
    with RunIndex.open(filled.folder, read_only=True) as index:
        for call in (lambda: index.delete("true"), index.vacuum):
            with pytest.raises(RunIndexError, match="read-only"):
                call()


def test_vacuum_gives_room_back_and_searches_on(index: RunIndex, record: Make) -> None:
    """After deleting most runs, the file is smaller, the search index has only what is left."""
    for number in range(300):
        record(index, texts=[f"needle{number} {number**50}" * 5], task=f"t{number}")
    index.delete("task_id != 't7'")
    done = index.vacuum()
    assert done.after_bytes < done.before_bytes / 3
    assert done.is_search_rebuilt
    assert len(index.search("needle7").hits) == 1
    assert index.search("needle8").hits == ()
    record(index, texts=["later"])
    index.flush()
    assert len(index.search("later").hits) == 1


def test_vacuum_leaves_the_search_index_while_another_process_writes(tmp_path: Path, record: Make) -> None:
    """It would not know which words to put in again; the rest is done."""
    with RunIndex.open(tmp_path) as index, RunIndex.open(tmp_path) as other:
        for each in (index, other):
            record(each, texts=["needle"])
            each.flush()
        assert not index.vacuum().is_search_rebuilt
        assert len(index.search("needle").hits) == 2
