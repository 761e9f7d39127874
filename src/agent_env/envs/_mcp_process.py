"""A server's process: how it is started with its supervisor (`_mcp_supervisor.py`), talked to, and ended."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from agent_env.envs._mcp_tail import Tail

__all__ = ["USUAL_PATIENCE", "CannotStartError", "Patience", "ServerCommand", "ServerProcess"]

logger = logging.getLogger(__name__)

_SUPERVISOR = (
    # Imported, and not run as a script: so it is compiled once, and not for each server.
    "import sys; sys.path.append(sys.argv[1]); import _mcp_supervisor; _mcp_supervisor.main(sys.argv[2:])",
    str(Path(__file__).parent),
)
_KILL_S = 7.0
"""Seconds from SIGKILL to the end of everything, or the supervisor is killed itself: a little more than it takes to give up."""


class CannotStartError(Exception):
    """The server's program cannot be run; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long a server is waited for that is to end, or seems to have ended."""

    end_s: float = 1.0
    """Seconds that it has to end by itself once its input has ended."""
    term_s: float = 1.0
    """Seconds that it has after SIGTERM."""
    status_s: float = 1.5
    """Seconds in which a server whose output has ended has ended itself, or it is said that it has not; and once more, in
    which what it has left behind ends, which may hold its standard error open.
    """

    @property
    def reason_s(self) -> float:
        """Seconds to find out why a connection has ended: a little more than finding out how the server has."""
        return 2 * self.status_s + 0.5

    @property
    def gone_s(self) -> float:
        """Seconds in which nothing of the server is left."""
        return self.end_s + self.term_s + _KILL_S


USUAL_PATIENCE = Patience()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    """How a server is started."""

    program: str
    """The program's path."""
    arguments: tuple[str, ...] = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)
    """All of its environment."""
    folder: Path | None
    """Where it starts; None is an empty folder of its own."""


