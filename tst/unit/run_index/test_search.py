"""Finding a text in runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_env.episode.sink import EventKind
from agent_env.errors import RunIndexError, UsageError
from agent_env.runs import RunIndex, RunSink

Make = Callable[..., RunSink]
Do = Callable[..., None]


def found(index: RunIndex, text: str, **more: object) -> list[str]:
    """The excerpts of what is found, newest first."""
    return [hit.excerpt for hit in index.search(text, **more).hits]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("refund", True),
        ("REFUND order", True),
        ("order refund", True),
        ('"refund the order"', True),
        ('"order refund"', False),
        ('"get_order order_id"', True),
        ("refu*", True),
        ("refu", False),
        ("refund missing", False),
        ("cafe", True),
        ("café", True),
        ("W4763447", True),
        ("#W4763447", True),
        ("get_order", True),
        ("order_id", True),
        ("AND", False),
        ("refund AND order", False),
        ("NOT missing", False),
        ("NEAR(refund order)", False),
        ("refund OR missing", False),
        ("-refund", True),
        ("text:refund", False),
        ('"unclosed refund', False),
        ("^refund", True),
        ("(refund)", True),
        ("refund; drop table words", False),
        ("refund'", True),
    ],
)
def test_words_are_all_needed_and_nothing_else_is_special(
    index: RunIndex, begin: Make, say: Do, tell: Do, text: str, is_found: bool
) -> None:
    """Words, phrases and beginnings; what is an operator elsewhere is a word here."""
    sink = begin(index)
    say(sink, "I refund the order at the Café, as you like.")
    tell(sink, EventKind.CALL, {"call_id": "1", "tool": "get_order", "arguments": {"order_id": "#W4763447"}})
    index.flush()
    assert bool(found(index, text)) is is_found


@pytest.mark.parametrize(
    ("written", "text", "is_found"),
    [
        ("注文書を見る", "注文", True),
        ("注文書を見る", "文書を", True),
        ("注文書を見る", "書", True),
        ("注文書を見る", "る", True),
        ("注文書を見る", "注を", False),
        ("注文書を見る", "文注", False),
        ("Order注文OK", "注文", True),
        ("Order注文OK", "order", True),
        ("สวัสดีครับ", "ครับ", True),
        ("환불해 주세요", "환불", True),
        ("done ✅ now", "✅", True),
        ("done✅now", "done", True),
        ("done ✅ now", "🚀", False),
        ("straße", "strasse", False),
        ("Ärger", "arger", True),
    ],
)
def test_scripts_without_spaces_and_pictures_are_found(
    index: RunIndex, record: Make, written: str, text: str, is_found: bool
) -> None:
    """A part of a sentence without spaces is found, a picture too."""
    record(index, texts=[written])
    index.flush()
    assert bool(found(index, text)) is is_found


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (EventKind.CALL, {"tool": "bash", "arguments": {"command": 'cd "src"\nneedle --all\tC:\\temp'}}),
        (EventKind.CALL, {"tool": "bash", "arguments": None, "raw": '{"command": "cd\\nneedle --all\\ttemp'}),
        (EventKind.AGENT_CALLED, {"tool": "bash", "arguments": {"command": "cd\nneedle --all\ttemp"}, "text": ""}),
        (EventKind.ANSWER, {"text": '{"output": "one\\nneedle\\u00e9 --all\\ttemp", "more": "needle"}'}),
        (EventKind.ANSWER, {"text": "[1]\nneedle, all\ttemp"}),
        (EventKind.MESSAGE, {"message": {"role": "assistant", "content": "one\nneedle\rall\ftemp"}}),
    ],
)
def test_words_of_several_lines_are_found(
    index: RunIndex, begin: Make, tell: Do, kind: EventKind, data: dict[str, object]
) -> None:
    """The first word of a line is not glued to the sign of the line break, as JSON writes it."""
    tell(begin(index), kind, data)
    index.flush()
    for text in ("needle", "all", "temp", "needle all temp", "temp*"):
        assert len(found(index, text)) == 1, text
    assert [found(index, text) for text in ("nneedle", "ttemp", "eedle", "needl", "emp")] == [[]] * 5


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (EventKind.CALL, {"tool": "grep", "arguments": None, "raw": '{"pattern": "needle\\d+all", "in": "C:\\Users'}),
        (EventKind.ANSWER, {"text": "[error] no needle\\d+all in C:\\Users"}),
        (EventKind.AGENT_CALLED, {"tool": "grep", "arguments": {}, "text": "{needle\\d+all} C:\\Users"}),
    ],
)
def test_words_at_a_backslash_that_is_no_escape_are_found(
    index: RunIndex, begin: Make, tell: Do, kind: EventKind, data: dict[str, object]
) -> None:
    """What starts like JSON may be none: a line of a log, or arguments that a model wrote wrong."""
    tell(begin(index), kind, data)
    index.flush()
    for text in ("needle", "all", "users", '"needle d all"', "user*"):
        assert len(found(index, text)) == 1, text
    assert found(index, "needled") == []


_PIECES = st.sampled_from(
    ["bal", "Bal", "bál", "ba", "al", "n", "t", "l", "7", " ", "\n", "\t", "\\", '"', "_", "-", "é", "\x00"]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.lists(_PIECES, max_size=8).map("".join), min_size=1, max_size=4),
    text=st.sampled_from(["bal", "bal*", "ba", "al", "nbal", "tbal", '"bal n"', '"bal bal"', "bal n", "l 7", "bále"]),
)
def test_what_is_found_is_what_sqlite_finds_in_each_message(
    index: RunIndex, record: Make, texts: list[str], text: str
) -> None:
    """However words are parted: a message that is passed over at a glance has it not."""
    sink = record(index, texts=texts)
    index.flush()
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as conn:
        conn.execute(
            "CREATE VIRTUAL TABLE words USING fts5(text, tokenize=\"unicode61 categories 'L* N* Co So Mn Mc'\")"
        )
        conn.executemany("INSERT INTO words VALUES (?)", [(written.replace("\x00", " "),) for written in texts])
        expected = conn.execute(
            "SELECT min(rowid) FROM words WHERE words MATCH ?", (text.replace("á", "a"),)
        ).fetchone()[0]
    hits = [hit.seq for hit in index.search(text, limit=1_000).hits if hit.run.run_id == sink.run_id]
    assert hits == ([] if expected is None else [expected - 1])


def test_everything_that_is_said_is_searched(index: RunIndex, begin: Make, tell: Do) -> None:
    """Prompts, messages of every shape, calls, answers, other agents, explanations, failures; not system prompts."""
    events = [
        (EventKind.TURN_STARTED, {"prompt": "word0", "system_prompt": "never1", "tools": [{"description": "never2"}]}),
        (EventKind.MESSAGE, {"message": {"content": [{"type": "text", "text": "word1"}, {"type": "thinking", "thinking": "word2"}]}}),
        (EventKind.MESSAGE, {"message": {"content": None, "unreadable_calls": [{"raw": "word3", "error": "x"}]}}),
        (EventKind.CALL, {"tool": "word4", "arguments": None, "raw": "word5"}),
        (EventKind.ANSWER, {"text": "word6"}),
        (EventKind.AGENT_SAID, {"message": {"role": "assistant", "content": "word7"}}),
        (EventKind.AGENT_CALLED, {"tool": "word8", "arguments": {"word9": ["word10"]}, "text": "word11"}),
        (EventKind.SCORE, {"value": 1.0, "explanation": "word12"}),
        (EventKind.SKIPPED, {"reason": "word13"}),
        (EventKind.FAILURE, {"kind": "word14", "message": "word15", "traceback": "never3"}),
    ]  # fmt: skip
    sink = begin(index)
    for kind, data in events:
        tell(sink, kind, data)
    index.flush()
    assert [number for number in range(16) if not found(index, f"word{number}")] == []
    assert [number for number in range(1, 4) if found(index, f"never{number}")] == []


@pytest.mark.parametrize("depth", [20, 400, 900, 5_000])
@pytest.mark.parametrize(
    "make",
    [
        lambda deep: {"message": {"role": "assistant", "content": deep}},
        lambda deep: {"message": {"role": "assistant", "content": "x", "unreadable_calls": deep}},
        lambda deep: {"tool": "needle", "arguments": {"a": deep}, "raw": "[" * 50_000},
    ],
)
def test_what_is_nested_deeply_is_recorded_read_and_found(
    index: RunIndex, begin: Make, say: Do, tell: Do, make: Callable[[object], dict[str, object]], depth: int
) -> None:
    """A model may write any JSON: it stops neither the episode nor who reads and searches it."""
    deep: object = "word"
    for _ in range(depth):
        deep = [deep]
    data = make(deep)
    sink = begin(index)
    tell(sink, EventKind.CALL if "tool" in data else EventKind.MESSAGE, data)
    say(sink, "needle")
    index.flush()
    assert len(list(index.events(sink.run_id))) == 2
    assert [hit.run.run_id for hit in index.search("needle").hits] == [sink.run_id]


def test_a_hit_is_the_event_and_some_words_around_it(index: RunIndex, record: Make) -> None:
    """On one line, cut at both ends."""
    sink = record(index, texts=["nothing", f"{'before ' * 50}\n\n needle\x00\t\ud800 {'after ' * 50}"])
    index.flush()
    hit = index.search("needle").hits[0]
    assert (hit.run.run_id, hit.seq) == (sink.run_id, 1)
    assert "\n" not in hit.excerpt
    assert " needle " in hit.excerpt
    assert hit.excerpt.startswith("…")
    assert len(hit.excerpt) < 300
    assert found(index, "注文") == []
    record(index, texts=["今日は注文書を見る"])
    index.flush()
    assert found(index, "注文") == ["今日は注文書を見る"]


def test_all_words_are_in_one_message_however_the_run_was_written(index: RunIndex, begin: Make, say: Do) -> None:
    """Two words in two messages are no hit, whether the messages were written together or apart."""
    together, apart = begin(index), begin(index)
    for sink in (together, apart):
        say(sink, "first part")
        if sink is apart:
            index.flush()
        say(sink, "second part")
    index.flush()
    assert found(index, "first second") == []
    assert len(found(index, "first part")) == 2


def test_the_newest_run_comes_first_and_each_once_a_page(index: RunIndex, record: Make) -> None:
    """Pages go through all of them."""
    sinks = []
    for _ in range(25):
        sinks.append(record(index, texts=["needle", "needle again"]))
        index.flush()
    page = index.search("needle", limit=10)
    ids = [hit.run.run_id for hit in page.hits]
    while page.next_page is not None:
        page = index.search("needle", limit=10, after=page.next_page)
        ids += [hit.run.run_id for hit in page.hits]
    assert ids == [sink.run_id for sink in reversed(sinks)]


def test_a_run_is_on_a_page_once(index: RunIndex, begin: Make, say: Do) -> None:
    """With the last part of it that has the words, however many have."""
    sink = begin(index)
    for number in range(3):
        say(sink, f"needle {number}")
        index.flush()
    assert [hit.seq for hit in index.search("needle").hits] == [2]


def test_a_search_in_a_group_has_what_is_below_it_and_nothing_beside_it(index: RunIndex, record: Make) -> None:
    """`grid` has `grid/train/step-0001` below it, and `grid-2` beside it."""
    groups = ["grid", "grid/train/step-0001", "grid-2", "other"]
    for group in groups:
        record(index, group, texts=["needle"])
    index.flush()
    assert {hit.run.group for hit in index.search("needle", group="grid").hits} == set(groups[:2])
    assert {hit.run.group for hit in index.search("needle", group="other").hits} == {"other"}
    assert index.search("needle", group="missing").hits == ()


def test_a_search_that_takes_too_long_ends_where_it_is(index: RunIndex, record: Make) -> None:
    """What was found so far comes back, and where to go on."""
    for number in range(5):
        record(index, texts=[f"needle {number}"])
        index.flush()
    page = index.search("needle", limit_s=0.0)
    assert 0 < len(page.hits) < 5
    hits = list(page.hits)
    while page.next_page is not None:
        page = index.search("needle", limit_s=0.0, after=page.next_page)
        hits += page.hits
    assert len({hit.run.run_id for hit in hits}) == 5


@pytest.mark.parametrize("text", ["", "  ", "->", '""', "*", "\x00", "\ud800"])
def test_nothing_to_search_for_is_said(index: RunIndex, text: str) -> None:
    """No word, no answer."""
    with pytest.raises(UsageError, match="there is no word in"):
        index.search(text)


def test_a_text_of_a_megabyte_is_refused(index: RunIndex) -> None:
    """With its size and what is allowed."""
    with pytest.raises(UsageError, match="at most 1000 characters, and this one 1000000"):
        index.search("x" * 1_000_000)


@pytest.mark.parametrize("after", ["x", "-1", "1" * 30, "\uff11"])
def test_a_page_that_is_none_is_refused(index: RunIndex, after: str) -> None:
    """It may come from an address that somebody wrote."""
    with pytest.raises(UsageError, match="from no page"):
        index.search("needle", after=after)


def test_deleted_runs_are_not_found_and_their_keys_are_not_used_again(index: RunIndex, record: Make) -> None:
    """Their words stay in the search index: a later chunk must not be taken for theirs."""
    record(index, texts=["needle"])
    index.flush()
    index.delete("true")
    record(index, texts=["something else"])
    index.flush()
    assert found(index, "needle") == []
    assert found(index, "else") == ["something else"]
    with index._reader.asking() as conn:
        rows = conn.execute("SELECT c.key FROM words w JOIN chunks c ON c.key = w.rowid WHERE words MATCH 'needle'")
        assert rows.fetchall() == []


def test_a_damaged_run_is_named_and_the_others_are_found(index: RunIndex, record: Make) -> None:
    """Bytes of a chunk that say something else now."""
    fine, damaged = record(index, texts=["needle"]), record(index, texts=["needle"])
    index.flush()
    with sqlite3.connect(index.folder / "index.sqlite3") as conn:
        conn.execute(
            "UPDATE chunks SET body = CAST(substr(body, 1, 20) || x'ffff' AS BLOB)"
            " WHERE run_key = (SELECT key FROM runs WHERE run_id = ?)",
            (damaged.run_id,),
        )
    conn.close()
    page = index.search("needle")
    assert [hit.run.run_id for hit in page.hits] == [fine.run_id]
    assert page.damaged == (damaged.run_id,)


def test_a_damaged_search_index_is_said_and_made_anew(index: RunIndex, record: Make) -> None:
    """Recording goes on, other questions are answered, `vacuum` mends it."""
    record(index, texts=["needle"], reward=1.0)
    index.flush()
    with sqlite3.connect(index.folder / "index.sqlite3") as conn:
        conn.execute("UPDATE words_data SET block = x'00ff00ff' WHERE id > 10")
    conn.close()
    with pytest.raises(RunIndexError, match="damaged"):
        index.search("needle")
    record(index, texts=["later"], reward=1.0)
    index.flush()
    assert (index.group("g").runs, index.group("g").reward_mean) == (2, 1.0)
    assert index.vacuum().is_search_rebuilt
    assert found(index, "needle") == ["needle"]


def test_words_that_a_process_left_out_are_put_in_by_the_next(tmp_path: Path, record: Make) -> None:
    """As after a kill between a batch and its words."""
    with RunIndex.open(tmp_path) as index:
        record(index, texts=["needle"])
    with sqlite3.connect(tmp_path / "index.sqlite3") as conn:
        conn.execute("DROP TABLE words")
        conn.execute("CREATE VIRTUAL TABLE words USING fts5(text, content='', columnsize=0, detail=none)")
        conn.execute("UPDATE writers SET words_to = 0")
    conn.close()
    with RunIndex.open(tmp_path, read_only=True) as index:
        page = index.search("needle")
        assert (page.hits, page.waiting) == ((), 1)
    with RunIndex.open(tmp_path) as index:
        while index.search("needle").waiting:
            pass
        assert found(index, "needle") == ["needle"]
