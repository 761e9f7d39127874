"""What bubblewrap is told: what a sandbox sees of the machine, and what it does not."""

from __future__ import annotations

import glob
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

__all__ = ["ENVIRONMENT", "PRIVATE_DIR", "ROOT", "VERIFIERS_DIR", "Jail", "jail_command", "shm_bytes"]

ROOT = PurePosixPath("/workspace")
PRIVATE_DIR = PurePosixPath("/run/agent-env")
VERIFIERS_DIR = PurePosixPath("/run/agent-env-verifiers")
"""The folder that is for verifiers alone: what is for one verifier is in it, and below `files` what was put there from outside."""

_HOME = "/home/agent"
_UID = "1000"
_SHM_BYTES = 64 * 2**20
_PRIVATE_BYTES = 64 * 2**20
_LEAST_TMP_BYTES = 16 * 2**20

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": _HOME,
    "USER": "agent",
    "LOGNAME": "agent",
    "SHELL": "/bin/bash",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
}

_MADE = {
    "/etc/passwd": f"root:x:0:0:root:/root:/bin/sh\nagent:x:{_UID}:{_UID}:agent:{_HOME}:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    "/etc/group": f"root:x:0:\nagent:x:{_UID}:\nnogroup:x:65534:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
}
"""Files that are the sandbox's own: the machine's would name its users and its network."""

_ETC = (
    "alternatives", "ca-certificates", "crypto-policies", "debian_version", "fonts", "gai.conf", "java-*-openjdk",
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "lsb-release", "mime.types", "os-release", "perl",
    "pki/ca-trust/extracted", "pki/tls/certs", "protocols", "python3", "python3.*", "services", "ssl/certs",
    "ssl/openssl.cnf", "terminfo", "timezone",
)  # fmt: skip
"""What programs need of the machine's /etc, and holds no secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jail:
    """How a sandbox is made on this machine."""

    bwrap: str
    disables_userns: bool
    """Whether this bubblewrap can keep the sandbox from making namespaces of its own."""
    setpriv: str | None
    """The program that gives up root; None where there is no root to give up."""
    python: str
    """The Python of the first process, as the sandbox sees it."""
    python_dir: Path | None = None
    """The folder with that Python, where it is not below /usr."""


@contextmanager
def jail_command(
    jail: Jail,
    *,
    work: Path,
    files: Path,
    uid: int | None,
    network: bool,
    memory_bytes: int,
    binds: Mapping[str, Path] | None = None,
) -> Generator[tuple[Sequence[str], Sequence[int]]]:
    """How to start a program in a jail: the command that comes before it, and the file descriptors that it needs.

    Args:
        jail: How it is made.
        work: The working directory.
        files: What only verifiers see, and nobody inside can write to.
        uid: Whose it is, where root is given up.
        network: Whether it has the machine's network.
        memory_bytes: How much memory it has; half of it may be files in /tmp, half files in its home, half a verifier's.
        binds: Folders of the machine that can be read, by their path in the jail.

    Yields:
        Both. The file descriptors are closed with the block: start the program in it.

    Raises:
        OSError: When this process has too many files open.
    """
    with ExitStack() as stack:
        fds: list[int] = []

        def opened(fd: int) -> str:
            stack.callback(os.close, fd)
            fds.append(fd)
            return str(fd)

        argv: list[str] = []
        if jail.setpriv is not None:
            user = str(uid)
            argv += [jail.setpriv, "--reuid", user, "--regid", user, "--clear-groups", "--inh-caps", "-all", "--"]
        argv += [jail.bwrap, *_namespaces(jail, network=network), *_machine(network)]
        for path, text in _MADE.items():
            argv += ["--perms", "0644", "--file", opened(_pipe_with(text)), path]
        if jail.python_dir is not None:
            argv += ["--ro-bind", str(jail.python_dir), str(jail.python_dir)]
        argv += _temporary(memory_bytes)
        argv += ["--ro-bind", str(files), str(VERIFIERS_DIR / "files"), "--bind", str(work), str(ROOT)]
        for place, folder in (binds or {}).items():
            argv += ["--ro-bind", str(folder), place]
        argv += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(ROOT), "--", jail.python]
        yield argv, fds


def _namespaces(jail: Jail, *, network: bool) -> list[str]:
    argv = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    argv += ["--uid", _UID, "--gid", _UID, "--hostname", "sandbox"]
    argv += ["--as-pid-1", "--die-with-parent", "--new-session"]
    # For the first process alone, which gives them up before a command is run.
    argv += ["--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SETPCAP"]
    if jail.disables_userns:
        argv.append("--disable-userns")
    return argv if network else [*argv, "--unshare-net"]


@cache
def _machine(network: bool) -> tuple[str, ...]:  # noqa: FBT001 - a cache's key
    """The machine's programs and what they need, read-only."""
    argv = [part for path in ("/etc", "/run", "/var", "/home") for part in ("--perms", "0755", "--dir", path)]
    argv += ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = f"/{name}"
        if os.path.islink(path):
            argv += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            argv += ["--ro-bind", path, path]
    found = [path for name in _ETC for path in sorted(glob.glob(f"/etc/{name}"))]
    for path in [*found, *(["/etc/resolv.conf"] if network else [])]:
        argv += ["--ro-bind-try", path, path]
    return (*argv, "--proc", "/proc", "--dev", "/dev", "--symlink", "/tmp", "/var/tmp")


def _temporary(memory_bytes: int) -> list[str]:
    half = max(memory_bytes // 2, _LEAST_TMP_BYTES)
    sizes = {"/tmp": (half, "1777"), _HOME: (half, "0755"), "/dev/shm": (shm_bytes(memory_bytes), "1777")}
    sizes[str(PRIVATE_DIR)] = (min(half, _PRIVATE_BYTES), "0700")
    sizes[str(VERIFIERS_DIR)] = (half, "0700")
    return [
        part for path, (size, mode) in sizes.items() for part in ("--perms", mode, "--size", str(size), "--tmpfs", path)
    ]


def shm_bytes(memory_bytes: int) -> int:
    """The size of `/dev/shm`, which the agent's side and the verifiers' have one each of."""
    return min(max(memory_bytes // 2, _LEAST_TMP_BYTES), _SHM_BYTES)


def _pipe_with(text: str) -> int:
    reader, writer = os.pipe()
    try:
        os.write(writer, text.encode())
    finally:
        os.close(writer)
    return reader
