"""The page of a step, or of any other group, and the page of a task over the steps."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx
import pytest

from agent_env.episode.sink import Event, EventKind, RunHeader
from agent_env.outcome import CutReason, EpisodeResult, Failure, FailureKind, Outcome
from agent_env.runs import RunIndex

Tell = Callable[..., Any]
Look = Callable[..., Awaitable[Any]]
Play = Callable[..., str]
STEP = "a/train/step-0014"
DIED = Failure(kind=FailureKind.MCP_DIED, step="prompt", message="the server closed its output")
SLOW = Failure(kind=FailureKind.VERIFIER_TIMEOUT, step="final", message="it took longer than 5 s")


@pytest.fixture
def play(tell: Tell) -> Play:
    """Plays a rollout: `play(task, reward)`, and returns its id."""

    def played(
        task: str = "t",
        reward: float | None = 0.5,
        *,
        group: str = STEP,
        failure: Failure | None = None,
        cut: CutReason | None = None,
        tools: tuple[str, ...] = (),
        broken: tuple[str, ...] = (),
        scores: dict[str, float] | None = None,
        attempt: int = 0,
        is_over: bool = True,
    ) -> str:
        told = tell(group, task, attempt=attempt)
        for tool in tools:
            told.call(tool, {}, is_error=tool in broken)
        if is_over:
            told.ended(None if failure else reward, failure=failure, cut=cut, scores=scores)
        return told.run_id

    return played


def grid(page: Any) -> dict[str, list[str]]:
    """What the cells of each task say, in order."""
    return {row.one("th").text: [cell.text for cell in row.all("li")] for row in page.one("tbody").all("tr")}


def runs(page: Any) -> list[str]:
    """The runs that the page's cells lead to, in order."""
    return [cell.one("a")["href"].removeprefix("/run/") for cell in page.one("tbody").all("li", class_="cell")]


def asked(link: Any) -> dict[str, str]:
    """What a link asks for."""
    return {name: value[0] for name, value in parse_qs(urlsplit(link["href"]).query).items()}


async def test_counts_say_what_they_count(play: Play, look: Look, index: RunIndex, tell: Tell) -> None:
    """What broke stands beside the mean, with how often and why, and is not in it."""
    for reward in (0.0, 1.0):
        play("t", reward)
    play("t", failure=DIED)
    play("t", failure=SLOW)
    play("t", failure=DIED)
    play("t", 0.5, cut=CutReason.TOKEN_LIMIT)
    play("t", None)
    play("t", is_over=False)
    told = tell(STEP, "t")
    told.sink.ended(EpisodeResult(outcome=Outcome.ABANDONED, run_id=told.run_id, scores={}))
    page = await look("/group", name=STEP)
    assert page.one(class_="account").text == (
        "mean 0.500 ± 0.289 of 3 scored; 3 failed ( 2 mcp died , 1 verifier timeout ), 1 abandoned , 1 running"
        " ; 1 completed without a reward. Cut by the trainer and scored where they got to: 1 token limit"
    )


async def test_counts_of_a_step_that_only_broke_have_no_mean(play: Play, look: Look) -> None:
    """Where nothing is scored, there is no number to mistake for a reward."""
    play("t", failure=DIED)
    page = await look("/group", name=STEP)
    assert page.one(class_="account").text == "no run is scored; 1 failed ( mcp died )"
    assert [cell.text for cell in page.one("tbody").one("tr").all("td", class_="num")] == ["\u2013 0 of 1", "\u2013"]


async def test_each_way_to_end_is_marked_by_words_in_its_cell(
    play: Play, look: Look, explorer: httpx.AsyncClient, index: RunIndex
) -> None:
    """A number where there is a reward, the outcome in words where there is none, the reason below, and another try."""
    play("t", 1.0)
    play("t", 0.25, cut=CutReason.MESSAGE_LIMIT)
    play("t", failure=DIED)
    play("t", None)
    play("t", is_over=False)
    play("t", 0.75, attempt=1)
    page = await look("/group", name=STEP)
    assert grid(page) == {"t": ["1.00", "0.25 message limit", "failed mcp died", "no reward", "running", "0.75 try 2"]}
    looks = [cell["class"] for cell in page.one("tbody").all("li", class_="cell")]
    assert looks == [
        "cell heat-10",
        "cell heat-2 is-cut",
        "cell is-failed",
        "cell heat-none",
        "cell is-running",
        "cell heat-8",
    ]
    titles = [cell.one("a")["title"].replace("\u202f", " ") for cell in page.one("tbody").all("li", class_="cell")]
    assert titles[1].startswith("rollout 1; reward 0.250; cut: message limit; 0 messages, 0 calls; ")
    assert titles[2].startswith("rollout 2; failed; mcp died: the server closed its output; 0 messages, 0 calls; ")
    assert titles[5].startswith("rollout 0, try 2; reward 0.750; ")
    index.close()
    told = (await explorer.get("/group.json", params={"name": STEP})).json()
    assert [rollout["state"] for rollout in told["rows"][0]["rollouts"]][4] == "interrupted"


