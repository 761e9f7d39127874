"""Names of training runs, tasks and tools that try to break the pages that list them."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from agent_env.outcome import Failure, FailureKind
from agent_env.runs import RunIndex
from agent_env.runs.visible import visible

Tell = Callable[..., Any]
Look = Callable[..., Awaitable[Any]]
NAMES = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(2)'>",
    "a/b/c",
    "100%25 & #1 ? = + ;",
    "{{ 7*7 }} {% raw %} ${x}",
    "\u65e5\u672c\u8a9e \U0001f600 e\u0301 \u05e9\u05dc\u05d5\u05dd",
    "n" * 470,
    "javascript:alert(3)",
    "..",
    "O'Brien \\ `x`",
]
UNPRINTABLE = "\x1b[31mred \u202egnp.exe \u200b\x00 \u2066x\x9b\ud800\n\ttwo lines"


def _made(page: Any) -> None:
    """Nothing of theirs became an element, an attribute that runs, or an address that is no path of ours."""
    for element in page.all():
        assert element.tag not in {"style", "iframe", "object", "base"}
        assert element.tag != "script" or element["src"].startswith("/static/")
        assert element.tag != "img" or element["src"] == "/static/icon.svg"
        for name, value in element.attributes.items():
            assert not name.startswith("on"), name
            assert name != "style"
            if name in {"href", "src", "action"}:
                assert value.startswith(("/", "#")), value
                assert not value.startswith("//"), value


@pytest.mark.parametrize("name", NAMES)
async def test_a_training_run_of_any_name_is_found_by_its_links(tell: Tell, look: Look, name: str) -> None:
    """From home to its page, laid over another and under it, to its step and task, and back, all by what is on the pages."""
    for training in (name, "other"):
        for step in (1, 2):
            for reward in (0.1, 0.9):
                told = tell(f"{training}/train/step-{step:04}", name)
                told.call(name, {})
                told.ended(reward)
    home = await look("/")
    _made(home)
    (link,) = [row.all("a")[0] for row in home.one("tbody").all("tr") if row.all("a")[0].text != "other"]
    assert link.text == " ".join(visible(name).split())
    training = await look(link["href"])
    _made(training)
    over = await look("/training", name="other", **{"with": training.one("input", name="name")["value"]})
    _made(over)
    assert [option["value"] for option in over.all("option") if "selected" in option.attributes] == [name]
    step = await look(training.one("table", class_="steps").all("a")[0]["href"])
    _made(step)
    assert step.one("input", type="hidden", name="name")["value"] == f"{name}/train/step-0002"
    task = await look(step.one("tbody").one("th").one("a")["href"])
    _made(task)
    assert [row.one("th").text for row in task.one("tbody").all("tr")] == ["2", "1"]
    back = await look(task.one("nav", aria_label="Where you are").all("a")[1]["href"])
    assert back.one("h1").text == training.one("h1").text
    search = await look("/search", q="zebra", group=name)
    _made(search)
    assert search.one("input", name="group")["value"] == name


@pytest.mark.parametrize("name", [*NAMES, UNPRINTABLE, "half \ud83d", "\udcff"])
async def test_a_tool_of_any_name_can_be_filtered_by(tell: Tell, look: Look, name: str) -> None:
    """What the list of tools offers leaves the runs that called it."""
    told = tell("g", "t")
    told.call(name, {})
    told.ended(0.5)
    tell("g", "t").ended(0.5)
    page = await look("/group", name="g")
    _made(page)
    offered = page.one("datalist").one("option")["value"]
    left = await look("/group", name="g", tool=offered)
    assert [cell.one("a")["href"] for cell in left.one("tbody").all("li")] == [f"/run/{told.run_id}"]


async def test_a_task_of_unprintable_name_is_shown_by_numbers_and_found(tell: Tell, look: Look) -> None:
    """Control characters and marks of direction reach no page; the links to the task work all the same."""
    for step in (1, 2):
        for reward in (0.0, 1.0):
            tell(f"a/train/step-{step:04}", UNPRINTABLE).ended(reward)
    step = await look("/group", name="a/train/step-0002")
    link = step.one("tbody").one("th").one("a")
    assert link.text.startswith("\u27e8U+001B\u27e9[31mred \u27e8U+202E\u27e9gnp.exe")
    task = await look(link["href"])
    assert len(task.one("tbody").all("tr")) == 2
    for page in (step, task):
        _made(page)
        assert not any(sign in page.raw_text for sign in "\x1b\u202e\u200b\x00\u2066\x9b")
        for element in page.all():
            assert not any(sign in value for value in element.attributes.values() for sign in "\x1b\u202e\x00\u2066")


async def test_kinds_and_messages_of_failures_are_text(tell: Tell, look: Look, index: RunIndex) -> None:
    """A record of another version may say anything there."""
    told = tell("a/train/step-0001", "t")
    bad: Any = "<b>x</b>\u202e" + "y" * 300
    told.ended(failure=Failure(kind=bad, step="s", message="<script>alert(1)</script>" * 40))
    told = tell("a/train/step-0001", "t")
    told.ended(0.5, cut=bad, scores={"<i>one</i>": 0.5, "two": 0.5, "half \ud83d": 0.5})
    for path in ("/", "/training?name=a", "/group?name=a/train/step-0001", "/task?training=a&split=train&task=t"):
        page = await look(path)
        _made(page)
        assert page.all("b", class_="x") == []
        assert page.all("i") == []
    failed = await look("/group", name="a/train/step-0001", failure=bad)
    assert len(failed.one("tbody").all("li")) == 1
    cut = await look("/group", name="a/train/step-0001", cut=bad)
    assert len(cut.one("tbody").all("li")) == 1
    assert index.folder


@pytest.mark.parametrize(
    "value", ["<script>alert(1)</script>", '" onfocus=alert(1) autofocus="', "\x00\u202e", "%00", "'"]
)
async def test_what_an_address_says_comes_back_as_text(
    tell: Tell, look: Look, explorer: httpx.AsyncClient, value: str
) -> None:
    """Every part of a query, known or not, is escaped where it is shown again."""
    tell("g", "t").ended(0.5)
    for name in ("text", "tool", "cut", "failure", "task", "with", "nonsense"):
        _made(await look("/group", name="g", **{name: value}))
    for path in ("/", "/search"):
        for name in ("named", "q", "group"):
            _made(await look(path, **{name: value}))
    for path in ("/training", "/group", "/task"):
        answer = await explorer.get(path, params={"name": value, "training": value, "split": value, "task": value})
        assert answer.status_code == 404
        assert "<script>alert" not in answer.text


async def test_links_to_compare_and_to_runs_name_runs_alone(tell: Tell, look: Look) -> None:
    """The ids in them are those of the runs, whatever the task is called."""
    worst, best = tell("g", "</td><a href=x>"), tell("g", "</td><a href=x>")
    worst.ended(0.0)
    best.ended(1.0)
    page = await look("/group", name="g")
    (link,) = [link for link in page.all("a") if link["href"].startswith("/compare")]
    assert parse_qs(urlsplit(link["href"]).query) == {"left": [best.run_id], "right": [worst.run_id]}


async def test_failures_of_every_kind_have_words(tell: Tell, look: Look) -> None:
    """No kind of failure is shown with the underscores of its code."""
    for kind in FailureKind:
        tell("g", kind).ended(failure=Failure(kind=kind, step="s", message="m"))
    marks = {mark.text for mark in (await look("/group", name="g")).one("tbody").all("span", class_="mark")}
    assert marks == {kind.replace("_", " ") for kind in FailureKind}


async def test_a_damaged_record_is_said_to_be_one(
    tell: Tell, look: Look, explorer: httpx.AsyncClient, index: RunIndex, tmp_path: Path
) -> None:
    """Counts that say nothing are left out, an outcome that is none is said: neither is a bug of the explorer's."""
    told = tell("g", "t")
    told.call("pay", {})
    told.ended(0.5)
    tell("g", "t").ended(0.5, scores={"one": 0.5, "two": 0.5})
    await look("/group", name="g")
    with closing(sqlite3.connect(tmp_path / "index.sqlite3", isolation_level=None)) as conn:
        conn.execute("UPDATE runs SET tools = 'null', scores = 'null' WHERE run_id = ?", (told.run_id,))
        page = await look("/group", name="g")
        assert page.one("datalist").all("option") == []
        conn.execute("UPDATE runs SET state = 'complefed' WHERE run_id = ?", (told.run_id,))
        answer = await explorer.get("/group.json", params={"name": "g"})
    assert answer.status_code == 503
    assert f"run {told.run_id}: its record is damaged" in answer.json()["detail"]
