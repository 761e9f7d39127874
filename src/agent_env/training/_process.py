"""What the group builders of one process share: bundles and run indexes, each opened once and found by path.

A group builder holds paths and settings, so that it can be sent to another process; there it finds its things here.
"""

from __future__ import annotations

import asyncio
import threading
from hashlib import sha256
from pathlib import Path
from typing import IO

from agent_env._locking import HeldError, hold
from agent_env.bundle import Bundle, load_bundle
from agent_env.errors import RunIndexError, TrainingError
from agent_env.runs import RunIndex

__all__ = ["bundle", "close_run_indexes", "hold_name", "opened", "run_index"]

_lock = threading.Lock()
_bundles: dict[Path, Bundle] = {}
_indexes: dict[Path, RunIndex] = {}
_names: dict[Path, IO[str]] = {}


def bundle(path: Path, *, fresh: bool = False) -> Bundle:
    """The bundle at `path`, read once, or again when `fresh`.

    Raises:
        BundleError: When it has problems.
        UsageError: When there is none.
    """
    path = path.resolve()
    with _lock:
        if fresh or path not in _bundles:
            _bundles[path] = load_bundle(path)
        return _bundles[path]


def run_index(folder: Path) -> RunIndex:
    """The run index of `folder`, open for writing; it is closed when the process ends.

    Raises:
        RunIndexError: When it cannot be opened.
    """
    folder = folder.resolve()
    with _lock:
        if folder not in _indexes:
            _indexes[folder] = RunIndex.open(folder)
        return _indexes[folder]


async def opened(bundle_root: Path, runs: Path) -> tuple[Bundle, RunIndex]:
    """The bundle and the run index at two resolved paths; what this process has not read or opened yet is, in a thread.

    Raises:
        BundleError: When the bundle has problems.
        UsageError: When there is none.
        RunIndexError: When the run index cannot be opened.
    """
    found, index = _bundles.get(bundle_root), _indexes.get(runs)  # without the lock: it is held while files are read
    if found is None:
        found = await asyncio.to_thread(bundle, bundle_root)
    if index is None:
        index = await asyncio.to_thread(run_index, runs)
    return found, index


def hold_name(runs: Path, run_name: str) -> None:
    """Have no other process train under a name in a runs folder, as long as this one has its run index open.

    Two trainings of one name would delete each other's runs. Asked again in the same process, it is the same training: one
    that goes on, or is begun anew.

    Raises:
        TrainingError: When another process has the name.
        RunIndexError: When the folder cannot be written.
    """
    path = runs / "trainings" / f"{sha256(run_name.encode()).hexdigest()[:32]}.lock"
    with _lock:
        if path in _names:
            return
        try:
            _names[path] = hold(path)
        except HeldError:
            raise TrainingError(
                f"run_name={run_name!r}: another process trains under this name in {runs}: give this one another run_name"
            ) from None
        except OSError as exc:
            raise RunIndexError(f"{path.parent}: {exc.strerror}: choose a folder that can be written") from exc


def close_run_indexes() -> None:
    """Write what waits, close the run indexes that this process has open for its trainings, and give their names back.

    Raises:
        RunIndexError: When something could not be written.
    """
    with _lock:
        indexes, names = list(_indexes.values()), list(_names.values())
        _indexes.clear()
        _names.clear()
    try:
        for index in indexes:
            index.close()
    finally:
        for file in names:
            file.close()
