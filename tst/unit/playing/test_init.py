"""`agent-env init`: a bundle to begin with, or nothing at all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agent_env import UsageError, load_bundle, validate_bundle
from agent_env.cli import root


def init(*arguments: str | Path) -> Result:
    """Call the command."""
    return CliRunner().invoke(root, ["init", *map(str, arguments)])


def test_what_is_written_validates_and_its_gold_scores_1(tmp_path: Path) -> None:
    """Every task."""
    assert init(tmp_path / "shop").exit_code == 0
    assert validate_bundle(tmp_path / "shop") == []
    done = CliRunner().invoke(root, ["play", str(tmp_path / "shop"), "--gold", "--no-record"])
    assert done.exit_code == 0
    assert "mean 1 of 6 scored" in done.stdout
    assert len(done.stdout.splitlines()) == 1 + 6 + 1
    bundle = load_bundle(tmp_path / "shop")
    assert sorted(bundle.evals) == ["all", "test", "train"]
    assert set(bundle.select("train")).isdisjoint(bundle.select("test"))


def test_its_own_test_passes_and_fails_when_a_gold_is_wrong(tmp_path: Path) -> None:
    """With pytest alone, in a process of its own."""
    init(tmp_path / "my-shop")

    def tests() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:cacheprovider", "tests"]
        return subprocess.run(command, cwd=tmp_path / "my-shop", capture_output=True, text=True, check=False)

    passed = tests()
    assert passed.returncode == 0, passed.stdout
    assert "12 passed" in passed.stdout
    tasks = tmp_path / "my-shop/tasks/tasks.jsonl"
    tasks.write_text(tasks.read_text().replace('"member": "ann"', '"member": "bob"', 1))
    assert "1 failed, 11 passed" in tests().stdout


def test_the_next_three_commands_are_printed_and_run(tmp_path: Path) -> None:
    """As they stand, also where the folder's name needs quotes."""
    done = init(tmp_path / "my shop")
    commands = re.findall(r"^  (\S.*?)  +\S.*$", done.stdout, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        line = command.replace("agent-env", f"{sys.executable} -m agent_env").replace(
            "python -m pytest", f"{sys.executable} -m pytest -q"
        )
        ran = subprocess.run(
            ["sh", "-c", f"echo cut | {line}"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("folder", "name", "test"),
    [
        ("shop", "shop", "test_shop.py"),
        ("My Shop!", "My-Shop", "test_my_shop.py"),
        ("läden", "l-den", "test_l_den.py"),
        ("1.2", "1.2", "test_1_2.py"),
    ],
)
def test_the_name_is_the_folders(tmp_path: Path, folder: str, name: str, test: str) -> None:
    """As far as a name may have it."""
    init(tmp_path / folder)
    assert load_bundle(tmp_path / folder).name == name
    assert [path.name for path in (tmp_path / folder / "tests").iterdir()] == [test]
    assert "library-desk" not in (tmp_path / folder / "README.md").read_text()
    assert (tmp_path / folder / ".gitignore").read_text().startswith("runs/\n")


def test_a_name_may_be_given(tmp_path: Path) -> None:
    """With `--name`."""
    init(tmp_path / "x", "--name", "desk")
    assert load_bundle(tmp_path / "x").name == "desk"


def test_the_folder_that_the_shell_is_in_may_be_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays the same folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    before = os.stat(".").st_ino
    assert init(".").exit_code == 0
    assert os.stat(".").st_ino == before
    assert load_bundle(".").name == "here"


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    """With the rights that the user's files have."""
    assert init(tmp_path / "a/b/c").exit_code == 0
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "a/b/c").stat().st_mode == (tmp_path / "plain").stat().st_mode


def refused(*arguments: str | Path) -> str:
    """Call the command, which refuses; return the one line that it says."""
    exception = init(*arguments).exception
    assert isinstance(exception, UsageError)
    assert "\n" not in str(exception)
    return str(exception)


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    """Also with a hidden file."""
    (tmp_path / ".git").mkdir()
    assert refused(tmp_path) == f"{tmp_path} is not empty: name a new folder, or empty it"
    assert [path.name for path in tmp_path.iterdir()] == [".git"]


@pytest.mark.parametrize(
    ("folder", "expected"),
    [
        ("file", "file is no folder: name a new one"),
        ("file/shop", "file"),
        ("link", "link is no folder: name a new one"),
        ("x" * 300, "File name too long"),
        ("---", "no name for the bundle can be made of '---', give one with --name"),
    ],
)
def test_a_path_that_will_not_do_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, expected: str
) -> None:
    """And nothing is left behind."""
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    Path("link").symlink_to("nowhere")
    assert expected in refused("--", folder)
    assert sorted(path.name for path in Path().iterdir()) == ["file", "link"]


def test_a_name_that_is_none_is_one_line(tmp_path: Path) -> None:
    """With what a name is."""
    assert refused(tmp_path / "x", "--name", "a b") == (
        "--name: 'a b' is no name: write a letter or digit, then letters, digits and . _ -"
    )
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("is_there", [False, True])
def test_a_disk_that_is_full_leaves_nothing(tmp_path: Path, *, is_there: bool) -> None:
    """Neither half a bundle nor a folder beside it: a process that may write a few bytes a file stands for the disk."""
    if is_there:
        (tmp_path / "shop").mkdir()
    script = (
        "import resource, signal, sys\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nfrom agent_env.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (600, 600))\nsys.argv[1:] = ['init', 'shop']\nmain()\n"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"\S+: File too large\n", done.stderr)
    assert [path.name for path in tmp_path.rglob("*")] == (["shop"] if is_there else [])
