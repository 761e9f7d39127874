"""The connection that an env has to its private database.

It is a `sqlite3.Connection` that can be ended while another thread is inside of it: a tool that was stopped for its time goes
on in its thread, and closing a connection of the standard library under a query ends the process with a segmentation fault.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

__all__ = ["PrivateConnection", "PrivateCursor"]

F = TypeVar("F", bound=Callable[..., Any])


class PrivateConnection(sqlite3.Connection):
    """A connection to a database in memory; any thread may use it, one at a time."""

    def __init__(self) -> None:
        self.calls: list[None] = []
        """One entry for each call that a thread is inside of. Appending and taking away are atomic, counting is not."""
        self.has_ended = False
        self.is_replaced = False
        """Whether another database was put into the place of the one that it began with."""
        self.is_stuck = False
        """Whether somebody has waited in vain for the calls that are under way."""
        super().__init__(":memory:", check_same_thread=False)

    def end(self) -> bool:
        """Close it or, while calls are under way, interrupt them and have the last one close it.

        Returns:
            Whether it is closed.
        """
        # First the mark, then the look: a call counts itself first and then looks for the mark.
        self.has_ended = True
        if self.calls:
            return not self.interrupt_calls()
        super().close()
        return True

    def interrupt_calls(self) -> bool:
        """End the queries that threads are inside of; each raises `sqlite3.OperationalError`.

        Returns:
            Whether it is open.
        """
        if self.calls:
            try:
                super().interrupt()
            except sqlite3.ProgrammingError:
                return False  # closed meanwhile
        return True

    def close_if_ended(self) -> None:
        """Close it after the last call, when it was to be ended meanwhile."""
        if self.has_ended and not self.calls:
            super().close()

    def deserialize(self, *arguments: Any, **keywords: Any) -> None:
        """Put another database into the place of this one."""
        self.is_replaced = True
        super().deserialize(*arguments, **keywords)

    # The base class would make plain cursors of these.
    def cursor(self, factory: Any = None) -> Any:
        """Return a cursor."""
        return super().cursor(PrivateCursor if factory is None else factory)

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        """Execute a statement with a new cursor, and return that."""
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
        """Execute a statement for each set of parameters with a new cursor, and return that."""
        return self.cursor().executemany(sql, parameters)

    def executescript(self, sql_script: str, /) -> sqlite3.Cursor:
        """Execute several statements with a new cursor, and return that."""
        return self.cursor().executescript(sql_script)


class PrivateCursor(sqlite3.Cursor):
    """A cursor of a `PrivateConnection`."""

    def __next__(self) -> Any:
        # Written out, for it is done for each row.
        connection: Any = self.connection
        calls = connection.calls
        calls.append(None)
        try:
            if connection.has_ended:
                raise _closed()
            return _next_row(self)
        finally:
            calls.pop()
            if connection.has_ended:
                connection.close_if_ended()


_next_row: Callable[[sqlite3.Cursor], Any] = sqlite3.Cursor.__next__


def _closed() -> sqlite3.ProgrammingError:
    return sqlite3.ProgrammingError("Cannot operate on a closed database.")


def _counted(connection_of: Callable[[Any], PrivateConnection], method: F) -> F:
    """Return a method that counts as a call while it runs."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        connection = connection_of(self)
        connection.calls.append(None)
        try:
            if connection.has_ended:
                raise _closed()
            return method(self, *arguments, **keywords)
        finally:
            connection.calls.pop()
            connection.close_if_ended()

    return call  # type: ignore[return-value]


# What gives the interpreter up while SQLite works, and looks at the connection again afterwards.
for _name in ("commit", "rollback", "__exit__", "backup", "blobopen", "serialize", "deserialize", "iterdump"):
    if hasattr(sqlite3.Connection, _name):  # some are not there in every build and version
        setattr(PrivateConnection, _name, _counted(lambda self: self, getattr(PrivateConnection, _name)))
for _name in ("execute", "executemany", "executescript", "fetchone", "fetchmany", "fetchall"):
    setattr(PrivateCursor, _name, _counted(lambda self: self.connection, getattr(sqlite3.Cursor, _name)))
