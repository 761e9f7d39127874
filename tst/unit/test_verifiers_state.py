"""State verifiers: the state that calls leave against the one that the agent left, made once for all who ask."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agent_env import FailureKind, Score, Task, load_bundle
from agent_env.bundle import StateVerifier, Verify
from agent_env.envs import open_env
from agent_env.episode import wanted_states
from agent_env.episode._calling import call_env
from agent_env.episode.wanted_states import wanted_state
from agent_env.universe import apply, open_universe, plain
from agent_env.verify.score import VerifyMeans, verify_step
from agent_env.verify.state import LeftState, WantedState
from agent_env.verify.step_failed import StepFailedError
from agent_env.verify.view import EpisodeView

SHOP = '''
import asyncio

from agent_env import Env, ToolError, tool
from agent_env.errors import EnvBrokenError

OPENED, CLOSED = [], []
STARTED, LEAVING, GO = asyncio.Event(), asyncio.Event(), asyncio.Event()
IS_BROKEN = []


class Shop(Env):
    def start(self):
        OPENED.append(self)

    def close(self):
        CLOSED.append(self)
        self.state.clear()

    @tool
    def sell(self, item: str, count: float) -> str:
        """Sell some of an item."""
        if item not in self.state["stock"]:
            raise ToolError("there is no such item")
        self.state["stock"][item] -= count
        self.state["sold"].append(item)
        return "sold"

    @tool
    def stamp(self, by: str) -> str:
        """Write down who was here."""
        self.state["stamped"] = {"by": by, "params": self.params}
        return "stamped"

    @tool
    async def wait(self) -> str:
        """Wait until it is time."""
        STARTED.set()
        await GO.wait()
        self.state["waited"] = True
        return "waited"

    @tool
    async def linger(self) -> str:
        """Wait until it is time, also when cancelled."""
        STARTED.set()
        try:
            await GO.wait()
        except asyncio.CancelledError:
            LEAVING.set()
            await GO.wait()
            raise
        return "lingered"

    @tool
    def burn(self) -> str:
        """Break the shop."""
        if IS_BROKEN:
            raise EnvBrokenError("the shop is on fire")
        return "fine"

    @tool
    def cancel(self) -> str:
        """Raise what looks like a cancellation."""
        self.state["cancelled"] = True
        raise asyncio.CancelledError
'''
STATE = {"stock": {"tea": 10, "milk": 5.0}, "sold": [], "note": "10"}
Calls = Sequence[tuple[str, dict[str, Any]]]
SELL: Calls = [("sell", {"item": "tea", "count": 2})]


class Shop:
    """A bundle with one task, whose state is looked at."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.env = task.bundle.envs["shop"]
        assert self.env.python is not None
        self.module: ModuleType = self.env.python.module()
        self.universe = task.bundle.root / "universes" / "shop.json"

    def verifier(self, **said: Any) -> StateVerifier:
        return StateVerifier(**{"env": "shop", "wanted": "gold", **said})

    async def score(self, calls: Calls = (), *, timeout_s: float = 5, **said: Any) -> Score:
        """What is scored after these calls."""
        step = Verify(id="state", verifier=self.verifier(**said))
        wanted = partial(wanted_state, self.task, timeout_s=timeout_s)
        async with open_env(self.env, task=self.task) as session:
            for name, arguments in calls:
                await call_env(session, name, arguments)
            left = LeftState(spec=self.env.universe, state=session.state, changes=session.changes)
            root = self.task.bundle.root
            means = VerifyMeans(root=root, sandboxes={}, ask=None, wanted=wanted, lefts={"shop": left})
            outcome = (await verify_step(step, view({"shop": session.state}), means, timeout_s=5)).outcome
        assert isinstance(outcome, Score)
        return outcome

    async def made(self, timeout_s: float | None = 5) -> WantedState:
        """What is kept of the state that the task wants."""
        return await wanted_state(self.task, self.verifier(), timeout_s=timeout_s)

    async def wanted(self, timeout_s: float | None = 5) -> Any:
        """The state that the task wants."""
        made = await self.made(timeout_s)
        async with open_universe(made.spec) as copy:
            return plain(apply(made.changes, copy.state))

    @property
    def opened(self) -> int:
        """How often the shop was opened."""
        return len(vars(self.module)["OPENED"])

    @property
    def closed(self) -> int:
        """How often it was closed again."""
        return len(vars(self.module)["CLOSED"])


