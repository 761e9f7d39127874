"""The page of one episode: what it shows of calls, scores, failures, states and tokens, and how it stays small."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_env.episode.sink import EventKind
from agent_env.outcome import CutReason, Failure, FailureKind
from agent_env.runs import RunIndex, SampledTokens

Tell = Callable[..., Any]
Look = Callable[..., Awaitable[Any]]


def item(page: Any, seq: int) -> Any:
    """An event's item on a page."""
    return page.one("li", id=f"e{seq}")


async def test_a_call_is_one_line_until_it_is_opened(tell: Tell, look: Look) -> None:
    """The line has the tool, its arguments, why it is an error, and the first line of the answer; the rest is folded."""
    run = tell()
    well = run.call("lend", {"book": "emma", "days": 3}, "emma is lent\nuntil Friday", duration_s=0.25)
    badly = run.call("lend", {"book": "persuasion"}, "there is none", is_error=True, refusal="refused")
    page = await look(f"/run/{run.run_id}")
    details = item(page, well).one("details", class_="call")
    assert "open" not in details.attributes
    line = details.all("summary")[0].text
    assert line == 'lend book="emma", days=3 → emma is lent 0.2 s'
    assert "until Friday" in details.text
    assert item(page, badly).all("summary")[0].text == 'lend book="persuasion" refused → there is none'
    assert "is-error" in item(page, badly)["class"]


async def test_steps_that_say_nothing_are_one_line(tell: Tell, look: Look) -> None:
    """They stand before what was said, with what took time; a link to any of them leads there. Under way each has a line."""
    run = tell()
    start = time.time()
    told = [("deploy_env", "deploy_env", 0.0002), ("deploy_agent", "deploy_agent", 2.5), ("greeting", "prompt", 0.25)]
    for step, kind, duration_s in told:
        run.say("step_started", step, at_s=start, kind=kind)
        run.say("step_ended", step, at_s=start, kind=kind, duration_s=duration_s)
    said = run.says("Hello.")
    page = await look(f"/run/{run.run_id}")
    assert [row.one(class_="title").text for row in page.all("li", class_="look-step")] == [name for name, _, _ in told]
    run.ended()
    page = await look(f"/run/{run.run_id}")
    (row,) = page.all("li", class_="look-step")
    assert row["id"] == "e0"
    assert [title.text for title in row.all(class_="title")] == [
        "deploy_env",
        "deploy_agent 2.5 s",
        "greeting prompt 0.2 s",
    ]
    assert [title.attributes.get("id") for title in row.all(class_="title")] == [None, "e2", "e4"]
    assert item(page, said).one("h3").text == "assistant"
    at = await look(f"/run/{run.run_id}", at=2)
    assert "is-at" in at.one("li", class_="look-step")["class"]


async def test_what_happened_at_once_is_said_so(tell: Tell, look: Look) -> None:
    """Not that it was less than something after the start."""
    run = tell()
    said = run.says("Hello.", at_s=1.0)
    assert item(await look(f"/run/{run.run_id}"), said).one(class_="at").text == "+0 ms"


async def test_arguments_that_typing_changed_stand_beside_what_was_written(tell: Tell, look: Look) -> None:
    """Both are shown, marked, with the arguments that differ; where nothing differs there is one."""
    run = tell()
    changed = run.call("ship", {"zip": "01912", "to": {"floor": 3}}, raw='{"zip": 1912, "to": {"floor": "3"}}')
    kept = run.call("ship", {"zip": "01912"}, raw='{ "zip": "01912" }')
    broken = run.call("ship", None, "no JSON", raw="{zip:", is_error=True)
    page = await look(f"/run/{run.run_id}")
    titles = [title.text for title in item(page, changed).all("p", class_="part-title")]
    assert titles == ["arguments, as the tool got them", "as the model wrote them", "answer"]
    rows = [row.text for row in item(page, changed).one("table", class_="retyped").one("tbody").all("tr")]
    assert rows == ['zip 1912 "01912"', 'to.floor "3" 3']
    assert item(page, changed).one("span", class_="chip").text == "retyped"
    assert [title.text for title in item(page, kept).all("p", class_="part-title")] == ["arguments", "answer"]
    assert item(page, kept).all("span", class_="chip") == []
    assert [title.text for title in item(page, broken).all("p", class_="part-title")] == [
        "as the model wrote them",
        "error",
    ]


