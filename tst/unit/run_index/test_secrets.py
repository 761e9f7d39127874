"""What environment variables hold that are named like keys never reaches the index."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from agent_env._secrets import is_secret_name, note_secret_name, secret_values
from agent_env.episode.sink import EventKind
from agent_env.outcome import Failure, FailureKind, Outcome
from agent_env.runs import RunIndex, RunSink, SampledTokens
from agent_env.runs._words import TEXT_CHARS

Make = Callable[..., RunSink]
Do = Callable[..., None]

KEY = "sk-live-0123456789abcdef"
ODD = 'p"ass\\w0rd-ü-\n-x'


@pytest.mark.parametrize(
    "name",
    [
        "OPENAI_API_KEY",
        "TINKER_APIKEY",
        "HF_TOKEN",
        "aws_secret_access_key",
        "PGPASSWORD",
        "MYSQL_PWD",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "BASIC_AUTH",
        "GITHUB-TOKEN",
    ],
)
def test_names_of_keys_are_known(name: str) -> None:
    """By a part of the name, in any case."""
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["PATH", "PWD", "OLDPWD", "TOKENIZERS_PARALLELISM", "GIT_AUTHOR_NAME", "KEYBOARD", "HOME"]
)
def test_names_of_other_things_are_not(name: str) -> None:
    """A name that only looks like one is none."""
    assert not is_secret_name(name)


def test_short_values_are_no_secrets_and_longer_ones_come_first() -> None:
    """Or `true` would be a secret; and a value may be part of another."""
    environment = {"A_KEY": "1234567", "B_KEY": "12345678", "C_TOKEN": "0-12345678-9", "HOME": "/home/someone"}
    assert list(secret_values(environment).items()) == [("0-12345678-9", "C_TOKEN"), ("12345678", "B_KEY")]


def test_a_name_that_was_noted_is_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a model's key, whatever it is called."""
    monkeypatch.setenv("MY_ENDPOINT_ENTRY", "a-long-enough-value")
    assert "a-long-enough-value" not in secret_values()
    note_secret_name("MY_ENDPOINT_ENTRY")
    assert secret_values()["a-long-enough-value"] == "MY_ENDPOINT_ENTRY"


def test_no_byte_of_a_secret_is_in_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, begin: Make, say: Do, tell: Do, end: Do
) -> None:
    """Wherever it stood: in messages, arguments, answers, failures, labels, ids, params and tokens; readers see the name."""
    monkeypatch.setenv("SHOP_API_KEY", KEY)
    monkeypatch.setenv("SHOP_PASSWORD", ODD)
    with RunIndex.open(tmp_path) as index:
        sink = begin(index, group=f"g {KEY}", task=f"task {KEY}", model=KEY)
        say(sink, f"the key is {KEY}, the password {ODD}")
        tell(
            sink,
            EventKind.CALL,
            {"call_id": "1", "tool": KEY, "arguments": {KEY: [ODD]}, "raw": '{"a": "' + KEY + '"}'},
        )
        failure = Failure(kind=FailureKind.AGENT, step="s", message=f"refused: {KEY}")
        end(sink, outcome=Outcome.FAILED, failure=failure)
        pieces = ("the ", KEY[:5], KEY[5:20], KEY[20:] + "!", " end")
        sink.sampled(0, SampledTokens(ids=(1, 2, 3, 4, 5), logprobs=None, pieces=pieces))
        index.flush()
        run = index.find(sink.run_id)
        events = list(index.events(sink.run_id))
        assert run.task_id == "task ⟨SHOP_API_KEY⟩"
        assert run.group == "g ⟨SHOP_API_KEY⟩"
        assert run.failure is not None
        assert run.failure.message == "refused: ⟨SHOP_API_KEY⟩"
        assert events[0].data["message"]["content"] == "the key is ⟨SHOP_API_KEY⟩, the password ⟨SHOP_PASSWORD⟩"
        assert events[1].data["arguments"] == {"⟨SHOP_API_KEY⟩": ["⟨SHOP_PASSWORD⟩"]}
        assert events[1].data["raw"] == '{"a": "⟨SHOP_API_KEY⟩"}'
        assert index.sampled(sink.run_id)[0].ids == (1, -1, -1, -1, 5)
        assert index.sampled(sink.run_id)[0].pieces == ("the ", "⟨SHOP_API_KEY⟩", "", "", " end")
        assert not index.search("0123456789abcdef").hits
        assert index.search("SHOP_API_KEY").hits
        every = [index.export_jsonl(tmp_path / "all.jsonl", tokens=True), run, events]
        assert KEY not in str(every)
    for file in tmp_path.iterdir():
        assert KEY.encode() not in file.read_bytes()


