"""Prompts and system prompts: Jinja templates over a task, sandboxed, undefined names refused.

A template sees `params`, `task_id` and `tags`, and may include other files of its bundle by their path. Lines that hold
only a block (`{% for %}`) leave no empty line behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from traceback import walk_tb
from typing import Any, cast

from jinja2 import FunctionLoader, StrictUndefined, Template, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agent_env.bundle._suggest import names_or_closest
from agent_env.bundle.files import BundleFiles, MisfitError
from agent_env.errors import BundleError, Problem

__all__ = ["TextSource"]

_NAMES = ("params", "task_id", "tags")
_INLINE = "<template>"
_MARKS = ("{{", "{%", "{#")
_BREAK = "\n"
"""Between what is wrong and what to write, in the message of an undefined name."""


class _Undefined(StrictUndefined):
    """Says which name is missing and what it may have been."""

    __slots__ = ()

    @property
    def _undefined_message(self) -> str:
        owner: object = self._undefined_obj
        name = self._undefined_name
        if self._undefined_hint or not isinstance(name, str):
            return super()._undefined_message
        if isinstance(owner, Mapping):
            keys = [str(key) for key in cast("Mapping[object, object]", owner)]
            return f"there is no '{name}' in it{_BREAK}{names_or_closest(name, keys)}"
        if type(owner).__name__ == "MissingType":
            return f"'{name}' is not defined{_BREAK}{names_or_closest(name, _NAMES)}"
        return super()._undefined_message


class _Environment(ImmutableSandboxedEnvironment):
    def getattr(self, obj: Any, attribute: str) -> Any:
        """Look in a mapping for the key first: `params.items` is the task's, not the method of dict."""
        if isinstance(obj, Mapping) and attribute in obj:
            return cast("Mapping[str, Any]", obj)[attribute]
        return super().getattr(obj, attribute)


@lru_cache(maxsize=64)
def _environment(root: Path) -> _Environment:
    def load(name: str) -> tuple[str, str, Callable[[], bool]] | None:
        try:
            path = root / BundleFiles(root).find(name)
        except MisfitError:
            return None
        changed = path.stat().st_mtime_ns
        return path.read_text(encoding="utf-8"), str(path), lambda: path.stat().st_mtime_ns == changed

    return _Environment(loader=FunctionLoader(load), undefined=_Undefined, trim_blocks=True, lstrip_blocks=True)


@lru_cache(maxsize=4096)
def _compile(root: Path, text: str, filename: str) -> Template:
    environment = _environment(root)
    code = environment.compile(text, name=filename, filename=filename)
    return Template.from_code(environment, code, environment.make_globals(None))


@dataclass(frozen=True, slots=True)
class TextSource:
    """Text for an agent, written once for each task from its `params`, `task_id` and `tags`."""

    text: str
    """The template."""
    root: Path = field(repr=False, compare=False)
    """The bundle's folder."""
    path: Path | None = None
    """The file it came from, relative to the bundle; None when it is written in place."""
    written_at: tuple[Path, int] = field(default=(Path("bundle.yaml"), 1), repr=False, compare=False)
    """The file and line that has the text or names its file."""

    def render(self, *, params: Mapping[str, Any], task_id: str, tags: Sequence[str], **more: Any) -> str:
        """Write the text for one task.

        Args:
            params: The task's `params`.
            task_id: The task's id.
            tags: The task's tags.
            more: Further names that the template may use.

        Raises:
            BundleError: When the template has a syntax error, uses an undefined name, or raises.
        """
        if not any(mark in self.text for mark in _MARKS):
            return self.text.removesuffix("\n")
        filename = _INLINE if self.path is None else str(self.root / self.path)
        try:
            template = _compile(self.root, self.text, filename)
            return template.render({**more, "params": params, "task_id": task_id, "tags": tags})
        except TemplateSyntaxError as exc:
            where = self._place(exc.filename or filename, exc.lineno)
            what = f"the template does not parse: {exc.message}"
            raise self._error(where, what, "correct the syntax on or above this line") from None
        except Exception as exc:  # noqa: BLE001 - a template runs the bundle's own expressions: anything may come
            what, _, fix = str(exc).partition(_BREAK)
            if not fix or _BREAK in fix:
                what, fix = f"{type(exc).__name__}: {exc}".splitlines()[0], "correct the template"
            what = f"the template cannot be written for task '{task_id}': {what}"
            raise self._error(self._raised_at(exc, filename), what, fix) from None

    def _raised_at(self, exc: BaseException, filename: str) -> tuple[Path, int]:
        """Return the innermost line of a template of this bundle that `exc` came through."""
        place = self.written_at
        for frame, line in walk_tb(exc.__traceback__):
            name = frame.f_code.co_filename
            if name == filename or Path(name).is_relative_to(self.root):
                place = self._place(name, line)
        return place

    def _place(self, filename: str, line: int) -> tuple[Path, int]:
        if filename == _INLINE:
            return self.written_at
        return Path(filename).relative_to(self.root), line

    def _error(self, place: tuple[Path, int], what: str, fix: str) -> BundleError:
        return BundleError([Problem(path=place[0], line=place[1], what=what, fix=fix)])