@pytest.mark.parametrize("answer", ["", "x" * 3_000_000])
async def test_what_broke_a_long_run_is_on_top_of_its_first_page(tell: Tell, look: Look, answer: str) -> None:
    """The failure with its traceback folded, though its event is hundreds later, and a link to where it happened."""
    run = tell()
    for number in range(700):
        run.says(f"line {number}")
    run.call("read", {}, answer)
    seq = run.say(
        EventKind.FAILURE, "sold", kind="verifier_raised", message="KeyError: 'x'", traceback="File 'sold.py'"
    )
    run.ended(failure=Failure(kind=FailureKind.VERIFIER_RAISED, step="sold", message="KeyError: 'x'", traceback=""))
    page = await look(f"/run/{run.run_id}")
    banner = page.one("div", class_="banner")
    assert "Failed in sold (verifier raised): KeyError: 'x'" in banner.text
    assert "File 'sold.py'" in banner.one("details").text
    assert "open" not in banner.one("details").attributes
    assert banner.all("a")[-1]["href"] == f"/run/{run.run_id}?at={seq}#e{seq}"


async def test_scores_are_on_top_with_their_explanations_and_lead_to_their_events(tell: Tell, look: Look) -> None:
    """A score's line says why, and its link shows the event, with what a judge was asked folded."""
    run = tell()
    judge = {"model": "m", "prompt": "Was it kind?", "answers": ["yes"]}
    seq = run.say(EventKind.SCORE, "kind", value=1.0, explanation="it was", metrics={}, judge=judge)
    run.say(EventKind.SCORE, "sold", value=0.25, explanation="3 of 12", metrics={"sold": 3})
    run.ended(0.5, scores={"kind": 1.0, "sold": 0.25})
    page = await look(f"/run/{run.run_id}")
    lines = [line.text for line in page.one("ul", class_="scores").all("li")]
    assert lines == ["kind 1.000 it was ↓", "sold 0.250 3 of 12 ↓"]
    href = page.one("ul", class_="scores").all("a")[0]["href"]
    assert href == f"/run/{run.run_id}?at={seq}#e{seq}"
    asked = item(await look(href.partition("#")[0]), seq).all("details")[0]
    assert asked.text.startswith("what the judge m was asked")
    assert "open" not in asked.attributes


async def test_what_changed_in_a_universe_is_a_table_in_words(tell: Tell, look: Look) -> None:
    """Each path is added, removed or changed; a long value is folded; what the record did not keep is counted."""
    run = tell()
    changes: list[dict[str, Any]] = [
        {"path": "/orders/#W1/status", "before": "open", "after": "closed"},
        {"path": "/orders/#W2", "after": {"note": "n" * 500}},
        {"path": "/users/a~1b", "before": 3},
    ]
    seq = run.say(EventKind.STATE, env="store", changes=changes, left_out=7)
    page = await look(f"/run/{run.run_id}")
    table = item(page, seq).one("table", class_="changes")
    rows = table.one("tbody").all("tr")
    assert [(row.one("th").raw_text, row.all("td")[0].text) for row in rows] == [
        ("/orders/#W1/status", "~ changed"),
        ("/orders/#W2", "+ added"),
        ("/users/a/b", "\N{MINUS SIGN} removed"),
    ]
    assert [cell.text for cell in rows[0].all("td")[1:]] == ['"open"', '"closed"']
    assert table.all("details")[0].one("pre").text.startswith('{ "note": "nnn')
    assert "10 changes" in item(page, seq).text
    assert "7 more changes, which the record did not keep" in item(page, seq).text


