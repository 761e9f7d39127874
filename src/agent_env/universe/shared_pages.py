"""A database image that many connections share page by page: a page is copied when one of them writes to it.

The image lies in memory once per process. Each copy maps it privately, with room to grow behind it, and SQLite is given the
mapping as the content of an in-memory database: the kernel copies the pages that are written to. This needs Linux, and a
SQLite library whose functions can be reached from here; where one of them is not there, `share` and `connect_shared` say so.

What Python's `sqlite3` does not give is the library's handle of a connection. An automatic extension, which SQLite calls
for each connection that it opens, is registered for the moment in which ours is opened, and is told it.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import platform
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from functools import cache
from typing import Any, TypeVar
from weakref import finalize

if sys.platform == "linux":
    import fcntl

__all__ = ["Pages", "SharedImage", "connect_shared", "release_left", "share"]

logger = logging.getLogger(__name__)

C = TypeVar("C", bound=sqlite3.Connection)

_ROOM_BYTES = 2**30
"""What a copy may grow to, as SQLite's own in-memory databases may; only addresses are taken, until it is written to."""
_PAGE = mmap.PAGESIZE
_PROT_READ, _PROT_WRITE = 1, 2
_MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS, _MAP_NORESERVE = 0x02, 0x10, 0x20, 0x4000
_MADV_NOHUGEPAGE = 15
_FAILED = ctypes.c_void_p(-1).value
_UTF8 = 1
_MACHINES = frozenset({"x86_64", "aarch64"})
"""Those that the numbers above are right for."""
_COMPARED_BYTES = 2**20
"""Bytes that are compared at once, before it is looked which page it is."""

_Extension = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class _RefusedError(Exception):
    """The kernel or SQLite does not do this."""


