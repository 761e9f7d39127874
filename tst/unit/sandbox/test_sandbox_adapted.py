# ruff: noqa: ASYNC109, ASYNC240 - the shape is the cookbook's
"""Sandboxes that others make: what has the shape of the cookbook's `SandboxInterface` is used through it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent_env.bundle import PythonRef, SandboxProvider, SandboxSpec
from agent_env.sandbox import (
    SandboxInterface,
    SandboxLostError,
    SandboxUnavailableError,
    check_sandbox,
    open_adapted,
    open_sandbox,
)

SPEC = SandboxSpec(provider=SandboxProvider.PYTHON, command_timeout_s=20, environment={"BASE": "1"})


@dataclass
class Result:
    stdout: str
    stderr: str
    exit_code: int


class SandboxTerminatedError(RuntimeError):
    """Has the name of the cookbook's."""


class Local:
    """Runs commands on this machine, as the cookbook's adapter of Modal does in a container; it counts its calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls: list[str] = []
        self.fails: Callable[[], Exception] | None = None
        self.beat = asyncio.Event()
        self.cleaned = 0

    @property
    def sandbox_id(self) -> str:
        return "box-1"

    async def send_heartbeat(self, timeout: int = 30) -> None:
        self.beat.set()

    async def run_command(
        self, command: str, workdir: str | None = None, timeout: int = 60, max_output_bytes: int | None = None
    ) -> Result:
        self.calls.append(command)
        if self.fails is not None:
            raise self.fails()
        process = await asyncio.create_subprocess_exec(
            "bash", "-lc", command, cwd=workdir or self.folder,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        try:
            async with asyncio.timeout(timeout):
                stdout, stderr = await process.communicate()
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            return Result("", "it took too long", -1)
        cap = max_output_bytes if max_output_bytes is not None else 128 * 1024
        code = process.returncode or 0
        return Result(
            stdout[:cap].decode(errors="replace"),
            stderr[:cap].decode(errors="replace"),
            128 - code if code < 0 else code,
        )

    async def read_file(self, path: str, max_bytes: int | None = None, timeout: int = 60) -> Result:
        raise AssertionError("its content would be text")

    async def write_file(self, path: str, content: str | bytes, executable: bool = False, timeout: int = 60) -> Result:
        self.calls.append(f"write {path}")
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_bytes(content if isinstance(content, bytes) else content.encode())
        except OSError as exc:
            return Result("", str(exc), 1)
        if executable:
            Path(path).chmod(0o755)
        return Result("", "", 0)

    async def cleanup(self) -> None:
        self.cleaned += 1


@pytest.fixture
def local(tmp_path: Path) -> Local:
    """A sandbox of the cookbook's shape."""
    folder = tmp_path / "local"
    folder.mkdir()
    return Local(folder)


def test_the_shape_alone_counts(local: Local) -> None:
    """What has it is one, and what lacks a method is none."""
    assert isinstance(local, SandboxInterface)
    assert not isinstance(object(), SandboxInterface)


async def test_commands_and_files(local: Local, tmp_path: Path) -> None:
    """As in any sandbox, with a call of the sandbox for each command."""
    files = tmp_path / "files"
    (files / "sub").mkdir(parents=True)
    (files / "sub" / "run").write_text("#!/bin/sh\necho ran\n")
    (files / "sub" / "run").chmod(0o755)
    (files / "link").symlink_to("sub/run")
    async with open_adapted(local, SPEC, files=files) as box:
        assert str(box.root) == str(local.folder)
        before = len(local.calls)
        result = await box.run("pwd; cat; echo $BASE $X >&2; exit 3", stdin=b"a'b\n$HOME\n", env={"X": "y z"})
        assert result.stdout == f"{local.folder}\na'b\n$HOME\n".encode()
        assert (result.stderr, result.exit_code) == (b"1 y z\n", 3)
        assert len(local.calls) == before + 1
        assert (await box.run(["printf", "%s|", "a b", "$HOME", "it's"])).stdout == b"a b|$HOME|it's|"
        assert (await box.run("./link", cwd="sub/..")).stdout == b"ran\n"
        assert (await box.run("cat", stdin=b"\0\xff")).stdout == b"\0\xef\xbf\xbd"
        assert (await box.run(f"cat <<'EOF' | wc -c\n{'x' * 300_000}\nEOF")).stdout == b"300001\n"
        assert (await box.run("kill -9 $$")).exit_code == 137
        content = bytes(range(256)) * 3000
        await box.write_file("deep/file", content, executable=True)
        assert await box.read_file("deep/file") == content
        assert (await box.run("test -x deep/file")).is_ok
        await box.run("mkfifo pipe; mkdir folder")
        for path, error in (("missing", FileNotFoundError), ("folder", IsADirectoryError)):
            with pytest.raises(error):
                await box.read_file(path)
        with pytest.raises(OSError, match="no regular file"):
            await box.read_file("pipe")
        with pytest.raises(OSError, match="it has 768,000 bytes, more than 10"):
            await box.read_file("deep/file", max_bytes=10)
        with pytest.raises(OSError, match="folder"):
            await box.write_file("folder", b"")
        cut = await box.run("seq 100000", output_bytes=20)
        assert cut.stdout == b"1\n2\n3\n4\n5\n6\n7\n8\n9\n10" + b"\n[... what follows is left out ...]\n"
        assert cut.stdout_left_out_bytes >= 1
        assert not os.listdir(str(box.private_dir))
    assert local.cleaned == 1


