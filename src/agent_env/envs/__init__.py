"""Envs: sets of tools over a private copy of a universe.

Covers envs written in Python, MCP servers and sandboxes. What an env is to an episode is in `contract.py`.
"""

from agent_env.envs.arguments import parse_arguments
from agent_env.envs.contract import EnvSession, Refusal, ToolAnswer, ToolSpec
from agent_env.envs.env import Env
from agent_env.envs.opening import open_env
from agent_env.envs.tool import tool
from agent_env.errors import ToolError

__all__ = [
    "Env",
    "EnvSession",
    "Refusal",
    "ToolAnswer",
    "ToolError",
    "ToolSpec",
    "open_env",
    "parse_arguments",
    "tool",
]
