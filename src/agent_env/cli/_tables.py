"""Tables of the terminal, which are lines for `grep` in a pipe or a file."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

__all__ = ["new_console", "new_table"]

_FILE_COLUMNS = 200
"""Where there is no terminal, so many columns at least: a row is a line."""


def new_console() -> Console:
    """Make a console on standard output."""
    console = Console()
    return console if console.is_terminal else Console(width=max(console.width, _FILE_COLUMNS))


def new_table() -> Table:
    """Make a table without a frame, its columns to be added."""
    return Table(box=None, pad_edge=False, header_style="bold")
