"""The explorer's pages over a real index. `python tst/unit/explorer/test_lists.py FOLDER` fills a folder to look at."""

from __future__ import annotations

import json
import math
import random
import re
import sys
import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from agent_env.episode.sink import Event, EventKind, RunHeader
from agent_env.outcome import CutReason, EpisodeResult, Failure, FailureKind, Outcome, Score
from agent_env.runs import RunIndex, RunSink
from agent_env.runs.explorer import build_app, charts

TOOLS = [
    {"name": "read_prices", "description": "The day's prices, an hour each.", "parameters": {"properties": {}}},
    {
        "name": "submit_schedule",
        "description": "Hand in the schedule. The first accepted one counts.",
        "parameters": {"properties": {"hours": {"type": "array"}}},
    },
]
TRACEBACK = (
    "Traceback (most recent call last):\n  File \"verifiers/saving.py\", line 31, in score\nKeyError: 'schedule'\n"
)


def say(sink: RunSink, kind: EventKind, data: Mapping[str, Any], *, step: str = "prompt", turn: int | None = 0) -> None:
    """Record one event, now."""
    sink.event(Event(kind=kind, at_s=time.time(), step=step, turn=turn, data=data))


def record(index: RunIndex, group: str, task: str, reward: float, *, chance: float, attempt: int = 0) -> RunSink:
    """One day of a battery, played; `chance` decides how it ends."""
    sink = index.run(group, attempt=attempt, labels={"policy_step": 3, "model": "tiny-qwen"})
    params = {"day": task, "prices": [round(20 + 30 * abs(math.sin(hour)), 1) for hour in range(6)]}
    sink.opened(RunHeader(task_id=task, bundle_name="gridsim", bundle_version="1.0.0", params=params, tags=("short",)))
    for step, kind in (("deploy_env", "deploy_env"), ("deploy_agent", "deploy_agent")):
        say(sink, EventKind.STEP_STARTED, {"kind": kind}, step=step, turn=None)
        say(sink, EventKind.STEP_ENDED, {"duration_s": 0.0012}, step=step, turn=None)
    say(sink, EventKind.STEP_STARTED, {"kind": "prompt"}, turn=None)
    prompt = "Plan the battery for this day. Buy when power is cheap, sell when it is dear, then submit the schedule."
    system = "You run a grid battery of 4 MWh and 1 MW. Answer with tool calls only."
    start = {"agent": "operator", "system_prompt": system, "prompt": prompt, "tools": TOOLS}
    say(sink, EventKind.TURN_STARTED, start)
    if chance > 0.98:
        return sink
    calls = [("read_prices", {}, "20.0 45.2 47.3 24.2 42.7 48.8", False)]
    if chance < 0.3:
        calls.append(("submit_schedule", {"hours": [1, 1, 1]}, "hours must have 6 entries, not 3", True))
    calls.append(("submit_schedule", {"hours": [1, -1, 0, 1, -1, 0]}, "accepted: saving 31.20", False))
    for number, (tool, arguments, text, is_error) in enumerate(calls):
        raw = json.dumps(arguments)
        call = {"name": tool, "arguments": raw}
        message = {"role": "assistant", "content": "The evening peak pays best." * (number > 0), "tool_calls": [call]}
        say(sink, EventKind.MESSAGE, {"message": message})
        raw_text = raw.replace("[1, -1", '["1", -1')
        head = {"call_id": f"call-{number}", "tool": tool}
        say(sink, EventKind.CALL, head | {"arguments": arguments, "raw": raw_text})
        say(sink, EventKind.ANSWER, head | {"text": text, "is_error": is_error, "duration_s": 0.0004})
    if 0.9 < chance <= 0.94:
        say(sink, EventKind.CUT, {"reason": CutReason.TOKEN_LIMIT})
    say(sink, EventKind.TURN_ENDED, {"reply": None})
    finish(sink, reward, chance=chance)
    return sink


def finish(sink: RunSink, reward: float, *, chance: float) -> None:
    """Score it or fail it, end it, reward it."""
    failure = None
    scores: dict[str, Score] = {}
    if 0.94 < chance <= 0.97:
        failure = Failure(kind=FailureKind.VERIFIER_RAISED, step="saving", message="KeyError: 'schedule'")
        data = {"kind": failure.kind, "message": failure.message, "traceback": TRACEBACK}
        say(sink, EventKind.FAILURE, data, step="saving", turn=None)
    else:
        scores["saving"] = Score(step="saving", value=reward, explanation="saved 31.20 of the best 40.10")
        data = {"value": reward, "explanation": "saved 31.20 of the best 40.10", "metrics": {"saved": 31.2}}
        say(sink, EventKind.SCORE, data, step="saving", turn=None)
    outcome = Outcome.FAILED if failure else Outcome.ABANDONED if 0.97 < chance <= 0.98 else Outcome.COMPLETED
    cut = CutReason.TOKEN_LIMIT if 0.9 < chance <= 0.94 else None
    sink.ended(EpisodeResult(outcome=outcome, run_id=sink.run_id, scores=scores, failure=failure, cut=cut))
    if outcome is Outcome.COMPLETED:
        sink.set_reward(reward)


