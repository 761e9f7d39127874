"""Whether a universe can be copied: looked at when its bundle is validated."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from agent_env.bundle.json_text import JsonFault, JsonFileError, read_json
from agent_env.bundle.specs import UniverseKind, UniverseSpec
from agent_env.errors import Problem

__all__ = ["check_universe"]


def check_universe(spec: UniverseSpec, root: Path) -> Iterator[Problem]:
    """Yield everything that keeps a universe from being copied.

    Args:
        spec: The universe.
        root: The bundle's folder.
    """
    path = spec.path.relative_to(root)
    try:
        if spec.kind is UniverseKind.JSON:
            yield from _check_json(spec.path, path)
        elif spec.kind is UniverseKind.SQLITE:
            yield from _check_database(spec.path, path)
        else:
            yield from _check_directory(spec.path, root)
    except OSError as exc:
        what = f"the universe cannot be read ({exc.strerror})"
        yield Problem(path=path, line=1, what=what, fix="make it readable")


def _check_json(full: Path, path: Path) -> Iterator[Problem]:
    try:
        read_json(full.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError:
        yield Problem(path=path, line=1, what="the file is not UTF-8 text", fix="save it as UTF-8")
    except JsonFileError as exc:
        what = f"this is not JSON: {exc.what}" if exc.fault is JsonFault.SYNTAX else exc.what
        yield Problem(path=path, line=exc.line, what=what, fix=exc.fix)


def _check_database(full: Path, path: Path) -> Iterator[Problem]:
    try:
        with closing(sqlite3.connect(f"{full.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as exc:
        yield Problem(path=path, line=1, what=f"this is not a SQLite database: {exc}", fix="make it anew")


def _check_directory(full: Path, root: Path) -> Iterator[Problem]:
    for entry in sorted(full.rglob("*")):
        relative = entry.relative_to(root)
        if entry.is_symlink():
            if os.readlink(entry).startswith("/") or not entry.resolve().is_relative_to(full.resolve()):
                what = "a symlink leads out of the universe"
                yield Problem(path=relative, line=1, what=what, fix="copy what it leads to there")
        elif not (entry.is_file() or entry.is_dir()):
            what = "this is no file, directory or symlink"
            yield Problem(path=relative, line=1, what=what, fix="remove it from the universe")
