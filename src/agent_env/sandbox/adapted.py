"""Sandboxes that others make: what has the shape of tinker-cookbook's `SandboxInterface`, or is a `Sandbox` already.

The shape alone counts, and nothing of the cookbook is imported. With it come Modal and whatever else has an adapter there.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import inspect
import io
import logging
import math
import os
import shlex
import tarfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from errno import EIO
from functools import partial
from pathlib import Path, PurePosixPath
from secrets import token_hex
from time import monotonic
from typing import Any, TypeVar, cast

from agent_env._cleanup import wait_until_done
from agent_env.bundle import SandboxSpec
from agent_env.bundle.raised import described
from agent_env.errors import SandboxLostError, SandboxUnavailableError
from agent_env.sandbox._blocking import in_thread
from agent_env.sandbox._scripts import READ, read_error
from agent_env.sandbox._supervised import arguments_of, as_argument, as_bytes
from agent_env.sandbox.contract import MAX_FILE_BYTES, ExecResult, Sandbox, complaint
from agent_env.sandbox.interface import Result, SandboxInterface

__all__ = ["open_adapted", "open_made"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_HEARTBEAT_EVERY_S = 30.0
_HEARTBEAT_S = 30
_CALL_S = 60
"""Seconds for one call that is no command of the agent's."""
_LATE_S = 30.0
"""Seconds above a command's own time after which a sandbox that does not answer is lost."""
_CLOSE_S = 60.0
_LONG_CHARS = 60_000
"""A longer command is put into a file: what carries it has a bound of its own."""
_BEGIN = "agent-env-file"
"""What comes before a file's content: a login shell may print something first."""


@asynccontextmanager
async def open_made(spec: SandboxSpec, *, files: Path | None) -> AsyncGenerator[Sandbox]:
    """Open a sandbox that a function of the bundle makes.

    Args:
        spec: `spec.python` is the function: without parameters, plain or `async def`. It returns a `SandboxInterface`,
            which is cleaned up at the end, or an asynchronous context manager of a `Sandbox`.
        files: Copied into the working directory of the sandbox; what it leaves there is not copied back.

    Raises:
        SandboxUnavailableError: When the function raises, or returns something else.
        BundleError: When it cannot be loaded.
    """
    assert spec.python is not None
    function = await in_thread(spec.python.load, what=f"loading {spec.python}")
    if not callable(function):
        raise SandboxUnavailableError(f"{spec.python} is no function: make it one that returns a sandbox")
    made = await _make(function, str(spec.python))
    if isinstance(made, SandboxInterface):
        async with open_adapted(made, spec, files=files) as sandbox:
            yield sandbox
    elif hasattr(made, "__aenter__"):
        async with made as sandbox:
            if not isinstance(sandbox, Sandbox):
                raise SandboxUnavailableError(f"{spec.python} opens a {type(sandbox).__name__}, which is no Sandbox")
            await _copy_in(sandbox, files)
            yield sandbox
    else:
        raise SandboxUnavailableError(
            f"{spec.python} returned a {type(made).__name__}: return a tinker-cookbook SandboxInterface, or an "
            f"asynchronous context manager of an agent_env Sandbox"
        )


async def _make(function: Callable[[], object], name: str) -> Any:
    try:
        if inspect.iscoroutinefunction(function):
            return await function()
        made = await in_thread(function, what=f"{name}")
        return await cast("Awaitable[object]", made) if inspect.isawaitable(made) else made
    except Exception as exc:  # the bundle's own function
        raise SandboxUnavailableError(f"{name} raised {described(exc)}") from exc


@asynccontextmanager
async def open_adapted(
    interface: SandboxInterface, spec: SandboxSpec, *, files: Path | None = None
) -> AsyncGenerator[Sandbox]:
    """Use a sandbox of the cookbook's shape as one of ours. It is kept alive meanwhile, and cleaned up at the end.

    Args:
        interface: The sandbox, open.
        spec: The bounds of its commands, and their environment; the rest is up to who has made it.
        files: Copied into its working directory, which is the one that its commands start in.

    Raises:
        SandboxLostError: When it does not do what it is told.
    """
    beating: asyncio.Task[None] | None = None
    try:
        sandbox = _AdaptedSandbox(interface, spec)
        await sandbox.prepare()
        await _copy_in(sandbox, files)
        beating = asyncio.create_task(sandbox.keep_alive(), name=f"heartbeat of sandbox {interface.sandbox_id}")
        yield sandbox
    finally:
        ending = asyncio.create_task(_end(interface, beating), name=f"clean up sandbox {interface.sandbox_id}")
        await wait_until_done(ending, grace_s=_CLOSE_S, what=f"cleaning up sandbox {interface.sandbox_id}")


