"""Recorded runs scored again: with a mended verifier, another one, a state made again from what the run kept."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from click.testing import CliRunner

from agent_env import CutReason, Message, PlayerTurn, RunIndex, UsageError, load_bundle, open_episode, play
from agent_env.cli import root

ENV = '''
from agent_env import Env, tool


class Store(Env):
    @tool
    def sell(self, count: int) -> str:
        """Sell."""
        self.state["stock"] -= count
        self.state["sales"].append({"count": count})
        return "sold"
'''
VERIFIER = (
    "def score(episode):\n    return {'score': episode.state()['stock'] == 7, 'explanation': str(len(episode.calls))}\n"
)
FILES = {
    "bundle.yaml": "name: shop\nenvs:\n  store: {python: 'envs/store.py:Store', universe: universes/store.json}\n",
    "envs/store.py": ENV,
    "universes/store.json": '{"stock": 10, "sales": []}',
    "verifiers/sold.py": VERIFIER,
    "tasks/a.yaml": "id: a\nparams: {count: 3}\nprompt: Sell.\nverify: {python: verifiers/sold.py}\n",
}


def seller(turn: PlayerTurn) -> Message:
    """Sells three, and says so."""
    if turn.messages[-1]["role"] == "tool":
        return {"role": "assistant", "content": "Sold."}
    call = {"name": "sell", "arguments": '{"count": 3}'}
    return {"role": "assistant", "content": "", "tool_calls": [call]}  # type: ignore[typeddict-item]


class Shop:
    """A bundle in a folder, and runs of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs = folder / "runs"

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            (self.folder / "shop" / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / "shop" / name).write_text(text)

    def play(self, task: str = "a", player: Callable[[PlayerTurn], Message] = seller, group: str = "g") -> None:
        with RunIndex.open(self.runs) as index:
            asyncio.run(play(load_bundle(self.folder / "shop").task(task), player, sink=index.run(group)))

    def rescore(self, *more: str) -> str:
        # On a copy: a bundle's files are imported once, and in another folder they are another bundle's.
        copy = Path(mkdtemp(dir=self.folder)) / "shop"
        shutil.copytree(self.folder / "shop", copy)
        ran = CliRunner().invoke(
            root, ["rescore", str(self.runs), "--bundle", str(copy), *more], catch_exceptions=False
        )
        return ran.stdout

    def rescore_later(self) -> str:
        """Score the runs in a process of its own, with the bundle that they name."""
        command = [sys.executable, "-m", "agent_env", "rescore", str(self.runs)]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=50).stdout

    def json(self, *more: str) -> dict[str, Any]:
        (line,) = self.rescore("--json", *more).splitlines()
        return json.loads(line)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """One task, not played yet."""
    made = Shop(tmp_path)
    made.write(FILES)
    return made


def test_the_same_verifiers_give_the_same_scores(shop: Shop) -> None:
    """The state, the calls and the replies are those of the episode."""
    shop.play()
    assert shop.rescore_later() == "1 of 1 runs scored again, 0 with another score; mean reward 1.000 of 1\n"
    assert shop.json()["explanations"] == {"sold": "1"}


def test_a_group_is_scored_with_those_below_it(shop: Shop) -> None:
    """As everywhere: `t` has `t/train/step-0001`, not `tt`; a run that two of them have is scored once."""
    for group in ("t/train/step-0001", "t/train/step-0002", "t/eval/step-0002", "tt"):
        shop.play(group=group)
    assert shop.rescore("--group", "t").startswith("3 of 3 runs")
    assert shop.rescore("--group", "t/train").startswith("2 of 2 runs")
    assert shop.rescore("--group", "t/train", "--group", "t", "--group", "t/train/step-0001").startswith("3 of 3 runs")
    assert shop.rescore("--group", "tt").startswith("1 of 1 runs")
    with pytest.raises(UsageError, match="no group 't/tr'"):
        shop.rescore("--group", "t/tr")


def test_a_changed_verifier_scores_what_was_played(shop: Shop) -> None:
    """The records stay as they are; what is different is listed."""
    shop.play()
    shop.write({"verifiers/sold.py": "def score(episode):\n    return len(episode.replies) / 4\n"})
    said = shop.rescore_later().splitlines()
    assert said[0].endswith(" a: sold 1 -> sold 0.25")
    assert said[1] == "1 of 1 runs scored again, 1 with another score; mean reward 0.250 of 1"
    with RunIndex.open(shop.runs, read_only=True) as index:
        (run,) = index.all_runs("g")
    assert dict(run.scores) == {"sold": 1}


