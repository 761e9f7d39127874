"""The first page and a training run's page, over a real index."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from agent_env.episode.sink import RunHeader
from agent_env.outcome import CutReason, Failure, FailureKind
from agent_env.runs import RunIndex
from agent_env.runs.explorer.measures import Measure
from agent_env.runs.explorer.plot import thinned, ticks
from agent_env.runs.explorer.points import StepPoint
from agent_env.runs.explorer.wording import clock, duration, number, percent, short_count, short_number, since

Tell = Callable[..., Any]
Look = Callable[..., Awaitable[Any]]
Play = Callable[..., str]
BROKEN = Failure(kind=FailureKind.MCP_DIED, step="prompt", message="the server closed its output")


@pytest.fixture
def play(tell: Tell) -> Play:
    """Plays a rollout: `play(group, task, reward)`, and returns its id."""

    def played(
        group: str,
        task: str = "t",
        reward: float | None = 0.5,
        *,
        failure: Failure | None = None,
        cut: CutReason | None = None,
        calls: int = 1,
    ) -> str:
        told = tell(group, task)
        for _ in range(calls):
            told.says("I will look.")
            told.call("look", {})
        told.ended(None if failure else reward, failure=failure, cut=cut)
        return told.run_id

    return played


def query_of(link: Any) -> dict[str, list[str]]:
    """What a link asks for."""
    return parse_qs(urlsplit(link["href"]).query)


def column(table: Any, label: str) -> list[str]:
    """What the cells of a column say."""
    return [cell.text for cell in table.all(data_label=label)]


async def steps_of(explorer: httpx.AsyncClient) -> list[int]:
    """The steps of training run `a`."""
    told = (await explorer.get("/training.json?name=a")).json()
    return [point["step"] for point in told["points"]]


async def test_three_clicks_lead_from_home_to_a_call(play: Play, look: Look) -> None:
    """Home links to a training run, its chart to a step, the step's grid to a run, and the run shows its calls."""
    play("a/train/step-0014")
    home = await look("/")
    training = await look(home.one("table", class_="trainings").all("a")[0]["href"])
    step = await look(training.all("a", class_="column")[0]["href"])
    run = await look(step.one("li", class_="cell").one("a")["href"])
    assert "look" in run.text
    assert "I will look." in run.text


async def test_home_says_of_each_training_run_how_it_stands(play: Play, look: Look) -> None:
    """Steps, episodes, outcomes, and the mean of the latest step that has one, of `train` where there is such a split."""
    for reward in (0.2, 0.4):
        play("a/train/step-0001", reward=reward)
    for reward in (0.5, 0.7):
        play("a/train/step-0002", reward=reward)
    play("a/train/step-0003", failure=BROKEN)
    play("a/eval/step-0009", reward=1.0)
    row = (await look("/")).one("table", class_="trainings").one("tbody").one("tr")
    assert column(row, "latest mean") == ["0.600 ± 0.100"]
    assert query_of(row.one(title="train, step 2, 2 scored")) == {"name": ["a/train/step-0002"]}
    assert column(row, "last step") == ["9"]
    assert column(row, "episodes") == ["6"]
    assert row.one(class_="words").text == "5 completed 1 failed"
    assert row.one("svg", class_="spark")["aria-label"] == "mean reward from 0.300 to 0.600"


async def test_home_of_an_empty_index_says_what_would_appear(index: RunIndex, look: Look) -> None:
    """Nothing is recorded yet: no table, no error, and how a training run comes to be there."""
    assert index.folder
    home = await look("/")
    assert home.all("table") == []
    assert "No training run is recorded here yet" in home.one("main").text


async def test_home_lists_groups_that_are_no_step(play: Play, look: Look, explorer: httpx.AsyncClient) -> None:
    """A group whose name is no step of a training run is listed all the same, the one that wrote last first."""
    play("by hand")
    play("warm-start/best")
    play("a/train/step-0001")
    home = await look("/")
    assert [row.all("a")[0].text for row in home.all("tbody")[1].all("tr")] == ["warm-start/best", "by hand"]
    told = (await explorer.get("/index.json")).json()
    assert (await explorer.get("/.json")).json() == told
    assert [group["name"] for group in told["groups"]] == ["warm-start/best", "by hand"]
    assert [training["name"] for training in told["trainings"]] == ["a"]


