"""A run taken as a test case: played again, it makes the same calls and earns the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from agent_env.cli import root
from agent_env.cli._script import read_script
from agent_env.episode.sink import EventKind
from agent_env.outcome import CutReason
from agent_env.runs import RunEvent, RunIndex, RunState, RunSummary
from agent_env.runs.explorer import build_app
from agent_env.runs.play_script import play_script

Tell = Callable[..., Any]
BUNDLES = Path(__file__).parents[3] / "bundles"

# What one YAML or another reads as something else than this text, or cannot hold as it is.
MISREAD = (
    "", " ", "012", "0x1F", "0o7", "1_000", "1e5", "1.10", ".inf", "12:30", "2024-01-01", "yes", "No", "on", "null", "~",
    "true", "=", "<<", "- a", "a: b", "#W1", "a #b", "!!str", "&a", "*a", "|", ">", "%", "@x", "`x`", "{}", "[1]", "'", '"',
    "a\n", "a\n\n b\n", "a\nb  \nc", "\ta\nb", "a\r\nb", "a\n\tb", "\u2028", "\x85", "\ufeff", "\uffff", "\x00", "\x1b[31m",
    "\u202egnp.exe", "k" * 1500, "naïve\n東京", "\U0001f469\u200d\U0001f4bb\nb",
)  # fmt: skip
TEXT = st.one_of(st.text(st.characters(exclude_categories=("Cs",)), max_size=20), st.sampled_from(MISREAD))
JSON: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=10,
)
CALLS = st.lists(st.tuples(TEXT, st.dictionaries(TEXT, JSON, max_size=4)), max_size=3)


def summary(**more: Any) -> RunSummary:
    """A run's summary."""
    known: dict[str, Any] = {
        "run_id": "00ff", "group": "g", "task_id": "t", "rollout": 0, "attempt": 0, "labels": {}, "bundle_name": "shop",
        "bundle_version": "1.0", "state": RunState.COMPLETED, "cut": None, "failure": None, "scores": {}, "reward": None,
        "event_count": 0, "messages": 0, "calls": 0, "call_errors": 0, "turns": 0, "opened_at_s": 0.0, "ended_at_s": 1.0,
        "last_at_s": 1.0,
    }  # fmt: skip
    return RunSummary(**{**known, **more})


def events_of(*told: tuple[str, Mapping[str, Any]]) -> list[RunEvent]:
    """Events, in order."""
    return [
        RunEvent(seq=seq, kind=kind, at_s=float(seq), step="prompt", turn=0, data=data)
        for seq, (kind, data) in enumerate(told)
    ]


def turns_read(script: str, folder: Path) -> list[tuple[list[tuple[str, Any]], str | None]]:
    """What `play --script` reads of a script: the calls and the reply of each turn."""
    file = folder / "turns.yaml"
    file.write_text(script, encoding="utf-8", newline="")
    return [([(call.tool, dict(call.arguments)) for call in turn.calls], turn.reply) for turn in read_script(file)]


@settings(max_examples=100, deadline=None)
@given(turns=st.lists(st.tuples(CALLS, st.one_of(st.none(), TEXT)), min_size=1, max_size=3))
@example(turns=[([(text, {text: text, "in": [{text: text}]})], text) for text in MISREAD])
def test_any_text_is_played_as_it_was_recorded(
    tmp_path_factory: pytest.TempPathFactory, turns: Sequence[tuple[list[tuple[str, Any]], str | None]]
) -> None:
    """Texts that YAML would misread, or could not hold, come back as they were: in calls, in arguments, in replies."""
    told: list[tuple[str, Mapping[str, Any]]] = []
    for calls, reply in turns:
        told.append(("turn_started", {"kind": "played"}))
        for tool, arguments in calls:
            told += [("call", {"tool": tool, "arguments": arguments}), ("answer", {"text": "done"})]
        told.append(("turn_ended", {"reply": reply}))
    script = play_script(summary(task_id="t\n- evil: 'x"), events_of(*told))
    assert turns_read(script, tmp_path_factory.getbasetemp()) == [(calls, reply) for calls, reply in turns]
    assert not set(script) & set("\x00\x1b\x85\u2028\u202e\ufeff")