def test_what_runs_between_the_last_turn_and_the_verifiers_is_done_once(shop: Shop) -> None:
    """What is kept is what the agent left: the step is done again with the verifiers."""
    run = "def close(episode):\n    episode.state()['stock'] *= 10\n"
    task = (
        "id: a\nparams: {count: 3}\nsteps:\n  - deploy_env: store\n  - deploy_agent: agent\n  - prompt: Sell.\n"
        "  - run: {python: 'scripts/day.py:close'}\n  - verify: {python: verifiers/sold.py}\n"
    )
    shop.write({"scripts/day.py": run, "tasks/a.yaml": task, "verifiers/sold.py": VERIFIER.replace("7", "70")})
    shop.play()
    assert shop.rescore_later() == "1 of 1 runs scored again, 0 with another score; mean reward 1.000 of 1\n"


def test_a_run_whose_verifier_broke_is_scored_after_all(shop: Shop) -> None:
    """The agent had done its part: once the verifier is mended, its episode has a score."""
    shop.write({"verifiers/sold.py": "def score(episode):\n    raise KeyError('stok')\n"})
    shop.play()
    shop.write({"verifiers/sold.py": VERIFIER})
    assert shop.json()["reward"] == 1
    assert "a: failed -> sold 1" in shop.rescore()


def test_new_kinds_of_verifiers_see_what_was_played(shop: Shop) -> None:
    """Checks on the conversation, and the state that gold leaves."""
    shop.play()
    task = (
        "id: a\nparams: {count: 3}\nprompt: Sell.\ngold: [{calls: [{tool: sell, arguments: {count: 3}}], reply: x}]\n"
        "verify:\n  - {state: store, equals: gold, weight: 1}\n  - {check: {said: [sold], called: [{tool: sell}]}, required: true}\n"
    )
    shop.write({"tasks/a.yaml": task})
    assert shop.json()["scores"] == {"state": 1, "check": 1}


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"tasks/a.yaml": FILES["tasks/a.yaml"].replace("id: a", "id: b")}, "bundle shop has no task 'a' any more"),
        ({"tasks/a.yaml": FILES["tasks/a.yaml"].replace("3", "4")}, "the task's params are others than those"),
        ({"universes/store.json": '{"stock": 10, "sales": [], "new": 1}'}, "universe of env 'store' is another than"),
        ({"verifiers/sold.py": "def score(episode):\n    return None\n"}, "returned None, which is no number"),
    ],
)
def test_what_cannot_be_scored_is_said_and_not_made_up(shop: Shop, files: dict[str, str], says: str) -> None:
    """Another task, other params, another universe, a verifier that breaks: a line, and no score."""
    shop.play()
    shop.write(files)
    found = shop.json()
    assert (found["scores"], found["reward"]) == ({}, None)
    assert says in found["why_not"]
    assert shop.rescore().startswith("0 of 1 runs scored again")


def test_a_run_that_was_given_up_is_not_scored(shop: Shop) -> None:
    """There is no end of it to score."""

    async def give_up() -> None:
        with RunIndex.open(shop.runs) as index:
            async with open_episode(load_bundle(shop.folder / "shop").task("a"), sink=index.run("g")) as episode:
                await episode.start()

    asyncio.run(give_up())
    assert shop.json()["why_not"] == "it was not played to its end (abandoned)"


def test_a_cut_is_still_a_cut(shop: Shop) -> None:
    """Verifiers see why the trainer ended the episode, and no reply where there was none."""

    async def cut() -> None:
        with RunIndex.open(shop.runs) as index:
            async with open_episode(load_bundle(shop.folder / "shop").task("a"), sink=index.run("g")) as episode:
                await episode.start()
                await episode.cut(CutReason.TOKEN_LIMIT)
                await episode.result()

    asyncio.run(cut())
    shop.write(
        {
            "verifiers/sold.py": "def score(episode):\n    return episode.cut == 'token_limit' and episode.replies == []\n"
        }
    )
    assert shop.json()["reward"] == 1


def test_scores_between_turns_stay(shop: Shop) -> None:
    """The state that such a verifier saw is not kept; those after the last prompt are made again."""
    steps = (
        "id: a\nparams: {count: 3}\nsteps:\n  - deploy_env: store\n  - deploy_agent: agent\n  - prompt: Sell.\n"
        "  - {verify: {python: verifiers/sold.py}, id: early}\n  - prompt: Again.\n  - {verify: {python: verifiers/sold.py}, id: late}\n"
    )
    shop.write({"tasks/a.yaml": steps, "bundle.yaml": FILES["bundle.yaml"] + "reward: {early: 1, late: 2}\n"})
    shop.play()
    shop.write({"verifiers/sold.py": "def score(episode):\n    return 0.5\n"})
    found = shop.json()
    assert found["scores"] == {"early": 1, "late": 0.5}
    assert found["reward"] == 2


