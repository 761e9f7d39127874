"""How an MCP server of a bundle is started: its program, its environment, and the folder that it starts in."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent_env.bundle import McpSpec
from agent_env.envs._mcp_process import ServerCommand
from agent_env.envs._mcp_variables import Variables
from agent_env.errors import EnvBrokenError
from agent_env.universe import open_universe_on_disk

__all__ = ["empty_folder", "episode_variables", "server_command"]

_PASSED_ON = (
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LOGNAME",
    "PATH",
    "SHELL",
    "TERM",
    "TMPDIR",
    "TZ",
    "USER",
)
"""The caller's variables that every server gets; all others, keys among them, only by name."""
_MAX_VARIABLE_BYTES = 128_000
"""Linux takes no environment variable of more than 128 KiB."""


def episode_variables(*, folder: Path, params: Mapping[str, Any], task_id: str) -> dict[str, str]:
    """Return what tells a server which episode it is started for.

    Raises:
        EnvBrokenError: When the params are more than an environment variable can hold.
    """
    text = json.dumps(dict(params), default=str)
    if len(text) > _MAX_VARIABLE_BYTES:
        raise EnvBrokenError(
            f"task '{task_id}' has params of {len(text):,} bytes, and an MCP server gets them in an environment variable, "
            f"which holds {_MAX_VARIABLE_BYTES:,}: put what is large in the universe"
        )
    return {"AGENT_ENV_UNIVERSE": str(folder), "AGENT_ENV_PARAMS": text, "AGENT_ENV_TASK_ID": task_id}


def server_command(
    name: str, spec: McpSpec, variables: Variables, *, folder: Path | None, episode: Mapping[str, str]
) -> ServerCommand:
    """Return how a server is started.

    Args:
        name: The env's, for messages.
        spec: With a command.
        variables: What stands for `${NAME}`.
        folder: Where it starts; None is an empty one of its own.
        episode: More of its environment.

    Raises:
        EnvBrokenError: When a variable is not set, or there is no such program.
    """
    environment = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
    if sys.prefix != sys.base_prefix:
        # As in an activated virtual environment: `python` is the one that AgentEnv runs in.
        environment["PATH"] = os.pathsep.join((os.path.dirname(sys.executable), environment.get("PATH", os.defpath)))
    for key, value in spec.environment.items():
        environment[key] = variables.fill(value, f"env.{key}")
    environment |= episode
    command = [variables.fill(word, "command") for word in spec.command]
    variables.check(name)
    return ServerCommand(
        program=_program(name, command[0], folder, environment.get("PATH", os.defpath)),
        arguments=tuple(command[1:]),
        environment=environment,
        folder=folder,
    )


def _program(name: str, word: str, folder: Path | None, path: str) -> str:
    if os.sep in word:
        program = (folder or Path("/")) / word  # an absolute one stays as it is
        if program.is_file() and os.access(program, os.X_OK):
            return str(program)
        what = "may not be executed: chmod +x" if program.is_file() else "is not there: see command in the bundle"
        raise EnvBrokenError(f"the MCP server of env '{name}' cannot be started: {word} {what}")
    found = shutil.which(word, path=path)
    if found is None:
        raise EnvBrokenError(
            f"the MCP server of env '{name}' cannot be started: there is no program '{word}' on the PATH: "
            "install it, or correct command in the bundle"
        )
    return found


@asynccontextmanager
async def empty_folder() -> AsyncGenerator[Path]:
    """Make a folder for a server that has no universe, and remove it when the block ends."""
    async with open_universe_on_disk(None) as folder:  # one that the next start removes where this process is killed
        yield folder