class _Library:
    """The functions of C that are used, of the very SQLite library that `sqlite3` uses."""

    def __init__(self) -> None:
        import _sqlite3

        file: str | None = getattr(_sqlite3, "__file__", None)  # none when it is built into the interpreter
        sqlite, c = ctypes.CDLL(file), ctypes.CDLL(None, use_errno=True)
        pointer, size, integer = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
        text, int64 = ctypes.c_char_p, ctypes.c_int64

        def bound(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
            return function

        self.mmap = bound(c, "mmap", pointer, pointer, size, integer, integer, integer, ctypes.c_long)
        self.munmap = bound(c, "munmap", integer, pointer, size)
        self.madvise = bound(c, "madvise", integer, pointer, size, integer)
        self.memcmp = bound(c, "memcmp", integer, pointer, pointer, size)
        self.sem_init = bound(c, "sem_init", integer, pointer, integer, ctypes.c_uint)
        self.sem_getvalue = bound(c, "sem_getvalue", integer, pointer, pointer)
        self.sem_post = ctypes.cast(c.sem_post, pointer).value
        self.source_id = bound(sqlite, "sqlite3_sourceid", text)
        self.is_threadsafe = bound(sqlite, "sqlite3_threadsafe", integer)
        self.auto_extension = bound(sqlite, "sqlite3_auto_extension", integer, _Extension)
        self.cancel_auto_extension = bound(sqlite, "sqlite3_cancel_auto_extension", integer, _Extension)
        self.deserialize = bound(
            sqlite, "sqlite3_deserialize", integer, pointer, text, pointer, int64, int64, ctypes.c_uint
        )
        self.create_function = bound(
            sqlite, "sqlite3_create_function_v2", integer, pointer, text, integer, integer, *[pointer] * 5
        )
        self.result_null = ctypes.cast(sqlite.sqlite3_result_null, pointer).value
        self.cacheflush = bound(sqlite, "sqlite3_db_cacheflush", integer, pointer)
        self.next_statement = bound(sqlite, "sqlite3_next_stmt", pointer, pointer, pointer)
        self.is_statement_busy = bound(sqlite, "sqlite3_stmt_busy", integer, pointer)

    def mapped(self, address: int | None, size: int, protection: int, flags: int, fd: int) -> int:
        """Map memory privately, and return its address."""
        flags |= _MAP_PRIVATE | _MAP_NORESERVE
        mapped = self.mmap(address, size, protection, flags, fd, 0)
        if mapped == _FAILED:
            raise _RefusedError(f"mmap: {os.strerror(ctypes.get_errno())}")
        return mapped


class SharedImage:
    """A database image in memory that nobody can change any more."""

    def __init__(self, library: _Library, image: bytes) -> None:
        self.size = len(image)
        """Bytes."""
        self._fd = os.memfd_create("agent-env-universe", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            view = memoryview(image)
            while view:
                view = view[os.write(self._fd, view) :]
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
            self.address = library.mapped(None, self.size, _PROT_READ, 0, self._fd)
        except BaseException:  # also Ctrl-C: nobody else has the descriptor yet
            os.close(self._fd)
            raise
        # At the end of the process the system does it; the modules that are needed for it may be gone by then.
        finalize(self, _give_back, library, self.address, self.size, self._fd).atexit = False

    def fileno(self) -> int:
        """Return the descriptor of the memory, as a file."""
        return self._fd

    def to_bytes(self) -> bytes:
        """Return a copy of the image."""
        return ctypes.string_at(self.address, self.size)


def _give_back(library: _Library, address: int, size: int, fd: int) -> None:
    library.munmap(address, size)
    os.close(fd)


class Pages:
    """The memory of one copy's database, which must outlive SQLite's use of it.

    A connection that is closed may live on in SQLite: a cursor that was not read to its end keeps it. So SQLite itself
    says when it is done: it posts a semaphore, which lies behind the pages, when it gives up what belongs to the
    connection, after it has closed the database.
    """

    def __init__(self, library: _Library, image: SharedImage) -> None:
        self._library = library
        self.image = image
        room = max(_ROOM_BYTES, 2 * image.size)
        self._room_bytes = -(-room // _PAGE) * _PAGE
        self._all_bytes = self._room_bytes + _PAGE
        self.address = library.mapped(None, self._all_bytes, _PROT_READ | _PROT_WRITE, _MAP_ANONYMOUS, -1)
        """Where the database begins."""
        self._handle = 0
        try:
            # A huge page would cost a copy 2 MB at its first write.
            library.madvise(self.address, self._all_bytes, _MADV_NOHUGEPAGE)
            library.mapped(self.address, image.size, _PROT_READ | _PROT_WRITE, _MAP_FIXED, image.fileno())
            if library.sem_init(self._semaphore, 0, 0) != 0:
                raise _RefusedError("there are no semaphores")
        except BaseException:  # also Ctrl-C: nobody else has the pages yet
            self._unmap()
            raise

    @property
    def _semaphore(self) -> int:
        return self.address + self._room_bytes

    def give_to(self, handle: int) -> None:
        """Make this the content of a connection's main database.

        Args:
            handle: SQLite's own pointer to the connection.
        """
        library, self._handle = self._library, handle
        # Of the function, which gives NULL, only its end is of use: then SQLite posts the semaphore.
        code = library.create_function(
            *(handle, b"agent_env_private_copy", 0, _UTF8, self._semaphore),
            *(library.result_null, None, None, library.sem_post),
        )
        if code == 0:
            code = library.deserialize(handle, b"main", self.address, self.image.size, self._room_bytes, 0)
        if code != 0:
            raise _RefusedError(f"SQLite says {code}")

    @property
    def is_free(self) -> bool:
        """Whether SQLite has given the connection up."""
        value = ctypes.c_int()
        self._library.sem_getvalue(self._semaphore, ctypes.byref(value))
        return value.value > 0

    def release(self) -> None:
        """Give the memory back now or, while SQLite has not given the connection up, in a later `release_left`."""
        if self._handle == 0:  # SQLite has never heard of it
            self._unmap()
            return
        with _left_lock:
            _left.append(self)
        release_left()

    def release_if_free(self) -> bool:
        """Give the memory back if SQLite has given the connection up, and say whether it has."""
        if self.is_free:
            self._unmap()
            return True
        return False

    def _unmap(self) -> None:
        self._library.munmap(self.address, self._all_bytes)

    def flush(self) -> bool:
        """Have SQLite write to the pages what an open transaction has changed; it can be rolled back as before.

        All but the first page, which a transaction always holds. Returns False when more may be missing.
        """
        statement = self._library.next_statement(self._handle, None)
        while statement:
            if self._library.is_statement_busy(statement):
                return False  # it holds pages
            statement = self._library.next_statement(self._handle, statement)
        return self._library.cacheflush(self._handle) == 0

    def changed(self, size: int, page_bytes: int) -> set[int]:
        """Return the numbers, from 1, of the pages that are not what they are in the image, or are not in it.

        Args:
            size: Bytes of the database now.
            page_bytes: Bytes of a page of the database.
        """
        found: set[int] = set()
        shared = min(size, self.image.size)
        for start in range(0, shared, _COMPARED_BYTES):
            if self._differs(start, min(_COMPARED_BYTES, shared - start)):
                end = min(start + _COMPARED_BYTES, shared)
                found.update(
                    at // page_bytes + 1
                    for at in range(start, end, page_bytes)
                    if self._differs(at, min(page_bytes, end - at))
                )
        found.update(range(shared // page_bytes + 1, size // page_bytes + 1))
        return found

    def _differs(self, start: int, size: int) -> bool:
        return self._library.memcmp(self.address + start, self.image.address + start, size) != 0


_left: list[Pages] = []
_left_lock = threading.Lock()


def release_left() -> None:
    """Give back the memory of databases that SQLite has given up since."""
    with _left_lock:
        _left[:] = [pages for pages in _left if not pages.release_if_free()]


def share(image: bytes) -> SharedImage | None:
    """Put a database image into memory that copies can share; None where that cannot be done."""
    library = _library()
    if library is None or not image:
        return None
    try:
        return SharedImage(library, image)
    except (_RefusedError, OSError) as exc:
        logger.debug("a database cannot be shared by its pages: %s", exc)
        return None


def connect_shared(image: SharedImage, connect: Callable[[], C]) -> tuple[C, Pages] | None:
    """Open a connection whose main database starts as an image; None where that cannot be done.

    Args:
        image: What `share` gave.
        connect: Opens the connection, in memory.
    """
    library = _library()
    assert library is not None
    try:
        return _connected(library, image, connect)
    except _RefusedError as exc:
        logger.debug("a copy of a database cannot share its pages: %s", exc)
        return None


def _connected(library: _Library, image: SharedImage, connect: Callable[[], C]) -> tuple[C, Pages]:
    release_left()
    pages = Pages(library, image)
    connection = None
    try:
        connection, handle = _handles.opened(library, connect)
        pages.give_to(handle)
    except BaseException:  # also Ctrl-C: nobody else has the two yet
        if connection is not None:
            connection.close()
        pages.release()
        raise
    return connection, pages


class _Handles:
    """Opens connections and hears what SQLite's own handles of them are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread = 0
        self._heard: list[int] = []
        # Kept for ever: SQLite may still be about to call it when it is taken back.
        self._extension = _Extension(self._hear)

    def _hear(self, handle: int, _error: int, _functions: int) -> int:
        if threading.get_ident() == self._thread:
            self._heard.append(handle)
        return 0

    def opened(self, library: _Library, connect: Callable[[], C]) -> tuple[C, int]:
        with self._lock:
            self._thread = threading.get_ident()
            self._heard.clear()
            if library.auto_extension(self._extension) != 0:
                raise _RefusedError("SQLite takes no extension")
            try:
                connection = connect()
            finally:
                library.cancel_auto_extension(self._extension)
                self._thread = 0
            if len(self._heard) != 1:
                connection.close()
                raise _RefusedError("SQLite has not said its handle: it is another library than the one that is used")
            return connection, self._heard[0]


_handles = _Handles()


def _renew_locks() -> None:
    global _handles, _left_lock
    _handles, _left_lock = _Handles(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)  # a thread that the child does not have may have held one


@cache
def _library() -> _Library | None:
    """Return the functions, when they are there and do what they should."""
    if sys.platform != "linux" or platform.machine() not in _MACHINES or not hasattr(os, "memfd_create"):
        return None
    try:
        library = _Library()
        _try_out(library)
    except (_RefusedError, OSError, AttributeError, ImportError, sqlite3.Error) as exc:
        logger.debug("databases are copied as a whole: %s", exc)
        return None
    return library


def _try_out(library: _Library) -> None:
    """See once that copies of a small database are private, and that the end of a connection is heard of."""
    with closing(sqlite3.connect(":memory:")) as connection:
        if connection.execute("SELECT sqlite_source_id()").fetchone()[0] != library.source_id().decode():
            raise _RefusedError("the library found is not the one that sqlite3 uses")
        if not library.is_threadsafe():
            raise _RefusedError("SQLite is built for one thread")
        connection.execute("CREATE TABLE t (n)")
        image = SharedImage(library, connection.serialize())
    for _ in range(2):
        connection, pages = _connected(library, image, lambda: sqlite3.connect(":memory:"))
        with closing(connection):
            connection.execute("INSERT INTO t VALUES (zeroblob(10000))")
            connection.commit()
            rows = connection.execute("SELECT count(*) FROM t").fetchone()
        if rows != (1,) or not pages.is_free:
            raise _RefusedError("a copy is not as it should be")
        pages.release()