async def _end(interface: SandboxInterface, beating: asyncio.Task[None] | None) -> None:
    if beating is not None:
        beating.cancel()
        await asyncio.wait([beating])
    try:
        await interface.cleanup()
    except Exception:  # raised here it would replace what the block is left with
        logger.exception("sandbox %s: cleanup raised", interface.sandbox_id)


async def _copy_in(sandbox: Sandbox, files: Path | None) -> None:
    if files is None:
        return
    archive = await in_thread(partial(_archive, files), what=f"reading {files}")
    if not archive:
        return
    place = str(sandbox.private_dir / "files.tar")
    await sandbox.write_file(place, archive)
    result = await sandbox.run(["tar", "-xf", place], timeout_s=_CALL_S)
    await sandbox.run(["rm", "-f", place], timeout_s=_CALL_S)
    if not result.is_ok:
        raise SandboxUnavailableError(f"the files cannot be copied into the sandbox: tar: {complaint(result)}")


def _archive(files: Path) -> bytes:
    names = sorted(os.listdir(files))
    if not names:
        return b""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name in names:
            archive.add(files / name, name, filter=_owned_by_nobody_in_particular)
    return data.getvalue()


def _owned_by_nobody_in_particular(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


class _AdaptedSandbox:
    """A `Sandbox` over a `SandboxInterface`."""

    def __init__(self, interface: SandboxInterface, spec: SandboxSpec) -> None:
        self._interface = interface
        self._spec = spec
        self._lost: str | None = None
        self._private_dir = PurePosixPath(f"/tmp/.agent-env-{token_hex(8)}")
        self._root = PurePosixPath("/")

    @property
    def root(self) -> PurePosixPath:
        return self._root

    @property
    def private_dir(self) -> PurePosixPath:
        return self._private_dir

    async def prepare(self) -> None:
        text = f"mkdir -p {self._private_dir} && echo && pwd"
        result = await self._call(self._interface.run_command(text, timeout=_CALL_S), _CALL_S)
        lines = result.stdout.strip().splitlines()
        if result.exit_code != 0 or not lines or not lines[-1].startswith("/"):
            raise SandboxLostError(f"sandbox {self._interface.sandbox_id} runs no commands: {result.stderr.strip()}")
        self._root = PurePosixPath(lines[-1])

    async def keep_alive(self) -> None:
        """Send heartbeats, until cancelled. A sandbox that has ended by itself says so at the next call."""
        while self._lost is None:
            await asyncio.sleep(_HEARTBEAT_EVERY_S)
            try:
                await self._interface.send_heartbeat(timeout=_HEARTBEAT_S)
            except Exception as exc:  # noqa: BLE001 - the adapter's own; the next call says what it means
                if _is_terminated(exc):
                    self._lost = str(exc)
                logger.warning(
                    "sandbox %s: heartbeat raised %s: %s", self._interface.sandbox_id, type(exc).__name__, exc
                )

    async def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        output_bytes: int | None = None,
    ) -> ExecResult:
        timeout_s = self._spec.command_timeout_s if timeout_s is None else timeout_s
        keep = 4 * self._spec.output_chars if output_bytes is None else output_bytes
        argv = [as_argument(text).decode("utf-8", "surrogateescape") for text in arguments_of(command)]
        text = argv[0] if isinstance(command, str) else f"exec {shlex.join(argv)}"
        variables = {**self._spec.environment, **(env or {})}
        if variables:
            exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
            text = f"export {exports}\n{text}"
        temporary: list[str] = []
        try:
            text = f"{await self._input(stdin, temporary)}\n{text}"
            if len(text) > _LONG_CHARS:
                script = await self._put(text.encode("utf-8", "surrogateescape"), temporary)
                text = f". {script}"
            began = monotonic()
            running = self._interface.run_command(
                text, workdir=str(self._root / (cwd or "")), timeout=math.ceil(timeout_s), max_output_bytes=keep + 1
            )
            result = await self._call(running, timeout_s + _LATE_S)
        finally:
            if temporary and self._lost is None:
                removing = self._interface.run_command(shlex.join(["rm", "-f", *temporary]), timeout=_CALL_S)
                await self._call(removing, _CALL_S)
        return self._ended(result, monotonic() - began, timeout_s, keep)

    def _ended(self, result: Result, took_s: float, timeout_s: float, keep: int) -> ExecResult:
        timed_out = result.exit_code < 0 and took_s >= timeout_s - 1
        if result.exit_code < 0 and not timed_out:
            # No command ends so: it is how the cookbook says that there was none.
            self._lost = result.stderr.strip() or "it ran no command"
            raise SandboxLostError(f"sandbox {self._interface.sandbox_id} is lost: {self._lost}")
        stdout, stdout_left_out = _kept(result.stdout, keep)
        stderr, stderr_left_out = _kept(result.stderr, keep)
        return ExecResult(
            exit_code=137 if timed_out else result.exit_code,
            stdout=stdout,
            stderr=stderr,
            timed_out=timed_out,
            stdout_left_out_bytes=stdout_left_out,
            stderr_left_out_bytes=stderr_left_out,
            duration_s=took_s,
        )

    async def _input(self, stdin: bytes, temporary: list[str]) -> str:
        """Return how a shell gives itself an input: in the command where that keeps every byte, for a file is a call more."""
        if not stdin:
            return "exec </dev/null"
        text = stdin.decode("utf-8", "replace")
        if len(text) < _LONG_CHARS and text.endswith("\n") and "\0" not in text and text.encode() == stdin:
            end = f"end-{token_hex(8)}"
            return f"exec <<'{end}'\n{text}{end}"
        return f"exec <{await self._put(stdin, temporary)}"

    async def _put(self, content: bytes, temporary: list[str]) -> str:
        path = str(self._private_dir / token_hex(8))
        temporary.append(path)
        await self.write_file(path, content)
        return path

    async def read_file(self, path: str | PurePosixPath, *, max_bytes: int = 10 * 2**20) -> bytes:
        most = min(max_bytes, MAX_FILE_BYTES)
        whole = as_argument(str(self._root / path)).decode("utf-8", "surrogateescape")
        text = f'set -- {shlex.quote(whole)} {most}\n{READ} echo; echo {_BEGIN}; base64 <"$1"'
        limit = 2 * most + 10_000
        result = await self._call(
            self._interface.run_command(text, timeout=_CALL_S, max_output_bytes=limit), _CALL_S + _LATE_S
        )
        if result.exit_code != 0:
            self._ended(result, 0, math.inf, limit)
            raise read_error(result.exit_code, result.stdout.encode(), path, max_bytes=most)
        try:
            return base64.b64decode(result.stdout.partition(f"{_BEGIN}\n")[2])
        except binascii.Error:
            raise OSError(EIO, "the sandbox did not give its content", str(path)) from None

    async def write_file(self, path: str | PurePosixPath, content: bytes | str, *, executable: bool = False) -> None:
        data = as_bytes(content)
        whole = as_argument(str(self._root / path)).decode("utf-8", "surrogateescape")
        writing = self._interface.write_file(whole, data, executable=executable, timeout=_CALL_S)
        result = await self._call(writing, _CALL_S + _LATE_S)
        if result.exit_code != 0:
            self._ended(result, 0, math.inf, 0)
            raise OSError(EIO, result.stderr.strip() or f"it ended with {result.exit_code}", str(path))

    async def _call(self, calling: Awaitable[T], within_s: float) -> T:
        if self._lost is not None:
            if inspect.iscoroutine(calling):
                calling.close()
            raise SandboxLostError(f"sandbox {self._interface.sandbox_id} is lost: {self._lost}")
        clock = asyncio.timeout(within_s)
        try:
            async with clock:
                return await calling
        except Exception as exc:  # the adapter's own, of any kind
            late = isinstance(exc, TimeoutError) and clock.expired()
            self._lost = f"it does not answer within {within_s:g} s" if late else described(exc)
            raise SandboxLostError(f"sandbox {self._interface.sandbox_id} is lost: {self._lost}") from exc


def _is_terminated(exc: BaseException) -> bool:
    """Whether it is the cookbook's way to say that a sandbox has ended; by name, for the cookbook is not imported."""
    return any(base.__name__ == "SandboxTerminatedError" for base in type(exc).__mro__)


def _kept(text: str, keep: int) -> tuple[bytes, int]:
    """Return what was asked for of an output, and at least how much more there was: one byte more was asked for."""
    data = text.encode("utf-8", "replace")
    if len(data) <= keep:
        return data, 0
    return data[:keep] + b"\n[... what follows is left out ...]\n", len(data) - keep
