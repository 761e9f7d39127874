"""Players that play gold, and a model, through `play`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agent_env import (
    Bundle,
    CutReason,
    FailureKind,
    ModelServerError,
    Outcome,
    RunIndex,
    UsageError,
    load_bundle,
    open_episode,
    play,
)
from agent_env.bundle import GoldCall, GoldTurn
from agent_env.chat import open_chat
from agent_env.episode.driving import drive
from agent_env.episode.gold import CLOSING, gold_player, turns_player
from agent_env.episode.model_player import model_player


def said(index: RunIndex, run_id: str) -> list[str]:
    """What the played agent said and called, in order."""
    index.flush()
    lines: list[str] = []
    for event in index.events(run_id):
        if event.kind == "message" and not event.data["message"].get("tool_calls"):
            lines.append(event.data["message"]["content"])
        if event.kind == "call":
            lines.append(f"{event.data['tool']} {event.data['raw']}")
    return lines


async def played(bundle: Bundle, task_id: str, folder: Path, player: Any = None) -> tuple[float, list[str]]:
    """Play a task, its gold where no player is given; return its score and what was said."""
    task = bundle.task(task_id)
    with RunIndex.open(folder / "runs") as index:
        sink = index.run("test")
        result = await play(task, player or gold_player(task), sink=sink)
        assert result.outcome is Outcome.COMPLETED
        assert result.cut is None
        return result.scores["sold"].value, said(index, sink.run_id)


async def test_gold_is_played_as_it_is_written(shop: Bundle, tmp_path: Path) -> None:
    """The call, then the reply."""
    assert await played(shop, "three", tmp_path) == (1.0, ['sell {"count": 3, "to": "Ann"}', "Three are sold."])


async def test_gold_goes_on_turn_by_turn_and_stops_at_a_call_that_ends_one(shop: Bundle, tmp_path: Path) -> None:
    """What stands after that call is not done, and nothing more is said."""
    score, lines = await played(shop, "closing", tmp_path)
    assert (score, lines) == (1.0, ['sell {"count": 1}', "One is sold.", 'sell {"count": 1}', "close_shop {}"])


async def test_gold_says_that_it_is_done_while_a_conversation_goes_on(shop: Bundle, tmp_path: Path) -> None:
    """Whoever leads may have more to say than the solution."""
    score, lines = await played(shop, "talk", tmp_path)
    assert (score, lines) == (1.0, ['sell {"count": 5}', "Here they are.", CLOSING, CLOSING])


async def test_a_last_call_that_does_not_end_the_turn_is_followed_by_a_reply(shop: Bundle, tmp_path: Path) -> None:
    """The turn ends all the same."""
    turns = [GoldTurn(calls=(GoldCall(tool="sell", arguments={"count": 3}),), reply=None)]
    assert await played(shop, "three", tmp_path, turns_player(turns)) == (1.0, ['sell {"count": 3}', CLOSING])


async def test_one_player_plays_many_episodes_at_once(shop: Bundle) -> None:
    """It keeps nothing of them."""
    task = shop.task("closing")
    player = gold_player(task)
    async with asyncio.TaskGroup() as playing:
        episodes = [playing.create_task(play(task, player)) for _ in range(20)]
    assert [episode.result().scores["sold"].value for episode in episodes] == [1.0] * 20


def test_a_task_without_gold_says_where_to_write_it(shop: Bundle) -> None:
    """One line."""
    with pytest.raises(UsageError, match=r"^tasks/free\.yaml:1: task 'free' has no gold, add gold: to it$"):
        gold_player(shop.task("free"))


async def test_a_model_plays_a_task(shop: Bundle, tmp_path: Path, endpoint: Any) -> None:
    """It sees the conversation and the tools, its calls are made, and its reply ends the turn."""
    endpoint.says(endpoint.reply("I will.", ("sell", '{"count": 3}')), endpoint.reply("Done."))
    score, lines = await played(shop, "three", tmp_path, model_player(endpoint.spec()))
    assert (score, lines) == (1.0, ['sell {"count": 3}', "Done."])
    first, second = endpoint.bodies
    assert first["messages"] == [
        {"role": "system", "content": "You keep the shop."},
        {"role": "user", "content": "Sell 3."},
    ]
    assert [tool["function"]["name"] for tool in first["tools"]] == ["sell", "close_shop", "burn", "shout"]
    assert second["messages"][2:] == [
        {
            "role": "assistant",
            "content": "I will.",
            "tool_calls": [{"id": "c0", "type": "function", "function": {"name": "sell", "arguments": '{"count": 3}'}}],
        },
        {"role": "tool", "tool_call_id": "c0", "content": "7 are left"},
    ]


async def test_a_models_tokens_are_in_the_run(shop: Bundle, tmp_path: Path, endpoint: Any) -> None:
    """Beside each message that it said."""
    endpoint.says(endpoint.reply("Done."))
    with RunIndex.open(tmp_path / "runs") as index:
        sink = index.run("test")
        await play(shop.task("three"), model_player(endpoint.spec()), sink=sink)
        index.flush()
        (told,) = [event.data for event in index.events(sink.run_id) if event.kind == "message"]
    message = told["message"]
    assert (told["index"], told["prompt_tokens"], told["sampled_tokens"]) == (0, 12, 3)
    assert message["usage"] == {"prompt_tokens": 12, "completion_tokens": 3}
    assert (message["model"], message["finish_reason"]) == ("small-001", "stop")


async def test_a_model_that_writes_no_json_is_told_and_may_try_again(
    shop: Bundle, tmp_path: Path, endpoint: Any
) -> None:
    """That is play."""
    endpoint.says(
        endpoint.reply("", ("sell", '{"count": ')),
        endpoint.reply("", ("sell", '{"count": 3}')),
        endpoint.reply("Done."),
    )
    score, lines = await played(shop, "three", tmp_path, model_player(endpoint.spec()))
    assert (score, lines) == (1.0, ['sell {"count": ', 'sell {"count": 3}', "Done."])
    assert "JSON" in endpoint.bodies[1]["messages"][-1]["content"]


async def test_a_model_sees_its_system_prompt_once(shop_dir: Path, endpoint: Any, make_bundle: Any) -> None:
    """A later turn's is text before its prompts, as for a model that is trained."""
    task = make_bundle(
        shop_dir,
        {
            "id": "twice",
            "params": {"count": 0},
            "steps": [
                {"deploy_env": "store"},
                {"deploy_agent": "clerk"},
                {"prompt": "One."},
                {"prompt": {"text": "Two.", "system_prompt": "Be rude."}},
                {"prompt": "Three."},
                {"prompt": {"text": "Four.", "system_prompt": "You keep the shop."}},
                {"verify": {"python": "verifiers/sold.py"}},
            ],
        },
    )
    endpoint.says(endpoint.reply("Yes."))
    await play(task, model_player(endpoint.spec()))
    assert [message["content"] for message in endpoint.bodies[-1]["messages"] if message["role"] != "assistant"] == [
        "You keep the shop.",
        "One.",
        "Be rude.\n\nTwo.",
        "Be rude.\n\nThree.",
        "Four.",
    ]