async def test_tasks_come_in_the_order_asked_for(play: Play, look: Look) -> None:
    """By spread at first, then by mean or by name; what has no reward comes last but by name."""
    for task, rewards in {
        "b-same": (0.5, 0.5),
        "c-wide": (0.0, 1.0),
        "d-low": (0.1, 0.2),
        "e-high": (0.9, 0.8),
    }.items():
        for reward in rewards:
            play(task, reward)
    play("a-broken", failure=DIED)
    page = await look("/group", name=STEP)
    assert list(grid(page)) == ["c-wide", "d-low", "e-high", "b-same", "a-broken"]
    assert [option.text for option in page.one("select", name="sort").all("option")] == ["spread", "task", "mean"]
    by_mean = await look("/group", name=STEP, sort="mean")
    assert list(grid(by_mean)) == ["d-low", "b-same", "c-wide", "e-high", "a-broken"]
    assert list(grid(await look("/group", name=STEP, sort="task"))) == [
        "a-broken",
        "b-same",
        "c-wide",
        "d-low",
        "e-high",
    ]
    means = [row.all("td", class_="num")[0].text for row in by_mean.one("tbody").all("tr")]
    assert means == ["0.150", "0.500", "0.500", "0.850", "\u2013 0 of 1"]
    spreads = [row.all("td", class_="num")[1].text for row in by_mean.one("tbody").all("tr")]
    assert spreads == ["0.050", "0.000", "0.500", "0.050", "\u2013"]


async def test_tasks_of_a_step_are_set_against_the_step_before(play: Play, look: Look) -> None:
    """An eval plays the same tasks again: what each fell by is shown, and can be sorted by."""
    for task, before, after in (("a", 0.5, 0.75), ("b", 1.0, 0.25), ("c", 0.5, 0.25)):
        play(task, before, group="a/eval/step-0010")
        play(task, after, group="a/eval/step-0020")
    play("new", 0.0, group="a/eval/step-0020")
    page = await look("/group", name="a/eval/step-0020", sort="change")
    rows = page.one("tbody").all("tr")
    assert [row.one("th").text for row in rows] == ["b", "c", "a", "new"]
    assert [row.one(data_label="step 10").text for row in rows] == [
        "1.000 \u22120.750",
        "0.500 \u22120.250",
        "0.500 +0.250",
        "",
    ]
    facts = page.one("dl", class_="facts").text
    assert "since step 10 \u22120.354" in facts


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ({}, "abcdefg"),
        ({"outcome": "completed"}, "abcfg"),
        ({"outcome": "failed"}, "de"),
        ({"failure": "mcp_died"}, "d"),
        ({"cut": "token_limit"}, "b"),
        ({"tool": "read"}, "abcd"),
        ({"tool": "read", "errors": "1"}, "c"),
        ({"errors": "1"}, "ac"),
        ({"reward_from": "0.5"}, "bcg"),
        ({"reward_to": "0.5"}, "abf"),
        ({"reward_from": "0.1", "reward_to": "0.9"}, "bg"),
        ({"reward_from": "\u22125"}, "abcfg"),
        ({"task": "two"}, "efg"),
        ({"tool": "read", "outcome": "completed", "reward_from": "0.9"}, "c"),
        ({"tool": "nothing is called like this"}, ""),
    ],
)
async def test_filters_leave_the_runs_that_are_like_that(
    play: Play, look: Look, query: dict[str, str], wanted: str
) -> None:
    """Each filter, and several together; the page says how many of how many are left, and keeps what was asked for."""
    ids = {
        "a": play("one", 0.0, tools=("read", "write"), broken=("write",)),
        "b": play("one", 0.5, tools=("read",), cut=CutReason.TOKEN_LIMIT),
        "c": play("one", 1.0, tools=("read", "read"), broken=("read",)),
        "d": play("one", failure=DIED, tools=("read",)),
        "e": play("two", failure=SLOW),
        "f": play("two", 0.0, tools=("reader",)),
        "g": play("two", 0.75),
    }
    names = {run_id: name for name, run_id in ids.items()}
    page = await look("/group", name=STEP, sort="task", **query)
    assert "".join(names[run] for run in (runs(page) if wanted else [])) == wanted
    if query:
        matched = page.one(class_="matched").text
        assert matched.startswith(f"{len(wanted)} of 7 runs in ")
    form = page.one("form", class_="filters")
    kept = {field["name"]: field.attributes.get("value", "") for field in form.all("input")}
    chosen = {
        select["name"]: option.attributes.get("value", option.text)
        for select in form.all("select")
        for option in select.all("option")
        if "selected" in option.attributes
    }
    for name, value in query.items():
        if not name.startswith("reward"):
            assert {**kept, **chosen}[name] == value
    assert form["method"] == "get"


