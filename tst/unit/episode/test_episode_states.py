"""What agents leave of a universe: told once, so that it is scored as it is recorded; a tool that was stopped holds nobody up."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent_env import Event, Message, Outcome, PlayerTurn, Task, load_bundle, play

MakeShop = Callable[..., Task]

ENV = '''
import sqlite3
import threading

from agent_env import Env, tool

OPEN = []
BEGUN = threading.Event()
RAISED = []
RAISED_IT = threading.Event()
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT begun() UNION ALL SELECT x + 1 FROM n) SELECT sum(x) FROM n"


class Shop(Env):
    def start(self):
        OPEN.append(self)
        self.state.create_function("begun", 0, lambda: BEGUN.set() or 1)

    @tool
    def sell(self) -> str:
        """Sell one."""
        self.state.execute("UPDATE goods SET stock = stock - 1")
        return "sold"

    @tool(blocking=True, timeout_s=0.2)
    def count(self) -> int:
        """Count for ever."""
        try:
            return self.state.execute(ENDLESS).fetchone()[0]
        except sqlite3.Error as exc:
            RAISED.append(str(exc))
            RAISED_IT.set()
            raise
'''


@pytest.fixture
def make_shop(tmp_path: Path) -> MakeShop:
    """Makes the task of a shop with a database, with the given steps after its prompt."""

    def make(*after: Any, **files: str) -> Task:
        root = tmp_path / "shop"
        steps = [{"deploy_env": "shop"}, {"deploy_agent": "clerk"}, {"prompt": "Sell."}, *after]
        contents = {
            "bundle.yaml": "name: shop\nagents: {clerk: {}}\nreward: state\n"
            "envs: {shop: {python: 'envs/shop.py:Shop', universe: universes/shop.db}}\n",
            "envs/shop.py": ENV,
            "tasks/a.yaml": json.dumps({"id": "a", "steps": steps}),
            **files,
        }
        for name, text in contents.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        (root / "universes").mkdir()
        with closing(sqlite3.connect(root / "universes/shop.db")) as db:
            db.executescript(
                "CREATE TABLE goods (id INTEGER PRIMARY KEY, stock INT); INSERT INTO goods VALUES (1, 10);"
            )
        return load_bundle(root).task("a")

    return make


STATE = {"verify": {"state": "shop", "equals": {"after": [{"tool": "sell", "arguments": {}}]}}, "id": "state"}


def module_of(task: Task) -> Any:
    """The env's module, as the episode has loaded it."""
    python = task.bundle.envs["shop"].python
    assert python is not None
    return python.module()


def sells(turn: PlayerTurn) -> Message:
    """Sell one, then say so."""
    if turn.messages[-1]["role"] == "tool":
        return {"role": "assistant", "content": "Sold."}
    return {"role": "assistant", "content": "", "tool_calls": [{"name": "sell", "arguments": "{}"}]}


async def test_a_state_is_scored_as_the_run_has_it(make_shop: MakeShop, sink: Any) -> None:
    """What is told for the run is not told once more for a verifier, also where something goes on in the background."""
    task = make_shop({"verify": {"check": {"called": [{"tool": "sell"}]}}, "id": "check"}, STATE)

    def meddle(event: Event) -> None:
        type(sink).event(sink, event)
        if event.kind == "state":
            module_of(task).OPEN[-1].state.execute("UPDATE goods SET stock = 0")

    sink_of_both = type(sink)()
    sink_of_both.event = meddle
    result = await play(task, sells, sink=sink_of_both)
    (told,) = sink.of("state")
    assert told.data["changes"] == [{"path": "/goods/1/stock", "before": 10, "after": 9}]
    assert result.scores["state"].value == 1.0


async def test_what_a_step_changes_after_the_agents_is_scored_with_it(make_shop: MakeShop, sink: Any) -> None:
    """The run has what the agents left; a `run` step's changes are told anew for the verifiers after it."""
    code = "def restock(episode):\n    episode.state().execute('UPDATE goods SET stock = 12')\n"
    task = make_shop({"run": {"python": "scripts/day.py:restock"}}, STATE, **{"scripts/day.py": code})
    result = await play(task, sells, sink=sink)
    (told,) = sink.of("state")
    assert told.data["changes"] == [{"path": "/goods/1/stock", "before": 10, "after": 9}]
    assert result.scores["state"].explanation == "1 difference:\n/goods/1/stock: wanted 9, left 12"


async def test_a_tool_that_was_stopped_in_a_query_is_ended_and_holds_nobody_up(make_shop: MakeShop, sink: Any) -> None:
    """Its query is interrupted at once; what the agent left is recorded and scored."""
    task = make_shop(STATE)

    async def counts(turn: PlayerTurn) -> Message:
        module = module_of(task)
        if turn.messages[-1]["role"] != "tool":
            return {"role": "assistant", "content": "", "tool_calls": [{"name": "count", "arguments": "{}"}]}
        assert await asyncio.to_thread(module.RAISED_IT.wait, 20)
        assert module.RAISED == ["interrupted"]
        return {"role": "assistant", "content": "I cannot."}

    result = await play(task, counts, sink=sink)
    (answer,) = sink.of("answer")
    assert answer.data["error_kind"] == "timed_out"
    (told,) = sink.of("state")
    assert told.data["changes"] == []
    assert result.outcome is Outcome.COMPLETED
    assert result.scores["state"].value == 0.0
