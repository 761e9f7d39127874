"""The explorer against hostile content, hostile sites and odd requests."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import AsyncGenerator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from click.testing import CliRunner

from agent_env.cli import root
from agent_env.episode.sink import Event, EventKind, RunHeader
from agent_env.outcome import EpisodeResult, Failure, FailureKind, Outcome
from agent_env.runs import RunIndex, SampledTokens
from agent_env.runs.explorer import build_app
from agent_env.runs.visible import one_line, visible

HOSTILE = (
    '<script>alert(1)</script><img src=x onerror="alert(2)">"\'><svg onload=alert(3)> {{ 7*7 }} {% raw %}'
    "\x1b[31mred\x1b[0m \x00 \u202egnp.exe\u2066 \ud800 \u200b\x9b1m javascript:alert(4)"
)


@pytest.fixture
def run_id(tmp_path: Path) -> str:
    """A run in which everything that can be text is hostile."""
    with RunIndex.open(tmp_path) as index:
        sink = index.run("<script>alert(0)</script>/train/step-0001", labels={HOSTILE: HOSTILE})
        sink.opened(
            RunHeader(
                task_id=HOSTILE, bundle_name=HOSTILE, bundle_version=HOSTILE, params={HOSTILE: HOSTILE}, tags=(HOSTILE,)
            )
        )
        everything: dict[EventKind | str, dict[str, Any]] = {
            EventKind.STEP_STARTED: {"kind": HOSTILE},
            EventKind.TURN_STARTED: {
                "agent": HOSTILE,
                "system_prompt": HOSTILE,
                "prompt": HOSTILE,
                "tools": [{"name": HOSTILE, "description": HOSTILE, "parameters": {"properties": {HOSTILE: {}}}}],
            },
            EventKind.MESSAGE: {
                "message": {
                    "role": HOSTILE,
                    "content": [{"type": "text", "text": HOSTILE}, {"type": HOSTILE, "x": HOSTILE}],
                    "tool_calls": [{"name": HOSTILE, "arguments": HOSTILE}],
                },
                "index": 0,
            },
            EventKind.CALL: {
                "call_id": HOSTILE,
                "tool": HOSTILE,
                "arguments": {HOSTILE: HOSTILE},
                "raw": json.dumps({HOSTILE: [HOSTILE]}),
            },
            EventKind.ANSWER: {
                "call_id": HOSTILE,
                "tool": HOSTILE,
                "text": HOSTILE,
                "is_error": True,
                "refusal": HOSTILE,
                "content": [{"type": HOSTILE}],
                "traceback": HOSTILE,
            },
            EventKind.AGENT_SAID: {"agent": HOSTILE, "message": {"content": HOSTILE}, "model": HOSTILE},
            EventKind.AGENT_CALLED: {"agent": HOSTILE, "tool": HOSTILE, "arguments": HOSTILE, "text": HOSTILE},
            EventKind.STATE: {
                "env": HOSTILE,
                "changes": [
                    {"path": f"/{HOSTILE}", "before": HOSTILE, "after": {HOSTILE: HOSTILE * 10}},
                    {"path": HOSTILE, "before": HOSTILE},
                ],
            },
            EventKind.SKIPPED: {"reason": HOSTILE},
            HOSTILE: {HOSTILE: HOSTILE},
            EventKind.CUT: {"reason": HOSTILE},
            EventKind.SCORE: {
                "value": float("nan"),
                "explanation": HOSTILE,
                "metrics": {HOSTILE: 1},
                "judge": {"model": HOSTILE, "prompt": HOSTILE, "answers": [HOSTILE]},
            },
            EventKind.FAILURE: {
                "kind": HOSTILE,
                "message": HOSTILE,
                "traceback": HOSTILE,
                "place": {"path": HOSTILE, "line": HOSTILE},
            },
            EventKind.TURN_ENDED: {"reply": HOSTILE},
        }
        for kind, data in everything.items():
            sink.event(Event(kind, time.time(), HOSTILE, 0, data))  # type: ignore[arg-type]
        sink.sampled(0, SampledTokens(ids=(1,), logprobs=(-1.0,), pieces=(HOSTILE,)))
        failure = Failure(kind=FailureKind.PROMPT, step=HOSTILE, message=HOSTILE, traceback=HOSTILE)
        sink.ended(EpisodeResult(outcome=Outcome.FAILED, run_id=sink.run_id, scores={}, failure=failure))
    return sink.run_id


@pytest.fixture
async def client(tmp_path: Path, run_id: str) -> AsyncGenerator[httpx.AsyncClient]:
    """The explorer over it."""
    assert run_id
    transport = httpx.ASGITransport(app=build_app(tmp_path))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8470") as made:
        yield made


class _Elements(HTMLParser):
    """Every element of a page, and every attribute's name and value."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.scripts: list[dict[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag == "script":
            self.scripts.append({name: value or "" for name, value in attrs})


