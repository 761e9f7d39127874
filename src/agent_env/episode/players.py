"""Playing an episode with a Python function in the model's place.

Covers a bundle's players, such as the best one, and functions in tests. Not models.
"""

from __future__ import annotations

from typing import cast

from agent_env.bundle import PythonRef, Task
from agent_env.episode._episode import open_episode
from agent_env.episode.driving import Player, drive
from agent_env.episode.limits import DEFAULT_LIMITS, Limits
from agent_env.episode.player_turn import PlayerTurn
from agent_env.episode.sink import EpisodeSink
from agent_env.errors import UsageError
from agent_env.outcome import EpisodeResult

__all__ = ["Player", "PlayerTurn", "load_player", "play"]


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

    Returns:
        How it ended; also how it failed, where a step or an env broke.

    Raises:
        BundleError: When the player's file cannot be imported.
        UsageError: When it is no function, or what it says is no message.
        RunIndexError: When the sink cannot take the episode down.

    What the player raises comes out of here, and the episode has failed because of it: `model_server` where it is a
    ModelServerError, else `agent`.
    """
    function = load_player(player) if isinstance(player, PythonRef) else player
    async with open_episode(task, sink=sink, limits=limits) as episode:
        return await drive(episode, function, max_messages=max_messages)


def load_player(player: PythonRef) -> Player:
    """Import one of a bundle's players.

    Raises:
        BundleError: When its file cannot be imported, or has no such name.
        UsageError: When it is no function.
    """
    loaded = player.load()
    if not callable(loaded):
        raise UsageError(f"{player} is no function: a player takes a PlayerTurn and returns a message")
    return cast("Player", loaded)
