"""`agent-env completion`: the script that completes commands, options, and what a bundle has."""

from __future__ import annotations

from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from agent_env.errors import AgentEnvError

__all__ = ["bundle_names", "command"]

_READ_BYTES = 2 << 20
"""The tasks of a bundle that has more of them are not completed: reading them takes longer than a person waits."""


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    bash:  eval "$(agent-env completion bash)"                  in ~/.bashrc
    zsh:   eval "$(agent-env completion zsh)"                   in ~/.zshrc
    fish:  agent-env completion fish > ~/.config/fish/completions/agent-env.fish
    """  # noqa: D301 - a real backspace, by which click knows lines to leave as they are
    from agent_env.cli import root

    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(root, {}, "agent-env", "_AGENT_ENV_COMPLETE").source())


def bundle_names(bundle: object, of: str, incomplete: str) -> list[CompletionItem]:
    """The names of a bundle's tasks, evals or players that begin with what was written.

    Args:
        bundle: The bundle's folder, as far as it was written; None where it was not.
        of: `tasks`, `evals` or `players`.
        incomplete: What was written.
    """
    from agent_env.bundle import load_bundle

    if bundle is None:
        return []
    root = Path(str(bundle))
    try:
        if sum(path.stat().st_size for path in root.glob("tasks/**/*") if path.is_file()) > _READ_BYTES:
            return []
        loaded = load_bundle(root)
    except (AgentEnvError, OSError):  # no bundle, or one with problems: there is nothing to complete
        return []
    names = {"tasks": loaded.tasks, "evals": loaded.evals, "players": loaded.players}[of]
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
