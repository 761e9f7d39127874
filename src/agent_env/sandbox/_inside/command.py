"""A command of a sandbox: starting it, and what it prints."""

from __future__ import annotations

import os
import resource
import time
from errno import ENOENT

from agent_env.sandbox._inside.processes import DUMPABLE, prctl

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
else:
    import _signal

__all__ = ["CHUNK", "Command", "Limits", "Request", "Stream", "become", "exit_code", "open_anonymous"]

CHUNK = 65536
"""What a pipe holds, and what is read of one at a time."""
_LONG_BYTES = 100_000
"""The kernel takes 128 kB as one argument; a longer text reaches the shell in a file."""


class Request:
    """A command as it is asked for."""

    def __init__(self, rest: list[bytes]) -> None:
        self.key, self.cwd, timeout_ms, keep, self.stdin, is_shell, count, *more = rest
        self.timeout_s = int(timeout_ms) / 1000
        self.keep_bytes = int(keep)
        self.is_shell = is_shell == b"1"
        names = 2 * int(count)
        self.env = {more[at]: more[at + 1] for at in range(0, names, 2)}
        self.argv = more[names:]


class Stream:
    """What a command prints: the beginning and the end are kept, the middle is counted."""

    def __init__(self, fd: int, keep_bytes: int) -> None:
        self.fd = fd
        self.total = 0
        self.has_ended = False
        self._half = max(keep_bytes // 2, 1)
        self._head = bytearray()
        self._tail = bytearray()

    def read(self) -> bool:
        """Take what is there, at most a chunk; return whether there was any."""
        try:
            chunk = os.read(self.fd, CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        if not chunk:
            self.has_ended = True
            return False
        self.total += len(chunk)
        room = self._half - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        self._tail += chunk
        if len(self._tail) > self._half + CHUNK:
            del self._tail[: -self._half]
        return True

    def kept(self) -> tuple[bytes, bytes]:
        return bytes(self._head), bytes(self._tail[-self._half :])


class Command:
    """A command that runs, or whose answer waits for its end."""

    def __init__(self, request: Request, pid: int, out: int, err: int, notes: list[bytes]) -> None:
        self.key = request.key
        self.pid = pid
        self.streams = (Stream(out, request.keep_bytes), Stream(err, request.keep_bytes))
        self.began = time.monotonic()
        self.deadline = self.began + request.timeout_s
        self.notes = notes
        self.has_timed_out = False
        self.is_dropped = False
        """Whether nobody waits for its answer any more."""
        self.status: int | None = None

    def answer(self) -> list[bytes]:
        code = 128 + _signal.SIGKILL if self.status is None else exit_code(self.status)
        return [
            self.key,
            b"ran",
            str(int(code)).encode(),
            b"1" if self.has_timed_out else b"0",
            str(int((time.monotonic() - self.began) * 1000)).encode(),
            b"\n".join(self.notes),
            *(part for stream in self.streams for part in (str(stream.total).encode(), *stream.kept())),
        ]


class Limits:
    """What each command gets at most; 0 is no limit."""

    def __init__(self, given: dict[bytes, bytes], *, oom_score: bytes = b"500") -> None:
        self.oom_score = oom_score
        """What the kernel is told of who is to go first when it is short of memory; above that of whoever has started it."""
        self.memory_bytes = int(given.get(b"memory_bytes", b"0"))
        self.processes = int(given.get(b"processes", b"0"))
        self.are_kept = given.get(b"is_limited") == b"1"
        """Whether a control group keeps them, better than this can."""
        self.counts_alone = given.get(b"counts_alone") == b"1" or not self.are_kept
        """Whether to have the kernel count this side's processes: not where it would count all of the user's for nothing."""
        self.files = resource.getrlimit(resource.RLIMIT_NOFILE)

    def apply(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, self.files)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if self.memory_bytes and not self.are_kept:
            # Twice the memory, for it counts what is reserved and never touched, such as the stacks of threads.
            _lower(resource.RLIMIT_DATA, 2 * self.memory_bytes)
        if self.processes and self.counts_alone:
            _lower(resource.RLIMIT_NPROC, self.processes)


def become(request: Request, streams: tuple[int, int, int], closed: tuple[int, ...], limits: Limits) -> None:
    """Be the command. Called in a process made for it; does not return.

    Args:
        request: The command.
        streams: Its standard input, output and error.
        closed: What it must not have.
        limits: What it gets.
    """
    try:
        _signal.set_wakeup_fd(-1)
        for number in range(1, 32):
            if number not in (_signal.SIGKILL, _signal.SIGSTOP):
                _signal.signal(number, _signal.SIG_DFL)
        os.setsid()
        for fd in closed:
            os.close(fd)
        for at, fd in enumerate(streams):
            os.dup2(fd, at)
        limits.apply()
        _die_first(limits.oom_score)
        argv = request.argv
        if request.is_shell:
            shell = b"/bin/bash" if os.path.exists("/bin/bash") else b"/bin/sh"
            argv = [shell, b"-c", argv[0]] if len(argv[0]) < _LONG_BYTES else [shell, _file_with(argv[0])]
        os.chdir(request.cwd)
        os.execvpe(argv[0], argv, request.env)
    except OSError as exc:
        what = request.cwd if exc.filename == request.cwd else b"the command" if request.is_shell else request.argv[0]
        os.write(2, what + b": " + (exc.strerror or "").encode() + b"\n")
        os._exit(127 if exc.errno == ENOENT else 126)
    finally:
        os._exit(126)


def open_anonymous(data: bytes) -> int:
    """Return a file descriptor at the beginning of a file that has no name and holds `data`."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("input")
    else:  # not on Linux
        path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f".agent-env-{os.getpid()}-{time.monotonic_ns()}")
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.unlink(path)
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def exit_code(status: int) -> int:
    """Return a status as a shell says it: 128 and the signal's number for what a signal has ended."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _file_with(text: bytes) -> bytes:
    fd = open_anonymous(text)
    os.set_inheritable(fd, True)  # noqa: FBT003 - it has no name
    return b"/dev/fd/%d" % fd


def _die_first(oom_score: bytes) -> None:
    """Have the kernel end this process, when it is short of memory, before the sandbox's first one or the trainer."""
    prctl(DUMPABLE, 1)  # /proc shows this process to itself only so
    try:
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
    except OSError:
        return
    os.write(fd, oom_score)
    os.close(fd)


def _lower(what: int, limit: int) -> None:
    _, hard = resource.getrlimit(what)
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(what, (limit, limit))