async def test_many_changes_are_shown_in_part_and_all_behind_a_link(tell: Tell, look: Look) -> None:
    """A table of a hundred, and the rest as text."""
    run = tell()
    seq = run.say(EventKind.STATE, env="store", changes=[{"path": f"/a/{at}", "after": at} for at in range(150)])
    page = item(await look(f"/run/{run.run_id}"), seq)
    assert len(page.one("tbody").all("tr")) == 100
    link = page.one("p", class_="more").one("a")
    assert link.text == "50 more changes, as text →"
    text = (await look(link["href"])).one("pre").raw_text
    assert text.splitlines()[149] == "+ /a/149: 149"


async def test_a_link_to_an_event_of_a_later_page_shows_it(tell: Tell, look: Look) -> None:
    """The page around it starts with what the agent said before, and has the event marked and open."""
    run = tell()
    for number in range(400):
        run.says(f"line {number}")
        run.call("look", {"hour": number})
    first = await look(f"/run/{run.run_id}")
    assert item(first, 1).one("a", class_="at")["href"] == f"/run/{run.run_id}?at=1#e1"
    page = await look(f"/run/{run.run_id}", at=901)
    assert "is-at" in item(page, 901)["class"]
    assert "open" in item(page, 901).one("details").attributes
    shown = page.one("ol", id="conversation").all("li")
    assert "look-assistant" in shown[0]["class"]
    assert 880 < int(shown[0]["id"][1:]) < 901
    assert (await look(f"/run/{run.run_id}", at=10**9)).all("li", class_="item")


async def test_every_call_of_a_long_run_is_on_the_page_of_its_answer(tell: Tell, look: Look) -> None:
    """No page ends between a call and its answer, and each event is on exactly one page."""
    run = tell()
    for number in range(150):
        run.says(f"line {number}")
        for _ in range(number % 4):
            run.call("look", {"hour": number}, f"price {number}")
    run.ended(1.0)
    path, seen, unanswered = f"/run/{run.run_id}", [], 0
    while path:
        page = await look(path)
        seen += [int(shown["id"][1:]) for shown in page.one("ol", id="conversation").all("li")]
        unanswered += page.one("ol", id="conversation").text.count("no answer")
        more = page.all("p", id="more")
        path = more[0].one("a")["href"] if more else ""
    assert unanswered == 0
    assert len(seen) == len(set(seen))
    assert seen == sorted(seen)
    assert len(seen) == 150 + sum(number % 4 for number in range(150))


async def test_a_long_text_is_shown_in_pieces_that_make_it_whole(
    tell: Tell, look: Look, explorer: httpx.AsyncClient
) -> None:
    """The page has its start and says how long it is; the pieces behind the link are the rest."""
    run = tell()
    text = "".join(f"{number:07d}" for number in range(35_000))
    seq = run.call("read", {}, text) + 1
    index_page = await look(f"/run/{run.run_id}")
    rest = index_page.one("a", class_="rest")
    assert rest.text == "237 000 more characters of 245 000 →"
    found, path = text[:8_000], rest["href"]
    while path:
        page = await look(path)
        found += page.one("pre").raw_text
        path = next((link["href"] for link in page.all("a", data_rest="")), "")
    assert found == text
    assert len((await explorer.get(f"/run/{run.run_id}")).content) < 60_000
    assert (await explorer.get(f"/run/{run.run_id}/{seq}.json")).json()["data"]["text"] == text
    missing = await explorer.get(f"/run/{run.run_id}/{seq}", params={"part": "nothing"})
    assert missing.status_code == 404


