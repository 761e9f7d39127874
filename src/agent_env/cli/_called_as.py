"""How this command was called, for the lines that tell a user what to run next: pasted as they are, they run."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

__all__ = ["called_as"]

_NAME = "agent-env"


def called_as() -> str:
    """Return what a user writes for `agent-env` where they have called it, as part of a line for a shell."""
    path = Path(sys.argv[0])
    if (path.parent.name, path.name) == ("agent_env", "__main__.py"):
        return f"{shlex.quote(sys.orig_argv[0])} -m agent_env"
    if path.name != _NAME:  # called from a program, such as a test
        return _NAME
    on_path = shutil.which(_NAME)
    if on_path is not None and path.exists() and Path(on_path).samefile(path):
        return _NAME
    return shlex.quote(sys.argv[0])
