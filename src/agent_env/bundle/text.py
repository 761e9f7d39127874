"""Prompts and system prompts: Jinja templates over a task, sandboxed, bounded, undefined names refused.

A template sees `params`, `task_id` and `tags`, and may include other files of its bundle by their path. Lines that hold
only a block (`{% for %}`) leave no empty line behind; one line end at the end of the text is dropped. What a template does,
and how much it writes, is bounded (`_render_budget.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from traceback import walk_tb
from typing import Any, cast

from jinja2 import FunctionLoader, StrictUndefined, Template, TemplateNotFound, TemplateSyntaxError, UndefinedError
from jinja2.utils import missing

from agent_env.bundle._metered_templates import MeteredEnvironment
from agent_env.bundle._render_budget import MAX_STEPS, TooMuchError, held, rendering
from agent_env.bundle._suggest import names_or_closest
from agent_env.bundle.files import BundleFiles, MisfitError
from agent_env.errors import BundleError, Problem

__all__ = ["TextSource", "Unwritable", "Whose"]

_NAMES = ("params", "task_id", "tags")
_INLINE = "<template>"
_MARKS = ("{{", "{%", "{#")
_QUICK_STEPS = 10_000
"""What may be written on an event loop: two milliseconds or so."""
_BREAK = "\n"
_KEY, _NAME = "undefined key", "undefined name"


class _Undefined(StrictUndefined):
    """Says which name is missing, and what there is instead, in a form that `TextSource` makes a sentence of."""

    __slots__ = ()

    @property
    def _undefined_message(self) -> str:
        owner: object = self._undefined_obj
        name = self._undefined_name
        if not self._undefined_hint and isinstance(name, str):
            if isinstance(owner, Mapping):
                return _BREAK.join((_KEY, name, *map(str, cast("Mapping[object, object]", owner))))
            if owner is missing:
                return _BREAK.join((_NAME, name, *_NAMES))
        return super()._undefined_message


class _Environment(MeteredEnvironment):
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
        stat = path.stat()
        held(stat.st_size)
        return path.read_text(encoding="utf-8"), str(path), lambda: path.stat().st_mtime_ns == stat.st_mtime_ns

    return _Environment(
        loader=FunctionLoader(load),
        undefined=_Undefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


@lru_cache(maxsize=4096)
def _compile(root: Path, text: str, filename: str) -> Template:
    environment = _environment(root)
    code = environment.compile(text, name=filename, filename=filename)
    return Template.from_code(environment, code, environment.make_globals(None))


class Whose(StrEnum):
    """Whose it is that a text cannot be written."""

    TEMPLATE = "template"
    """The template does not parse, whatever the task."""
    WORK = "work"
    """The template does too much; it is no use to try it again."""
    TASK = "task"
    """It does not fit the task: another one may."""


@dataclass(frozen=True, slots=True)
class Unwritable:
    """What keeps a text from being written."""

    problem: Problem
    whose: Whose


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
            BundleError: When the template has a syntax error, uses an undefined name, raises, or does too much: more
                than 2,000,000 steps, or a text of more than 10,000,000 characters. That may take a second: see `at_once`.
        """
        return self._rendered(params, task_id, tags, more, MAX_STEPS)

    def at_once(self, *, params: Mapping[str, Any], task_id: str, tags: Sequence[str], **more: Any) -> str | None:
        """Write the text for one task where that takes but a moment; None where it may take longer.

        For an event loop, which then has a thread `render` it.

        Raises:
            BundleError: As `render`.
        """
        try:
            return self._rendered(params, task_id, tags, more, _QUICK_STEPS)
        except _TooLongError:
            return None

    def problem(
        self, *, params: Mapping[str, Any], task_id: str, tags: Sequence[str], **more: Any
    ) -> Unwritable | None:
        """Return what keeps the text from being written for a task; None when it can be. See `render`."""
        try:
            self._render(params, task_id, tags, more, MAX_STEPS)
        except _UnwritableError as exc:
            return exc.unwritable
        return None

    def _rendered(
        self, params: Mapping[str, Any], task_id: str, tags: Sequence[str], more: Mapping[str, Any], steps: int
    ) -> str:
        try:
            return self._render(params, task_id, tags, more, steps)
        except _UnwritableError as exc:
            problem = exc.unwritable.problem
            if exc.unwritable.whose is Whose.WORK and steps < MAX_STEPS:
                raise _TooLongError from None
            raise BundleError([replace(problem, what=f"task '{task_id}': {problem.what}")]) from exc.__cause__

    def _render(
        self, params: Mapping[str, Any], task_id: str, tags: Sequence[str], more: Mapping[str, Any], steps: int
    ) -> str:
        if not any(mark in self.text for mark in _MARKS):
            return self.text.removesuffix("\n")
        filename = _INLINE if self.path is None else str(self.root / self.path)
        try:
            with rendering(steps):
                held(len(self.text))
                template = _compile(self.root, self.text, filename)
                text = template.render({**more, "params": params, "task_id": task_id, "tags": tags})
            return text.removesuffix("\n")
        except TemplateSyntaxError as exc:
            path, line = self._place(exc.filename or filename, exc.lineno)
            what, fix = f"the template does not parse: {exc.message}", "correct the syntax on or above this line"
            whose = Whose.TEMPLATE
        except Exception as exc:  # noqa: BLE001 - a template runs the bundle's own expressions: anything may come
            path, line = self._raised_at(exc, filename)
            what, fix = _say(exc, params, more)
            whose = Whose.WORK if isinstance(exc, TooMuchError | RecursionError) else Whose.TASK
        raise _UnwritableError(Unwritable(Problem(path=path, line=line, what=what, fix=fix), whose))

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


class _UnwritableError(Exception):
    def __init__(self, unwritable: Unwritable) -> None:
        super().__init__(str(unwritable.problem))
        self.unwritable = unwritable


class _TooLongError(Exception):
    """More steps than were to be taken at once."""


def _say(exc: Exception, params: Mapping[str, Any], more: Mapping[str, Any]) -> tuple[str, str]:
    """Return what is wrong with a template, and what to write instead."""
    if isinstance(exc, TooMuchError):
        return f"the template {exc.what}", exc.fix
    if isinstance(exc, RecursionError):
        return "the template is nested too deeply, or goes in a circle", "have it end, or make it flatter"
    if isinstance(exc, UndefinedError):
        kind, *rest = str(exc).split(_BREAK)
        if kind == _KEY:
            name, *known = rest
            return f"the template uses the key '{name}', which is not there", names_or_closest(name, known)
        if kind == _NAME:
            name, *known = rest
            fix = f"write params.{name}" if name in params else names_or_closest(name, [*known, *more])
            return f"the template uses '{name}', which is not defined", fix
    if isinstance(exc, TemplateNotFound):
        return (
            f"the template includes '{exc.name}', which is not in the bundle",
            "write a path from the bundle's folder",
        )
    return f"the template raises {type(exc).__name__}: {exc}".splitlines()[0], "correct the template"
