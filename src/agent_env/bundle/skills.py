"""Skills: folders with a `SKILL.md` that an agent is shown by name and description, and reads when it needs them.

The form is that of Agent Skills (a YAML front matter with `name` and `description`, then Markdown); a file without a front
matter is a skill too, described by its first line.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from agent_env.bundle.files import MisfitError

__all__ = ["Skill", "read_skill"]

_FENCE = "---"


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """One skill of a bundle."""

    name: str
    """Its folder's name under `skills/`."""
    description: str
    """What it is for, in one line: all that an agent sees before it reads it."""
    folder: Path
    """The folder, absolute."""


def read_skill(folder: Path) -> Skill:
    """Read what an agent is shown of the skill in a folder that has a SKILL.md.

    Raises:
        MisfitError: When the file is no text, its front matter no mapping, or it describes nothing.
    """
    name = f"skills/{folder.name}/SKILL.md"
    try:
        text = (folder / "SKILL.md").read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        raise MisfitError(f"'{name}' is not UTF-8 text", "save it as UTF-8") from None
    front, body = _parted(text, name)
    said = front.get("name", folder.name)
    if said != folder.name:
        raise MisfitError(f"'{name}' names the skill '{said}'", f"write name: {folder.name}, as its folder")
    description = front.get("description")
    if description is None:
        lines = (line.strip("# \t") for line in body.splitlines())
        description = next((line for line in lines if line), "")
    if not isinstance(description, str) or not description.strip():
        raise MisfitError(f"'{name}' does not say what the skill is for", "add description: to its front matter")
    return Skill(name=folder.name, description=" ".join(description.split()), folder=folder)


def _parted(text: str, name: str) -> tuple[dict[str, Any], str]:
    """Return a file's front matter and the text after it."""
    lines = text.splitlines()
    if not lines or lines[0].rstrip() != _FENCE:
        return {}, text
    end = next((at for at, line in enumerate(lines[1:], 1) if line.rstrip() == _FENCE), None)
    if end is None:
        raise MisfitError(f"the front matter of '{name}' has no end", "close it with a line ---")
    try:
        front: object = yaml.safe_load("\n".join(lines[1:end]))
    except (yaml.YAMLError, ValueError, RecursionError):  # a date that is none; a thousand lists inside one another
        raise MisfitError(f"the front matter of '{name}' is not YAML", "write name: ... and description: ...") from None
    if not isinstance(front, dict | None):
        raise MisfitError(f"the front matter of '{name}' is no mapping", "write name: ... and description: ...")
    return cast("dict[str, Any]", front or {}), "\n".join(lines[end + 1 :])
