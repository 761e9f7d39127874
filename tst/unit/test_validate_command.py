"""`agent-env validate` and `agent-env schema`, as a user calls them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from click.testing import CliRunner

from agent_env.cli import root as agent_env

WriteBundle = Callable[[Mapping[str, str | bytes | None]], Path]


def test_a_good_bundle_is_counted(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """Exit 0 and one line."""
    result = CliRunner().invoke(agent_env, ["validate", str(write_bundle(small_bundle))])
    assert (result.exit_code, result.stdout) == (0, "ok: 2 tasks, 1 eval, 1 env\n")


def test_each_problem_is_a_line(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """Exit 1, and the problems on standard output, where `grep` and an editor find them."""
    files = {**small_bundle, "evals/test.yaml": "tasks: [c]\n", "verifiers/sold.py": "print('hello')\n"}
    result = CliRunner().invoke(agent_env, ["validate", str(write_bundle(files))])
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "evals/test.yaml:1: eval 'test' names task 'c', which is not there, write one of a, b",
        "tasks/a.yaml:5: verifiers/sold.py has no 'score', define score in it",
        "tasks/b.jsonl:1: verifiers/sold.py has no 'score', define score in it",
    ]
    assert result.stderr == "hello\n"


def test_json_has_the_parts_of_each_problem(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """`--json` prints one object, and nothing that the bundle's files print."""
    files = {**small_bundle, "evals/test.yaml": "tasks: [c]\n"}
    result = CliRunner().invoke(agent_env, ["validate", "--json", str(write_bundle(files))])
    assert result.exit_code == 1
    printed = json.loads(result.stdout)
    assert (printed["ok"], printed["tasks"]) == (False, 2)
    assert printed["problems"] == [
        {
            "path": "evals/test.yaml",
            "line": 1,
            "what": "eval 'test' names task 'c', which is not there",
            "fix": "write one of a, b",
        }
    ]


def test_no_bundle_is_a_usage_error_without_a_traceback(tmp_path: Path) -> None:
    """Exit 2 and one line on standard error, from the command itself."""
    command = [sys.executable, "-m", "agent_env", "validate", str(tmp_path / "nowhere")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"no bundle at {tmp_path / 'nowhere'}: there is no such folder\n"


def test_a_closed_standard_output_is_no_mistake(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """`>&-` leaves Python without one; the exit code says the rest."""
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "agent_env", "validate"]
    done = subprocess.run([*command, str(write_bundle(small_bundle))], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_schemas_are_printed() -> None:
    """All by kind, or one; a wrong kind gets the closest."""
    every = CliRunner().invoke(agent_env, ["schema"])
    assert set(json.loads(every.stdout)) == {"bundle", "task", "eval", "recipe"}
    one = CliRunner().invoke(agent_env, ["schema", "task"])
    assert json.loads(one.stdout) == json.loads(every.stdout)["task"]
    wrong = CliRunner().invoke(agent_env, ["schema", "tasks"])
    assert str(wrong.exception) == "there is no kind of file 'tasks', did you mean 'task'?"
