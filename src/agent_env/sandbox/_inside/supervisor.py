"""The first process of a sandbox: it runs the commands, bounds what they print, kills them, and reads and writes files.

In a jail it is process 1, which the commands cannot kill, and it cannot be traced; and there are two of it, one for the
agent's side and one for the verifiers', which ends with the agent's. On the host it is a subreaper: what a command leaves
behind comes back to it. When the channel to its parent ends, however that comes, it ends everything.

Requests are `configure NAME VALUE ...`, `run ID CWD TIMEOUT_MS KEEP_BYTES STDIN IS_SHELL ENV_COUNT NAME VALUE ... ARGV ...`,
`kill ID`, `read ID MAX_BYTES PATH`, `write ID MODE PATH DATA` and `clear ID`, which ends what runs. Answers are `ID ran CODE TIMED_OUT MS NOTES` and for both
streams `TOTAL HEAD TAIL`; `ID read ERRNO SIZE DATA`; `ID written ERRNO`; `ID cleared`.
"""

from __future__ import annotations

import os
import resource
import select
import time
from errno import EAGAIN, ENOMEM

from agent_env.sandbox._inside.command import CHUNK, Command, Limits, Request, Stream, become, open_anonymous
from agent_env.sandbox._inside.door import Door, Visit, open_door
from agent_env.sandbox._inside.files import errno_of, read_file, write_file
from agent_env.sandbox._inside.processes import (
    CHILD_SUBREAPER,
    DUMPABLE,
    PDEATHSIG,
    descendants,
    is_of_this_namespace,
    kill,
    kill_group,
    listed,
    memory_bytes,
    name_of,
    prctl,
    running,
)
from agent_env.sandbox._inside.sides import separate
from agent_env.sandbox._inside.wire import pack, pairs, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal as _signal
else:
    import _signal

__all__ = ["main"]

_FORCE_S = 5.0
"""Seconds after a kill in which the answer is given, though the process cannot be killed: it waits for a disk."""
_WATCH_S = 0.2
_IDLE_WATCH_S = 2.0
_END_S = 2.0
_LAST_S = 30.0


def main(made: bytes, channel: str, verifiers: str = "", hidden: str = "", shm: str = "") -> None:
    """Be the first process of a sandbox.

    Args:
        made: The code that this Python had to make for itself.
        channel: The file descriptor of a stream socket to the parent.
        verifiers: That of one for verifiers, in a jail; without it there are no two sides.
        hidden: The folder that is for verifiers alone.
        shm: The settings of the agent's `/dev/shm`.
    """
    agent, door = 0, -1
    ours = int(channel)
    if verifiers:
        try:
            door = open_door(os.fsencode(f"{hidden}/door"))
            agent = separate(os.fsencode(hidden), os.fsencode(shm))
        except OSError as exc:
            os.write(2, f"the sandbox cannot keep verifiers apart: {exc}\n".encode())
            os._exit(1)
        if agent:
            os.close(door)
            door = -1
        ours, theirs = (int(verifiers), ours) if agent else (ours, int(verifiers))
        os.close(theirs)
    supervisor = Supervisor(ours, agent, door)
    if not agent:
        supervisor.send(b"0", b"ready", made)
    supervisor.loop()


