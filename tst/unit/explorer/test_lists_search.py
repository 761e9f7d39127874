"""Searching all runs, and the runs of a step."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from agent_env.runs.explorer.marking import Marker

Tell = Callable[..., Any]
Look = Callable[..., Awaitable[Any]]


def hits(page: Any) -> list[str]:
    """The excerpts, the marked words in brackets."""
    found: list[str] = []
    for excerpt in page.all("p", class_="excerpt"):
        parts = [part if isinstance(part, str) else f"[{part.text}]" for part in excerpt.children]
        found.append("".join(parts))
    return found


async def test_what_was_found_is_marked_and_leads_to_the_event(tell: Tell, look: Look) -> None:
    """The newest run first, with the words marked, and a link to the run at the event they are in."""
    for number in range(3):
        told = tell("a/train/step-0001", f"task-{number}")
        told.says("Nothing here.")
        place = told.says(f"I Refund the order {number}.")
        told.ended(0.5)
    page = await look("/search", q="refund")
    assert hits(page) == [f"I [Refund] the order {number}." for number in (2, 1, 0)]
    link = page.all("li", class_="card")[0].all("a")[0]
    assert link.text == "task-2"
    assert link["href"] == f"/run/{told.run_id}?at={place}#e{place}"
    run = await look(link["href"])
    assert "I Refund the order 2." in run.one("li", id=f"e{place}").text
    assert page.one("input", name="q")["value"] == "refund"
    assert all("data-row" in hit.attributes for hit in page.all("li", class_="card"))


async def test_a_search_can_be_kept_to_a_training_run_or_a_group(tell: Tell, look: Look) -> None:
    """The pages of both offer it beside the field, and the page of the search keeps it."""
    for group in ("a/train/step-0001", "a/train/step-0002", "b/train/step-0001"):
        tell(group, group.replace("/", "-")).says("refund")
    everywhere = await look("/search", q="refund")
    assert len(hits(everywhere)) == 3
    for path, wanted in (("/training?name=a", 2), ("/group?name=a/train/step-0002", 1)):
        form = (await look(path)).one("form", class_="find")
        group = form.one("input", name="group")
        page = await look("/search", q="refund", group=group["value"])
        assert len(hits(page)) == wanted
        assert page.one("input", name="group")["value"] == group["value"]


async def test_what_was_found_is_a_page_at_a_time(tell: Tell, look: Look) -> None:
    """Each of 70 runs is on exactly one page."""
    ids = []
    for _ in range(70):
        told = tell()
        told.says("refund")
        ids.append(told.run_id)
    path: str | None = "/search?q=refund"
    seen: list[str] = []
    while path is not None:
        page = await look(path)
        seen += [urlsplit(hit.all("a")[0]["href"]).path.removeprefix("/run/") for hit in page.all("li", class_="card")]
        path = next((link["href"] for link in page.all("a", rel="next")), None)
    assert seen == ids[::-1]


@pytest.mark.parametrize(
    "text", ['"', "(", "a OR", "NEAR(", "*", "- :", '"unclosed', "x" * 1001, "\x00", "{}", "col:x", "^x"]
)
async def test_no_text_is_an_error(tell: Tell, look: Look, text: str) -> None:
    """Whatever is typed is looked for, or the page says why there is nothing to look for."""
    tell().says("hello")
    page = await look("/search", q=text)
    assert page.all("p", role="status") or page.all("p", role="alert") or page.all("p", class_="empty")


async def test_nothing_found_says_where_it_was_looked_for(tell: Tell, look: Look) -> None:
    """The text and the group are named."""
    tell().says("hello")
    page = await look("/search", q="zebra", group="nowhere")
    assert page.one("p", role="status").text.startswith("No run in nowhere has zebra in a prompt, message,")


async def test_a_search_is_json_too(tell: Tell, look: Look, explorer: httpx.AsyncClient) -> None:
    """With the run, the event and the excerpt."""
    told = tell()
    place = told.says("refund")
    link = (await look("/search", q="refund")).one("a", class_="json")["href"]
    (hit,) = (await explorer.get(link)).json()["hits"]
    assert (hit["run"]["run_id"], hit["seq"], hit["excerpt"]) == (told.run_id, place, "refund")


async def test_a_step_is_filtered_by_text(tell: Tell, look: Look) -> None:
    """Only rollouts that have the words are left; another step's are no part of it."""
    group = "a/train/step-0001"
    ids = {}
    for name, said in {"a": "refund the order", "b": "order", "c": "the refund"}.items():
        told = tell(group, "t")
        told.says(said)
        told.ended(0.5)
        ids[told.run_id] = name
    tell("a/train/step-0002", "t").says("refund")
    tell(f"{group}/below", "t").says("refund")
    page = await look("/group", name=group, text="refund")
    found = [cell.one("a")["href"].removeprefix("/run/") for cell in page.one("tbody").all("li")]
    assert [ids[run_id] for run_id in found] == ["a", "c"]
    assert page.one(class_="matched").text.startswith("2 of 3 runs in 1 task")
    assert page.one("input", name="text")["value"] == "refund"
    phrase = await look("/group", name=group, text='"refund the"')
    assert len(phrase.one("tbody").all("li")) == 1
    assert "No run of this group is like that" in (await look("/group", name=group, text="zebra")).one("main").text


async def test_a_text_that_cannot_be_looked_for_in_a_step_is_told(tell: Tell, look: Look) -> None:
    """Punctuation alone is no text: the step's page says so, and shows the filters to change it."""
    tell("a/train/step-0001").says("hello")
    page = await look("/group", name="a/train/step-0001", text="?!")
    assert "there is no word in" in page.one("p", role="alert").text
    assert page.one("input", name="text")["value"] == "?!"


@pytest.mark.parametrize(
    ("query", "excerpt", "wanted"),
    [
        ("refund", "a Refund, refunds", "a <mark>Refund</mark>, refunds"),
        ("order", "get_order(order_id)", "get_<mark>order</mark>(<mark>order</mark>_id)"),
        ("refund*", "a Refund, refunds", "a <mark>Refund</mark>, <mark>refunds</mark>"),
        ('"no refund" order', "no order: refund", "<mark>no</mark> <mark>order</mark>: <mark>refund</mark>"),
        ("cafe", "Caf\u00e9 <b>cafe</b>", "<mark>Caf\u00e9</mark> &lt;b&gt;<mark>cafe</mark>&lt;/b&gt;"),
        ("W-12", "W 12, W123", "<mark>W</mark> <mark>12</mark>, W123"),
        ("\u9000\u6b3e", "\u7533\u8bf7\u9000\u6b3e\u5417", "\u7533\u8bf7<mark>\u9000\u6b3e</mark>\u5417"),
        ("x", '"x" \u202e \x1b', "&#34;<mark>x</mark>&#34; \u27e8U+202E\u27e9 \u27e8U+001B\u27e9"),
    ],
)
def test_words_are_marked_whatever_their_case_and_accents(query: str, excerpt: str, wanted: str) -> None:
    """Whole words, beginnings where asked for, each word of a phrase; all of it escaped and visible."""
    assert str(Marker(query)(excerpt)) == wanted
