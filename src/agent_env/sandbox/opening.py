"""Opening a sandbox, whoever provides it."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from agent_env.bundle import SandboxProvider, SandboxSpec
from agent_env.sandbox._blocking import in_thread
from agent_env.sandbox._jail_check import checked_jail
from agent_env.sandbox._place import remove_left_over
from agent_env.sandbox.adapted import open_made
from agent_env.sandbox.bwrap import open_bwrap
from agent_env.sandbox.contract import Sandbox
from agent_env.sandbox.docker import check_docker, open_docker, remove_dead_containers
from agent_env.sandbox.host import open_host

__all__ = ["check_sandbox", "open_sandbox", "sweep_sandboxes"]

_SWEEP_S = 2.0
"""Seconds that the first sandbox of a process may wait for what others have left to be removed."""

_OPENERS = {
    SandboxProvider.BWRAP: open_bwrap,
    SandboxProvider.DOCKER: open_docker,
    SandboxProvider.HOST: open_host,
    SandboxProvider.PYTHON: open_made,
}
_swept: dict[bool, int] = {}
"""The process that has looked for what others have left, on the disk and in Docker: a forked one looks again."""


@asynccontextmanager
async def open_sandbox(spec: SandboxSpec, *, files: Path | None = None) -> AsyncGenerator[Sandbox]:
    """Open a sandbox for the length of a block.

    However the block is left, and also when this process is killed, no process of the sandbox is left.

    Args:
        spec: What it is.
        files: A private folder that becomes its working directory: with `bwrap` and `host` the folder itself, which is
            there afterwards as the sandbox has left it; with `docker` and `python` a copy. None is an empty folder.

    Yields:
        The sandbox.

    Raises:
        SandboxUnavailableError: When this machine cannot open it; the message says what to do.
        BundleError: When the function that makes it cannot be loaded.
    """
    await _sweep_once(docker=spec.provider is SandboxProvider.DOCKER)
    async with _OPENERS[spec.provider](spec, files=files) as sandbox:
        yield sandbox


async def check_sandbox(spec: SandboxSpec) -> None:
    """See whether this machine can open a sandbox, without leaving one: before a training, say.

    A function of the bundle that makes one is not called.

    Raises:
        SandboxUnavailableError: When it cannot; the message says what to do.
    """
    if spec.provider is SandboxProvider.BWRAP:
        await in_thread(checked_jail, what="trying bwrap")
    elif spec.provider is SandboxProvider.DOCKER:
        await check_docker(spec)


async def sweep_sandboxes() -> int:
    """Remove what processes that are gone have left of their sandboxes on the disk. Return how many processes it was.

    The first sandbox that a process opens does so too, as far as two seconds go.
    """
    return await in_thread(partial(remove_left_over, within_s=60.0), what="removing what sandboxes have left")


async def _sweep_once(*, docker: bool) -> None:
    here = os.getpid()
    if _swept.get(False) != here:
        _swept[False] = here
        await in_thread(partial(remove_left_over, within_s=_SWEEP_S), what="removing what sandboxes have left")
    if docker and _swept.get(True) != here:
        _swept[True] = here
        await remove_dead_containers()
