"""Running a bundle's own function over an episode: verifiers and `run` steps.

A plain function runs in a thread, so that it never stalls the event loop; an `async def` one is awaited. The clock of
its timeout starts when the function does: neither the import of its file nor waiting for a thread counts.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeGuard, TypeVar

from anyio import CapacityLimiter, Semaphore, to_thread
from anyio.lowlevel import RunVar

from agent_env.bundle import PythonRef
from agent_env.errors import BundleError, EnvBrokenError
from agent_env.outcome import FailureKind
from agent_env.verify.view import EpisodeView

__all__ = ["StepFailedError", "call_function", "one_line", "trace_of"]

T = TypeVar("T")

_THREADS = 4
"""Functions that run at once. They share the interpreter with the event loop, which waits up to 5 ms for each."""
_MESSAGE_CHARS = 500
_TRACE_CHARS = 20_000

_slots: RunVar[Semaphore] = RunVar("agent_env_function_slots")
_unlimited: RunVar[CapacityLimiter] = RunVar("agent_env_function_threads")
_loaded: dict[PythonRef, Callable[[EpisodeView], object]] = {}


class StepFailedError(Exception):
    """A step of an episode broke. Never leaves the library: the episode makes a `Failure` of it."""

    def __init__(self, kind: FailureKind, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.trace = trace


async def call_function(
    target: PythonRef, view: EpisodeView, *, timeout_s: float | None, raised: FailureKind, timed_out: FailureKind
) -> object:
    """Call a function of a bundle with an episode, and return what it returns.

    When this is cancelled, or the time is up, nobody waits for a thread: it goes on until the function returns, and
    what that is goes nowhere.

    Args:
        target: The function, plain or `async def`.
        view: Its argument.
        timeout_s: Seconds that it may take; None is no bound.
        raised: The kind of failure when it raises.
        timed_out: The kind of failure when it takes too long.

    Raises:
        StepFailedError: When the function cannot be loaded, raises, or takes too long.
    """
    async with _of_this_loop(_slots, partial(Semaphore, _THREADS)):
        function = await _load(target, raised)
        clock = asyncio.timeout(timeout_s)
        try:
            async with clock:
                ended = await (_awaited(function(view)) if _is_async(function) else _in_thread(partial(function, view)))
        except TimeoutError:
            if not clock.expired():
                raise
            raise StepFailedError(timed_out, f"{target} took longer than {timeout_s:g} s") from None
    exc = ended.raised
    if exc is None:
        return ended.value
    kind = FailureKind.ENV_BROKEN if isinstance(exc, EnvBrokenError) else raised
    raise StepFailedError(kind, f"{target} raised {one_line(exc)}", trace_of(exc)) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """How a function ended: a value, so that what it raises cannot be taken for what the loop raises."""

    value: object = None
    raised: BaseException | None = None


def _is_async(function: Callable[[EpisodeView], object]) -> TypeGuard[Callable[[EpisodeView], Awaitable[object]]]:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


async def _load(target: PythonRef, raised: FailureKind) -> Callable[[EpisodeView], object]:
    function = _loaded.get(target)
    if function is not None:
        return function
    ended = await _in_thread(target.load)
    if isinstance(ended.raised, BundleError):
        raise StepFailedError(raised, str(ended.raised), trace_of(ended.raised))
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

    limiter = _of_this_loop(_unlimited, partial(CapacityLimiter, math.inf))
    return await to_thread.run_sync(run, abandon_on_cancel=True, limiter=limiter)


async def _awaited(value: Awaitable[object]) -> _Ended:
    try:
        return _Ended(value=await value)
    except asyncio.CancelledError as exc:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return _Ended(raised=exc)  # the function's own: nobody has cancelled us
    except KeyboardInterrupt:
        raise
    except BaseException as exc:  # noqa: BLE001 - a bundle's own code; SystemExit would end the process
        return _Ended(raised=exc)


def _of_this_loop(var: RunVar[T], make: Callable[[], T]) -> T:
    try:
        return var.get()
    except LookupError:
        made = make()
        var.set(made)
        return made


def one_line(exc: BaseException) -> str:
    """Say an exception in one line: its type and what it says."""
    try:
        said = " ".join(str(exc).split())
    except Exception:  # noqa: BLE001 - a bundle's own __str__
        said = ""
    text = f"{type(exc).__name__}: {said}" if said else type(exc).__name__
    return text if len(text) <= _MESSAGE_CHARS else f"{text[: _MESSAGE_CHARS - 1]}…"


def trace_of(exc: BaseException) -> str:
    """Return the traceback as text, its end when it is long."""
    try:
        text = "".join(traceback.format_exception(exc))
    except Exception:  # noqa: BLE001 - a bundle's own exception may not print
        return f"{type(exc).__name__} (its traceback cannot be printed)"
    return text[-_TRACE_CHARS:]
