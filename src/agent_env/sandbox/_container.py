"""A container as a `Sandbox`: its commands are run by `docker exec`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from errno import EIO
from pathlib import Path, PurePosixPath
from secrets import token_hex

from agent_env.bundle import SandboxSpec
from agent_env.errors import SandboxLostError, SandboxUnavailableError
from agent_env.sandbox._scripts import READ, read_error
from agent_env.sandbox._supervised import SupervisedSandbox, arguments_of, as_argument, as_bytes
from agent_env.sandbox.contract import MAX_FILE_BYTES, ExecResult, complaint

__all__ = ["DOCKER_S", "ROOT", "Container", "Engine", "why_not"]

ROOT = PurePosixPath("/workspace")

DOCKER_S = 60.0
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


def why_not(result: ExecResult, image: str) -> str:
    """Return why `docker` has not done what it was told, and the way out, in one line.

    Args:
        result: What it said.
        image: The image that it was told.
    """
    said = " ".join((result.stderr or result.stdout).decode("utf-8", "replace").split())
    if result.timed_out:
        return f"docker does not answer within {DOCKER_S:g} s: see whether its daemon runs"
    if "permission denied" in said and "daemon" in said:
        return "this user may not use Docker: usermod -aG docker $USER, then log in again"
    if "Cannot connect to the Docker daemon" in said or "Is the docker daemon running" in said:
        return "the Docker daemon does not run: systemctl start docker, or set DOCKER_HOST"
    if "No such image" in said or "Unable to find image" in said:
        return f"the image {image} is not here: docker pull {image}"
    return f"docker cannot start {image}: {said[-500:]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The `docker` command, and what runs it."""

    client: SupervisedSandbox
    program: str

    async def do(self, *arguments: str, output_bytes: int = 10_000) -> ExecResult:
        """Run it to its end.

        Raises:
            SandboxLostError: When what runs it is gone.
        """
        return await self.client.run([self.program, *arguments], timeout_s=DOCKER_S, output_bytes=output_bytes)


class Container:
    """A `Sandbox` whose commands are run by `docker exec`."""

    def __init__(self, engine: Engine, name: str, spec: SandboxSpec, *, private_dir: PurePosixPath) -> None:
        """Use a container that runs.

        Args:
            engine: Where.
            name: The container's.
            spec: The bounds of its commands.
            private_dir: As in `Sandbox`; it is made by `prepare`.
        """
        self.engine = engine
        self.name = name
        self.spec = spec
        self._private_dir = private_dir
        self._shell = "/bin/sh"

    @property
    def root(self) -> PurePosixPath:
        return ROOT

    @property
    def private_dir(self) -> PurePosixPath:
        return self._private_dir

    async def prepare(self) -> tuple[str, str]:
        """See what is in the image, and make the private folder. Return the ids of the image's user and group.

        Raises:
            SandboxUnavailableError: When the image lacks something.
        """
        result = await self._exec(["/bin/sh", "-c", _PREPARE, str(self._private_dir)])
        lines = result.text.split()
        if not result.is_ok or len(lines) != 3:
            raise SandboxUnavailableError(
                f"the image {self.spec.image} has no shell: use one with /bin/sh and coreutils"
            )
        self._shell, uid, gid = lines
        return uid, gid

    async def take_in(self, files: Path | None, *, owner: tuple[str, str]) -> None:
        """Copy files in, and give the working directory to the image's user.

        Only before anything has run in the container: what gives it away has all privileges, and is a program of the image's.

        Args:
            files: The files.
            owner: The ids of user and group.

        Raises:
            SandboxUnavailableError: When that cannot be done.
        """
        if files is not None:
            copied = await self.engine.do("cp", "--quiet", f"{files}/.", f"{self.name}:{ROOT}")
            if not copied.is_ok:
                raise SandboxUnavailableError(why_not(copied, str(self.spec.image)))
        if owner[0] != "0":
            given = await self._exec(["chown", "-R", ":".join(owner), str(ROOT)], "--privileged", "--user", "0")
            if not given.is_ok:
                raise SandboxUnavailableError(why_not(given, str(self.spec.image)))

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
        mark = str(self._private_dir / token_hex(8))
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
                timeout_s=self.spec.command_timeout_s if timeout_s is None else timeout_s,
                output_bytes=4 * self.spec.output_chars if output_bytes is None else output_bytes,
            )  # fmt: skip
            has_ended = not result.timed_out
        finally:
            if not has_ended:  # what is killed is `docker exec`, and not the command
                self.engine.client.start(
                    [self.engine.program, "exec", self.name, "/bin/sh", "-c", _KILL, mark], timeout_s=DOCKER_S
                )
        return result

    async def read_file(self, path: str | PurePosixPath, *, max_bytes: int = 10 * 2**20) -> bytes:
        most = min(max_bytes, MAX_FILE_BYTES)
        whole = as_argument(str(ROOT / path)).decode("utf-8", "surrogateescape")
        script = ["/bin/sh", "-c", READ + 'cat <"$1"', "sh", whole, str(most)]
        result = await self._exec(script, timeout_s=DOCKER_S, output_bytes=2 * most + 2)
        if not result.is_ok or result.stdout_left_out_bytes:
            raise read_error(result.exit_code, result.stdout, path, max_bytes=most)
        return result.stdout

    async def write_file(self, path: str | PurePosixPath, content: bytes | str, *, executable: bool = False) -> None:
        whole = as_argument(str(ROOT / path)).decode("utf-8", "surrogateescape")
        script = ["/bin/sh", "-c", _WRITE, "sh", whole, "1" if executable else "0"]
        result = await self._exec(script, stdin=as_bytes(content), timeout_s=DOCKER_S)
        if result.exit_code in (41, 43):
            raise read_error(result.exit_code, b"", path, max_bytes=0)
        if not result.is_ok:
            raise OSError(EIO, complaint(result) or f"it ended with {result.exit_code}", str(path))

    async def _exec(
        self,
        argv: Sequence[str],
        *options: str,
        stdin: bytes = b"",
        timeout_s: float = DOCKER_S,
        output_bytes: int = 10_000,
    ) -> ExecResult:
        result = await self.engine.client.run(
            [self.engine.program, "exec", "--interactive", *options, self.name, *argv],
            stdin=stdin, timeout_s=timeout_s, output_bytes=output_bytes,
        )  # fmt: skip
        if not result.is_ok and (b"rror response from daemon" in result.stderr or b"ocker daemon" in result.stderr):
            await self.check_running()
        return result

    async def check_running(self) -> None:
        """See whether the container is there: a command can print whatever docker would.

        Raises:
            SandboxLostError: When it is not.
        """
        found = await self.engine.do("inspect", "--format", "{{.State.Running}}", self.name)
        if found.text.strip() != "true":
            said = " ".join(found.stderr.decode("utf-8", "replace").split()) or "it has ended"
            raise SandboxLostError(f"the sandbox is lost: container {self.name}: {said[-300:]}")
