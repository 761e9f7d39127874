"""`agent-env play`: a task by hand, or any number of them with gold, a script, a bundle's player or a model."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from agent_env.cli import INTERRUPTED
from agent_env.errors import UsageError

if TYPE_CHECKING:
    from agent_env.bundle import Bundle, ModelSpec, Task
    from agent_env.cli._playing import Played, Recording
    from agent_env.episode.players import Player

__all__ = ["command"]

_MODEL_ONLY = ("base_url", "api_key_env", "temperature", "max_tokens", "timeout_s")
_MAX_MESSAGES = 200
"""Messages of a model in one episode; a solution that is written down ends by itself."""


def _complete(of: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Complete the names that a bundle has: its tasks, evals or players."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from agent_env.cli.completion import bundle_names

        # Behind an option that waits for its value click has not read the arguments yet.
        bundle = ctx.params.get("bundle") or next((word for word in ctx.args if not word.startswith("-")), None)
        return bundle_names(bundle, of, incomplete)

    return complete


@click.command("play")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("task_id", metavar="[TASK]", required=False, shell_complete=_complete("tasks"))
@click.option("--gold", is_flag=True, help="Play the task's reference solution.")
@click.option("--script", type=click.Path(path_type=Path, dir_okay=False), help="Play turns from a YAML or JSON file.")
@click.option("--player", help="Play one of the bundle's players.", shell_complete=_complete("players"))
@click.option("--model", help="Play with a model behind an OpenAI-compatible endpoint.")
@click.option("--base-url", help="With --model: the endpoint, e.g. http://localhost:8000/v1.")
@click.option("--api-key-env", metavar="VARIABLE", help="With --model: the environment variable that holds the key.")
@click.option("--temperature", type=click.FloatRange(min=0), help="With --model. Default: 1.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="With --model: tokens of one message. Default: 2048.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0.001), help="With --model: seconds of a request. Default: 120."
)
@click.option(
    "--eval", "eval_name", help="Play the tasks of an eval; all is every task.", shell_complete=_complete("evals")
)
@click.option("--tasks", "pattern", metavar="GLOB", help="Play the tasks whose ids fit, e.g. 'refund-*'.")
@click.option(
    "--rollouts", type=click.IntRange(min=1), default=1, show_default=True, help="How often each task is played."
)
@click.option("--concurrency", type=click.IntRange(min=1), default=8, show_default=True, help="Episodes at once.")
@click.option(
    "--max-messages",
    type=click.IntRange(min=1),
    help=f"Messages that a player may write in an episode; it is cut then. Default: {_MAX_MESSAGES} for a model.",
)
@click.option("--judges", is_flag=True, help="Ask the model judges too, where the bundle has them.")
@click.option(
    "--runs",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("runs"),
    show_default=True,
    help="The runs folder: every episode is filed here.",
)
@click.option("--group", help="What the runs are filed under. Default: play/<time>.")
@click.option("--no-record", is_flag=True, help="Record nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, bundle: Path, runs: Path, no_record: bool, as_json: bool, **options: Any) -> None:
    """Play BUNDLE's TASK by hand in the terminal, or with --gold, --script, --player or --model.

    Without TASK, --eval or --tasks, lists the tasks; --gold and --player play them all. Exits with 1 when an episode fails or
    is given up.
    """
    from agent_env.bundle import load_bundle
    from agent_env.cli import _play_output as output
    from agent_env.cli._playing import Recording

    chosen = _Options(**options)
    chosen.check()
    loaded = load_bundle(bundle)
    tasks = _selected(loaded, chosen)
    if not tasks:
        click.echo(output.tasks_as_json(loaded)) if as_json else output.print_tasks(loaded)
        return
    player_of, label = _player(loaded, chosen, tasks)
    if chosen.gold:
        tasks = _with_gold(tasks, chosen)
    folder = None if no_record else runs
    group = chosen.group if chosen.group is not None else f"play/{time.strftime('%Y%m%d-%H%M%S')}"
    stopped = False
    judges = True if chosen.judges else None
    labels = {"player": label} if chosen.model is None else {"player": label, "model": chosen.model}
    with Recording.open(folder, group, bundle=loaded, tasks=tasks, labels=labels, judges=judges) as recording:
        if player_of is None:
            _play_by_hand(tasks[0], recording, to_stderr=as_json)
        else:
            stopped = not _play(tasks, player_of, recording, chosen)
    if as_json:
        click.echo(output.as_json(loaded, recording, folder))
    elif len(recording.played) == 1 and not stopped:
        output.print_end(recording, folder, sys.stdout)
    else:
        output.print_table(recording, folder)
    if stopped:
        click.echo("stopped; what was under way is abandoned", err=True)
        raise click.exceptions.Exit(INTERRUPTED)
    if any(played.outcome != "completed" for played in recording.played):
        raise click.exceptions.Exit(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """What was asked for, beside where."""

    task_id: str | None
    gold: bool
    script: Path | None
    player: str | None
    model: str | None
    base_url: str | None
    api_key_env: str | None
    temperature: float | None
    max_tokens: int | None
    timeout_s: float | None
    eval_name: str | None
    pattern: str | None
    rollouts: int
    concurrency: int
    max_messages: int | None
    judges: bool
    group: str | None

    @property
    def is_by_hand(self) -> bool:
        """Whether a person plays."""
        return not self.gold and self.script is None and self.player is None and self.model is None

    @property
    def selects(self) -> bool:
        """Whether it says which tasks."""
        return self.task_id is not None or self.eval_name is not None or self.pattern is not None

    def check(self) -> None:
        """Refuse what does not go together.

        Raises:
            UsageError: When something does not.
        """
        ways = {"--gold": self.gold, "--script": self.script, "--player": self.player, "--model": self.model}
        _at_most_one("one player plays", [name for name, value in ways.items() if value])
        which = {"TASK": self.task_id, "--eval": self.eval_name, "--tasks": self.pattern}
        _at_most_one("one selection of tasks", [name for name, value in which.items() if value is not None])
        if self.model is None:
            given = [
                f"--{name.removesuffix('_s').replace('_', '-')}"
                for name in _MODEL_ONLY
                if getattr(self, name) is not None
            ]
            if given:
                raise UsageError(f"{given[0]} goes with --model: add --model NAME, or leave it out")
        elif self.base_url is None:
            raise UsageError("--model: say where it is, with --base-url, e.g. --base-url http://localhost:8000/v1")
        elif not self.selects:
            raise UsageError(
                "--model: say which tasks, with TASK, --eval NAME or --tasks GLOB; --eval all is every task"
            )
        if self.script is not None and self.task_id is None:
            raise UsageError("--script: name the TASK that it is a solution of")
        if self.is_by_hand and (self.eval_name is not None or self.pattern is not None or self.rollouts > 1):
            raise UsageError("by hand one TASK is played once: name it, or add --gold, --player or --model")


def _at_most_one(what: str, given: Sequence[str]) -> None:
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)}: {what}, leave one of them out")


def _selected(bundle: Bundle, chosen: _Options) -> list[Task]:
    """The tasks to play; none where they are to be listed."""
    from agent_env.bundle import names_or_closest

    if chosen.task_id is not None:
        return [bundle.task(chosen.task_id)]
    if chosen.pattern is not None:
        tasks = [task for task in bundle.tasks.values() if fnmatchcase(task.id, chosen.pattern)]
        if not tasks:
            fix = names_or_closest(chosen.pattern, bundle.tasks)
            raise UsageError(f"--tasks: {bundle.name} has no task like '{chosen.pattern}', {fix}")
        return tasks
    if chosen.is_by_hand:
        return []
    tasks = list(bundle.select(chosen.eval_name or "all"))
    if not tasks:
        raise UsageError(f"--eval: '{chosen.eval_name}' selects no task of {bundle.name}")
    return tasks


def _with_gold(tasks: Sequence[Task], chosen: _Options) -> list[Task]:
    """The tasks that have a reference solution; said where others are left out."""
    from agent_env.episode.gold import gold_player

    having = [task for task in tasks if task.gold is not None]
    if not having:
        gold_player(tasks[0])  # says that there is none, and where to write it
    if len(having) < len(tasks):
        left_out = len(tasks) - len(having)
        said = "1 task has no gold and is" if left_out == 1 else f"{left_out} tasks have no gold and are"
        click.echo(f"{said} left out", err=True)
    return having


def _player(bundle: Bundle, chosen: _Options, tasks: Sequence[Task]) -> tuple[Callable[[Task], Player] | None, str]:
    """Who plays, and what that is called in the runs; None is a person."""
    from agent_env.bundle import names_or_closest
    from agent_env.cli._script import read_script
    from agent_env.episode.gold import gold_player, turns_player
    from agent_env.episode.model_player import model_player
    from agent_env.episode.players import load_player

    if chosen.gold:
        return gold_player, "gold"
    if chosen.script is not None:
        scripted = turns_player(read_script(chosen.script))
        return (lambda _: scripted), "script"
    if chosen.model is not None:
        model = model_player(_model(chosen))
        return (lambda _: model), f"model {chosen.model}"
    if chosen.player is not None:
        known = bundle.players.get(chosen.player)
        if known is None:
            fix = names_or_closest(chosen.player, bundle.players) if bundle.players else "its bundle.yaml names none"
            raise UsageError(f"--player: {bundle.name} has no player '{chosen.player}', {fix}")
        with redirect_stdout(sys.stderr):
            player = load_player(known)
        return (lambda _: player), chosen.player
    return None, "by hand"


def _model(chosen: _Options) -> ModelSpec:
    """The model that is asked for.

    Raises:
        UsageError: When the variable that is to hold its key is not set, or the URL is none.
    """
    from agent_env.bundle import ModelSpec
    from agent_env.chat import check_model

    assert chosen.model is not None
    assert chosen.base_url is not None
    if chosen.api_key_env is not None and not os.environ.get(chosen.api_key_env):
        raise UsageError(f"--api-key-env: the variable {chosen.api_key_env} is not set, which is to hold the key")
    given: dict[str, Any] = {"max_tokens": chosen.max_tokens, "timeout_s": chosen.timeout_s}
    spec = ModelSpec(
        model=chosen.model,
        base_url=chosen.base_url,
        api_key_env=chosen.api_key_env,
        temperature=1.0 if chosen.temperature is None else chosen.temperature,
        **{name: value for name, value in given.items() if value is not None},
    )
    check_model(spec)
    return spec


def _play_by_hand(task: Task, recording: Recording, *, to_stderr: bool) -> None:
    from agent_env.cli._by_hand import Person, play_by_hand

    sink = recording.sink()
    began = time.perf_counter()
    with redirect_stdout(sys.stderr) if to_stderr else nullcontext():
        result = play_by_hand(task, sink=sink, limits=recording.limits, person=Person(sys.stdout))
    recording.ended(task, sink, result, duration_s=time.perf_counter() - began)


def _play(tasks: Sequence[Task], player_of: Callable[[Task], Player], recording: Recording, chosen: _Options) -> bool:
    """Play tasks, with a bar on a terminal; return whether it came to its end."""
    import asyncio

    from agent_env.cli._playing import play_tasks

    most = chosen.max_messages or (_MAX_MESSAGES if chosen.model is not None else 10_000)
    with _progress(len(tasks) * chosen.rollouts, recording) as on_played, redirect_stdout(sys.stderr):
        try:
            asyncio.run(
                play_tasks(
                    tasks,
                    player_of,
                    recording,
                    rollouts=chosen.rollouts,
                    concurrency=chosen.concurrency,
                    max_messages=most,
                    on_played=on_played,
                )
            )
        except (KeyboardInterrupt, click.Abort):
            return False
    return True


@contextmanager
def _progress(total: int, recording: Recording) -> Generator[Callable[[Played], None] | None]:
    if total < 2 or not sys.stderr.isatty():
        yield None
        return
    from agent_env.cli._play_output import totals
    from agent_env.cli._progress import progress_bar

    with progress_bar("play", total) as advance:
        yield lambda _: advance(len(recording.played), totals(recording))
