"""No isolation: commands run as the user, on the machine itself. Only when a bundle asks for it by name.

What it has of a sandbox: the working directory, output that is bounded, time limits, and that nothing is left. Memory,
processes and the network are not limited.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path, PurePosixPath

from agent_env.bundle import SandboxSpec
from agent_env.sandbox._launch import Launch, code_for_this_python, open_channel
from agent_env.sandbox._place import sandbox_folder
from agent_env.sandbox._supervised import SupervisedSandbox
from agent_env.sandbox._work import work_folder
from agent_env.sandbox.contract import Sandbox

__all__ = ["open_host"]


@asynccontextmanager
async def open_host(spec: SandboxSpec, *, files: Path | None) -> AsyncGenerator[Sandbox]:
    """Open a sandbox that isolates nothing.

    Args:
        spec: Its memory, processes and network are not looked at.
        files: The working directory; None is an empty one, removed at the end.

    Raises:
        SandboxUnavailableError: When its first process cannot be started.
    """
    with sandbox_folder() as (_, folder):
        async with work_folder(files, folder, uid=None) as work:
            private, temporary = folder / "private", folder / "tmp"
            private.mkdir()
            temporary.mkdir()
            environment = {**os.environ, "TERM": "dumb", "TMPDIR": str(temporary), **spec.environment}
            launch = Launch(
                command=lambda: nullcontext(((sys.executable,), ())),
                code=code_for_this_python(),
                configuration={},
                environment={"TMPDIR": str(temporary)},
            )
            async with open_channel(launch, folder) as channel:
                yield SupervisedSandbox(
                    channel,
                    root=PurePosixPath(work.resolve()),
                    private_dir=PurePosixPath(private),
                    environment=environment,
                    timeout_s=spec.command_timeout_s,
                    output_bytes=4 * spec.output_chars,
                )
