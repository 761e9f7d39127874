"""A small bundle to begin with, written into a new folder: it validates, plays, and has a test.

The files are in `template/`, which is a bundle itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath

from agent_env._new_folder import new_folder
from agent_env.errors import UsageError

__all__ = ["Scaffold", "write_scaffold"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_TEMPLATE_NAME = "library-desk"
_TEST = "tests/test_bundle.py"
_FIRST_TASK = "lend-emma"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaffold:
    """What was written."""

    folder: Path
    name: str
    """The bundle's name."""
    files: tuple[PurePosixPath, ...]
    """Relative to the folder."""
    first_task: str
    """A task to play first."""


def write_scaffold(folder: Path, *, name: str | None = None) -> Scaffold:
    """Write a small bundle. What is there afterwards is all of it, or nothing.

    Args:
        folder: Where; a folder that is not there yet, or an empty one.
        name: The bundle's name; the folder's where not given, with `-` for what a name cannot have.

    Raises:
        UsageError: When the folder is not empty or cannot be written, or there is no name in it.
    """
    name = _name(_named(folder), name)
    contents = dict(_contents(name))
    try:
        if folder.is_dir():
            if any(folder.iterdir()):
                raise UsageError(f"{folder} is not empty: name a new folder, or empty it")
        elif folder.exists() or folder.is_symlink():
            raise UsageError(f"{folder} is no folder: name a new one")
        with new_folder(folder) as building:
            _write(building, contents)
    except OSError as exc:
        raise UsageError(f"{exc.filename or folder}: {exc.strerror or exc}") from exc
    return Scaffold(folder=folder, name=name, files=tuple(contents), first_task=_FIRST_TASK)


def _named(folder: Path) -> str:
    try:
        return folder.resolve().name
    except (OSError, RuntimeError) as exc:  # a circle of links
        raise UsageError(f"{str(folder)!r} is no path: {getattr(exc, 'strerror', None) or exc}") from exc


def _name(of_folder: str, name: str | None) -> str:
    if name is not None:
        if not _NAME.fullmatch(name):
            raise UsageError(f"--name: {name!r} is no name: write a letter or digit, then letters, digits and . _ -")
        return name
    made = re.sub(r"[^A-Za-z0-9._-]+", "-", of_folder).strip("-._")[:200]
    if not made:
        raise UsageError(f"no name for the bundle can be made of {of_folder!r}, give one with --name")
    return made


def _contents(name: str) -> Iterator[tuple[PurePosixPath, str]]:
    """Yield the files with their texts."""
    for path, file in _walk(files("agent_env.bundle").joinpath("template"), PurePosixPath()):
        text = file.read_text(encoding="utf-8").replace(_TEMPLATE_NAME, name)
        if path.name == "gitignore":
            path = path.with_name(".gitignore")
        elif path == PurePosixPath(_TEST):
            path = path.with_name(f"test_{re.sub(r'[^a-z0-9]+', '_', name.lower())}.py")
        yield path, text


def _walk(folder: Traversable, path: PurePosixPath) -> Iterator[tuple[PurePosixPath, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_file():
            yield path / entry.name, entry
        elif entry.name != "__pycache__":
            yield from _walk(entry, path / entry.name)


def _write(folder: Path, contents: dict[PurePosixPath, str]) -> None:
    for name, text in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
