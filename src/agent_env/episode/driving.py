"""Driving an open episode with a player, to its end."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from agent_env._cancellation import stops_us
from agent_env.envs import ToolAnswer, parse_arguments
from agent_env.episode._episode import Episode, Turn
from agent_env.episode.player_turn import PlayerTurn
from agent_env.errors import ContextOverflowError, EpisodeFailedError, ModelServerError, ToolError, UsageError
from agent_env.outcome import CutReason, EpisodeResult, FailureKind
from agent_env.verify import Message, ToolCall
from agent_env.verify.step_failed import exception_line

__all__ = ["Player", "drive"]

Player = Callable[[PlayerTurn], Message | Awaitable[Message]]
"""Says the next message: one with `tool_calls` is answered, one without ends the turn."""


async def drive(episode: Episode, player: Player, *, max_messages: int = 200) -> EpisodeResult:
    """Start an episode, and have a player say what its agent says, to the end.

    Cuts are scored: a message that was cut off at the model's limit (`finish_reason` is `length`), a conversation that does
    not fit the model's context, and `max_messages`.

    Args:
        episode: The episode, not started.
        player: Says the next message: one with `tool_calls` is answered, one without ends the turn.
        max_messages: Messages that the player may say.

    Returns:
        How it ended; also how it failed, where a step or an env broke.

    Raises:
        UsageError: When what the player says is no message.
        RunIndexError: When the sink cannot take the episode down.

    What the player raises comes out of here, and the episode has failed because of it: `model_server` where it is a
    ModelServerError, else `agent`.
    """
    us = asyncio.current_task()
    turn = await episode.start()
    try:
        for _ in range(max_messages):
            if turn is None:
                break
            turn = await _move(episode, turn, player)
        if turn is not None:
            await episode.cut(CutReason.MESSAGE_LIMIT)
    except BaseException as exc:  # a player is a bundle's own code
        if stops_us(exc, us):
            raise
        if not isinstance(exc, EpisodeFailedError) or episode.turn is not None:
            await episode.fail(*_broken(exc), error=exc)
            raise
        # Else it failed within a call: the result says how.
    return await episode.result()


def _broken(exc: BaseException) -> tuple[FailureKind, str]:
    """What broke where a player raised, and a line that says so."""
    if isinstance(exc, ModelServerError):
        return FailureKind.MODEL_SERVER, " ".join(str(exc).split())
    return FailureKind.AGENT, f"the player raised {exception_line(exc)}"


async def _move(episode: Episode, turn: Turn, player: Player) -> Turn | None:
    """Have the player say one message, and do what it asks for; return the turn that is open then."""
    try:
        message = await _say(player, episode, turn)
    except ContextOverflowError:
        await episode.cut(CutReason.CONTEXT_OVERFLOW)
        return None
    if message.get("finish_reason") == "length":
        turn.record(message)
        await episode.cut(CutReason.TOKEN_LIMIT)
        return None
    calls = message.get("tool_calls")
    if not calls:
        return await turn.end(message)
    turn.record(message)
    answers = [await _call(turn, call) for call in calls]
    return await turn.end(message) if any(answer.ends_turn for answer in answers) else turn


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
