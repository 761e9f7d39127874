"""Starting the first process of a sandbox, and ending it with all that came of it."""

from __future__ import annotations

import asyncio
import logging
import marshal
import os
import socket
import subprocess
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.abc import InspectLoader
from importlib.resources import files
from importlib.util import MAGIC_NUMBER, find_spec
from pathlib import Path
from types import CodeType

from anyio import Semaphore
from anyio.lowlevel import RunVar

from agent_env._cleanup import wait_until_done
from agent_env.errors import SandboxLostError, SandboxUnavailableError
from agent_env.sandbox._blocking import in_thread
from agent_env.sandbox._channel import Channel
from agent_env.sandbox._inside import MODULES
from agent_env.sandbox._inside.processes import descendants, kill, running

__all__ = ["COMPILE", "PYTHON_OPTIONS", "Launch", "open_channels", "sources", "turn_to_start"]

logger = logging.getLogger(__name__)

PYTHON_OPTIONS = ("-I", "-S", "-B", "-c")
"""A bare Python: nothing but its own library, and none of its start-up but what it cannot do without."""

COMPILE = (
    "import marshal,sys\nmagic,_,modules=marshal.loads(sys.stdin.buffer.read())\n"
    "from _frozen_importlib_external import MAGIC_NUMBER\nif magic!=MAGIC_NUMBER:\n"
    " sys.stdout.buffer.write(marshal.dumps([(n,compile(s,n,'exec',0,1,2))for n,s in modules]))"
)
"""A program that makes what is in `sources()` into what its own Python can run, unless that is what this one can run too."""

_BOOT = (
    "import marshal,sys\nfrom _frozen_importlib_external import MAGIC_NUMBER\n"
    "magic,code,modules=marshal.load(open(int(sys.argv[1]),'rb',closefd=False))\nmade=b''\n"
    "if magic and magic!=MAGIC_NUMBER:\n"
    " if not modules:sys.exit('its Python is of another version')\n"
    " code=made=marshal.dumps([(n,compile(s,n,'exec',0,1,2))for n,s in modules])\n"
    "for n,c in marshal.loads(code):\n m=sys.modules[n]=type(sys)(n)\n exec(c,m.__dict__)\n"
    "m.main(made,*sys.argv[1:])"
)
"""Takes the code from the channel, with nothing behind it, makes it first when its Python cannot run what there is, and runs it."""

_INSIDE = "agent_env.sandbox._inside"

_START_S = 30.0
"""Seconds that a sandbox may take to answer for the first time; it takes a fiftieth of one."""
_STARTING_AT_ONCE = 2 * (os.cpu_count() or 1)
"""More of them at once take longer each, and none is ready sooner."""
_KILLED_S = 5.0

