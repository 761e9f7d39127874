"""The state that a state verifier wants: made once by an env's own tools, and kept for every episode that asks.

Covers what gold calls, other calls or none leave, and a declared end state. Kept are so many bytes of them in a process; an
event loop makes each only once, however many episodes ask at the same time, and goes on with it as long as one of them
still waits.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path

from anyio import Semaphore, to_thread

from agent_env._cancellation import stops_us
from agent_env._cleanup import wait_until_done
from agent_env._loop_local import LoopLocal
from agent_env.bundle import GoldCall, StateVerifier, Task, UniverseKind, UniverseSpec
from agent_env.envs import EnvSession, open_env
from agent_env.episode._calling import call_env, failed
from agent_env.errors import UniverseError
from agent_env.outcome import FailureKind
from agent_env.universe import StateChanges, open_universe
from agent_env.universe.reading import file_version
from agent_env.universe.threads import in_thread
from agent_env.verify.own_time import within_own_time
from agent_env.verify.state import WantedState
from agent_env.verify.step_failed import StepFailedError

__all__ = ["KeptStates", "wanted_state"]

_KEPT_BYTES = 256 * 2**20
"""Bytes of wanted states that a process keeps, about: each is what the calls change."""
_AT_ONCE = 8
"""Wanted states that a loop makes at once: each opens an env of its own."""
_GRACE_S = 30.0
"""Seconds that one has to close its env when nobody waits for it any more."""


async def wanted_state(task: Task, verifier: StateVerifier, *, timeout_s: float | None) -> WantedState:
    """Return the state that a verifier compares with.

    A call that its tool refuses is part of what makes the state: it leaves what it leaves.

    Args:
        task: The task that is played.
        verifier: One of its verifiers.
        timeout_s: Seconds that making the state may take, when nobody has made it yet; waiting for others does not count.

    Raises:
        StepFailedError: When the env cannot be opened or breaks, the universe cannot be read, or it takes too long.
    """
    declared = verifier.wanted
    if isinstance(declared, UniverseSpec) and declared.kind is not UniverseKind.DIRECTORY:
        return WantedState(spec=declared)
    key = await _key(task, verifier)
    kept = _kept.get(key)
    if kept is not None:
        return kept
    flights = _flights.get()
    flight = flights.get(key)
    if flight is None:
        name = f"make the state that task {task.id} wants"
        making = asyncio.create_task(_made(key, task, verifier, timeout_s), name=name)
        flight = flights[key] = _Flight(making, partial(flights.pop, key, None))
        making.add_done_callback(flight.forget)
    made = await flight.landed()
    if isinstance(made, StepFailedError):
        raise StepFailedError(made.kind, made.message, made.trace)  # each episode has one of its own
    return made


@dataclass(slots=True)
class _Flight:
    """A state that is being made, and how many wait for it."""

    making: asyncio.Task[WantedState | StepFailedError]
    take_down: Callable[[], object]
    """Takes it from where the next one to ask would find it."""
    waiting: int = 0
    is_forgotten: bool = False

    def forget(self, _: object = None) -> None:
        if not self.is_forgotten:
            self.is_forgotten = True
            self.take_down()

    async def landed(self) -> WantedState | StepFailedError:
        """Wait for it; whoever is cancelled last cancels it."""
        self.waiting += 1
        try:
            await asyncio.wait([self.making])
        finally:
            self.waiting -= 1
            if self.waiting == 0 and not self.making.done():
                self.forget()
                self.making.cancel()
                await wait_until_done(self.making, grace_s=_GRACE_S, what=self.making.get_name())
        return self.making.result()


_flights = LoopLocal("agent_env_wanted_states", dict[bytes, _Flight])
_places = LoopLocal("agent_env_wanted_state_places", partial(Semaphore, _AT_ONCE))


async def _made(
    key: bytes, task: Task, verifier: StateVerifier, timeout_s: float | None
) -> WantedState | StepFailedError:
    """Make a state and keep it. What went wrong is returned: an exception would carry every waiter's traceback."""
    us = asyncio.current_task()

    def too_long() -> StepFailedError:
        message = f"making the state that it is compared with took longer than {timeout_s or 0:g} s"
        return StepFailedError(FailureKind.VERIFIER_TIMEOUT, message)

    try:
        async with _places.get(), within_own_time(timeout_s, too_long):
            made = await _make(task, verifier)
    except StepFailedError as exc:
        return exc
    except UniverseError as exc:
        return failed(FailureKind.UNIVERSE, exc, what=_WHAT)
    except BaseException as exc:  # an env is the bundle's own code
        if stops_us(exc, us):
            raise
        return failed(FailureKind.ENV_START, exc, what=_WHAT)
    _kept.put(key, made)
    return made


