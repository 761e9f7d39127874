"""A sandbox in a container, by the `docker` command. The image is one that is here already: nothing is fetched.

The command is run by a first process of ours on the host, which also removes the container when this process ends without
doing so. A verifier has a container of its own, made of what the agent has made of its one: an agent that is root there could
take any other place in it apart.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from errno import EIO
from pathlib import Path, PurePosixPath
from secrets import token_hex

from agent_env._cleanup import wait_until_done
from agent_env.bundle import SandboxSpec
from agent_env.errors import SandboxLostError, SandboxUnavailableError
from agent_env.sandbox._blocking import in_thread
from agent_env.sandbox._container import DOCKER_S, ROOT, Container, Engine, why_not
from agent_env.sandbox._inside.wire import pack_fields
from agent_env.sandbox._launch import Launch, open_channels, turn_to_start
from agent_env.sandbox._place import base_token, is_alive, sandbox_folder
from agent_env.sandbox._supervised import SupervisedSandbox, Workplace
from agent_env.sandbox.contract import PlacedFile, Sandbox, VerifierSide, complaint
from agent_env.sandbox.verifier_side import side_in

__all__ = ["check_docker", "open_docker", "remove_dead_containers"]

PRIVATE_DIR = PurePosixPath("/tmp/.agent-env")
VERIFIER_DIR = PurePosixPath("/run/agent-env-verifier")
"""Where the verifier's container has a file system in memory: the agent cannot have left anything there."""
LABEL = "agent-env.owner"
IMAGES = "agent-env-verifier"
"""The name of the images that verifiers' containers are of; the tag says whose."""

_END_S = 3 * DOCKER_S
_REMOVE = '"$0" rm --force --volumes "$1" "$2"; "$0" image rm --force "$3"'


async def check_docker(spec: SandboxSpec) -> None:
    """See whether `docker` is there, its daemon answers, and has the image.

    Raises:
        SandboxUnavailableError: When not; the message says what to do.
    """
    async with _open_engine() as (engine, _):
        result = await engine.do("image", "inspect", "--format", "ok", str(spec.image))
    if not result.is_ok:
        raise SandboxUnavailableError(why_not(result, str(spec.image)))


@asynccontextmanager
async def open_docker(spec: SandboxSpec, *, files: Path | None) -> AsyncGenerator[Sandbox]:
    """Open a sandbox in a container.

    Args:
        spec: What it has.
        files: Copied into the working directory; what the sandbox leaves there is not copied back.

    Raises:
        SandboxUnavailableError: When there is no such container to be had.
    """
    async with _open_engine(removes=True) as (engine, name):
        network = () if spec.network else ("--network", "none")
        binds = [word for place, folder in spec.binds.items() for word in ("--volume", f"{folder}:{place}:ro")]
        started = await engine.do(
            *("run", *_options(spec, name), "--hostname", "sandbox", "--volume", str(ROOT), *binds, *network),
            *("--entrypoint", "sleep", str(spec.image), "infinity"),
        )
        if not started.is_ok:
            raise SandboxUnavailableError(why_not(started, str(spec.image)))
        container = _AgentsContainer(engine, name, spec, private_dir=PRIVATE_DIR)
        owner = await container.prepare()
        await container.take_in(files, owner=owner)
        yield container


def _docker() -> str:
    docker = shutil.which("docker")
    if docker is None:
        raise SandboxUnavailableError("docker is not installed: install Docker Engine, or use provider: bwrap")
    return docker


@asynccontextmanager
async def _open_engine(*, removes: bool = False) -> AsyncGenerator[tuple[Engine, str]]:
    """What runs `docker` for one sandbox, and the name of its container, which it removes at the end however that comes."""
    async with AsyncExitStack() as stack:
        turn = await stack.enter_async_context(turn_to_start())
        owner, folder = stack.enter_context(sandbox_folder())
        name = f"agent-env-{owner.name}-{folder.name}"
        program = _docker()
        launch = Launch(
            command=lambda: nullcontext(((sys.executable,), ())),
            configuration=({b"last": _packed(_removal(program, name))} if removes else {},),
            environment=dict(os.environ),
            ends_within_s=45.0,
        )
        async with open_channels(launch, folder, turn) as (channel,):
            workplace = Workplace(
                root=PurePosixPath("/"),
                private_dir=PurePosixPath(folder),
                environment=dict(os.environ),
                timeout_s=DOCKER_S,
                output_bytes=10_000,
            )
            yield Engine(client=SupervisedSandbox(channel, workplace), program=program), name


def _removal(program: str, name: str) -> Sequence[str]:
    return program, "rm", "--force", "--volumes", name


def _packed(argv: Sequence[str]) -> bytes:
    return pack_fields(*(part.encode() for part in argv))


