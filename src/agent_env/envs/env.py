"""`Env`, the base class of a bundle's envs, and one open for an episode."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
from anyio import CapacityLimiter, to_thread

from agent_env._cancellation import stops_us
from agent_env._loop_local import LoopLocal
from agent_env.bundle import EnvCheck, EnvSpec, Task
from agent_env.bundle.raised import described, exceptions_in, message_of, raised_at, trace_of
from agent_env.envs.arguments import MisfitArgumentsError
from agent_env.envs.contract import EnvSession, Refusal, ToolAnswer, ToolSpec
from agent_env.envs.python_tools import PythonTool, toolbox_of
from agent_env.envs.refusals import no_such_tool, not_called, refused
from agent_env.envs.result_text import clean_text, result_text
from agent_env.errors import BundleError, EnvBrokenError, Problem, ToolError
from agent_env.universe import PrivateCopy, StateChanges, open_universe

__all__ = ["Env", "open_python_env"]

logger = logging.getLogger(__name__)

_CLOSE_S = 10.0
"""Seconds that an env's `close` may take before it is left."""
_THREADS = 64
"""Blocking tools that may run at once; their own threads, so that stuck ones do not hold up verifiers."""

_threads = LoopLocal("agent_env_tool_threads", partial(CapacityLimiter, _THREADS))


class Env:
    """A set of tools over a state. A bundle's env is a subclass; each episode has an instance of its own.

    `state`, `params` and `task_id` are there from `start` on, not yet in `__init__`.
    """

    state: Any
    """The episode's private copy of the universe: a JSON value, a `sqlite3.Connection`, a `Path`, or `{}`."""
    params: Mapping[str, Any]
    """The task's params, a copy of the episode's own."""
    task_id: str

    def start(self) -> Awaitable[None] | None:
        """Prepare for the first tool; may be `async def`. What it raises fails the episode."""

    def close(self) -> Awaitable[None] | None:
        """Give back what `start` took; may be `async def`. Also called when `start` has raised."""

    @classmethod
    def __agent_env_check__(cls) -> EnvCheck:
        """Return the tools and what is wrong with them: what validation asks of a class."""
        toolbox = toolbox_of(cls)

        def misfits(name: str, arguments: Mapping[str, Any]) -> Sequence[str]:
            try:
                toolbox.tools[name].convert(arguments)
            except MisfitArgumentsError as exc:
                return exc.lines
            return ()

        return EnvCheck(
            tools={
                name: (tool.function.__code__.co_filename, tool.function.__code__.co_firstlineno)
                for name, tool in toolbox.tools.items()
            },
            problems=(*toolbox.errors, *toolbox.remarks),
            misfits=misfits,
        )


@asynccontextmanager
async def open_python_env(spec: EnvSpec, *, task: Task) -> AsyncGenerator[EnvSession]:
    """Open an env for one episode, in a private copy of its universe.

    Args:
        spec: One of the bundle's envs.
        task: The task that is played: its params reach the env.

    Yields:
        The open env. Call its tools one after another: they share one state.

    Raises:
        BundleError: When the class cannot be imported, is no `Env`, or has a tool that no model can be shown.
        UniverseError: When the universe cannot be copied.
        EnvBrokenError: When the env cannot start.
    """
    env_class = _load_class(spec)
    tools = toolbox_of(env_class).tools
    async with open_universe(spec.universe) as copy:
        with _breaking(f"env '{spec.name}' cannot be made"):
            env = env_class()
        env.state, env.params, env.task_id = copy.state, task.copy_params(), task.id
        try:
            with _breaking(f"env '{spec.name}' cannot start"):
                await _wait_for(env.start())
            yield _PythonSession(env, tools, copy, root=task.bundle.root)
        finally:
            await _close(env, spec.name)


def _load_class(spec: EnvSpec) -> type[Env]:
    assert spec.python is not None
    loaded = spec.python.load()
    path, line = spec.python.written_at
    if not (isinstance(loaded, type) and issubclass(loaded, Env)):
        what = f"{spec.python} is no env"
        raise BundleError([Problem(path=path, line=line, what=what, fix="make it a subclass of agent_env.Env")])
    errors = toolbox_of(loaded).errors
    if errors:
        raise BundleError([error.in_bundle(spec.python.root) for error in errors])
    return loaded


@contextmanager
def _breaking(what: str) -> Generator[None]:
    """Say of whatever a bundle's code raises here that the env is broken."""
    task = asyncio.current_task()
    try:
        yield
    except EnvBrokenError:
        raise
    except BaseException as exc:  # the bundle's own code
        if stops_us(exc, task):
            raise
        raise EnvBrokenError(f"{what}: {described(exc)}") from exc


