"""`agent-env validate` plays the reference solutions: what each claims, and tasks that teach nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent_env.bundle import load_bundle
from agent_env.cli import root
from agent_env.episode.rehearsal import rehearse

WriteBundle = Callable[[Mapping[str, str | bytes | None]], Path]

SOLD = "def score(episode):\n    left = episode.state()['stock']\n    return {'score': left == 7, 'explanation': f'{left} left'}\n"
GOLD = "gold: [{calls: [{tool: sell, arguments: {count: 3}}], reply: Done.}]\n"


@pytest.fixture
def shop(small_bundle: dict[str, str]) -> dict[str, str]:
    """A shop whose first task has a gold that sells three."""
    return {**small_bundle, "verifiers/sold.py": SOLD, "tasks/a.yaml": small_bundle["tasks/a.yaml"] + GOLD}


def test_a_gold_that_scores_what_it_claims_is_no_problem(shop: dict[str, str], write_bundle: WriteBundle) -> None:
    """Tasks without gold are not played."""
    found = asyncio.run(rehearse(load_bundle(write_bundle(shop))))
    assert (found.played, found.problems, found.notes) == (1, [], [])


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("gold_reward: 0.5\n", "gold scores 1 and claims 0.5 (sold 1: 7 left), correct gold, or write gold_reward: 1"),
        ("", "gold scores 0 and claims 1 (sold 0: 8 left), correct gold, or write gold_reward: 0"),
    ],
)
def test_a_gold_that_scores_something_else_is_a_problem(
    shop: dict[str, str], write_bundle: WriteBundle, more: str, says: str
) -> None:
    """The line names the task, both numbers, and what the verifier said."""
    task = shop["tasks/a.yaml"] + more
    if not more:
        task = task.replace("count: 3}}]", "count: 2}}]")
    ran = CliRunner().invoke(root, ["validate", str(write_bundle({**shop, "tasks/a.yaml": task}))])
    assert ran.exit_code == 1
    assert ran.output == f"tasks/a.yaml:1: task 'a': {says}\n"


def test_a_gold_whose_episode_fails_is_a_problem(shop: dict[str, str], write_bundle: WriteBundle) -> None:
    """What broke is in the line."""
    bad = "def score(episode):\n    raise KeyError('stok')\n"
    (problem,) = asyncio.run(rehearse(load_bundle(write_bundle({**shop, "verifiers/sold.py": bad})))).problems
    assert "makes no reward" in problem.what
    assert "verifier_raised" in problem.what


def test_a_task_that_pays_the_same_for_nothing_is_noted(shop: dict[str, str], write_bundle: WriteBundle) -> None:
    """It may be right (a refusal is), so it is a note and no problem."""
    path = write_bundle({**shop, "verifiers/sold.py": "def score(episode):\n    return 1\n"})
    ran = CliRunner().invoke(root, ["validate", str(path)])
    assert ran.exit_code == 0
    assert ran.stderr == "note: 1 task ('a'): doing nothing scores as much as gold\n"
    assert ran.stdout == "ok: 2 tasks, 1 eval, 1 env; 1 gold played\n"
    said = json.loads(CliRunner().invoke(root, ["validate", "--json", str(path)]).stdout)
    assert (said["ok"], said["gold_played"], said["constant"]) == (True, 1, ["a"])


def test_no_code_of_the_bundle_runs_when_asked(shop: dict[str, str], write_bundle: WriteBundle) -> None:
    """`--no-code` neither imports nor plays, and says so; `--no-play` imports."""
    path = write_bundle({**shop, "verifiers/sold.py": "raise SystemExit('ran')\n"})
    ran = CliRunner().invoke(root, ["validate", "--no-code", str(path)])
    assert (ran.exit_code, ran.stdout) == (0, "ok: 2 tasks, 1 eval, 1 env; its Python was not run\n")
    assert CliRunner().invoke(root, ["validate", "--no-play", str(path)]).exit_code == 1
