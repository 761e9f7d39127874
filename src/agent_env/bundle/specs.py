"""What a bundle says of its universes, envs, sandboxes, models and agents: frozen values, their files followed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from agent_env.bundle.code import PythonRef
from agent_env.bundle.text import TextSource

__all__ = [
    "AgentKind",
    "AgentSpec",
    "EnvSpec",
    "McpSpec",
    "ModelSpec",
    "SandboxProvider",
    "SandboxSpec",
    "UniverseKind",
    "UniverseSpec",
]


class UniverseKind(StrEnum):
    """What an env's state is made from."""

    JSON = "json"
    """A file with one JSON value."""
    SQLITE = "sqlite"
    """A SQLite database file."""
    DIRECTORY = "directory"
    """A directory with everything in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UniverseSpec:
    """The state that every episode of an env starts from."""

    path: Path
    """The file or directory, absolute."""
    kind: UniverseKind


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSpec:
    """An MCP server: started by a command for each episode (stdio), or reached at a URL (streamable HTTP)."""

    command: tuple[str, ...] = ()
    """The program and its arguments; empty with a `url`."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment variables for the command, beside a small safe set; `${NAME}` stands for a variable of the caller's."""
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """HTTP headers; `${NAME}` stands for a variable of the caller's environment, so that no key is in a bundle."""
    shared: bool = False
    """Whether all episodes of a process share one server: it keeps no state."""
    call_timeout_s: float = 60.0
    """Seconds that one call may take; the episode fails after it."""


class SandboxProvider(StrEnum):
    """What isolates a sandbox."""

    BWRAP = "bwrap"
    """bubblewrap, on this machine: no image, the machine's own programs read-only."""
    DOCKER = "docker"
    """A container, by the `docker` command."""
    HOST = "host"
    """Nothing: commands run with the user's rights. Only when asked for by this name."""
    PYTHON = "python"
    """A function of the bundle that makes one, such as an adapter of the cookbook's `SandboxInterface`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSpec:
    """The isolated machine that an agent's `bash` tool, `run` steps and command verifiers work in."""

    provider: SandboxProvider
    python: PythonRef | None = None
    """The function that makes one, with the provider `python`."""
    image: str | None = None
    """The container image, with the provider `docker`."""
    network: bool = False
    """Whether it has the network."""
    memory_mb: int = 1024
    """Megabytes (2^20 bytes) of memory."""
    processes: int = 256
    """Processes and threads at once."""
    command_timeout_s: float = 120.0
    """Seconds that one command may take; it is killed then, and the sandbox goes on."""
    output_chars: int = 30_000
    """Characters of a command's output that are kept; the middle of a longer one is cut out."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Environment variables of its commands."""
    setup: tuple[str, ...] = ()
    """Shell commands that are run before the first call; one that fails fails the episode."""
    binds: Mapping[str, Path] = field(default_factory=dict[str, Path])
    """Folders of this machine that are there to be read, by their path in it, below `/opt`; with `bwrap` and `docker`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """One env of a bundle: exactly one of `python`, `mcp` and `sandbox`."""

    name: str
    python: PythonRef | None = None
    """The class, a subclass of `agent_env.Env`."""
    mcp: McpSpec | None = None
    sandbox: SandboxSpec | None = None
    universe: UniverseSpec | None = None
    """What its state starts as. An MCP server and a sandbox find it as files, in the folder that they start in."""


class AgentKind(StrEnum):
    """Who answers an agent's prompts."""

    PLAYED = "played"
    """The trainer, or whoever plays the episode."""
    SCRIPTED = "scripted"
    """A Python function of the bundle."""
    MODEL = "model"
    """A model behind an OpenAI-compatible endpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model behind an OpenAI-compatible endpoint: an agent that is not the played one, or a judge."""

    model: str
    """What the endpoint calls it."""
    base_url: str
    """The endpoint, up to and with its `/v1`."""
    api_key_env: str | None = None
    """The environment variable that holds the key; None sends none."""
    temperature: float = 0.0
    """At 0 a group of rollouts differs by the played agent alone."""
    max_tokens: int = 2048
    """Tokens of one answer."""
    timeout_s: float = 120.0
    """Seconds that one request may take, retries aside."""
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    """Further fields of the request's body, such as `seed` or `reasoning_effort`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """One agent of a bundle."""

    name: str
    kind: AgentKind
    system_prompt: TextSource | None
    envs: tuple[str, ...]
    """Whose tools it has, in this order."""
    skills: bool = False
    """Whether it is shown its skills, and reads them with the tool `read_skill`."""
    python: PythonRef | None = None
    """The function that answers, with the kind `scripted`."""
    model: ModelSpec | None = None
    """The model that answers, with the kind `model`."""
    opening: str = "Hello. How can I help you?"
    """What a model is told first when it leads a conversation: the other side's opening."""
    stop: str = "###STOP###"
    """What a model says, on its own or within a line, when the conversation that it leads is over."""
    max_messages: int = 40
    """Messages that it may say in one turn of its own, calls included; then the episode fails."""
