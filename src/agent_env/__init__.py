"""AgentEnv: a folder of agent tasks, played, recorded and trained on.

The public names, all of them here. Importing this pulls in no extra, and what a name needs (YAML, Jinja, pydantic,
SQLite) only when the name is first used. Trainers are in `agent_env.training`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from agent_env._version import __version__
from agent_env.errors import (
    AgentEnvError,
    BundleError,
    ContextOverflowError,
    EngineError,
    EnvBrokenError,
    EpisodeError,
    EpisodeFailedError,
    EpisodeStateError,
    McpServerError,
    MissingExtraError,
    ModelServerError,
    Problem,
    RewardError,
    RunIndexError,
    SandboxLostError,
    SandboxUnavailableError,
    ToolError,
    TrainingError,
    UniverseError,
    UsageError,
)
from agent_env.outcome import (
    CutReason,
    EpisodeResult,
    Failure,
    FailureKind,
    Outcome,
    Place,
    Score,
    Skipped,
)

if TYPE_CHECKING:
    from agent_env.bundle import (
        Bundle,
        ModelSpec,
        Task,
        load_bundle,
        validate_bundle,
    )
    from agent_env.envs import (
        Env,
        Refusal,
        ToolAnswer,
        ToolSpec,
        tool,
    )
    from agent_env.episode import (
        CallRecord,
        Episode,
        EpisodeSink,
        EpisodeState,
        EpisodeView,
        Event,
        EventKind,
        Limits,
        Message,
        PlayerTurn,
        RunHeader,
        ToolCall,
        Turn,
        drive,
        gold_player,
        model_player,
        open_episode,
        play,
    )
    from agent_env.runs import (
        RunIndex,
    )
    from agent_env.verify import (
        RewardRule,
        resolve_reward,
        reward_of,
    )

__all__ = [
    "AgentEnvError",
    "Bundle",
    "BundleError",
    "CallRecord",
    "ContextOverflowError",
    "CutReason",
    "EngineError",
    "Env",
    "EnvBrokenError",
    "Episode",
    "EpisodeError",
    "EpisodeFailedError",
    "EpisodeResult",
    "EpisodeSink",
    "EpisodeState",
    "EpisodeStateError",
    "EpisodeView",
    "Event",
    "EventKind",
    "Failure",
    "FailureKind",
    "Limits",
    "McpServerError",
    "Message",
    "MissingExtraError",
    "ModelServerError",
    "ModelSpec",
    "Outcome",
    "Place",
    "PlayerTurn",
    "Problem",
    "Refusal",
    "RewardError",
    "RewardRule",
    "RunHeader",
    "RunIndex",
    "RunIndexError",
    "SandboxLostError",
    "SandboxUnavailableError",
    "Score",
    "Skipped",
    "Task",
    "ToolAnswer",
    "ToolCall",
    "ToolError",
    "ToolSpec",
    "TrainingError",
    "Turn",
    "UniverseError",
    "UsageError",
    "__version__",
    "drive",
    "gold_player",
    "load_bundle",
    "model_player",
    "open_episode",
    "play",
    "resolve_reward",
    "reward_of",
    "tool",
    "validate_bundle",
]

_HOMES = {
    "Bundle": "agent_env.bundle",
    "CallRecord": "agent_env.episode",
    "Env": "agent_env.envs",
    "Episode": "agent_env.episode",
    "EpisodeSink": "agent_env.episode",
    "EpisodeState": "agent_env.episode",
    "EpisodeView": "agent_env.episode",
    "Event": "agent_env.episode",
    "EventKind": "agent_env.episode",
    "Limits": "agent_env.episode",
    "Message": "agent_env.episode",
    "ModelSpec": "agent_env.bundle",
    "PlayerTurn": "agent_env.episode",
    "Refusal": "agent_env.envs",
    "RewardRule": "agent_env.verify",
    "RunHeader": "agent_env.episode",
    "RunIndex": "agent_env.runs",
    "Task": "agent_env.bundle",
    "ToolAnswer": "agent_env.envs",
    "ToolCall": "agent_env.episode",
    "ToolSpec": "agent_env.envs",
    "Turn": "agent_env.episode",
    "drive": "agent_env.episode",
    "gold_player": "agent_env.episode",
    "model_player": "agent_env.episode",
    "load_bundle": "agent_env.bundle",
    "open_episode": "agent_env.episode",
    "play": "agent_env.episode",
    "resolve_reward": "agent_env.verify",
    "reward_of": "agent_env.verify",
    "tool": "agent_env.envs",
    "validate_bundle": "agent_env.bundle",
}
"""Where the names are that are imported when they are first used."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'agent_env' has no attribute '{name}'")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
