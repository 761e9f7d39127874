"""Where the runs are: `--runs`, which every command that reads runs takes; also as an argument, where nothing else is one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

__all__ = ["runs_argument", "runs_folder"]

_DEFAULT = Path("runs")
_HELP = "The runs folder (default: ./runs)."

runs_folder = click.option("--runs", "folder", type=click.Path(path_type=Path), default=_DEFAULT, help=_HELP)


def runs_argument(command: Callable[..., None]) -> Callable[..., None]:
    """Have a command take the folder as an argument or as `--runs`, and be given it as `folder`."""

    @click.argument("named", metavar="[FOLDER]", type=click.Path(path_type=Path), required=False)
    @click.option("--runs", type=click.Path(path_type=Path), help=_HELP)
    @wraps(command)
    def with_folder(*, named: Path | None, runs: Path | None, **others: Any) -> None:
        if named is not None and runs is not None and named.resolve() != runs.resolve():
            raise click.UsageError(f"{named} and --runs {runs} are two folders: leave one of them out")
        command(folder=named or runs or _DEFAULT, **others)

    return with_folder
