"""Takes the pictures of the explorer that the docs show, in a real Chromium, from the demo's runs.

    make demo
    .venv/bin/python docs/pictures.py .demo/runs

What they show is chosen by what the runs say: the step before which the reward fell the most, and in it the task whose rollouts
differ the most.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Page, sync_playwright

from agent_env.runs import GroupSummary, RunIndex, RunState, RunSummary
from agent_env.runs.explorer import make_report

IMAGES = Path(__file__).parent / "images"
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
WIDTH = 1200


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the pictures are of."""

    training: str
    split: str
    group: str
    """The step before which the mean reward fell the most."""
    task: str
    """The one of its tasks whose rollouts differ the most."""
    best: str
    worst: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, help="a runs folder with one training run, as `make demo` leaves")
    parser.add_argument("--into", type=Path, default=IMAGES)
    arguments = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("no Chromium here: apt-get install chromium")
    shown = choose(arguments.runs)
    with tempfile.TemporaryDirectory() as scratch, served(arguments.runs) as url, sync_playwright() as playwright:
        report = Path(scratch) / "report.html"
        report.write_text(make_report(arguments.runs, shown.group).html)
        browser = playwright.chromium.launch(executable_path=chromium, args=OPTIONS)
        for name, (address, height, prepare) in pictures(url, shown, report).items():
            page = browser.new_page(viewport={"width": WIDTH, "height": height}, color_scheme="light")
            page.goto(address)
            prepare(page)
            page.screenshot(path=arguments.into / f"explorer-{name}.png")
            page.close()
        browser.close()


def choose(folder: Path) -> Shown:
    """Find what is worth showing."""
    with RunIndex.open(folder, read_only=True) as index:
        steps = [group for group in index.groups() if group.place is not None and group.place.split == "train"]
        group = max(pairwise(sorted(steps, key=step_of)), key=lambda pair: fall(*pair))[1]
        by_task: dict[str, list[RunSummary]] = {}
        for run in index.all_runs(group.name):
            if run.state is RunState.COMPLETED and run.reward is not None:
                by_task.setdefault(run.task_id, []).append(run)
    task, runs = max(by_task.items(), key=lambda item: spread([run.reward or 0.0 for run in item[1]]))
    in_order = sorted(runs, key=lambda run: run.reward or 0.0)
    assert group.place is not None
    return Shown(
        training=group.place.training,
        split=group.place.split,
        group=group.name,
        task=task,
        best=in_order[-1].run_id,
        worst=in_order[0].run_id,
    )


def step_of(group: GroupSummary) -> int:
    return -1 if group.place is None else group.place.step


def fall(before: GroupSummary, after: GroupSummary) -> float:
    return (before.reward_mean or 0.0) - (after.reward_mean or 0.0)


def spread(rewards: list[float]) -> float:
    mean = sum(rewards) / len(rewards)
    return sum((reward - mean) ** 2 for reward in rewards) / len(rewards)


def pictures(url: str, shown: Shown, report: Path) -> dict[str, tuple[str, int, Callable[[Page], object]]]:
    """Of each picture: an address, a height in pixels, and what is done on the page before it is taken."""

    def address(path: str, **query: str) -> str:
        return f"{url}{path}?{urlencode(query)}" if query else f"{url}{path}"

    def nothing(page: Page) -> None:
        del page

    def with_tokens(page: Page) -> None:
        page.get_by_role("button", name="Tokens").click()

    def first_difference(page: Page) -> None:
        page.keyboard.press("n")

    task = {"training": shown.training, "split": shown.split, "task": shown.task}
    return {
        "home": (address("/"), 640, nothing),
        "training": (address("/training", name=shown.training), 860, nothing),
        "step": (address("/group", name=shown.group), 760, nothing),
        "task": (address("/task", **task), 760, nothing),
        "episode": (address(f"/run/{shown.worst}"), 1000, with_tokens),
        "compare": (address("/compare", left=shown.best, right=shown.worst), 900, first_difference),
        "search": (address("/search", q='"no schedule was submitted"', group=shown.training), 760, nothing),
        "report": (report.as_uri(), 900, nothing),
    }


@contextmanager
def served(folder: Path) -> Generator[str]:
    """The explorer, and its address."""
    words = [sys.executable, "-m", "agent_env", "explore", str(folder), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().split()[0].rstrip("/")
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
