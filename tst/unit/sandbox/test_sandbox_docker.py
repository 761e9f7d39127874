"""Sandboxes in Docker, against a stand-in for the `docker` command: that the right things are asked of it, and what is made
of its answers. No engine runs where the tests do, so that nothing here says what an engine does.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from agent_env.bundle import SandboxProvider, SandboxSpec
from agent_env.sandbox import (
    PlacedFile,
    Sandbox,
    SandboxLostError,
    SandboxUnavailableError,
    check_sandbox,
    open_sandbox,
    open_verifier_side,
)

Saying = Callable[[str], Sequence[int]]
WaitGone = Callable[[str], None]


@dataclass(frozen=True)
class Docker:
    """The stand-in's state."""

    folder: Path

    @property
    def containers(self) -> list[str]:
        return sorted(os.listdir(self.folder / "containers"))

    @property
    def log(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]

    def asked(self, what: str) -> list[list[str]]:
        return [call[1:] for call in self.log if call[0] == what]

    def says(self, text: str) -> None:
        (self.folder / "says").write_text(text)

    def open(self, files: Path | None = None, **settings: Any) -> AbstractAsyncContextManager[Sandbox]:
        spec = SandboxSpec(provider=SandboxProvider.DOCKER, image="tools:1", **settings)
        return open_sandbox(spec, files=files)


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Docker:
    """A `docker` command with the image `tools:1`."""
    folder = tmp_path / "docker"
    (folder / "containers").mkdir(parents=True)
    (folder / "images").write_text("tools:1\n")
    (folder / "log").touch()
    programs = tmp_path / "bin"
    programs.mkdir()
    fake = Path(__file__).parent / "fake_docker.py"
    (programs / "docker").write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {fake} "$@"\n')
    (programs / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_DOCKER", str(folder))
    return Docker(folder)


async def test_a_container_is_shut_in_and_removed(docker: Docker) -> None:
    """No network, no privileges, bounds; the image is not fetched, and its entry point is not run."""
    async with docker.open(memory_mb=512, processes=99, environment={"A": "b c"}):
        (name,) = docker.containers
        (options,) = docker.asked("run")
    assert options[-4:] == ["--entrypoint", "sleep", "tools:1", "infinity"]
    text = " ".join(options)
    for part in (
        "--detach --rm --init --pull never", "--network none", "--memory 512m --memory-swap 512m", "--pids-limit 99",
        "--cap-drop ALL --security-opt no-new-privileges", f"--name {name}", "--label agent-env.owner=", "--env A=b c",
    ):  # fmt: skip
        assert part in text
    assert docker.containers == []
    assert docker.asked("rm") == [["--force", "--volumes", name]]


async def test_with_the_network_it_is_left_as_docker_has_it(docker: Docker) -> None:
    """Only when the bundle asks."""
    async with docker.open(network=True):
        assert "--network" not in docker.asked("run")[0]


async def test_a_folder_of_the_bundle_is_there_to_be_read(docker: Docker, tmp_path: Path) -> None:
    """The machine's own folder, as a volume that cannot be written; the verifier's container has the agent's volumes."""
    async with docker.open(binds={"/opt/packages": tmp_path}):
        (options,) = docker.asked("run")
    assert options[options.index(f"{tmp_path}:/opt/packages:ro") - 1] == "--volume"


async def test_commands_and_files(docker: Docker, tmp_path: Path) -> None:
    """As in any sandbox."""
    files = tmp_path / "files"
    files.mkdir()
    (files / "here").write_text("from outside\n")
    async with docker.open(files) as box:
        assert str(box.root) == "/workspace"
        assert (
            await box.run("cat here; cat; echo $X; exit 3", stdin=b"in\n", env={"X": "y z"})
        ).stdout == b"from outside\nin\ny z\n"
        assert (await box.run(["sh", "-c", "exit 3"])).exit_code == 3
        assert (await box.run(f"echo {'x' * 200_000} | wc -c")).stdout == b"200001\n"
        await box.write_file("deep/file", b"\0\xff\n", executable=True)
        assert await box.read_file("deep/file") == b"\0\xff\n"
        assert (await box.run("test -x deep/file")).is_ok
        await box.write_file("deep/file", "")
        assert await box.read_file("deep/file") == b""
        await box.run("mkfifo pipe; mkdir folder; head -c 1000 /dev/zero >zeros")
        for path, error in (("missing", FileNotFoundError), ("folder", IsADirectoryError)):
            with pytest.raises(error):
                await box.read_file(path)
        with pytest.raises(OSError, match="no regular file"):
            await box.read_file("pipe")
        with pytest.raises(OSError, match="no regular file"):
            await box.write_file("pipe", b"")
        with pytest.raises(IsADirectoryError):
            await box.write_file("folder", b"")
        with pytest.raises(OSError, match="it has 1,000 bytes, more than 999"):
            await box.read_file("zeros", max_bytes=999)
        assert len(await box.read_file("zeros", max_bytes=1000)) == 1000
        result = await box.run("seq 100000", output_bytes=100)
        assert (result.stdout_left_out_bytes, len(result.stdout) < 200) == (588895 - 100, True)
    assert (files / "here").read_text() == "from outside\n"


async def test_a_timeout_and_a_cancellation_kill_in_the_container(
    docker: Docker, wait_gone: WaitGone, mark: str
) -> None:
    """Killing the client would not."""
    async with docker.open() as box:
        result = await box.run(f"sleep {mark}.1 & sleep {mark}.2", timeout_s=1)
        assert (result.timed_out, result.exit_code) == (True, 137)
        wait_gone(f"sleep\0{mark}.")
        running = asyncio.create_task(box.run(f"touch begun; sleep {mark}.3"))
        while not (await box.run("test -e begun")).is_ok:
            assert not running.done()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        wait_gone(f"sleep\0{mark}.")
        assert (await box.run("echo on")).stdout == b"on\n"


async def test_a_container_that_is_gone_is_lost_and_one_that_says_so_is_not(docker: Docker) -> None:
    """A command can print what Docker would."""
    async with docker.open() as box:
        result = await box.run("echo 'Error response from daemon: No such container' >&2; exit 1")
        assert result.exit_code == 1
        (name,) = docker.containers
        (docker.folder / "containers" / name / "workspace").rmdir()
        (docker.folder / "containers" / name).rename(docker.folder / "gone")
        with pytest.raises(SandboxLostError, match=f"container {name}: Error response from daemon: No such container"):
            await box.run("true")
        with pytest.raises(SandboxLostError):
            await box.read_file("x")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            "docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?\n",
            "the Docker daemon does not run: systemctl start docker, or set DOCKER_HOST",
        ),
        (
            "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock\n",
            "this user may not use Docker: usermod -aG docker $USER, then log in again",
        ),
        (
            "docker: Error response from daemon: no space left\n",
            "docker cannot start tools:1: docker: Error response from",
        ),
    ],
)
async def test_what_keeps_docker_from_it_is_said_with_the_way_out(docker: Docker, said: str, message: str) -> None:
    """In one line, when it is looked at before and when it is opened."""
    docker.says(said)
    spec = SandboxSpec(provider=SandboxProvider.DOCKER, image="tools:1")
    with pytest.raises(SandboxUnavailableError) as looked:
        await check_sandbox(spec)
    with pytest.raises(SandboxUnavailableError) as opened:
        async with docker.open():
            pass
    for raised in (looked, opened):
        assert str(raised.value).startswith(message)
        assert "\n" not in str(raised.value)