def view(states: Mapping[str, Any]) -> EpisodeView:
    """An episode that left these states."""
    return EpisodeView(
        task_id="a", params={}, tags=(), messages=[], replies=[], calls=[], scores={}, cut=None, states=states
    )


MakeShop = Callable[..., Shop]


@pytest.fixture
def make_shop(tmp_path: Path) -> MakeShop:
    """Makes a shop whose task has these calls as gold."""

    def make(calls: Calls = SELL, state: Any = STATE) -> Shop:
        gold = [{"calls": [{"tool": name, "arguments": arguments}], "reply": ""} for name, arguments in calls]
        files = {
            "bundle.yaml": json.dumps(
                {
                    "name": "shop",
                    "version": "1",
                    "envs": {"shop": {"python": "envs/shop.py:Shop", "universe": "universes/shop.json"}},
                    "agents": {"clerk": {}},
                }
            ),
            "envs/shop.py": SHOP,
            "universes/shop.json": json.dumps(state),
            "verifiers/any.py": "def score(episode):\n    return 1\n",
            "tasks/a.yaml": json.dumps(
                {
                    "id": "a",
                    "params": {"who": "Ann"},
                    "prompt": ["Sell."] * max(len(calls), 1),
                    "verify": {"python": "verifiers/any.py"},
                    **({"gold": gold} if gold else {}),
                }
            ),
        }
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
        return Shop(load_bundle(tmp_path).task("a"))

    return make


async def test_a_state_is_equal_or_every_difference_is_named(make_shop: MakeShop) -> None:
    """With its place, what was wanted there and what was left."""
    shop = make_shop()
    same = await shop.score(SELL)
    assert (same.value, same.explanation, dict(same.metrics)) == (1.0, "", {"differences": 0.0})
    other = await shop.score([("sell", {"item": "milk", "count": 1}), ("stamp", {"by": "Bo"})])
    assert (other.value, dict(other.metrics)) == (0.0, {"differences": 4.0})
    assert other.explanation.splitlines() == [
        "4 differences:",
        '/sold/0: wanted "tea", left "milk"',
        '/stamped: wanted nothing, left {"by": "Bo", "params": {"who": "Ann"}}',
        "/stock/milk: wanted 5.0, left 4.0",
        "/stock/tea: wanted 8.0, left 10",
    ]


async def test_doing_nothing_scores_0_where_something_is_to_be_done(make_shop: MakeShop) -> None:
    """And 1 where nothing is."""
    shop = make_shop()
    assert (await shop.score()).value == 0.0
    assert (await shop.score(wanted="start")).value == 1.0
    assert (await shop.score(SELL, wanted="start")).value == 0.0


async def test_a_call_that_is_refused_is_part_of_the_reference(make_shop: MakeShop) -> None:
    """It leaves what it leaves, and what comes after it is done."""
    shop = make_shop([("sell", {"item": "coal", "count": 1}), ("cancel", {}), *SELL])
    assert (await shop.score([("cancel", {}), *SELL])).value == 1.0
    assert (await shop.score(SELL)).value == 0.0


async def test_other_calls_may_be_the_reference(make_shop: MakeShop) -> None:
    """Those that the verifier names."""
    shop = make_shop()
    calls = replace(shop.task, gold=None).gold or shop.task.gold
    assert calls is not None
    after = tuple(call for turn in calls for call in turn.calls)
    assert (await shop.score(SELL, wanted=after)).value == 1.0
    assert (await shop.score([*SELL, *SELL], wanted=(*after, *after))).value == 1.0
    assert (await shop.score(SELL, wanted=(*after, *after))).value == 0.0


async def test_a_file_may_be_the_reference(make_shop: MakeShop) -> None:
    """Of the same kind as the env's universe."""
    shop = make_shop()
    assert shop.env.universe is not None
    path = shop.universe.with_name("after.json")
    path.write_text(json.dumps({**STATE, "stock": {"tea": 8, "milk": 5}, "sold": ["tea"]}))
    assert (await shop.score(SELL, wanted=replace(shop.env.universe, path=path))).value == 1.0
    path.write_text(json.dumps(STATE))
    assert (await shop.score(SELL, wanted=replace(shop.env.universe, path=path))).value == 0.0


