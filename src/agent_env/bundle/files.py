"""Paths that a bundle's files name: all of them stay inside its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from agent_env.bundle._suggest import closest

__all__ = ["BundleFiles", "MisfitError"]


class MisfitError(Exception):
    """Something written in a bundle file does not fit. Becomes a `Problem` where the line is known."""

    def __init__(self, what: str, fix: str) -> None:
        super().__init__(f"{what}, {fix}")
        self.what = what
        self.fix = fix


@dataclass(frozen=True, slots=True)
class BundleFiles:
    """The files of one bundle."""

    root: Path
    """The bundle's folder, resolved."""

    def find(self, written: str, *, directory_too: bool = False) -> Path:
        """Return the file that `written` names, as a path relative to the bundle.

        Args:
            written: What stands in the bundle file, with `/` between parts.
            directory_too: Whether a directory will do.

        Raises:
            MisfitError: When the path leaves the bundle, also through a symlink, or nothing is there.
        """
        inside = "write a path relative to the bundle's folder"
        path = PurePosixPath(written)
        if not written.strip() or "\0" in written:
            raise MisfitError("the path is empty", inside)
        if path.is_absolute() or PureWindowsPath(written).drive or "\\" in written:
            raise MisfitError(f"'{written}' is not a relative path with '/'", inside)
        if ".." in path.parts:
            raise MisfitError(f"'{written}' leaves the bundle", inside)
        full = self.root / path
        try:
            real = full.resolve()
        except (OSError, RuntimeError):
            raise MisfitError(f"'{written}' is a symlink in a circle", inside) from None
        if not real.is_relative_to(self.root):
            raise MisfitError(f"'{written}' leaves the bundle through a symlink", "copy the file into the bundle")
        if full.is_file() or (directory_too and full.is_dir()):
            return Path(path)
        if full.is_dir():
            raise MisfitError(f"'{written}' is a directory", "name a file in it")
        if full.exists():  # reading a pipe or a device would wait for ever
            raise MisfitError(f"'{written}' is no regular file", "put a file in its place")
        raise MisfitError(f"there is no file '{written}'", self._near(path))

    def _near(self, path: PurePosixPath) -> str:
        parent = self.root / path.parent
        names = [entry.name for entry in sorted(parent.iterdir())] if parent.is_dir() else []
        near = closest(path.name, names)
        return "add it or correct the path" if near is None else f"did you mean '{path.parent / near}'?"