async def test_an_image_that_is_not_here_is_said(docker: Docker) -> None:
    """It is not fetched: that would be minutes in which an episode waits."""
    (docker.folder / "images").write_text("other:1\n")
    spec = SandboxSpec(provider=SandboxProvider.DOCKER, image="tools:1")
    with pytest.raises(SandboxUnavailableError, match="the image tools:1 is not here: docker pull tools:1"):
        await check_sandbox(spec)
    with pytest.raises(SandboxUnavailableError, match="the image tools:1 is not here: docker pull tools:1"):
        async with docker.open():
            pass


async def test_without_docker_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And what else there is."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        SandboxUnavailableError, match="docker is not installed: install Docker Engine, or use provider: bwrap"
    ):
        async with open_sandbox(SandboxSpec(provider=SandboxProvider.DOCKER, image="tools:1")):
            pass


HOLD = """
import asyncio, sys
from agent_env.bundle import SandboxProvider, SandboxSpec
from agent_env.sandbox import open_sandbox

async def main(mark):
    async with open_sandbox(SandboxSpec(provider=SandboxProvider.DOCKER, image="tools:1")) as box:
        await box.run(f"nohup sleep {mark}.1 >/dev/null 2>&1 &")
        print("ready", flush=True)
        await box.run(f"sleep {mark}.2")

asyncio.run(main(sys.argv[1]))
"""

