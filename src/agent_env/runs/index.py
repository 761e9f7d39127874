"""`RunIndex`: the runs of one folder, written as they happen and read while they are.

One SQLite file per folder, for any number of processes on one machine. Not for folders shared over a network.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import anyio

from agent_env.errors import RunIndexError, UsageError
from agent_env.runs._batch import delete_runs, delete_some_runs, mark_interrupted
from agent_env.runs._indexing import catch_up_some, has_left_overs
from agent_env.runs._listing import count, go_through, read_page, select_page
from agent_env.runs._reading import Reader, read_groups, read_record, read_sampled, read_summary
from agent_env.runs._schema import FILE_NAME, busy_retried, connect_reader, connect_writer, saying
from agent_env.runs._search import search
from agent_env.runs._sink import RunSink, new_sink
from agent_env.runs._version_1 import fill_some_totals, has_runs_without_totals
from agent_env.runs._where import Condition
from agent_env.runs._writer import Writer
from agent_env.runs.export import Exported, frame_of, write_jsonl, write_parquet
from agent_env.runs.record import (
    GroupSummary,
    RunEvent,
    RunOrder,
    RunPage,
    RunRecord,
    RunState,
    RunSummary,
    SampledTokens,
    SearchPage,
    Vacuumed,
)

if TYPE_CHECKING:
    import pandas as pd  # pyright: ignore[reportMissingTypeStubs] -- it has types inside

__all__ = ["RunIndex"]

_EASY_BYTES = 64 << 20
_NAME_CHARS = 500
_MOST = 2**53
_MOST_ATTEMPTS = 1_000_000_000
_DELETE_AT_ONCE = 500


class RunIndex:
    """The runs in a folder. Open it with `RunIndex.open`, close it or use it in a `with`.

    Recording (`run` and its sink) never waits for the disk. Reading takes milliseconds and is done where it is called.
    After a fork, or in another process, open it again.
    """

    def __init__(self, folder: Path, *, reader: Reader, writer: Writer | None) -> None:
        """Internal: use `open`."""
        self._folder = folder
        self._reader = reader
        self._writer = writer

    @classmethod
    def open(cls, folder: Path | str, *, read_only: bool = False) -> Self:
        """Open the run index in `folder`, or make one.

        Opening for writing gives the runs of processes that died their end: `interrupted`. A read-only index shows them
        so without writing.

        Args:
            folder: The runs folder; made when it is not there, unless `read_only`.
            read_only: Never write; also for a folder that cannot be written.

        Raises:
            RunIndexError: When there is no index to read, when the folder cannot be written, when the file is no run
                index, is damaged, or is of a newer version.
        """
        folder = Path(folder)
        file = folder / FILE_NAME
        if read_only:
            connect_reader(file).close()
            return cls(folder, reader=Reader(file), writer=None)
        conn = connect_writer(file)
        try:
            with saying(file):
                busy_retried(lambda: mark_interrupted(conn))
                chores = busy_retried(lambda: _left_to_do(conn))
        except BaseException:
            conn.close()
            raise
        writer = Writer(file, conn)
        for chore in chores:
            writer.when_idle(chore)
        return cls(folder, reader=Reader(file), writer=writer)

    @property
    def folder(self) -> Path:
        """The runs folder."""
        return self._folder

    def run(self, group: str, *, attempt: int = 0, labels: Mapping[str, Any] | None = None) -> RunSink:
        """Make the sink for one more episode; it is in the index from its first event on.

        Args:
            group: The name to file it under, `<run name>/train/step-0003` for the explorer's charts.
            attempt: 0, or how many times this rollout was tried before.
            labels: What else to keep: policy step, model, renderer. JSON values.

        Raises:
            UsageError: When the group's name is empty, starts or ends with `/`, or has control characters, or `attempt` is
                no count.
            RunIndexError: When the index was opened read-only.
        """
        _check_group(group)
        if not 0 <= attempt < _MOST_ATTEMPTS:
            raise UsageError(f"attempt counts from 0, up to {_MOST_ATTEMPTS:,}, not {attempt}")
        return new_sink(self._writing(), group, attempt=attempt, labels=labels or {})

    def groups(self, prefix: str = "") -> list[GroupSummary]:
        """Count the runs of every group whose name starts with `prefix`, by name.

        Raises:
            RunIndexError: When the index cannot be read.
        """
        with self._reader.asking() as conn:
            return read_groups(conn, prefix=prefix)

    def group(self, name: str) -> GroupSummary:
        """Count the runs of one group.

        Raises:
            UsageError: When there is no such group.
            RunIndexError: When the index cannot be read.
        """
        with self._reader.asking() as conn:
            found = read_groups(conn, names=[name])
        if not found:
            raise UsageError(f"no group {name!r} in {self._folder}: `agent-env runs` lists them")
        return found[0]

    def runs(
        self,
        group: str,
        *,
        state: RunState | None = None,
        task_id: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> RunPage:
        """List a group's runs a page at a time, by task, attempt and rollout.

        Args:
            group: The group's whole name.
            state: Only runs that stand like this.
            task_id: Only runs of this task.
            after: `next_page` of the page before.
            limit: Runs on a page.

        Raises:
            UsageError: When `after` is no run of this index.
            RunIndexError: When the index cannot be read.
        """
        _check_page(limit)
        with self._reader.asking() as conn:
            return read_page(conn, group, state=state, task_id=task_id, after=after, limit=limit)

    def select(
        self,
        where: str | None = None,
        *,
        group: str = "",
        order: RunOrder = RunOrder.NEWEST,
        limit: int = 100,
        after: str | None = None,
        limit_s: float = 10.0,
    ) -> RunPage:
        """List the runs that a condition is true of, a page at a time, by when they were filed.

        Args:
            where: An SQL expression over the columns of runs, such as `reward < 0.5 AND tools ->> '$.pay.errors' > 0`; None
                is all of them. The columns are in docs/runs.md, and in the error that an unknown one raises.
            group: Only in this group and those below it; empty for all.
            order: Which come first.
            limit: Runs on a page.
            after: `next_page` of the page before.
            limit_s: Seconds that the answer may take.

        Raises:
            UsageError: When `where` is no expression, names what is not there, or uses more than columns and functions.
            RunIndexError: When the index cannot be read, or the answer takes longer.
        """
        condition = Condition.of(where, group=group)
        _check_page(limit)
        with self._reader.asking(limit_s=limit_s) as conn:
            return select_page(conn, condition, order=order, limit=limit, after=after)

    def count(self, where: str | None = None, *, group: str = "") -> int:
        """How many runs a condition is true of. See `select` for what it can say, and what it raises."""
        return count(self._reader, Condition.of(where, group=group))

    def all_runs(self, group: str, *, state: RunState | None = None) -> Generator[RunSummary]:
        """Go through a group's runs, fetched a page at a time.

        Raises:
            RunIndexError: When the index cannot be read.
        """
        after = None
        while True:
            page = self.runs(group, state=state, after=after, limit=500)
            yield from page.runs
            if (after := page.next_page) is None:
                return

    def find(self, run_id: str) -> RunSummary:
        """One run's summary, by its id or the start of it.

        Raises:
            UsageError: When no run, or more than one, has such an id.
            RunIndexError: When the index cannot be read.
        """
        with self._reader.asking() as conn:
            return read_summary(conn, run_id)

    def read(self, run_id: str, *, first: int = 0, limit: int = 200) -> RunRecord:
        """One run with a page of its events.

        Args:
            run_id: Its id, or the start of it.
            first: The place of the page's first event, from 0; `next_event` of the page before.
            limit: Events on a page. It has fewer where they are large, at least one.

        Raises:
            UsageError: When no run, or more than one, has such an id.
            RunIndexError: When the index cannot be read.
        """
        _check_page(limit, first)
        with self._reader.asking() as conn:
            return read_record(conn, run_id, first=first, limit=limit)

    def events(self, run_id: str) -> Generator[RunEvent]:
        """Go through a run's events, fetched a page at a time.

        Raises:
            UsageError: When no run, or more than one, has such an id.
            RunIndexError: When the index cannot be read.
        """
        first: int | None = 0
        while first is not None:
            record = self.read(run_id, first=first)
            yield from record.events
            first = record.next_event

    def sampled(self, run_id: str, *, first_message: int = 0, limit: int = 200) -> dict[int, SampledTokens]:
        """The tokens that a run's messages were sampled as, where the trainer gave them, by message.

        Args:
            run_id: Its id, or the start of it.
            first_message: The first message of the page: the played agent's messages are counted from 0.
            limit: Messages on a page.

        Raises:
            UsageError: When no run, or more than one, has such an id.
            RunIndexError: When the index cannot be read, or the tokens are damaged.
        """
        _check_page(limit, first_message)
        with self._reader.asking() as conn:
            return read_sampled(conn, run_id, first_message=first_message, limit=limit)

    def search(
        self, text: str, *, group: str = "", after: str | None = None, limit: int = 50, limit_s: float = 2.0
    ) -> SearchPage:
        """Find a text in prompts, messages, calls, answers, explanations and failures, the newest first.

        All the words must be in one of them: `refund order`. Quotes ask for words in a row, `"no refund"`, and an asterisk
        for words that start so, `refund*`. Case and accents make no difference. Nothing else is special.

        Args:
            text: What to look for.
            group: Only in this group and those below it; empty for all.
            after: `next_page` of the page before.
            limit: Runs on a page.
            limit_s: Seconds after which the page ends with what was found so far.

        Raises:
            UsageError: When the text has no word in it, or more than 1,000 characters.
            RunIndexError: When the index cannot be read.
        """
        _check_page(limit)
        with self._reader.asking() as conn:
            return search(conn, text, group=group, after=after, limit=limit, limit_s=limit_s)

    def delete_group(self, group: str) -> int:
        """Delete the runs of `group` and of all groups below it, as `grid` has `grid/train/step-0003` below it.

        Waits for the disk: on an event loop, call it in a thread, or `begin_group` instead. A run of it that is still under
        way is dropped.

        Returns:
            How many runs were deleted.

        Raises:
            UsageError: When the group's name is not one.
            RunIndexError: When the index was opened read-only or cannot be written.
        """
        _check_group(group)
        writer = self._writing()
        deleted = 0
        while True:
            some = writer.do(lambda conn: busy_retried(lambda: delete_some_runs(conn, group)))
            deleted += some
            if some == 0:
                return deleted

    def begin_group(self, group: str) -> None:
        """Have the runs deleted that `group`, and all groups below it, have now. Does not wait for the disk.

        For a resumed training that plays a step again, so that nothing is filed twice. Runs that are opened from now on
        stay, also those of other processes and also when they are written first.

        Raises:
            UsageError: When the group's name is not one.
            RunIndexError: When the index was opened read-only or the disk fails.
        """
        _check_group(group)
        now = time.time()

        def delete(conn: sqlite3.Connection) -> None:
            while delete_some_runs(conn, group, opened_before_s=now):
                pass

        self._writing().later(delete)

    def delete(self, where: str, *, group: str = "") -> int:
        """Delete the runs that a condition is true of, those under way too. See `select` for what it can say.

        Waits for the disk: on an event loop, call it in a thread.

        Args:
            where: The condition; `true` is every run.
            group: Only in this group and those below it; empty for all.

        Returns:
            How many runs were deleted.

        Raises:
            UsageError: When `where` is empty or no condition.
            RunIndexError: When the index was opened read-only or cannot be written.
        """
        if not where.strip():
            raise UsageError("where: say which runs to delete; `true` is every run")
        condition = Condition.of(where, group=group)
        writer = self._writing()
        writer.do(lambda _: None)
        deleted = 0
        for listed in go_through(self._reader, condition, size=_DELETE_AT_ONCE):
            if keys := listed.keys:
                deleted += writer.do(lambda conn, keys=keys: busy_retried(lambda: delete_runs(conn, keys)))
        return deleted

    def vacuum(self) -> Vacuumed:
        """Give the room of deleted runs back to the disk, and make the search index anew without their words.

        Takes about a minute for 10 GB, needs as much room again meanwhile, and holds up whoever writes: not for while a
        training is under way.

        Raises:
            RunIndexError: When the index was opened read-only, is damaged, or there is not enough room.
        """
        writer = self._writing()
        before = self._size_bytes()
        is_rebuilt = writer.put_words_in_anew()
        writer.do(lambda conn: busy_retried(lambda: conn.execute("VACUUM").fetchone()))
        writer.do(lambda conn: conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone())
        return Vacuumed(before_bytes=before, after_bytes=self._size_bytes(), is_search_rebuilt=is_rebuilt)

    def frame(self, where: str | None = None, *, group: str = "") -> pd.DataFrame:
        """The runs that a condition is true of, as a pandas DataFrame: a row each, the oldest first.

        The columns are those of `select`, with `opened_at`, `ended_at` and `last_at` as times, and beside them `scores.<verify step>` and
        `times.<model, tools, env, verify, other>`. Numbers that may be missing are nullable.

        Raises:
            MissingExtraError: When the extra `frames` is not installed.
            UsageError: When `where` is no condition.
            RunIndexError: When the index cannot be read.
        """
        return frame_of(self._reader, Condition.of(where, group=group))

    def export_jsonl(
        self, path: Path | str, where: str | None = None, *, group: str = "", events: bool = True, tokens: bool = False
    ) -> Exported:
        """Write the runs that a condition is true of to a file, a JSON object a line, the oldest first.

        Args:
            path: The file; replaced when it is there, once all is written.
            where: The condition, see `select`; None is every run.
            group: Only in this group and those below it; empty for all.
            events: Also what happened in each run.
            tokens: Also what the messages were sampled as.

        Raises:
            UsageError: When `where` is no condition, or the file cannot be written.
            RunIndexError: When the index cannot be read.
        """
        condition = Condition.of(where, group=group)
        return write_jsonl(self._reader, condition, Path(path), events=events, tokens=tokens)

    def export_parquet(
        self, path: Path | str, where: str | None = None, *, group: str = "", events: bool = True, tokens: bool = False
    ) -> Exported:
        """Write the runs that a condition is true of to a Parquet file, a row each, the oldest first.

        Objects (scores, labels, tools, times, params and the data of events) are JSON texts in it.

        Args:
            path: The file; replaced when it is there, once all is written.
            where: The condition, see `select`; None is every run.
            group: Only in this group and those below it; empty for all.
            events: Also what happened in each run, as a list.
            tokens: Also what the messages were sampled as, as a list.

        Raises:
            MissingExtraError: When the extra `frames` is not installed.
            UsageError: When `where` is no condition, or the file cannot be written.
            RunIndexError: When the index cannot be read.
        """
        condition = Condition.of(where, group=group)
        return write_parquet(self._reader, condition, Path(path), events=events, tokens=tokens)

    def flush(self) -> None:
        """Wait until all that was recorded so far is written, and 5 s at most until it can be searched for.

        Raises:
            RunIndexError: When it cannot be written.
        """
        if self._writer is not None:
            self._writer.flush()

    async def ready(self) -> None:
        """Wait while the disk is far behind; await it before opening an episode. Returns at once when it is not."""
        while self._writer is not None and self._writer.waiting_bytes > _EASY_BYTES:  # noqa: ASYNC110 -- the thread knows no loop to wake
            await anyio.sleep(0.02)

    def close(self) -> None:
        """Write all that waits and let go of the file. What is still under way shows as interrupted.

        Raises:
            RunIndexError: When it could not all be written.
        """
        self._reader.close()
        if self._writer is not None:
            self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _size_bytes(self) -> int:
        return sum(file.stat().st_size for file in self._folder.glob(f"{FILE_NAME}*"))

    def _writing(self) -> Writer:
        if self._writer is None:
            raise RunIndexError(f"{self._folder}: the run index was opened read-only")
        return self._writer


def _left_to_do(conn: sqlite3.Connection) -> list[Callable[[sqlite3.Connection], bool]]:
    """What processes that are gone, or an older version, left to who opens the index next."""
    chores: list[Callable[[sqlite3.Connection], bool]] = []
    if has_runs_without_totals(conn):
        chores.append(fill_some_totals)
    if has_left_overs(conn):
        chores.append(catch_up_some)
    return chores


def _check_group(group: str) -> None:
    if not group or group != group.strip("/ ") or not group.isprintable() or len(group) > _NAME_CHARS:
        raise UsageError(
            f"{group[:80]!r} cannot name a group of runs: write something like 'grid/train/step-0003', without control"
            f" characters, not starting or ending with '/', at most {_NAME_CHARS} characters"
        )


def _check_page(limit: int, first: int = 0) -> None:
    if not 1 <= limit <= _MOST:
        raise UsageError(f"limit: a page has 1 to {_MOST} rows, not {limit}")
    if not 0 <= first <= _MOST:
        raise UsageError(f"a page starts at 0 to {_MOST}, not at {first}")