_WHAT = "making the state that it is compared with: "


async def _make(task: Task, verifier: StateVerifier) -> WantedState:
    spec = task.bundle.envs[verifier.env]
    if isinstance(verifier.wanted, UniverseSpec):
        changes = await _to_become(verifier.wanted.path, spec.universe)
    else:
        async with open_env(spec, task=task) as session:
            await _do_calls(session, _calls(task, verifier))
            changes = await session.changes()
    if changes is None:
        raise UniverseError(f"env '{verifier.env}' has no universe of its own to compare")
    if changes.left_out:
        raise UniverseError(f"more is changed in env '{verifier.env}' than can be kept to compare with")
    return WantedState(spec=spec.universe, changes=changes)


async def _to_become(wanted: Path, spec: UniverseSpec | None) -> StateChanges:
    """Return what is to be changed in a directory to make another one of it: copies of one directory are compared."""
    async with open_universe(spec) as copy:
        await in_thread(lambda _: _replace(copy.state, wanted), what=f"copying {wanted}")
        return await copy.changes()


def _replace(folder: Path, wanted: Path) -> None:
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    shutil.copytree(wanted, folder, symlinks=True, dirs_exist_ok=True)


def _calls(task: Task, verifier: StateVerifier) -> tuple[GoldCall, ...]:
    if verifier.wanted == "start":
        return ()
    if verifier.wanted == "gold":
        if task.gold is None:
            message = f"the state is compared with what gold leaves, and task '{task.id}' has no gold: add gold: to it"
            raise StepFailedError(FailureKind.VERIFIER_RAISED, message)
        return tuple(call for turn in task.gold for call in turn.calls)
    assert isinstance(verifier.wanted, tuple)
    return verifier.wanted


async def _do_calls(session: EnvSession, calls: Iterable[GoldCall]) -> None:
    tools = {tool.name for tool in session.tools}
    for call in calls:
        if call.tool in tools:  # else it is another env's
            try:
                await call_env(session, call.tool, call.arguments)
            except StepFailedError as exc:
                raise StepFailedError(exc.kind, f"{_WHAT}{exc.message}", exc.trace) from exc


async def _key(task: Task, verifier: StateVerifier) -> bytes:
    """Return what differs where the state may differ."""
    declared = verifier.wanted if isinstance(verifier.wanted, UniverseSpec) else None
    said = repr(declared or _calls(task, verifier))
    universe = task.bundle.envs[verifier.env].universe
    parts = [str(task.bundle.root), task.id, verifier.env, said, repr(dict(task.params)), repr(universe)]
    for spec in filter(None, (universe, declared)):
        if spec.kind is UniverseKind.DIRECTORY:
            parts += await to_thread.run_sync(_folder_version, spec.path)
        else:
            parts.append(repr(file_version(spec.path)))
    return blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _folder_version(path: Path) -> list[str]:
    found: list[str] = []
    for entry in sorted(path.rglob("*")):
        try:
            stat = entry.lstat()
        except OSError:
            continue
        found.append(f"{entry} {stat.st_mtime_ns} {stat.st_size} {stat.st_ino} {stat.st_mode}")
    return found


class KeptStates:
    """The states that were asked for last, up to so many bytes. Used by every thread of the process."""

    __slots__ = ("_kept_bytes", "_lock", "_most_bytes", "_states")

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._states: OrderedDict[bytes, tuple[WantedState, int]] = OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def get(self, key: bytes) -> WantedState | None:
        """Return a state that is kept."""
        with self._lock:
            found = self._states.get(key)
            if found is None:
                return None
            self._states.move_to_end(key)
            return found[0]

    def put(self, key: bytes, state: WantedState) -> None:
        """Keep a state, and drop what nobody has asked for longest; the last one stays."""
        size = 500 + len(json.dumps(state.changes.as_json()))
        with self._lock:
            _, before = self._states.pop(key, (None, 0))
            self._states[key] = (state, size)
            self._kept_bytes += size - before
            while self._kept_bytes > self._most_bytes and len(self._states) > 1:
                _, (_, dropped) = self._states.popitem(last=False)
                self._kept_bytes -= dropped


_kept = KeptStates(_KEPT_BYTES)
