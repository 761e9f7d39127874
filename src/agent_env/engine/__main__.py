"""`python -m agent_env.engine`: the engine in this process, as `start_engine` runs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from agent_env.engine.options import EngineOptions, Training
from agent_env.engine.process import end_with_parent, serve
from agent_env.errors import AgentEnvError


@click.command()
@click.option("--model", "model_dir", type=click.Path(path_type=Path), required=True, help="A model's directory.")
@click.option("--state-dir", type=click.Path(path_type=Path), required=True, help="Where checkpoints are.")
@click.option("--host", default="127.0.0.1", show_default=True, help="An address of this machine itself.")
@click.option("--port", default=0, show_default=True, help="0 takes any free one.")
@click.option("--options", "options_json", default="{}", help="Fields of EngineOptions, as JSON.")
@click.option("--supervised", is_flag=True, help="End when stdin is closed; say where it is on stdout, as JSON.")
def main(*, model_dir: Path, state_dir: Path, host: str, port: int, options_json: str, supervised: bool) -> None:
    """Serve the Tinker protocol on this machine."""
    if supervised:
        end_with_parent()

    def ready(base_url: str) -> None:
        click.echo(json.dumps({"base_url": base_url, "port": int(base_url.rpartition(":")[2])}))

    try:
        fields = json.loads(options_json)
        if "training" in fields:
            fields["training"] = Training(fields["training"])
        serve(model_dir, state_dir=state_dir, host=host, port=port, options=EngineOptions(**fields), ready=ready)
    except AgentEnvError as exc:
        click.echo(str(exc), err=True)
        sys.exit(1)


main()
