"""Telling one version of a universe from another: for the run, so that nobody scores it on a universe that it was not played in."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path

from anyio import to_thread

from agent_env.bundle import UniverseKind, UniverseSpec
from agent_env.errors import UniverseError
from agent_env.universe.reading import read_once

__all__ = ["fingerprint"]

_trees: dict[Path, tuple[tuple[object, ...], str]] = {}


async def fingerprint(spec: UniverseSpec) -> str:
    """Return a hash of all that a universe consists of: its bytes, or its files by path.

    Computed once in a process for each version of the files, as their sizes and times tell.

    Raises:
        UniverseError: When it cannot be read.
    """
    if spec.kind is not UniverseKind.DIRECTORY:
        return await read_once(spec.path, _of_file)
    try:
        return await to_thread.run_sync(partial(_of_tree, spec.path))
    except OSError as exc:
        raise UniverseError(f"{exc.filename or spec.path}: the universe cannot be read: {exc.strerror}") from exc


def _of_file(path: Path) -> str:
    digest = hashlib.sha256()
    for file in (path, path.with_name(f"{path.name}-wal")):
        if file.exists():
            with file.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def _of_tree(top: Path) -> str:
    files = sorted(path for path in top.rglob("*") if path.is_symlink() or path.is_file())
    stats = [path.lstat() for path in files]
    version = tuple((str(path), stat.st_size, stat.st_mtime_ns) for path, stat in zip(files, stats, strict=True))
    kept = _trees.get(top)
    if kept is not None and kept[0] == version:
        return kept[1]
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(top)}\0".encode("utf-8", "surrogateescape"))
        if path.is_symlink():
            digest.update(f"link {path.readlink()}\0".encode("utf-8", "surrogateescape"))
        else:
            with path.open("rb") as opened:
                digest.update(hashlib.file_digest(opened, "sha256").digest())
    _trees[top] = version, digest.hexdigest()
    return digest.hexdigest()