async def test_home_shows_many_groups_a_page_at_a_time(play: Play, look: Look) -> None:
    """Each of 120 is on exactly one page."""
    for number_ in range(120):
        play(f"by hand {number_:03}", calls=0)
    path: str | None = "/"
    seen: list[str] = []
    while path is not None:
        home = await look(path)
        seen += [row.all("a")[0].text for row in home.one("tbody").all("tr")]
        path = next((link["href"] for link in home.all("a") if link.text.startswith("More groups")), None)
    assert seen == [f"by hand {number_:03}" for number_ in range(119, -1, -1)]


async def test_home_says_what_was_played_in_a_group(tell: Tell, look: Look, explorer: httpx.AsyncClient) -> None:
    """Its bundle, and the player and the model where its runs say so: its name may be no more than a time."""
    tell("play/1", "t", bundle_name="", bundle_version="").ended(0.5)
    tell("play/2", "t", labels={"player": "best"}).ended(0.5)
    tell("play/3", "t", labels={"player": ["no", "text"], "model": "/a/b/jobs/shop/model"}).ended(0.5)
    home = await look("/")
    assert [row.one("th").text for row in home.one("tbody").all("tr")] == [
        "play/3 shop 1.0 · …/shop/model",
        "play/2 shop 1.0 · player best",
        "play/1",
    ]
    told = (await explorer.get("/index.json")).json()
    assert told["played"]["play/2"] == {"bundle": "shop 1.0", "model": "", "player": "best"}


async def test_home_shows_many_training_runs_a_page_at_a_time(play: Play, look: Look) -> None:
    """Each of 60 is on exactly one page, the one that wrote last first; a part of a name finds its own."""
    for number_ in range(60):
        play(f"run-{number_:02}/train/step-0000", calls=0)
    path: str | None = "/"
    seen: list[str] = []
    while path is not None:
        home = await look(path)
        seen += [row.all("a")[0].text for row in home.one("table", class_="trainings").one("tbody").all("tr")]
        path = next((link["href"] for link in home.all("a", rel="next")), None)
    assert seen == [f"run-{number_:02}" for number_ in range(59, -1, -1)]
    found = await look("/", named="RUN-4")
    assert len(found.one("tbody").all("tr")) == 10
    assert found.one("input", name="named")["value"] == "RUN-4"
    nothing = await look("/", named="no such")
    assert "No training run has no such in its name" in nothing.one("main").text


async def test_reward_chart_has_a_line_a_mark_and_a_name_for_each_split(play: Play, look: Look) -> None:
    """Lines are told apart by dashes and marks too; axes say what they are of; a point says its numbers and links on."""
    for step in range(3):
        for reward in (0.2, 0.6):
            play(f"a/train/step-{step:04}", reward=reward)
        play(f"a/eval/step-{step:04}", reward=0.9)
    page = await look("/training", name="a")
    chart = page.one(class_="wide")
    marks = {line["class"]: line.all("path")[0]["d"].partition("a")[0] for line in chart.all("g")}
    assert list(marks) == ["series-0", "series-1"]
    assert [entry.text for entry in page.all(class_="legend")[0].all("span") if entry.text] == ["train", "eval"]
    assert {label.text for label in chart.all("text", class_="label")} == {"training step", "mean reward"}
    assert chart.one("svg")["aria-label"] == "Mean reward over training steps: train, eval"
    (point,) = [link for link in chart.all("a") if link.one("title").text.startswith("train, step 1:")]
    assert point.one("title").text == "train, step 1: 0.400 ± 0.200 (0.200 to 0.600, 2 of 2 runs scored)"
    assert query_of(point) == {"name": ["a/train/step-0001"]}
    over_step = chart.all("a", class_="column")[2].one("title").raw_text.split("\n")
    assert over_step[0] == "step 2"
    assert [line.partition(":")[0] for line in over_step[1:]] == ["train", "eval"]