def fill(folder: Path, *, steps: int = 12, tasks: int = 3, rollouts: int = 4) -> None:
    """Two training runs with evals, and two groups that are no step of one."""
    dice = random.Random(7)
    with RunIndex.open(folder) as index:
        for training, gain in (("grid-demo", 0.62), ("grid-lr-1e-5", 0.2)):
            for step in range(steps):
                level = 0.2 + gain * (1 - math.exp(-step / 4))
                for task in range(tasks):
                    for _ in range(rollouts):
                        reward = min(1.0, max(0.0, dice.gauss(level, 0.17)))
                        name = f"day-{step * tasks + task:03}"
                        record(index, f"{training}/train/step-{step:04}", name, reward, chance=dice.random())
                for task in range(8 if step % 4 == 0 else 0):
                    reward = min(1.0, max(0.0, dice.gauss(level - 0.06, 0.12)))
                    record(index, f"{training}/eval/step-{step:04}", f"held-{task:03}", reward, chance=0.5)
        for group in ("warm-start/best", "by hand"):
            for task in range(3):
                record(index, group, f"day-{task:03}", 0.9, chance=0.5)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncGenerator[httpx.AsyncClient]:
    """The explorer over a filled folder."""
    fill(tmp_path, steps=5, tasks=2, rollouts=3)
    transport = httpx.ASGITransport(app=build_app(tmp_path))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8470") as made:
        yield made


def links(page: str, start: str) -> list[str]:
    """The addresses on a page that start so."""
    return [link.replace("&amp;", "&") for link in re.findall(r'href="([^"]+)"', page) if link.startswith(start)]


async def test_three_clicks_lead_from_home_to_a_call(client: httpx.AsyncClient) -> None:
    """Home links to a training run, that to a step, that to a run, and the run shows its calls."""
    home = (await client.get("/")).text
    training = (await client.get(links(home, "/training")[0])).text
    step = (await client.get(links(training, "/group")[0])).text
    run = (await client.get(links(step, "/run")[0])).text
    assert "submit_schedule" in run
    assert "Plan the battery" in run


async def test_home_lists_training_runs_and_the_groups_that_are_none(client: httpx.AsyncClient) -> None:
    """A group whose name is no step of a training run is listed all the same."""
    home = (await client.get("/index.json")).json()
    assert {training["name"] for training in home["trainings"]} == {"grid-demo", "grid-lr-1e-5"}
    assert [group["name"] for group in home["groups"]] == ["by hand", "warm-start/best"]


async def test_chart_has_a_line_for_train_and_one_for_eval_and_links_to_steps(client: httpx.AsyncClient) -> None:
    """Each step's point in the reward chart is a link to the step, named for who cannot see it."""
    page = (await client.get("/training", params={"name": "grid-demo"})).text
    assert page.count('class="point" cx="9"') == 2, "a legend entry each"
    assert "train, step 3:" in page
    assert "eval, step 4:" in page
    assert ">training step</text>" in page
    assert ">mean reward</text>" in page
    assert '<a href="/group?name=grid-demo%2Ftrain%2Fstep-0003"><circle' in page


async def test_every_page_is_json_too(client: httpx.AsyncClient) -> None:
    """The JSON of each page is reached by the link on it."""
    for path in ("/", "/training?name=grid-demo", "/group?name=by+hand"):
        page = await client.get(path)
        (json_url,) = {link for link in links(page.text, "/") if ".json" in link}
        assert (await client.get(json_url)).headers["content-type"] == "application/json"
    group = (await client.get("/group.json?name=by+hand")).json()
    run = (await client.get(f"/run/{group['runs'][0]['run_id']}.json")).json()
    assert run["run"]["task_id"] == "day-000"
    assert run["events"][0]["kind"] == "step_started"


async def test_step_shows_tasks_by_rollouts_and_filters_by_outcome(client: httpx.AsyncClient, tmp_path: Path) -> None:
    """The filter leaves the runs of that outcome; a failure shows its kind, and is not in the mean."""
    with RunIndex.open(tmp_path) as index:
        record(index, "f/train/step-0000", "day-1", 0.5, chance=0.5)
        record(index, "f/train/step-0000", "day-1", 0.5, chance=0.95)
        record(index, "f/train/step-0000", "day-2", 1.0, chance=0.5)
    whole = (await client.get("/group.json?name=f/train/step-0000")).json()
    assert [(run["task_id"], run["rollout"]) for run in whole["runs"]] == [("day-1", 0), ("day-1", 1), ("day-2", 0)]
    assert whole["group"]["reward_mean"] == 0.75
    assert whole["group"]["scored"] == 2
    failed = await client.get("/group?name=f/train/step-0000&state=failed")
    assert failed.text.count('href="/run/') == 1
    assert "verifier raised" in failed.text
    refused = await client.get("/group?name=f/train/step-0000&state=nonsense")
    assert refused.status_code == 400


