"""`agent-env engine`: the embedded engine as a server for other programs."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["command"]


@click.group("engine")
def command() -> None:
    """The embedded engine: a Tinker-protocol server on this machine."""


@command.command("serve")
@click.option(
    "--model",
    "model_dir",
    type=click.Path(path_type=Path),
    required=True,
    help="A Qwen3 model's directory, with its tokenizer.",
)
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    required=True,
    help="Where checkpoints are; the same one goes on from them.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="An address of this machine itself.")
@click.option("--port", type=click.IntRange(0, 65535), default=8765, show_default=True, help="0 takes any free one.")
@click.option(
    "--training",
    type=click.Choice(["lora", "full"]),
    default="lora",
    show_default=True,
    help="What training runs change: adapters of the client's rank, or every weight.",
)
@click.option(
    "--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Threads of one tensor operation."
)
def serve_command(*, model_dir: Path, state_dir: Path, host: str, port: int, training: str, threads: int) -> None:
    """Serve the Tinker protocol for the model at --model until Ctrl-C.

    The tinker SDK and tinker-cookbook reach it by its base URL; any TINKER_API_KEY that starts with tml- does.
    """
    from agent_env.engine import EngineOptions, Training, serve

    def ready(base_url: str) -> None:
        click.echo(f"base_url={base_url} base_model={model_dir.resolve()}")

    options = EngineOptions(training=Training(training), threads=threads)
    serve(model_dir, state_dir=state_dir, host=host, port=port, options=options, ready=ready)
