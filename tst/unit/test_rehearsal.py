"""`agent-env validate` plays the reference solutions: what each claims, and tasks that teach nothing."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
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


def with_state(shop: dict[str, str], *, ignore: str, tasks: int = 1, **files: str) -> dict[str, str]:
    """The shop, whose tasks have a state verifier that leaves places out."""
    universe = '{"stock": 10, "orders": {"A": {"status": "new", "updated_at": 1, "items": [{"id": 1, "seen": 0}]}}}'
    verify = f"verify: {{state: store, equals: gold, {ignore}}}\n"
    made = {
        f"tasks/t{index}.yaml": f"id: t{index}\nparams: {{count: 3}}\nprompt: x\n{verify}{GOLD}"
        for index in range(tasks)
    }
    return {**shop, "universes/store.json": universe, **made, **files}


@pytest.mark.parametrize(
    ("ignore", "near"),
    [
        ("ignore: [/orders/*/updatd_at]", "/orders/*/updated_at"),
        ("ignore: [/ordres/*/updatd_at]", "/orders/*/updated_at"),
        ("ignore: [/updated_at]", "/**/updated_at"),
        ("ignore: [/orders/A/items/0/sen]", "/orders/A/items/0/seen"),
        ("unordered: [/orders/*/item]", "/orders/*/items"),
        ("ignore: ['/**/updatedat']", None),
    ],
)
def test_a_place_that_is_nowhere_is_noted_with_what_is_like_it(
    shop: dict[str, str], write_bundle: WriteBundle, ignore: str, near: str | None
) -> None:
    """It leaves nothing out. No problem: it may be there for other agents than gold."""
    path = write_bundle(with_state(shop, ignore=ignore, tasks=2))
    notes = [note for note in asyncio.run(rehearse(load_bundle(path))).notes if "nothing is at" in note]
    written = ignore.partition("[")[2].removesuffix("]").strip("'")
    said = (
        f"2 tasks ('t0', 't1'): nothing is at '{written}' in the state of env 'store', which the verifier leaves out,"
        f" did you mean '{near}'?"
    )
    assert notes == ([] if near is None else [said])


def test_a_place_that_only_gold_makes_or_that_another_task_has_is_somewhere(
    shop: dict[str, str], write_bundle: WriteBundle
) -> None:
    """So is one that only other agents may make: nothing is like it."""
    env = shop["envs/store.py"].replace(
        'self.state["stock"] -= count', 'self.state["orders"]["A"]["updated_by"] = {"id": self.task_id}'
    )
    ignore = "ignore: [/orders/A/updated_by/id, /stock, /orders/*/items/*/seen, /log/*/at, '/**/id']"
    path = write_bundle(with_state(shop, ignore=ignore, **{"envs/store.py": env}))
    assert asyncio.run(rehearse(load_bundle(path))).nowhere == []


def test_a_place_in_a_database_is_a_table_and_a_column(shop: dict[str, str], write_bundle: WriteBundle) -> None:
    """Of any key: which rows there are is the agent's to change."""
    path = write_bundle(
        with_state(shop, ignore="ignore: [/orders/7/amount, /orders/*/upated_at, /oders/*, '/**/amount']")
    )
    with closing(sqlite3.connect(path / "universes/store.db")) as database, database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, amount INTEGER, updated_at TEXT)")
    for name, old, new in [
        ("bundle.yaml", "store.json", "store.db"),
        ("envs/store.py", 'self.state["stock"] -= count', "self.state.execute('INSERT INTO orders VALUES (1, 2, 3)')"),
        ("envs/store.py", 'self.state["stock"]', "0"),
    ]:
        (path / name).write_text((path / name).read_text().replace(old, new))
    found = asyncio.run(rehearse(load_bundle(path), [load_bundle(path).task("t0")]))
    assert [(place.path, place.near) for place in found.nowhere] == [
        ("/orders/*/upated_at", "/orders/*/updated_at"),
        ("/oders/*", "/orders/*"),
    ]


def test_a_place_in_a_directory_is_a_file(shop: dict[str, str], write_bundle: WriteBundle) -> None:
    """By the names of the folders that it is in."""
    files = with_state(shop, ignore="ignore: [/out/log.txt, /out/lgo.txt]")
    path = write_bundle({**files, "universes/store/out/log.txt": "", "universes/store/stock.txt": "10"})
    (path / "bundle.yaml").write_text((path / "bundle.yaml").read_text().replace("store.json", "store"))
    code = (path / "envs/store.py").read_text()
    code = code.replace('self.state["stock"] -= count', "(self.state / 'stock.txt').write_text('7')")
    (path / "envs/store.py").write_text(code.replace('self.state["stock"]', "7"))
    found = asyncio.run(rehearse(load_bundle(path), [load_bundle(path).task("t0")]))
    assert [(place.path, place.near) for place in found.nowhere] == [("/out/lgo.txt", "/out/log.txt")]


def test_places_that_are_nowhere_are_in_the_json(shop: dict[str, str], write_bundle: WriteBundle) -> None:
    """For a program."""
    path = write_bundle(with_state(shop, ignore="ignore: [/orders/*/updatd_at]"))
    said = json.loads(CliRunner().invoke(root, ["validate", "--json", str(path)]).stdout)
    assert said["ok"]
    place = {"env": "store", "path": "/orders/*/updatd_at", "near": "/orders/*/updated_at", "tasks": ["t0"]}
    assert said["nowhere"] == [place]
