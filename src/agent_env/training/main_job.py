"""The main job: a player's runs make a warm start, reinforcement learning goes on from it, held-out play says what it gave.

Every stage leaves its result on disk (runs in the run index, checkpoints with the endpoint), so the same command run
again goes on where the last one was stopped. The trainers are tinker-cookbook's own `supervised.train.main` and
`rl.train.main`, called as they are; what they print goes to `trainer.log` in the job's folder.
"""

from __future__ import annotations

import json
import os
import re
import resource
import sys
import time
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from agent_env._locking import HeldError, hold
from agent_env._optional import TRAINER, require
from agent_env.bundle import Bundle, load_bundle
from agent_env.bundle.recipe import Recipe
from agent_env.engine import EngineOptions, Training, start_engine
from agent_env.errors import TrainingError, UsageError
from agent_env.training._local_model import build_local_model, is_built
from agent_env.training._process import close_run_indexes, run_index
from agent_env.training._server import check_server, ending_with, explained
from agent_env.training._stages import Checkpoint, Endpoint, Stages, player_group
from agent_env.training.progress import StageProgress, waiting_for
from agent_env.training.results import HeldOut, paired_difference, results_table

__all__ = ["Endpoint", "JobResult", "JobSettings", "print_result", "recommended_renderer", "run_main_job"]

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""A run name is the first part of its groups' names and a folder's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """What one main job does. The same settings in the same runs folder go on with the same job."""

    bundle: Path
    runs: Path
    """The runs folder: the run index, and the job's own folder under `jobs/`."""
    run_name: str
    recipe: Recipe
    seed: int = 0
    endpoint: Endpoint | None = None
    """None trains the recipe's local model on the embedded engine."""

    def __post_init__(self) -> None:
        if not RUN_NAME.fullmatch(self.run_name):
            raise UsageError(
                f"run name {self.run_name!r}: write letters, digits, '.', '_' and '-', a letter or digit first"
            )

    @property
    def folder(self) -> Path:
        """Where the job keeps its model, checkpoints and logs."""
        return self.runs / "jobs" / self.run_name

    def fingerprint(self) -> dict[str, Any]:
        """What must be the same for a job to go on."""
        endpoint = None if self.endpoint is None else asdict(self.endpoint)
        return {"recipe": self.recipe.model_dump(mode="json"), "seed": self.seed, "endpoint": endpoint}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What a main job came to."""

    held_out: dict[str, HeldOut]
    """By row: `untrained`, `after SFT`, `after RL`, their greedy play, and each reference player."""
    seconds: float
    """What this process spent on it."""
    peak_memory_mb: float
    """The highest resident memory of this process plus that of its engine."""


async def run_main_job(settings: JobSettings, console: Console) -> JobResult:
    """Do the whole job, or what is left of it.

    Raises:
        MissingExtraError: When tinker or torch is not installed. Without tinker-cookbook, importing this module raises it.
        UsageError: When another process does this job now, or it was begun with other settings.
        TrainingError: When the runs folder cannot be written, or a stage cannot be done.
        EngineError: When the embedded engine cannot start, or ends before the job does.
    """
    started = time.monotonic()
    bundle = load_bundle(settings.bundle)
    if settings.endpoint is not None and settings.endpoint.base_url is not None:
        # Before the job is begun: with a base URL that was wrong it could not go on with the right one.
        await check_server(settings.endpoint.base_url)
    with _only_one(settings.folder), _closing_run_indexes():
        index = run_index(settings.runs)
        _begin(settings)
        async with _open_endpoint(settings, bundle, console) as endpoint:
            stages = Stages(
                bundle=bundle,
                recipe=settings.recipe,
                seed=settings.seed,
                run_name=settings.run_name,
                folder=settings.folder,
                runs=settings.runs,
                endpoint=endpoint,
                index=index,
                progress=StageProgress(console),
            )
            held_out = await _do_stages(stages)
    return JobResult(held_out=held_out, seconds=time.monotonic() - started, peak_memory_mb=_peak_memory_mb())


async def _do_stages(stages: Stages) -> dict[str, HeldOut]:
    """Every stage in order; the rows of the final table."""
    recipe, name = stages.recipe, stages.run_name
    rows: list[HeldOut] = []
    if recipe.sft is not None:
        player = recipe.sft.player
        await stages.player_runs(
            player, recipe.train_split, group=player_group(name, player), title=f"examples by {player!r}"
        )

    async def play_policy(title: str, key: str, weights: Checkpoint | None, *, greedy: bool = False) -> None:
        temperature = 0.0 if greedy else recipe.temperature
        group = f"{name}/held-out/{key}"
        rows.append(await stages.held_out(title, group=group, weights=weights, temperature=temperature))

    await play_policy("untrained", "0-untrained", None)
    start = await stages.warm_start()
    if start is not None:
        await play_policy("after SFT", "1-sft", start)
    end = await stages.reinforce(start)
    await play_policy("after RL", "2-rl", end)
    if start is not None:
        await play_policy("after SFT, greedy", "3-sft-greedy", start, greedy=True)
    await play_policy("after RL, greedy", "4-rl-greedy", end, greedy=True)
    for player in recipe.references:
        group = f"{name}/held-out/player-{player}"
        rows += [await stages.player_runs(player, recipe.test_split, group=group, title=f"player: {player}")]
    return {row.name: row for row in rows}


def print_result(settings: JobSettings, result: JobResult, console: Console) -> None:
    """Print the table, what training gained, and what it took."""
    recipe, rows = settings.recipe, result.held_out
    console.print()
    console.width = max(console.width, 100)
    title = f"{settings.run_name}: held-out tasks {recipe.test_split!r}, temperature {recipe.temperature:g}, seed {settings.seed}"
    console.print(results_table(title, list(rows.values()), recipe.shares))
    if "after SFT" in rows:
        console.print(f"RL over SFT: {paired_difference(rows['after RL'], rows['after SFT'])}", highlight=False)
    else:
        console.print(f"RL over untrained: {paired_difference(rows['after RL'], rows['untrained'])}", highlight=False)
    console.print(f"took {result.seconds:.0f} s, peak memory {result.peak_memory_mb:.0f} MB", highlight=False)


def recommended_renderer(model: str) -> str:
    """The renderer that the cookbook recommends for a model.

    Raises:
        UsageError: When the cookbook does not know the model.
    """
    model_info: Any = require("tinker_cookbook.model_info", install=TRAINER, feature="agent-env train")
    try:
        return str(model_info.get_recommended_renderer_name(model))
    except (KeyError, ValueError) as exc:
        raise UsageError(f"--model {model}: tinker-cookbook knows no renderer for it ({exc}); give --renderer") from exc


@contextmanager
def _only_one(folder: Path) -> Generator[None]:
    """Make the job's folder and hold its lock; the system gives it back when the process ends, however it ends."""
    try:
        file = hold(folder / "lock")
    except OSError as exc:
        raise TrainingError(f"{folder}: {exc.strerror}: choose a runs folder that can be written") from exc
    except HeldError:
        raise UsageError(
            f"{folder}: another process does this job now; wait for it, or give this one another --name"
        ) from None
    with file:
        yield


