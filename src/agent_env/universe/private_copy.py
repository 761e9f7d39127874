"""Opening a private copy of a universe, and telling what an episode has changed in it.

What is read is read once per process and version of the file. A copy of JSON shares with all others what it has not touched,
and one of a database the pages that it has not written to: either takes a fraction of a millisecond, whatever the size
(`bench/universes.py`). A directory costs what its file system takes to make as many files.
"""

from __future__ import annotations

import itertools
import logging
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from agent_env.bundle import UniverseKind, UniverseSpec
from agent_env.bundle.raised import message_of
from agent_env.errors import UniverseError
from agent_env.universe.change import MISSING, ChangeLimits, StateChanges
from agent_env.universe.connection import PrivateConnection
from agent_env.universe.containers import Flat, Large
from agent_env.universe.database import DatabaseImage, PrivateDatabase, read_database
from agent_env.universe.database_diff import DatabaseState, database_differences
from agent_env.universe.diff import Lists, Rules, bounded, find_differences
from agent_env.universe.directory import Copied, copy_tree, held_folder
from agent_env.universe.directory_diff import DirectoryState, directory_differences, told_whether_kept
from agent_env.universe.frozen import FrozenJson, freeze, read_json
from agent_env.universe.reading import read_once
from agent_env.universe.threads import StoppedError, in_thread

__all__ = ["Comparison", "PrivateCopy", "compare", "compared", "fresh_database", "open_universe"]

logger = logging.getLogger(__name__)

_DEFAULT = ChangeLimits()
_END_S = 10.0
"""Seconds that a query which another thread is inside of has to end after it was interrupted."""
_LOOK_S = 0.002
_INLINE_STEPS = 500
"""Values that are compared on the event loop, a millisecond of it at most; more are in a thread."""
_INTERRUPT_S = 1.0
"""Seconds that another thread may be inside of a database that is to be compared, before its query is interrupted."""
_IN_USE_S = 5.0
"""Seconds after which it is said that it cannot be compared."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """How two states are compared."""

    rules: Rules
    limits: ChangeLimits
    check: Callable[[], None]
    """To call now and then: what it raises ends the comparison."""


class PrivateCopy(ABC):
    """One episode's copy of a universe."""

    spec: UniverseSpec | None
    """What it was made from; None is nothing, as an empty dict."""
    state: Any
    """The JSON value; or a `sqlite3.Connection` to a database of its own; or the `Path` of a directory of its own."""

    async def changes(self, state: Any = MISSING, *, limits: ChangeLimits = _DEFAULT) -> StateChanges:
        """Return what is different from the universe. The copy stays as it is.

        Args:
            state: What the env has as its state now, when it may be another object than `state`. Of a database or directory
                that an env has put something of its own around, the database or directory is compared.
            limits: How much is kept.

        Raises:
            UniverseError: When the state cannot be compared: it is no JSON any more, the database or directory cannot be
                read, or another thread is still inside of the database.
        """
        now = self.state if state is MISSING else state
        return await compared(lambda how: self.find(now, None, None, how), Rules.of(), limits)

    def interrupt(self) -> None:  # noqa: B027 - only a database has queries
        """End what another thread waits for in the state, where that can be ended: a query."""

    @abstractmethod
    def find(self, state: Any, other: Any, other_state: Any, how: Comparison) -> StateChanges:
        """Return where a state differs from another copy's, or from the universe when `other` is None."""


async def compare(
    wanted: PrivateCopy,
    left: PrivateCopy,
    *,
    wanted_state: Any = MISSING,
    left_state: Any = MISSING,
    ignore: Iterable[str] = (),
    unordered: Iterable[str] = (),
    lists: Lists = Lists.ITEMS,
    limits: ChangeLimits = _DEFAULT,
) -> StateChanges:
    """Return where two copies of the same universe differ. What neither has touched costs next to nothing.

    Args:
        wanted: A copy: what its state has is `before`.
        left: The other one: what its state has is `after`.
        wanted_state: As in `PrivateCopy.changes`.
        left_state: Likewise.
        ignore: As in `differences`.
        unordered: Likewise; of a database also tables, as `/orders`.
        lists: Likewise.
        limits: How much is kept.

    Raises:
        UniverseError: As `PrivateCopy.changes` does, and when one is a database, say, and the other one is not.
        ValueError: When a pointer is none.
    """
    if type(wanted) is not type(left):
        raise UniverseError("the states cannot be compared: one universe is of another kind than the other")
    before = wanted.state if wanted_state is MISSING else wanted_state
    after = left.state if left_state is MISSING else left_state
    rules = Rules.of(ignore, unordered, lists)
    return await compared(lambda how: left.find(after, wanted, before, how), rules, limits)


async def compared(find: Callable[[Comparison], StateChanges], rules: Rules, limits: ChangeLimits) -> StateChanges:
    """Find differences in a thread.

    Raises:
        UniverseError: When there is something that cannot be compared.
    """

    def work(check: Callable[[], None]) -> StateChanges:
        return _found(find, Comparison(rules, limits, check))

    return await in_thread(work, what="comparing the state of an episode")


def _found(find: Callable[[Comparison], StateChanges], how: Comparison) -> StateChanges:
    try:
        return find(how)
    except (UniverseError, StoppedError):
        raise
    except Exception as exc:  # SQLite's and the system's, and whatever an object of the env's own raises when looked at
        said = " ".join(message_of(exc).split()) or type(exc).__name__
        raise UniverseError(f"the state cannot be compared: {said}") from exc