async def _close(env: Env, name: str) -> None:
    task = asyncio.current_task()
    with anyio.move_on_after(_CLOSE_S, shield=True) as scope:
        try:
            await _wait_for(env.close())
        except BaseException as exc:  # raised here it would replace what the block is left with
            if stops_us(exc, task):
                raise
            logger.exception("env '%s': close raised", name)
    if scope.cancelled_caught:
        logger.error("env '%s': close took longer than %s s, left", name, _CLOSE_S)


async def _wait_for(value: object) -> object:
    return await cast("Awaitable[object]", value) if inspect.isawaitable(value) else value


class _PythonSession:
    """An open env whose tools are Python methods."""

    def __init__(self, env: Env, tools: Mapping[str, PythonTool], copy: PrivateCopy, *, root: Path) -> None:
        self._env = env
        self._root = root
        self._copy = copy
        self._tools = tools
        self._specs = tuple(tool.spec for tool in tools.values())

    @property
    def tools(self) -> Sequence[ToolSpec]:
        return self._specs

    @property
    def state(self) -> Any:
        return self._env.state

    async def changes(self) -> StateChanges:
        return await self._copy.changes(self._env.state)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        tool = self._tools.get(name)
        if tool is None:
            return no_such_tool(name, self._tools)
        try:
            converted = tool.convert(arguments)
        except MisfitArgumentsError as exc:
            return not_called(name, str(exc))
        timeout_s = tool.options.timeout_s
        if timeout_s is None:
            return await self._answer(tool, converted)
        with anyio.move_on_after(timeout_s):
            return await self._answer(tool, converted)
        return refused(Refusal.TIMED_OUT, f"{name} was stopped: it took longer than {timeout_s:g} s")

    async def _answer(self, tool: PythonTool, arguments: Mapping[str, Any]) -> ToolAnswer:
        task = asyncio.current_task()
        try:
            if tool.options.blocking:
                call = partial(_call_in_thread, tool, self._env, arguments)
                try:
                    ended = await to_thread.run_sync(call, abandon_on_cancel=True, limiter=_threads.get())
                except asyncio.CancelledError:
                    self._copy.interrupt()  # its thread is left: a query that it is inside of must not keep the state
                    raise
                if ended.raised is not None:
                    return self._raised(ended.raised)
                result = ended.value
            else:
                result = tool.function(self._env, **arguments)
            result = await _wait_for(result)
            answer = result if isinstance(result, ToolAnswer) else ToolAnswer(result_text(result))
        except BaseException as exc:  # a tool is the bundle's own code
            if stops_us(exc, task):
                raise
            return self._raised(exc)
        ends_turn = (answer.ends_turn or tool.spec.ends_turn) and not answer.is_error
        text = clean_text(answer.text)
        if text is answer.text and ends_turn == answer.ends_turn:
            return answer
        return replace(answer, text=text, ends_turn=ends_turn)

    def _raised(self, exc: BaseException) -> ToolAnswer:
        """Answer what a tool has raised.

        Raises:
            EnvBrokenError: When it says that the env is broken; and when it is made to pass every handler, and is nothing
                that Python itself raises so: whoever raised that wants more to end than a call.
        """
        broken = _broken_in(exc)
        if broken is exc:
            raise exc
        if broken is not None:
            raise broken from exc
        if isinstance(exc, ToolError):
            return refused(Refusal.REFUSED, message_of(exc))
        if not (isinstance(exc, KeyboardInterrupt) or _is_slip(exc)):
            raise EnvBrokenError(described(exc)) from exc
        return ToolAnswer(
            clean_text(described(exc)),
            is_error=True,
            refusal=Refusal.RAISED,
            traceback=trace_of(exc),
            raised_at=raised_at(exc, self._root),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """How a tool ended in its thread: a value, because not every exception passes from a thread to a coroutine as it is."""

    value: object = None
    raised: BaseException | None = None


def _call_in_thread(tool: PythonTool, env: Env, arguments: Mapping[str, Any]) -> _Ended:
    try:
        return _Ended(value=tool.function(env, **arguments))
    except BaseException as exc:  # noqa: BLE001 - the bundle's code; what comes of it is said where it was called
        return _Ended(raised=exc)


def _is_slip(exc: BaseException) -> bool:
    """Whether an exception of a tool's own is a mistake in it, of which the model is told."""
    grouped = exceptions_in(exc)
    if grouped:
        return all(map(_is_slip, grouped))
    return isinstance(exc, Exception | SystemExit | GeneratorExit | asyncio.CancelledError)


def _broken_in(exc: BaseException) -> EnvBrokenError | None:
    """Return what says that the env is broken: an exception itself, or one in a group of them."""
    if isinstance(exc, EnvBrokenError):
        return exc
    return next(filter(None, map(_broken_in, exceptions_in(exc))), None)
