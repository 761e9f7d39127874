"""Running a bundle's own function over an episode: verifiers, `run` steps, prompts, scripted agents.

A plain function runs in a thread, so that it never stalls the event loop; an `async def` one is awaited. The clock of
its timeout starts when the function does: neither the import of its file, nor waiting for a thread, nor an event loop
that others hold up counts.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard

from anyio import CapacityLimiter, Semaphore, to_thread

from agent_env._cancellation import stops_us
from agent_env._loop_local import LoopLocal
from agent_env.bundle import PythonRef
from agent_env.bundle.raised import trace_of
from agent_env.errors import BundleError, EnvBrokenError
from agent_env.outcome import FailureKind
from agent_env.verify.own_time import within_own_time
from agent_env.verify.step_failed import StepFailedError, broken_kind, exception_line

__all__ = ["call_function"]

_QUICK = 4
"""Plain functions that begin at once. They share the interpreter with the event loop, which waits up to 5 ms for each."""
_QUICK_S = 1.0
"""A function that has run for so long most likely waits for something, and gives its place to the next one."""
_SLOW = 60
"""Functions that may run on after that."""

_unlimited = LoopLocal("agent_env_function_threads", partial(CapacityLimiter, math.inf))
_loaded: dict[PythonRef, Callable[[Any], object]] = {}


async def call_function(
    target: PythonRef, argument: object, *, timeout_s: float | None, raised: FailureKind, timed_out: FailureKind
) -> object:
    """Call a function of a bundle with an episode, and return what it returns.

    When this is cancelled, or the time is up, nobody waits for a thread: it goes on until the function returns, and
    what that is goes nowhere.

    Args:
        target: The function, plain or `async def`.
        argument: What it is called with: the episode so far, or a scripted agent's turn.
        timeout_s: Seconds that it may take; None is no bound.
        raised: The kind of failure when it raises.
        timed_out: The kind of failure when it takes too long.

    Raises:
        StepFailedError: When the function cannot be loaded, raises, or takes too long.
    """
    function = await _load(target, raised)

    def too_long() -> StepFailedError:
        return StepFailedError(timed_out, f"{target} took longer than {timeout_s or 0:g} s")

    if _is_async(function):
        async with within_own_time(timeout_s, too_long):
            ended = await _awaited(function, argument)
    else:
        async with _places.get().one(), within_own_time(timeout_s, too_long):
            ended = await _in_thread(partial(function, argument))
    exc = ended.raised
    if exc is None:
        return ended.value
    kind = broken_kind(exc) if isinstance(exc, EnvBrokenError) else raised
    raise StepFailedError(kind, f"{target} raised {exception_line(exc)}", trace_of(exc)) from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """How a function ended: a value, so that what it raises cannot be taken for what the loop raises."""

    value: object = None
    raised: BaseException | None = None


class _Places:
    """Who may run in a thread now. A function that takes long does not hold up others for as long."""

    __slots__ = ("_quick", "_slow")

    def __init__(self) -> None:
        self._quick = Semaphore(_QUICK)
        self._slow = 0

    @asynccontextmanager
    async def one(self) -> AsyncGenerator[None]:
        await self._quick.acquire()
        loop = asyncio.get_running_loop()
        is_slow = False

        def give_up() -> None:
            nonlocal is_slow, later
            if self._slow < _SLOW:
                is_slow = True
                self._slow += 1
                self._quick.release()
            else:
                later = loop.call_later(_QUICK_S, give_up)

        later = loop.call_later(_QUICK_S, give_up)
        try:
            yield
        finally:
            later.cancel()
            if is_slow:
                self._slow -= 1
            else:
                self._quick.release()


_places = LoopLocal("agent_env_function_places", _Places)


def _is_async(function: Callable[[Any], object]) -> TypeGuard[Callable[[Any], Awaitable[object]]]:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def _load(target: PythonRef, raised: FailureKind) -> Callable[[Any], object]:
    function = _loaded.get(target)
    if function is not None:
        return function
    ended = await _in_thread(target.load)
    if isinstance(ended.raised, BundleError):
        raise StepFailedError(raised, str(ended.raised), trace_of(ended.raised)) from ended.raised
    if ended.raised is not None:
        raise ended.raised
    if not callable(ended.value):
        raise StepFailedError(raised, f"{target} is no function: make it one that takes the episode")
    return _loaded.setdefault(target, ended.value)


async def _in_thread(function: Callable[[], object]) -> _Ended:
    def run() -> _Ended:
        try:
            return _Ended(value=function())
        except BaseException as exc:  # noqa: BLE001 - a bundle's own code; SystemExit would end the process
            return _Ended(raised=exc)

    return await to_thread.run_sync(run, abandon_on_cancel=True, limiter=_unlimited.get())


async def _awaited(function: Callable[[Any], Awaitable[object]], argument: object) -> _Ended:
    task = asyncio.current_task()
    try:
        return _Ended(value=await function(argument))
    except BaseException as exc:  # a bundle's own code; SystemExit would end the process
        if stops_us(exc, task):
            raise
        return _Ended(raised=exc)
