"""The shape of `bundle.yaml` and of an eval's file. Tasks are in `schema_tasks.py`.

What the values refer to (files, envs, agents) is for `load.py` to follow.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from agent_env.bundle.schema_base import Name, Shape, Text, exactly_one, misfit
from agent_env.bundle.schema_tasks import TaskDefaultsFile

__all__ = ["AgentFile", "BundleFile", "EnvFile", "EvalFile", "McpFile", "ModelFile", "SandboxFile"]


def _reward_form(data: object) -> str | None:
    return "<id>" if isinstance(data, str) else "<weights>" if isinstance(data, dict) else None


Reward = Annotated[
    Annotated[str, Tag("<id>")] | Annotated[dict[str, float], Field(min_length=1), Tag("<weights>")],
    Discriminator(_reward_form, custom_error_type="misfit_reward", custom_error_message="reward"),
]


class McpFile(Shape):
    """An MCP server: `command` for one that is started, `url` for one that runs (streamable HTTP)."""

    command: Annotated[list[str], Field(min_length=1)] | None = None
    """The program and its arguments, `[npx, -y, some-server]`. Started for each episode, in a folder with the universe's files.
    A path to a file of the bundle is one from the bundle's folder."""
    env: dict[str, str] = {}
    """Environment variables of the command; `${NAME}` in a value stands for a variable of the caller's."""
    url: str | None = None
    """Where the server is; `${NAME}` stands for a variable of the caller's environment."""
    headers: dict[str, str] = {}
    """HTTP headers; `${NAME}` stands for a variable of the caller's environment: no key stands in a bundle."""
    shared: bool = False
    """Whether all episodes share one server, because it keeps no state."""
    call_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """Seconds that one call may take; the episode fails after it."""

    @model_validator(mode="after")
    def _one_of_both(self) -> McpFile:
        exactly_one(self, ("command", "url"), "an MCP server")
        if self.command is None and self.env:
            raise misfit("an MCP server at a url says 'env'", "remove it: it is for a command")
        if self.url is None and self.headers:
            raise misfit("an MCP server with a command says 'headers'", "remove them: they are for a url")
        return self


class SandboxFile(Shape):
    """An isolated machine that an agent's `bash` tool works in."""

    provider: Literal["bwrap", "docker", "host", "python"] = "bwrap"
    """What isolates it: bubblewrap, a container, nothing at all (`host`), or what a function of the bundle makes."""
    python: str | None = None
    """With the provider `python`: `sandboxes/file.py:function`, which makes one."""
    image: str | None = None
    """With the provider `docker`: the container image."""
    network: bool = False
    """Whether it has the network."""
    memory_mb: Annotated[int, Field(ge=16)] = 1024
    """Megabytes of memory."""
    processes: Annotated[int, Field(ge=4)] = 256
    """Processes and threads at once."""
    command_timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """Seconds that one command may take."""
    output_chars: Annotated[int, Field(ge=200)] = 30_000
    """Characters of a command's output that are kept; the middle of a longer one is cut out."""
    env: dict[str, str] = {}
    """Environment variables of its commands."""
    setup: list[str] = []
    """Shell commands that are run before the first call."""
    binds: dict[str, str] = {}
    """Folders of the bundle that are there to be read, with `bwrap` and `docker`: `{/opt/packages: sandboxes/packages}`."""

    @model_validator(mode="after")
    def _fits_its_provider(self) -> SandboxFile:
        for place in self.binds:
            if not re.fullmatch(r"/opt/\w[\w.-]*", place):
                raise misfit(
                    f"'{place}' is no place for a folder in a sandbox", "write one in /opt, as in /opt/packages"
                )
        if self.binds and self.provider not in ("bwrap", "docker"):
            what = f"a sandbox of provider '{self.provider}' says 'binds'"
            raise misfit(what, "write provider: bwrap or docker, or leave binds out")
        for key, provider in (("python", "python"), ("image", "docker")):
            said = getattr(self, key) is not None
            if said and self.provider != provider:
                raise misfit(f"a sandbox of provider '{self.provider}' says '{key}'", f"write provider: {provider}")
            if not said and self.provider == provider:
                raise misfit(f"a sandbox of provider '{provider}' does not say '{key}'", f"add {key}: ...")
        return self


class EnvFile(Shape):
    """A set of tools over a universe: one of `python`, `mcp` and `sandbox`."""

    python: str | None = None
    """`envs/file.py:Class`, a subclass of `agent_env.Env`."""
    mcp: McpFile | None = None
    """An MCP server; its tools are the env's."""
    sandbox: str | None = None
    """One of the bundle's `sandboxes`: the env has the tool `bash` in it."""
    universe: str | None = None
    """The state that each episode starts from: a .json, .sqlite or .db file, or a directory."""

    @model_validator(mode="after")
    def _one_of_three(self) -> EnvFile:
        exactly_one(self, ("python", "mcp", "sandbox"), "an env")
        return self