async def test_a_command_that_takes_too_long_is_a_result(local: Local) -> None:
    """The cookbook's adapters answer it as they answer what never ran; the clock tells them apart."""
    async with open_adapted(local, SPEC) as box:
        result = await box.run("sleep 20", timeout_s=1)
        assert (result.timed_out, result.exit_code) == (True, 137)
        assert (await box.run("echo on")).stdout == b"on\n"


@pytest.mark.parametrize("error", [SandboxTerminatedError, ConnectionError, TimeoutError])
async def test_what_the_adapter_raises_is_a_lost_sandbox(local: Local, error: type[Exception]) -> None:
    """Never a command's answer; and it is not asked again."""
    async with open_adapted(local, SPEC) as box:
        local.fails = lambda: error("reclaimed")
        with pytest.raises(SandboxLostError, match=r"sandbox box-1 is lost: .*reclaimed"):
            await box.run("true")
        asked = len(local.calls)
        for calling in (box.run("true"), box.read_file("x"), box.write_file("x", b"")):
            with pytest.raises(SandboxLostError):
                await calling
        assert len(local.calls) == asked
    assert local.cleaned == 1


async def test_a_command_that_never_ran_is_a_lost_sandbox(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cookbook's adapters answer -1 for what went wrong on their side: no command ends so."""

    async def failing(*_: object, **__: object) -> Result:
        return Result("", "no such object", -1)

    async with open_adapted(local, SPEC) as box:
        monkeypatch.setattr(local, "run_command", failing)
        with pytest.raises(SandboxLostError, match="no such object"):
            await box.run("true")


async def test_it_is_kept_alive_and_cleaned_up(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the block raises, and when cleaning up raises."""
    monkeypatch.setattr("agent_env.sandbox.adapted._HEARTBEAT_EVERY_S", 0.01)

    async def raising() -> None:
        local.cleaned += 1
        raise RuntimeError("already gone")

    monkeypatch.setattr(local, "cleanup", raising)

    async def use() -> None:
        async with open_adapted(local, SPEC):
            await local.beat.wait()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await use()
    assert local.cleaned == 1
    assert len(asyncio.all_tasks()) == 1


def reference(folder: Path, code: str) -> SandboxSpec:
    """A sandbox that the function `make` of a file makes."""
    (folder / "boxes.py").write_text(code)
    ref = PythonRef(folder.resolve(), Path("boxes.py"), "make")
    return SandboxSpec(provider=SandboxProvider.PYTHON, python=ref)


@pytest.mark.parametrize("how", ["def", "async def"])
async def test_a_function_of_the_bundle_makes_one(tmp_path: Path, local: Local, how: str) -> None:
    """Plain, in a thread, or `async def`."""
    import builtins

    builtins.a_local_sandbox = local  # type: ignore[attr-defined]
    spec = reference(tmp_path, f"{how} make():\n    return a_local_sandbox\n")
    try:
        await check_sandbox(spec)
        async with open_sandbox(spec) as box:
            assert (await box.run("echo on")).stdout == b"on\n"
    finally:
        del builtins.a_local_sandbox  # type: ignore[attr-defined]
    assert local.cleaned == 1


async def test_a_function_may_open_a_sandbox_of_ours(tmp_path: Path) -> None:
    """As an asynchronous context manager."""
    code = (
        "from agent_env.bundle import SandboxProvider, SandboxSpec\n"
        "from agent_env.sandbox import open_sandbox\n"
        "def make():\n    return open_sandbox(SandboxSpec(provider=SandboxProvider.HOST))\n"
    )
    files = tmp_path / "files"
    files.mkdir()
    (files / "here").write_text("x")
    async with open_sandbox(reference(tmp_path, code), files=files) as box:
        assert (await box.run("cat here")).stdout == b"x"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def make():\n    return 1\n", "boxes.py:make returned a int: return a tinker-cookbook SandboxInterface, or"),
        ("def make():\n    raise KeyError('token')\n", "boxes.py:make raised KeyError: 'token'"),
        (
            "class Mute(Exception):\n    def __str__(self):\n        raise self\n\ndef make():\n    raise Mute\n",
            "boxes.py:make raised Mute",
        ),
        ("make = 1\n", "boxes.py:make is no function"),
        (
            "from contextlib import asynccontextmanager\n@asynccontextmanager\nasync def make():\n    yield 1\n",
            "boxes.py:make opens a int, which is no Sandbox",
        ),
    ],
)
async def test_what_makes_no_sandbox_is_said(tmp_path: Path, code: str, message: str) -> None:
    """With the function's place, and what to return."""
    with pytest.raises(SandboxUnavailableError, match=message):
        async with open_sandbox(reference(tmp_path, code)):
            pass
