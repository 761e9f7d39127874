"""What an import comes to, and the folder that it writes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

from agent_env.errors import UsageError

__all__ = ["ImportedBundle", "new_folder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedBundle:
    """A bundle that was made of something else."""

    root: Path
    """The new bundle's folder, absolute."""
    tasks: int
    """How many tasks it has."""
    evals: Mapping[str, int] = field(hash=False)
    """How many tasks each of its evals has."""
    notes: tuple[str, ...] = ()
    """What was left out or read in a way that one should know of, a sentence each."""


@contextmanager
def new_folder(target: Path) -> Generator[Path]:
    """Make a folder that is there as a whole or not at all.

    Args:
        target: Where it is to be: a path that is not there yet, or an empty folder. Folders above it are made.

    Yields:
        A folder beside `target` to write into. When the block ends it becomes `target`; when the block raises it is
        removed. A process that is killed in it leaves it behind, under a hidden name.

    Raises:
        UsageError: When something is at `target`, or no folder can be made there.
    """
    target = target.absolute()
    if os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir())):
        raise UsageError(f"{target} is there already: name a folder that is not, or remove it first")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        holder = Path(mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as exc:
        raise UsageError(f"{target}: the folder cannot be made: {exc.strerror}") from exc
    try:
        building = holder / target.name
        building.mkdir()
        yield building
        try:
            building.rename(target)
        except OSError as exc:
            raise UsageError(f"{target}: the folder cannot be made: {exc.strerror}") from exc
    finally:
        shutil.rmtree(holder, ignore_errors=True)
