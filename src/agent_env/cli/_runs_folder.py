"""The option that says where the runs are, for commands that are given something else first."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["runs_folder"]

runs_folder = click.option(
    "--runs", "folder", type=click.Path(path_type=Path), default=Path("runs"), help="The runs folder (default: ./runs)."
)
