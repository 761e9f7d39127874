"""Runs a program where the agent worked, for a verifier: `$AGENT_ENV_AS_AGENT python3 main.py <input`.

It has this one's streams, folder and environment, without what is for verifiers alone, and this one ends as it does. A file
of its own, that a bare Python runs; nothing is imported but built-in modules.
"""

import _socket
import os
import sys

KEPT_BACK = (b"AGENT_ENV_", b"TMPDIR", b"PYTHONNOUSERSITE")


def main(door: str) -> int:
    """Ask for the program at the door, and wait for its end."""
    argv = [os.fsencode(word) for word in sys.argv[1:]]
    if not argv:
        os.write(2, b"as-agent: which program? Write it behind this one\n")
        return 126
    kept = {name: value for name, value in os.environb.items() if not name.startswith(KEPT_BACK)}
    variables = [part for pair in kept.items() for part in pair]
    fields = [b"", os.getcwdb(), b"0", b"0", b"", b"0", b"%d" % len(kept), *variables, *argv]
    message = b"".join(part for field in fields for part in (len(field).to_bytes(4, "big"), field))
    streams = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2))
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    try:
        connection.connect(door)
        connection.sendmsg([message], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
        return int(connection.recv(16) or b"137")
    except OSError as exc:
        os.write(2, b"as-agent: " + (exc.strerror or "it failed").encode() + b"\n")
        return 126