def _options(spec: SandboxSpec, name: str) -> list[str]:
    """What the agent's container and the verifier's have in common."""
    memory = f"{spec.memory_mb}m"
    owner = _owner_of(name)
    options = ["--detach", "--rm", "--init", "--pull", "never", "--name", name]
    options += ["--label", f"{LABEL}={base_token()}:{owner}", "--memory", memory, "--memory-swap", memory]
    options += ["--pids-limit", str(spec.processes), "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    options += ["--log-driver", "none", "--workdir", str(ROOT)]
    return [*options, *(part for pair in spec.environment.items() for part in ("--env", "=".join(pair)))]


def _owner_of(name: str) -> str:
    """Return whose a container is, by its name: without the number that a process gives to each of its sandboxes."""
    return name.removeprefix("agent-env-").rpartition("-")[0]


async def remove_dead_containers() -> int:
    """Remove the containers of processes of this user, on this machine, that are gone. Return how many."""
    removed = 0
    async with _open_engine() as (engine, _):
        labels = '{{.ID}} {{.Label "' + LABEL + '"}}'
        options = ("--all", "--no-trunc", "--filter", f"label={LABEL}", "--format", labels)
        listed = await engine.do("ps", *options, output_bytes=2**20)
        if not listed.is_ok:
            return 0
        for line in listed.text.splitlines():
            container, _, owner = line.partition(" ")
            whose, _, name = owner.partition(":")
            if await _is_dead(whose, name):
                await engine.do("rm", "--force", "--volumes", container)
                removed += 1
        images = await engine.do("images", "--format", "{{.Tag}}", IMAGES, output_bytes=2**20)
        for tag in images.text.split() if images.is_ok else ():
            whose, _, name = tag.partition("-")
            if await _is_dead(whose, _owner_of(name)):
                await engine.do("image", "rm", "--force", f"{IMAGES}:{tag}")
    return removed


async def _is_dead(token: str, name: str) -> bool:
    """Whether something is of this user and machine, of a process that is gone."""
    if token != base_token() or not name:
        return False
    return not await in_thread(lambda: is_alive(name), what=f"looking for {name}")


class _AgentsContainer(Container):
    """The container that an agent works in, as a `Sandbox` that has a `verifier_side`."""

    def __init__(self, engine: Engine, name: str, spec: SandboxSpec, *, private_dir: PurePosixPath) -> None:
        super().__init__(engine, name, spec, private_dir=private_dir)
        self._one_at_a_time = asyncio.Lock()

    @asynccontextmanager
    async def verifier_side(self, files: Sequence[PlacedFile] = ()) -> AsyncGenerator[VerifierSide]:
        """See `HasVerifierSide`: another container, of an image that is what this one has become.

        It shares the working directory and the network, so that it reaches what the agent left running; and nothing else.
        """
        async with self._one_at_a_time:
            name, image = f"{self.name}.verifier", f"{IMAGES}:{base_token()}-{self.name.removeprefix('agent-env-')}"
            program = self.engine.program
            self.engine.client.configure(last=_packed(("/bin/sh", "-c", _REMOVE, program, self.name, name, image)))
            try:
                yield await self._side(name, image, files)
            finally:
                ending = asyncio.create_task(self._end(name, image), name=f"end {name}")
                await wait_until_done(ending, grace_s=_END_S, what=f"ending {name}")

    async def _side(self, name: str, image: str, files: Sequence[PlacedFile]) -> VerifierSide:
        await self._must("commit", self.name, image)
        memory = f"{max(16, self.spec.memory_mb // 2)}m"
        await self._must(
            *("run", *_options(self.spec, name), "--network", f"container:{self.name}", "--volumes-from", self.name),
            *("--tmpfs", f"{VERIFIER_DIR}:rw,exec,nosuid,nodev,mode=1777,size={memory}"),
            *("--entrypoint", "sleep", image, "infinity"),
        )
        place = VERIFIER_DIR / token_hex(8)
        container = Container(self.engine, name, self.spec, private_dir=place / "private")
        try:
            await container.prepare()
        except SandboxUnavailableError as exc:
            raise OSError(EIO, str(exc), str(place)) from exc
        return await side_in(container, place, files, is_apart=True)

    async def _must(self, *arguments: str) -> None:
        done = await self.engine.do(*arguments)
        if not done.is_ok:
            await self.check_running()
            raise OSError(EIO, f"docker {arguments[0]}: {complaint(done) or 'it took too long'}", self.name)

    async def _end(self, name: str, image: str) -> None:
        with suppress(SandboxLostError):  # then what runs `docker` has removed them
            await self.engine.do("rm", "--force", "--volumes", name)
            await self.engine.do("image", "rm", "--force", image)
        self.engine.client.configure(last=_packed(_removal(self.engine.program, self.name)))
