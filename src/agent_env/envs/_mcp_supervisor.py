"""The small process between AgentEnv and an MCP server: it sees to it that nothing of the server is left, however we end.

Run in a Python of its own, one for each server, and so with as little imported as it can be: what a module costs is paid for
each episode. It starts the server with its own standard streams, in a session of its own, and then only waits. Whatever the server starts, also what leaves its process group or outlives its
parent, comes back to this process (it is a subreaper), and dies with it: when the server ends, when AgentEnv asks for it
or is killed, when this process is told to end. First the server's input ends; then SIGTERM; then SIGKILL, until no
process is left. What it tells AgentEnv over the socket is a line each: `started PID`, `missing ERRNO`, `exited STATUS`.

Where the system has no subreapers (macOS) what leaves the server's process group is not found.
"""

from __future__ import annotations

import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable
else:
    import _signal  # what `signal` adds are enums, which take longer to import than all else here

__all__ = ["main"]

_SET_PDEATHSIG = 1
_SET_CHILD_SUBREAPER = 36
_KILL_AGAIN_S = 0.02
_GIVE_UP_S = 5.0
"""Seconds after the first SIGKILL in which a process that cannot be killed (it waits for a disk) is waited for."""


def main(arguments: list[str]) -> None:
    """Start the server, stay until everything that came of it is gone, and end this process.

    Args:
        arguments: The socket's file descriptor; the process id of AgentEnv; seconds from the end of the server's input to
            SIGTERM; seconds from there to SIGKILL; the command.
    """
    try:
        _watch_over(*arguments)
    finally:
        os._exit(0)  # at once: who waits for the socket's end waits for this process


def _watch_over(control_fd: str, parent: str, end_s: str, term_s: str, *command: str) -> None:
    control = int(control_fd)
    os.set_inheritable(control, False)  # noqa: FBT003 - it takes no name
    _prctl(_SET_CHILD_SUBREAPER, 1)
    _prctl(_SET_PDEATHSIG, _signal.SIGTERM)
    woken = _wake_on_signals()
    watch = _Watch(control, end_s=float(end_s), term_s=float(term_s))
    try:
        watch.server = _start(command)
    except OSError as exc:
        watch.tell(f"missing {exc.errno or 0}")
        return
    watch.tell(f"started {watch.server}")
    _let_go_of_the_servers_streams()
    if os.getppid() != int(parent):  # it ended before it could be noticed
        watch.stop()
    watch.until_nothing_is_left(woken)
    if not os.path.isdir("/proc/self"):
        _kill(os.killpg, watch.server, _signal.SIGKILL)


def _kill(how: Callable[[int, int], None], pid: int, number: int) -> None:
    try:  # noqa: SIM105 - contextlib takes longer to import than this module
        how(pid, number)
    except OSError:
        pass  # it has ended, or is another user's


def _prctl(option: int, value: int) -> None:
    import ctypes

    try:  # noqa: SIM105 - as above
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except (OSError, AttributeError):
        pass  # not on this system


def _wake_on_signals() -> int:
    """Return a file descriptor that can be read when a signal has come."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    _signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (_signal.SIGCHLD, _signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP):
        _signal.signal(number, _do_nothing)
    return reader


def _do_nothing(number: int, frame: object) -> None:
    """A signal is heard of by what can be read then."""


def _start(command: tuple[str, ...]) -> int:
    """Start the server and return its process id.

    Raises:
        OSError: When there is no such program, or it cannot be run.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            _prctl(_SET_PDEATHSIG, _signal.SIGKILL)
            for number in (_signal.SIGPIPE, _signal.SIGXFSZ):  # Python ignores these, which a program would inherit
                _signal.signal(number, _signal.SIG_DFL)
            os.execvp(command[0], command)
        except OSError as exc:
            os.write(writer, str(exc.errno or 0).encode())
        finally:
            os._exit(127)
    os.close(writer)
    failed = os.read(reader, 20)
    os.close(reader)
    if failed:
        os.waitpid(pid, 0)
        raise OSError(int(failed), os.strerror(int(failed)))
    return pid


