"""A bundle: a folder of envs, universes, tasks, evals and verifiers, read into frozen values.

Covers reading and checking. Not playing: `agent_env.episode` does that.
"""

from agent_env.bundle._suggest import closest, names_or_closest
from agent_env.bundle.bundle import Bundle, RewardSpec
from agent_env.bundle.code import PythonRef
from agent_env.bundle.env_check import ChecksItself, CodeProblem, EnvCheck
from agent_env.bundle.json_schemas import json_schemas
from agent_env.bundle.load import load_bundle
from agent_env.bundle.skills import Skill
from agent_env.bundle.specs import (
    AgentKind,
    AgentSpec,
    EnvSpec,
    McpSpec,
    ModelSpec,
    SandboxProvider,
    SandboxSpec,
    UniverseKind,
    UniverseSpec,
)
from agent_env.bundle.task import (
    AddSkills,
    CallPattern,
    CheckVerifier,
    Command,
    CommandVerifier,
    Conversation,
    DeployAgent,
    DeployEnv,
    GoldCall,
    GoldTurn,
    JudgeVerifier,
    Prompt,
    RunCommand,
    RunPython,
    StateVerifier,
    Step,
    Task,
    Verifier,
    Verify,
)
from agent_env.bundle.text import TextSource
from agent_env.bundle.validate import validate_bundle

__all__ = [
    "AddSkills",
    "AgentKind",
    "AgentSpec",
    "Bundle",
    "CallPattern",
    "CheckVerifier",
    "ChecksItself",
    "CodeProblem",
    "Command",
    "CommandVerifier",
    "Conversation",
    "DeployAgent",
    "DeployEnv",
    "EnvCheck",
    "EnvSpec",
    "GoldCall",
    "GoldTurn",
    "JudgeVerifier",
    "McpSpec",
    "ModelSpec",
    "Prompt",
    "PythonRef",
    "RewardSpec",
    "RunCommand",
    "RunPython",
    "SandboxProvider",
    "SandboxSpec",
    "Skill",
    "StateVerifier",
    "Step",
    "Task",
    "TextSource",
    "UniverseKind",
    "UniverseSpec",
    "Verifier",
    "Verify",
    "closest",
    "json_schemas",
    "load_bundle",
    "names_or_closest",
    "validate_bundle",
]
