"""Episodes: one play of one task, in process.

Covers opening one, driving it, and who listens. Not where runs are kept (`agent_env.runs`), nor trainers.
"""

from agent_env.episode._core import EpisodeState
from agent_env.episode._episode import Episode, Turn, open_episode
from agent_env.episode.driving import drive
from agent_env.episode.gold import gold_player
from agent_env.episode.limits import Limits
from agent_env.episode.model_player import model_player
from agent_env.episode.players import PlayerTurn, play
from agent_env.episode.sink import EpisodeSink, Event, EventKind, NullSink, RunHeader, new_run_id
from agent_env.verify import CallRecord, EpisodeView, Message, ToolCall

__all__ = [
    "CallRecord",
    "Episode",
    "EpisodeSink",
    "EpisodeState",
    "EpisodeView",
    "Event",
    "EventKind",
    "Limits",
    "Message",
    "NullSink",
    "PlayerTurn",
    "RunHeader",
    "ToolCall",
    "Turn",
    "drive",
    "gold_player",
    "model_player",
    "new_run_id",
    "open_episode",
    "play",
]
