"""What the group builders of one process share: bundles and run indexes, each opened once and found by path.

A group builder holds paths and settings, so that it can be sent to another process; there it finds its things here.
"""

from __future__ import annotations

import threading
from pathlib import Path

from agent_env.bundle import Bundle, load_bundle
from agent_env.runs import RunIndex

__all__ = ["bundle", "close_run_indexes", "run_index"]

_lock = threading.Lock()
_bundles: dict[Path, Bundle] = {}
_indexes: dict[Path, RunIndex] = {}


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


def close_run_indexes() -> None:
    """Write what waits and close the run indexes that this process has open for its trainings.

    Raises:
        RunIndexError: When something could not be written.
    """
    with _lock:
        indexes = list(_indexes.values())
        _indexes.clear()
    for index in indexes:
        index.close()