def test_an_env_that_starts_after_the_last_turn_starts_again(shop: Shop) -> None:
    """It is a verifier's: there is nothing in it that an agent left, and the run has none."""
    shop.write(
        {
            "bundle.yaml": FILES["bundle.yaml"]
            + "  bank: {python: 'envs/store.py:Store', universe: universes/bank.json}\nagents: {agent: {envs: [store]}}\n",
            "universes/bank.json": '{"stock": 5}',
            "tasks/a.yaml": "id: a\nparams: {count: 3}\nsteps:\n  - deploy_env: store\n  - deploy_agent: agent\n"
            "  - prompt: Sell.\n  - deploy_env: bank\n  - verify: {python: verifiers/sold.py}\n",
            "verifiers/sold.py": "def score(episode):\n    return episode.state('store')['stock'] + episode.state('bank')['stock']\n",
        }
    )
    shop.play()
    found = shop.json()
    assert (found["recorded"]["scores"], found["scores"]) == ({"sold": 12}, {"sold": 12})


def test_a_step_that_fails_leaves_no_score_though_the_episode_would_go_on(shop: Shop) -> None:
    """As when it was played: what failed is no reward."""
    shop.play()
    task = (
        "id: a\nparams: {count: 3}\nsteps:\n  - deploy_env: store\n  - deploy_agent: agent\n  - prompt: Sell.\n"
        "  - {run: {python: 'scripts/day.py:close'}, fail_task_on_error: false}\n  - verify: {python: verifiers/sold.py}\n"
    )
    shop.write({"scripts/day.py": "def close(episode):\n    raise KeyError('till')\n", "tasks/a.yaml": task})
    found = shop.json()
    assert (found["scores"], found["reward"]) == ({}, None)
    assert "raised KeyError: 'till'" in found["why_not"]


def test_a_database_is_made_again(shop: Shop) -> None:
    """Rows that an episode changed, added and removed."""
    env = ENV.replace(
        'self.state["stock"] -= count', 'self.state.execute("UPDATE goods SET stock = stock - ?", (count,))'
    )
    env = env.replace(
        'self.state["sales"].append({"count": count})',
        'self.state.execute("INSERT INTO sales VALUES (1, ?)", (count,))',
    )
    verifier = "def score(episode):\n    db = episode.state()\n    return db.execute('SELECT stock FROM goods').fetchone()[0] + db.execute('SELECT count FROM sales').fetchone()[0]\n"
    shop.write({"envs/store.py": env, "verifiers/sold.py": verifier})
    shop.write({"bundle.yaml": FILES["bundle.yaml"].replace("store.json", "store.db")})
    with closing(sqlite3.connect(shop.folder / "shop/universes/store.db")) as db:
        db.executescript(
            "CREATE TABLE goods (id INTEGER PRIMARY KEY, stock INT); CREATE TABLE sales (id INTEGER PRIMARY KEY, count INT); INSERT INTO goods VALUES (1, 10);"
        )
    shop.play()
    found = shop.json()
    assert (found["recorded"]["scores"], found["scores"]) == ({"sold": 10}, {"sold": 10})


def test_what_an_episode_changed_is_printed(shop: Shop) -> None:
    """`agent-env universe diff RUN`, as text and as JSON."""
    shop.play()
    with RunIndex.open(shop.runs, read_only=True) as index:
        (run,) = index.all_runs("g")
    ran = CliRunner().invoke(root, ["universe", "diff", run.run_id[:6], "--runs", str(shop.runs)])
    assert ran.stdout == 'store: 2 changes\n  /sales/0 is new: {"count": 3}\n  /stock: 10 is now 7\n'
    said = json.loads(
        CliRunner().invoke(root, ["universe", "diff", run.run_id, "--runs", str(shop.runs), "--json"]).stdout
    )
    assert [change["path"] for change in said["store"]["changes"]] == ["/sales/0", "/stock"]
    wrong = CliRunner().invoke(root, ["universe", "diff", run.run_id, "--runs", str(shop.runs), "--env", "stor"])
    assert "kept no state of env 'stor': it has store" in str(wrong.exception)