def test_comments_say_which_run_it_is_and_how_it_is_played(tmp_path: Path) -> None:
    """The first lines name the task, the bundle, the run, what it came to, and the command."""
    run = summary(task_id="day 1", scores={"saving": 0.5}, reward=0.25)
    lines = play_script(run, events_of(("turn_started", {})), bundle_root="/b/my shop").splitlines()
    assert lines[:3] == [
        "# task day 1 of bundle shop 1.0, as it was played in run 00ff",
        "# it came to: completed, saving 0.5, reward 0.25",
        "# agent-env play '/b/my shop' 'day 1' --script turns.yaml",
    ]
    assert "agent-env play BUNDLE 'day 1'" in play_script(run, [])
    assert turns_read(play_script(run, []), tmp_path) == []


def test_turns_of_others_and_calls_after_a_turn_was_over_are_left_out(tmp_path: Path) -> None:
    """The bundle plays the others; what is called after the answer that ended the turn is not called again."""
    told = [
        ("turn_started", {"kind": "scripted"}),
        ("turn_ended", {"reply": "Hello."}),
        ("turn_started", {"kind": "played"}),
        ("call", {"tool": "submit", "arguments": {"x": 1}}),
        ("answer", {"text": "accepted", "ends_turn": True}),
        ("call", {"tool": "submit", "arguments": {"x": 2}}),
        ("answer", {"text": "the turn has ended", "is_error": True, "ends_turn": True}),
        ("turn_ended", {"reply": ""}),
    ]
    assert turns_read(play_script(summary(), events_of(*told)), tmp_path) == [([("submit", {"x": 1})], None)]


def test_what_cannot_be_played_is_left_out_and_said(tmp_path: Path) -> None:
    """Arguments that were no JSON object, halves of surrogate pairs, a cut: each in a comment of its own."""
    deep: Any = {}
    for _ in range(200):
        deep = {"x": deep}
    told = [
        ("turn_started", {}),
        ("call", {"tool": "a", "arguments": None, "raw": "{"}),
        ("call", {"tool": "b", "arguments": deep}),
        ("call", {"tool": "c", "arguments": {"x": "half \ud800"}}),
        ("cut", {"reason": CutReason.TOKEN_LIMIT}),
    ]
    script = play_script(summary(), events_of(*told))
    assert turns_read(script, tmp_path) == [([("c", {"x": "half \ufffd"})], None)]
    comments = [line for line in script.splitlines() if line.startswith("#")][3:]
    assert comments == [
        "# it was cut (token limit): played again, it ends with a reply instead",
        "# left out: 1 call whose arguments were no JSON object",
        "# left out: 1 call with arguments nested too deeply for a file",
        "# a half of a surrogate pair, which no file can hold, is written as U+FFFD",
    ]


@pytest.mark.parametrize(
    ("bundle", "task", "how"),
    [
        ("retail", "talk-return-some-test-1", ["--gold"]),
        ("retail", "talk-cancel-wrong-reason-test-1", ["--gold"]),
        ("gridsim", "short-test-001", ["--player", "best"]),
    ],
)
def test_a_run_taken_from_the_explorer_plays_again_as_it_did(
    tmp_path: Path, bundle: str, task: str, how: list[str]
) -> None:
    """The same calls with the same arguments and answers, the same scores and the same reward."""
    runs = tmp_path / "runs"
    play = ["play", str(BUNDLES / bundle), task, "--runs", str(runs)]
    first = played([*play, *how])
    answer = TestClient(build_app(runs), base_url="http://localhost").get(f"/run/{first['run_id']}/script")
    assert answer.headers["content-type"].startswith("text/plain")
    script = tmp_path / "turns.yaml"
    script.write_bytes(answer.content)
    assert f"agent-env play {BUNDLES / bundle} {task} --script turns.yaml" in answer.text
    again = played([*play, "--script", str(script)])
    assert calls_in(runs, again["run_id"]) == calls_in(runs, first["run_id"])
    assert calls_in(runs, first["run_id"])
    assert (again["reward"], again["scores"]) == (first["reward"], first["scores"])


