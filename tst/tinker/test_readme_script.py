"""The README's script: `AgentEnvDatasetBuilder` as the dataset builder of the cookbook's own trainer, on this machine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent_env.runs import RunIndex, RunState

ROOT = Path(__file__).parents[2]


def readme_script() -> str:
    """What a newcomer copies."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (script,) = (
        block for block in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "AgentEnvDatasetBuilder(" in block
    )
    return script


@pytest.mark.timeout(200)
def test_the_readmes_script_trains_and_files_its_runs(tmp_path: Path) -> None:
    """Two steps on the embedded engine: metrics in the cookbook's log, every rollout scored and filed by its step."""
    shutil.copytree(ROOT / "bundles" / "gridsim", tmp_path / "bundles" / "gridsim")
    (tmp_path / "script.py").write_text(readme_script(), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = (tmp_path / "local" / "log" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line) for line in lines]
    assert [step["step"] for step in steps][:2] == [0, 1]  # cookbook 0.6 logs one more, for its last evaluation
    assert {"env/all/cut", "env/all/score/saving", "env/all/tool_calls"} <= steps[0].keys()
    with RunIndex.open(tmp_path / "runs", read_only=True) as index:
        groups = index.groups()
    assert [(group.name, group.runs) for group in groups] == [
        ("gridsim/train/step-0000", 32),
        ("gridsim/train/step-0001", 32),
    ]
    assert all(group.scored == group.states[RunState.COMPLETED] == 32 for group in groups)
