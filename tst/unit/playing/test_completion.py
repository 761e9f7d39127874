"""Shell completion: the scripts, and what they complete."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent_env.cli import root


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_is_printed(shell: str) -> None:
    """For each shell."""
    done = CliRunner().invoke(root, ["completion", shell], catch_exceptions=False)
    assert done.exit_code == 0
    assert "_AGENT_ENV_COMPLETE" in done.stdout


def test_the_help_has_a_line_for_each_shell() -> None:
    """As they are to be written, and nothing else in them."""
    done = CliRunner().invoke(root, ["completion", "--help"], catch_exceptions=False)
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert [line.split()[0] for line in lines if "agent-env completion" in line and "Usage" not in line] == [
        "bash:",
        "zsh:",
        "fish:",
    ]
    assert "\\" not in done.stdout
    assert "\b" not in done.stdout


def completed(*words: str) -> list[str]:
    """What bash is told of the last of these words."""
    done = subprocess.run(
        [sys.executable, "-c", "from agent_env.cli import main; main()"],
        env={
            **os.environ,
            "_AGENT_ENV_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(("agent-env", *words)),
            "COMP_CWORD": str(len(words)),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_commands_and_what_a_bundle_has_are_completed(shop_dir: Path) -> None:
    """Tasks, evals and players; nothing where there is no bundle."""
    assert "play" in completed("pl")
    assert completed("play", str(shop_dir), "t") == ["talk", "three"]
    assert completed("play", str(shop_dir), "--eval", "e") == ["easy"]
    assert completed("play", str(shop_dir), "--player", "") == ["best", "broken"]
    assert completed("play", str(shop_dir / "nowhere"), "t") == []
    (shop_dir / "bundle.yaml").write_text("name: [\n")
    assert completed("play", str(shop_dir), "t") == []