def _let_go_of_the_servers_streams() -> None:
    """So that whoever is at their other ends sees them end with the server."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    os.close(nothing)


class _Watch:
    """What is left of a server, and what is to be done about it next."""

    def __init__(self, control: int, *, end_s: float, term_s: float) -> None:
        self.server = 0
        self._control = control
        self._end_s = end_s
        self._term_s = term_s
        self._has_exited = False
        self._next: float | None = None
        """When the next stage begins; None while the server may run."""
        self._kills_since: float | None = None
        self._stages: list[int] = [_signal.SIGTERM, _signal.SIGKILL]

    def tell(self, line: str) -> None:
        try:  # noqa: SIM105 - as above
            os.write(self._control, f"{line}\n".encode())
        except OSError:
            pass  # nobody is there any more

    def stop(self) -> None:
        """Begin to end the server: its input has ended."""
        if self._next is None:
            self._next = time.monotonic() + self._end_s

    def until_nothing_is_left(self, woken: int) -> None:
        heard = select.poll()  # `select` takes no file descriptor above 1,023, and AgentEnv may have more
        heard.register(woken, select.POLLIN)
        heard.register(self._control, select.POLLIN)
        while self._reap():
            if self._has_exited and len(self._stages) > 1:
                self._next = time.monotonic()  # what the server has left behind waits for nothing
            wait_ms = None if self._next is None else max(self._next - time.monotonic(), 0) * 1000
            readable = [fd for fd, _ in heard.poll(wait_ms)]
            if woken in readable and set(os.read(woken, 1000)) - {_signal.SIGCHLD}:
                self.stop()
            if self._control in readable and not self._hear():
                heard.unregister(self._control)
            if self._next is not None and time.monotonic() >= self._next and not self._go_on():
                return

    def _hear(self) -> bool:
        """AgentEnv says that the server is to end at once, or has closed the socket: that it is to end.

        Returns:
            Whether there may be more to hear.
        """
        try:
            heard = os.read(self._control, 100)
        except OSError:
            heard = b""
        self.stop()
        if heard:
            self._next = time.monotonic()
        return bool(heard)

    def _reap(self) -> bool:
        """Take note of what has ended; return whether anything is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.server:
                self._has_exited = True
                self.tell(f"exited {os.waitstatus_to_exitcode(status)}")

    def _go_on(self) -> bool:
        """Send the next signal; return False when there is no more to be done."""
        now = time.monotonic()
        if len(self._stages) > 1:
            number, self._next = self._stages.pop(0), now + self._term_s
        else:
            number, self._next = self._stages[0], now + _KILL_AGAIN_S
            if self._kills_since is None:
                self._kills_since = now
            elif now > self._kills_since + _GIVE_UP_S:
                return False
        for pid in _descendants(os.getpid()):
            _kill(os.kill, pid, number)
        if not self._has_exited:
            _kill(os.killpg, self.server, number)
        return True


def _descendants(top: int) -> list[int]:
    """Return the processes under one, as far as `/proc` tells."""
    children_of = _children if os.path.exists(f"/proc/{top}/task/{top}/children") else _children_of_all().get
    found: list[int] = []
    left = [top]
    while left:
        below = children_of(left.pop()) or []
        found += below
        left += below
    return found


def _children(pid: int) -> list[int]:
    """Return the children of a process."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except OSError:
        pass  # it has ended, and its children are ours now
    return found


def _children_of_all() -> dict[int, list[int]]:
    """Return the children of all processes, for a kernel that does not tell those of one: it takes longer the more there are."""
    children: dict[int, list[int]] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return children
    for name in names:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue  # it has ended
            children.setdefault(parent, []).append(int(name))
    return children
