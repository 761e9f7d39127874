"""A bundle: a folder of envs, universes, tasks, evals and verifiers, read into frozen values.

Covers reading and checking. Not playing: `agent_env.episode` does that.
"""

from agent_env.bundle._suggest import closest, names_or_closest
from agent_env.bundle.bundle import AgentKind, AgentSpec, Bundle, EnvSpec, RewardSpec, UniverseKind, UniverseSpec
from agent_env.bundle.code import PythonRef
from agent_env.bundle.env_check import ChecksItself, CodeProblem, EnvCheck
from agent_env.bundle.json_schemas import json_schemas
from agent_env.bundle.load import load_bundle
from agent_env.bundle.task import (
    AddSkills,
    DeployAgent,
    DeployEnv,
    GoldCall,
    GoldTurn,
    Prompt,
    RunPython,
    Step,
    Task,
    Verify,
)
from agent_env.bundle.text import TextSource
from agent_env.bundle.validate import validate_bundle

__all__ = [
    "AddSkills",
    "AgentKind",
    "AgentSpec",
    "Bundle",
    "ChecksItself",
    "CodeProblem",
    "DeployAgent",
    "DeployEnv",
    "EnvCheck",
    "EnvSpec",
    "GoldCall",
    "GoldTurn",
    "Prompt",
    "PythonRef",
    "RewardSpec",
    "RunPython",
    "Step",
    "Task",
    "TextSource",
    "UniverseKind",
    "UniverseSpec",
    "Verify",
    "closest",
    "json_schemas",
    "load_bundle",
    "names_or_closest",
    "validate_bundle",
]
