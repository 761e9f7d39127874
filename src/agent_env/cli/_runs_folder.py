"""Where the runs are: `--runs`, which every command that reads runs takes; also as an argument, where nothing else is one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import click

__all__ = ["runs_argument", "runs_folder"]

_DEFAULT = Path("runs")
_HELP = "The runs folder (default: ./runs)."


def runs_folder(command: Callable[..., None]) -> Callable[..., None]:
    """Have a command that is given something else first take the folder as `--runs`, and be given it as `folder`."""
    option = click.option("--runs", "folder", type=click.Path(path_type=Path), default=_DEFAULT, help=_HELP)
    rest = click.argument("rest", metavar="", nargs=-1, expose_value=False, callback=_refuse)
    return rest(option(command))


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


def _refuse(context: click.Context, parameter: click.Parameter, words: Sequence[str]) -> None:
    del context, parameter
    if words:
        raise click.UsageError(
            f"one argument too many: {words[0]!r}. Put several words between quotes; the runs folder is said by --runs"
        )
