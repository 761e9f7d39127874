"""What an env's class says about itself when its bundle is validated.

The class comes from above this layer, so what is asked of it is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from agent_env.errors import Problem

__all__ = ["ChecksItself", "CodeProblem", "EnvCheck", "path_in_bundle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeProblem:
    """One thing that is wrong in a Python file."""

    file: str
    """The file's absolute path."""
    line: int
    """From 1."""
    what: str
    fix: str

    def in_bundle(self, root: Path) -> Problem:
        """Return the problem as one of the bundle at `root`."""
        return Problem(path=path_in_bundle(self.file, root), line=self.line, what=self.what, fix=self.fix)


def path_in_bundle(file: str, root: Path) -> Path:
    """Return a file's path relative to the bundle at `root`; as it is where it is not inside."""
    path = Path(file)
    return path.relative_to(root) if path.is_relative_to(root) else path


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvCheck:
    """An env's tools and what is wrong with them."""

    tools: Mapping[str, tuple[str, int]]
    """By name: the file and line of each."""
    problems: Sequence[CodeProblem]
    misfits: Callable[[str, Mapping[str, Any]], Sequence[str]]
    """What is wrong with a call of one of the tools: a line per parameter, none when it fits."""


@runtime_checkable
class ChecksItself(Protocol):
    """What `agent_env.Env` and its subclasses are to validation."""

    @classmethod
    def __agent_env_check__(cls) -> EnvCheck:
        """Return the class's tools and what is wrong with them."""
        ...
