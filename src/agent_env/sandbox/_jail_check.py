"""Whether this machine can make a jail, found out once by making one; and if not, why, with the way out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

from agent_env.errors import SandboxUnavailableError
from agent_env.sandbox._guard import Guard
from agent_env.sandbox._jail import Jail, jail_command
from agent_env.sandbox._launch import COMPILE, PYTHON_OPTIONS, sources
from agent_env.sandbox._place import base_dir
from agent_env.sandbox._uids import leased_uid

__all__ = ["checked_jail", "found_jail", "has_worked", "likely_jail", "why_not"]

_TRY_S = 30.0
_IMPORTS = "import _ctypes,_signal,_socket,resource,select,sys\n"
"""What a Python must have to be the first process; some are built without."""
_NO_SIDES = "no namespaces inside"
_SIDES = (
    "program=_ctypes.dlopen(None,2)\n"
    "if _ctypes.call_function(_ctypes.dlsym(program,'unshare'),(0x28020000,)):\n"
    f" sys.exit('bwrap: {_NO_SIDES}')\n"
)
"""Sees whether the first process can make namespaces for processes, mounts and shared memory, as `_inside/sides.py` does."""

_guard = Guard()
_found: tuple[Jail, bytes | None] | None = None


def checked_jail() -> tuple[Jail, bytes | None]:
    """How a jail is made here, and the code of its first process. Takes a moment the first time: call it in a thread.

    Returns:
        Both; None for the code where that Python can run what this one can.

    Raises:
        SandboxUnavailableError: When none can be made; the message says what to do.
    """
    global _found
    with _guard:
        if _found is None:  # what has failed is tried again: somebody may have seen to it
            _found = _check()
        return _found


def found_jail() -> tuple[Jail, bytes | None] | None:
    """What `checked_jail` returns, where that is known by now."""
    return _found


def likely_jail() -> Jail | None:
    """How a jail is made on most machines, without trying it; None where `checked_jail` will find a fault."""
    bwrap, setpriv, python = shutil.which("bwrap"), shutil.which("setpriv"), next(_pythons(), None)
    is_root = os.geteuid() == 0
    if bwrap is None or python is None or (is_root and setpriv is None):
        return None
    return Jail(
        bwrap=bwrap, disables_userns=True, setpriv=setpriv if is_root else None, python=python[0], python_dir=python[1]
    )


def has_worked(jail: Jail, code: bytes | None) -> None:
    """Have later sandboxes be made as this one was, without trying anything."""
    global _found
    _found = _found or (jail, code)


def _check() -> tuple[Jail, bytes | None]:
    if sys.platform != "linux":
        raise SandboxUnavailableError("bwrap is for Linux: use provider: docker, or host for no isolation")
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise SandboxUnavailableError(
            "bwrap is not installed: apt install bubblewrap (dnf, apk and pacman have it too)"
        )
    known = subprocess.run([bwrap, "--help"], capture_output=True, timeout=_TRY_S, check=False, text=True).stdout
    if "--size" not in known:
        raise SandboxUnavailableError(f"{bwrap} is too old: install bubblewrap 0.8 or later")
    setpriv = shutil.which("setpriv") if os.geteuid() == 0 else None
    if os.geteuid() == 0 and setpriv is None:
        raise SandboxUnavailableError("bwrap, started as root, needs setpriv to give root up: apt install util-linux")
    why: list[str] = []
    for python, folder in _pythons():
        jail = Jail(
            bwrap=bwrap, disables_userns="--disable-userns" in known, setpriv=setpriv, python=python, python_dir=folder
        )
        is_fine, code, said = _try(jail)
        if is_fine:
            return jail, code
        why.append(said)
    # The first Python is the one that is most likely to be the sandbox's: what keeps it from that is what is to be mended.
    raise SandboxUnavailableError((why or ["there is no Python 3 for it below /usr: apt install python3-minimal"])[0])


def _pythons() -> Iterator[tuple[str, Path | None]]:
    """Pythons for the first process, the ones that the sandbox sees anyway first."""
    own = Path(sys.executable).resolve()
    seen = [own, Path("/usr/bin/python3"), Path("/usr/local/bin/python3")]
    for python in dict.fromkeys(seen):
        if python.is_relative_to("/usr") and python.exists():
            yield str(python), None
    if not own.is_relative_to("/usr") and own.is_relative_to(sys.base_prefix):
        yield str(own), Path(sys.base_prefix).resolve()


def _try(jail: Jail) -> tuple[bool, bytes | None, str]:
    """Make a jail, and see what code its first process can run. Return whether that went well, the code, or why it did not."""
    with tempfile.TemporaryDirectory(dir=base_dir(), prefix=".new-") as folder:
        work = Path(folder) / "work"
        work.mkdir(mode=0o700)
        with leased_uid(base_dir()) if jail.setpriv else nullcontext() as uid:
            if uid is not None:
                os.chown(work, uid, uid)
                os.chmod(folder, 0o711)
            jailed = jail_command(jail, work=work, files=work, uid=uid, network=False, memory_bytes=2**28)
            with jailed as (argv, fds):
                try:
                    done = subprocess.run(
                        [*argv, *PYTHON_OPTIONS, _IMPORTS + _SIDES + COMPILE],
                        input=sources(), capture_output=True, env={}, pass_fds=fds, timeout=_TRY_S, check=False,
                    )  # fmt: skip
                except subprocess.TimeoutExpired:
                    return False, None, f"bwrap has not started a program within {_TRY_S:g} s"
    if done.returncode == 0:
        return True, done.stdout or None, ""
    return False, None, why_not(done.stderr.decode("utf-8", "replace"), proc=Path("/proc"))


def why_not(said: str, *, proc: Path) -> str:
    """Return what keeps bubblewrap from working here, and the way out, in one line.

    Args:
        said: What it wrote to stderr.
        proc: `/proc`.
    """
    line = said.strip().splitlines()[-1] if said.strip() else "it said nothing"
    start = "the kernel forbids sandboxes to ordinary users"
    if not line.startswith("bwrap: "):
        return f"the sandbox's Python cannot start: {line}: apt install python3-minimal"
    if _NO_SIDES in line:
        return (
            "bwrap makes sandboxes here, but the kernel forbids their first process what keeps verifiers apart from the agent "
            "(Ubuntu's AppArmor profile of bwrap does): apparmor_parser -R /etc/apparmor.d/bwrap-userns-restrict, and "
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0"
        )
    if "mount proc" in line:
        return (
            "this container hides parts of /proc, so that a sandbox cannot have one of its own: start the container with "
            "--security-opt systempaths=unconfined"
        )
    if _setting(proc, "kernel/apparmor_restrict_unprivileged_userns") == "1":
        return f"{start} (AppArmor): sysctl kernel.apparmor_restrict_unprivileged_userns=0, or give bwrap a profile"
    if _setting(proc, "kernel/unprivileged_userns_clone") == "0":
        return f"{start}: sysctl kernel.unprivileged_userns_clone=1"
    if _setting(proc, "user/max_user_namespaces") == "0" or "max_*_namespaces" in line:
        return f"{start}: sysctl user.max_user_namespaces=10000"
    if "namespace" in line or "Operation not permitted" in line or "Permission denied" in line:
        return (
            f"this container forbids sandboxes ({line.removeprefix('bwrap: ')}): start it with --security-opt "
            f"seccomp=unconfined --security-opt apparmor=unconfined, or use provider: docker"
        )
    return f"bwrap cannot make a sandbox: {line.removeprefix('bwrap: ')}"


def _setting(proc: Path, name: str) -> str:
    try:
        return (proc / "sys" / name).read_text("ascii").strip()
    except OSError:
        return ""
