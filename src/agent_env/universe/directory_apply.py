"""Making recorded changes of a directory again."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

from agent_env.errors import UniverseError
from agent_env.universe.change import MISSING, Change, StateChanges, from_pointer
from agent_env.universe.directory import look_at
from agent_env.universe.directory_diff import described
from agent_env.universe.still_there import not_the_same, not_there

__all__ = ["apply_to_directory"]


def apply_to_directory(changes: StateChanges, top: Path) -> None:
    """Make changes again.

    Raises:
        UniverseError: When they do not fit the directory.
    """
    placed = [(_place(change, top), change) for change in changes.changes]
    try:
        for path, change in placed:
            _check(change, path, top)
        # What is in a directory goes before the directory does, and comes after it.
        for path, change in reversed(placed):
            if change.before is not MISSING:
                _remove(path)
        for path, change in placed:
            if change.after is not MISSING:
                if _is_behind_symlink(path, top):  # one that another change has made
                    raise not_there(change)
                _make(path, change.after)
    except (OSError, KeyError, TypeError, ValueError) as exc:
        raise not_the_same(exc) from exc


def _place(change: Change, top: Path) -> Path:
    """Return where a change is, which is inside."""
    segments = from_pointer(change.path)
    if not segments or any(segment in ("", ".", "..") or "/" in segment or "\0" in segment for segment in segments):
        raise UniverseError(f"the changes cannot be made again: '{change.path}' is no path in a directory")
    return top.joinpath(*segments)


def _check(change: Change, path: Path, top: Path) -> None:
    if _is_behind_symlink(path, top) or os.path.lexists(path) == (change.before is MISSING):
        raise not_there(change)
    if change.before is not MISSING:
        most_bytes = 0 if "sha256" in change.before else 2**62
        now = described(top, str(path.relative_to(top)), look_at(path), lambda: None, most_bytes=most_bytes)
        if any(now.get(name) != value for name, value in change.before.items()):
            raise not_there(change)


def _is_behind_symlink(path: Path, top: Path) -> bool:
    return any(parent.is_symlink() for parent in path.parents if parent != top and parent.is_relative_to(top))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink()


def _make(path: Path, entry: dict[str, Any]) -> None:
    if entry["type"] == "directory":
        path.mkdir()
    elif entry["type"] == "symlink":
        path.symlink_to(entry["target"])
    else:
        content = entry["text"].encode() if "text" in entry else base64.b64decode(entry["base64"])
        with path.open("xb") as file:
            file.write(content)
        path.chmod(int(entry["mode"], 8))