def _paths(run_id: str) -> list[str]:
    name = "%3Cscript%3Ealert(0)%3C/script%3E"
    task = quote(HOSTILE.replace("\ud800", "\\ud800"))
    return [
        "/",
        f"/training?name={name}",
        f"/group?name={name}/train/step-0001",
        f"/task?training={name}&split=train&task={task}",
        f"/compare?left={run_id}&right={run_id}",
        *(f"/run/{run_id}/{seq}" for seq in range(14)),
        f"/run/{run_id}/4?part=answer",
        f"/run/{run_id}?tokens=1&at=3",
        f"/run/{run_id}",
    ]


async def test_nothing_a_model_wrote_becomes_an_element(client: httpx.AsyncClient, run_id: str) -> None:
    """No page has a script, an image of theirs, an event handler, or an address that is no path of ours."""
    for path in _paths(run_id):
        answer = await client.get(path)
        assert answer.status_code == 200, path
        page = _Elements()
        page.feed(answer.text)
        assert page.tags.isdisjoint({"style", "iframe", "base", "object"}), path
        assert page.scripts, path
        for script in page.scripts:
            assert set(script) - {"data-page", "data-seen"} == {"src", "defer"}, path
            assert script["src"].startswith("/static/"), path
            assert script.get("data-page", "/").startswith("/"), path
        assert [name for name, _ in page.attributes if name.startswith("on") or name == "style"] == []
        targets = [value for name, value in page.attributes if name in {"href", "src", "action"}]
        assert all(target.startswith(("/", "#")) and not target.startswith("//") for target in targets)
        assert ("src", "x") not in page.attributes


async def test_control_characters_are_shown_and_not_sent(client: httpx.AsyncClient, run_id: str) -> None:
    """ANSI codes, NUL, marks of direction and lone surrogates appear as numbers."""
    for path in _paths(run_id):
        text = (await client.get(path)).text
        assert not any(char in text for char in "\x1b\x00\x9b\u202e\u2066\u200b\ud800"), path
    assert "⟨U+001B⟩[31mred⟨U+001B⟩[0m ⟨U+0000⟩ ⟨U+202E⟩gnp.exe⟨U+2066⟩ ⟨U+D800⟩ ⟨U+200B⟩⟨U+009B⟩1m" in text
    assert "{{ 7*7 }}" in text


async def test_hostile_content_is_whole_in_json(client: httpx.AsyncClient, run_id: str) -> None:
    """The JSON page is ASCII, parses, and has what was written, to the last surrogate."""
    answer = await client.get(f"/run/{run_id}.json")
    assert answer.content.isascii()
    events = json.loads(answer.content)["events"]
    assert events[1]["data"]["prompt"] == HOSTILE
    one = await client.get(f"/run/{run_id}/1.json")
    assert one.json()["data"]["prompt"] == HOSTILE


async def test_a_line_of_a_megabyte_is_cut_on_the_page_and_whole_behind_its_link(
    client: httpx.AsyncClient, tmp_path: Path
) -> None:
    """The page stays small; the event's own address has every character."""
    with RunIndex.open(tmp_path) as index:
        sink = index.run("long")
        sink.opened(RunHeader(task_id="t", bundle_name="b", bundle_version="1", params={}, tags=()))
        text = "x" * 1_000_000
        data = {"message": {"role": "assistant", "content": text}}
        sink.event(Event(kind=EventKind.MESSAGE, at_s=time.time(), step="prompt", turn=0, data=data))
    page = await client.get(f"/run/{sink.run_id}")
    assert len(page.content) < 60_000
    assert "992\u202f000 more characters of 1\u202f000\u202f000" in page.text
    assert (await client.get(f"/run/{sink.run_id}/0.json")).json()["data"]["message"]["content"] == text


async def test_an_index_that_breaks_under_the_explorer_is_a_plain_page(
    client: httpx.AsyncClient, tmp_path: Path
) -> None:
    """The page says that the index cannot be read, without a traceback."""
    shutil.rmtree(tmp_path)
    answer = await client.get("/")
    assert answer.status_code == 503
    assert "no run index here" in answer.text
    assert "Traceback" not in answer.text


def test_show_prints_hostile_content_as_text(tmp_path: Path, run_id: str) -> None:
    """A terminal gets no escape sequence that a model wrote."""
    done = CliRunner().invoke(root, ["show", run_id[:12], "--runs", str(tmp_path)], catch_exceptions=False)
    assert done.exit_code == 0
    assert "⟨U+001B⟩[31mred" in done.output
    assert not any(char in done.output for char in "\x1b\x00\x9b\u202e")


def test_visible_text_keeps_what_people_write() -> None:
    """Letters of any script, emoji, tabs and newlines stay; runs of blanks fold in one line."""
    text = "naïve 東京 \U0001f469\u200d\U0001f4bb\tx\ny"
    assert visible(text) == text
    assert one_line("a\n\n b\x1b", 20) == "a b⟨U+001B⟩"
    assert one_line("x" * 50, 10) == "x" * 9 + "…"
