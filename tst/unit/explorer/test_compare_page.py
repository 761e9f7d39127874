"""Two runs side by side: which of their moves are the same, changed, or on one side only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from agent_env.episode.sink import EventKind
from agent_env.outcome import CutReason
from agent_env.runs import RunIndex

Tell = Callable[..., Any]
Look = Callable[..., Awaitable[Any]]


def rows(page: Any) -> list[tuple[str, str, str]]:
    """Of each row: how the two compare, in the page's words, and the line of each side."""
    found: list[tuple[str, str, str]] = []
    for row in page.one("ol", class_="rows").all("li", class_="row"):
        sides = row.all("div", class_="side")
        lines = [_line(side) for side in sides]
        likeness = row.one("p", class_="likeness").text.partition(" ")[2]
        found.append((likeness, lines[0], lines[-1]))
    return found


def _line(side: Any) -> str:
    summaries = side.all("summary")
    return summaries[0].text if summaries else (side.all("pre") or side.all("span", class_="quiet"))[0].text


async def test_calls_are_beside_the_calls_that_they_are_like(tell: Tell, look: Look) -> None:
    """The same, the same with another answer, changed with what differs, only left, only right: each in words."""
    left, right = tell("a/train/step-0001"), tell("a/train/step-0001")
    left.call("find", {"name": "Ann"}, "ann")
    right.call("find", {"name": "Ann"}, "ann")
    left.call("look", {"id": 1}, "open")
    right.call("look", {"id": 1}, "closed")
    left.call("cancel", {"id": 1, "why": {"code": 3}})
    right.call("cancel", {"id": 2, "why": {"code": 3, "text": "late"}})
    left.call("refund", {})
    right.call("transfer", {})
    left.says("Done.")
    right.says("Done.")
    page = await look("/compare", left=left.run_id, right=right.run_id)
    assert rows(page) == [
        ("same", 'find name="Ann" → ann', 'find name="Ann" → ann'),
        ("same call, another answer", "look id=1 → open", "look id=1 → closed"),
        ("changed", 'cancel id=1, why={"code": 3} → done', 'cancel id=2, why={"code": 3, "text": "late"} → done'),
        ("only left", "refund → done", "no such call"),
        ("only right", "no such call", "transfer → done"),
        ("same", "Done.", "Done."),
    ]
    differing = page.one("p", class_="differences").text
    assert differing == 'differ in id : 1 → 2 , why.text : nothing → "late"'
    words = page.one("div", class_="tools").text
    assert "3 same 1 changed 1 only left 1 only right" in words
    assert page.one("a", data_key="n")["href"] == "#d2"
    assert [at.text for at in page.one("li", id="d1").all("a", class_="at")] == ["right event 0", "left event 0"]
    assert [at.text for at in page.one("li", id="d2").all("a", class_="at")] == ["event 2", "event 2"]
    assert page.one("li", id="d2").all("a", class_="at")[1]["href"] == f"/run/{right.run_id}?at=2#e2"


async def test_what_both_came_to_is_beside_each_other(tell: Tell, look: Look) -> None:
    """Rewards, scores, outcomes and counts, those that differ marked."""
    left, right = tell("a/train/step-0001"), tell("a/train/step-0002")
    left.ended(1.0, scores={"db": 1.0})
    right.ended(0.0, scores={"db": 0.0, "told": 0.5}, cut=CutReason.TOKEN_LIMIT)
    page = await look("/compare", left=left.run_id, right=right.run_id)
    table = page.one("table", class_="facts-pair")
    facts = {row.one("th").text: [cell.text for cell in row.all("td")] for row in table.one("tbody").all("tr")}
    assert facts["reward"] == ["1.000", "0.000"]
    assert facts["db"] == ["1.000", "0.000"]
    assert facts["told"] == ["\N{EN DASH}", "0.500"]
    assert facts["outcome"] == ["completed", "completed cut: token limit"]
    differing = [row.one("th").text for row in table.all("tr", class_="differs")]
    assert differing[:4] == ["reward", "db", "told", "outcome"]
    assert "messages" not in differing
    assert "Neither has made a call" in page.text


