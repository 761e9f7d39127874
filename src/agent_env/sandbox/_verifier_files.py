"""The folder on the disk that only a jail's verifiers see: written from outside, and by nobody inside."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from importlib.resources import files as resources
from pathlib import Path, PurePosixPath

from agent_env._cleanup import remove_tree
from agent_env.sandbox.contract import PlacedFile

__all__ = ["AS_AGENT", "VerifierFiles"]

AS_AGENT = "as-agent"


class VerifierFiles:
    """The folder. What blocks is for a thread."""

    def __init__(self, path: Path, *, gid: int | None) -> None:
        """Make it.

        Args:
            path: Where; its parent can be entered by the sandbox's user.
            gid: The sandbox's group, which can read what is in it; None where the sandbox's user is this process's.
        """
        self.path = path
        self._is_others = gid is not None
        path.mkdir(mode=0o700)
        if gid is not None:
            os.chown(path, -1, gid)
            self._make_readable(path)

    def _make_readable(self, folder: Path) -> None:
        folder.chmod(0o2750 if self._is_others else 0o700)  # what is made in it has its group

    def write(self, name: str, files: Sequence[PlacedFile]) -> None:
        """Make a folder in it, with files. Blocks.

        Raises:
            OSError: When that cannot be done.
        """
        top = self.path / name
        for folder in sorted({top, *(top / above for file in files for above in file.path.parents)}):
            folder.mkdir(exist_ok=True)
            self._make_readable(folder)
        for file in files:
            self._write(top / file.path, file.content, is_executable=file.is_executable)

    def write_as_agent(self, python: str, door: PurePosixPath) -> None:
        """Make the program that runs another on the agent's side, unless it is there. Blocks.

        Args:
            python: What runs it, as the sandbox sees it.
            door: The socket at which it asks.

        Raises:
            OSError: When that cannot be done.
        """
        path = self.path / AS_AGENT
        if not path.exists():
            text = f"#!{python} -ISB\n{_as_agent()}\nsys.exit(main({str(door)!r}))\n"
            self._write(path, text.encode(), is_executable=True)

    def _write(self, path: Path, content: bytes, *, is_executable: bool) -> None:
        mode = (0o750 if is_executable else 0o640) if self._is_others else (0o700 if is_executable else 0o600)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(fd, "wb") as file:
            file.write(content)
            os.fchmod(fd, mode)

    def remove(self, name: str) -> None:
        """Remove a folder in it. Blocks."""
        remove_tree(self.path / name)


@cache
def _as_agent() -> str:
    return (resources("agent_env.sandbox") / "_inside" / "as_agent.py").read_text("utf-8")