def test_a_secret_inside_json_inside_json_is_found(
    monkeypatch: pytest.MonkeyPatch, index: RunIndex, begin: Make, tell: Do
) -> None:
    """A password with quotes, in the raw arguments of a call."""
    monkeypatch.setenv("SHOP_PASSWORD", 'quoted"secret')
    sink = begin(index)
    tell(
        sink, EventKind.CALL, {"call_id": "1", "tool": "t", "arguments": None, "raw": '{"password": "quoted\\"secret"}'}
    )
    index.flush()
    assert next(index.events(sink.run_id)).data["raw"] == '{"password": "⟨SHOP_PASSWORD⟩"}'


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_secret_deep_in_json_is_found(
    monkeypatch: pytest.MonkeyPatch, index: RunIndex, begin: Make, tell: Do, depth: int, *, ascii_only: bool
) -> None:
    """A password with a quote and a letter that is not ASCII, in the body of what a page answered a tool."""
    monkeypatch.setenv("SHOP_PASSWORD", ODD)
    text, cleaned = ODD, "⟨SHOP_PASSWORD⟩"
    for _ in range(depth):
        text, cleaned = (json.dumps({"body": what}, ensure_ascii=ascii_only) for what in (text, cleaned))
    sink = begin(index)
    tell(sink, EventKind.ANSWER, {"call_id": "1", "text": text})
    index.flush()
    answer = next(index.events(sink.run_id)).data["text"]
    assert "w0rd" not in answer
    if not ascii_only:
        assert answer == cleaned
    assert not index.search("w0rd").hits


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("message", {"message": {"role": "assistant", "content": 'I send {"password": "x\\"wombat okapi"} now'}}),
        ("answer", {"text": '[login] with x"wombat okapi'}),
        ("answer", {"text": "{back\\wombat okapi}"}),
        ("answer", {"text": f'{"a" * (TEXT_CHARS - 10)} x"wombat okapi'}),
        ("call", {"tool": "t", "arguments": {"a": f'{"a" * (TEXT_CHARS - 20)} x"wombat okapi'}, "raw": ""}),
    ],
)
def test_no_word_of_a_secret_is_in_the_search_index(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, begin: Make, tell: Do, kind: str, data: dict[str, object]
) -> None:
    """Nor where a text is searched up to the middle of it, or has it as JSON writes it."""
    monkeypatch.setenv("SHOP_PASSWORD", 'x"wombat okapi')
    monkeypatch.setenv("BACK_PASSWORD", "back\\wombat okapi")
    with RunIndex.open(tmp_path) as index:
        tell(begin(index), EventKind(kind), data)
        index.flush()
    with closing(sqlite3.connect(tmp_path / "index.sqlite3")) as conn:
        conn.execute("CREATE VIRTUAL TABLE temp.terms USING fts5vocab('main', 'words', 'row')")
        terms = [row[0] for row in conn.execute("SELECT term FROM terms")]
    assert terms
    assert not [term for term in terms if term.startswith(("w", "ok")) and term != "with"]


def test_a_long_failure_does_not_end_in_a_part_of_a_secret(
    monkeypatch: pytest.MonkeyPatch, index: RunIndex, record: Make
) -> None:
    """Its message is shortened after secrets are out of it."""
    monkeypatch.setenv("SHOP_API_KEY", KEY)
    for before in range(1_970, 2_001):
        failure = Failure(kind=FailureKind.AGENT, step="s", message=f"{'a' * before}{KEY}")
        sink = record(index, outcome=Outcome.FAILED, failure=failure)
        index.flush()
        shown = index.find(sink.run_id).failure
        assert shown is not None
        assert "sk" not in shown.message
        assert len(shown.message) <= 2_000
