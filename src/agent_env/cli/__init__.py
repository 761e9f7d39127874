"""The command line: one module per command, imported when the command is run."""

from __future__ import annotations

import errno
import os
import sys
from difflib import get_close_matches
from importlib import import_module
from keyword import iskeyword

import click

from agent_env._version import __version__
from agent_env.errors import AgentEnvError, UsageError

__all__ = ["main", "root"]

COMMANDS = {
    "init": "Write a small bundle to begin with.",
    "validate": "Check a bundle and list every problem.",
    "play": "Play tasks by hand, by script, with a model, or their gold.",
    "schema": "Print the JSON Schema of a bundle's files.",
    "import": "Make a bundle of another project's tasks.",
    "train": "Train a model on a bundle: warm start, RL, held-out play.",
    "runs": "List, search, export and delete runs.",
    "show": "Print one run's conversation.",
    "universe": "See what an episode changed in its universes.",
    "rescore": "Score recorded runs again.",
    "explore": "Browse runs in the explorer.",
    "report": "Write one page about a group of runs, or a training run.",
    "engine": "The embedded engine: a Tinker-protocol server on this machine.",
    "completion": "Print the completion script for a shell.",
}
"""Every command and its line of help. The help is here so that listing commands imports none of them."""

INTERRUPTED = 130
"""The exit code of a program that Ctrl-C ended: 128 + SIGINT."""


class _Root(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
        command = import_module(f"agent_env.cli.{module}").command
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = get_close_matches(name, COMMANDS, n=1)
            fix = f"did you mean '{near[0]}'?" if near else f"write one of {', '.join(COMMANDS)}"
            raise click.UsageError(f"there is no command '{name}', {fix}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="agent-env")
def root() -> None:
    """Play a folder of agent tasks, record every episode, train models on them."""


def main() -> None:
    """Run a command; the entry point of `agent-env`.

    Exits with 2 where the command is wrong, with 1 where what it was given is wrong, with 130 after Ctrl-C; each with
    one clear message and no traceback.
    """
    try:
        code = root.main(prog_name="agent-env", standalone_mode=False)
        click.echo(nl=False)  # writes out what is left; sys.stdout is None where it was closed (`>&-`)
    except click.exceptions.Exit as exc:
        code = exc.exit_code
    except click.ClickException as exc:
        exc.show()
        code = exc.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        code = INTERRUPTED
    except AgentEnvError as exc:
        click.echo(str(exc), err=True)
        code = 2 if isinstance(exc, UsageError) else 1
    except BrokenPipeError:
        # The reader (`head`, a pager) has gone; what is left of stdout must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            said = f"{exc.filename or 'disk'}: the disk is full: free some space and run the command again"
        elif exc.filename is not None:  # a file or folder of the user's: ours are found or are bugs
            said = f"{exc.filename}: {exc.strerror}"
        else:
            raise
        click.echo(said, err=True)
        code = 1
    sys.exit(code or 0)
