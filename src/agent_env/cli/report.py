"""`agent-env report`: a group of runs, or a training run, as one page that stands alone."""

from __future__ import annotations

import re
from pathlib import Path

import click

from agent_env.cli._runs_folder import runs_folder
from agent_env.runs.explorer import EPISODES, make_report

__all__ = ["command"]

_OF_THE_NAME = "-"
"""The value of `--html` without one."""


@click.command("report")
@click.argument("group")
@runs_folder
@click.option(
    "--html",
    "file",
    is_flag=False,
    flag_value=_OF_THE_NAME,
    required=True,
    metavar="[FILE]",
    help="Write a page; without FILE, into this folder, under the group's name.",
)
@click.option(
    "--episodes", type=click.IntRange(0, 1000), default=EPISODES, show_default=True, help="Shown in full, at most."
)
def command(group: str, folder: Path, file: str, episodes: int) -> None:
    """Write one self-contained page about GROUP, a group of runs or a training run.

    It needs no server, no network and no script: attach it to a pull request.
    """
    report = make_report(folder, group, episodes=episodes)
    name = re.sub(r"[^\w.=-]+", "-", group).strip("-.") or "report"
    short = name.encode()[:200].decode(errors="ignore")  # a name has 255 bytes at most
    target = Path(f"{short}.html") if file == _OF_THE_NAME else Path(file)
    click.echo(report.save(target))
