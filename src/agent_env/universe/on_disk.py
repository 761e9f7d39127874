"""A universe as files, for what finds its state in the folder that it works in: MCP servers and sandboxes."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from agent_env.bundle import UniverseKind, UniverseSpec
from agent_env.errors import UniverseError, UsageError
from agent_env.universe.change import ChangeLimits, StateChanges
from agent_env.universe.database import DatabaseImage, read_database
from agent_env.universe.database_diff import DatabaseState, database_differences
from agent_env.universe.diff import Rules, bounded, find_differences
from agent_env.universe.directory import Copied, copy_file, copy_tree, held_folder, look_at
from agent_env.universe.directory_diff import DirectoryState, directory_differences, told_whether_kept
from agent_env.universe.frozen import read_json
from agent_env.universe.holders import Holder
from agent_env.universe.inside import chunks_inside
from agent_env.universe.private_copy import Comparison, compared, fresh_database
from agent_env.universe.reading import read_once

__all__ = ["changes_on_disk", "open_universe_on_disk"]

_READ_BYTES = 16 * 2**20
"""What JSON may have become, beside four times what it was: parsed it takes many times as much memory."""
_DATABASE_BYTES = 2**30
"""What a database may have become, beside twice what it was."""
_TRIES = 10
_FOLDER = "universe"
"""What the folder is called, when the universe is no directory and has no name of its own for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OnDisk:
    """A universe that is in a folder."""

    spec: UniverseSpec | None
    copied: Mapping[str, Copied]
    """What the folder consisted of when it was made, by path within it."""


_open: dict[Path, _OnDisk] = {}


@asynccontextmanager
async def open_universe_on_disk(spec: UniverseSpec | None) -> AsyncGenerator[Path]:
    """Make a private folder with a universe in it, and remove the folder when the block ends.

    Args:
        spec: The universe. A directory is the folder itself; a JSON file and a database are in it, under their own names;
            None is an empty folder.

    Yields:
        The folder.

    Raises:
        UniverseError: When the universe cannot be copied.
    """
    name = spec.path.name if spec is not None and spec.kind is UniverseKind.DIRECTORY else _FOLDER
    source = None if spec is None else spec.path
    async with held_folder(partial(_fill, spec, name), source=source) as (holder, copied):
        folder = holder / name
        _open[folder] = _OnDisk(spec=spec, copied=copied)
        try:
            yield folder
        finally:
            del _open[folder]


def _fill(spec: UniverseSpec | None, name: str, holder: Path, check: Callable[[], None]) -> Mapping[str, Copied]:
    folder = holder / name
    if spec is not None and spec.kind is UniverseKind.DIRECTORY:
        return copy_tree(spec.path, folder, check)
    folder.mkdir()
    if spec is None:
        return {}
    files = [spec.path]
    log = spec.path.with_name(f"{spec.path.name}-wal")
    if spec.kind is UniverseKind.SQLITE and log.exists():
        files.append(log)  # what is committed there belongs to the database
    copied: dict[str, Copied] = {}
    for file in files:
        original = look_at(file)
        copy_file(file, folder / file.name)
        copied[file.name] = Copied(original, look_at(folder / file.name))
    return copied


async def changes_on_disk(folder: Path, *, is_lent: bool = False, limits: ChangeLimits | None = None) -> StateChanges:
    """Return what is different from the universe in a folder: as in `PrivateCopy.changes`, by values, rows or files.

    Args:
        folder: What `open_universe_on_disk` has yielded; its block has not ended.
        is_lent: Whether somebody works in it who has other rights than this process, as in a sandbox. A database is read
            from a copy then: SQLite opens whatever a name leads to.
        limits: How much is kept.

    Raises:
        UniverseError: When what is in the folder cannot be compared: the file is gone, is no JSON or no database.
        UsageError: When it is no such folder.
    """
    on_disk = _open.get(folder)
    if on_disk is None:
        raise UsageError(f"{folder} is no universe on disk, or its block has ended")
    spec, limits = on_disk.spec, limits or ChangeLimits()
    if spec is None or spec.kind is UniverseKind.DIRECTORY:
        original = folder if spec is None else spec.path
        state = DirectoryState(path=folder, copied=on_disk.copied, original=original)
        return await compared(partial(_find_in_files, state), Rules.of(), limits)
    file = folder / spec.path.name
    if spec.kind is UniverseKind.SQLITE:
        image = await read_once(spec.path, read_database)
        return await compared(partial(_find_in_database, file, on_disk.copied, image, is_lent), Rules.of(), limits)
    frozen = await read_once(spec.path, read_json)
    return await compared(partial(_find_in_json, file, on_disk.copied, frozen.root), Rules.of(), limits)