async def test_what_a_models_endpoint_raises_comes_out(shop: Bundle, endpoint: Any) -> None:
    """It is no score."""
    endpoint.fails(401)
    with pytest.raises(ModelServerError):
        await play(shop.task("three"), model_player(endpoint.spec()))


@pytest.mark.parametrize("calls", [(), (("sell", '{"count": 3}'),)])
async def test_a_message_that_was_cut_off_cuts_the_episode(
    shop: Bundle, tmp_path: Path, endpoint: Any, calls: tuple[tuple[str, str], ...]
) -> None:
    """It is in the run, its calls are not made, and the episode is scored where it is: as for a model that is trained."""
    endpoint.says(endpoint.reply("I am", *calls, finish_reason="length"))
    with RunIndex.open(tmp_path / "runs") as index:
        sink = index.run("test")
        async with open_episode(shop.task("three"), sink=sink) as episode:
            result = await drive(episode, model_player(endpoint.spec()))
        index.flush()
        events = list(index.events(sink.run_id))
    assert (result.outcome, result.cut, result.scores["sold"].value) == (Outcome.COMPLETED, CutReason.TOKEN_LIMIT, 0.0)
    assert [event.data["message"]["content"] for event in events if event.kind == "message"] == ["I am"]
    assert [event for event in events if event.kind == "call"] == []


async def test_a_conversation_that_does_not_fit_cuts_the_episode(shop: Bundle, endpoint: Any) -> None:
    """What was done before counts."""
    endpoint.says(endpoint.reply(None, ("sell", '{"count": 3}')))
    endpoint.fails(400, {"error": {"message": "maximum context length"}})
    async with open_episode(shop.task("three")) as episode:
        result = await drive(episode, model_player(endpoint.spec()))
    assert (result.cut, result.scores["sold"].value) == (CutReason.CONTEXT_OVERFLOW, 1.0)


async def test_a_player_that_goes_on_and_on_is_cut(shop: Bundle) -> None:
    """At as many messages as it may say."""
    player = turns_player([GoldTurn(calls=(GoldCall(tool="sell", arguments={"count": 1}),) * 9, reply=None)])
    async with open_episode(shop.task("three")) as episode:
        result = await drive(episode, player, max_messages=3)
    assert (result.cut, result.metrics["messages"], result.scores["sold"].value) == (CutReason.MESSAGE_LIMIT, 3.0, 1.0)


async def test_an_env_that_breaks_within_a_call_is_how_the_episode_ended(shop: Bundle) -> None:
    """Not an exception: the failure is in the result."""
    player = turns_player([GoldTurn(calls=(GoldCall(tool="burn", arguments={}),), reply=None)])
    async with open_episode(shop.task("three")) as episode:
        result = await drive(episode, player)
    assert result.outcome is Outcome.FAILED
    assert result.failure is not None
    assert (result.failure.kind, result.failure.step) == (FailureKind.ENV_BROKEN, "prompt")


@pytest.mark.parametrize(
    "said", [None, "Hello.", {"role": "assistant", "content": "", "tool_calls": [{"name": "sell"}]}]
)
async def test_what_is_no_message_is_a_usage_error(shop: Bundle, said: Any) -> None:
    """One line that says what a message is."""
    async with open_episode(shop.task("three")) as episode:
        with pytest.raises(UsageError, match=r"^the player said "):
            await drive(episode, lambda _: said)


async def test_episodes_played_within_a_chat_share_their_connections(shop: Bundle, endpoint: Any) -> None:
    """One after the other they need one."""
    endpoint.says(endpoint.reply("Done."))
    async with open_chat():
        for _ in range(3):
            await play(shop.task("three"), model_player(endpoint.spec()))
    assert len(endpoint.connections) == 1


@pytest.fixture
def make_bundle() -> Any:
    """Adds a task to a bundle and reads it."""

    def make(root: Path, task: dict[str, Any]) -> Any:
        (root / "tasks" / f"{task['id']}.yaml").write_text(json.dumps(task))
        return load_bundle(root).task(task["id"])

    return make
