"""State verifiers over databases and directories."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent_env import EpisodeView, FailureKind, Score, Task, load_bundle
from agent_env.bundle import GoldCall, StateVerifier, UniverseKind, UniverseSpec, Verify
from agent_env.envs import open_env
from agent_env.episode.wanted_states import wanted_state
from agent_env.universe import StateChanges, changes_on_disk, open_universe_on_disk
from agent_env.verify.score import VerifyMeans, verify_step
from agent_env.verify.state import LeftState, WantedState, state_score
from agent_env.verify.step_failed import StepFailedError

ENV = '''
import sqlite3

from agent_env import Env, tool


class Store(Env):
    @tool
    def sql(self, text: str) -> str:
        """Write to the database."""
        self.state.executescript(text)
        return "ok"

    @tool
    def write(self, path: str, text: str) -> str:
        """Write a file."""
        (self.state / path).parent.mkdir(parents=True, exist_ok=True)
        (self.state / path).write_text(text)
        return "ok"

    @tool
    def remove(self, path: str) -> str:
        """Remove a file."""
        (self.state / path).unlink()
        return "ok"
'''
SCHEMA = """
CREATE TABLE orders (id TEXT PRIMARY KEY, amount REAL, note TEXT, updated_at TEXT);
CREATE TABLE events (id INTEGER PRIMARY KEY, what TEXT);
INSERT INTO orders VALUES ('A1', 10, NULL, 'monday'), ('A2', 20, 'gift', 'monday');
INSERT INTO events (what) VALUES ('opened');
"""


class Store:
    """A bundle with one task over a database or a directory."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.env = task.bundle.envs["store"]
        self.folder = task.bundle.root / "universes"

    async def score(self, gold: list[Any] | str | Path, calls: list[Any], **said: Any) -> Score:
        """What is scored after these calls, where those leave the state that is wanted."""
        wanted: Any = gold
        if isinstance(gold, list):
            wanted = tuple(map(call, gold))
        elif isinstance(gold, Path):
            assert self.env.universe is not None
            wanted = replace(self.env.universe, path=gold)
        step = Verify(id="state", verifier=StateVerifier(env="store", wanted=wanted, **said))
        async with open_env(self.env, task=self.task) as session:
            for one in map(call, calls):
                answer = await session.call(one.tool, one.arguments)
                assert not answer.is_error, answer.text
            left = LeftState(spec=self.env.universe, state=session.state, changes=session.changes)
            means = VerifyMeans(
                root=self.task.bundle.root,
                sandboxes={},
                ask=None,
                wanted=partial(wanted_state, self.task, timeout_s=5),
                lefts={"store": left},
            )
            outcome = (await verify_step(step, view({"store": session.state}), means, timeout_s=5)).outcome
        assert isinstance(outcome, Score)
        return outcome


def call(written: str | tuple[str, str] | Path) -> GoldCall:
    """A call: a text is SQL, a pair a file with its text, a path one that is removed."""
    if isinstance(written, str):
        return GoldCall(tool="sql", arguments={"text": written})
    if isinstance(written, Path):
        return GoldCall(tool="remove", arguments={"path": str(written)})
    return GoldCall(tool="write", arguments={"path": written[0], "text": written[1]})


def view(states: dict[str, Any]) -> EpisodeView:
    """An episode that left these states."""
    return EpisodeView(
        task_id="a", params={}, tags=(), messages=[], replies=[], calls=[], scores={}, cut=None, states=states
    )


