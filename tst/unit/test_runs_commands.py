"""`agent-env runs` and its commands over a real index: lists, conditions, search, export, deletion."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agent_env.cli import root
from agent_env.episode.sink import Event, EventKind, RunHeader
from agent_env.errors import AgentEnvError, UsageError
from agent_env.outcome import CutReason, EpisodeResult, Outcome, Score
from agent_env.runs import RunIndex


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three runs of one step and one of another."""
    with RunIndex.open(tmp_path / "runs") as index:
        for group, task, reward, said in (
            ("grid/train/step-0001", "day-1", 0.25, "I keep the lamps on."),
            ("grid/train/step-0001", "day-2", 0.75, "I refund the order \x1b[31m now."),
            ("grid/train/step-0001", "day-3", 1.0, "All lamps are off."),
            ("grid/train/step-0002", "day-1", 0.5, "I keep the heater on."),
        ):
            sink = index.run(group)
            sink.opened(RunHeader(task_id=task, bundle_name="b", bundle_version="1", params={}, tags=()))
            data = {"message": {"role": "assistant", "content": said}, "index": 0}
            sink.event(Event(kind=EventKind.MESSAGE, at_s=time.time(), step="plan", turn=0, data=data))
            scores = {"saving": Score(step="saving", value=reward)}
            cut = CutReason.TIMEOUT if reward == 0.25 else None
            sink.ended(EpisodeResult(outcome=Outcome.COMPLETED, run_id=sink.run_id, scores=scores, cut=cut))
            sink.set_reward(reward)
        index.flush()
    return tmp_path / "runs"


def run(*words: str, typed: str | None = None) -> Result:
    """A command, as it ended."""
    return CliRunner().invoke(root, ["runs", *words], input=typed)


def lines(*words: str) -> list[str]:
    """What a command that is well prints."""
    done = run(*words)
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines()


def test_without_a_command_the_groups_are_listed(folder: Path) -> None:
    """`agent-env runs FOLDER` is `agent-env runs list FOLDER`."""
    assert lines(str(folder)) == lines("list", str(folder))
    found = lines(str(folder), "--group", "grid")
    assert [line.split()[0] for line in found[1:3]] == ["grid/train/step-0001", "grid/train/step-0002"]


def test_a_training_run_is_one_line(folder: Path) -> None:
    """Its steps, its runs, what each split earned last and how its runs ended; then the groups that are no step of one."""
    with RunIndex.open(folder) as index:
        for group, reward in (("grid/eval/step-0001", 0.125), ("played/by-hand", 1.0), ("sea/train/step-0000", None)):
            sink = index.run(group)
            sink.opened(RunHeader(task_id="day-1", bundle_name="b", bundle_version="1", params={}, tags=()))
            sink.ended(EpisodeResult(outcome=Outcome.COMPLETED, run_id=sink.run_id, scores={}))
            if reward is not None:
                sink.set_reward(reward)
    found = lines(str(folder))
    assert [line.split()[0] for line in found if line] == [
        "training",
        "sea",
        "grid",
        "group",
        "played/by-hand",
        "agent-env",
    ]
    assert found[2].split()[1:3] == ["2", "5"]
    assert "train 0.500, eval 0.125 (step 1)" in found[2]
    assert "5 completed, 1 cut" in found[2]
    said = json.loads("\n".join(lines(str(folder), "--json")))
    assert [training["name"] for training in said["trainings"]] == ["sea", "grid"]
    assert said["trainings"][1]["latest"]["eval"] == {"step": 1, "scored": 1, "reward_mean": 0.125, "reward_se": None}
    assert [group["name"] for group in said["groups"]] == ["played/by-hand"]
    inner = json.loads("\n".join(lines(str(folder), "--group", "grid", "--json")))
    assert (inner["trainings"], len(inner["groups"])) == ([], 3)


def test_a_list_has_an_end(folder: Path) -> None:
    """Those that wrote last are listed, and how many there are beside."""
    done = run(str(folder), "--group", "grid", "--limit", "1")
    assert [line.split()[0] for line in done.stdout.splitlines()[:2]] == ["group", "grid/train/step-0002"]
    assert done.stderr == "1 more, which wrote earlier: --limit lists them\n"


