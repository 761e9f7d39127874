"""A folder that is there as a whole, or not at all."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["new_folder"]


@contextmanager
def new_folder(target: Path) -> Generator[Path]:
    """Make a folder, or fill an empty one.

    Args:
        target: Where it is to be: a path that is not there yet, or an empty folder. Folders above it are made.

    Yields:
        A folder to write into, under a hidden name. When the block ends, what is in it is in `target`; when the block
        raises, it is removed. A process that is killed in the block leaves it behind.

    Raises:
        OSError: When the folder cannot be made, or something has come to `target` meanwhile.
    """
    is_there = target.is_dir()
    if is_there:  # filled and not replaced: it may be the one that the shell is in
        building = target / f".new-{secrets.token_hex(4)}"
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        building = target.parent / f".{target.name[:100]}-{secrets.token_hex(4)}"
    building.mkdir()
    try:
        yield building
        if is_there:
            _move_all(building, target)
        else:
            building.rename(target)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _move_all(source: Path, target: Path) -> None:
    moved: list[Path] = []
    try:
        for entry in sorted(source.iterdir()):
            moved.append(target / entry.name)
            entry.rename(moved[-1])
    except BaseException:  # also Ctrl-C: all of it, or nothing
        for path in moved:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        raise