async def test_failures_and_cuts_are_drawn_by_kind_beside_the_reward(play: Play, look: Look) -> None:
    """Each kind has its share, its own pattern, and its count; the other split's are a link away."""
    group = "a/train/step-0001"
    play(group)
    play(group, failure=BROKEN)
    play(group, failure=Failure(kind=FailureKind.VERIFIER_TIMEOUT, step="v", message="too slow"))
    play(group, failure=BROKEN)
    play(group, cut=CutReason.TOKEN_LIMIT)
    play("a/eval/step-0001")
    page = await look("/training", name="a")
    failed, cut = page.all("figure", class_="small")[:2]
    assert [entry.text for entry in failed.one(class_="legend").children if not isinstance(entry, str)] == [
        "mcp died 2",
        "verifier timeout 1",
    ]
    assert {part["class"] for part in failed.one("svg", class_="chart").all("rect") if "kind" in part["class"]} == {
        "kind-0",
        "kind-1",
    }
    (bar,) = failed.all("a")
    assert bar.one("title").text == "step 1: failed 3 of 5 runs (60 %): 2 mcp died, 1 verifier timeout"
    assert cut.one("a").one("title").text == "step 1: cut 1 of 5 runs (20 %): 1 token limit"
    other = await look(page.one("nav", aria_label="Whose failures and cuts").all("a")[1]["href"])
    assert other.all("figure", class_="small")[0].one("b").text == "Messages per episode"
    assert other.one("p", data_live="missing").text == "No run of eval failed or was cut."


async def test_many_steps_are_thinned_and_the_page_says_how(play: Play, look: Look) -> None:
    """A single dip and a single step that failed are still drawn and still lead to their steps."""
    for step in range(300):
        play(f"a/train/step-{step:04}", reward=0.0 if step == 123 else 0.5 + 0.001 * (step % 7), calls=0)
    play("a/train/step-0222", failure=BROKEN)
    page = await look("/training", name="a")
    assert page.one("p", class_="note-line").text == (
        "No run of train was cut. Thin lines keep the lowest and the highest step of each stretch, thick ones are their means."
        " Bars are the worst step of each stretch."
    )
    failed = page.all("figure", class_="small")[0]
    assert len(failed.all("a")) < 60
    (bar,) = [link for link in failed.all("a") if link.all("rect", class_="kind-0")]
    assert query_of(bar) == {"name": ["a/train/step-0222"]}
    titles = [link.one("title").text for link in page.one(class_="narrow").all("a")]
    assert any(title.startswith("train, step 123: 0.000") for title in titles)
    assert len(page.one(class_="narrow").all("polyline", class_="faint")) == 1
    assert len(page.one(class_="wide").all("polyline", class_="faint")) == 0


async def test_charts_are_left_out_where_nothing_is_known(play: Play, look: Look) -> None:
    """Without counted tokens there is no chart of tokens, and without a reward there is no chart of rewards."""
    play("a/train/step-0001", reward=None)
    page = await look("/training", name="a")
    assert [figure.one("b").text for figure in page.all("figure", class_="small")] == [
        "Messages per episode",
        "Calls per episode",
        "Time per episode",
    ]
    assert "No episode has a reward yet" in page.one("main").text


