"""The small model that a recipe trains on this machine, with a tokenizer that knows the bundle's own text."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from agent_env.bundle import Bundle
from agent_env.bundle.recipe import LocalModel, Recipe
from agent_env.engine import ModelShape, Pretokenizer, build_model
from agent_env.errors import UsageError
from agent_env.runs import RunIndex, RunState
from agent_env.training._cookbook import get_tokenizer
from agent_env.training._examples import examples_of
from agent_env.training._framing import framing_for
from agent_env.training.sft import play_player

__all__ = ["build_local_model", "is_built"]


def is_built(folder: Path) -> bool:
    """Whether there is a model in `folder`."""
    return (folder / "config.json").exists()


async def build_local_model(
    folder: Path, *, bundle: Bundle, recipe: Recipe, seed: int, runs: Path, player_group: str
) -> None:
    """Play the recipe's player, learn a tokenizer from its conversations as the renderer writes them, and build the model.

    Raises:
        UsageError: When the recipe has no warm start: a random model says nothing that a reward could pick out.
        TrainingError: When there is no such renderer, or it cannot write the bundle's tools.
        EngineError: When the model's shape is impossible.
    """
    if recipe.sft is None:
        raise UsageError(
            "the local model begins random and needs examples: add sft: to the recipe, or train another --model"
        )
    await play_player(
        bundle.root, recipe.sft.player, recipe.train_split, runs=runs, group=player_group, reward=recipe.reward
    )
    with tempfile.TemporaryDirectory() as scratch:
        # The renderer needs a tokenizer to write with: one that has every byte and has learned nothing.
        plain = build_model(Path(scratch) / "plain", [], shape=ModelShape(hidden=8, layers=1, heads=1, kv_heads=1))
        texts = list(_conversations(bundle, runs, player_group, renderer=recipe.renderer, model=str(plain)))
    local = recipe.model
    build_model(
        folder,
        texts,
        seed=seed,
        shape=_shape(local),
        pretokenizer=Pretokenizer(local.pretokenizer),
        words=local.words,
    )


def _conversations(bundle: Bundle, runs: Path, group: str, *, renderer: str, model: str) -> Iterator[str]:
    """The conversations of a group as the renderer writes them."""
    framing, tokenizer = framing_for(bundle, renderer, model), get_tokenizer(model)
    with RunIndex.open(runs, read_only=True) as index:
        for run in index.all_runs(group, state=RunState.COMPLETED):
            for example in examples_of(index.events(run.run_id), framing):
                yield str(tokenizer.decode(example.tokens.to_ints()))


def _shape(local: LocalModel) -> ModelShape:
    return ModelShape(
        hidden=local.hidden,
        layers=local.layers,
        heads=local.heads,
        kv_heads=local.kv_heads,
        intermediate=local.intermediate,
        vocabulary=local.vocabulary,
        context=local.context,
    )
