"""A universe as files, for what finds its state in the folder that it works in: MCP servers and sandboxes."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, closing
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
from agent_env.universe.private_copy import Comparison, compared, fresh_database
from agent_env.universe.reading import read_once

__all__ = ["changes_on_disk", "open_universe_on_disk"]

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


async def changes_on_disk(folder: Path, *, limits: ChangeLimits | None = None) -> StateChanges:
    """Return what is different from the universe in a folder: as in `PrivateCopy.changes`, by values, rows or files.

    Args:
        folder: What `open_universe_on_disk` has yielded; its block has not ended.
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
        return await compared(partial(_find_in_database, file, on_disk.copied, image), Rules.of(), limits)
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
    try:
        after = json.loads(file.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as exc:
        raise UniverseError(f"the state cannot be compared: {file.name} is no JSON any more: {exc}") from exc
    return bounded(find_differences(before, after, how.rules, check=how.check), how.limits)


def _find_in_database(file: Path, copied: Mapping[str, Copied], image: DatabaseImage, how: Comparison) -> StateChanges:
    logs = [name for name in os.listdir(file.parent) if name == f"{file.name}-wal"]
    if _is_untouched(file, copied) and all(
        name in copied and _is_untouched(file.parent / name, copied) for name in logs
    ):
        return StateChanges()
    # Read only: a server that still has it open must not find it changed.
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection, fresh_database(image) as before:
        after = DatabaseState(connection=connection)
        return bounded(database_differences(before, after, how.rules, check=how.check), how.limits)
