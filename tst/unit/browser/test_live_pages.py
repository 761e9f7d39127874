"""Pages of a training that is under way: they fill while one looks, and stay where one was."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import expect

from agent_env.runs import RunIndex

from .conftest import Played, Telling, Watched

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]


@pytest.fixture
def index(played: Played) -> RunIndex:
    """The explorer's folder, open for writing as a training has it."""
    return RunIndex.open(Path(played.folder))


async def test_an_episode_under_way_appears_and_fills(watched: Watched, index: RunIndex) -> None:
    """On the page of its step, then on its own, call by call, to its score."""
    with index:
        first = Telling(index, "live/train/step-0001", "refund-1")
        first.prompt("Hello.")
        index.flush()
        page = await watched.open("/group?name=live%2Ftrain%2Fstep-0001")
        await expect(page.locator("[data-cell]")).to_have_count(1)
        second = Telling(index, "live/train/step-0001", "refund-1")
        second.prompt("Hello again.")
        await expect(page.locator("[data-cell]")).to_have_count(2)
        page = await watched.open(f"/run/{second.run_id}")
        await expect(page.locator("details.call")).to_have_count(0)
        second.message("I look.")
        second.call("find_order", {"order": 1}, "found")
        await expect(page.locator("details.call")).to_have_count(1)
        await page.locator("details.call summary").first.click()
        second.message("I give it back.")
        second.call("refund", {"order": 1}, "done")
        await expect(page.locator("details.call")).to_have_count(2)
        await expect(page.locator("details.call .inside").first).to_be_visible()
        second.ended(0.75)
        await expect(page.locator("#ending")).to_contain_text("0.750")
        await expect(page.locator("#ending")).to_contain_text("completed")
        first.ended(0.25)


async def test_the_chart_of_a_training_run_grows(watched: Watched, index: RunIndex) -> None:
    """A step that ends is a point more, and a row."""
    with index:
        for step in (1, 2):
            told = Telling(index, f"growing/train/step-{step:04d}", "refund-1")
            told.ended(0.25 * step)
        index.flush()
        page = await watched.open("/training?name=growing")
        rows = page.locator("table.steps tbody tr")
        await expect(rows).to_have_count(2)
        told = Telling(index, "growing/train/step-0003", "refund-1")
        told.ended(0.9)
        await expect(rows).to_have_count(3)
        await expect(page.locator("[data-live=facts]")).to_contain_text("0.900")


async def test_a_page_stays_where_it_was_scrolled_to(watched: Watched, index: RunIndex) -> None:
    """What comes in below moves nothing, and what has the focus keeps it."""
    with index:
        told = Telling(index, "scrolled/train/step-0001", "refund-1")
        told.prompt("Hello.")
        for at in range(60):
            told.message(f"Message {at}.")
            told.call("find_order", {"order": at}, "found")
        index.flush()
        page = await watched.open(f"/run/{told.run_id}")
        summary = page.locator("details.call summary").nth(30)
        await summary.scroll_into_view_if_needed()
        await summary.focus()
        before = await summary.bounding_box()
        assert before is not None
        told.message("One more.")
        told.call("refund", {"order": 1}, "done")
        await expect(page.locator("details.call")).to_have_count(61)
        after = await summary.bounding_box()
        assert after is not None
        assert (
            abs(after["y"] - before["y"]) < 2
        )  # of heights that are no whole pixels, the browser scrolls to the nearest
        assert await summary.evaluate("one => one === document.activeElement")
        told.ended(1.0)
