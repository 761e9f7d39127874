"""The two sides of a jail: the agent's, and the verifiers', which has the agent's in it.

The agent's side has processes, mounts and shared memory of its own. From there the verifiers' processes have no number, so
that they cannot be named, which is what it takes to signal, trace or read them; and what is kept for verifiers is covered.
All else is shared: the working directory, the temporary folders, the network. A verifier sees the agent's processes, and
may end them.

No user of its own keeps the sides apart: an ordinary user's jail has but one.
"""

from __future__ import annotations

import os
import sys

from agent_env.sandbox._inside.processes import system_call

__all__ = ["SeparationError", "separate"]

_CLONE_NEWNS = 0x0002_0000
_CLONE_NEWIPC = 0x0800_0000
_CLONE_NEWPID = 0x2000_0000
_RDONLY, _NOSUID, _NODEV, _NOEXEC = 1, 2, 4, 8
_REC, _PRIVATE = 0x4000, 1 << 18
_CAPBSET_DROP, _CAP_AMBIENT, _CLEAR_ALL = 24, 47, 4
_SETPCAP, _SYS_ADMIN = 8, 21
"""The capabilities that it takes to make the sides: all that the first process has."""
_CAPABILITIES_VERSION_3 = 0x2008_0522


class SeparationError(OSError):
    """The kernel does not let this jail have two sides."""


def separate(hidden: bytes, shm: bytes) -> int:
    """Make the agent's side, and give up what that takes. Called by the first process of a jail, which goes on as the verifiers'.

    Args:
        hidden: The folder that the agent's side is not to see: it has an empty one in its place.
        shm: The settings of the agent's `/dev/shm`.

    Returns:
        0 in the first process of the agent's side; its id in the process that has called.

    Raises:
        SeparationError: When it cannot be made.
    """
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        # What a process starts after this is on the new side, and it itself is not: so one that then ends.
        _must("unshare", _CLONE_NEWPID | _CLONE_NEWIPC)
        pid = os.fork()
        if pid:
            os.write(writer, b"%d" % pid)
            os._exit(0)
        _cover(hidden, shm)
    os.close(writer)
    pid = int(os.read(reader, 16) or b"0") if between else 0
    os.close(reader)
    if between:
        os.waitpid(between, 0)
        if not pid:
            raise SeparationError("the first process of the agent's side did not start")
    _give_up_capabilities()
    return pid


def _cover(hidden: bytes, shm: bytes) -> None:
    """Have this process see the processes of its own side, and an empty folder in the place of the hidden one."""
    _must("unshare", _CLONE_NEWNS)
    _must("mount", b"none", b"/", 0, _REC | _PRIVATE, 0)
    _must("mount", b"proc", b"/proc", b"proc", _NOSUID | _NODEV | _NOEXEC, 0)
    _must("mount", b"tmpfs", b"/dev/shm", b"tmpfs", _NOSUID | _NODEV, shm)
    _must("mount", b"tmpfs", hidden, b"tmpfs", _RDONLY | _NOSUID | _NODEV | _NOEXEC, b"size=4096,mode=0500")


def _give_up_capabilities() -> None:
    for capability in (_SYS_ADMIN, _SETPCAP):
        system_call("prctl", _CAPBSET_DROP, capability, 0, 0, 0)
    system_call("prctl", _CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
    _must("capset", _CAPABILITIES_VERSION_3.to_bytes(4, sys.byteorder) + bytes(4), bytes(24))


def _must(name: str, *arguments: int | bytes) -> None:
    if not system_call(name, *arguments):
        raise SeparationError(f"the kernel refuses {name} inside it")
