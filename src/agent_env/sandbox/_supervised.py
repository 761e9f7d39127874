"""A sandbox whose first process is ours: what bwrap and host have in common."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from errno import EFBIG, ENOTSUP
from pathlib import PurePosixPath

from agent_env.errors import SandboxLostError, UsageError
from agent_env.sandbox._channel import Channel
from agent_env.sandbox.contract import MAX_FILE_BYTES, ExecResult, left_out_line

__all__ = ["SupervisedSandbox", "Workplace", "arguments_of", "as_argument", "as_bytes", "file_error"]

_ANSWER_S = 30.0
"""Seconds above a command's own time after which a sandbox that does not answer is lost."""
_FILE_S = 60.0
_MAX_OUTPUT_BYTES = 16 * 2**20
_NONSENSE = "the sandbox is lost: its first process answers nonsense"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workplace:
    """Where commands run, and what they get unless they are given something else."""

    root: PurePosixPath
    """The working directory, absolute."""
    private_dir: PurePosixPath
    environment: Mapping[str, str]
    timeout_s: float
    output_bytes: int
    """How much of stdout, and of stderr, is kept."""


class SupervisedSandbox:
    """A `Sandbox` over the channel to its first process."""

    def __init__(self, channel: Channel, workplace: Workplace) -> None:
        self._channel = channel
        self._workplace = workplace

    @property
    def root(self) -> PurePosixPath:
        return self._workplace.root

    @property
    def private_dir(self) -> PurePosixPath:
        return self._workplace.private_dir

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
        timeout_s = self._workplace.timeout_s if timeout_s is None else timeout_s
        keep = self._workplace.output_bytes if output_bytes is None else output_bytes
        fields = self._fields(command, cwd=cwd, env=env, stdin=stdin, timeout_s=timeout_s, output_bytes=keep)
        answer = await self._channel.ask(b"run", *fields, within_s=timeout_s + _ANSWER_S)
        try:
            return _exec_result(answer)
        except (ValueError, IndexError):
            raise SandboxLostError(_NONSENSE) from None

    def start(self, argv: Sequence[str], *, timeout_s: float) -> None:
        """Run a program without waiting for it, or hearing what comes of it."""
        fields = self._fields(argv, cwd=None, env=None, stdin=b"", timeout_s=timeout_s, output_bytes=0)
        self._channel.post(b"run", b"-", *fields)

    def configure(self, **settings: bytes) -> None:
        """Change the first process's settings: all of them, to those of its `Limits` and `last`, which it does at the end."""
        self._channel.post(b"configure", *(part for name, value in settings.items() for part in (name.encode(), value)))

    async def clear(self, *, within_s: float) -> None:
        """End all that runs here.

        Raises:
            SandboxLostError: When the sandbox is gone, or does not answer within that time.
        """
        await self._channel.ask(b"clear", within_s=within_s)

    def _fields(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None,
        env: Mapping[str, str] | None,
        stdin: bytes,
        timeout_s: float,
        output_bytes: int,
    ) -> list[bytes]:
        environment = {**self._workplace.environment, **(env or {})}
        return [
            as_argument(str(self.root / (cwd or ""))),
            str(max(0, int(timeout_s * 1000))).encode(),
            str(min(output_bytes, _MAX_OUTPUT_BYTES)).encode(),
            as_bytes(stdin),
            b"1" if isinstance(command, str) else b"0",
            str(len(environment)).encode(),
            *(as_argument(text) for pair in environment.items() for text in pair),
            *(as_argument(text) for text in arguments_of(command)),
        ]

    async def read_file(self, path: str | PurePosixPath, *, max_bytes: int = 10 * 2**20) -> bytes:
        most = min(max_bytes, MAX_FILE_BYTES)
        answer = await self._channel.ask(
            b"read", str(most).encode(), as_argument(str(self.root / path)), within_s=_FILE_S
        )
        try:
            _, errno, size, data = answer
            number, size_bytes = int(errno), int(size)
        except ValueError:
            raise SandboxLostError(_NONSENSE) from None
        if number:
            raise file_error(number, path, size_bytes=size_bytes, max_bytes=most)
        return data

    async def write_file(self, path: str | PurePosixPath, content: bytes | str, *, executable: bool = False) -> None:
        fields = [b"73" if executable else b"0", as_argument(str(self.root / path)), as_bytes(content)]  # 0o111
        answer = await self._channel.ask(b"write", *fields, within_s=_FILE_S)
        try:
            _, errno = answer
            number = int(errno)
        except ValueError:
            raise SandboxLostError(_NONSENSE) from None
        if number:
            raise file_error(number, path)


def _exec_result(answer: Sequence[bytes]) -> ExecResult:
    """Read the answer to `run`.

    Raises:
        ValueError: When it is none.
        IndexError: Likewise.
    """
    _, code, timed_out, ms, notes, *streams = answer
    stdout, stdout_left_out = _whole(*streams[:3])
    stderr, stderr_left_out = _whole(*streams[3:6])
    return ExecResult(
        exit_code=int(code),
        stdout=stdout,
        stderr=stderr,
        timed_out=timed_out == b"1",
        stdout_left_out_bytes=stdout_left_out,
        stderr_left_out_bytes=stderr_left_out,
        duration_s=int(ms) / 1000,
        notes=tuple(note.decode("ascii", "replace") for note in notes.split(b"\n") if note),
    )


def _whole(total: bytes = b"", head: bytes = b"", tail: bytes = b"") -> tuple[bytes, int]:
    left_out = int(total) - len(head) - len(tail)
    if left_out <= 0:
        return head + tail, 0
    return head + left_out_line(left_out).encode() + tail, left_out


def file_error(number: int, path: str | PurePosixPath, *, size_bytes: int = 0, max_bytes: int = 0) -> OSError:
    """Return what is raised for a file: the subclass of `OSError` that goes with the number."""
    said = os.strerror(number)
    if number == EFBIG:
        said = f"it has {size_bytes:,} bytes, more than {max_bytes:,}"
    elif number == ENOTSUP:
        said = "it is no regular file"
    return OSError(number, said, str(path))


def as_bytes(content: bytes | str) -> bytes:
    """Return the content of a file, or a command's input.

    Raises:
        UsageError: When it is too large, or text that is no Unicode.
    """
    try:
        data = content.encode() if isinstance(content, str) else bytes(content)
    except UnicodeEncodeError:
        raise UsageError("the content is no Unicode text: half of a surrogate pair is in it") from None
    if len(data) > MAX_FILE_BYTES:
        raise UsageError(f"the content has {len(data):,} bytes: at most {MAX_FILE_BYTES:,} go into a sandbox at once")
    return data


def arguments_of(command: str | Sequence[str]) -> Sequence[str]:
    """Return a command's program and arguments; a text for the shell as the only one.

    Raises:
        UsageError: When there is no program.
    """
    argv = [command] if isinstance(command, str) else list(command)
    if not argv:
        raise UsageError("a command needs a program: write it as ['ls', '-l'], or as text for the shell")
    return argv


def as_argument(text: str) -> bytes:
    """Return a text as the kernel takes it.

    Raises:
        UsageError: When there is a NUL in it, or it is no Unicode text.
    """
    if "\0" in text:
        raise UsageError("a command and a path cannot hold a NUL character")
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise UsageError("a command and a path must be Unicode text: half of a surrogate pair is in it") from None
