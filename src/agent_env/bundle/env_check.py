"""What an env's class says about itself when its bundle is validated.

The class comes from above this layer, so what is asked of it is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

__all__ = ["ChecksItself", "CodeProblem", "EnvCheck"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeProblem:
    """One thing that is wrong in a Python file."""

    file: str
    """The file's absolute path."""
    line: int
    """From 1."""
    what: str
    fix: str


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
