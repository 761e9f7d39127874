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


def problems(path: Path) -> list[str]:
    """What a rehearsal of the bundle there says."""
    return [str(problem) for problem in asyncio.run(rehearse(load_bundle(path), env_lines={"store": 4})).problems]


def test_what_breaks_is_one_problem_where_it_is(shop: dict[str, str], write_bundle: WriteBundle) -> None:
    """A verifier that raises is told at its own line, once for all tasks."""
    bad = "def score(episode):\n    raise KeyError('stok')\n"
    more = shop["tasks/a.yaml"].replace("id: a", "id: c")
    path = write_bundle({**shop, "verifiers/sold.py": bad, "tasks/c.yaml": more})
    assert problems(path) == [
        "verifiers/sold.py:2: step 'sold' failed: verifiers/sold.py:score raised KeyError: 'stok' (in task 'a' and 1 other),"
        " so its gold cannot be played"
    ]


def test_an_env_that_cannot_start_is_a_problem_of_bundle_yaml(shop: dict[str, str], write_bundle: WriteBundle) -> None:
    """The line is the env's."""
    mcp = "    mcp: {command: [/no/such/server]}\n"
    header = shop["bundle.yaml"].replace("    python: envs/store.py:Store\n", mcp)
    (line,) = problems(write_bundle({**shop, "bundle.yaml": header}))
    assert line.startswith("bundle.yaml:4: step 'deploy_env' failed: ")
    assert "/no/such/server" in line


@pytest.mark.parametrize(
    ("tool", "call", "says"),
    [
        (
            "raise ZeroDivisionError('by stock')",
            "sell, arguments: {count: 3}",
            "envs/store.py:12: tool 'sell' raised ZeroDivisionError: by stock (in task 'a'), correct it, or raise ToolError"
            " to refuse",
        ),
        ("return 1", "sel", "tasks/a.yaml:1: gold calls 'sel', which is no tool (in task 'a'), did you mean 'sell'?"),
        (
            "return 1",
            "sell, arguments: {cuont: 3}",
            "tasks/a.yaml:1: gold calls sell with arguments that do not fit (count: missing; cuont:"
            " there is no such parameter, did you mean count?) (in task 'a'), write what the tool takes",
        ),
    ],
)
def test_a_call_of_gold_that_breaks_is_a_problem_whatever_is_scored(
    shop: dict[str, str], write_bundle: WriteBundle, tool: str, call: str, says: str
) -> None:
    """Where the end state is that of gold itself, a broken tool leaves both alike: the call is what tells."""
    task = (
        f"id: a\nprompt: x\nverify: {{state: store, equals: gold}}\ngold: [{{calls: [{{tool: {call}}}], reply: x}}]\n"
    )
    env = shop["envs/store.py"].replace('self.state["stock"] -= count', tool)
    assert problems(write_bundle({**shop, "tasks/a.yaml": task, "envs/store.py": env})) == [says]


def test_a_call_of_gold_that_is_refused_is_noted(shop: dict[str, str], write_bundle: WriteBundle) -> None:
    """It may be right: some references contain refusals."""
    env = "from agent_env.errors import ToolError\n" + shop["envs/store.py"].replace(
        'self.state["stock"] -= count', "raise ToolError('closed')"
    )
    path = write_bundle({**shop, "envs/store.py": env, "verifiers/sold.py": "def score(episode):\n    return 1\n"})
    found = asyncio.run(rehearse(load_bundle(path)))
    assert found.problems == []
    assert found.notes[0] == "1 task ('a'): a call of gold is refused by its tool"


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


def test_skills_that_an_agent_is_not_shown_are_noted(shop: dict[str, str], write_bundle: WriteBundle) -> None:
    """Such a task plays, and a trainer leaves it out."""
    files = {"skills/sums/SKILL.md": "Add.\n", "tasks/a.yaml": shop["tasks/a.yaml"] + "skills: [sums]\n"}
    found = asyncio.run(rehearse(load_bundle(write_bundle({**shop, **files}))))
    assert found.notes == [
        "1 task ('a'): skills are given to an agent that is not shown them, write skills: true in the agent, or a trainer"
        " leaves the task out"
    ]