class _JsonCopy(PrivateCopy):
    """A copy of a JSON value."""

    def __init__(self, spec: UniverseSpec | None, frozen: FrozenJson) -> None:
        self.spec = spec
        self.state = frozen.private()
        self._frozen = frozen

    async def changes(self, state: Any = MISSING, *, limits: ChangeLimits = _DEFAULT) -> StateChanges:
        """Return what is different from the universe: without a thread where little is to be looked at."""
        now = self.state if state is MISSING else state
        if not isinstance(self._frozen.root, Large | Flat):
            steps = itertools.count()

            def check() -> None:
                if next(steps) > _INLINE_STEPS:
                    raise StoppedError

            with suppress(StoppedError):
                return _found(lambda how: self.find(now, None, None, how), Comparison(Rules.of(), limits, check))
        return await super().changes(now, limits=limits)

    def find(self, state: Any, other: Any, other_state: Any, how: Comparison) -> StateChanges:
        before = self._frozen.root if other is None else other_state
        return bounded(find_differences(before, state, how.rules, check=how.check), how.limits)


class _DatabaseCopy(PrivateCopy):
    """A copy of a database."""

    def __init__(self, spec: UniverseSpec, private: PrivateDatabase) -> None:
        self.spec = spec
        self.state = private.connection
        self._private = private

    def interrupt(self) -> None:
        self._private.connection.interrupt_calls()

    def find(self, state: Any, other: Any, other_state: Any, how: Comparison) -> StateChanges:
        after = self._as_state(state, how)
        if isinstance(other, _DatabaseCopy):
            before = other._as_state(other_state, how)
            return bounded(database_differences(before, after, how.rules, check=how.check), how.limits)
        with fresh_database(self._private.image) as before:
            return bounded(database_differences(before, after, how.rules, check=how.check), how.limits)

    def _as_state(self, state: Any, how: Comparison) -> DatabaseState:
        own = self._private.connection
        if isinstance(state, sqlite3.Connection) and state is not own:
            return DatabaseState(connection=state)
        _wait_for_others(own, how.check)
        return DatabaseState(connection=own, private=self._private)


class _DirectoryCopy(PrivateCopy):
    """A copy of a directory."""

    def __init__(self, spec: UniverseSpec, path: Path, copied: Mapping[str, Copied]) -> None:
        self.spec = spec
        self.state = path
        self._here = DirectoryState(path=path, copied=copied, original=spec.path)

    def find(self, state: Any, other: Any, other_state: Any, how: Comparison) -> StateChanges:
        before = other._here if isinstance(other, _DirectoryCopy) else None
        found = directory_differences(before, self._here, how.rules, limits=how.limits, check=how.check)
        return told_whether_kept(found, how.limits)


@contextmanager
def fresh_database(image: DatabaseImage) -> Generator[DatabaseState]:
    """Give a database as its image has it."""
    private = image.private()
    try:
        yield DatabaseState(connection=private.connection, private=private, is_original=True)
    finally:
        private.connection.end()
        private.release()


def _wait_for_others(connection: PrivateConnection, check: Callable[[], None]) -> None:
    """Wait until no other thread is inside of a database: a tool that was stopped for its time may go on in its thread."""
    began = time.monotonic()
    while connection.calls:
        check()
        waited_s = time.monotonic() - began
        if connection.is_stuck or waited_s > _IN_USE_S:
            connection.is_stuck = True  # the next one to ask does not wait once more
            raise UniverseError("the state cannot be compared: a thread is still inside of the database")
        if waited_s > _INTERRUPT_S:
            connection.interrupt_calls()
        time.sleep(_LOOK_S)


@asynccontextmanager
async def open_universe(spec: UniverseSpec | None) -> AsyncGenerator[PrivateCopy]:
    """Make a private copy of a universe, and give it back when the block ends.

    A database is closed then, and a directory removed. A query that another thread is inside of is interrupted first.

    Args:
        spec: The universe; None is an empty one.

    Yields:
        The copy; what an env has as its state is `copy.state`.

    Raises:
        UniverseError: When the universe cannot be read or copied.
    """
    if spec is None:
        yield _JsonCopy(None, _EMPTY)
    elif spec.kind is UniverseKind.JSON:
        yield _JsonCopy(spec, await read_once(spec.path, read_json))
    elif spec.kind is UniverseKind.SQLITE:
        async with _private_database(spec, await read_once(spec.path, read_database)) as private:
            yield _DatabaseCopy(spec, private)
    else:
        async with held_folder(partial(_copied, spec.path), source=spec.path) as (folder, copied):
            yield _DirectoryCopy(spec, folder / spec.path.name, copied)


_EMPTY = freeze({})


def _copied(source: Path, folder: Path, check: Callable[[], None]) -> Mapping[str, Copied]:
    return copy_tree(source, folder / source.name, check)


@asynccontextmanager
async def _private_database(spec: UniverseSpec, image: DatabaseImage) -> AsyncGenerator[PrivateDatabase]:
    made: list[PrivateDatabase] = []
    try:
        try:
            if image.is_quick:
                made.append(image.private())
            else:
                await in_thread(lambda _: made.append(image.private()), what=f"copying {spec.path}")
        except (sqlite3.Error, MemoryError) as exc:
            raise UniverseError(f"{spec.path}: the universe cannot be copied: {exc}") from exc
        yield made[0]
    finally:
        for private in made:
            await _end(private)


async def _end(private: PrivateDatabase) -> None:
    """Close a database. The memory that it lies in is given back when SQLite has no use for it any more."""
    connection = private.connection
    try:
        if not connection.end():
            with anyio.move_on_after(_END_S, shield=True) as scope:
                while not connection.end():  # noqa: ASYNC110 - who ends it is a thread, inside of SQLite
                    await anyio.sleep(_LOOK_S)
            if scope.cancelled_caught:
                logger.error("a database is still in use by a thread %s s after its episode; it closes it", _END_S)
    finally:
        private.release()
