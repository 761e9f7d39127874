"""Bundles that were written to break what reads them: each gets lines of a bounded length, and soon."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from agent_env.bundle import validate_bundle

WriteBundle = Callable[[Mapping[str, str | bytes | None]], Path]

DEEP = "more than 100 lists and mappings are inside one another here, flatten them"
HEADER = 'name: shop\nenvs:\n  store: {python: "envs/store.py:Store", universe: universes/store.json}\n'


def says(root: Path) -> list[str]:
    """Return the lines that validation prints."""
    return [str(problem) for problem in validate_bundle(root)]


def nested(levels: int) -> str:
    """A value of so many lists inside one another, in YAML and in JSON."""
    return "[" * levels + "]" * levels


@pytest.mark.parametrize("levels", [120, 480, 700])
def test_values_that_are_nested_too_deeply_are_refused(
    small_bundle: dict[str, str], write_bundle: WriteBundle, levels: int
) -> None:
    """What a copy or a record of it could not go through by recursion is refused where it is read."""
    files = {
        "tasks/a.yaml": f"{small_bundle['tasks/a.yaml']}gold_reward: {nested(levels)}\n",
        "tasks/b.jsonl": f'\n{{"id": "b", "prompt": "x", "params": {{"x": {nested(levels)}}}}}\n',
    }
    assert says(write_bundle({**small_bundle, **files})) == [f"tasks/a.yaml:6: {DEEP}", f"tasks/b.jsonl:2: {DEEP}"]


def test_values_of_a_hundred_levels_are_taken(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """The bound leaves room for whatever a person would write."""
    line = small_bundle["tasks/b.jsonl"].replace('{"count": 4}', f'{{"count": 4, "x": {nested(95)}}}')
    assert says(write_bundle({**small_bundle, "tasks/b.jsonl": line})) == []


def test_many_keys_of_which_one_is_there_twice_are_read_once(
    small_bundle: dict[str, str], write_bundle: WriteBundle
) -> None:
    """A line of a hundred thousand keys names the one that is there twice; looking each one up in all takes minutes."""
    keys = ", ".join(f'"k{at}": 0' for at in range(100_000))
    files = {"tasks/b.jsonl": f'{{"id": "b", "prompt": "x", "params": {{{keys}, "k7": 1}}}}\n'}
    root = write_bundle({**small_bundle, **files})
    assert says(root) == ["tasks/b.jsonl:1: the key 'k7' is there twice, remove one of the two"]


def test_a_name_of_megabytes_is_cut_in_the_message(small_bundle: dict[str, str], write_bundle: WriteBundle) -> None:
    """Beginning and end of it are repeated."""
    key = "x" * 2_000_000
    root = write_bundle({**small_bundle, "tasks/a.yaml": f"{small_bundle['tasks/a.yaml']}? {key}\n: 1\n"})
    (line,) = says(root)
    assert line.startswith("tasks/a.yaml:6: unknown key 'xxx")
    assert "xxx ... xxx" in line
    assert len(line) < 2_500


@pytest.mark.parametrize("name", ["prompts/policy.md", "universes/store.json", "verifiers/sold.py", "tasks/a.yaml"])
def test_a_pipe_is_no_file(small_bundle: dict[str, str], write_bundle: WriteBundle, name: str) -> None:
    """Nobody waits for what might come out of it, and the message does not look for a file of that name."""
    root = write_bundle(small_bundle)
    (root / name).unlink()
    os.mkfifo(root / name)
    assert {line.partition(": ")[2] for line in says(root)} == {
        f"'{name}' is no regular file, put a file in its place"
        + (" (or write {text: ...} if it is the text itself)" if name.endswith(".md") else "")
    }


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("class E(Exception):\n    def __str__(self): raise OSError\nraise E\n", "importing it raised E"),
        ("raise GeneratorExit\n", "importing it raised GeneratorExit"),
        ("import asyncio\nraise asyncio.CancelledError('x')\n", "importing it raised CancelledError: x"),
        ("def __getattr__(name):\n    raise KeyError(name)\n", "looking for 'score' in it raised KeyError: 'score'"),
    ],
)
def test_code_that_raises_whatever_it_likes_is_a_problem(
    small_bundle: dict[str, str], write_bundle: WriteBundle, code: str, what: str
) -> None:
    """Importing a file ends in a line of the validation, and in no traceback."""
    (line,) = says(write_bundle({**small_bundle, "verifiers/sold.py": code}))
    assert line.startswith("verifiers/sold.py:")
    assert line.endswith(f"{what}, correct the file so that it can be imported")


@pytest.mark.parametrize("front", ["2020-99-99", f"[{nested(5_000)}]", "!!int x"])
def test_the_front_matter_of_a_skill_that_cannot_be_read_is_a_problem(
    small_bundle: dict[str, str], write_bundle: WriteBundle, front: str
) -> None:
    """Whatever reading the YAML raises."""
    files = {
        "skills/sell/SKILL.md": f"---\ndescription: {front}\n---\nSell.\n",
        "tasks/a.yaml": f"{small_bundle['tasks/a.yaml']}skills: [sell]\n",
    }
    assert says(write_bundle({**small_bundle, **files})) == [
        "tasks/a.yaml:6: the front matter of 'skills/sell/SKILL.md' is not YAML, write name: ... and description: ..."
    ]


def test_a_step_with_a_problem_has_no_line_about_what_comes_of_it(
    small_bundle: dict[str, str], write_bundle: WriteBundle
) -> None:
    """A prompt and a verifier that were left out are neither missing from gold's turns nor from the reward."""
    files = {
        "bundle.yaml": small_bundle["bundle.yaml"] + "reward: sold\n",
        "tasks/a.yaml": (
            "id: a\n"
            "gold: [{reply: x}, {reply: y}]\n"
            "prompt: [Sell., prompts/nope.md]\n"
            "verify: [{python: verifiers/nope.py, id: sold}, {python: verifiers/sold.py, id: other}]\n"
        ),
    }
    lines = says(write_bundle({**small_bundle, **files}))
    assert [line.partition(", ")[0] for line in lines] == [
        "tasks/a.yaml:3: there is no file 'prompts/nope.md'",
        "tasks/a.yaml:4: there is no file 'verifiers/nope.py'",
    ]


def test_a_folder_of_tasks_that_is_elsewhere_is_not_looked_through(
    small_bundle: dict[str, str], write_bundle: WriteBundle, tmp_path: Path
) -> None:
    """A link in its place may lead to the whole file system."""
    root = write_bundle(small_bundle)
    (root / "tasks").rename(tmp_path / "elsewhere")
    (root / "tasks").symlink_to(tmp_path / "elsewhere")
    assert says(root) == ["tasks:1: 'tasks' leaves the bundle through a symlink, copy the file into the bundle"]


def test_many_wrong_ids_are_not_each_compared_with_every_task(
    small_bundle: dict[str, str], write_bundle: WriteBundle
) -> None:
    """The first ones say what was probably meant."""
    wrong = [f"refnud-{at}" for at in range(30)]
    task = '{{"id": "refund-{}", "prompt": "x", "verify": {{"python": "verifiers/sold.py"}}}}\n'
    files = {
        "evals/test.yaml": f"tasks: [{', '.join(wrong)}]\n",
        "tasks/b.jsonl": "".join(task.format(at) for at in range(5)),
    }
    lines = says(write_bundle({**small_bundle, **files}))
    assert [line.partition("not there, ")[2][:12] for line in lines] == ["did you mean"] * 20 + ["correct the "] * 10
