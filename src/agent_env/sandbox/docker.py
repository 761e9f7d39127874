"""A sandbox in a container, by the `docker` command. The image is one that is here already: nothing is fetched.

The command is run by a first process of ours on the host, which also removes the container when this process ends without
doing so.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from errno import EIO
from pathlib import Path, PurePosixPath
from secrets import token_hex

from agent_env.bundle import SandboxSpec
from agent_env.errors import SandboxLostError, SandboxUnavailableError
from agent_env.sandbox._blocking import in_thread
from agent_env.sandbox._inside.wire import pack_fields
from agent_env.sandbox._launch import Launch, open_channels, turn_to_start
from agent_env.sandbox._place import base_token, is_alive, sandbox_folder
from agent_env.sandbox._scripts import READ, read_error
from agent_env.sandbox._supervised import SupervisedSandbox, Workplace, arguments_of, as_argument, as_bytes
from agent_env.sandbox.contract import MAX_FILE_BYTES, ExecResult, Sandbox

__all__ = ["check_docker", "open_docker", "why_not"]

ROOT = PurePosixPath("/workspace")
PRIVATE_DIR = PurePosixPath("/tmp/.agent-env")
LABEL = "agent-env.owner"

_DOCKER_S = 60.0
"""Seconds for one call of `docker` that is no command of the agent's."""
_LONG_BYTES = 100_000
"""The kernel takes 128 kB as one argument; a longer text is put into a file."""

_ENTER = 'echo $$ >"$0" && exec "$@"'
"""A shell that leaves its process id in a file, and becomes the command that follows."""
_KILL = (
    'top=$(cat "$0") || exit 0; rm -f "$0"; for stat in /proc/[0-9]*/stat; do read -r line <"$stat" || continue; '
    'pid=${line%% *}; set -- ${line##*) }; [ "$4" = "$top" ] && kill -9 "$pid"; done 2>/dev/null; '
    'kill -9 "$top" 2>/dev/null; true'
)
"""A shell that kills the session that began with the process in a file."""
_PREPARE = 'command -v bash || command -v sh; id -u; id -g; mkdir -p -m 700 "$0"'
_WRITE = (
    '[ -d "$1" ] && exit 41; [ -e "$1" ] && ! [ -f "$1" ] && exit 43; '
    'mkdir -p "${1%/*}/" && cat >"$1" && if [ "$2" = 1 ]; then chmod a+x "$1"; fi'
)


async def check_docker(spec: SandboxSpec) -> None:
    """See whether `docker` is there, its daemon answers, and has the image.

    Raises:
        SandboxUnavailableError: When not; the message says what to do.
    """
    async with _client() as (client, _):
        result = await client.run(
            [_docker(), "image", "inspect", "--format", "ok", str(spec.image)], timeout_s=_DOCKER_S
        )
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
    docker = _docker()
    async with _client(removes=True) as (client, name):
        starting = [docker, "run", *_options(spec, name), "--entrypoint", "sleep", str(spec.image), "infinity"]
        started = await client.run(starting, timeout_s=_DOCKER_S)
        if not started.is_ok:
            raise SandboxUnavailableError(why_not(started, str(spec.image)))
        sandbox = _DockerSandbox(client, docker, name, spec)
        await sandbox.prepare(files)
        yield sandbox


def _docker() -> str:
    docker = shutil.which("docker")
    if docker is None:
        raise SandboxUnavailableError("docker is not installed: install Docker Engine, or use provider: bwrap")
    return docker


@asynccontextmanager
async def _client(*, removes: bool = False) -> AsyncGenerator[tuple[SupervisedSandbox, str]]:
    """What runs `docker` for one sandbox, and the name of its container, which it removes at the end however that comes."""
    async with AsyncExitStack() as stack:
        turn = await stack.enter_async_context(turn_to_start())
        owner, folder = stack.enter_context(sandbox_folder())
        name = f"agent-env-{owner.name}-{folder.name}"
        last = pack_fields(*(part.encode() for part in (_docker(), "rm", "--force", "--volumes", name)))
        launch = Launch(
            command=lambda: nullcontext(((sys.executable,), ())),
            configuration=({b"last": last} if removes else {},),
            environment=dict(os.environ),
            ends_within_s=45.0,
        )
        async with open_channels(launch, folder, turn) as (channel,):
            workplace = Workplace(
                root=PurePosixPath("/"),
                private_dir=PurePosixPath(folder),
                environment=dict(os.environ),
                timeout_s=_DOCKER_S,
                output_bytes=10_000,
            )
            yield SupervisedSandbox(channel, workplace), name


