"""`agent-env rescore`: recorded runs scored again, with the verifiers that their bundle has now."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from agent_env.bundle import Bundle, load_bundle
from agent_env.cli._progress import progress_bar
from agent_env.cli._runs_folder import runs_argument
from agent_env.episode import Limits
from agent_env.errors import UsageError
from agent_env.rescoring import Rescored, rescore
from agent_env.runs import RunIndex, RunSummary
from agent_env.runs.visible import one_line

__all__ = ["command"]

_REASONS = 10
"""How many different reasons are printed."""


@click.command("rescore")
@runs_argument
@click.option(
    "--group", "groups", multiple=True, help="Only this group and those below it; may be given several times."
)
@click.option("--bundle", "bundle_path", type=click.Path(path_type=Path), help="Where the bundle is now.")
@click.option("--reward", help="The verify step whose score is the reward, where the bundle does not say.")
@click.option("--judges", is_flag=True, help="Allow model judges: they ask an endpoint.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a run.")
def command(
    folder: Path,
    groups: tuple[str, ...],
    bundle_path: Path | None,
    reward: str | None,
    *,
    judges: bool,
    as_json: bool,
) -> None:
    """Score the runs in FOLDER (default: ./runs) again, and compare with what is recorded. The records stay as they are.

    The state is made again from the universe and the changes that the run kept; no agent plays. Runs that failed in a
    verifier are scored too. A bundle's Python runs with your rights. Exits with 1 where no run could be scored.
    """
    limits = Limits(judges=True if judges else None)
    with RunIndex.open(folder, read_only=True) as index:
        runs = [run for group in _groups(index, groups) for run in index.all_runs(group)]
        if not runs:
            raise UsageError(f"{folder} has no run to score")
        bundle = load_bundle(_bundle_of(index, runs, bundle_path))
        found = asyncio.run(_rescore(index, bundle, runs, reward, limits))
    if as_json:
        for item in found:
            click.echo(json.dumps(_as_json(item), ensure_ascii=False))
    else:
        _print(found)
    if not any(item.scores for item in found):
        raise click.exceptions.Exit(1)


def _groups(index: RunIndex, named: Sequence[str]) -> Sequence[str]:
    if not named:
        return [group.name for group in index.groups()]
    found: dict[str, None] = {}  # of two that overlap, a run is scored once
    for name in named:
        below = [group.name for group in index.groups(name) if group.name == name or group.name.startswith(f"{name}/")]
        found |= dict.fromkeys(below or [index.group(name).name])  # says what there is where it is misspelt
    return [*found]


def _bundle_of(index: RunIndex, runs: Sequence[RunSummary], said: Path | None) -> Path:
    if said is not None:
        return said
    names = sorted({run.bundle_name for run in runs})
    if len(names) > 1:
        raise UsageError(
            f"the runs are of several bundles ({', '.join(names)}): name one with --bundle, and its --group"
        )
    root = index.read(runs[-1].run_id, limit=1).bundle_root
    if not root or not Path(root).is_dir():
        raise UsageError(
            f"bundle {names[0]} is not at {root or 'any place that the runs name'}: say where with --bundle"
        )
    return Path(root)


async def _rescore(
    index: RunIndex, bundle: Bundle, runs: Sequence[RunSummary], reward: str | None, limits: Limits
) -> list[Rescored]:
    found: list[Rescored] = []
    with progress_bar("rescoring", len(runs)) as advance:
        async for item in rescore(index, bundle, runs, reward=reward, limits=limits):
            found.append(item)
            advance(len(found))
    return found


def _as_json(item: Rescored) -> dict[str, Any]:
    return {
        "run_id": item.run.run_id,
        "group": item.run.group,
        "task_id": item.run.task_id,
        "recorded": {"scores": dict(item.run.scores), "reward": item.run.reward, "state": item.run.state.value},
        "scores": {name: score.value for name, score in item.scores.items()},
        "explanations": {name: score.explanation for name, score in item.scores.items() if score.explanation},
        "judges": {name: judge.as_json() for name, judge in item.judges.items()},
        "skipped": {name: skipped.reason for name, skipped in item.skipped.items()},
        "reward": item.reward,
        "has_changed": item.has_changed,
        "why_not": item.why_not,
    }


def _print(found: Sequence[Rescored]) -> None:
    scored = [item for item in found if item.scores]
    for item in scored:
        if item.has_changed:
            before = ", ".join(f"{name} {value:.6g}" for name, value in item.run.scores.items()) or item.run.state.value
            after = ", ".join(f"{name} {score.value:.6g}" for name, score in item.scores.items())
            click.echo(one_line(f"{item.run.run_id[:12]}  {item.run.task_id}: {before} -> {after}", 180))
    changed = sum(item.has_changed for item in scored)
    click.echo(f"{len(scored)} of {len(found)} runs scored again, {changed} with another score{_means(scored)}")
    reasons = Counter(item.why_not for item in found if not item.scores)
    for reason, count in reasons.most_common(_REASONS):
        click.echo(one_line(f"{count} not scored: {reason}", 240))
    if len(reasons) > _REASONS:
        click.echo(f"and {len(reasons) - _REASONS} other reasons: --json lists them")


def _means(scored: Sequence[Rescored]) -> str:
    now = [item.reward for item in scored if item.reward is not None]
    return f"; mean reward {sum(now) / len(now):.3f} of {len(now)}" if now else ""
