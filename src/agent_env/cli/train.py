"""`agent-env train`: the main job on a bundle."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent_env.cli import INTERRUPTED
from agent_env.cli._called_as import called_as
from agent_env.errors import UsageError

if TYPE_CHECKING:
    from agent_env.bundle.recipe import Recipe
    from agent_env.training.main_job import Endpoint

__all__ = ["command"]


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--recipe", "recipe_name", help="Which of the bundle's recipes to follow; not needed where there is one.")
@click.option(
    "--runs",
    type=click.Path(path_type=Path, file_okay=False),
    default="runs",
    show_default=True,
    help="The runs folder: every episode is filed here.",
)
@click.option(
    "--name", help="The run name; the bundle's name where not given. The same name goes on with the same job."
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="For a local model's first weights, and the order of examples and tasks. What is sampled is not seeded.",
)
@click.option("--local", is_flag=True, help="Train the recipe's small model on this machine, also where a key is set.")
@click.option("--base-url", help="A server that speaks the Tinker protocol.")
@click.option("--model", help="The model to train there, e.g. Qwen/Qwen3-8B.")
@click.option("--renderer", help="The renderer for --model; the one that tinker-cookbook recommends where not given.")
@click.option("--sft-steps", type=click.IntRange(min=1), help="Instead of the recipe's.")
@click.option("--rl-steps", type=click.IntRange(min=1), help="Instead of the recipe's.")
def command(
    *,
    bundle: Path,
    recipe_name: str | None,
    runs: Path,
    name: str | None,
    seed: int,
    local: bool,
    base_url: str | None,
    model: str | None,
    renderer: str | None,
    sft_steps: int | None,
    rl_steps: int | None,
) -> None:
    """Train a model on BUNDLE: a player's runs, SFT, RL, held-out play before and after.

    With no --base-url and no TINKER_API_KEY, a small model is trained on this machine. Stopped at any moment, the same
    command goes on from the last checkpoint.
    """
    from rich.console import Console

    from agent_env.bundle import load_bundle
    from agent_env.bundle.recipe import load_recipe
    from agent_env.training.progress import waiting_for

    # The stream itself, not whatever stderr is when a line is printed: the trainers' own output goes to a file.
    console = Console(file=sys.stderr)
    with waiting_for("loading the trainer", console):
        from agent_env.training.main_job import JobSettings, print_result, run_main_job

    loaded = load_bundle(bundle)
    recipe = _with_steps(load_recipe(loaded, recipe_name), sft_steps=sft_steps, rl_steps=rl_steps)
    settings = JobSettings(
        bundle=bundle,
        runs=runs,
        run_name=name or loaded.name,
        recipe=recipe,
        seed=seed,
        endpoint=_endpoint(local=local, base_url=base_url, model=model, renderer=renderer),
    )
    try:
        result = asyncio.run(run_main_job(settings, console))
    except KeyboardInterrupt:
        click.echo(f"stopped; the same command goes on with run {settings.run_name!r} where it was", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    print_result(settings, result, Console())
    click.echo(f"see every episode: {called_as()} explore {shlex.quote(str(runs))}")


def _with_steps(recipe: Recipe, *, sft_steps: int | None, rl_steps: int | None) -> Recipe:
    """The recipe with other numbers of steps, where they are given."""
    if sft_steps is not None:
        if recipe.sft is None:
            raise UsageError(
                "--sft-steps: this recipe has no warm start; leave the option out, or add `sft:` to the recipe"
            )
        recipe = recipe.model_copy(update={"sft": recipe.sft.model_copy(update={"steps": sft_steps})})
    if rl_steps is not None:
        recipe = recipe.model_copy(update={"rl": recipe.rl.model_copy(update={"steps": rl_steps})})
    return recipe


def _endpoint(*, local: bool, base_url: str | None, model: str | None, renderer: str | None) -> Endpoint | None:
    """Where to train: None is the embedded engine."""
    from agent_env.training.main_job import Endpoint, recommended_renderer

    if local or (base_url is None and "TINKER_API_KEY" not in os.environ):
        given = [
            option
            for option, value in (("--base-url", base_url), ("--model", model), ("--renderer", renderer))
            if value
        ]
        if given:
            where = "--local" if local else "no --base-url and no TINKER_API_KEY"
            raise UsageError(
                f"{', '.join(given)}: with {where}, the recipe's own small model is trained; leave that out, or say where"
            )
        return None
    if model is None:
        raise UsageError(
            "--model: say which model to train there, e.g. --model Qwen/Qwen3-8B; or --local for this machine"
        )
    if "TINKER_API_KEY" not in os.environ:
        raise UsageError(
            "TINKER_API_KEY: not set; set it to the key of the server at --base-url (it starts with 'tml-')"
        )
    return Endpoint(base_url=base_url, model=model, renderer=renderer or recommended_renderer(model))
