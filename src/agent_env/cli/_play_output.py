"""What `agent-env play` prints: the tasks of a bundle, one episode's end, a table of many, and the same as JSON."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import click
from rich.text import Text

from agent_env._wording import counted
from agent_env.bundle import Bundle, Conversation, Prompt, PythonRef, Task
from agent_env.cli._called_as import called_as
from agent_env.cli._playing import Played, Recording
from agent_env.cli._tables import new_console, new_table
from agent_env.errors import BundleError
from agent_env.outcome import Outcome, Score
from agent_env.runs.visible import one_line, visible

__all__ = ["as_json", "print_end", "print_table", "print_tasks", "tasks_as_json", "totals"]

_EXPLAINED_LINES = 40
_STYLES = {Outcome.COMPLETED: "green", Outcome.FAILED: "red", Outcome.ABANDONED: "yellow"}


def print_tasks(bundle: Bundle) -> None:
    """List the tasks: id, tags, and how the prompt begins."""
    table = new_table()
    table.add_column("task", no_wrap=True)
    table.add_column("tags")
    table.add_column("prompt", overflow="ellipsis", no_wrap=True)
    for task in bundle.tasks.values():
        table.add_row(Text(visible(task.id)), Text(one_line(", ".join(task.tags), 60)), Text(_asked(task)))
    new_console().print(table)


def tasks_as_json(bundle: Bundle) -> str:
    """The same for a program."""
    tasks = [
        {"task_id": task.id, "tags": list(task.tags), "has_gold": task.gold is not None, "prompt": _asked(task)}
        for task in bundle.tasks.values()
    ]
    return json.dumps({"bundle_name": bundle.name, "tasks": tasks}, indent=1)


def _asked(task: Task) -> str:
    """The first line of the first prompt of the agent that is played."""
    played = (step for step in task.steps if isinstance(step, Prompt) and step.agent == task.bundle.played)
    step = next(played, None)
    match None if step is None else step.source:
        case None:
            return ""
        case Conversation(by=leader):
            return one_line(f"({leader} leads a conversation)", 80)
        case PythonRef() as function:
            return one_line(f"(asked by {function})", 80)
        case source:
            try:
                text = source.render(params=task.params, task_id=task.id, tags=task.tags)
            except BundleError as exc:
                return one_line(f"({exc})", 80)
            return one_line(next((line for line in text.splitlines() if line.strip()), ""), 80)


def print_end(recording: Recording, folder: Path | None, out: TextIO) -> None:
    """Print what one episode came to: outcome, scores with their explanations, reward, and where it is recorded."""
    (played,) = recording.played

    def say(text: str, **style: Any) -> None:
        click.secho(visible(text), file=out, **style)

    say("")
    say(f"{played.task_id}: {_outcome(played)}", bold=True, fg=_STYLES[played.outcome])
    if played.failure is not None:
        where = f" in {played.failure.step}" if played.failure.step else ""
        say(f"  {played.failure.kind}{where}: {one_line(played.failure.message, 500)}", fg="red")
    if played.result is not None:
        for score in played.result.scores.values():
            say(_explained(score))
        for skipped in played.result.skipped.values():
            say(f"  {skipped.step}  not scored: {one_line(skipped.reason)}", fg="yellow")
    if played.reward is not None:
        say(f"  reward  {_number(played.reward)}", bold=True)
    elif played.outcome is Outcome.COMPLETED:
        say(f"  no reward: {one_line(recording.why_no_reward, 500)}", fg="yellow")
    elif played.outcome is Outcome.ABANDONED:
        say("  nothing is scored")
    if folder is not None:
        say(f"{called_as()} show {played.run_id[:12]}{_runs_option(folder)}", dim=True)


def print_table(recording: Recording, folder: Path | None) -> None:
    """Print a line for each episode, then the totals."""
    episodes = recording.in_order()
    table = new_table()
    table.add_column("task", overflow="fold")
    table.add_column("outcome")
    table.add_column("scores")
    table.add_column("reward", justify="right", no_wrap=True)
    if folder is not None:
        table.add_column("run", no_wrap=True)
    for played in episodes:
        table.add_row(
            Text(visible(played.task_id)),
            Text(visible(_outcome(played)), style=_STYLES[played.outcome]),
            Text(visible(_scores(played))),
            "" if played.reward is None else _number(played.reward),
            *([] if folder is None else [played.run_id[:12]]),
        )
    console = new_console()
    console.print(table)
    for message, count in _failures(episodes):
        often = f" ({count} times)" if count > 1 else ""
        console.print(Text(f"{message}{often}", style="red"))
    console.print(Text(totals(recording), style="bold"))
    if folder is not None:
        console.print(Text(one_line(f"group {recording.group}", 300), style="dim"))
        # On a line of its own, and never wrapped: it is there to be pasted.
        explore = f"{called_as()} explore {shlex.quote(str(folder))}"
        console.print(Text(visible(explore), style="dim"), soft_wrap=True)


def totals(recording: Recording) -> str:
    """Say what all came to: what the scored ones earned, and what there is beside them."""
    rewards = [played.reward for played in recording.played if played.reward is not None]
    outcomes = Counter(played.outcome for played in recording.played)
    parts: list[str] = []
    if rewards:
        parts.append(f"mean {_number(math.fsum(rewards) / len(rewards))} of {len(rewards)} scored")
    unscored = outcomes[Outcome.COMPLETED] - len(rewards)
    if unscored:
        parts.append(f"{unscored} completed without a reward: {one_line(recording.why_no_reward, 300)}")
    if outcomes[Outcome.FAILED]:
        kinds = Counter(str(played.failure.kind) for played in recording.played if played.failure is not None)
        named = ", ".join(f"{count} {kind}" if len(kinds) > 1 else kind for kind, count in kinds.most_common())
        parts.append(f"{outcomes[Outcome.FAILED]} failed ({named})")
    if outcomes[Outcome.ABANDONED]:
        parts.append(f"{outcomes[Outcome.ABANDONED]} abandoned")
    return "; ".join(parts) or "nothing was played"


def as_json(bundle: Bundle, recording: Recording, folder: Path | None) -> str:
    """Everything for a program."""
    rewards = [played.reward for played in recording.played if played.reward is not None]
    outcomes = Counter(str(played.outcome) for played in recording.played)
    return json.dumps(
        {
            "bundle_name": bundle.name,
            "bundle_version": bundle.version,
            "runs": None if folder is None else str(folder),
            "group": None if folder is None else recording.group,
            "scored": len(rewards),
            "reward_mean": math.fsum(rewards) / len(rewards) if rewards else None,
            "states": {str(outcome): outcomes[str(outcome)] for outcome in Outcome},
            "no_reward": recording.why_no_reward or None,
            "episodes": [_episode(played, is_recorded=folder is not None) for played in recording.in_order()],
        },
        indent=1,
    )


def _episode(played: Played, *, is_recorded: bool) -> dict[str, Any]:
    result = played.result
    scores: Mapping[str, Score] = {} if result is None else result.scores
    failure = played.failure
    return {
        "task_id": played.task_id,
        "rollout": played.rollout,
        "run_id": played.run_id if is_recorded else None,
        "state": str(played.outcome),
        "cut": None if result is None or result.cut is None else str(result.cut),
        "scores": {step: score.value for step, score in scores.items()},
        "explanations": {step: score.explanation for step, score in scores.items() if score.explanation},
        "score_metrics": {step: dict(score.metrics) for step, score in scores.items() if score.metrics},
        "skipped": {} if result is None else {step: skipped.reason for step, skipped in result.skipped.items()},
        "reward": played.reward,
        "failure_kind": None if failure is None else str(failure.kind),
        "failure_step": None if failure is None else failure.step,
        "failure_message": None if failure is None else failure.message,
        "metrics": {} if result is None else dict(result.metrics),
        "duration_s": round(played.duration_s, 3),
    }


def _outcome(played: Played) -> str:
    if played.failure is not None:
        return f"failed ({played.failure.kind})"
    if played.result is not None and played.result.cut is not None:
        return f"{played.outcome}, cut: {played.result.cut.replace('_', ' ')}"
    return str(played.outcome)


def _scores(played: Played) -> str:
    if played.result is None:
        return ""
    return ", ".join(f"{score.step} {_number(score.value)}" for score in played.result.scores.values())


def _failures(episodes: Sequence[Played]) -> list[tuple[str, int]]:
    """What failed, each once."""
    said = Counter(
        one_line(f"{played.failure.kind}: {played.failure.message}", 300)
        for played in episodes
        if played.failure is not None
    )
    return said.most_common(10)


def _explained(score: Score) -> str:
    """A score and its explanation; of several lines, what follows the heading stands below, indented."""
    lines = [line for line in (one_line(line, 500) for line in score.explanation.splitlines()) if line]
    more = len(lines) - _EXPLAINED_LINES
    if more > 0:
        lines = [*lines[:_EXPLAINED_LINES], f"and {counted(more, 'more line')}"]
    head = f"  {score.step}  {_number(score.value)}"
    if lines and (len(lines) == 1 or lines[0].endswith(":")):
        head = f"{head}  {lines.pop(0)}"
    return "\n".join([head, *(f"      {line}" for line in lines)])


def _number(value: float) -> str:
    return f"{value:.4g}"


def _runs_option(folder: Path) -> str:
    return "" if folder == Path("runs") else f" --runs {shlex.quote(str(folder))}"