async def test_some_places_and_the_order_of_some_lists_do_not_count(make_shop: MakeShop) -> None:
    """As the verifier says."""
    shop = make_shop([*SELL, ("sell", {"item": "milk", "count": 1})])
    swapped: Calls = [("sell", {"item": "milk", "count": 1}), ("stamp", {"by": "Bo"}), *SELL]
    assert (await shop.score(swapped, ignore=("/stamped",), unordered=("/sold",))).value == 1.0
    assert (await shop.score(swapped, ignore=("/stamped",))).metrics["differences"] == 2
    assert (await shop.score(swapped, unordered=("/sold",))).metrics["differences"] == 1


async def test_many_differences_are_counted(make_shop: MakeShop) -> None:
    """And the first of them named."""
    shop = make_shop([], state={"stock": {}, "sold": list(range(100)), "note": "x" * 1000})
    path = shop.universe.with_name("after.json")
    path.write_text(json.dumps({"stock": {}, "sold": [], "note": "y" * 1000}))
    assert shop.env.universe is not None
    score = await shop.score(wanted=replace(shop.env.universe, path=path))
    lines = score.explanation.splitlines()
    assert (score.metrics["differences"], len(lines)) == (101, 22)
    assert (lines[0], lines[-1]) == ("101 differences:", "and 81 more")
    assert all(len(line) < 500 for line in lines)


async def test_the_state_is_made_once_for_all_who_ask(make_shop: MakeShop) -> None:
    """At the same time or later."""
    shop = make_shop()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(shop.made()) for _ in range(50)]
    assert (shop.opened, shop.closed) == (1, 1)
    assert len({id(task.result()) for task in tasks}) == 1
    await shop.wanted()
    assert shop.opened == 1


def test_the_state_is_kept_for_the_process(make_shop: MakeShop) -> None:
    """The next event loop finds it."""
    shop = make_shop()
    first = asyncio.run(shop.made())
    assert asyncio.run(shop.made()) is first
    assert shop.opened == 1


async def test_what_an_env_does_when_it_is_closed_is_no_part_of_the_state(make_shop: MakeShop) -> None:
    """The shop empties its state then."""
    assert (await make_shop().wanted())["stock"]["tea"] == 8


@pytest.mark.parametrize("what", ["universe", "gold", "params"])
async def test_another_state_is_made_where_something_has_changed(make_shop: MakeShop, what: str) -> None:
    """The universe's file, the calls, or the task's params."""
    shop = make_shop([("stamp", {"by": "Bo"})])
    before = await shop.wanted()
    if what == "universe":
        shop.universe.write_text(json.dumps({**STATE, "note": "changed"}))
    elif what == "gold":
        shop.task = replace(shop.task, gold=())
    else:
        shop.task = replace(shop.task, params={"who": "Cy"})
    assert await shop.wanted() != before