class ServerProcess:
    """The processes of one server, and our ends of the pipes to them. Used once, and by one task.

    Args:
        command: How it is started.
        tail: What it writes on its standard error is kept there.
        patience: How long it is waited for at its end.
        max_line_bytes: The longest line that is read of its standard output; memory for two of them may be taken.
    """

    def __init__(self, command: ServerCommand, tail: Tail, patience: Patience, *, max_line_bytes: int) -> None:
        self.lines = asyncio.StreamReader(limit=max_line_bytes)
        """Its standard output."""
        self._command = command
        self._patience = patience
        self._control = _Control()
        self._input = _Input()
        self._stderr = _ToTail(tail)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: asyncio.Transport | None = None
        self._stdin: asyncio.WriteTransport | None = None
        self._readers: list[asyncio.ReadTransport] = []

    async def connect(self, folder: Path) -> None:
        """Start the server in a folder.

        Raises:
            CannotStartError: When its program cannot be run.
        """
        ours, theirs = socket.socketpair()
        try:
            process = self._process = self._start(theirs.fileno(), folder)
        except (OSError, ValueError, subprocess.SubprocessError) as exc:
            ours.close()
            raise CannotStartError(f"cannot be started: {exc}") from exc
        finally:
            theirs.close()
        # From here on the server ends when our end of the socket is closed, whoever closes it.
        loop = asyncio.get_running_loop()
        left = [process.stderr, process.stdout, process.stdin, ours]
        try:
            self._socket, _ = await loop.create_connection(lambda: self._control, sock=ours)
            left.pop()
            self._stdin, _ = await loop.connect_write_pipe(lambda: self._input, process.stdin)
            left.pop()
            stdout, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(self.lines), process.stdout)
            self._readers.append(stdout)
            left.pop()
            stderr, _ = await loop.connect_read_pipe(lambda: self._stderr, process.stderr)
            self._readers.append(stderr)
            left.pop()
        finally:
            for end in left:
                if end is not None:
                    end.close()
        await self._control.has_begun.wait()
        if self._control.missing is not None:
            raise CannotStartError(f"cannot be started: {os.strerror(self._control.missing)}: {self._command.program}")
        if self._control.pid is None:
            raise CannotStartError("cannot be started: what was to watch over it has ended")

    def _start(self, control: int, folder: Path) -> subprocess.Popen[bytes]:
        command = self._command
        settings = [str(control), str(os.getpid()), str(self._patience.end_s), str(self._patience.term_s)]
        # Takes some 2 ms on the loop. In a thread, a cancellation could not tell whether there is a process to end.
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", *_SUPERVISOR, *settings, command.program, *command.arguments],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=dict(command.environment),
            pass_fds=[control],
            start_new_session=True,
        )

    def write(self, data: bytes) -> bool:
        """Have data written to the server; return False when it does not read any more."""
        if self._stdin is None or self._stdin.is_closing():
            return False
        self._stdin.write(data)
        return not self._stdin.is_closing()

    async def ending(self) -> str:
        """Say how the server ended, as what follows its name in a sentence, once its standard error has been read."""
        with suppress(TimeoutError):
            for ended in (self._control.has_exited, self._stderr.has_ended):
                async with asyncio.timeout(self._patience.status_s):
                    await ended.wait()
        status = self._control.status
        if status is None:
            is_there = not self._control.is_gone.is_set()
            return "closed its standard output" if is_there else "was killed, and what watches over it too"
        if status >= 0:
            return f"ended by itself with exit code {status}"
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-status).name}"
        return f"was killed by signal {-status}"

    async def close(self, *, at_once: bool = False) -> None:
        """End everything, in bounded time, also while being cancelled.

        Args:
            at_once: Give the server no time to end by itself.
        """
        process = self._process
        if process is None:
            return
        # First what takes no time: whatever comes after it, the supervisor goes on by itself.
        if at_once and self._socket is not None and not self._socket.is_closing():
            self._socket.write(b"at once\n")
        for writer in (self._stdin, self._socket):
            if writer is not None and not writer.is_closing():
                with suppress(OSError):
                    writer.write_eof()
        for reader in self._readers:
            # A server that cannot write does not come to its end.
            reader.set_protocol(asyncio.Protocol())
            if not reader.is_closing():
                reader.resume_reading()
        cancelled = await self._wait_until_gone(process)
        if process.poll() is None:
            logger.error("MCP server %s: still there after %s s, killed", self._command.program, self._patience.gone_s)
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
        if self._control.pid is not None and self._control.status is None:
            # What was to watch over it is dead and can do it no more.
            with suppress(OSError):
                os.killpg(self._control.pid, signal.SIGKILL)
        self._close_transports()
        if cancelled is not None:
            raise cancelled
        await asyncio.sleep(0)  # in which they close

    def _close_transports(self) -> None:
        for reader in self._readers:
            reader.close()
        if self._socket is not None:
            self._socket.abort()
        if self._stdin is not None and not self._input.is_lost:
            self._stdin.abort()

    async def _wait_until_gone(self, process: subprocess.Popen[bytes]) -> asyncio.CancelledError | None:
        """Wait for the end of the supervisor, which is the last to end; return the cancellation that came meanwhile."""
        cancelled: asyncio.CancelledError | None = None
        until = monotonic() + self._patience.gone_s
        while process.poll() is None and monotonic() < until:
            try:
                if self._socket is None or self._control.is_gone.is_set():
                    await asyncio.sleep(0.002)  # it closes the socket by ending, and takes a moment for that
                else:
                    async with asyncio.timeout(until - monotonic()):
                        await self._control.is_gone.wait()
            except TimeoutError:
                break
            except asyncio.CancelledError as exc:
                cancelled = exc
        return cancelled


class _Control(asyncio.Protocol):
    """What the supervisor tells."""

    def __init__(self) -> None:
        self.pid: int | None = None
        self.missing: int | None = None
        """Why the program cannot be run, as an error number."""
        self.status: int | None = None
        """The server's exit code, negative for a signal."""
        self.has_begun = asyncio.Event()
        self.has_exited = asyncio.Event()
        """The server has; what it has started may still be there."""
        self.is_gone = asyncio.Event()
        """Everything has ended."""
        self._text = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            word, _, number = line.decode().partition(" ")
            if word == "started":
                self.pid = int(number)
            elif word == "missing":
                self.missing = int(number)
            else:
                self.status = int(number)
                self.has_exited.set()
            self.has_begun.set()

    def connection_lost(self, exc: Exception | None) -> None:
        for event in (self.has_begun, self.has_exited, self.is_gone):
            event.set()


class _Input(asyncio.Protocol):
    """A server's standard input."""

    def __init__(self) -> None:
        self.is_lost = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True


class _ToTail(asyncio.Protocol):
    """A server's standard error."""

    def __init__(self, tail: Tail) -> None:
        self._tail = tail
        self.has_ended = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self._tail.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.has_ended.set()
