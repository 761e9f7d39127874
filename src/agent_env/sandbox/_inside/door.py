"""The door from the verifiers' side of a jail to the agent's: a socket, at which a verifier can have a program run over there.

What an agent has made can attack whoever runs it, and has the same user as the verifiers. So `as_agent.py` asks here, with its
own standard streams, and the program runs where the agent worked. The socket is in the folder that the agent's side does not
see: no process of the agent's can come to the door.
"""

from __future__ import annotations

import _socket
import os
import sys

from agent_env.sandbox._inside.command import Request, exit_code
from agent_env.sandbox._inside.wire import unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    import select
    from collections.abc import Callable

    Streams = tuple[int, int, int]

__all__ = ["Door", "Visit", "open_door"]

_MAX_REQUEST_BYTES = 1 << 18
_POLLIN = 1
_CLOSE_ON_EXEC = 0x4000_0000
_INT_BYTES = 4


def open_door(path: bytes) -> int:
    """Make the socket at which the door is, and return its file descriptor."""
    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    listener.bind(path)
    listener.listen(64)
    return listener.detach()


class Visit:
    """A program that a verifier has had started, and the connection on which it waits for its end."""

    def __init__(self, connection: _socket.socket) -> None:
        self.connection = connection
        self.pid = 0
        self.deadline = 0.0

    def receive(self) -> tuple[Request, Streams] | None:
        """Take what is asked for; None when it is nothing that can be done."""
        room = 3 * _INT_BYTES + 64
        data, extra, _, _ = self.connection.recvmsg(_MAX_REQUEST_BYTES, room, _CLOSE_ON_EXEC)
        fds = [
            int.from_bytes(part[at : at + _INT_BYTES], sys.byteorder)
            for _, _, part in extra
            for at in range(0, len(part), _INT_BYTES)
        ]
        try:
            request = Request(unpack(data))
            if len(fds) == 3 and request.argv:
                return request, (fds[0], fds[1], fds[2])
        except (ValueError, IndexError):
            pass
        for fd in fds:
            os.close(fd)
        return None

    def close(self, code: int) -> None:
        """Say how it ended, and close the connection."""
        try:  # noqa: SIM105 - contextlib takes a millisecond to import
            self.connection.send(b"%d" % code)
        except OSError:  # nobody waits for it any more
            pass
        self.connection.close()


class Door:
    """The door, from the inside: what comes in, and what has become of it."""

    def __init__(
        self,
        listener: int,
        poll: select.poll,
        start: Callable[[Request, Streams], int],
        kill: Callable[[Visit], None],
    ) -> None:
        self._listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, listener)
        self._poll = poll
        self._start = start
        self._kill = kill
        self._visits: dict[int, Visit] = {}
        poll.register(listener, _POLLIN)

    def readable(self, fd: int) -> None:
        """See to what has come: a visit, what it asks for, or its end. Nothing where the descriptor is another's."""
        if fd == self._listener.fileno():
            self._let_in()
        elif fd in self._visits:
            visit = self._visits[fd]
            if visit.pid:  # nothing more is said, so it has gone, and its program with it
                self._kill(visit)
                self._let_out(fd, 137)
            else:
                self._begin(fd, visit)

    def ended(self, pid: int, status: int) -> None:
        """Tell the visit whose program it is that a process has ended."""
        for fd, visit in list(self._visits.items()):
            if visit.pid == pid:
                self._let_out(fd, exit_code(status))

    def _let_in(self) -> None:
        try:
            fd = _accept(self._listener)
        except OSError:
            return
        self._visits[fd] = Visit(_socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, fd))
        self._poll.register(fd, _POLLIN)

    def _begin(self, fd: int, visit: Visit) -> None:
        try:
            asked = visit.receive()
            if asked is None:
                self._let_out(fd, 126)
                return
            request, streams = asked
            try:
                visit.pid = self._start(request, streams)
            finally:
                for stream in streams:
                    os.close(stream)
        except OSError:
            self._let_out(fd, 126)

    def _let_out(self, fd: int, code: int) -> None:
        self._poll.unregister(fd)
        self._visits.pop(fd).close(code)


def _accept(listener: _socket.socket) -> int:
    # Typeshed leaves it out.
    return listener._accept()[0]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
