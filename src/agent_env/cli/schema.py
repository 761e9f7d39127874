"""`agent-env schema`: the JSON Schema of a bundle's files, for editors."""

from __future__ import annotations

import json

import click

from agent_env.bundle import json_schemas, names_or_closest
from agent_env.errors import UsageError

__all__ = ["command"]


@click.command("schema")
@click.argument("kind", required=False)
def command(kind: str | None) -> None:
    """Print the JSON Schema of a KIND of file (bundle, task, eval or recipe); without KIND, all of them by kind."""
    schemas = json_schemas()
    if kind is not None and kind not in schemas:
        raise UsageError(f"there is no kind of file '{kind}', {names_or_closest(kind, schemas)}")
    click.echo(json.dumps(schemas if kind is None else schemas[kind], indent=2))
