"""The README's script: `AgentEnvDatasetBuilder` as the dataset builder of the cookbook's own trainer, on this machine."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent_env.runs import RunIndex, RunState

ROOT = Path(__file__).parents[2]

SCRIPT = """\
import asyncio
import os
from pathlib import Path

from tinker_cookbook.rl import train

from agent_env import engine
from agent_env.training.tinker import AgentEnvDatasetBuilder

texts = [path.read_text() for path in sorted(Path("bundles/gridsim").rglob("*.jsonl"))]
model = engine.build_model(Path("local/model"), texts)  # random and small; any Tinker endpoint's model otherwise
renderer = "qwen3_disable_thinking"
with engine.start_engine(model, state_dir=Path("local/engine")) as server:
    os.environ["TINKER_API_KEY"] = server.api_key
    days = AgentEnvDatasetBuilder(
        bundle="bundles/gridsim", train_split="short-train", runs="runs", groups_per_batch=4, group_size=8,
        model_name_for_tokenizer=server.model_name, renderer_name=renderer,
    )
    config = train.Config(
        dataset_builder=days, model_name=server.model_name, renderer_name=renderer, base_url=server.base_url,
        learning_rate=3e-4, max_tokens=32, max_steps=2, eval_every=0, log_path="local/log", recipe_name="gridsim",
    )
    asyncio.run(train.main(config))
"""


@pytest.mark.timeout(200)
def test_the_readmes_script_trains_and_files_its_runs(tmp_path: Path) -> None:
    """Two steps on the embedded engine: metrics in the cookbook's log, every rollout scored and filed by its step."""
    shutil.copytree(ROOT / "bundles" / "gridsim", tmp_path / "bundles" / "gridsim")
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = (tmp_path / "local" / "log" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line) for line in lines]
    assert [step["step"] for step in steps] == [0, 1]
    assert {"env/all/cut", "env/all/score/saving", "env/all/tool_calls"} <= steps[0].keys()
    with RunIndex.open(tmp_path / "runs", read_only=True) as index:
        groups = index.groups()
    assert [(group.name, group.runs) for group in groups] == [
        ("gridsim/train/step-0000", 32),
        ("gridsim/train/step-0001", 32),
    ]
    assert all(group.scored == group.states[RunState.COMPLETED] == 32 for group in groups)


def test_the_readme_has_the_script_that_is_tested() -> None:
    """What a newcomer copies is what runs above."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"```python\n{SCRIPT}```" in readme
