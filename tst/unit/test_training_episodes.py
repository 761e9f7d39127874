"""What holds for every trainer: slots, the arguments that a model wrote, the next prompt."""

from __future__ import annotations

import asyncio
import importlib
import random
import sys

import pytest

from agent_env.envs import parse_arguments
from agent_env.errors import MissingExtraError, ToolError
from agent_env.training._episodes import next_prompt
from agent_env.training._slots import Slots


@pytest.mark.parametrize(
    ("raw", "arguments"),
    [("{}", {}), ("", {}), ('{"a": 1}', {"a": 1}), ('{"a": {"b": [1, null, "x"]}}', {"a": {"b": [1, None, "x"]}})],
)
def test_arguments_are_the_json_object_that_was_written(raw: str, arguments: object) -> None:
    """An object is taken as it is; no text is no arguments."""
    assert parse_arguments(raw) == arguments


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ('{"a": ', "no valid JSON"),
        ("[1]", "must be a JSON object"),
        ('"{}"', "must be a JSON object"),
        ("null", "must be a JSON object"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": -Infinity}', "not JSON"),
        ("[" * 100_000, "no valid JSON"),
    ],
)
def test_what_is_no_json_object_is_said_to_the_model(raw: str, says: str) -> None:
    """The error is a tool's answer: it says what is wrong with the text."""
    with pytest.raises(ToolError, match=says):
        parse_arguments(raw)


def test_a_later_turns_other_system_prompt_is_text_before_its_prompt() -> None:
    """The system prompt is written once; only another one is repeated."""
    assert next_prompt("Go on.", "Be brief.", first_system_prompt="Be brief.") == "Go on."
    assert next_prompt("Go on.", "", first_system_prompt="Be brief.") == "Go on."
    assert next_prompt("Go on.", "Be long.", first_system_prompt="Be brief.") == "Be long.\n\nGo on."


async def test_who_waits_longest_for_a_slot_is_next() -> None:
    """Slots are handed over in the order they were asked for."""
    slots = Slots(1)
    first = await slots.take()
    came: list[int] = []

    async def take(at: int) -> None:
        slot = await slots.take()
        came.append(at)
        slot.give_back()

    async with asyncio.TaskGroup() as tasks:
        for at in range(5):
            tasks.create_task(take(at))
        await asyncio.sleep(0)
        assert came == []
        first.give_back()
    assert came == [0, 1, 2, 3, 4]
    assert slots.taken == 0


async def test_a_slot_given_back_twice_is_given_back_once() -> None:
    """The second time does nothing, also when the slot is another's by then."""
    slots = Slots(1)
    slot = await slots.take()
    slot.give_back()
    other = await slots.take()
    slot.give_back()
    assert slots.taken == 1
    other.give_back()
    assert slots.taken == 0


async def test_without_a_limit_nobody_waits() -> None:
    """None is no bound."""
    slots = Slots(None)
    taken = [await slots.take() for _ in range(100)]
    assert slots.taken == 100
    for slot in taken:
        slot.give_back()
    assert slots.taken == 0


@pytest.mark.parametrize("seed", range(20))
async def test_however_takers_are_cancelled_no_slot_is_lost_and_none_is_made(seed: int) -> None:
    """Random takers that are cancelled while they wait, while they hold, or in the moment of the handing over."""
    chance = random.Random(seed)
    slots = Slots(3)
    most = 0

    async def hold() -> None:
        nonlocal most
        slot = await slots.take()
        try:
            most = max(most, slots.taken)
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
        finally:
            slot.give_back()

    tasks = [asyncio.create_task(hold()) for _ in range(60)]
    for _ in range(80):
        chance.choice(tasks).cancel()
        if chance.random() < 0.5:
            await asyncio.sleep(0)
    await asyncio.wait(tasks)
    assert {task.exception() for task in tasks if not task.cancelled()} == {None}
    assert most == 3
    assert slots.taken == 0


@pytest.mark.parametrize("module", ["tinker", "sft", "evaluate"])
def test_without_the_cookbook_the_error_says_what_to_install(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer is the user's to install: importing what needs it names the packages."""
    monkeypatch.setitem(sys.modules, "tinker_cookbook", None)
    for loaded in [name for name in sys.modules if name.startswith("agent_env.training.")]:
        monkeypatch.delitem(sys.modules, loaded)
    with pytest.raises(
        MissingExtraError, match=r"tinker_cookbook.*extra 'tinker' .*pip install '\.\[tinker\]' torch=="
    ):
        importlib.import_module(f"agent_env.training.{module}")