_starting: RunVar[Semaphore] = RunVar("agent_env_sandboxes_starting")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a sandbox's first process is started."""

    command: Callable[[], AbstractContextManager[tuple[Sequence[str], Sequence[int]]]]
    """The command that runs a Python, up to that one's own arguments, and the file descriptors that it needs; open for as
    long as the block, in which it is started."""
    configuration: Sequence[Mapping[bytes, bytes]]
    """For the method `configure`: of each channel."""
    code: bytes | None = None
    """What that Python can run; None where it can run what this one can, or is to make it."""
    makes_code: bool = False
    """Whether that Python may be of another version: then it gets the sources too, and its channel says what it has made."""
    arguments: Sequence[str] = ()
    """For the first process's `main`, after the channels."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    ends_within_s: float = 5.0
    """Seconds from the end of its channel until it is killed."""


def sources() -> bytes:
    """The modules that run inside, as every version of Python can read them, and what tells the version of this one."""
    return _message(MAGIC_NUMBER, b"", _sources())


def _message(magic: bytes, code: bytes, modules: Sequence[tuple[str, str]]) -> bytes:
    return marshal.dumps((magic, code, list(modules)), 2)


@cache
def _sources() -> Sequence[tuple[str, str]]:
    folder = files("agent_env.sandbox") / "_inside"
    return [(f"{_INSIDE}.{name}", (folder / f"{name}.py").read_text("utf-8")) for name in MODULES]


@cache
def _code_for_this_python() -> bytes:
    """The modules that run inside, compiled for the Python that runs this: what it keeps of them on the disk, where it can."""
    modules: list[tuple[str, CodeType]] = []
    for name in MODULES:
        spec = find_spec(f"{_INSIDE}.{name}")
        assert spec is not None
        assert isinstance(spec.loader, InspectLoader)
        code = spec.loader.get_code(spec.name)
        assert code is not None
        modules.append((spec.name, code))
    return marshal.dumps(modules)


def _for_this_python(makes_code: bool) -> bytes:  # noqa: FBT001 - for a thread
    return _message(MAGIC_NUMBER, _code_for_this_python(), _sources() if makes_code else ())


async def _code(launch: Launch) -> bytes:
    """What the boot reads."""
    if launch.code is not None:
        return _message(b"", launch.code, ())
    if _code_for_this_python.cache_info().currsize and not launch.makes_code:
        return _for_this_python(makes_code=False)
    return await in_thread(partial(_for_this_python, launch.makes_code), what="reading what runs in a sandbox")


class Turn:
    """The turn of one sandbox to be started."""

    def __init__(self, slots: Semaphore) -> None:
        self._slots = slots
        self._is_over = False

    def over(self) -> None:
        """Let the next one have it: this one has started, or never will. May be said twice."""
        if not self._is_over:
            self._is_over = True
            self._slots.release()


@asynccontextmanager
async def turn_to_start() -> AsyncGenerator[Turn]:
    """Wait for a sandbox's turn to be started, before anything is done for it: all of that takes the loop's time."""
    try:
        slots = _starting.get()
    except LookupError:
        slots = Semaphore(_STARTING_AT_ONCE)
        _starting.set(slots)
    await slots.acquire()
    turn = Turn(slots)
    try:
        yield turn
    finally:
        turn.over()


@asynccontextmanager
async def open_channels(launch: Launch, folder: Path, turn: Turn) -> AsyncGenerator[Sequence[Channel]]:
    """Run a sandbox's first process for the length of the block.

    Args:
        launch: How.
        folder: Of this sandbox; what the process says is in it.
        turn: Is over once the process is ready.

    Yields:
        The channels to it, as many as there are configurations. It is ready.

    Raises:
        SandboxUnavailableError: When it cannot be started.
    """
    said = folder / "said"
    process: subprocess.Popen[bytes] | None = None
    channels: list[Channel] = []
    ours: list[socket.socket] = []
    try:
        with ExitStack() as closing:
            theirs: list[socket.socket] = []
            for _ in launch.configuration:
                one, other = _socket_pair()
                ours.append(one)
                theirs.append(closing.enter_context(other))
            process = _start(launch, theirs, said)
        loop = asyncio.get_running_loop()
        for one in ours:
            _, channel = await loop.create_unix_connection(Channel, sock=one)
            channel.why_lost = _Why(process, said)
            channels.append(channel)
        channels[0].send_raw(await _code(launch))
        await _until_ready(channels[0])
        for channel, configuration in zip(channels, launch.configuration, strict=True):
            channel.post(b"configure", *(part for pair in configuration.items() for part in pair))
        turn.over()
        yield channels
    finally:
        ending = asyncio.create_task(_end(process, channels, ours, launch.ends_within_s), name=f"end {folder}")
        grace_s = launch.ends_within_s + 2 * _KILLED_S
        await wait_until_done(ending, grace_s=grace_s, what=f"ending the sandbox in {folder}")


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    try:
        ours, theirs = socket.socketpair()
    except OSError as exc:
        raise SandboxUnavailableError(f"no socket for a sandbox: {exc.strerror}: raise `ulimit -n`") from exc
    ours.setblocking(False)  # noqa: FBT003 - it has no name
    return ours, theirs


def _start(launch: Launch, theirs: Sequence[socket.socket], said: Path) -> subprocess.Popen[bytes]:
    """Start the process. At once and in this thread: the kernel ends a sandbox with the thread that has started it."""
    fds = [one.fileno() for one in theirs]
    try:
        with said.open("wb") as output, launch.command() as (argv, inherited):
            return subprocess.Popen(
                [*argv, *PYTHON_OPTIONS, _BOOT, *(str(fd) for fd in fds), *launch.arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=launch.environment,
                cwd="/",
                start_new_session=True,
                pass_fds=(*fds, *inherited),
            )
    except OSError as exc:
        raise SandboxUnavailableError(f"a sandbox cannot be started: {exc}") from exc


async def _until_ready(channel: Channel) -> None:
    clock = asyncio.timeout(_START_S)
    try:
        async with clock:
            await channel.is_ready
    except TimeoutError:
        if not clock.expired():
            raise
        raise SandboxUnavailableError(f"a sandbox has not started within {_START_S:g} s") from None
    except SandboxLostError as exc:
        raise SandboxUnavailableError(str(exc).replace("is lost", "cannot be started")) from exc


class _Why:
    """What is known of a process that is gone: what it said last, or how it ended."""

    def __init__(self, process: subprocess.Popen[bytes], said: Path) -> None:
        self._process = process
        self._said = said

    def __call__(self) -> str:
        try:
            lines = self._said.read_bytes()[-2000:].decode("utf-8", "replace").strip().splitlines()
        except OSError:
            lines = []
        if lines:
            return lines[-1]
        until = time.monotonic() + 0.02
        while self._process.poll() is None and time.monotonic() < until:
            time.sleep(0.001)  # its socket is closed a moment before it can be waited for
        status = self._process.returncode
        if status is None:
            return "its first process has closed its channel"
        return f"its first process was killed by signal {-status}" if status < 0 else f"it ended with {status}"


async def _end(
    process: subprocess.Popen[bytes] | None, channels: Sequence[Channel], ours: Sequence[socket.socket], within_s: float
) -> None:
    for channel in channels:
        channel.end()
    for one in ours[len(channels) :]:
        one.close()
    if process is not None and not await _has_ended(process, within_s):
        logger.warning("a sandbox (process %s) does not end by itself: it is killed", process.pid)
        # A sandbox's own first process goes by itself when the one that we know is killed, but not at once.
        every = {process.pid, *descendants(process.pid, running())}
        for pid in every:
            kill(pid)
        if not await _has_ended(process, _KILLED_S):
            logger.error("a sandbox (process %s) cannot be killed", process.pid)
    for channel in channels:
        channel.close()


async def _has_ended(process: subprocess.Popen[bytes], within_s: float) -> bool:
    until = time.monotonic() + within_s
    wait_s = 0.001
    while process.poll() is None:
        if time.monotonic() > until:
            return False
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, 0.02)
    return True