@pytest.mark.parametrize(
    "words",
    [
        ["list", "--json"],
        ["export", "--to", "x.jsonl"],
        ["delete", "--where", "false"],
        ["vacuum"],
        ["search", "lamps"],
    ],
)
def test_the_folder_is_said_in_one_way_everywhere(
    folder: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--runs`; where nothing else is an argument the folder may be one, and both only when they are the same."""
    monkeypatch.chdir(folder.parent)
    named = run(*words, "--runs", str(folder))
    assert (named.exit_code, named.output) == (0, run(*words).output)
    if words[0] != "search":
        assert run(*words, "runs", "--runs", str(folder)).exit_code == 0
        other = run(*words, "runs", "--runs", "other")
        assert other.exit_code == 2
        assert "runs and --runs other are two folders: leave one of them out" in other.output


@pytest.mark.parametrize("words", ["runs search lamps", "show abc", "report grid --html x.html", "universe diff abc"])
def test_a_folder_that_is_no_argument_is_said_by_its_option(folder: Path, words: str) -> None:
    """Where something else is the argument; nothing is done."""
    done = CliRunner().invoke(root, [*words.split(), str(folder)])
    assert done.exit_code == 2
    assert "the runs folder is said by --runs" in " ".join(done.output.split())


def test_other_commands_take_the_folder_in_both_ways(folder: Path) -> None:
    """`rescore`, which finds no bundle here, says the same; it and `explore` take no two folders."""
    said = [
        CliRunner().invoke(root, ["rescore", *words]).exception for words in ([str(folder)], ["--runs", str(folder)])
    ]
    assert str(said[0]) == str(said[1])
    assert "bundle b is not at" in str(said[0])
    for command in ("rescore", "explore"):
        done = CliRunner().invoke(root, [command, str(folder), "--runs", "other"])
        assert "are two folders: leave one of them out" in done.output


def test_the_runs_of_a_group_are_listed(folder: Path) -> None:
    """A line each, the newest first: task, outcome with its cut, reward, scores."""
    found = lines("list", str(folder), "--group", "grid/train/step-0001")
    assert [line.split()[1] for line in found[1:]] == ["day-3", "day-2", "day-1"]
    assert "completed, cut (timeout)" in found[3]
    assert "saving 0.25" in found[3]


def test_a_condition_chooses_runs_of_all_groups(folder: Path) -> None:
    """`--where` is true of them, whatever group they are in."""
    found = lines("list", str(folder), "--where", "reward BETWEEN 0.3 AND 0.8")
    assert [line.split()[1:3] for line in found[1:]] == [
        ["grid/train/step-0002", "day-1"],
        ["grid/train/step-0001", "day-2"],
    ]


def test_a_list_for_programs_is_json(folder: Path) -> None:
    """The same runs, with all that is known of each."""
    found = json.loads("\n".join(lines("list", str(folder), "--where", "cut = 'timeout'", "--json")))
    assert [(one["task_id"], one["reward"], one["scores"]) for one in found] == [("day-1", 0.25, {"saving": 0.25})]


def test_a_condition_that_makes_no_sense_names_the_columns(folder: Path) -> None:
    """One line, with what can be written instead."""
    done = run("list", str(folder), "--where", "rewrad < 1")
    assert isinstance(done.exception, UsageError)
    assert "rewrad" in str(done.exception)
    assert "reward" in str(done.exception).replace("rewrad", "")


def test_a_group_that_is_not_there_is_said(folder: Path) -> None:
    """And how to find out which there are."""
    done = run("list", str(folder), "--group", "gird")
    assert isinstance(done.exception, UsageError)
    assert str(done.exception) == f"no group 'gird' in {folder}: `agent-env runs {folder}` lists them"


@pytest.mark.parametrize("words", [("list", "--group"), ("delete", "--yes", "--group"), ("show", "--runs")])
def test_a_name_that_is_no_text_is_said(folder: Path, words: tuple[str, ...]) -> None:
    """A byte that is no UTF-8 comes from the command line as half a character."""
    command, *options = words
    named = ["\udcff", *options, str(folder)] if command == "show" else [str(folder), *options, "\udcff"]
    done = run(command, *named)
    assert isinstance(done.exception, UsageError)
    assert "no text" in str(done.exception)


def test_a_text_is_found_and_shown_safely(folder: Path) -> None:
    """With the run, its place, and the words around it; an escape in it does nothing to the terminal."""
    found = lines("search", "refund order", "--runs", str(folder))
    assert "day-2" in found[0]
    assert found[1].strip().startswith("I refund the")
    assert not any("\x1b" in line for line in found)
    assert lines("search", "lamps", "--runs", str(folder), "--group", "grid/train/step-0002") == ["nothing found"]


def test_runs_are_exported_as_json_lines(folder: Path, tmp_path: Path) -> None:
    """A line each, the oldest first, with their events unless they are not wanted."""
    file = tmp_path / "out.jsonl"
    assert lines("export", str(folder), "--to", str(file), "--group", "grid/train/step-0001") == [f"{file}: 3 runs"]
    found = [json.loads(line) for line in file.read_text().splitlines()]
    assert [one["task_id"] for one in found] == ["day-1", "day-2", "day-3"]
    assert found[0]["events"][0]["data"]["message"]["content"] == "I keep the lamps on."
    lines("export", str(folder), "--to", str(file), "--no-events")
    assert "events" not in json.loads(file.read_text().splitlines()[0]) or not file.read_text().count("lamps")


def test_runs_are_exported_as_parquet(folder: Path, tmp_path: Path) -> None:
    """A row each, as pandas reads it."""
    pandas = pytest.importorskip("pandas")
    file = tmp_path / "out.parquet"
    assert lines("export", str(folder), "--to", str(file), "--where", "reward > 0.6") == [f"{file}: 2 runs"]
    assert list(pandas.read_parquet(file)["task_id"]) == ["day-2", "day-3"]


def test_the_name_of_the_file_says_its_form(folder: Path, tmp_path: Path) -> None:
    """Another ending is refused, and nothing is written."""
    done = run("export", str(folder), "--to", str(tmp_path / "out.csv"))
    assert isinstance(done.exception, UsageError)
    assert ".parquet" in str(done.exception)
    assert not (tmp_path / "out.csv").exists()


def test_runs_are_deleted_when_that_is_confirmed(folder: Path) -> None:
    """The question says how many; no is no."""
    done = run("delete", str(folder), "--where", "task_id = 'day-1'", typed="n\n")
    assert "Delete 2 runs" in done.output
    with RunIndex.open(folder, read_only=True) as index:
        assert index.count() == 4
    done = run("delete", str(folder), "--where", "task_id = 'day-1'", typed="y\n")
    assert "deleted 2 runs" in done.output
    with RunIndex.open(folder, read_only=True) as index:
        assert [one.task_id for one in index.select().runs] == ["day-3", "day-2"]


def test_a_group_is_deleted_without_a_question(folder: Path) -> None:
    """`--yes` for scripts; the others stay."""
    assert lines("delete", str(folder), "--group", "grid/train/step-0001", "--yes") == ["deleted 3 runs"]
    with RunIndex.open(folder, read_only=True) as index:
        assert index.count() == 1


def test_nothing_is_deleted_that_was_not_named(folder: Path) -> None:
    """Neither a group nor a condition: a question of usage, not of all runs."""
    done = run("delete", str(folder), "--yes")
    assert done.exit_code != 0
    with RunIndex.open(folder, read_only=True) as index:
        assert index.count() == 4


def test_vacuum_says_what_it_gave_back(folder: Path) -> None:
    """And takes the words of deleted runs out of the search."""
    lines("delete", str(folder), "--where", "true", "--yes")
    assert " now" in lines("vacuum", str(folder))[0]
    assert lines("search", "lamps", "--runs", str(folder)) == ["nothing found"]


@pytest.mark.parametrize(
    "words", [["list", "--json"], ["export", "--to", "x.jsonl"], ["delete", "--where", "true"], ["vacuum"]]
)
def test_a_folder_without_an_index_stays_without(words: list[str], tmp_path: Path) -> None:
    """Every command says so; none makes one."""
    name, *options = words
    done = run(name, str(tmp_path / "none"), *options)
    assert isinstance(done.exception, AgentEnvError)
    assert "no run index here" in str(done.exception)
    assert not (tmp_path / "none").exists()
