"""What runs in a sandbox, as `/proc` tells it, and ending it. Also the system calls that Python has no module for."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
else:
    import _signal

__all__ = [
    "CHILD_SUBREAPER", "DUMPABLE", "PDEATHSIG", "Process", "descendants", "is_of_this_namespace", "kill", "kill_group", "listed",
    "memory_bytes", "name_of", "prctl", "running", "system_call",
]  # fmt: skip

PDEATHSIG = 1
DUMPABLE = 4
CHILD_SUBREAPER = 36

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Process:
    """One line of `/proc`."""

    __slots__ = ("has_ended", "parent", "session", "threads")

    def __init__(self, parent: int, session: int, threads: int, *, has_ended: bool) -> None:
        self.parent = parent
        self.session = session
        self.threads = threads
        self.has_ended = has_ended
        """Whether it only waits for its parent to ask how it ended; it counts as a process as long."""


def running() -> dict[int, Process]:
    """Return the processes but this one that have not ended, by their id; none where there is no `/proc`."""
    return {pid: process for pid, process in listed().items() if not process.has_ended}


def listed() -> dict[int, Process]:
    """Return all processes but this one, also those that have ended and are not yet gone."""
    found: dict[int, Process] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return found
    here = os.getpid()
    for name in names:
        if name.isdigit() and int(name) != here:
            # The command name in parentheses may hold anything: what follows the last one is countable.
            fields = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()
            if fields:
                ended = fields[0] in (b"Z", b"X")
                found[int(name)] = Process(int(fields[1]), int(fields[3]), int(fields[17]), has_ended=ended)
    return found


def descendants(top: int, processes: dict[int, Process]) -> set[int]:
    """Return what descends from a process."""
    found: set[int] = set()
    above = {top}
    while above:
        above = {pid for pid, process in processes.items() if process.parent in above} - found
        found |= above
    return found


def kill(pid: int) -> None:
    """Kill a process, or with -1 every one; one that has ended or is not ours stays as it is."""
    try:  # noqa: SIM105 - contextlib takes a millisecond to import
        os.kill(pid, _signal.SIGKILL)
    except OSError:
        pass


def kill_group(pid: int) -> None:
    """Kill a process group."""
    try:  # noqa: SIM105 - as above
        os.killpg(pid, _signal.SIGKILL)
    except OSError:
        pass


def is_of_this_namespace(pid: int) -> bool:
    """Whether a process is in this one's pid namespace itself, and not in one below it."""
    for line in _read(f"/proc/{pid}/status").split(b"\n"):
        if line.startswith(b"NSpid:"):
            return len(line.split()) == 2
    return False


def memory_bytes(pid: int) -> int:
    """Return the memory of a process that no file is behind."""
    fields = _read(f"/proc/{pid}/statm").split()
    return max(0, int(fields[1]) - int(fields[2])) * _PAGE_BYTES if len(fields) > 2 else 0


def name_of(pid: int) -> bytes:
    """Return the name of a process's program, for a person to read."""
    return bytes(byte for byte in _read(f"/proc/{pid}/comm") if 32 <= byte < 127)


def prctl(option: int, value: int) -> None:
    """Set what only the system call `prctl` sets; nothing where there is none.

    Raises:
        ImportError: When this Python has no `_ctypes`.
    """
    if sys.platform == "linux":
        system_call("prctl", option, value, 0, 0, 0)


def system_call(name: str, *arguments: int | bytes) -> bool:
    """Make a system call that the C library has a function for; return whether it was done.

    Raises:
        ImportError: When this Python has no `_ctypes`.
    """
    import _ctypes

    program = _ctypes.dlopen(None, 2)  # pyright: ignore[reportArgumentType] - None is the program itself
    return bool(_ctypes.call_function(_ctypes.dlsym(program, name), arguments) == 0)


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""
    finally:
        os.close(fd)