async def test_run_page_shows_failure_with_traceback(client: httpx.AsyncClient, tmp_path: Path) -> None:
    """A failed run says where it failed, with the traceback folded below."""
    with RunIndex.open(tmp_path) as index:
        run_id = record(index, "f/train/step-0000", "day-1", 0.5, chance=0.95).run_id
    page = (await client.get(f"/run/{run_id}")).text
    assert "Failed in saving (verifier raised)" in page
    assert "verifiers/saving.py" in page


async def test_a_run_under_way_is_not_said_to_have_made_no_call(client: httpx.AsyncClient, tmp_path: Path) -> None:
    """A call that its message asks for may still come; once the run has ended without it, the page says so."""
    with RunIndex.open(tmp_path) as index:
        sink = index.run("live")
        sink.opened(RunHeader(task_id="t", bundle_name="b", bundle_version="1", params={}, tags=()))
        message = {"role": "assistant", "content": "", "tool_calls": [{"name": "read", "arguments": "{}"}]}
        say(sink, EventKind.MESSAGE, {"message": message})
        index.flush()
        page = (await client.get(f"/run/{sink.run_id}")).text
        assert "running" in page
        assert "call not made" not in page
    assert "call not made: read" in (await client.get(f"/run/{sink.run_id}")).text


async def test_raw_arguments_are_shown_only_where_they_differ(client: httpx.AsyncClient, tmp_path: Path) -> None:
    """What the model wrote is beside the typed arguments when typing changed it."""
    with RunIndex.open(tmp_path) as index:
        run_id = record(index, "f", "day-1", 0.5, chance=0.5).run_id
    page = (await client.get(f"/run/{run_id}")).text
    assert page.count("as the model wrote them") == 1


async def test_a_long_run_is_read_a_page_at_a_time(client: httpx.AsyncClient, tmp_path: Path) -> None:
    """A run of 450 events has three pages, linked one to the next."""
    with RunIndex.open(tmp_path) as index:
        sink = index.run("long")
        sink.opened(RunHeader(task_id="t", bundle_name="b", bundle_version="1", params={}, tags=()))
        for number in range(450):
            say(sink, EventKind.MESSAGE, {"message": {"role": "assistant", "content": f"line {number}."}})
    path: str | None = f"/run/{sink.run_id}"
    seen: list[str] = []
    pages = 0
    while path is not None:
        page = (await client.get(path)).text
        pages += 1
        seen += re.findall(r"line (\d+)\.", page)
        path = next((link for link in links(page, f"/run/{sink.run_id}?from=")), None)
    assert seen == [str(number) for number in range(450)]
    assert pages == 3


async def test_a_group_of_many_runs_has_pages(client: httpx.AsyncClient, tmp_path: Path) -> None:
    """Every run of a group of 450 is on exactly one of its pages."""
    with RunIndex.open(tmp_path) as index:
        ids = {record(index, "many", f"day-{number % 7}", 0.5, chance=0.5).run_id for number in range(450)}
    path: str | None = "/group?name=many"
    seen: list[str] = []
    while path is not None:
        page = (await client.get(path)).text
        seen += re.findall(r'class="mono" href="/run/([0-9a-f]+)"', page)
        path = next((link for link in links(page, "/group?name=many&") if "after=" in link), None)
    assert sorted(seen) == sorted(ids)


@pytest.mark.parametrize("path", ["/group?name=none", "/training?name=none", "/run/ffff", "/nowhere", "/run/%2e%2e"])
async def test_what_is_not_there_is_a_plain_page(client: httpx.AsyncClient, path: str) -> None:
    """A wrong address answers 404 with a way back."""
    answer = await client.get(path)
    assert answer.status_code == 404
    assert 'href="/"' in answer.text


@pytest.mark.parametrize(
    "path", ["/?from=-1", "/?from=x", "/?from=99999999999999999999", "/training?name=grid-demo&from=²"]
)
async def test_numbers_that_are_none_are_refused(client: httpx.AsyncClient, path: str) -> None:
    """A page number that is no number answers 400, never a traceback."""
    assert (await client.get(path)).status_code == 400


if __name__ == "__main__":
    fill(Path(sys.argv[1]))


@pytest.mark.parametrize(
    ("value", "text"),
    [(5e-18, "0.000"), (-5e-18, "0.000"), (0.0004, "0.0004"), (-0.5, "\N{MINUS SIGN}0.500"), (12345.6, "1.23e+04")],
)
def test_numbers_are_written_for_people(value: float, text: str) -> None:
    """What is left of rounding is zero, what is small stays readable."""
    assert charts.number(value) == text
