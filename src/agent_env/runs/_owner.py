"""Which process wrote a run, and whether it is still there."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["UNSEEN_S", "Owner", "this_process"]

UNSEEN_S = 600.0
"""A process in another container cannot be looked up: without a write for this long it counts as dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A process, told apart from every later one with the same number."""

    pid: int
    started: str
    """When it started, in the kernel's ticks; empty where there is no /proc."""
    boot: str
    """The boot of the machine; empty where there is no /proc."""
    pid_space: str
    """The pid namespace: a container numbers its processes by itself; empty where there is no /proc."""

    def is_alive(self, *, last_write_at_s: float) -> bool:
        """Whether the process still runs.

        Args:
            last_write_at_s: When it last wrote, in Unix seconds; decides for a process in another container.
        """
        if self.boot != _boot():
            return False
        if self.pid_space != _pid_space():
            return time.time() - last_write_at_s < UNSEEN_S
        if self.started:
            return _started(self.pid) == self.started
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


def this_process() -> Owner:
    """The process that asks."""
    pid = os.getpid()
    return Owner(pid=pid, started=_started(pid), boot=_boot(), pid_space=_pid_space())


def _started(pid: int) -> str:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # The command name in parentheses may hold spaces and parentheses: what follows the last one is countable.
    fields = stat.rpartition(")")[2].split()
    state, started = fields[0], fields[19]
    return "" if state in {"Z", "X"} else started


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


@cache
def _pid_space() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