async def test_what_is_left_has_a_mean_of_its_own(play: Play, look: Look) -> None:
    """It stands beside the step's, and says of how many it is."""
    for reward in (0.0, 0.2, 1.0):
        play("t", reward)
    page = await look("/group", name=STEP, reward_to="0.5")
    assert page.one(class_="matched").text == "2 of 3 runs in 1 task; mean 0.100 ± 0.100 of 2 scored"
    assert page.one(class_="account").text.startswith("mean 0.400")


async def test_outcomes_are_a_click_away_and_keep_the_rest(play: Play, look: Look) -> None:
    """Each outcome that there is has its count; choosing one keeps the other filters and the order."""
    play("t", 0.5, tools=("read",))
    play("t", failure=DIED)
    page = await look("/group", name=STEP, tool="read", sort="mean")
    pills = page.one("nav", aria_label="Filter by outcome").all("a")
    assert [pill.text for pill in pills] == ["all 2", "completed 1", "failed 1"]
    assert asked(pills[2]) == {"name": STEP, "outcome": "failed", "tool": "read", "sort": "mean"}


@pytest.mark.parametrize(
    "query", [{"outcome": "nonsense"}, {"sort": "nonsense"}, {"reward_from": "x"}, {"reward_to": "nan"}, {"from": "-1"}]
)
async def test_what_cannot_be_asked_for_is_refused_with_what_can(
    play: Play, explorer: httpx.AsyncClient, index: RunIndex, query: dict[str, str]
) -> None:
    """A page that answers 400 says what would do."""
    play()
    index.flush()
    answer = await explorer.get("/group", params={"name": STEP, **query})
    assert answer.status_code == 400
    assert "Not understood" in answer.text


async def test_scores_have_means_where_there_are_several(play: Play, look: Look) -> None:
    """Each verify step's mean is over the completed runs that it scored; a single one is the reward, and is not repeated."""
    play("t", 0.5, scores={"state": 1.0, "polite": 0.5})
    play("t", 0.5, scores={"state": 0.0, "polite": 0.5})
    play("t", 0.5, scores={"state": 0.5})
    play("t", 0.5, scores={"state": 0.5}, group="b/train/step-0000")
    for query in ({}, {"reward_from": "0.9"}):
        facts = (await look("/group", name=STEP, **query)).one("dl", class_="facts").text
        assert "state (3) 0.500 ± 0.289" in facts, "a filter changes nothing about the step"
        assert "polite (2) 0.500 ± 0.000" in facts
    assert "state" not in (await look("/group", name="b/train/step-0000")).one("dl", class_="facts").text


async def test_steps_before_and_after_and_of_other_splits_are_linked(play: Play, look: Look) -> None:
    """The keys n and p follow the links; a step may be missing between."""
    for group in ("a/train/step-0012", STEP, "a/train/step-0020", "a/eval/step-0014", "b/train/step-0014"):
        play(group=group)
    page = await look("/group", name=STEP)
    steps = {link.text: asked(link)["name"] for link in page.one("nav", aria_label="Steps").all("a")}
    assert steps == {
        "← earlier step": "a/train/step-0012",
        "later step →": "a/train/step-0020",
        "eval at this step": "a/eval/step-0014",
    }
    assert asked(page.one("a", data_key="p"))["name"] == "a/train/step-0012"
    assert asked(page.one("a", data_key="n"))["name"] == "a/train/step-0020"