def _options(spec: SandboxSpec, name: str) -> list[str]:
    memory = f"{spec.memory_mb}m"
    owner = name.removeprefix("agent-env-").rpartition("-")[0]
    options = ["--detach", "--rm", "--init", "--pull", "never", "--name", name, "--hostname", "sandbox"]
    options += ["--label", f"{LABEL}={base_token()}:{owner}", "--memory", memory, "--memory-swap", memory]
    options += ["--pids-limit", str(spec.processes), "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    options += ["--log-driver", "none", "--workdir", str(ROOT)]
    if not spec.network:
        options += ["--network", "none"]
    return [*options, *(part for pair in spec.environment.items() for part in ("--env", "=".join(pair)))]


def why_not(result: ExecResult, image: str) -> str:
    """Return why `docker` has not done what it was told, and the way out, in one line.

    Args:
        result: What it said.
        image: The image that it was told.
    """
    said = " ".join((result.stderr or result.stdout).decode("utf-8", "replace").split())
    if result.timed_out:
        return f"docker does not answer within {_DOCKER_S:g} s: see whether its daemon runs"
    if "permission denied" in said and "daemon" in said:
        return "this user may not use Docker: usermod -aG docker $USER, then log in again"
    if "Cannot connect to the Docker daemon" in said or "Is the docker daemon running" in said:
        return "the Docker daemon does not run: systemctl start docker, or set DOCKER_HOST"
    if "No such image" in said or "Unable to find image" in said:
        return f"the image {image} is not here: docker pull {image}"
    return f"docker cannot start {image}: {said[-500:]}"


async def remove_dead_containers() -> int:
    """Remove the containers of processes of this user, on this machine, that are gone. Return how many."""
    removed = 0
    async with _client() as (client, _):
        labels = '{{.ID}} {{.Label "' + LABEL + '"}}'
        listing = [_docker(), "ps", "--all", "--no-trunc", "--filter", f"label={LABEL}", "--format", labels]
        listed = await client.run(listing, output_bytes=2**20)
        if not listed.is_ok:
            return 0
        token = base_token()
        for line in listed.text.splitlines():
            container, _, owner = line.partition(" ")
            whose, _, name = owner.partition(":")
            if (
                whose == token
                and name
                and not await in_thread(lambda name=name: is_alive(name), what=f"looking for {name}")
            ):
                await client.run([_docker(), "rm", "--force", "--volumes", container])
                removed += 1
    return removed


class _DockerSandbox:
    """A `Sandbox` whose commands are run by `docker exec`."""

    def __init__(self, client: SupervisedSandbox, docker: str, name: str, spec: SandboxSpec) -> None:
        self._client = client
        self._docker = docker
        self._name = name
        self._spec = spec
        self._shell = "/bin/sh"

    @property
    def root(self) -> PurePosixPath:
        return ROOT

    @property
    def private_dir(self) -> PurePosixPath:
        return PRIVATE_DIR

    async def prepare(self, files: Path | None) -> None:
        """See what is in the image, and copy the files in."""
        result = await self._exec(["/bin/sh", "-c", _PREPARE, str(PRIVATE_DIR)])
        lines = result.text.split()
        if not result.is_ok or len(lines) != 3:
            raise SandboxUnavailableError(
                f"the image {self._spec.image} has no shell: use one with /bin/sh and coreutils"
            )
        self._shell, uid, gid = lines
        if files is not None:
            copied = await self._client.run([self._docker, "cp", "--quiet", f"{files}/.", f"{self._name}:{ROOT}"])
            if not copied.is_ok:
                raise SandboxUnavailableError(why_not(copied, str(self._spec.image)))
        if uid != "0":
            owner = ["chown", "-R", f"{uid}:{gid}", str(ROOT)]
            given = await self._exec(owner, "--privileged", "--user", "0")
            if not given.is_ok:
                raise SandboxUnavailableError(why_not(given, str(self._spec.image)))

    async def run(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        output_bytes: int | None = None,
    ) -> ExecResult:
        argv = [as_argument(text).decode("utf-8", "surrogateescape") for text in arguments_of(command)]
        mark = str(PRIVATE_DIR / token_hex(8))
        if isinstance(command, str):
            if len(argv[0]) < _LONG_BYTES:
                argv = [self._shell, "-c", *argv]
            else:
                await self.write_file(f"{mark}.sh", argv[0].encode("utf-8", "surrogateescape"))
                argv = [self._shell, f"{mark}.sh"]
        options = ["--workdir", str(ROOT / (cwd or ""))]
        options += [part for pair in (env or {}).items() for part in ("--env", "=".join(pair))]
        has_ended = False
        try:
            result = await self._exec(
                ["/bin/sh", "-c", _ENTER, mark, *argv], *options, stdin=stdin,
                timeout_s=self._spec.command_timeout_s if timeout_s is None else timeout_s,
                output_bytes=4 * self._spec.output_chars if output_bytes is None else output_bytes,
            )  # fmt: skip
            has_ended = not result.timed_out
        finally:
            if not has_ended:  # what is killed is `docker exec`, and not the command
                self._client.start(
                    [self._docker, "exec", self._name, "/bin/sh", "-c", _KILL, mark], timeout_s=_DOCKER_S
                )
        return result

    async def read_file(self, path: str | PurePosixPath, *, max_bytes: int = 10 * 2**20) -> bytes:
        most = min(max_bytes, MAX_FILE_BYTES)
        whole = as_argument(str(ROOT / path)).decode("utf-8", "surrogateescape")
        script = ["/bin/sh", "-c", READ + 'cat <"$1"', "sh", whole, str(most)]
        result = await self._exec(script, timeout_s=_DOCKER_S, output_bytes=2 * most + 2)
        if not result.is_ok or result.stdout_left_out_bytes:
            raise read_error(result.exit_code, result.stdout, path, max_bytes=most)
        return result.stdout

    async def write_file(self, path: str | PurePosixPath, content: bytes | str, *, executable: bool = False) -> None:
        whole = as_argument(str(ROOT / path)).decode("utf-8", "surrogateescape")
        script = ["/bin/sh", "-c", _WRITE, "sh", whole, "1" if executable else "0"]
        result = await self._exec(script, stdin=as_bytes(content), timeout_s=_DOCKER_S)
        if result.exit_code in (41, 43):
            raise read_error(result.exit_code, b"", path, max_bytes=0)
        if not result.is_ok:
            said = result.stderr.decode("utf-8", "replace").strip()
            raise OSError(EIO, said or f"it ended with {result.exit_code}", str(path))

    async def _exec(
        self,
        argv: Sequence[str],
        *options: str,
        stdin: bytes = b"",
        timeout_s: float = _DOCKER_S,
        output_bytes: int = 10_000,
    ) -> ExecResult:
        result = await self._client.run(
            [self._docker, "exec", "--interactive", *options, self._name, *argv],
            stdin=stdin, timeout_s=timeout_s, output_bytes=output_bytes,
        )  # fmt: skip
        if not result.is_ok and (b"rror response from daemon" in result.stderr or b"ocker daemon" in result.stderr):
            await self._check_running()
        return result

    async def _check_running(self) -> None:
        """See whether the container is there: a command can print whatever docker would."""
        found = await self._client.run([self._docker, "inspect", "--format", "{{.State.Running}}", self._name])
        if found.text.strip() != "true":
            said = " ".join(found.stderr.decode("utf-8", "replace").split()) or "it has ended"
            raise SandboxLostError(f"the sandbox is lost: container {self._name}: {said[-300:]}")
