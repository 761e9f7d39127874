"""What an exception of a bundle's code says, and where in the bundle's files it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from traceback import format_exception, walk_tb
from typing import cast

from agent_env.errors import BundleError
from agent_env.outcome import Place

__all__ = ["described", "exceptions_in", "message_of", "raised_at", "trace_of"]

_DEEP = 20
"""How far a chain of exceptions, or groups in groups, are looked into."""
_TRACE_CHARS = 20_000


def message_of(exc: BaseException) -> str:
    """Return what an exception says; nothing where it cannot even be asked."""
    try:
        return str(exc)
    except Exception:  # noqa: BLE001 - the bundle's own __str__
        return ""


def described(exc: BaseException) -> str:
    """Return an exception as one would say it: its type, and its message when it has one."""
    message = message_of(exc)
    return f"{type(exc).__name__}: {message}" if message.strip() else type(exc).__name__


def trace_of(exc: BaseException) -> str:
    """Return the traceback as text, its end when it is long."""
    try:
        text = "".join(format_exception(exc))
    except Exception:  # noqa: BLE001 - the bundle's own exception may not print
        return f"{type(exc).__name__} (its traceback cannot be printed)"
    return text[-_TRACE_CHARS:]


def raised_at(exc: BaseException, root: Path, *, deep: int = _DEEP) -> Place | None:
    """Return the innermost line of a bundle's files that an exception came through; None when it came through none.

    Args:
        exc: The exception. What it says of itself comes first (a problem of the bundle, a file that does not parse), then
            what it is a group of, then its own way here, then what it was raised from.
        root: The bundle's folder, resolved.
        deep: How many exceptions from here it may be.
    """
    place = _said(exc, root)
    if place is not None or not deep:
        return place
    for inner in exceptions_in(exc):
        place = raised_at(inner, root, deep=deep - 1)
        if place is not None:
            return place
    place = _came_through(exc, root)
    before = exc.__cause__ or (None if exc.__suppress_context__ else exc.__context__)
    return place if place is not None or before is None else raised_at(before, root, deep=deep - 1)


def exceptions_in(exc: BaseException) -> Sequence[BaseException]:
    """Return what an exception is a group of; nothing where it is no group."""
    return cast("BaseExceptionGroup[BaseException]", exc).exceptions if isinstance(exc, BaseExceptionGroup) else ()


def _said(exc: BaseException, root: Path) -> Place | None:
    if isinstance(exc, BundleError) and exc.problems:
        return Place(path=exc.problems[0].path, line=exc.problems[0].line)
    if isinstance(exc, SyntaxError) and exc.filename:
        return _place(exc.filename, exc.lineno or 1, root)
    return None


def _came_through(exc: BaseException, root: Path) -> Place | None:
    place = None
    for frame, line in walk_tb(exc.__traceback__):
        place = _place(frame.f_code.co_filename, line, root) or place
    return place


def _place(file: str, line: int, root: Path) -> Place | None:
    path = Path(file)
    return Place(path=path.relative_to(root), line=line) if path.is_relative_to(root) else None