async def test_other_rollouts_of_the_task_stand_beside_it(tell: Tell, look: Look) -> None:
    """Each with its reward or how it ended, the one that is shown marked; and the ways up to the step and the task."""
    group = "lr 1e-5/train/step-0003"
    runs = [tell(group, "day 1") for _ in range(4)]
    for run, reward in zip(runs, (0.0, 1.0, None), strict=False):
        run.ended(reward, cut=CutReason.TOKEN_LIMIT if reward == 0 else None)
    other = tell(group, "day 2")
    page = await look(f"/run/{runs[1].run_id}")
    cells = page.one("section", id="rollouts").all("a", class_="cell")
    assert [cell.text for cell in cells] == ["0 0.000 cut", "1 1.000", "2 \N{EN DASH}", "3 running"]
    assert [cell["href"] for cell in cells if "aria-current" in cell.attributes] == [f"/run/{runs[1].run_id}"]
    assert "heat-0" in cells[0]["class"]
    assert "heat-10" in cells[1]["class"]
    hrefs = {link["href"] for link in page.all("a")}
    assert "/group?name=lr+1e-5%2Ftrain%2Fstep-0003" in hrefs
    assert "/task?training=lr+1e-5&split=train&task=day+1" in hrefs
    assert page.one("a", rel="prev")["href"] == f"/run/{runs[0].run_id}"
    assert page.one("a", rel="next")["href"] == f"/run/{runs[2].run_id}"
    options = page.one("form", class_="against").all("option")
    assert [option.text for option in options if "selected" in option.attributes] == ["rollout 0: 0.000"]
    assert (await look(f"/run/{other.run_id}")).all("section", id="rollouts") == []


async def test_messages_are_shaded_by_how_likely_their_tokens_were(tell: Tell, look: Look) -> None:
    """Behind a switch; each token has its probability, a class for its shade, and the page a legend in words."""
    run = tell(labels={"policy_step": 3, "model": "tiny", "renderer": "qwen3"})
    said = run.says("Sell at seven.", index=0, prompt_tokens=90, sampled_tokens=4)
    told = run.says("Untold.", index=1)
    pieces = ("Sell", " at", " <b>seven", "\n")
    run.sink.sampled(0, SampledTokens(ids=(7, 8, 9, 10), logprobs=(-0.01, -1.0, -4.0, -0.2), pieces=pieces))
    plain = await look(f"/run/{run.run_id}")
    assert plain.all("span", class_="tok") == []
    assert "4 tokens from 90" in item(plain, said).text
    facts = plain.one("dl", class_="facts").text
    assert all(text in facts for text in ("policy step 3", "model tiny", "renderer qwen3"))
    switch = plain.one("a", aria_pressed="false")
    page = await look(switch["href"])
    tokens = item(page, said).all("span", class_="tok")
    assert [token.raw_text for token in tokens] == list(pieces)
    assert [token["class"] for token in tokens] == ["tok tok-0", "tok tok-2", "tok tok-4", "tok tok-1"]
    assert tokens[1]["title"].startswith("probability 36.8%, log -1.000")
    assert item(page, told).all("span", class_="tok") == []
    assert item(page, told).one("pre").text == "Untold."
    assert "under 5%" in page.one("p", class_="legend-tokens").text


async def test_tokens_without_probabilities_are_shown_without_shades(tell: Tell, look: Look) -> None:
    """The trainer gave none: that is said, and nothing is made up."""
    run = tell()
    said = run.says("Sell.", index=0)
    run.sink.sampled(0, SampledTokens(ids=(7,), logprobs=None, pieces=("Sell.",)))
    shown = item(await look(f"/run/{run.run_id}", tokens=1), said)
    assert shown.one("span", class_="tok")["class"] == "tok"
    assert "the trainer gave no probabilities" in shown.text


async def test_where_the_time_went_is_a_bar_and_words(tell: Tell, look: Look, index: RunIndex, tmp_path: Path) -> None:
    """The parts of the bar are named with their seconds and shares; a record that does not say has no bar."""
    run, silent = tell(), tell()
    index.flush()
    with sqlite3.connect(tmp_path / "index.sqlite3") as conn:
        conn.execute("UPDATE runs SET times = '{}'")
        times = '{"model": 6.0, "tools": 1.5, "verify": 0.5}'
        conn.execute("UPDATE runs SET times = ? WHERE run_id = ?", (times, run.run_id))
    conn.close()
    fact = (await look(f"/run/{run.run_id}")).one("div", class_="wide-fact")
    assert fact.text == "where the time went model 6.0 s (75%) tools 1.5 s (19%) verify 0.5 s (6%)"
    assert [part["width"] for part in fact.one("svg", class_="times").all("rect")] == ["75.00", "18.75", "6.25"]
    assert (await look(f"/run/{silent.run_id}")).all("svg", class_="times") == []