async def test_another_training_run_is_laid_over(play: Play, look: Look, explorer: httpx.AsyncClient) -> None:
    """Every other one can be chosen; its lines have looks and names of their own; steps keep it for the way on."""
    for name in ("a", "a-long", "b", "zz"):
        for split in ("train", "eval"):
            play(f"{name}/{split}/step-0001")
    page = await look("/training", name="a", **{"with": "b"})
    assert [option["value"] for option in page.one("select", name="with").all("option")] == ["", "a-long", "b", "zz"]
    assert [option["value"] for option in page.all("option") if "selected" in option.attributes] == ["b"]
    assert [line["class"] for line in page.one(class_="wide").all("g")] == [f"series-{look}" for look in range(4)]
    legend = [entry.text for entry in page.all(class_="legend")[0].all("span") if entry.text]
    assert legend == ["a · train", "a · eval", "b · train", "b · eval"]
    step = await look(page.one("table", class_="steps").all("a")[0]["href"])
    (way,) = [link for link in step.one("nav", aria_label="Steps").all("a") if link.text == "this step of b"]
    assert query_of(way) == {"name": ["b/train/step-0001"], "with": ["a"]}
    told = (await explorer.get("/training.json", params={"name": "a", "with": "b"})).json()
    assert {point["group"] for point in told["other_points"]} == {"b/train/step-0001", "b/eval/step-0001"}
    assert (await explorer.get("/training?name=a&with=none")).status_code == 404


async def test_a_training_run_is_not_laid_over_itself(play: Play, look: Look) -> None:
    """Asked for by hand, it is the page of the one."""
    play("a/train/step-0001")
    page = await look("/training", name="a", **{"with": "a"})
    assert len(page.one(class_="wide").all("g")) == 1


async def test_the_table_says_what_was_not_scored_and_why(play: Play, look: Look) -> None:
    """An infrastructure error stands beside the mean: one success and nine errors are not 100 %."""
    play("a/train/step-0001", reward=1.0)
    for _ in range(9):
        play("a/train/step-0001", failure=BROKEN)
    row = (await look("/training", name="a")).one("table", class_="steps").one("tbody").one("tr")
    assert column(row, "mean reward") == ["1.000"]
    assert column(row, "scored") == ["1 of 10"]
    assert column(row, "not scored") == ["9 failed 9 mcp died"]


async def test_steps_are_a_page_at_a_time(play: Play, look: Look) -> None:
    """Each of 130 steps is on exactly one page of the table, the latest first, and all are in the chart."""
    for step in range(130):
        play(f"a/train/step-{step:04}", calls=0)
    path: str | None = "/training?name=a"
    seen: list[int] = []
    while path is not None:
        page = await look(path)
        seen += [int(cell) for cell in column(page.one("table", class_="steps"), "step")]
        path = next((link["href"] for link in page.all("a", rel="next")), None)
    assert seen == list(range(129, -1, -1))


async def test_a_clear_drop_is_named(play: Play, look: Look) -> None:
    """A step whose mean fell by far more than chance would have it is linked to above the table."""
    for step, level in enumerate((0.8, 0.8, 0.2, 0.2)):
        for wobble in (-0.05, 0.0, 0.05):
            play(f"a/train/step-{step:04}", reward=level + wobble)
    drops = (await look("/training", name="a")).one(class_="drops")
    (link,) = drops.all("a")
    assert query_of(link) == {"name": ["a/train/step-0002"], "sort": ["change"]}
    assert "0.800 → 0.200" in drops.text


async def test_a_drop_says_what_the_tasks_have_to_do_with_it(play: Play, look: Look) -> None:
    """Of tasks that both steps played, how these fared; where there are none, that the step had others."""
    for task, before, after in (("one", 0.9, 0.2), ("two", 0.8, 0.2), ("gone", 0.9, None), ("new", None, 0.1)):
        for step, reward in ((0, before), (1, after)):
            for wobble in () if reward is None else (-0.01, 0.01):
                play(f"a/train/step-{step:04}", task, reward=reward + wobble)
    for wobble in (-0.01, 0.01):
        play("a/train/step-0002", "other", reward=0.01 + wobble)
    drops = (await look("/training", name="a")).one(class_="drops")
    shared, others = drops.all("li")
    assert shared.text.endswith("0.867 → 0.167 ; \u22120.650 ± 0.050 over the 2 of its 3 tasks that step 0 has too")
    assert others.text.endswith("0.167 → 0.010 ; its only task is not in step 1")
    assert [query_of(row.one("a"))["sort"] for row in (shared, others)] == [["change"], ["mean"]]