ONCE = """
import asyncio
from agent_env.bundle import SandboxProvider, SandboxSpec
from agent_env.sandbox import open_sandbox

async def main():
    async with open_sandbox(SandboxSpec(provider=SandboxProvider.DOCKER, image="tools:1")):
        pass

asyncio.run(main())
"""


def test_a_killed_process_takes_its_container_with_it(docker: Docker, wait_gone: WaitGone, mark: str) -> None:
    """The process between it and `docker` sees to that."""
    with subprocess.Popen([sys.executable, "-c", HOLD, mark], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert len(docker.containers) == 1
        (between,) = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        ended = os.pidfd_open(between)
        process.send_signal(signal.SIGKILL)
    wait_gone(f"sleep\0{mark}.")
    assert select.select([ended], [], [], 30)[0]
    os.close(ended)
    assert docker.containers == []


async def test_containers_of_dead_processes_are_removed_and_no_others(docker: Docker) -> None:
    """Should that one have been killed too: at the first container of the next process of this user on this machine."""
    async with docker.open() as box:
        (name,) = docker.containers
        mine = (docker.folder / "containers" / name / "label").read_text()
        token = mine.partition(":")[0]
        for other, label in (
            ("dead", f"{token}:1-00000000"),
            ("elsewhere", "0123456789abcdef:1-00000000"),
            ("odd", token),
        ):
            (docker.folder / "containers" / other).mkdir()
            (docker.folder / "containers" / other / "label").write_text(label)
        await asyncio.to_thread(subprocess.run, [sys.executable, "-c", ONCE], check=True)
        assert docker.containers == sorted(["elsewhere", "odd", name])
        assert (await box.run("echo on")).stdout == b"on\n"


PLACED = (PlacedFile(path=PurePosixPath("sub/check.sh"), content=b"echo checked\n", is_executable=True),)


async def test_a_verifier_has_a_container_of_its_own(docker: Docker) -> None:
    """Of an image of what the agent's has become; it shares the working directory and the network, and has the same limits."""
    async with docker.open(memory_mb=512, processes=99, environment={"A": "b c"}) as box:
        (name,) = docker.containers
        await box.run("echo agent >made")
        async with open_verifier_side(box, PLACED) as side:
            assert side.is_apart
            assert docker.containers == [name, f"{name}.verifier"]
            (image,) = [word for word in (docker.folder / "images").read_text().split() if word != "tools:1"]
            assert docker.asked("commit") == [[name, image]]
            first, second = docker.asked("run")
            command = 'cat made; sh "$AGENT_ENV_VERIFIER/sub/check.sh"; $AGENT_ENV_AS_AGENT echo on; echo 1 >"$S"; echo v >from'
            result = await side.run(command, env={"S": str(side.own / "score")})
            assert (result.text, result.stderr) == ("agent\nchecked\non\n", b"")
            assert await side.sandbox.read_file(side.own / "score") == b"1\n"
            assert (await side.run('test -d "$TMPDIR" && test -x "$AGENT_ENV_VERIFIER/sub/check.sh"')).is_ok
            assert "AGENT_ENV" not in (await box.run("env")).text.replace("FAKE", "")
        assert (await box.read_file("from")) == b"v\n"
        assert docker.containers == [name]
        assert (docker.folder / "images").read_text().split() == ["tools:1"]
    assert first[-4:] == ["--entrypoint", "sleep", "tools:1", "infinity"]
    assert second[-4:] == ["--entrypoint", "sleep", image, "infinity"]
    text = " ".join(second)
    for part in (
        "--detach --rm --init --pull never", f"--network container:{name}", "--memory 512m --memory-swap 512m",
        "--pids-limit 99", "--cap-drop ALL --security-opt no-new-privileges", f"--volumes-from {name}", "--env A=b c",
        "--tmpfs /run/agent-env-verifier:rw,exec,nosuid,nodev,mode=1777,size=256m",
    ):  # fmt: skip
        assert part in text
    assert docker.containers == []


async def test_a_verifier_s_container_goes_however_it_ends(docker: Docker, wait_gone: WaitGone, mark: str) -> None:
    """An error, a cancellation; the agent's goes on."""
    async with docker.open() as box:
        containers = docker.containers
        with pytest.raises(ZeroDivisionError):
            async with open_verifier_side(box):
                raise ZeroDivisionError
        assert docker.containers == containers

        async def verify() -> None:
            async with open_verifier_side(box) as side:
                await side.run(f"touch begun; sleep {mark}.1")

        verifying = asyncio.create_task(verify())
        while not (await box.run("test -e begun")).is_ok:
            assert not verifying.done()
        verifying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await verifying
        wait_gone(f"sleep\0{mark}.1")
        assert docker.containers == containers
        assert (docker.folder / "images").read_text().split() == ["tools:1"]
        assert (await box.run("echo on")).text == "on\n"


async def test_what_keeps_a_verifier_s_container_from_it_is_said(docker: Docker) -> None:
    """And a lost container of the agent's is one: neither is a score."""
    async with docker.open() as box:
        (docker.folder / "refuses").write_text("commit")
        with pytest.raises(OSError, match="docker commit: no room for it"):
            async with open_verifier_side(box):
                pass
        (docker.folder / "refuses").write_text("")
        (name,) = docker.containers
        (docker.folder / "containers" / name / "workspace").rmdir()
        (docker.folder / "containers" / name).rename(docker.folder / "gone")
        with pytest.raises(SandboxLostError):
            async with open_verifier_side(box):
                pass


VERIFY = HOLD.replace("from agent_env.sandbox import", "from agent_env.sandbox import open_verifier_side,").replace(
    'await box.run(f"sleep {mark}.2")',
    'async with open_verifier_side(box) as side: await side.run(f"touch begun; sleep {mark}.2")',
)


def test_a_process_that_is_killed_while_it_verifies_leaves_no_container_and_no_image(
    docker: Docker, wait_gone: WaitGone, mark: str
) -> None:
    """What is between it and `docker` knows of both."""
    with subprocess.Popen([sys.executable, "-c", VERIFY, mark], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        while not list(docker.folder.glob("containers/*/workspace/begun")):
            assert process.poll() is None
        (between,) = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        ended = os.pidfd_open(between)
        process.send_signal(signal.SIGKILL)
    assert select.select([ended], [], [], 30)[0]
    os.close(ended)
    wait_gone(f"sleep\0{mark}.")
    assert docker.containers == []
    assert (docker.folder / "images").read_text().split() == ["tools:1"]


async def test_images_of_dead_processes_are_removed_and_no_others(docker: Docker) -> None:
    """At the first container of the next process, as containers are."""
    async with docker.open() as box, open_verifier_side(box):
        mine = next(word for word in (docker.folder / "images").read_text().split() if word != "tools:1")
        token = mine.partition(":")[2].partition("-")[0]
        others = [
            f"agent-env-verifier:{tag}" for tag in (f"{token}-1-00000000-1", "0123456789abcdef-1-00000000-1", token)
        ]
        with (docker.folder / "images").open("a") as file:
            file.write("\n".join(others))
        containers = docker.containers
        await asyncio.to_thread(subprocess.run, [sys.executable, "-c", ONCE], check=True)
        assert (docker.folder / "images").read_text().split() == ["tools:1", mine, *others[1:]]
        assert docker.containers == containers


async def test_an_image_s_own_user_is_given_the_working_directory_and_nothing_is_root_s_after(docker: Docker) -> None:
    """With privileges a program of the image's is run once, before the agent can have put its own in its place."""
    (docker.folder / "user").write_text("1234")
    async with docker.open() as box, open_verifier_side(box, PLACED) as side:
        assert (await side.run('sh "$AGENT_ENV_VERIFIER/sub/check.sh"')).text == "checked\n"
        (name, _) = docker.containers
        (privileged,) = [call for call in docker.asked("exec") if "--privileged" in call or "--user" in call]
    chown = ["chown", "-R", "1234:1234", "/workspace"]
    assert privileged == ["--interactive", "--privileged", "--user", "0", name, *chown]