def database(path: Path, *more: str) -> Path:
    """A database with some orders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("".join((SCHEMA, *more)))
    return path


def directory(path: Path, **more: str) -> Path:
    """A directory with some files."""
    for name, text in {"a.txt": "one", "sub/b.txt": "two", **more}.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


@pytest.fixture
def make_store(tmp_path: Path) -> Callable[[str], Store]:
    """Makes a store over a universe of this name."""

    def make(universe: str) -> Store:
        files = {
            "bundle.yaml": json.dumps(
                {
                    "name": "store",
                    "version": "1",
                    "envs": {"store": {"python": "envs/store.py:Store", "universe": f"universes/{universe}"}},
                    "agents": {"clerk": {}},
                }
            ),
            "envs/store.py": ENV,
            "verifiers/any.py": "def score(episode):\n    return 1\n",
            "tasks/a.yaml": json.dumps({"id": "a", "prompt": "Go.", "verify": {"python": "verifiers/any.py"}}),
        }
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
        if universe.endswith(".db"):
            database(tmp_path / "universes" / universe)
        else:
            directory(tmp_path / "universes" / universe)
        return Store(load_bundle(tmp_path).task("a"))

    return make


REFUND = "UPDATE orders SET amount = 0, updated_at = 'tuesday' WHERE id = 'A1';"


async def test_a_database_is_compared_by_its_rows(make_store: Callable[[str], Store]) -> None:
    """Values count, and how they came about does not."""
    store = make_store("shop.db")
    other_way = [
        "DELETE FROM orders WHERE id = 'A1';",
        "INSERT INTO orders VALUES ('A1', 0.0, NULL, 'tuesday');",
    ]
    assert (await store.score([REFUND], other_way)).value == 1.0
    assert (await store.score([REFUND], [REFUND])).value == 1.0
    assert (await store.score("start", [])).value == 1.0
    missed = await store.score(
        [REFUND, "INSERT INTO events (what) VALUES ('refund');"], ["DELETE FROM orders WHERE id = 'A2';"]
    )
    assert missed.value == 0.0
    assert missed.explanation.splitlines() == [
        "4 differences:",
        '/events/2: wanted {"id": 2, "what": "refund"}, left nothing',
        "/orders/A1/amount: wanted 0.0, left 10.0",
        '/orders/A1/updated_at: wanted "tuesday", left "monday"',
        '/orders/A2: wanted {"id": "A2", "amount": 20.0, "note": "gift", "updated_at": "monday"}, left nothing',
    ]


async def test_columns_and_the_keys_of_a_table_may_not_count(make_store: Callable[[str], Store]) -> None:
    """As the verifier says."""
    store = make_store("shop.db")
    wanted = [REFUND, "INSERT INTO events VALUES (7, 'refund');"]
    left = ["INSERT INTO events VALUES (9, 'refund');", "UPDATE orders SET amount = 0 WHERE id = 'A1';"]
    assert (await store.score(wanted, left)).metrics["differences"] == 3
    assert (await store.score(wanted, left, ignore=("/orders/*/updated_at",))).metrics["differences"] == 2
    ignore = ("/orders/*/updated_at", "/events/*/id")
    assert (await store.score(wanted, left, ignore=ignore, unordered=("/events",))).value == 1.0


async def test_a_directory_is_compared_by_its_files(make_store: Callable[[str], Store]) -> None:
    """What is in them, and which there are."""
    store = make_store("work")
    wanted: list[Any] = [("a.txt", "changed"), ("new/c.txt", "three"), Path("sub/b.txt")]
    assert (await store.score(wanted, [Path("sub/b.txt"), ("new/c.txt", "three"), ("a.txt", "changed")])).value == 1.0
    missed = await store.score(wanted, [("a.txt", "other"), Path("sub/b.txt")])
    assert missed.value == 0.0
    assert "a.txt" in missed.explanation
    assert "c.txt" in missed.explanation
    assert "b.txt" not in missed.explanation
    assert (await store.score("start", [])).value == 1.0
    assert (await store.score("start", [("a.txt", "one ")])).value == 0.0


async def test_what_is_gone_is_not_what_was_changed(make_store: Callable[[str], Store]) -> None:
    """Although it is at the same place."""
    store = make_store("work")
    assert (await store.score([Path("a.txt")], [("a.txt", "other")])).value == 0.0
    assert (await store.score([("a.txt", "other")], [Path("a.txt")])).value == 0.0
    assert (await store.score([Path("a.txt")], [Path("a.txt")])).value == 1.0


async def test_large_files_are_compared_by_their_hash(make_store: Callable[[str], Store]) -> None:
    """They are not kept, so nothing in them can be left aside."""
    store = make_store("work")
    one, two = "x" * 300_000, "x" * 299_999 + "y"
    assert (await store.score([("a.txt", one)], [("a.txt", one)])).value == 1.0
    assert (await store.score([("a.txt", one)], [("a.txt", two)])).value == 0.0
    assert (await store.score([("a.txt", one)], [])).value == 0.0
    missed = await store.score("start", [("a.txt", one)])
    assert missed.value == 0.0
    assert len(missed.explanation) < 1000
    with pytest.raises(StepFailedError, match="more was changed than can be compared"):
        await store.score([("a.txt", one)], [("a.txt", one)], ignore=("/sub",))


async def test_a_state_that_differs_all_over_is_another_one(make_store: Callable[[str], Store]) -> None:
    """However much of it an agent has changed; a reference that is too much to keep fails the step."""
    store = make_store("shop.db")
    flood = (
        "WITH RECURSIVE n(i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM n WHERE i < 12000) "
        "INSERT INTO events SELECT i, 'flood' FROM n;"
    )
    missed = await store.score([REFUND], [flood])
    assert missed.value == 0.0
    assert missed.metrics["differences"] == 11_993
    assert len(missed.explanation.splitlines()) == 22
    with pytest.raises(StepFailedError, match="more is changed in env 'store' than can be kept to compare with"):
        await store.score([flood], [flood])


async def test_a_universe_that_a_server_has_as_files_is_compared_by_value(tmp_path: Path) -> None:
    """A JSON file in the server's folder is a JSON state."""
    (tmp_path / "shop.json").write_text('{"orders": {"A1": {"amount": 10}}}')
    (tmp_path / "after.json").write_text('{"orders": {"A1": {"amount": 0.0}}}')
    spec = UniverseSpec(path=tmp_path / "shop.json", kind=UniverseKind.JSON)
    verifier = StateVerifier(env="store", wanted=replace(spec, path=tmp_path / "after.json"))
    wanted = WantedState(spec=replace(spec, path=tmp_path / "after.json"))
    async with open_universe_on_disk(spec) as folder:
        left = LeftState(spec=spec, state=folder, changes=partial(changes_on_disk, folder))
        missed = await state_score("state", verifier, wanted, left, timeout_s=5)
        assert missed.explanation == "1 difference:\n/orders/A1/amount: wanted 0.0, left 10"
        (folder / "shop.json").write_text('{"orders": {"A1": {"amount": 0}}}')
        assert (await state_score("state", verifier, wanted, left, timeout_s=5)).value == 1.0