async def test_states_that_nobody_asked_for_lately_are_dropped(
    make_shop: MakeShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process keeps so many bytes of them; the last one always."""
    monkeypatch.setattr(wanted_states, "_kept", wanted_states.KeptStates(1))
    shop = make_shop()
    tasks = shop.task, replace(shop.task, id="b")
    for task, opened in [(tasks[0], 1), (tasks[0], 1), (tasks[1], 2), (tasks[0], 3)]:
        shop.task = task
        await shop.wanted()
        assert shop.opened == opened


async def test_who_asks_first_may_be_cancelled(make_shop: MakeShop) -> None:
    """The others get the state all the same, and it is made once."""
    shop = make_shop([("wait", {})])
    tasks = [asyncio.create_task(shop.wanted()) for _ in range(3)]
    await vars(shop.module)["STARTED"].wait()
    tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    vars(shop.module)["GO"].set()
    assert (await tasks[1])["waited"]
    assert (await tasks[2])["waited"]
    assert (shop.opened, shop.closed) == (1, 1)


async def test_when_nobody_waits_any_more_nothing_is_left(make_shop: MakeShop) -> None:
    """The env is closed by the time that the last one is cancelled, and who asks then begins anew."""
    shop = make_shop([("wait", {})])
    tasks = [asyncio.create_task(shop.wanted()) for _ in range(3)]
    await vars(shop.module)["STARTED"].wait()
    for task in tasks:
        task.cancel()
    for task in tasks:
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (shop.opened, shop.closed) == (1, 1)
    vars(shop.module)["GO"].set()
    assert (await shop.wanted())["waited"]
    assert (shop.opened, shop.closed) == (2, 2)


async def test_who_asks_while_the_last_one_is_cancelled_begins_anew(make_shop: MakeShop) -> None:
    """What is being stopped is nobody's any more."""
    shop = make_shop([("linger", {})])
    module = vars(shop.module)
    first = asyncio.create_task(shop.wanted())
    await module["STARTED"].wait()
    first.cancel()
    await module["LEAVING"].wait()
    second = asyncio.create_task(shop.wanted())
    module["GO"].set()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (await second)["stock"]["tea"] == 10
    assert (shop.opened, shop.closed) == (2, 2)


async def test_a_state_that_takes_too_long_fails_every_step_that_waits(make_shop: MakeShop) -> None:
    """The env is closed, and the next one to ask tries again."""
    shop = make_shop([("wait", {})])
    tasks = [asyncio.create_task(shop.wanted(timeout_s=0.3)) for _ in range(3)]
    raised: list[StepFailedError] = []
    for task in tasks:
        with pytest.raises(StepFailedError) as caught:
            await task
        raised.append(caught.value)
    assert {exc.kind for exc in raised} == {FailureKind.VERIFIER_TIMEOUT}
    assert {exc.message for exc in raised} == {"making the state that it is compared with took longer than 0.3 s"}
    assert len({id(exc) for exc in raised}) == 3
    assert (shop.opened, shop.closed) == (1, 1)
    vars(shop.module)["GO"].set()
    assert (await shop.wanted())["waited"]


async def test_an_env_that_a_gold_call_breaks_fails_the_step(make_shop: MakeShop) -> None:
    """With the call; the next one to ask tries again."""
    shop = make_shop([("burn", {})])
    vars(shop.module)["IS_BROKEN"].append(True)
    with pytest.raises(StepFailedError) as caught:
        await shop.wanted()
    assert caught.value.kind is FailureKind.ENV_BROKEN
    said = "making the state that it is compared with: tool burn: the shop is on fire"
    assert caught.value.message == said
    vars(shop.module)["IS_BROKEN"].clear()
    assert (await shop.wanted()) == STATE


async def test_a_universe_that_cannot_be_read_fails_the_step(make_shop: MakeShop) -> None:
    """It is the machine's or the bundle's failure, and not a 0."""
    shop = make_shop()
    shop.universe.write_text("{")
    with pytest.raises(StepFailedError, match="the universe cannot be read") as caught:
        await shop.wanted()
    assert caught.value.kind is FailureKind.UNIVERSE


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"env": "bank"}, "env 'bank' was not deployed, so its state cannot be compared"),
        (
            {"ignore": ("orders",)},
            "env 'shop': 'orders' is no JSON Pointer: it starts with a slash, as in '/orders/#W1'",
        ),
    ],
)
async def test_a_comparison_that_cannot_be_made_fails_the_step(
    make_shop: MakeShop, said: Mapping[str, Any], message: str
) -> None:
    """There is no 0 for it."""
    with pytest.raises(StepFailedError) as caught:
        await make_shop().score(**said)
    assert (caught.value.kind, caught.value.message) == (FailureKind.VERIFIER_RAISED, message)


async def test_a_task_without_gold_cannot_be_compared_with_it(make_shop: MakeShop) -> None:
    """What validation refuses, too."""
    with pytest.raises(StepFailedError, match="and task 'a' has no gold: add gold: to it"):
        await make_shop([]).score()


async def test_a_state_that_is_no_json_cannot_be_compared(make_shop: MakeShop) -> None:
    """It fails the step, with what is not."""
    shop = make_shop()
    step = Verify(id="state", verifier=shop.verifier())
    wanted = partial(wanted_state, shop.task, timeout_s=5)
    state = {**STATE, "sold": {"tea"}}

    async def no_changes() -> None:
        return None

    left = LeftState(spec=shop.task.bundle.envs["shop"].universe, state=state, changes=no_changes)
    means = VerifyMeans(root=shop.task.bundle.root, sandboxes={}, ask=None, wanted=wanted, lefts={"shop": left})
    with pytest.raises(StepFailedError, match="env 'shop': the state cannot be compared: /sold is not JSON: a set"):
        await verify_step(step, view({"shop": state}), means, timeout_s=5)
