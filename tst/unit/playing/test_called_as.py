"""The lines that say what to run next: pasted into the same shell, they run, however the command was called."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = f"#!{sys.executable}\nfrom agent_env.cli import main\nmain()\n"
"""What pip writes as `bin/agent-env`."""


@pytest.fixture
def shell(tmp_path: Path) -> Path:
    """A folder with the command in `bin`, to be called from."""
    script = tmp_path / "bin/agent-env"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    script.chmod(0o755)
    return tmp_path


def said(shell: Path, line: str, *, path: str = "/usr/bin:/bin") -> list[str]:
    """Paste a line; return the lines that it prints."""
    env = {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "40"}
    done = subprocess.run(line, shell=True, cwd=shell, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("called", "path"),
    [
        ("bin/agent-env", "/usr/bin:/bin"),
        ("agent-env", "{shell}/bin:/usr/bin:/bin"),
        (f"{sys.executable} -m agent_env", "/usr/bin:/bin"),
    ],
    ids=["by its path", "by its name", "as a module"],
)
def test_what_to_run_next_is_written_as_the_command_was_called(shell: Path, called: str, path: str) -> None:
    """After `init` and `play`, each on a line that a shell takes, also where the terminal is narrow."""
    path = path.format(shell=shell)
    by_hand, gold, _ = [line.strip() for line in said(shell, f"{called} init 'my shop'", path=path)[-3:]]
    assert by_hand.startswith(f"{called} play 'my shop' ")
    assert gold.startswith(f"{called} play 'my shop' --gold ")
    *_, group, explore = said(shell, f"{called} play 'my shop' --gold --runs 'the runs' --group play/mine", path=path)
    assert (group, explore) == ("group play/mine", f"{called} explore 'the runs'")
    said(shell, f"{explore} --help", path=path)
    show = said(shell, f"{called} play 'my shop' lend-emma --gold --runs 'the runs'", path=path)[-1]
    assert show.startswith(f"{called} show ")
    assert said(shell, show, path=path)