async def test_the_end_state_may_be_another_database(make_store: Callable[[str], Store]) -> None:
    """A file that has nothing to do with the first one."""
    store = make_store("shop.db")
    after = database(store.folder / "after.db", REFUND)
    assert (await store.score(after, [REFUND])).value == 1.0
    missed = await store.score(after, [])
    assert missed.metrics["differences"] == 2
    assert "/orders/A1/amount: wanted 0.0, left 10.0" in missed.explanation


async def test_the_end_state_may_be_another_directory(make_store: Callable[[str], Store]) -> None:
    """Likewise."""
    store = make_store("work")
    after = directory(store.folder / "after", **{"a.txt": "changed", "new/c.txt": "three"})
    (after / "sub/b.txt").unlink()
    done: list[Any] = [("a.txt", "changed"), ("new/c.txt", "three"), Path("sub/b.txt")]
    assert (await store.score(after, done)).value == 1.0
    (after / "sub/b.txt").write_text("two")
    assert (await store.score(after, done[:2])).value == 1.0
    missed = await store.score(after, [])
    assert missed.value == 0.0
    assert "a.txt" in missed.explanation
    assert "b.txt" not in missed.explanation


async def test_an_env_without_a_universe_of_its_own_cannot_be_compared(make_store: Callable[[str], Store]) -> None:
    """It fails the step."""
    store = make_store("shop.db")

    async def untold() -> StateChanges | None:
        return None

    step = Verify(id="state", verifier=StateVerifier(env="store", wanted="start"))
    means = VerifyMeans(
        root=store.task.bundle.root,
        sandboxes={},
        ask=None,
        wanted=partial(wanted_state, store.task, timeout_s=5),
        lefts={"store": LeftState(spec=store.env.universe, state=None, changes=untold)},
    )
    with pytest.raises(StepFailedError, match="has no universe of its own") as caught:
        await verify_step(step, view({"store": None}), means, timeout_s=5)
    assert caught.value.kind is FailureKind.VERIFIER_RAISED