async def test_groups_below_a_training_that_are_no_steps_stand_beside_it(play: Play, look: Look) -> None:
    """Evaluations before and after it; not those of another training whose name begins alike."""
    play("a/train/step-0000", reward=0.5)
    play("a/held-out/before", reward=0.25)
    play("a/held-out/after", reward=0.75)
    play("ab/held-out/before", reward=0.0)
    table = (await look("/training", name="a")).one("table", class_="others")
    assert column(table, "group") == ["held-out/after", "held-out/before"]
    assert column(table, "mean reward") == ["0.750", "0.250"]


async def test_what_is_written_after_a_look_is_there_at_the_next(play: Play, look: Look) -> None:
    """What was worked out for one look is not shown when something was written since."""
    play("a/train/step-0001", reward=0.0)
    first = await look("/training", name="a")
    play("a/train/step-0001", reward=1.0)
    play("a/train/step-0002", reward=1.0)
    second = await look("/training", name="a")
    assert len(first.one(class_="wide").all("a", class_="column")) == 1
    titles = [link.one("title").raw_text for link in second.one(class_="wide").all("a", class_="column")]
    assert [title.split(" (")[0] for title in titles] == ["step 1\ntrain: 0.500 ± 0.500", "step 2\ntrain: 1.000"]


async def test_a_folder_made_anew_is_read_anew(
    play: Play, look: Look, explorer: httpx.AsyncClient, index: RunIndex, tmp_path: Path
) -> None:
    """What was worked out of a file that is gone is forgotten with it."""
    play("a/train/step-0001", reward=0.0)
    await look("/training", name="a")
    index.close()
    shutil.rmtree(tmp_path)
    with RunIndex.open(tmp_path) as fresh:
        header = RunHeader(task_id="t", bundle_name="b", bundle_version="1", params={}, tags=())
        fresh.run("a/train/step-0007").opened(header)
        fresh.flush()
        assert await steps_of(explorer) == [7]
        fresh.run("a/train/step-0008").opened(header)
        fresh.flush()
        assert await steps_of(explorer) == [7, 8]


async def test_every_page_is_json_too(play: Play, look: Look, explorer: httpx.AsyncClient) -> None:
    """The JSON of each page is reached by the link on it."""
    play("a/train/step-0001", "day", 0.5)
    for path in ("/", "/training?name=a", "/group?name=a/train/step-0001", "/task?training=a&split=train&task=day"):
        link = (await look(path)).one("a", class_="json")["href"]
        answer = await explorer.get(link)
        assert answer.headers["content-type"] == "application/json"
        assert json.loads(answer.content)


async def test_a_page_has_a_search_field_and_says_its_keys(play: Play, look: Look) -> None:
    """The field is named for who cannot see it; the keys are listed in a dialog."""
    play("a/train/step-0001")
    for path in ("/", "/training?name=a", "/group?name=a/train/step-0001", "/task?training=a&split=train&task=t"):
        page = await look(path)
        form = page.one("form", role="search")
        assert form["action"] == "/search"
        assert form.one("input", name="q")["data-key"] == "/"
        keys = page.one("dialog")
        assert {"j", "k", "Enter", "/", "?"} <= {key.text for key in keys.all("kbd")}
        assert page.all("tr", data_row="")


@pytest.mark.parametrize(
    "path",
    [
        "/group?name=none",
        "/training?name=none",
        "/run/ffff",
        "/nowhere",
        "/run/%2e%2e",
        "/task?training=a&split=b&task=c",
    ],
)
async def test_what_is_not_there_is_a_plain_page(index: RunIndex, explorer: httpx.AsyncClient, path: str) -> None:
    """A wrong address answers 404 with a way back."""
    assert index.folder
    answer = await explorer.get(path)
    assert answer.status_code == 404
    assert '<a href="/">' in answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/?from=-1",
        "/?from=x",
        "/?groups_from=x",
        "/?from=99999999999999999999",
        "/training?name=a&from=²",
        "/task?from=1.5",
    ],
)
async def test_numbers_that_are_none_are_refused(explorer: httpx.AsyncClient, path: str) -> None:
    """A page number that is no number answers 400, never a traceback."""
    assert (await explorer.get(path)).status_code == 400


