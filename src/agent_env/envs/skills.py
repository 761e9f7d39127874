"""The tool that an agent reads its skills with, and how it is told of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anyio import to_thread

from agent_env.bundle import Skill, names_or_closest
from agent_env.envs.contract import Refusal, ToolAnswer, ToolSpec
from agent_env.envs.refusals import not_called, refused
from agent_env.envs.result_text import clean_text
from agent_env.universe import StateChanges

__all__ = ["READ_SKILL", "SkillShelf", "skills_text"]

READ_SKILL = "read_skill"

_SPEC = ToolSpec(
    name=READ_SKILL,
    description="Read one of your skills: its instructions, or another file of its folder.",
    parameters={
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "The skill's name."},
            "file": {"type": "string", "description": "A file in the skill's folder.", "default": "SKILL.md"},
        },
        "required": ["name"],
        "additionalProperties": False,
    },
)
_MAX_BYTES = 400_000


def skills_text(skills: Sequence[Skill]) -> str:
    """Return what an agent's system prompt says of its skills."""
    listed = "\n".join(f"- {skill.name}: {skill.description}" for skill in skills)
    return (
        "You have skills, which are instructions for particular kinds of work. Before you do such work, read the skill "
        f"with the tool {READ_SKILL}.\n\n{listed}"
    )


class SkillShelf:
    """An agent's skills as an env: one tool, the same from the first turn on, whatever skills are added later."""

    def __init__(self) -> None:
        self.skills: dict[str, Skill] = {}

    @property
    def tools(self) -> Sequence[ToolSpec]:
        """The one tool."""
        return (_SPEC,)

    @property
    def state(self) -> Any:
        """There is none."""
        return None

    async def changes(self) -> StateChanges | None:
        """There is nothing to change."""
        return None

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        """Read a skill, or a file of one. What cannot be read is an answer."""
        misfit = _misfit(arguments)
        if misfit:
            return not_called(name, misfit)
        wanted = arguments["name"]
        skill = self.skills.get(wanted)
        if skill is None:
            fix = names_or_closest(wanted, self.skills) if self.skills else "you have none so far"
            return refused(Refusal.REFUSED, f"there is no skill '{wanted}', {fix}")
        return await to_thread.run_sync(_read, skill, arguments.get("file", "SKILL.md"))


def _misfit(arguments: Mapping[str, Any]) -> str:
    for key, value in arguments.items():
        if key not in ("name", "file"):
            return f"{key}: there is no such parameter, write one of name, file"
        if not isinstance(value, str):
            return f"{key}: write text"
    return "" if "name" in arguments else "name: missing, write the skill's name"


def _read(skill: Skill, file: str) -> ToolAnswer:
    path = skill.folder / file
    files = [entry.relative_to(skill.folder).as_posix() for entry in sorted(skill.folder.rglob("*")) if entry.is_file()]
    if "\0" in file or not _is_inside(path, skill.folder) or not path.is_file():
        text = f"skill '{skill.name}' has no file '{file}', {names_or_closest(file, files)}"
        return refused(Refusal.REFUSED, text)
    if path.stat().st_size > _MAX_BYTES:
        return refused(Refusal.REFUSED, f"'{file}' is too large to be read here")
    text = path.read_text(encoding="utf-8", errors="replace")
    others = [name for name in files if name != "SKILL.md"]
    if file == "SKILL.md" and others:
        text = f"{text.rstrip()}\n\nOther files of this skill: {', '.join(others)}"
    return ToolAnswer(clean_text(text))


def _is_inside(path: Path, folder: Path) -> bool:
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):
        return False