async def test_the_same_moves_have_no_first_difference(tell: Tell, look: Look) -> None:
    """The page says that both did the same, and links nowhere."""
    left, right = tell(), tell()
    for run in (left, right):
        run.call("find", {"a": 1, "b": 2} if run is left else {"b": 2, "a": 1})
    page = await look("/compare", left=left.run_id, right=right.run_id)
    assert [row[0] for row in rows(page)] == ["same"]
    assert page.all("a", data_key="n") == []
    assert "both did the same" in page.text


async def test_runs_of_two_tasks_are_compared_and_it_is_said(tell: Tell, look: Look) -> None:
    """Comparing them is odd, and no error."""
    left, right = tell(task="day 1"), tell(task="day 2")
    page = await look("/compare", left=left.run_id, right=right.run_id)
    assert "Not the same task" in page.one("p", class_="banner").text


async def test_arguments_that_could_not_be_read_are_compared_as_they_were_written(tell: Tell, look: Look) -> None:
    """Two that are no JSON are the same where their texts are."""
    left, right = tell(), tell()
    for run, raw in ((left, "{a"), (right, "{a"), (left, "{b"), (right, "{c")):
        run.call("find", None, "no JSON", raw=raw, is_error=True)
    left.call("find", None, "no JSON", raw="{b", is_error=True)
    right.call("find", {"name": "Ann"}, "ann")
    page = await look("/compare", left=left.run_id, right=right.run_id)
    assert [row[0] for row in rows(page)] == ["same", "changed", "changed"]


async def test_long_runs_are_compared_a_page_at_a_time(tell: Tell, look: Look) -> None:
    """Each move of each run is on exactly one page, also where one is longer by far."""
    left, right = tell(), tell()
    for number in range(350):
        left.call("look", {"hour": number})
    for number in range(700):
        right.call("look", {"hour": number})
    path, seen, pages = f"/compare?left={left.run_id}&right={right.run_id}", [], 0
    while path:
        page = await look(path)
        pages += 1
        seen += [row[0] for row in rows(page)]
        last = page.all("p", class_="more")
        path = next((link["href"] for more in last for link in more.all("a") if "left_from" in link["href"]), "")
    assert seen == ["same"] * 350 + ["only right"] * 350
    assert pages == 5


async def test_a_call_under_way_waits_for_its_answer(tell: Tell, look: Look) -> None:
    """A run that goes on while it is compared: what has no answer yet is there."""
    left, right = tell(), tell()
    left.call("find", {})
    right.say(EventKind.CALL, call_id="1", tool="find", arguments={})
    page = await look("/compare", left=left.run_id, right=right.run_id)
    assert [row[0] for row in rows(page)] == ["same call, another answer"]


@pytest.mark.parametrize(
    ("query", "status"),
    [("", 400), ("left=LEFT", 400), ("left=LEFT&right=none", 404), ("left=LEFT&right=LEFT&left_from=x", 400)],
)
async def test_what_cannot_be_compared_is_a_plain_page(
    tell: Tell, explorer: httpx.AsyncClient, index: RunIndex, query: str, status: int
) -> None:
    """Two runs have to be named, and to be there."""
    run = tell()
    index.flush()
    answer = await explorer.get(f"/compare?{query.replace('LEFT', run.run_id)}")
    assert answer.status_code == status
    assert "Traceback" not in answer.text


async def test_the_comparison_is_json_too(tell: Tell, explorer: httpx.AsyncClient, index: RunIndex) -> None:
    """Both runs, and the rows."""
    left, right = tell(), tell()
    left.call("find", {"name": "Ann"}, "ann")
    index.flush()
    found = (await explorer.get("/compare.json", params={"left": left.run_id, "right": right.run_id})).json()
    assert found["left"]["run"]["run_id"] == left.run_id
    assert found["rows"][0]["likeness"] == "only left"
    assert found["rows"][0]["left"]["arguments"] == {"name": "Ann"}
