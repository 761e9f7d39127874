"""A sandbox on this machine, by bubblewrap: namespaces of its own, the machine's programs read-only, no network.

It shares the machine's kernel. What isolates what is in `docs/sandboxes.md`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path

from agent_env.bundle import SandboxSpec
from agent_env.errors import SandboxUnavailableError
from agent_env.sandbox._blocking import in_thread
from agent_env.sandbox._cgroup import limits
from agent_env.sandbox._channel import Channel
from agent_env.sandbox._jail import ENVIRONMENT, PRIVATE_DIR, ROOT, VERIFIERS_DIR, Jail, jail_command, shm_bytes
from agent_env.sandbox._jail_check import checked_jail, found_jail, has_worked, likely_jail
from agent_env.sandbox._jailed import JailedSandbox
from agent_env.sandbox._launch import Launch, Turn, open_channels, turn_to_start
from agent_env.sandbox._place import base_dir, sandbox_folder
from agent_env.sandbox._supervised import Workplace
from agent_env.sandbox._uids import leased_uid
from agent_env.sandbox._verifier_files import VerifierFiles
from agent_env.sandbox._work import check_way, work_folder
from agent_env.sandbox.contract import Sandbox

__all__ = ["open_bwrap"]

logger = logging.getLogger(__name__)


@asynccontextmanager
async def open_bwrap(spec: SandboxSpec, *, files: Path | None) -> AsyncGenerator[Sandbox]:
    """Open a sandbox with bubblewrap.

    Args:
        spec: What it has.
        files: The folder that becomes its working directory; None is an empty one, removed at the end.

    Raises:
        SandboxUnavailableError: When this machine cannot make one.
    """
    memory_bytes = spec.memory_mb * 2**20
    async with AsyncExitStack() as stack:
        turn = await stack.enter_async_context(turn_to_start())
        owner, folder = stack.enter_context(sandbox_folder())
        uid = stack.enter_context(leased_uid(base_dir())) if os.geteuid() == 0 else None
        work = await stack.enter_async_context(work_folder(files, folder, uid=uid))
        for bind in spec.binds.values() if uid is not None else ():
            check_way(bind / "what is in it", or_else="keep the bundle elsewhere")
        for_verifiers = VerifierFiles(folder / "verifiers", gid=uid)
        entered, is_limited = stack.enter_context(limits(f"{owner.name}-{folder.name}", spec))

        def launch(jail: Jail, code: bytes | None, *, makes_code: bool = False) -> Launch:
            @contextmanager
            def command() -> Generator[tuple[Sequence[str], Sequence[int]]]:
                jailed = jail_command(
                    jail,
                    work=work,
                    files=for_verifiers.path,
                    uid=uid,
                    network=spec.network,
                    memory_bytes=memory_bytes,
                    binds=spec.binds,
                )
                with jailed as (argv, fds):
                    yield [*entered, *argv], fds

            def configuration(processes: int) -> dict[bytes, bytes]:
                numbers = {b"memory_bytes": memory_bytes, b"processes": processes, b"is_limited": is_limited}
                numbers[b"counts_alone"] = uid is not None or _counts_by_namespace()
                return {name: b"%d" % number for name, number in numbers.items()}

            return Launch(
                command=command,
                code=code,
                makes_code=makes_code,
                # The kernel counts both sides' processes as one user's: so that a verifier can start as many as an agent.
                configuration=(configuration(spec.processes), configuration(2 * spec.processes)),
                arguments=(str(VERIFIERS_DIR), f"size={shm_bytes(memory_bytes)},mode=1777"),
            )

        jail, channels = await _open(stack, launch, folder, turn)
        workplace = Workplace(
            root=ROOT,
            private_dir=PRIVATE_DIR,
            environment={**ENVIRONMENT, **spec.environment},
            timeout_s=spec.command_timeout_s,
            output_bytes=4 * spec.output_chars,
        )
        yield JailedSandbox(channels, workplace, for_verifiers, python=jail.python)


async def _open(
    stack: AsyncExitStack, launch: Callable[..., Launch], folder: Path, turn: Turn
) -> tuple[Jail, Sequence[Channel]]:
    """Start it. The first one as it can be on most machines: only if it cannot is it found out what this one can do."""
    found = found_jail()
    likely = likely_jail() if found is None else None
    if likely is not None:
        try:
            opening = open_channels(launch(likely, None, makes_code=True), folder, turn)
            channels = await stack.enter_async_context(opening)
        except SandboxUnavailableError as exc:
            logger.debug("the first sandbox of this process has not started as most do: %s", exc)
        else:
            has_worked(likely, channels[0].is_ready.result() or None)
            return likely, channels
    jail, code = found or await in_thread(checked_jail, what="trying bwrap")
    return jail, await stack.enter_async_context(open_channels(launch(jail, code), folder, turn))


@cache
def _counts_by_namespace() -> bool:
    """Whether the kernel counts a user's processes for each user namespace: since Linux 5.14."""
    major, minor = (int(number) for number in os.uname().release.replace("-", ".").split(".")[:2])
    return (major, minor) >= (5, 14)
