"""One line that says where a long job is: a live bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

__all__ = ["Stage", "StageProgress", "waiting_for"]

LINE_EVERY_S = 10.0
"""Seconds between two lines of a stage where the output is no terminal."""


@dataclass(slots=True, kw_only=True)
class Stage:
    """One stage of the job, under way."""

    name: str
    total: int
    """How many units it has (steps, episodes)."""
    progress: Progress | None
    task: TaskID | None
    console: Console
    started_at: float = field(default_factory=time.monotonic)
    done: int = 0
    note: str = ""
    last_line_at: float = field(default_factory=time.monotonic)

    def update(self, done: int, note: str = "") -> None:
        """Say how many units are done, and one thing worth seeing beside it (a reward, a loss)."""
        self.done, self.note = done, note
        if self.progress is not None and self.task is not None:
            self.progress.update(self.task, completed=done, note=note)
        elif time.monotonic() - self.last_line_at >= LINE_EVERY_S:
            self.last_line_at = time.monotonic()
            self.print_line()

    def print_line(self, *, ended: str = "") -> None:
        """Print where the stage is, as a line that stays."""
        seconds = time.monotonic() - self.started_at
        note = f"  {self.note}" if self.note else ""
        self.console.print(
            f"{self.name:<28}{self.done:>5}/{self.total}  {seconds:6.1f} s{note}{ended}", highlight=False
        )


class StageProgress:
    """Shows the stages of a job one after the other, on one console."""

    def __init__(self, console: Console) -> None:
        self._console = console

    @contextmanager
    def stage(self, name: str, *, total: int) -> Generator[Stage]:
        """Show one stage until the block is left; what it came to stays on the screen."""
        if not self._console.is_terminal:
            stage = Stage(name=name, total=total, progress=None, task=None, console=self._console)
            try:
                yield stage
            except BaseException:  # also Ctrl-C
                stage.print_line(ended="  stopped")
                raise
            stage.print_line()
            return
        columns = (
            TextColumn("{task.description:<28}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=self._console, redirect_stdout=False, redirect_stderr=False) as progress:
            task = progress.add_task(name, total=total, note="")
            yield Stage(name=name, total=total, progress=progress, task=task, console=self._console)


@contextmanager
def waiting_for(what: str, console: Console) -> Generator[None]:
    """Say on a terminal what is waited for, and how long by now, until the block is left; elsewhere say nothing."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    is_shown = console.is_terminal
    with Progress(
        *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False, disable=not is_shown
    ) as progress:
        progress.add_task(what, total=None)
        yield
