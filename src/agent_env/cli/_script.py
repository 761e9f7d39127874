"""A file of turns to play, in the form of a task's `gold`."""

from __future__ import annotations

from pathlib import Path

from pydantic import RootModel

from agent_env.bundle import GoldTurn
from agent_env.bundle.document import read_yaml
from agent_env.bundle.gold import gold_turns
from agent_env.bundle.schema_tasks import GoldTurnFile
from agent_env.bundle.shape_problems import shape
from agent_env.errors import BundleError, Problem, UsageError

__all__ = ["read_script"]


class _Script(RootModel[list[GoldTurnFile]]):
    """The whole file."""


def read_script(path: Path) -> tuple[GoldTurn, ...]:
    """Read a YAML or JSON file: a list of turns, each with `calls` (`tool`, `arguments`) and a `reply`.

    Raises:
        UsageError: When there is no such file.
        BundleError: When it does not fit.
    """
    if not path.is_file():
        raise UsageError(f"--script: there is no file {path}")
    problems: list[Problem] = []
    document = read_yaml(path.parent, Path(path.name), problems)
    script = None if document is None else shape(_Script, document, problems)
    if script is None or problems:
        raise BundleError(problems)
    return gold_turns(script.root)
