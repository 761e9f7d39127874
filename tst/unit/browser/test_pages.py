"""Every page in a real browser: from home to a call, keys, hostile content, long runs, accessibility, other hosts."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from axe_playwright_python.async_playwright import Axe  # pyright: ignore[reportMissingTypeStubs] -- it has none
from playwright.async_api import Page, expect

from agent_env.runs.explorer import make_report

from .conftest import HOSTILE, STEPS, Played, Watched

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]

PAGES = {
    "home": "/",
    "training": "/training?name=shop",
    "two trainings": "/training?name=shop&with=shop-lr2",
    "step": "/group?name=shop%2Ftrain%2Fstep-0004",
    "step, filtered": "/group?name=shop%2Ftrain%2Fstep-0004&outcome=completed&tool=refund&sort=mean",
    "task": "/task?training=shop&split=train&task=refund-1",
    "search": "/search?q=money+back",
    "nothing found": "/search?q=zeppelin",
    "episode": "/run/{dip}",
    "episode with tokens": "/run/{dip}?tokens=1",
    "failed episode": "/run/{failed}",
    "two episodes": "/compare?left={dip}&right={dip, another}",
    "hostile episode": "/run/{hostile}",
}


def address(played: Played, name: str) -> str:
    """Where a page is."""
    path = PAGES[name]
    for key, run_id in played.ids.items():
        path = path.replace(f"{{{key}}}", run_id)
    return path


async def sideways(page: Page) -> int:
    """By how many pixels the page is wider than its window."""
    return int(await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


async def test_from_the_chart_to_the_call_that_lost_it_in_three_clicks(watched: Watched) -> None:
    """Training, the step that dipped, the rollout; and there the call is, folded, in a line."""
    page = await watched.open("/training?name=shop")
    drops = page.locator(".drops a").first
    await expect(drops).to_contain_text("step 4")
    await drops.click()
    await expect(page.locator("h1")).to_contain_text("step 4")
    await page.locator("[data-cell]").first.click()
    call = page.locator("details.call").first
    await expect(call).to_contain_text("find_order")
    await expect(call.locator(".inside")).to_be_hidden()
    await call.locator("summary").click()
    await expect(call.locator(".inside")).to_be_visible()
    await expect(call).to_contain_text("as the model wrote them")


async def test_every_point_of_a_chart_can_be_clicked(watched: Watched) -> None:
    """By a hand: the mouse comes near in steps, waits for what the page shows under it, presses, and lets go."""
    page = await watched.open("/training?name=shop")
    drawn = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    points = page.locator(".wide a:has(> circle.target)")
    assert await points.count() == STEPS + 1
    for place in range(STEPS + 1):
        point = points.nth(place)
        wanted = await point.evaluate("(link) => new URL(link.href.baseVal, document.baseURI).href")
        box = await point.locator("circle").bounding_box()
        assert box is not None
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        for left in range(5, -1, -1):
            await page.mouse.move(x - 9 * left + 1, y - 7 * left + 1)
            await page.evaluate(drawn)
        await page.mouse.down()
        await page.evaluate(drawn)
        await page.mouse.up()
        await page.wait_for_url(wanted)
        await page.go_back()


async def test_home_leads_to_a_training_run(watched: Watched) -> None:
    """By its name."""
    page = await watched.open("/")
    await page.get_by_role("link", name="shop", exact=True).click()
    await expect(page.locator("h1")).to_have_text("shop")


async def test_keys_walk_through_a_step_and_open_a_rollout(watched: Watched) -> None:
    """Keys j and k between tasks, / to search, ? for the list; not while typing."""
    page = await watched.open("/group?name=shop%2Ftrain%2Fstep-0004")
    await page.keyboard.press("j")
    await page.keyboard.press("j")
    first = await page.evaluate("document.activeElement.closest('[data-row]')?.rowIndex")
    await page.keyboard.press("k")
    second = await page.evaluate("document.activeElement.closest('[data-row]')?.rowIndex")
    assert first - second == 1
    await page.keyboard.press("?")
    await expect(page.locator("dialog#keys")).to_be_visible()
    await page.keyboard.press("Escape")
    await page.keyboard.press("/")
    await page.keyboard.type("jk?")
    assert await page.evaluate("document.activeElement.value") == "jk?"
    await expect(page.locator("dialog#keys")).to_be_hidden()


async def test_j_goes_to_the_next_rollout_of_an_episode(watched: Watched, played: Played) -> None:
    """And k back."""
    page = await watched.open(f"/run/{played.ids['dip']}")
    await page.keyboard.press("j")
    await expect(page.locator("[aria-current=page].cell")).to_have_attribute(
        "href", f"/run/{played.ids['dip, another']}"
    )
    await page.keyboard.press("k")
    await expect(page.locator("[aria-current=page].cell")).to_have_attribute("href", f"/run/{played.ids['dip']}")


async def test_the_rollouts_of_a_step_take_the_room_there_is(watched: Watched) -> None:
    """Sixteen are two rows of a grid, also beside the step before; and no word in a cell is cut off."""
    page = await watched.open("/group?name=many%2Ftrain%2Fstep-0001")
    await expect(page.locator("thead")).to_contain_text("step 0")
    cells = page.locator("tbody .cell")
    assert await cells.count() == 16
    tops = await cells.evaluate_all("(found) => found.map((cell) => cell.getBoundingClientRect().top)")
    assert len(set(tops)) == 2
    marks = page.locator("tbody .mark")
    await expect(marks.first).to_have_text("message limit")
    whole = "(found) => found.every((mark) => mark.scrollWidth <= mark.clientWidth && mark.scrollHeight <= mark.clientHeight)"
    assert await marks.evaluate_all(whole)


async def test_a_task_of_one_rollout_has_room_for_its_name(watched: Watched) -> None:
    """In one line."""
    page = await watched.open("/group?name=play%2F20261130-061924")
    names = page.locator("tbody th.task")
    assert await names.count() == 3
    heights = await names.evaluate_all("(found) => found.map((cell) => cell.parentElement.offsetHeight)")
    assert len(set(heights)) == 1


async def test_a_filter_leaves_what_it_says(watched: Watched) -> None:
    """The form is an address: it can be sent to somebody."""
    page = await watched.open("/group?name=shop%2Ftrain%2Fstep-0004")
    assert await page.locator("[data-cell]").count() == 16
    await page.get_by_label("cut").select_option("token_limit")
    await page.get_by_role("button", name="Apply").click()
    assert await page.locator("[data-cell]").count() == 1
    assert "cut=token_limit" in page.url


async def test_two_rollouts_are_put_side_by_side(watched: Watched) -> None:
    """Chosen on the page of a task over the steps."""
    page = await watched.open("/task?training=shop&split=train&task=refund-1")
    await page.locator("input[name=left]").first.check()
    await page.locator("input[name=right]").nth(1).check()
    await page.get_by_role("button", name="Compare L and R").first.click()
    assert "/compare?" in page.url
    await expect(page.locator("main")).to_contain_text("only right")


async def test_hostile_content_is_text(watched: Watched, played: Played) -> None:
    """Script tags, handlers, escapes, bidi marks: shown, and nothing comes of them."""
    group = "evil " + HOSTILE[:80].replace("\x1b", "").strip()
    for path in (
        "/",
        f"/run/{played.ids['hostile']}",
        f"/group?name={quote(group.strip(), safe='')}",
        "/search?q=owned",
    ):
        page = await watched.open(path)
        assert "owned" not in await page.title() or path == "/search?q=owned" or "document.title" in await page.title()
        assert await page.locator("main img").count() == 0
        text = await page.locator("body").inner_text()
        assert "\u202e" not in text
        assert "\x1b" not in text
    page = await watched.open(f"/run/{played.ids['hostile']}")
    await expect(page.locator("main")).to_contain_text("<script>document.title='owned'</script>")


async def test_a_long_run_is_loaded_as_it_is_scrolled(watched: Watched, played: Played) -> None:
    """More comes where the end is reached, and a link to a late event leads there."""
    page = await watched.open(f"/run/{played.ids['long']}")
    before = await page.locator("#conversation > li").count()
    await page.locator("#more").scroll_into_view_if_needed()
    await expect(page.locator("#conversation > li")).not_to_have_count(before)
    page = await watched.open(f"/run/{played.ids['long']}?at=2500#e2500")
    await expect(page.locator("#e2500")).to_be_in_viewport()


async def test_a_line_of_a_megabyte_is_clipped_and_the_rest_is_a_click_away(watched: Watched, played: Played) -> None:
    """The page stays small, and nothing makes it wider than the window."""
    page = await watched.open(f"/run/{played.ids['wide']}")
    assert len(await page.content()) < 300_000
    assert await sideways(page) <= 0
    link = page.locator("a.rest").first
    await expect(link).to_contain_text("more characters")
    await link.click()
    await expect(page.locator("main")).to_contain_text("x" * 20_000)


async def test_a_piece_that_cannot_be_fetched_says_so_and_is_asked_for_again(watched: Watched, played: Played) -> None:
    """As where the explorer was stopped in between."""
    page = await watched.open(f"/run/{played.ids['wide']}")
    link = page.locator("a.rest").first
    await page.context.set_offline(True)
    await link.click()
    await expect(link).to_contain_text("press to try again")
    await page.context.set_offline(False)
    await link.click()
    await expect(page.locator("main")).to_contain_text("x" * 16_000)
    await expect(link).not_to_contain_text("press to try again")
    watched.complaints.clear()  # the browser's own, of what it could not fetch


async def test_tokens_are_shaded_by_how_likely_they_were(watched: Watched, played: Played) -> None:
    """With a legend, and each token's probability in its title."""
    page = await watched.open(f"/run/{played.ids['dip']}")
    await page.get_by_role("button", name="Tokens").click()
    tokens = page.locator(".tok[title]")
    assert await tokens.count() >= 6
    await expect(page.locator(".legend-tokens")).to_be_visible()