async def test_best_and_worst_rollout_are_a_click_from_being_compared(play: Play, look: Look) -> None:
    """Where a task's rewards differ, its row leads to both side by side; where they do not, there is nothing to compare."""
    play("differs", 0.5)
    worst = play("differs", 0.0)
    play("differs", failure=DIED)
    best = play("differs", 1.0)
    play("same", 0.5)
    play("same", 0.5)
    page = await look("/group", name=STEP)
    (link,) = page.one("tbody").all("a", title="the best and the worst rollout side by side")
    assert asked(link) == {"left": best, "right": worst}


async def test_many_tasks_are_a_page_at_a_time(play: Play, look: Look) -> None:
    """Each of 230 tasks is on exactly one page, in order, and every page says where it is."""
    for task in range(230):
        play(f"task-{task:03}", task / 230)
    path: str | None = f"/group?name={STEP}&sort=mean"
    seen: list[str] = []
    places: list[str] = []
    while path is not None:
        page = await look(path)
        seen += list(grid(page))
        places.append(page.one("nav", aria_label="Pages").one("span").text)
        path = next((link["href"] for link in page.all("a", rel="next") if "sort=mean" in link["href"]), None)
    assert seen == [f"task-{task:03}" for task in range(230)]
    assert places == ["1\u2013100 of 230", "101\u2013200 of 230", "201\u2013230 of 230"]


async def test_many_rollouts_of_a_task_are_behind_a_link(play: Play, look: Look) -> None:
    """A row shows some; the others are on the task's own pages, each on exactly one."""
    for _ in range(530):
        play("wide", 0.5)
    page = await look("/group", name=STEP)
    cells = page.one("tbody").all("li")
    assert len(cells) == 49
    assert cells[-1].text == "482 more"
    path: str | None = cells[-1].one("a")["href"]
    seen: list[str] = []
    while path is not None:
        page = await look(path)
        seen += runs(page)
        path = next((link["href"] for link in page.all("a", rel="next")), None)
    assert len(seen) == len(set(seen)) == 530


async def test_a_large_group_is_in_order_of_name_unless_asked(play: Play, look: Look, index: RunIndex) -> None:
    """Of more runs than can be sorted at once, the page is read and not the group; another order is a choice away."""
    header = RunHeader(task_id="a", bundle_name="b", bundle_version="1", params={}, tags=())
    for number in range(20_100):
        sink = index.run("large")
        sink.opened(
            RunHeader(
                **{
                    **{name: getattr(header, name) for name in ("bundle_name", "bundle_version", "params", "tags")},
                    "task_id": f"task-{number // 2:05}",
                }
            )
        )
        sink.ended(EpisodeResult(outcome=Outcome.COMPLETED, run_id=sink.run_id, scores={}))
        sink.set_reward(float(number == 15_000))
        if number % 2_000 == 0:
            index.flush()
    page = await look("/group", name="large")
    assert list(grid(page)) == [f"task-{task:05}" for task in range(100)]
    assert page.one("nav", aria_label="Pages").one("span").text == "1\u2013100 of 10 050"
    by_spread = await look("/group", name="large", sort="spread")
    assert next(iter(grid(by_spread))) == "task-07500"
    filtered = await look("/group", name="large", reward_from="0.5")
    assert grid(filtered) == {"task-07500": ["1.00"]}


async def test_rewards_outside_of_nought_to_one_span_the_colours(play: Play, look: Look) -> None:
    """The key says what the colours span: 0 to 1 where all rewards are within, else from the least to the greatest."""
    play("t", -3.0)
    play("t", 5.0)
    page = await look("/group", name=STEP)
    assert page.one(class_="heat-key").one("svg")["aria-label"] == "colours from \u22123.000 to 5.000"
    assert [cell["class"] for cell in page.one("tbody").all("li")] == ["cell heat-0", "cell heat-10"]


