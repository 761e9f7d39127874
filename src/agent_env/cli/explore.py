"""`agent-env explore`: the explorer, until Ctrl-C."""

from __future__ import annotations

from pathlib import Path

import click

from agent_env.cli._runs_folder import runs_argument
from agent_env.runs.explorer import serve

__all__ = ["command"]


@click.command("explore")
@runs_argument
@click.option("--port", type=click.IntRange(0, 65535), default=8470, show_default=True, help="0 takes a free one.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Where to listen. 0.0.0.0 lets other machines in, and needs a token.",
)
@click.option(
    "--token",
    envvar="AGENT_ENV_EXPLORE_TOKEN",
    show_envvar=True,
    default="",
    help="What a reader must know: at least 16 characters. Others on this machine see an option, and not a variable.",
)
@click.option(
    "--allow-host", "allow_hosts", metavar="NAME", multiple=True, help="A name that browsers call it by, as a proxy's."
)
@click.option("--open", "opens_browser", is_flag=True, help="Open it in the browser.")
def command(
    folder: Path, *, port: int, host: str, token: str, allow_hosts: tuple[str, ...], opens_browser: bool
) -> None:
    """Browse the runs in FOLDER (default: ./runs) in a browser, until Ctrl-C."""
    needs = ", asks for the token" if token.strip() else ""
    serve(
        folder,
        host=host,
        port=port,
        token=token.strip(),
        allow_hosts=allow_hosts,
        opens_browser=opens_browser,
        say=lambda url: click.echo(f"{url}  (Ctrl-C stops it{needs})"),
    )