async def test_an_episode_is_copied_as_a_test_case(watched: Watched, played: Played) -> None:
    """As a file for `play --script`: the clipboard has it."""
    await watched.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = await watched.open(f"/run/{played.ids['dip']}")
    await page.locator("[data-copy]").click()
    await expect(page.locator("[data-copy]")).to_contain_text("Copied")
    assert "find_order" in await page.evaluate("navigator.clipboard.readText()")


async def test_a_folded_episode_of_a_report_shows_that_it_opens(watched: Watched, played: Played) -> None:
    """By a triangle, as calls have one."""
    page = watched.page
    await page.set_content(make_report(played.folder, "shop/train/step-0004").html)
    episode = page.locator("details.episode").first
    sign = "(line) => getComputedStyle(line, '::before').content"
    assert await episode.locator("> summary").evaluate(sign) == '"▸"'
    await episode.locator("> summary").click()
    assert await episode.locator("> summary").evaluate(sign) == '"▾"'
    await expect(episode.locator(".conversation")).to_be_visible()


@pytest.mark.parametrize("watched", [{}, {"color_scheme": "dark"}], indirect=True, ids=["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
async def test_axe_finds_no_fault(watched: Watched, played: Played, name: str) -> None:
    """Contrast, names, roles, order of headings: WCAG 2.1 A and AA, and axe's good practice."""
    page = await watched.open(address(played, name))
    found: Any = await Axe().run(page)  # pyright: ignore[reportUnknownMemberType] -- it has no types
    faults = [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found.response["violations"]]
    assert not faults


@pytest.mark.parametrize("watched", [{"viewport": {"width": 390, "height": 800}}], indirect=True, ids=["phone"])
@pytest.mark.parametrize("name", PAGES)
async def test_a_phone_shows_the_page_without_scrolling_sideways(watched: Watched, played: Played, name: str) -> None:
    """At 390 pixels."""
    page = await watched.open(address(played, name))
    assert await sideways(page) <= 0


@pytest.mark.parametrize("watched", [{"viewport": {"width": 390, "height": 800}}], indirect=True, ids=["phone"])
async def test_a_phone_shows_a_step_in_a_line_and_a_group_in_a_few(watched: Watched) -> None:
    """With its mean and what was cut or failed: a training run has hundreds of steps."""
    page = await watched.open("/training?name=shop")
    table = page.locator("[data-live=steps]")
    await expect(table.get_by_role("columnheader", name="mean reward")).to_be_visible()
    rows = table.locator("tbody tr")
    assert await rows.count() == STEPS + 1
    heights = await rows.evaluate_all("(found) => found.map((row) => row.offsetHeight)")
    assert max(heights) <= 80
    assert await table.evaluate("(box) => box.scrollWidth <= box.clientWidth")
    await expect(rows.nth(1)).to_contain_text("1 token limit")
    await expect(rows.nth(1)).to_contain_text("1 failed")
    page = await watched.open("/")
    row = page.locator("[data-live=groups] tr", has_text="play/20261130-061924")
    await expect(row).to_contain_text("player best")
    assert await row.evaluate("(row) => row.offsetHeight") <= 100


@pytest.mark.parametrize("watched", [{"java_script_enabled": False}], indirect=True, ids=["no script"])
@pytest.mark.parametrize("name", ["home", "training", "step", "task", "episode", "two episodes"])
async def test_a_page_works_without_scripts(watched: Watched, played: Played, name: str) -> None:
    """What a page says is in the page."""
    page = await watched.open(address(played, name))
    assert len(await page.locator("main").inner_text()) > 100