async def test_a_rounding_error_beside_nought_and_one_does_not_move_the_colours(play: Play, look: Look) -> None:
    """A reward of 1.0000000000000002 is the best there is, not the least of a span of nothing."""
    play("t", 1.0000000000000002)
    play("t", 1.0)
    play("u", -1e-17, group="b/train/step-0001")
    page = await look("/group", name=STEP)
    assert page.one(class_="heat-key").one("svg")["aria-label"] == "colours from 0.000 to 1.000"
    assert [cell["class"] for cell in page.one("tbody").all("li")] == ["cell heat-10", "cell heat-10"]
    page = await look("/group", name="b/train/step-0001")
    assert [cell["class"] for cell in page.one("tbody").all("li")] == ["cell heat-0"]


@pytest.mark.parametrize("rewards", [(7.0, 7.0), (7.0, 7.000000000000001)])
async def test_equal_rewards_elsewhere_are_neither_low_nor_high(
    play: Play, look: Look, rewards: tuple[float, float]
) -> None:
    """Where the colours span nothing, none is painted as the worst."""
    for reward in rewards:
        play("t", reward)
    page = await look("/group", name=STEP)
    assert [cell["class"] for cell in page.one("tbody").all("li")] == ["cell heat-none", "cell heat-none"]


@pytest.mark.parametrize("reward", [0.0, 0.3])
async def test_equal_rewards_have_no_spread(play: Play, look: Look, reward: float) -> None:
    """Also where the sums are of the difference to another task's reward, and their squares cancel but for the last digits."""
    play("a", 0.7400000000000001)
    for _ in range(8):
        play("b", reward)
    page = await look("/group", name=STEP, task="b")
    assert page.one(class_="matched").text == f"8 of 9 runs in 1 task of b ; mean {reward:.3f} ± 0.000 of 8 scored"
    numbers = [cell.text for cell in page.one("tbody").one("tr").all("td", class_="num")]
    assert numbers == [f"{reward:.3f}", "0.000"]


async def test_a_mean_that_is_nought_but_for_rounding_is_nought(
    play: Play, explorer: httpx.AsyncClient, index: RunIndex
) -> None:
    """So says the JSON too, which rounds nothing."""
    play("a", 0.9)
    for _ in range(7):
        play("b", 0.0)
    index.flush()
    told = (await explorer.get("/group.json", params={"name": STEP, "task": "b"})).json()
    assert (told["matched"]["mean"], told["matched"]["se"]) == (0.0, 0.0)
    assert (told["rows"][0]["mean"], told["rows"][0]["spread"]) == (0.0, 0.0)


async def test_a_small_spread_of_large_rewards_is_kept(play: Play, look: Look) -> None:
    """What differs in the ninth digit differs."""
    for reward in (5000.0, 5000.00001, 5000.00002):
        play("t", reward)
    page = await look("/group", name=STEP)
    assert page.one("tbody").one("tr").all("td", class_="num")[1].text == "8.16e\u221206"


async def test_a_group_that_is_no_step_has_a_page(play: Play, look: Look) -> None:
    """Without steps around it, and without a link to a task over steps."""
    play("t", 0.5, group="by hand")
    page = await look("/group", name="by hand")
    assert page.one("h1").text == "by hand"
    assert page.one("nav", aria_label="Steps").all("a") == []
    assert page.one("tbody").one("th").all("a") == []


async def test_a_task_is_shown_over_the_steps(play: Play, look: Look) -> None:
    """Its mean, least and greatest reward in each step as a chart and as rows of rollouts, the latest step first."""
    for step, rewards in ((1, (0.0, 0.5)), (3, (0.25, 0.75)), (10, (1.0, 1.0))):
        for reward in rewards:
            play("t", reward, group=f"a/train/step-{step:04}")
        play("t", 0.5, group=f"a/eval/step-{step:04}")
        play("t", 0.5, group=f"b/train/step-{step:04}")
    play("other", 0.5, group="a/train/step-0002")
    play("t", failure=DIED, group="a/train/step-0010")
    page = await look("/task", training="a", split="train", task="t")
    rows = page.one("tbody").all("tr")
    assert [row.one("th").text for row in rows] == ["10", "3", "1"]
    assert [row.one(data_label="mean").text for row in rows] == ["1.000 2 of 3", "0.500", "0.250"]
    assert [row.one(data_label="least \u2013 greatest").text for row in rows] == [
        "1.000 \u2013 1.000",
        "0.250 \u2013 0.750",
        "0.000 \u2013 0.500",
    ]
    assert [cell.one("a").text for cell in rows[0].all("li")] == ["1.00", "1.00", "failed mcp died"]
    assert page.one(class_="account").text == "6 of 7 rollouts scored, in 3 steps of train"
    titles = [link.one("title").raw_text for link in page.one(class_="wide").all("a", class_="column")]
    assert [title.partition("\n")[0] for title in titles] == ["step 1", "step 3", "step 10"]
    point = page.one(class_="wide").all("a")[0]
    assert asked(point) == {"name": "a/train/step-0001", "task": "t"}
    splits = page.one("nav", aria_label="Splits").all("a")
    assert [link.text for link in splits] == ["train", "eval"]


