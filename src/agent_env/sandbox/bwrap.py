"""A sandbox on this machine, by bubblewrap: namespaces of its own, the machine's programs read-only, no network.

It shares the machine's kernel. What isolates what is in `docs/sandboxes.md`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from agent_env.bundle import SandboxSpec
from agent_env.sandbox._blocking import in_thread
from agent_env.sandbox._cgroup import limits
from agent_env.sandbox._jail import ENVIRONMENT, PRIVATE_DIR, ROOT, jail_command
from agent_env.sandbox._jail_check import checked_jail
from agent_env.sandbox._launch import Launch, open_channel, turn_to_start
from agent_env.sandbox._place import base_dir, sandbox_folder
from agent_env.sandbox._supervised import SupervisedSandbox
from agent_env.sandbox._uids import leased_uid
from agent_env.sandbox._work import work_folder
from agent_env.sandbox.contract import Sandbox

__all__ = ["open_bwrap"]


@asynccontextmanager
async def open_bwrap(spec: SandboxSpec, *, files: Path | None) -> AsyncGenerator[Sandbox]:
    """Open a sandbox with bubblewrap.

    Args:
        spec: What it has.
        files: The folder that becomes its working directory; None is an empty one, removed at the end.

    Raises:
        SandboxUnavailableError: When this machine cannot make one.
    """
    jail, code = await in_thread(checked_jail, what="trying bwrap")
    memory_bytes = spec.memory_mb * 2**20
    async with AsyncExitStack() as stack:
        turn = await stack.enter_async_context(turn_to_start())
        owner, folder = stack.enter_context(sandbox_folder())
        uid = None if jail.setpriv is None else stack.enter_context(leased_uid(base_dir()))
        async with work_folder(files, folder, uid=uid) as work:
            entered, is_limited = stack.enter_context(limits(f"{owner.name}-{folder.name}", spec))

            @contextmanager
            def command() -> Generator[tuple[Sequence[str], Sequence[int]]]:
                jailed = jail_command(jail, work=work, uid=uid, network=spec.network, memory_bytes=memory_bytes)
                with jailed as (argv, fds):
                    yield [*entered, *argv], fds

            configuration = {
                b"memory_bytes": b"%d" % memory_bytes,
                b"processes": b"%d" % spec.processes,
                b"is_limited": b"%d" % is_limited,
            }
            launch = Launch(command=command, code=code, configuration=configuration)
            async with open_channel(launch, folder, turn) as channel:
                yield SupervisedSandbox(
                    channel,
                    root=ROOT,
                    private_dir=PRIVATE_DIR,
                    environment={**ENVIRONMENT, **spec.environment},
                    timeout_s=spec.command_timeout_s,
                    output_bytes=4 * spec.output_chars,
                )