def test_a_run_with_refused_calls_plays_again_with_them(tmp_path: Path) -> None:
    """A call of no such tool, and one whose arguments do not fit, are refused again, in the same words."""
    runs, file = tmp_path / "runs", tmp_path / "wrong.yaml"
    file.write_text(
        "- calls:\n    - {tool: find_user, arguments: {}}\n    - {tool: get_order_details, arguments: {order: 1}}\n"
        '    - {tool: get_order_details, arguments: {order_id: "#W0"}}\n  reply: I do not know.\n'
    )
    play = ["play", str(BUNDLES / "retail"), "talk-return-some-test-1", "--runs", str(runs)]
    first = played([*play, "--script", str(file)])
    with RunIndex.open(runs, read_only=True) as index:
        record = index.read(first["run_id"])
        file.write_text(play_script(record.run, index.events(first["run_id"])))
    again = played([*play, "--script", str(file)])
    assert calls_in(runs, again["run_id"]) == calls_in(runs, first["run_id"])
    assert [is_error for *_, is_error in calls_in(runs, again["run_id"])] == [True] * 3


async def test_the_button_leads_to_the_script(tell: Tell, look: Callable[..., Any]) -> None:
    """Without JavaScript it is a link; where a page may not write to the clipboard there is a field to copy from."""
    run = tell()
    run.says("Hello.")
    page = await look(f"/run/{run.run_id}")
    assert page.one("a", data_copy="")["href"] == f"/run/{run.run_id}/script"
    assert "readonly" in page.one("dialog", id="copied").one("textarea").attributes


async def test_a_long_run_is_taken_whole(
    tell: Tell, explorer: httpx.AsyncClient, index: RunIndex, tmp_path: Path
) -> None:
    """All calls of a run of many pages are in its script."""
    run = tell()
    run.say(EventKind.TURN_STARTED, kind="played", prompt="Go.")
    for number in range(1500):
        run.call("look", {"hour": number}, "x" * 5_000)
    index.flush()
    ((calls, _),) = turns_read((await explorer.get(f"/run/{run.run_id}/script")).text, tmp_path)
    assert calls == [("look", {"hour": number}) for number in range(1500)]


def test_a_script_is_copied_in_the_terminal_too(tmp_path: Path) -> None:
    """`agent-env show RUN --script` prints it, and nothing else."""
    runs = tmp_path / "runs"
    first = played(["play", str(BUNDLES / "gridsim"), "short-test-001", "--player", "best", "--runs", str(runs)])
    shown = CliRunner().invoke(root, ["show", first["run_id"], "--runs", str(runs), "--script"], catch_exceptions=False)
    assert shown.exit_code == 0
    assert next(calls for calls, _ in turns_read(shown.output, tmp_path))


def played(words: list[str]) -> dict[str, Any]:
    """Play one episode on the command line, and return what it came to."""
    done = CliRunner().invoke(root, [*words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    (episode,) = json.loads(done.stdout)["episodes"]
    return episode


def calls_in(runs: Path, run_id: str) -> list[tuple[Any, ...]]:
    """The calls of a run and what they came to."""
    with RunIndex.open(runs, read_only=True) as index:
        events = list(index.events(run_id))
    calls = [(event.data["tool"], event.data["arguments"]) for event in events if event.kind == "call"]
    answers = [(event.data["text"], event.data["is_error"]) for event in events if event.kind == "answer"]
    return [(*call, *answer) for call, answer in zip(calls, answers, strict=True)]