class ModelFile(Shape):
    """A model behind an OpenAI-compatible endpoint. `${NAME}` in `model` and `base_url` stands for an environment variable."""

    model: str
    """What the endpoint calls it."""
    base_url: str
    """The endpoint, up to and with its `/v1`."""
    api_key_env: str | None = None
    """The environment variable that holds the key; no key is sent when nothing is written."""
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """At 0 a group of rollouts differs by the played agent alone."""
    max_tokens: Annotated[int, Field(ge=1)] = 2048
    """Tokens of one answer."""
    timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """Seconds that one request may take."""
    extra: dict[str, Any] = {}
    """Further fields of the request's body, such as `seed`."""


class AgentFile(Shape):
    """Who answers prompts."""

    kind: Literal["played", "model", "scripted"] = "played"
    """`played` by the trainer, `scripted` in Python, or a `model` behind an endpoint."""
    system_prompt: Text | None = None
    """What the agent is told before everything else."""
    envs: list[str] | None = None
    """Whose tools it has; with one env in the bundle, a played agent has that one when nothing is written."""
    skills: bool = False
    """Whether it is shown the skills that it is given, and reads them with the tool `read_skill`."""
    python: str | None = None
    """With the kind `scripted`: `agents/file.py:function`, which returns what it says next."""
    model: str | None = None
    """With the kind `model`: one of the bundle's `models`."""
    opening: str | None = None
    """With the kind `model`: what it hears first when it leads a conversation. Default: "Hello. How can I help you?"."""
    stop: Annotated[str, Field(min_length=1)] | None = None
    """With the kind `model`: what it says when the conversation that it leads is over. Default: "###STOP###"."""
    max_messages: Annotated[int, Field(ge=1)] | None = None
    """Messages that it may say in one turn of its own, those with calls included. Default: 40."""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> AgentFile:
        for key, kind in (("python", "scripted"), ("model", "model")):
            said = getattr(self, key) is not None
            if said and self.kind != kind:
                raise misfit(f"an agent of kind '{self.kind}' says '{key}'", f"write kind: {kind}, or remove it")
            if not said and self.kind == kind:
                raise misfit(f"an agent of kind '{kind}' does not say '{key}'", f"add {key}: ...")
        if self.kind != "model" and (self.opening is not None or self.stop is not None):
            raise misfit(f"an agent of kind '{self.kind}' says 'opening' or 'stop'", "remove it: it is for a model")
        if self.kind == "played" and self.max_messages is not None:
            raise misfit("a played agent says 'max_messages'", "remove it: whoever plays it bounds it")
        return self


class BundleFile(Shape):
    """bundle.yaml: what the bundle has."""

    name: Name
    """The bundle's name."""
    version: str = "0"
    """The bundle's version."""
    description: str = ""
    """What its tasks are about."""
    license: str = ""
    """The licence of its files, as an SPDX expression."""
    envs: dict[Name, EnvFile] = {}
    """The envs by name."""
    sandboxes: dict[Name, SandboxFile] = {}
    """The sandboxes by name; an env names one to have the tool `bash` in it."""
    models: dict[Name, ModelFile] = {}
    """The models by name: for agents of kind `model`, and for judges."""
    agents: Annotated[dict[Name, AgentFile], Field(min_length=1)] = {"agent": AgentFile()}
    """The agents by name. Default: one played agent, `agent`."""
    played: str | None = None
    """The agent that a trainer plays; needed when several are `played`."""
    reward: Reward | None = None
    """The verify step whose score is the reward, or weights by step. Needed with several verify steps in a task."""
    players: dict[Name, str] = {}
    """Python policies that come with the bundle, `players/file.py:function` by name."""
    task_defaults: TaskDefaultsFile = TaskDefaultsFile()
    """For short-form tasks."""


class EvalFile(Shape):
    """evals/<name>.yaml: a named selection of tasks, those named by any of its lists."""

    description: str = ""
    """What the eval is for."""
    tasks: list[str] = []
    """Task ids, or globs over them."""
    tags: list[str] = []
    """Tags: every task that has one of them."""

    @model_validator(mode="after")
    def _selects(self) -> EvalFile:
        if not self.tasks and not self.tags:
            raise misfit("the eval selects nothing", "write tasks: [ids or globs] or tags: [tags]")
        return self