@contextmanager
def _closing_run_indexes() -> Generator[None]:
    """Write what the trainers recorded, before the lock on the job is given back."""
    try:
        yield
    finally:
        close_run_indexes()


def _begin(settings: JobSettings) -> None:
    """Note what the job was begun with, or refuse to go on with something else."""
    path = settings.folder / "job.json"
    wanted = settings.fingerprint()
    if not path.exists():
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")
        partial.replace(path)
        return
    try:
        begun = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as exc:  # a disk that lost power, or an edit
        raise TrainingError(
            f"{path}: this does not say what the job was begun with; "
            "give this one another --name, or remove that folder to begin again"
        ) from exc
    if begun != wanted:
        differs = ", ".join(_differing(begun, wanted))
        raise UsageError(
            f"{path}: this job was begun with other settings ({differs}); "
            "give this one another --name, or remove that folder to begin again"
        )


def _differing(begun: Any, wanted: Any, at: str = "") -> Iterator[str]:
    """The dotted names of the settings that differ."""
    if isinstance(begun, dict) and isinstance(wanted, dict):
        for key in sorted({*begun, *wanted}):
            yield from _differing(begun.get(key), wanted.get(key), f"{at}.{key}" if at else str(key))
    elif begun != wanted:
        yield at


@asynccontextmanager
async def _open_endpoint(settings: JobSettings, bundle: Bundle, console: Console) -> AsyncGenerator[Endpoint]:
    """The endpoint that the user named, or the embedded engine with the recipe's local model on it."""
    if settings.endpoint is not None:
        with explained(settings.endpoint.base_url or "Tinker"):
            yield settings.endpoint
        return
    recipe, model = settings.recipe, settings.folder / "model"
    if not is_built(model):
        with waiting_for("building the local model", console):
            await build_local_model(
                model,
                bundle=bundle,
                recipe=recipe,
                seed=settings.seed,
                runs=settings.runs,
                player_group=player_group(settings.run_name, recipe.sft.player if recipe.sft else ""),
            )
    options = EngineOptions(training=Training(recipe.model.training))
    with ExitStack() as stack:
        with waiting_for("starting the embedded engine", console):
            server = stack.enter_context(start_engine(model, state_dir=settings.folder / "engine", options=options))
        stack.enter_context(_environment({"TINKER_API_KEY": server.api_key, "TINKER_TELEMETRY": "0"}))
        stack.enter_context(explained("the embedded engine"))
        async with ending_with(server):
            yield Endpoint(base_url=server.base_url, model=server.model_name, renderer=recipe.renderer)


@contextmanager
def _environment(values: dict[str, str]) -> Generator[None]:
    """Set environment variables for a block: the SDK takes its key from nowhere else."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _peak_memory_mb() -> float:
    """The highest resident memory of this process plus the highest of a child that has ended (the engine), in MB."""
    kilobytes = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return kilobytes / (1e6 if sys.platform == "darwin" else 1e3)
