"""Where the commands of verifiers run: apart from what an agent left in its sandbox, where the sandbox can do that."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import PurePosixPath
from secrets import token_hex

import anyio

from agent_env.errors import EnvBrokenError
from agent_env.sandbox.contract import (
    AS_AGENT_VARIABLE,
    FILES_VARIABLE,
    HasVerifierSide,
    PlacedFile,
    Sandbox,
    VerifierSide,
    complaint,
)

__all__ = ["open_verifier_side", "placed_files", "remove_inside", "side_in", "side_of"]

logger = logging.getLogger(__name__)

_REMOVE_S = 30.0


@asynccontextmanager
async def open_verifier_side(sandbox: Sandbox, files: Sequence[PlacedFile] = ()) -> AsyncGenerator[VerifierSide]:
    """A place for the commands of one verifier, for the length of the block. One at a time in a sandbox: the next one waits.

    Apart from the agent with `bwrap` and `docker`, and with sandboxes that are a `HasVerifierSide`. Elsewhere the commands run
    beside what the agent left running, in folders with names that nobody could know before.

    Args:
        sandbox: What the agent worked in: `episode.state("box")`, say.
        files: Put there, and taken away after the block.

    Raises:
        OSError: When a file cannot be put there, or a folder not be made.
        UsageError: When it is none that can be.
        SandboxLostError: When the sandbox is gone.
    """
    async with AsyncExitStack() as stack:
        if isinstance(sandbox, HasVerifierSide):
            yield await stack.enter_async_context(sandbox.verifier_side(files))
            return
        place = sandbox.private_dir / f"verifier-{token_hex(8)}"
        stack.push_async_callback(remove_inside, sandbox, place)
        yield await side_in(sandbox, place, files, is_apart=False)


async def side_in(
    sandbox: Sandbox, place: PurePosixPath, files: Sequence[PlacedFile], *, is_apart: bool
) -> VerifierSide:
    """Make a verifier's side in one folder, with its files.

    Args:
        sandbox: Runs the commands.
        place: The folder; nobody has made it yet.
        files: What is put there.
        is_apart: Whether the agent can get at nothing of it.

    Raises:
        OSError: When a file cannot be put there, or a folder not be made.
        UsageError: When it is none that can be.
        SandboxLostError: When the sandbox is gone.
    """
    await _write(sandbox, place / "files", files)
    return await side_of(sandbox, files=place / "files", own=place / "own", temporary=place / "tmp", is_apart=is_apart)


async def side_of(
    sandbox: Sandbox,
    *,
    files: PurePosixPath,
    own: PurePosixPath,
    temporary: PurePosixPath,
    is_apart: bool,
    as_agent: PurePosixPath | None = None,
) -> VerifierSide:
    """Make a verifier's side of these folders; those that are not there are made.

    Args:
        sandbox: Runs the commands.
        files: Has the bundle's files.
        own: Is for what the verifier writes.
        temporary: Is for what any program of its may leave.
        is_apart: Whether the agent can get at nothing of it.
        as_agent: The program that runs another where the agent worked; None where there is none.

    Raises:
        OSError: When a folder cannot be made.
        SandboxLostError: When the sandbox is gone.
    """
    made = await sandbox.run(["mkdir", "-p", "--", str(files), str(own), str(temporary)])
    if not made.is_ok:
        raise OSError(f"there is no room for a verifier in the sandbox: {complaint(made)}")
    environment = {
        FILES_VARIABLE: str(files),
        AS_AGENT_VARIABLE: "" if as_agent is None else str(as_agent),
        "TMPDIR": str(temporary),
    }
    return VerifierSide(sandbox=sandbox, files=files, own=own, is_apart=is_apart, environment=environment)


@asynccontextmanager
async def placed_files(sandbox: Sandbox, files: Sequence[PlacedFile]) -> AsyncGenerator[PurePosixPath]:
    """Files beside an agent's processes, for a command that is not to be hidden from them; gone after the block.

    Yields:
        The folder that they are in.

    Raises:
        OSError: When one cannot be put there.
        UsageError: When it is none that can be.
        SandboxLostError: When the sandbox is gone.
    """
    place = sandbox.private_dir / f"files-{token_hex(8)}"
    try:
        await _write(sandbox, place, files)
        yield place
    finally:
        await remove_inside(sandbox, place)


async def _write(sandbox: Sandbox, place: PurePosixPath, files: Sequence[PlacedFile]) -> None:
    for file in files:
        await sandbox.write_file(place / file.path, file.content, executable=file.is_executable)


async def remove_inside(sandbox: Sandbox, place: PurePosixPath) -> None:
    """Remove a folder in a sandbox, also when this is cancelled; what cannot be removed is logged."""
    with anyio.move_on_after(_REMOVE_S, shield=True) as scope:
        try:
            result = await sandbox.run(["rm", "-rf", "--", str(place)], timeout_s=_REMOVE_S)
        except EnvBrokenError:
            return  # and what was in it with it
        if not result.is_ok:
            logger.error("%s stays in the sandbox: rm: %s", place, complaint(result))
    if scope.cancelled_caught:
        logger.error("%s stays in the sandbox: rm took longer than %s s", place, _REMOVE_S)
