"""A control group for each sandbox, where this process may make one: then the kernel itself keeps the limits.

Control groups of version 2 only, and only below a group that was handed to this user with the controllers for memory and
processes: a systemd user session, or root on a machine that systemd runs. Elsewhere the sandbox's first process keeps the
limits, which `docs/sandboxes.md` compares.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from agent_env.bundle import SandboxSpec
from agent_env.sandbox._guard import Guard
from agent_env.sandbox._place import is_alive

__all__ = ["ControlGroups", "limits"]

_ENTER = 'echo $$ >"$0" && exec "$@"'
"""A shell that goes into a group, and becomes the command that follows."""
_BESIDES = 3
"""Processes in a sandbox's group that are not its commands: bubblewrap, and the first one of each side."""
_REMOVE_S = 2.0
_PREFIX = "agent-env-"

_guard = Guard()
_found: list[ControlGroups | None] = []


@contextmanager
def limits(name: str, spec: SandboxSpec) -> Generator[tuple[Sequence[str], bool]]:
    """Have the kernel keep a sandbox's limits, where it can.

    Args:
        name: The sandbox's, on this machine.
        spec: What it has.

    Yields:
        What comes before the sandbox's command, and whether the limits are kept.
    """
    with _guard:
        if not _found:
            _found.append(ControlGroups.find(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")))
        groups = _found[0]
    if groups is None:
        yield (), False
        return
    # Twice as many: what an agent left running is not to keep a verifier from starting as many itself.
    with groups.group(name, memory_bytes=spec.memory_mb * 2**20, processes=2 * spec.processes) as enter:
        yield enter, True


class ControlGroups:
    """The group under which sandboxes have theirs."""

    def __init__(self, parent: Path) -> None:
        self._parent = parent

    @classmethod
    def find(cls, mounted: Path, membership: Path) -> ControlGroups | None:
        """Look for a group that can be used, and try it.

        Args:
            mounted: Where the groups are.
            membership: The file with this process's group.
        """
        try:
            lines = membership.read_text("utf-8").splitlines()
            own = next(line.removeprefix("0::/") for line in lines if line.startswith("0::/"))
            # A group with processes in it has no groups with limits below it: so beside this one.
            parent = (mounted / own).parent if own else mounted
            handed_on = (parent / "cgroup.subtree_control").read_text("ascii").split()
        except (OSError, StopIteration):
            return None
        if not {"memory", "pids"} <= set(handed_on) or not os.access(parent / "cgroup.procs", os.W_OK):
            return None
        groups = cls(parent)
        try:
            groups.remove_left_over()
            with groups.group(f"try-{os.getpid()}", memory_bytes=2**28, processes=10) as enter:
                done = subprocess.run([*enter, "true"], capture_output=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return groups if done.returncode == 0 else None

    @contextmanager
    def group(self, name: str, *, memory_bytes: int, processes: int) -> Generator[Sequence[str]]:
        """A group, for the length of the block; what is in it then is killed.

        Args:
            name: Its name.
            memory_bytes: Memory for all of it, swapped out or not.
            processes: Processes and threads for commands.

        Yields:
            What comes before a command that is to run in it.

        Raises:
            OSError: When it cannot be made.
        """
        path = self._parent / f"{_PREFIX}{name}"
        path.mkdir()
        try:
            (path / "memory.max").write_text(str(memory_bytes))
            with suppress(FileNotFoundError):  # a kernel without swap
                (path / "memory.swap.max").write_text("0")
            (path / "pids.max").write_text(str(processes + _BESIDES))
            yield ("/bin/sh", "-c", _ENTER, str(path / "cgroup.procs"))
        finally:
            _remove(path)

    def remove_left_over(self) -> None:
        """Remove the groups of processes that are gone."""
        for path in self._parent.glob(f"{_PREFIX}*-*-*"):
            if not is_alive(path.name.removeprefix(_PREFIX).rpartition("-")[0]):
                _remove(path)


def _remove(path: Path) -> None:
    with suppress(OSError), (path / "cgroup.kill").open("r+") as file:  # since Linux 5.14
        file.write("1")
    until = time.monotonic() + _REMOVE_S
    while time.monotonic() < until:
        try:
            path.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.002)  # what was killed is not gone at once
        else:
            return
