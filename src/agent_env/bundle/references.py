"""What the values of a bundle file refer to: texts, Python names, skills, universes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from agent_env.bundle._suggest import names_or_closest
from agent_env.bundle.code import PythonRef, parse_python
from agent_env.bundle.document import Document, Loc, read_text
from agent_env.bundle.files import BundleFiles, MisfitError
from agent_env.bundle.schema_base import TextFile
from agent_env.bundle.schema_tasks import PromptFile
from agent_env.bundle.skills import Skill, read_skill
from agent_env.bundle.specs import UniverseKind, UniverseSpec
from agent_env.bundle.text import TextSource
from agent_env.errors import Problem

__all__ = ["References"]

_FILE_NAME = re.compile(r"\S+\.(?:md|j2|txt)")
_UNIVERSES = {
    ".json": UniverseKind.JSON,
    ".sqlite": UniverseKind.SQLITE,
    ".sqlite3": UniverseKind.SQLITE,
    ".db": UniverseKind.SQLITE,
}


class References:
    """Follows references, each file read once, and adds a problem for each that leads nowhere."""

    def __init__(self, files: BundleFiles, problems: list[Problem]) -> None:
        self._files = files
        self._problems = problems
        self._texts: dict[tuple[str, str | None, tuple[object, int]], TextSource] = {}
        self._skills: dict[str, Skill] = {}
        self._refs: dict[tuple[str, str | None, tuple[object, int]], PythonRef] = {}

    def text(self, written: str | TextFile | PromptFile, document: Document, loc: Loc) -> TextSource | None:
        """Return the text that a text field stands for."""
        if isinstance(written, str):
            template = written if _FILE_NAME.fullmatch(written) else None
            inline = None if template else written
        else:
            template, inline = written.template, written.text
        where = (document.path, document.line(loc))
        key = (inline or "", template, where)
        known = self._texts.get(key)
        if known is not None:
            return known
        if template is None:
            text, path = inline or "", None
        else:
            try:
                path = self._files.find(template)
            except MisfitError as exc:
                or_text = " (or write {text: ...} if it is the text itself)" if isinstance(written, str) else ""
                self._problems.append(document.problem(loc, exc.what, f"{exc.fix}{or_text}"))
                return None
            text = read_text(self._files.root, path, self._problems)
            if text is None:
                return None
        if not text.strip():
            self._problems.append(
                document.problem(loc, f"the text{f' in {path}' if path else ''} is empty", "write it")
            )
        return self._texts.setdefault(key, TextSource(text, self._files.root, path, where))

    def python(self, written: str, document: Document, loc: Loc, *, default: str | None = None) -> PythonRef | None:
        """Return the Python name that a reference stands for; the file is there, and is not imported."""
        where = (document.path, document.line(loc))
        key = (written, default, where)
        known = self._refs.get(key)
        if known is not None:
            return known
        try:
            return self._refs.setdefault(key, parse_python(self._files, written, where, default=default))
        except MisfitError as exc:
            self._problems.append(document.problem(loc, exc.what, exc.fix))
            return None

    def skill(self, written: str, document: Document, loc: Loc) -> Skill | None:
        """Return the skill in a folder that has its SKILL.md."""
        if written in self._skills:
            return self._skills[written]
        if not written.strip() or written != PurePosixPath(written).name or written in (".", ".."):
            what = f"'{written}' is no skill's name"
            self._problems.append(document.problem(loc, what, "write the name of a folder under skills/"))
            return None
        try:
            self._files.find(f"skills/{written}/SKILL.md")
        except MisfitError as exc:
            what, fix = exc.what, exc.fix
            folders = [file.parent.name for file in sorted(self._files.root.glob("skills/*/SKILL.md"))]
            if written not in folders:  # else it leads out of the bundle, say
                what = f"there is no skill '{written}'"
                fix = names_or_closest(written, folders) if folders else f"add skills/{written}/SKILL.md"
            self._problems.append(document.problem(loc, what, fix))
            return None
        try:
            skill = read_skill(self._files.root / "skills" / written)
        except MisfitError as exc:
            self._problems.append(document.problem(loc, exc.what, exc.fix))
            return None
        return self._skills.setdefault(written, skill)

    def folder(self, written: str, document: Document, loc: Loc) -> Path | None:
        """Return a folder of the bundle, relative to it."""
        try:
            path = self._files.find(written, directory_too=True)
        except MisfitError as exc:
            self._problems.append(document.problem(loc, exc.what, exc.fix))
            return None
        if not (self._files.root / path).is_dir():
            self._problems.append(document.problem(loc, f"'{written}' is no folder", "name a folder of the bundle"))
            return None
        return path

    def program(self, command: Sequence[str], document: Document, loc: Loc) -> tuple[str, ...]:
        """Return a command with each word that is the path of a file of the bundle made absolute.

        A word that leads into a folder of the bundle and to nothing there is a problem.
        """
        return tuple(self._word(word, document, (*loc, at)) for at, word in enumerate(command))

    def _word(self, word: str, document: Document, loc: Loc) -> str:
        path = PurePosixPath(word)
        if "/" not in word or path.is_absolute():
            return word
        try:
            return str(self._files.root / self._files.find(word, directory_too=True))
        except MisfitError as exc:
            if len(path.parts) > 1 and (self._files.root / path.parts[0]).is_dir():
                self._problems.append(document.problem(loc, exc.what, exc.fix))
            return word

    def universe(self, written: str | None, document: Document, loc: Loc) -> UniverseSpec | None:
        """Return the universe at a path."""
        if written is None:
            return None
        try:
            path = self._files.root / self._files.find(written, directory_too=True)
        except MisfitError as exc:
            self._problems.append(document.problem(loc, exc.what, exc.fix))
            return None
        kind = UniverseKind.DIRECTORY if path.is_dir() else _UNIVERSES.get(path.suffix.lower())
        if kind is None:
            what = f"'{written}' is no universe"
            self._problems.append(document.problem(loc, what, "name a .json, .sqlite or .db file, or a directory"))
            return None
        return UniverseSpec(path=path, kind=kind)
