"""How `agent-env train` trains on a bundle: the settings that a bundle ships in `recipes/<name>.yaml`.

Plain values only; `agent_env.training.main_job` says what it does with them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from agent_env.bundle._suggest import names_or_closest
from agent_env.bundle.bundle import Bundle
from agent_env.bundle.document import read_yaml
from agent_env.bundle.schema_base import Shape
from agent_env.bundle.shape_problems import shape
from agent_env.errors import BundleError, Problem, UsageError

__all__ = [
    "LocalModel",
    "RLSettings",
    "Recipe",
    "RewardShare",
    "SFTSettings",
    "load_recipe",
    "read_recipe",
    "recipe_names",
]

Positive = Annotated[int, Field(gt=0)]
Rate = Annotated[float, Field(gt=0, lt=1)]


class LocalModel(Shape):
    """The random model that the embedded engine trains, where no other model is named."""

    hidden: Positive = 256
    """Width of the residual stream."""
    layers: Positive = 4
    heads: Positive = 4
    kv_heads: Positive = 2
    intermediate: Positive = 768
    """Width of a feed-forward layer."""
    vocabulary: Positive = 4096
    """Tokens that the tokenizer may learn, special tokens and single bytes included."""
    pretokenizer: Literal["qwen", "phrases"] = "phrases"
    """`qwen` splits as Qwen's tokenizer does; `phrases` splits only at words of the task, digits and line ends."""
    words: list[str] = Field(default_factory=list[str])
    """With `phrases`, words that are cut out wherever they stand, also inside a longer one."""
    context: Positive = 4096
    """Tokens of the longest conversation."""
    training: Literal["lora", "full"] = "full"
    """What the engine trains."""


class SFTSettings(Shape):
    """The warm start on a player's runs."""

    player: str
    """Which of the bundle's players makes the examples."""
    steps: Positive = 160
    batch_size: Positive = 16
    """Episodes a step."""
    learning_rate: Rate = 2e-3
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """How the learning rate falls over the steps."""
    min_reward: float | None = None
    """Runs that earned less make no example; all do where it is not given."""


class RLSettings(Shape):
    """Reinforcement learning on the train split."""

    steps: Positive = 20
    groups_per_batch: Positive = 8
    """Tasks a step."""
    group_size: Annotated[int, Field(ge=2)] = 16
    """Rollouts a task."""
    learning_rate: Rate = 3e-4
    loss: Literal["importance_sampling", "ppo", "cispo"] = "importance_sampling"
    substeps: Positive = 1
    """Optimizer steps a batch."""


class RewardShare(Shape):
    """A column of the final table: the share of held-out episodes whose reward reaches a mark."""

    name: str
    above: float | None = None
    """Counts rewards greater than this."""
    at_least: float | None = None
    """Counts rewards of this or more."""


class Recipe(Shape):
    """One fixed configuration of the main job: warm start, reinforcement learning, held-out play."""

    train_split: str
    """The eval that names the training tasks."""
    test_split: str
    """The eval that names the held-out tasks."""
    reward: str | None = None
    """The scoring step, where the bundle does not say."""
    renderer: str = "qwen3_disable_thinking"
    """For the local model; another model gets the one that the cookbook recommends for it."""
    lora_rank: Positive = 32
    temperature: Annotated[float, Field(gt=0)] = 1.0
    max_generation_tokens: Positive = 256
    """Tokens that the model may write in one message."""
    max_trajectory_tokens: Positive | None = None
    """Tokens of a whole conversation."""
    max_messages: Positive | None = None
    """Messages that the model may write in one episode."""
    max_concurrent_episodes: Positive = 256
    model: LocalModel = LocalModel()
    sft: SFTSettings | None = None
    """Without it, reinforcement learning starts from the model as it is."""
    rl: RLSettings = RLSettings()
    shares: list[RewardShare] = Field(default_factory=list[RewardShare])
    references: list[str] = Field(default_factory=list[str])
    """Players of the bundle that are played on the held-out tasks too, to compare with."""


def load_recipe(bundle: Bundle, name: str | None = None) -> Recipe:
    """Read `recipes/<name>.yaml` of a bundle, or its only recipe.

    Raises:
        UsageError: When the bundle has no such recipe, or more than one and no name is given.
        BundleError: When the recipe does not fit, or names a split or player that the bundle does not have.
    """
    known = recipe_names(bundle)
    if not known:
        raise UsageError(f"{bundle.root}: the bundle has no recipe to train by; write recipes/default.yaml")
    if name is None and len(known) > 1:
        raise UsageError(f"{bundle.name} has several recipes, say which: --recipe {' or --recipe '.join(known)}")
    chosen = known[0] if name is None else name
    if chosen not in known:
        raise UsageError(f"{bundle.name} has no recipe '{chosen}', {names_or_closest(chosen, known)}")
    recipe, problems = read_recipe(bundle, chosen)
    if problems or recipe is None:
        raise BundleError(problems)
    return recipe


def recipe_names(bundle: Bundle) -> list[str]:
    """The names of a bundle's recipes, sorted."""
    return sorted(path.stem for path in bundle.root.glob("recipes/*.yaml"))


def read_recipe(bundle: Bundle, name: str) -> tuple[Recipe | None, list[Problem]]:
    """Read `recipes/<name>.yaml`, and say everything that is wrong with it."""
    problems: list[Problem] = []
    document = read_yaml(bundle.root, Path("recipes") / f"{name}.yaml", problems)
    recipe = None if document is None else shape(Recipe, document, problems)
    if document is None or recipe is None:
        return None, problems
    for key, split in (("train_split", recipe.train_split), ("test_split", recipe.test_split)):
        if split not in bundle.evals:
            problems.append(document.problem((key,), f"no eval '{split}'", names_or_closest(split, bundle.evals)))
    players: list[tuple[tuple[str | int, ...], str]] = [
        (("references", at), player) for at, player in enumerate(recipe.references)
    ]
    if recipe.sft is not None:
        players.append((("sft", "player"), recipe.sft.player))
    for loc, player in players:
        if player not in bundle.players:
            problems.append(document.problem(loc, f"no player '{player}'", names_or_closest(player, bundle.players)))
    return recipe, problems
