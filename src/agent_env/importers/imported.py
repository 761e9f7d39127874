"""What an import comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["ImportedBundle"]


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
