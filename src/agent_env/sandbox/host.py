"""No isolation: commands run as the user, on the machine itself. Only when a bundle asks for it by name.

What it has of a sandbox: the working directory, output that is bounded, time limits, and that nothing is left. Memory,
processes and the network are not limited, and a command can do whatever the user can: also end everything the user runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path, PurePosixPath

from agent_env.bundle import SandboxSpec
from agent_env.sandbox._blocking import in_thread
from agent_env.sandbox._channel import Channel
from agent_env.sandbox._inside.processes import kill, running
from agent_env.sandbox._launch import Launch, open_channels, turn_to_start
from agent_env.sandbox._place import sandbox_folder
from agent_env.sandbox._supervised import SupervisedSandbox, Workplace
from agent_env.sandbox._work import work_folder
from agent_env.sandbox.contract import Sandbox

__all__ = ["open_host"]

_PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ")
"""What commands get of this process's environment: the rest may be keys, which an agent would see."""
_MARK = "AGENT_ENV_SANDBOX"


@asynccontextmanager
async def open_host(spec: SandboxSpec, *, files: Path | None) -> AsyncGenerator[Sandbox]:
    """Open a sandbox that isolates nothing.

    Args:
        spec: Its memory, processes and network are not looked at.
        files: The working directory; None is an empty one, removed at the end.

    Raises:
        SandboxUnavailableError: When its first process cannot be started.
    """
    async with AsyncExitStack() as stack:
        turn = await stack.enter_async_context(turn_to_start())
        owner, folder = stack.enter_context(sandbox_folder())
        mark = f"{owner.name}-{folder.name}"
        async with work_folder(files, folder, uid=None) as work:
            private, temporary = folder / "private", folder / "tmp"
            private.mkdir()
            temporary.mkdir()
            environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
            environment |= {"TERM": "dumb", "TMPDIR": str(temporary), _MARK: mark, **spec.environment}
            launch = Launch(
                command=lambda: nullcontext(((sys.executable,), ())),
                configuration=({},),
                environment={"TMPDIR": str(temporary)},
            )
            channel: Channel | None = None
            try:
                async with open_channels(launch, folder, turn) as (channel,):
                    workplace = Workplace(
                        root=PurePosixPath(work.resolve()),
                        private_dir=PurePosixPath(private),
                        environment=environment,
                        timeout_s=spec.command_timeout_s,
                        output_bytes=4 * spec.output_chars,
                    )
                    yield SupervisedSandbox(channel, workplace)
            finally:
                if channel is not None and channel.was_lost:
                    await in_thread(partial(_kill_marked, mark), what=f"looking for what is left of sandbox {mark}")


def _kill_marked(mark: str) -> None:
    """Kill what a sandbox has started and its first process could not: a command can kill that one."""
    for pid in running():
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"{_MARK}={mark}".encode() in variables:
            kill(pid)