async def test_any_two_rollouts_of_a_task_can_be_chosen_without_a_script(play: Play, look: Look) -> None:
    """Each has a left and a right button in a form that asks for the comparison; best and worst are chosen at first."""
    ids = [
        play("t", reward, group=f"a/train/step-{step:04}") for step, reward in ((1, 0.5), (1, 0.9), (2, 0.7), (2, 0.2))
    ]
    page = await look("/task", training="a", split="train", task="t")
    form = page.one("form", action="/compare")
    assert form["method"] == "get"
    buttons = form.all("input", type="radio")
    assert sorted((button["name"], button["value"]) for button in buttons) == sorted(
        (side, run_id) for side in ("left", "right") for run_id in ids
    )
    chosen = {button["name"]: button["value"] for button in buttons if "checked" in button.attributes}
    assert chosen == {"left": ids[2], "right": ids[3]}
    assert all("aria-label" in button.attributes and "required" in button.attributes for button in buttons)
    assert form.all("button")


async def test_a_task_of_many_steps_is_a_page_at_a_time(play: Play, look: Look) -> None:
    """Each of 120 steps is on exactly one page, the latest first."""
    for step in range(120):
        play("t", 0.5, group=f"a/train/step-{step:04}")
    path: str | None = "/task?training=a&split=train&task=t"
    seen: list[str] = []
    while path is not None:
        page = await look(path)
        seen += [row.one("th").text for row in page.one("tbody").all("tr")]
        path = next((link["href"] for link in page.all("a", rel="next")), None)
    assert seen == [str(step) for step in range(119, -1, -1)]


async def test_a_grid_follows_a_step_that_is_under_way(tell: Tell, look: Look) -> None:
    """A rollout that ends between two looks has its reward at the second."""
    told = tell(STEP, "t")
    assert grid(await look("/group", name=STEP)) == {"t": ["running"]}
    told.sink.event(Event(kind=EventKind.CUT, at_s=1.0, step="p", turn=0, data={"reason": CutReason.TIMEOUT}))
    told.ended(0.5, cut=CutReason.TIMEOUT)
    assert grid(await look("/group", name=STEP)) == {"t": ["0.50 timeout"]}


async def test_what_a_dead_process_left_under_way_is_interrupted(
    play: Play, look: Look, explorer: httpx.AsyncClient, tmp_path: Path
) -> None:
    """In counts, in the grid and for filters, before anyone opens the index for writing again."""
    play("t", is_over=False)
    dies = (
        "import os, sys\n"
        "from agent_env.episode.sink import RunHeader\n"
        "from agent_env.runs import RunIndex\n"
        "index = RunIndex.open(sys.argv[1])\n"
        "header = RunHeader(task_id='t', bundle_name='b', bundle_version='1', params={}, tags=())\n"
        f"index.run({STEP!r}).opened(header)\n"
        "index.flush()\n"
        "os._exit(1)\n"
    )
    await anyio.run_process([sys.executable, "-c", dies, str(tmp_path)], check=False)
    page = await look("/group", name=STEP)
    assert page.one(class_="account").text == "no run is scored; 1 running , 1 interrupted"
    assert grid(page) == {"t": ["running", "interrupted"]}
    for outcome in ("running", "interrupted"):
        assert grid(await look("/group", name=STEP, outcome=outcome)) == {"t": [outcome]}
    (training,) = (await explorer.get("/index.json")).json()["trainings"]
    assert (training["states"]["running"], training["states"]["interrupted"]) == (1, 1)
    assert (await explorer.get("/training.json?name=a")).json()["states"]["interrupted"] == 1