async def test_what_a_run_was_opened_with_is_on_its_page(tell: Tell, look: Look) -> None:
    """Bundle and version, tags, labels, and the params folded."""
    run = tell(params={"day": "2024-01-01"}, tags=("short", "easy"), labels={"player": "gold", "seed": 7})
    page = await look(f"/run/{run.run_id}")
    facts = page.one("dl", class_="facts").text
    assert all(text in facts for text in ("bundle shop 1.0", "tags short, easy", "player gold", "seed 7", run.run_id))
    assert page.one("details", class_="params").one("pre").text == '{"day": "2024-01-01"}'
    assert "cannot be read" not in page.text


async def test_a_damaged_part_of_a_run_is_told_and_the_rest_is_shown(
    tell: Tell, look: Look, index: RunIndex, tmp_path: Path
) -> None:
    """What cannot be read is one item that says why; the events after it and the other runs are there."""
    run, other = tell(params={"day": 1}), tell()
    for number in range(200):
        run.says(f"line {number}.")
    other.says("I am well.")
    index.flush()
    with sqlite3.connect(tmp_path / "index.sqlite3") as conn:
        (first, count) = conn.execute(
            "SELECT first_seq, count FROM chunks WHERE first_seq > 0 ORDER BY first_seq LIMIT 1"
        ).fetchone()
        conn.execute("UPDATE chunks SET body = x'00' WHERE first_seq = ?", (first,))
        conn.execute("UPDATE heads SET body = x'00'")
    conn.close()
    page = await look(f"/run/{run.run_id}")
    assert f"events {first} to {first + count - 1} cannot be read" in item(page, first).text
    assert "params and tags cannot be read" in page.one("div", id="ending").text
    rest = await look(f"/run/{run.run_id}", **{"from": first + count})
    assert f"line {first + count}." in rest.text
    assert "I am well." in (await look(f"/run/{other.run_id}")).text


async def test_a_run_that_died_before_its_first_event_has_a_page(tell: Tell, look: Look, index: RunIndex) -> None:
    """It says how it stands, and that nothing happened."""
    run, under_way = tell(), tell()
    run.ended()
    assert "It ended before its first event." in (await look(f"/run/{run.run_id}")).text
    assert "Nothing has happened yet." in (await look(f"/run/{under_way.run_id}")).text
    under_way.say(EventKind.CALL, call_id="1", tool="look", arguments={})
    page = await look(f"/run/{under_way.run_id}")
    assert "no answer yet" in page.text
    assert "data-growing" in page.one("ol", id="conversation").attributes
    index.close()


async def test_an_event_has_a_page_and_json_of_its_own(tell: Tell, look: Look, explorer: httpx.AsyncClient) -> None:
    """As it is in the conversation, and as it is in the record; from one to the next."""
    run = tell()
    run.call("lend", {"book": "emma"}, "emma is lent")
    page = await look(f"/run/{run.run_id}/1")
    assert "emma is lent" in page.text
    assert page.one("a", rel="prev")["href"] == f"/run/{run.run_id}/0"
    assert page.all("a", rel="next") == []
    assert (await explorer.get(f"/run/{run.run_id}/1.json")).json()["data"]["text"] == "emma is lent"
    assert (await explorer.get(f"/run/{run.run_id}/2")).status_code == 404


@pytest.mark.parametrize("query", ["from=-1", "from=x", "at=x", "at=99999999999999999999"])
async def test_places_that_are_none_are_refused(
    tell: Tell, explorer: httpx.AsyncClient, index: RunIndex, query: str
) -> None:
    """400, and never a traceback."""
    run = tell()
    index.flush()
    assert (await explorer.get(f"/run/{run.run_id}?{query}")).status_code == 400