def _find_in_files(state: DirectoryState, how: Comparison) -> StateChanges:
    found = directory_differences(None, state, how.rules, limits=how.limits, check=how.check)
    return told_whether_kept(found, how.limits)


def _is_untouched(file: Path, copied: Mapping[str, Copied]) -> bool:
    return look_at(file) == copied[file.name].copy


def _find_in_json(file: Path, copied: Mapping[str, Copied], before: Any, how: Comparison) -> StateChanges:
    if _is_untouched(file, copied):
        return StateChanges()
    most_bytes = _READ_BYTES + 4 * copied[file.name].copy.size
    try:
        after = json.loads(_read(file, how, most_bytes).decode("utf-8-sig"))
    except (ValueError, RecursionError) as exc:
        raise UniverseError(f"the state cannot be compared: {file.name} is no JSON any more: {exc}") from exc
    return bounded(find_differences(before, after, how.rules, check=how.check), how.limits)


def _read(file: Path, how: Comparison, most_bytes: int) -> bytes:
    """Return what is in a file, which must still be one."""
    size = look_at(file).size
    if size > most_bytes:
        raise UniverseError(f"the state cannot be compared: {file.name} has {size:,} bytes, {most_bytes:,} are read")
    return b"".join(chunks_inside(file.parent, file.name, how.check, most_bytes=most_bytes))


def _find_in_database(
    file: Path,
    copied: Mapping[str, Copied],
    image: DatabaseImage,
    is_lent: bool,  # noqa: FBT001 - what a partial is made of
    how: Comparison,
) -> StateChanges:
    logs = {f"{file.name}-wal"} & {*os.listdir(file.parent), *copied}
    is_same_log = all(name in copied and (file.parent / name).exists() for name in logs)
    if is_same_log and all(_is_untouched(file.parent / name, copied) for name in (file.name, *logs)):
        return StateChanges()
    for name in _files_of(file):
        if look_at(file.parent / name).kind != "file":
            raise UniverseError(f"the state cannot be compared: {name} is no file any more")
    with ExitStack() as stack:
        if is_lent:
            holder = Holder()
            stack.callback(holder.remove)
            most_bytes = _DATABASE_BYTES + 2 * copied[file.name].copy.size
            file = _copied(file, holder.path, how, most_bytes)
        # Read only: a server that still has it open must not find it changed.
        connection = stack.enter_context(closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)))
        before = stack.enter_context(fresh_database(image))
        after = DatabaseState(connection=connection)
        return bounded(database_differences(before, after, how.rules, check=how.check), how.limits)


def _files_of(file: Path) -> list[str]:
    """Return the names that SQLite would open for a database."""
    return [name for end in ("", "-wal", "-journal") if os.path.lexists(file.parent / (name := f"{file.name}{end}"))]


def _copied(file: Path, to: Path, how: Comparison, most_bytes: int) -> Path:
    """Copy a database with its log, as they are at one moment."""
    for _ in range(_TRIES):
        before = {name: look_at(file.parent / name) for name in _files_of(file)}
        for name, entry in before.items():
            if entry.size > most_bytes:
                raise UniverseError(f"the state cannot be compared: {name} has {entry.size:,} bytes")
            with (to / name).open("wb") as copy:
                copy.writelines(chunks_inside(file.parent, name, how.check, most_bytes=entry.size))
        if before == {name: look_at(file.parent / name) for name in _files_of(file)}:
            return to / file.name
        for name in before:
            (to / name).unlink()
    raise UniverseError(f"the state cannot be compared: {file.name} is written to all the time")
