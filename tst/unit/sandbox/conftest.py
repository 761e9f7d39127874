from __future__ import annotations

import itertools
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

import agent_env
from agent_env.bundle import SandboxProvider, SandboxSpec
from agent_env.sandbox import Sandbox, open_sandbox

OpenBox = Callable[..., AbstractAsyncContextManager[Sandbox]]
WaitGone = Callable[[str], None]

WITHIN_S = 20.0


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """Where the sandboxes of a test have their files. Not in pytest's folder, which the users of root's cannot enter."""
    tmp_path_factory.getbasetemp()  # once made, it stays where it is
    with tempfile.TemporaryDirectory(prefix="agent-env-test-") as folder:
        os.chmod(folder, 0o711)
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr("tempfile.tempdir", None)
        yield Path(folder)


@asynccontextmanager
async def opened(provider: SandboxProvider, files: Path | None, settings: dict[str, Any]) -> AsyncGenerator[Sandbox]:
    """Open a sandbox with these settings of a `SandboxSpec`."""
    spec = SandboxSpec(provider=provider, **{"command_timeout_s": 30.0, **settings})
    async with open_sandbox(spec, files=files) as sandbox:
        yield sandbox


@pytest.fixture
def open_jail() -> OpenBox:
    """Opens a sandbox of bubblewrap, with the settings of a `SandboxSpec`."""
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed: apt install bubblewrap")

    def open_jail(files: Path | None = None, **settings: Any) -> AbstractAsyncContextManager[Sandbox]:
        return opened(SandboxProvider.BWRAP, files, settings)

    return open_jail


@pytest.fixture
def open_host() -> OpenBox:
    """Opens a sandbox that isolates nothing. A test does nothing in it that the machine could mind."""

    def open_host(files: Path | None = None, **settings: Any) -> AbstractAsyncContextManager[Sandbox]:
        return opened(SandboxProvider.HOST, files, settings)

    return open_host


@pytest.fixture(params=["bwrap", "host"])
def open_box(request: pytest.FixtureRequest) -> OpenBox:
    """Opens a sandbox of each kind whose first process is ours."""
    return request.getfixturevalue("open_jail" if request.param == "bwrap" else "open_host")


_counted = itertools.count()


@pytest.fixture
def mark() -> str:
    """A number of seconds that no other test on this machine has a process sleep: by which its processes are found."""
    return f"9{os.getpid()}{next(_counted):04}"


def processes_saying(mark: str) -> Sequence[int]:
    """The processes of the machine with `mark` in their command line, in whatever namespace."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if mark.encode() in words:
                found.append(int(entry.name))
    return found


@pytest.fixture
def saying() -> Callable[[str], Sequence[int]]:
    """Finds the processes of the machine with a mark in their command line."""
    return processes_saying


@pytest.fixture
def wait_gone() -> WaitGone:
    """Waits until no process of the machine has a mark in its command line."""

    def wait_gone(mark: str) -> None:
        until = time.monotonic() + WITHIN_S
        while left := processes_saying(mark):
            for pid in left:
                try:
                    fd = os.pidfd_open(pid)
                except ProcessLookupError:
                    continue
                ended, _, _ = select.select([fd], [], [], max(0.0, until - time.monotonic()))
                os.close(fd)
                assert ended, f"process {pid} is still there: {Path(f'/proc/{pid}/cmdline').read_bytes()!r}"

    return wait_gone


@dataclass(frozen=True)
class OrdinaryUser:
    """How to run a Python that can import this library as a user that is not root."""

    argv: list[str]
    environment: dict[str, str]
    home: Path


@pytest.fixture
def ordinary_user(place: Path) -> OrdinaryUser:
    """Where the tests are not root's, that is who plays them."""
    libraries = [str(Path(module.__file__ or "").parents[1]) for module in (agent_env, anyio)]
    home = place / "theirs"
    home.mkdir()
    environment = {"PYTHONPATH": ":".join(libraries), "PATH": os.environ["PATH"], "HOME": str(home)}
    environment |= {"PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(home)}
    python = next((path for path in (Path(sys.executable), Path("/usr/bin/python3")) if _is_open(path.resolve())), None)
    argv = [str(python)]
    if os.geteuid() == 0:
        os.chown(home, 61_234, 61_234)
        argv = ["setpriv", "--reuid", "61234", "--regid", "61234", "--clear-groups", *argv]
    if python is None or shutil.which(argv[0]) is None:
        pytest.skip("needs setpriv, and a Python that an ordinary user can reach")
    imports = [*argv, "-c", "import pytest, pydantic_core, anyio, yaml, agent_env"]
    if subprocess.run(imports, env=environment, capture_output=True, check=False).returncode:
        pytest.skip("the Python that an ordinary user can reach cannot use this one's libraries")
    return OrdinaryUser(argv, environment, home)


@pytest.fixture
def play_as_ordinary_user(ordinary_user: OrdinaryUser, request: pytest.FixtureRequest) -> Callable[[], None]:
    """Plays the tests of this one's file again, by a user that is not root."""
    if os.geteuid() != 0:
        pytest.skip("this is an ordinary user")
    command = [*ordinary_user.argv, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(request.config.inipath)]
    command += ["--basetemp", str(ordinary_user.home / "tmp"), str(request.path)]

    def play() -> None:
        done = subprocess.run(
            command, cwd=ordinary_user.home, env=ordinary_user.environment, capture_output=True, text=True, timeout=230, check=False
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
        assert " passed" in done.stdout

    return play


def _is_open(path: Path) -> bool:
    return path.exists() and all(folder.stat().st_mode & 0o005 == 0o005 for folder in (path, *path.parents))
