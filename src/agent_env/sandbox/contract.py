"""What a sandbox is, whatever isolates it, and what of it is an error.

A command that fails, is killed or takes too long is an `ExecResult`. A file that is not there is an `OSError`, as it would
be without a sandbox. A sandbox that is gone is a `SandboxLostError`: it says nothing about who worked in it, so an episode
fails with it and is never scored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Protocol, runtime_checkable

from agent_env.errors import UsageError

__all__ = [
    "AS_AGENT_VARIABLE", "FILES_VARIABLE", "MAX_FILE_BYTES", "ExecResult", "HasVerifierSide", "PlacedFile", "Sandbox", "VerifierSide",
    "complaint", "left_out_line",
]  # fmt: skip

MAX_FILE_BYTES = 64 * 2**20
"""The largest file that is read or written in one go, and the most that a command is given as its input."""
_COMPLAINT_CHARS = 500


def left_out_line(left_out_bytes: int) -> str:
    """What stands in the place of the middle of an output, with the line breaks around it."""
    return f"\n[... {left_out_bytes:,} bytes left out ...]\n"


def complaint(result: ExecResult) -> str:
    """What a command said of its failure, in one line: the end of its stderr, or else of what it printed."""
    said = " ".join((result.stderr or result.stdout).decode("utf-8", "replace").split())
    return said[-_COMPLAINT_CHARS:]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """How a command ended."""

    exit_code: int
    """As a shell says it: 128 and the signal's number for what a signal has ended, 127 for what is not there."""
    stdout: bytes
    """What it printed; where it was more than asked for, the middle is left out, and a line in its place says so."""
    stderr: bytes
    timed_out: bool = False
    """It took longer than its time, and was killed."""
    stdout_left_out_bytes: int = 0
    stderr_left_out_bytes: int = 0
    duration_s: float = 0.0
    notes: tuple[str, ...] = ()
    """What the sandbox did meanwhile that the command cannot know, in sentences: that it ended a process for its memory."""

    @property
    def is_ok(self) -> bool:
        """Whether it ended by itself with 0."""
        return self.exit_code == 0 and not self.timed_out

    @property
    def text(self) -> str:
        """What it printed to stdout, as text; bytes that are no UTF-8 are replaced."""
        return self.stdout.decode("utf-8", "replace")


@runtime_checkable
class Sandbox(Protocol):
    """An open sandbox. Its calls may be made at the same time, in the event loop that opened it."""

    @property
    def root(self) -> PurePosixPath:
        """The working directory, absolute, as the sandbox sees it."""
        ...

    @property
    def private_dir(self) -> PurePosixPath:
        """A folder outside the working directory, for what is no part of the task."""
        ...

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
        """Run a command to its end. When this is cancelled, the command is killed.

        Processes that it leaves in the background go on, until the sandbox is closed.

        Args:
            command: A text for the shell, of any length, or a program and its arguments.
            cwd: Where, relative to the working directory; None is the working directory.
            env: Environment variables, beside the sandbox's own.
            stdin: What it can read; then its input ends.
            timeout_s: Seconds it may take; then it is killed with what it has started. None is the sandbox's own bound.
            output_bytes: How much of stdout, and of stderr, is kept. None is the sandbox's own bound.

        Raises:
            UsageError: When it is no command: there is a NUL in it, or no program.
            SandboxLostError: When the sandbox is gone.
        """
        ...

    async def read_file(self, path: str | PurePosixPath, *, max_bytes: int = 10 * 2**20) -> bytes:
        """Return what is in a file, as the sandbox sees it: a symlink leads where it leads there.

        Args:
            path: Relative to the working directory, or absolute.
            max_bytes: The largest file that is read, up to `MAX_FILE_BYTES`.

        Raises:
            OSError: When it cannot be read: `FileNotFoundError`, `IsADirectoryError`, `PermissionError`; or with the errno
                `EFBIG` when it is larger, `ENOTSUP` when it is a pipe or a device.
            SandboxLostError: When the sandbox is gone.
        """
        ...

    async def write_file(self, path: str | PurePosixPath, content: bytes | str, *, executable: bool = False) -> None:
        """Write a file, and make the folders above it.

        Args:
            path: Relative to the working directory, or absolute.
            content: The whole content; text is written as UTF-8.
            executable: Whether it may be run.

        Raises:
            OSError: When it cannot be written, as for `read_file`; what was there before may be gone then.
            UsageError: When the content is larger than `MAX_FILE_BYTES`, or no Unicode text.
            SandboxLostError: When the sandbox is gone.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedFile:
    """A file of the bundle's that is put into a sandbox."""

    path: PurePosixPath
    """Where in the folder that is made for such files, relative."""
    content: bytes
    is_executable: bool = False

    def __post_init__(self) -> None:
        """Check the path.

        Raises:
            UsageError: When it leads out of the folder, or is none.
        """
        if self.path.is_absolute() or ".." in self.path.parts or not self.path.parts:
            raise UsageError(f"a file is put into a folder of the sandbox: '{self.path}' is no path in one")


FILES_VARIABLE = "AGENT_ENV_VERIFIER"
"""The environment variable that says where the bundle's files are."""
AS_AGENT_VARIABLE = "AGENT_ENV_AS_AGENT"
"""The environment variable with the program that runs another where the agent worked; empty where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierSide:
    """Where one verifier's commands run: in what the agent worked in, apart from what it left running if that can be."""

    sandbox: Sandbox
    """Runs the commands."""
    files: PurePosixPath
    """The folder with the bundle's files."""
    own: PurePosixPath
    """An empty folder for what the verifier writes, its score say."""
    is_apart: bool
    """Whether no process of the agent's can see these folders, or signal, trace or read the verifier's processes. Where it is
    not, they have names that nobody knows before, and that is all."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """Variables that say where things are, beside the sandbox's own."""

    async def run(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        output_bytes: int | None = None,
    ) -> ExecResult:
        """Run a command to its end, as `Sandbox.run` does, with this side's variables.

        Raises:
            UsageError: When it is no command.
            SandboxLostError: When the sandbox is gone.
        """
        return await self.sandbox.run(
            command,
            env={**self.environment, **(env or {})},
            stdin=stdin,
            timeout_s=timeout_s,
            output_bytes=output_bytes,
        )


@runtime_checkable
class HasVerifierSide(Protocol):
    """What a `Sandbox` has too when it can keep verifiers apart from what an agent left running."""

    def verifier_side(self, files: Sequence[PlacedFile] = ()) -> AbstractAsyncContextManager[VerifierSide]:
        """A place for one verifier, for the length of a block; with it end the verifier's processes, and go its files.

        Args:
            files: What is put there.

        Raises:
            OSError: When a file cannot be put there.
            UsageError: Likewise, when it is none.
            SandboxLostError: When the sandbox is gone.
        """
        ...
