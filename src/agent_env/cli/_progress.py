"""A bar on long work, on a terminal; nothing elsewhere."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

__all__ = ["Advance", "progress_bar"]


class Advance(Protocol):
    """Moves a bar."""

    def __call__(self, done: int, note: str = "", /) -> None:
        """Say how many units are done, and one thing worth seeing beside it."""


@contextmanager
def progress_bar(what: str, total: int) -> Generator[Advance]:
    """Show a bar on stderr until the block is left, and take it away then.

    Args:
        what: What is being done.
        total: How many units it has.

    Yields:
        What to call with how many are done, and a note.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total, note="")

        def advance(done: int, note: str = "", /) -> None:
            progress.update(task, completed=done, note=note)

        yield advance