class Supervisor:
    """The loop over the channel, the commands' output, their ends and their deadlines."""

    def __init__(self, channel: int, agent: int = 0, door: int = -1) -> None:
        """Prepare it.

        Args:
            channel: The socket to the parent.
            agent: On the verifiers' side of a jail, the first process of the agent's.
            door: On the agent's side, the socket at which verifiers ask for something.
        """
        self._channel = channel
        self._agent = agent
        self._received = bytearray()
        self._commands: dict[int, Command] = {}
        self._streams: dict[int, Stream] = {}
        self._untold: list[bytes] = []
        self._left_open: set[int] = set()
        """Output of commands that have ended, still held by what they left behind: read on, or that would stop."""
        self._is_jail = os.getpid() == 1
        self._is_over = False
        self._configure({})
        self._next_watch = 0.0
        """When memory is looked at again; 0 is never."""
        os.umask(0o022)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self._woken = self._take_signals()
        prctl(DUMPABLE, 0)
        if not self._is_jail:
            prctl(CHILD_SUBREAPER, 1)
            prctl(PDEATHSIG, _signal.SIGTERM)  # a process that the parent forked may hold the channel open
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)
        self._door = None if door < 0 else Door(door, self._poll, self._start_visit, self._kill)

    def _configure(self, given: dict[bytes, bytes]) -> None:
        self._limits = Limits(given, oom_score=b"200" if self._agent else b"500")
        self._watches_memory = self._is_jail and self._limits.memory_bytes > 0 and not self._limits.are_kept
        self._last = unpack(given.get(b"last", b""))

    def _take_signals(self) -> int:
        for number in (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGQUIT):
            # From inside a jail a signal reaches this process only where it has a handler for it.
            _signal.signal(number, _signal.SIG_IGN if self._is_jail else self._told_to_end)
        woken, waker = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(waker, False)
        _signal.signal(_signal.SIGCHLD, self._woken_up)
        _signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        return woken

    def _woken_up(self, *_: object) -> None:
        """Nothing: that it is called ends the waiting."""

    def _told_to_end(self, *_: object) -> None:
        self._is_over = True

    def loop(self) -> None:
        while not self._is_over:
            for fd, _ in self._poll.poll(self._wait_ms()):
                self._readable(fd)
            self._reap()
            self._keep_time()
            self._watch()
        self._end()

    def _wait_ms(self) -> int | None:
        times = [command.deadline for command in self._commands.values()]
        if self._next_watch:
            times.append(self._next_watch)
        return max(0, int((min(times) - time.monotonic()) * 1000) + 1) if times else None

    def _readable(self, fd: int) -> None:
        if fd == self._channel:
            self._receive()
        elif fd == self._woken:
            os.read(fd, 4096)
        elif fd in self._left_open:
            self._discard(fd)
        elif fd in self._streams:
            stream = self._streams[fd]
            stream.read()
            if stream.has_ended:
                del self._streams[fd]
                self._close(fd)
        elif self._door is not None:
            self._door.readable(fd)

    # The channel

    def _receive(self) -> None:
        try:
            chunk = os.read(self._channel, 1 << 20)
        except OSError:
            chunk = b""
        self._is_over = self._is_over or not chunk
        self._received += chunk
        while len(self._received) >= 4:
            size = int.from_bytes(self._received[:4], "big")
            if len(self._received) < 4 + size:
                return
            message = bytes(self._received[4 : 4 + size])
            del self._received[: 4 + size]
            what, *rest = unpack(message)
            self._answer(what, rest)

    def _answer(self, what: bytes, rest: list[bytes]) -> None:
        if what == b"run":
            self._run(Request(rest))
        elif what == b"kill":
            for command in [command for command in self._commands.values() if command.key == rest[0]]:
                command.is_dropped = True
                self._kill(command)
        elif what == b"read":
            self._read(*rest)
        elif what == b"write":
            self._write(*rest)
        elif what == b"clear":
            self._clear(*rest)
        elif what == b"configure":
            self._configure(pairs(rest))

    def send(self, *fields: bytes) -> None:
        left = memoryview(pack(*fields))
        try:
            while left:
                left = left[os.write(self._channel, left) :]
        except OSError:  # nobody is there any more
            self._is_over = True

    def _read(self, key: bytes, max_bytes: bytes, path: bytes) -> None:
        try:
            data = read_file(path, int(max_bytes))
        except (OSError, ValueError) as exc:
            self.send(key, b"read", errno_of(exc), str(getattr(exc, "size_bytes", 0)).encode(), b"")
        else:
            self.send(key, b"read", b"0", str(len(data)).encode(), data)

    def _write(self, key: bytes, mode: bytes, path: bytes, data: bytes) -> None:
        try:
            write_file(path, data, int(mode))
        except (OSError, ValueError) as exc:
            self.send(key, b"written", errno_of(exc))
        else:
            self.send(key, b"written", b"0")

    def _clear(self, key: bytes) -> None:
        for command in self._commands.values():
            command.is_dropped = True
        if self._end_all():
            self.send(key, b"cleared")
        else:  # nothing may run on beside the next one
            self._is_over = True

    # Commands

    def _run(self, request: Request) -> None:
        notes, self._untold = [*self._untold, *self._make_room()], []
        ours: list[int] = []
        theirs: list[int] = []
        try:
            theirs.append(open_anonymous(request.stdin) if request.stdin else os.open("/dev/null", os.O_RDONLY))
            for _ in range(2):
                reader, writer = os.pipe()
                ours.append(reader)
                theirs.append(writer)
            pid = self._fork(notes)
        except OSError as exc:
            for fd in (*ours, *theirs):
                os.close(fd)
            said = f"the sandbox cannot start a command: {exc.strerror}\n".encode()
            total = str(len(said)).encode()
            self.send(request.key, b"ran", b"126", b"0", b"0", b"\n".join(notes), b"0", b"", b"", total, said, b"")
            return
        if pid == 0:
            become(request, (theirs[0], theirs[1], theirs[2]), (self._channel,), self._limits)
        for fd in theirs:
            os.close(fd)
        command = Command(request, pid, ours[0], ours[1], notes)
        self._commands[pid] = command
        for stream in command.streams:
            os.set_blocking(stream.fd, False)
            self._streams[stream.fd] = stream
            self._poll.register(stream.fd, select.POLLIN)
        self._watch_soon()

    def _start_visit(self, request: Request, streams: tuple[int, int, int]) -> int:
        """Start a program that a verifier asks for, and return its process."""
        self._untold += self._make_room()
        pid = self._fork(self._untold)
        if pid == 0:
            become(request, streams, (self._channel,), self._limits)
        self._watch_soon()
        return pid

    def _fork(self, notes: list[bytes]) -> int:
        try:
            return os.fork()
        except OSError as exc:
            if exc.errno not in (EAGAIN, ENOMEM):
                raise
        self._end_all()
        notes.append(self._said_room())
        return os.fork()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            command = self._commands.pop(pid, None)
            if command is not None:
                command.status = status
                self._finish(command)
            elif self._door is not None:
                self._door.ended(pid, status)
            self._is_over = self._is_over or pid == self._agent

    def _finish(self, command: Command) -> None:
        for stream in command.streams:
            if self._streams.pop(stream.fd, None) is None:
                continue
            # All it printed is in the pipe by now. What it left behind may print on without end.
            if stream.read():
                stream.read()
            if stream.has_ended:
                self._close(stream.fd)
            else:
                self._left_open.add(stream.fd)
        command.notes += self._make_room()
        if not command.is_dropped:
            self.send(*command.answer())

    def _discard(self, fd: int) -> None:
        try:
            if os.read(fd, CHUNK):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._left_open.remove(fd)
        self._close(fd)

    def _close(self, fd: int) -> None:
        self._poll.unregister(fd)
        os.close(fd)

    def _keep_time(self) -> None:
        now = time.monotonic()
        for pid, command in list(self._commands.items()):
            if now < command.deadline:
                continue
            if command.has_timed_out or command.is_dropped:
                del self._commands[pid]
                self._finish(command)
            else:
                command.has_timed_out = True
                self._kill(command)

    def _kill(self, command: Command | Visit) -> None:
        """Kill a command: its session, and what descends from it. What is a daemon by now is neither."""
        now = time.monotonic()
        command.deadline = now + _FORCE_S
        while time.monotonic() < now + _END_S:
            processes = running()
            doomed = descendants(command.pid, processes)
            doomed.update(pid for pid, process in processes.items() if process.session == command.pid)
            if not doomed and command.pid not in processes:
                break
            for pid in (command.pid, *doomed):
                kill(pid)
            time.sleep(0.001)  # what was killed is not gone at once
        kill_group(command.pid)

    # Limits

    def _make_room(self) -> list[bytes]:
        """End all that runs, when it is so much that a command could start nothing."""
        most = self._limits.processes
        if not most or not self._is_jail or self._agent:
            return []
        processes = listed()
        if len(processes) < most // 2 or sum(process.threads for process in processes.values()) < most * 7 // 8:
            return []
        self._end_all()
        return [self._said_room()]

    def _said_room(self) -> bytes:
        return (
            b"the sandbox had reached its limit of %d processes: all that ran in it were ended" % self._limits.processes
        )

    def _end_all(self) -> bool:
        """End what runs on this side; return whether nothing does any more."""
        until = time.monotonic() + _END_S
        while time.monotonic() < until:
            left = self._all()
            if self._is_jail and not self._agent:
                kill(-1)
            else:
                for pid in left:
                    kill(pid)
            if not self._is_jail:
                for pid in self._commands:
                    kill_group(pid)
            self._reap()
            if not left:
                return True
            time.sleep(0.002)
        return False

    def _all(self) -> set[int]:
        """What runs on this side, but for this process."""
        processes = running()
        if self._agent:
            return {pid for pid in processes if is_of_this_namespace(pid)}
        return set(processes) if self._is_jail else descendants(os.getpid(), processes)

    def _watch_soon(self) -> None:
        if self._watches_memory:
            soon = time.monotonic() + _WATCH_S
            self._next_watch = min(self._next_watch, soon) if self._next_watch else soon

    def _watch(self) -> None:
        """End the largest processes when all of them together have more memory than the sandbox."""
        now = time.monotonic()
        if not self._next_watch or now < self._next_watch:
            return
        most = self._limits.memory_bytes
        sizes = {pid: memory_bytes(pid) for pid in running() if pid != self._agent}
        spared = self._all() if self._agent else ()  # a verifier goes last
        largest_first = sorted(sizes, key=lambda pid: (pid not in spared, sizes[pid]), reverse=True)
        total = sum(sizes.values())
        for pid in largest_first:
            if total <= most:
                break
            self._note(
                b"the sandbox has %d MB of memory: its largest process (%s) was ended" % (most >> 20, name_of(pid))
            )
            kill(pid)
            total -= sizes[pid]
        goes_on = bool(self._commands if self._agent else sizes)
        self._next_watch = now + (_WATCH_S if self._commands else _IDLE_WATCH_S) if goes_on else 0.0

    def _note(self, note: bytes) -> None:
        """Tell of something with the commands that run, or else with the next one."""
        for notes in [command.notes for command in self._commands.values()] or [self._untold]:
            if note not in notes:
                notes.append(note)

    # The end

    def _end(self) -> None:
        """End this process and with it the sandbox. Does not return."""
        try:
            if not self._is_jail:  # else the kernel ends whatever is left in the pid namespace
                self._end_all()
                if self._last:
                    self._do_last()
                    self._end_all()
        finally:
            os._exit(0)

    def _do_last(self) -> None:
        """Do what the parent has left to be done, which it may not be there to do."""
        pid = os.fork()
        if pid == 0:
            nothing = os.open("/dev/null", os.O_RDWR)
            request = Request([b"", b"/", b"0", b"0", b"", b"0", b"0", *self._last])
            request.env = dict(os.environb)
            become(request, (nothing, nothing, nothing), (), self._limits)
        until = time.monotonic() + _LAST_S
        while time.monotonic() < until and os.waitpid(pid, os.WNOHANG) == (0, 0):
            time.sleep(0.01)
