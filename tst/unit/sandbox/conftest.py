from __future__ import annotations

import os
import select
import shutil
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_env.bundle import SandboxProvider, SandboxSpec
from agent_env.sandbox import Sandbox, open_sandbox

OpenBox = Callable[..., AbstractAsyncContextManager[Sandbox]]
WaitGone = Callable[[str], None]

WITHIN_S = 20.0


@pytest.fixture(autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the sandboxes of a test have their files; the user that root's sandboxes run as can go through it."""
    place = tmp_path_factory.mktemp("place")
    for folder in (place, *place.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr("tempfile.tempdir", None)
    return place


@asynccontextmanager
async def opened(provider: SandboxProvider, files: Path | None, settings: dict[str, Any]) -> AsyncGenerator[Sandbox]:
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
