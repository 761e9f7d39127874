"""Playing an episode with a Python function in the model's place.

Covers a bundle's players, such as the best one, and functions in tests. Not models.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from agent_env.bundle import PythonRef, Task
from agent_env.envs import ToolAnswer, parse_arguments
from agent_env.episode._episode import Episode, Turn, open_episode
from agent_env.episode.limits import DEFAULT_LIMITS, Limits
from agent_env.episode.player_turn import PlayerTurn
from agent_env.episode.sink import EpisodeSink
from agent_env.errors import ToolError, UsageError
from agent_env.outcome import CutReason, EpisodeResult
from agent_env.verify import Message, ToolCall

__all__ = ["Player", "PlayerTurn", "play"]


Player = Callable[[PlayerTurn], Message | Awaitable[Message]]
"""Says the next message: one with `tool_calls` is answered, one without ends the turn."""


async def play(
    task: Task,
    player: Player | PythonRef,
    *,
    sink: EpisodeSink | None = None,
    limits: Limits = DEFAULT_LIMITS,
    max_messages: int = 200,
) -> EpisodeResult:
    """Play a task with a player.

    Args:
        task: The task.
        player: A function, plain or `async def`, or one of `Bundle.players`.
        sink: Takes the episode down.
        limits: Bounds for steps that have none of their own.
        max_messages: How many messages the player may write; then the episode is cut (`message_limit`).

    Raises:
        BundleError: When the player's file cannot be imported.
        UsageError: When what the player says is no message.
        RunIndexError: When the sink cannot take the episode down.

    What the player raises comes out of here, and the episode is abandoned.
    """
    function = _function(player)
    async with open_episode(task, sink=sink, limits=limits) as episode:
        turn = await episode.start()
        for _ in range(max_messages):
            if turn is None:
                break
            message = await _say(function, episode, turn)
            calls = message.get("tool_calls")
            if not calls:
                turn = await turn.end(message)
                continue
            turn.record(message)
            answers = [await _call(turn, call) for call in calls]
            if any(answer.ends_turn for answer in answers):
                turn = await turn.end(message)
        if turn is not None:
            await episode.cut(CutReason.MESSAGE_LIMIT)
        return await episode.result()


def _function(player: Player | PythonRef) -> Player:
    if not isinstance(player, PythonRef):
        return player
    loaded = player.load()
    if not callable(loaded):
        raise UsageError(f"{player} is no function: a player takes a PlayerTurn and returns a message")
    return cast("Player", loaded)


async def _say(player: Player, episode: Episode, turn: Turn) -> Message:
    view = episode.view
    said = player(
        PlayerTurn(
            prompt=turn.prompt,
            system_prompt=turn.system_prompt,
            tools=turn.tools,
            messages=view.messages,
            params=view.params,
            task_id=view.task_id,
            turn=turn.index,
        )
    )
    message = await said if inspect.isawaitable(said) else said
    if not isinstance(message, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - from untyped code
        raise UsageError(f"the player said a {type(message).__name__}, not a message with role and content")
    return message


async def _call(turn: Turn, call: ToolCall) -> ToolAnswer:
    name, raw, call_id = _parts(call)
    try:
        arguments = parse_arguments(raw)
    except ToolError as exc:
        return turn.refuse(name, str(exc), raw=raw, call_id=call_id)
    return await turn.call(name, arguments, call_id=call_id, raw=raw)


def _parts(call: object) -> tuple[str, str, str | None]:
    if isinstance(call, Mapping):
        said = cast("Mapping[str, Any]", call)
        name, raw = said.get("name"), said.get("arguments")
        if isinstance(name, str) and isinstance(raw, str):
            return name, raw, said.get("id")
    raise UsageError(f'the player said the call {call!r}, write {{"name": ..., "arguments": JSON text}}')
