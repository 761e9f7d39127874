"""`agent-env explore`: the explorer, until Ctrl-C."""

from __future__ import annotations

from pathlib import Path

import click

from agent_env.runs.explorer import serve

__all__ = ["command"]


@click.command("explore")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("runs"))
@click.option("--port", type=click.IntRange(0, 65535), default=8470, show_default=True, help="0 takes a free one.")
@click.option("--host", default="127.0.0.1", show_default=True, help="This machine only: 127.0.0.1, ::1 or localhost.")
def command(folder: Path, *, port: int, host: str) -> None:
    """Browse the runs in FOLDER (default: ./runs) in a browser, until Ctrl-C."""
    serve(folder, host=host, port=port, say=lambda url: click.echo(f"{url}  (Ctrl-C stops it)"))