async def test_a_page_past_the_end_is_empty_and_no_error(play: Play, look: Look) -> None:
    """A link from when there was more leads to a page without rows."""
    play("a/train/step-0001")
    for path in ("/?from=9999", "/training?name=a&from=9999", "/group?name=a/train/step-0001&from=9999"):
        assert [row for body in (await look(path)).all("tbody") for row in body.all("tr")] == []


async def test_a_call_of_a_run_under_way_is_not_said_to_be_missing(
    tell: Tell, look: Look, explorer: httpx.AsyncClient, index: RunIndex
) -> None:
    """A call that its message asks for may still come; once the run has ended without it, the page says so."""
    told = tell()
    told.say(
        "message", message={"role": "assistant", "content": "", "tool_calls": [{"name": "read", "arguments": "{}"}]}
    )
    assert "call not made" not in (await look(f"/run/{told.run_id}")).text
    index.close()
    assert "call not made" in (await explorer.get(f"/run/{told.run_id}")).text


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (number(5e-18), "0.000"),
        (number(-5e-18), "0.000"),
        (number(0.0004), "0.0004"),
        (number(-0.5), "\N{MINUS SIGN}0.500"),
        (number(12345.6), "12\u202f346"),
        (number(None), "\N{EN DASH}"),
        (short_number(0.0004), "0.0004"),
        (short_number(-1), "\N{MINUS SIGN}1.00"),
        (short_number(-250), "\N{MINUS SIGN}250"),
        (number(2.5e8), "2.5e+08"),
        (percent(0.0004), "<\u202f0.1\u202f%"),
        (percent(0), "0\u202f%"),
        (percent(0.9999), ">\u202f99.9\u202f%"),
        (percent(0.125), "12.5\u202f%"),
        (duration(0.0123), "12\u202fms"),
        (since(0.0002), "+0\u202fms"),
        (since(0.0123), "+12\u202fms"),
        (duration(59.97), "1\u202fmin 0\u202fs"),
        (duration(3599.7), "1\u202fh 0\u202fmin"),
        (clock(0), "0\u202fs"),
        (clock(0.0004), "0.4\u202fms"),
        (clock(0.1), "0.1\u202fs"),
        (clock(90), "90\u202fs"),
        (clock(120), "2\u202fmin"),
        (clock(7200), "2\u202fh"),
        (short_count(999.9), "1k"),
        (short_count(1_234_567), "1.23M"),
    ],
)
def test_numbers_are_written_for_people(text: str, wanted: str) -> None:
    """What is left of rounding is zero, what is small stays readable, and no unit runs over into the next."""
    assert text == wanted


def test_thinning_keeps_every_dip_and_peak() -> None:
    """Of thousands of steps, a single one that stands out is still drawn, and so are the ends."""
    values = [(step, 0.5 + 0.01 * math.sin(step)) for step in range(2000)]
    values[777] = (777, 0.0)
    values[1300] = (1300, 1.0)
    kept = thinned(values, 100)
    assert len(kept) <= 102
    assert {0, 777, 1300, 1999} <= set(kept)
    assert kept == sorted(kept)
    assert thinned(values[:100], 100) == list(range(100))


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.2, 812.0), (1e-9, 2e-9), (1e12, 1.5e12)])
def test_axes_have_a_few_round_numbers(low: float, high: float) -> None:
    """Whatever the values, there are some ticks and not many, within them."""
    found = ticks(low, high, 5)
    assert 2 <= len(found) <= 7
    assert low <= found[0] < found[-1] <= high * (1 + 1e-9)


def test_a_step_without_runs_has_no_share() -> None:
    """Nothing of nothing is no number, and is left out of a chart."""
    point = StepPoint(group="g", split="train", step=0, runs=0, scored=0, mean=None, se=None, low=None, high=None)
    assert Measure.FAILED.of(point) is None
    assert Measure.FAILED.about(point) == "nothing known"
