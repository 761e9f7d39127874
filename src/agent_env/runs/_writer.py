"""The one thread of a process that writes to the run index.

Callers note what happened under a short lock and go on: no event loop waits for the disk. The thread gathers for
`BATCH_S` and writes a transaction. When the disk cannot take it, the batch is kept and tried again, and every call that
records says so until it is written. When the disk is only slow, what waits is bounded by `FULL_BYTES`: past it, calls that
record raise; `RunIndex.ready` lets an async caller wait long before that.

Between batches it puts words into the search index, a short transaction at a time.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from agent_env.errors import RunIndexError
from agent_env.runs._batch import close_writer, write_batch
from agent_env.runs._checkpoints import Checkpoints
from agent_env.runs._codec import packer
from agent_env.runs._indexing import WordsQueue, catch_up_some, start_anew
from agent_env.runs._log import RunLog
from agent_env.runs._mask import Mask
from agent_env.runs._packing import PackedPart, pack_part
from agent_env.runs._schema import busy_retried, identity_of, immediate, is_busy, saying

__all__ = ["BATCH_S", "FULL_BYTES", "Writer"]

logger = logging.getLogger(__name__)

BATCH_S = 0.04
"""How long the thread gathers before it writes: with the commit, what a crash may lose."""
FULL_BYTES = 512 << 20
"""What may wait for the disk before recording raises."""
_TAKE_BYTES = 16 << 20
_RETRY_S = 1.0
_FINISH_S = 20.0
"""How long closing puts words in."""
_FLUSH_S = 5.0
"""How long flushing puts words in."""
_CHORE_S = 0.025
"""No chore is begun when a batch is due sooner. One takes 10 ms mostly, and some 70 where the search index merges its parts."""
_SLOW_S = 0.02
_REST_TIMES = 4
"""After a batch that took longer than `_SLOW_S`, chores rest for so many times as long."""
_BREATH_S = 0.002
"""Between two chores: whoever waits for the lock gets it."""

T = TypeVar("T")
Errand = Callable[[sqlite3.Connection], object]
Chore = Callable[[sqlite3.Connection], bool]
"""Something to do when nothing else is, a short transaction at a time; says whether there is more."""


class _Phase(StrEnum):
    OPEN = "open"
    CLOSED = "closed"
    STOPPED = "stopped"
    """The thread met a bug of ours and ended; `_error` says which."""


class _Job(Generic[T]):
    """Something to do between batches, for a caller that waits for it."""

    def __init__(self, do: Callable[[sqlite3.Connection], T]) -> None:
        self._do = do
        self._done = threading.Event()
        self._value: list[T] = []
        self._error: Exception | None = None

    def run(self, conn: sqlite3.Connection, file: Path) -> None:
        try:
            with saying(file):
                self._value.append(self._do(conn))
        except Exception as exc:  # noqa: BLE001 -- it is raised to the caller, in the caller's thread
            self._error = exc
        self._done.set()

    def fail(self, error: RunIndexError) -> None:
        self._error = error
        self._done.set()

    def wait(self) -> T:
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._value[0]


class Writer:
    """A connection, its thread and what waits to be written."""

    def __init__(self, file: Path, conn: sqlite3.Connection) -> None:
        self._file = file
        self._conn = conn
        self._pid = os.getpid()
        self._identity = _identity(file)
        self._wake = threading.Condition(threading.Lock())
        # Guarded by `_wake`:
        self._thread: threading.Thread | None = None
        self._dirty: dict[str, RunLog] = {}
        self._jobs: list[_Job[object]] = []
        self._errands: list[Errand] = []
        self._phase = _Phase.OPEN
        self._chores: list[Chore] = []
        self._is_hurried = False
        self._due_at = math.inf
        """When what is noted is to be written, by `time.monotonic`."""
        self._waiting_bytes = 0
        self._error: RunIndexError | None = None
        # The thread's own:
        self._carried: list[PackedPart] = []
        self._owed: list[Errand] = []
        self._writer_key: int | None = None
        self._words = WordsQueue()
        self._checkpoints = Checkpoints(file)
        self._is_chore_failing = False
        self._idle_from = 0.0
        """When chores may be done again, by `time.monotonic`: after the disk did not take one, it is left alone."""

    @property
    def waiting_bytes(self) -> int:
        """The size of the events that wait for the disk."""
        return self._waiting_bytes

    @property
    def _key_for_words(self) -> int | None:
        """The writer's key, where words wait to be put in under it; None where none do."""
        return self._writer_key if self._words else None

    def note(self, log: RunLog, change: Callable[[RunLog], int]) -> None:
        """Change what is known of a run, and have it written.

        Args:
            log: The run.
            change: Called under the lock; returns how many bytes more will wait.

        Raises:
            RunIndexError: When the index is closed, belongs to another process, or the disk fails. In the last case the
                change is kept all the same, and written once the disk takes it.
        """
        self._check_process()
        with self._wake:
            self._check_open()
            if self._waiting_bytes > FULL_BYTES:
                raise RunIndexError(
                    f"{self._file}: {self._waiting_bytes >> 20} MB of events wait for the disk, which is too slow:"
                    " run fewer episodes at once, or choose a faster disk"
                )
            self._waiting_bytes += change(log)
            was_idle = not self._dirty
            self._dirty[log.run_id] = log
            self._start()
            if was_idle:
                self._due_at = time.monotonic() + BATCH_S
            if self._waiting_bytes > _TAKE_BYTES:
                self._is_hurried = True
            if was_idle or self._is_hurried:
                self._wake.notify()
            if self._error is not None:
                raise self._error

    def do(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run `job` in the thread, after all that was noted before, and wait for it.

        Raises:
            RunIndexError: When what was noted before cannot be written, or the job fails.
        """
        self._check_process()
        made: _Job[T] = _Job(job)
        with self._wake:
            self._check_open()
            self._jobs.append(made)  # pyright: ignore[reportArgumentType] -- only its owner reads its value
            self._is_hurried = True
            self._start()
            self._wake.notify()
        return made.wait()

    def later(self, errand: Errand) -> None:
        """Have `errand` run in the thread soon, and wait for nothing.

        It is run after all that was noted before. Where the disk does not take it, it is tried again with the next
        batch, and every call that records says so meanwhile.

        Raises:
            RunIndexError: When the index is closed, belongs to another process, or the disk fails already.
        """
        self._check_process()
        with self._wake:
            self._check_open()
            self._errands.append(errand)
            self._start()
            self._wake.notify()
            if self._error is not None:
                raise self._error

    def when_idle(self, chore: Chore) -> None:
        """Have `chore` called in the thread until it says that there is no more, whenever nothing waits to be written.

        Where the disk does not take it, it is tried again later, and nobody is told.
        """
        with self._wake:
            self._chores.append(chore)
            self._start()
            self._wake.notify()

    def flush(self) -> None:
        """Wait until everything that was noted before is written; and some seconds at most until it can be searched for.

        Raises:
            RunIndexError: When it cannot be written.
        """

        def put_some_words_in(conn: sqlite3.Connection) -> bool:
            if (key := self._key_for_words) is not None:
                try:
                    busy_retried(partial(self._words.write_some, conn, key))
                except sqlite3.Error:
                    return False  # the runs are written; why their words are not is logged when that is tried next
            return bool(self._words)

        until = time.monotonic() + _FLUSH_S
        while self.do(put_some_words_in) and time.monotonic() < until:
            pass  # a job each: batches are written in between

    def put_words_in_anew(self) -> bool:
        """Make the search index anew, without the words of what was deleted, and wait for it.

        Returns:
            False, and nothing is done, where another process is writing.

        Raises:
            RunIndexError: When it cannot be written.
        """

        def start(conn: sqlite3.Connection) -> bool:
            is_started = busy_retried(lambda: start_anew(conn, own=self._writer_key))
            if is_started:
                self._words.forget()
            return is_started

        if not self.do(start):
            return False
        while self.do(lambda conn: busy_retried(lambda: catch_up_some(conn, own=self._writer_key))):
            pass  # a job each: batches are written in between
        return True

    def close(self) -> None:
        """Write all that waits and stop. Again is no error.

        Raises:
            RunIndexError: When it could not all be written.
        """
        if os.getpid() != self._pid:
            return  # a fork's copy: the thread is not here, and closing would drop the other process's locks
        with self._wake:
            was, self._phase, self._is_hurried = self._phase, _Phase.CLOSED, True
            self._wake.notify()
            thread = self._thread
        if was is _Phase.CLOSED:
            return
        if thread is not None:
            thread.join()
        self._checkpoints.close()
        self._conn.close()
        atexit.unregister(self._close_at_exit)
        if self._error is not None:
            lost = len({packed.log.run_id for packed in self._carried} | set(self._dirty))
            raise RunIndexError(f"{self._error}; the index was closed, and the end of {lost} run(s) is not in it")

    def _close_at_exit(self) -> None:
        try:
            self.close()
        except RunIndexError as exc:
            logger.error("%s", exc)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise RunIndexError(f"{self._file.parent}: opened before a fork: open the run index again in this process")

    def _check_open(self) -> None:
        if self._phase is _Phase.CLOSED:
            raise RunIndexError(f"{self._file.parent}: the run index is closed: no run can go on in it")
        if self._phase is _Phase.STOPPED and self._error is not None:
            raise self._error

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="agent-env-runs", daemon=True)
            self._thread.start()
            atexit.register(self._close_at_exit)

    def _serve(self) -> None:
        while True:
            jobs: list[_Job[object]] = []
            try:
                if not self._turn(jobs):
                    return
            except Exception as exc:  # a bug of ours must reach who records, not die with the thread
                logger.exception("the run index's writer stopped")
                self._stop(jobs, RunIndexError(f"{self._file}: the run index's writer stopped: {exc!r}"))
                return

    def _turn(self, jobs: list[_Job[object]]) -> bool:
        """Wait, and write or do a chore; False when that was the last time.

        Args:
            jobs: The jobs that are taken and not done yet, for who has to say that they never will be.
        """
        with self._wake:
            is_due = self._wait()
            if is_due:
                parts = [log.take() for log in self._dirty.values()]
                self._dirty.clear()
                self._due_at = math.inf
                jobs += self._jobs
                self._jobs = []
                self._owed += self._errands
                self._errands = []
                self._is_hurried = False
            else:
                parts = []
            is_last = self._phase is _Phase.CLOSED
        if not is_due:
            self._do_chore()
            return True
        pack, mask = packer(), Mask()
        while parts:  # one by one: what is packed needs its events no more
            self._carried.append(pack_part(parts.pop(0), pack, mask))
        error = self._write() if self._carried or self._owed else None
        while jobs:
            if error is None:
                jobs[0].run(self._conn, self._file)
            else:
                jobs[0].fail(error)
            jobs.pop(0)
        if is_last and error is None and self._writer_key is not None:
            self._finish(self._writer_key)
        return not is_last

    def _wait(self) -> bool:
        """Wait for something to do; whether it is more than a chore. The lock is held."""
        while True:
            now = time.monotonic()
            if self._is_hurried or self._jobs or self._errands or self._phase is _Phase.CLOSED or now >= self._due_at:
                return True
            until = self._due_at
            if self._carried or self._owed:
                until = min(until, now + _RETRY_S)
            elif self._chores or self._key_for_words is not None:
                if now >= self._idle_from and self._due_at - now > _CHORE_S:
                    return False
                until = min(until, max(self._idle_from, now + _CHORE_S))
            if not self._wake.wait(None if until == math.inf else until - now) and (self._carried or self._owed):
                return True

    def _do_chore(self) -> None:
        """A chore is not worth an error to who records: what it does not get done is done later, or by another process."""
        rest_s = _BREATH_S
        try:
            with saying(self._file):
                if (key := self._key_for_words) is not None:
                    self._words.write_some(self._conn, key)
                elif not self._chores[0](self._conn):
                    with self._wake:
                        self._chores.pop(0)
            self._is_chore_failing = False
        except RunIndexError as exc:
            rest_s = random.uniform(0.002, 0.02)
            if not is_busy(exc.__cause__):
                rest_s = _RETRY_S
                if not self._is_chore_failing:
                    logger.warning("%s (words for the search wait)", exc)
                self._is_chore_failing = True
        self._checkpoints.look()
        self._idle_from = time.monotonic() + rest_s

    def _write(self) -> RunIndexError | None:
        """Write what is carried and run what is owed; what fails is kept for the next time."""
        size = sum(packed.size_bytes for packed in self._carried)
        error = None
        start = time.monotonic()
        try:
            self._check_place()
            with saying(self._file):
                if self._carried:
                    written = busy_retried(lambda: write_batch(self._conn, self._writer_key, self._carried))
                    self._writer_key, self._carried = written.writer_key, []
                    self._words.add(written.words)
                    self._checkpoints.look()
                while self._owed:
                    busy_retried(partial(self._owed[0], self._conn))
                    self._owed.pop(0)
        except RunIndexError as exc:
            error = exc
            if self._error is None:
                logger.error("%s", exc)
        took_s = time.monotonic() - start
        if took_s > _SLOW_S:  # others want the lock too: runs go before words
            self._idle_from = start + _REST_TIMES * took_s
        with self._wake:
            self._error = error
            if not self._carried:
                self._waiting_bytes -= size
        return error

    def _check_place(self) -> None:
        """SQLite goes on writing to a file that was deleted, and it would all be lost without a word."""
        if _identity(self._file) != self._identity:
            raise RunIndexError(
                f"{self._file}: it was deleted or replaced while runs were written to it: what was in it is gone, begin again"
                " in another folder"
            )

    def _finish(self, writer_key: int) -> None:
        def say_closed() -> None:
            with immediate(self._conn):
                close_writer(self._conn, writer_key)

        until = time.monotonic() + _FINISH_S
        while (
            self._words and time.monotonic() < until
        ):  # what is left then, or fails, is left to who opens the index next
            try:
                with saying(self._file):
                    busy_retried(partial(self._words.write_some, self._conn, writer_key))
            except RunIndexError as exc:
                logger.warning("%s (words for the search wait)", exc)
                break
        try:
            with saying(self._file):
                busy_retried(say_closed)
        except RunIndexError as exc:
            with self._wake:
                self._error = exc

    def _stop(self, jobs: list[_Job[object]], error: RunIndexError) -> None:
        with self._wake:
            self._error = error
            if self._phase is _Phase.OPEN:
                self._phase = _Phase.STOPPED
            jobs += self._jobs
            self._jobs = []
        for job in jobs:
            job.fail(error)


def _identity(file: Path) -> tuple[int, int] | None:
    try:
        return identity_of(file)
    except OSError:
        return None
