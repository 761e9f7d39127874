"""Tasks with other agents and skills, as a trainer plays them: a scripted user's lines are turns of one conversation."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tinker_cookbook.rl.data_processing import trajectory_to_data

from agent_env import MissingExtraError, ModelServerError, SandboxUnavailableError
from agent_env.training._examples import examples_of

CUSTOMER = """
LINES = ["Add 3, please.", "And 4.", "What is the total?"]


def reply(turn):
    said = sum(message["role"] == "assistant" for message in turn.messages)
    return LINES[said] if said < len(LINES) else None
"""
TASK = (
    '{"id": "talk", "prompt": {"by": "customer"}, "verify": {"python": "verifiers/right.py", "id": "right"}}\n'
    '{"id": "skilled", "skills": ["sums"], "prompt": "Add 3.", "verify": {"python": "verifiers/right.py", "id": "right"}}\n'
    '{"id": "asks", "steps": [{"deploy_env": "counter"}, {"deploy_agent": "adder"}, {"deploy_agent": "customer"},'
    ' {"prompt": {"agent": "customer", "text": "Well?"}}, {"prompt": "Add."},'
    ' {"verify": {"python": "verifiers/right.py"}, "id": "right"}]}\n'
)


@pytest.fixture
def talking(rig: Any, tmp_path: Path) -> Any:
    """The counter with a scripted customer, and an adder that reads its skills."""
    root = tmp_path / "talking"
    shutil.copytree(rig.bundle, root, ignore=shutil.ignore_patterns("__pycache__", "evals"))
    agents = 'agents:\n  customer: {kind: scripted, python: "agents/customer.py:reply"}\n'
    header = (
        (root / "bundle.yaml")
        .read_text()
        .replace("agents:\n", agents)
        .replace("envs: [counter]", "envs: [counter], skills: true")
    )
    (root / "bundle.yaml").write_text(header)
    (root / "agents").mkdir()
    (root / "agents/customer.py").write_text(CUSTOMER)
    (root / "tasks/all.jsonl").write_text(TASK)
    return replace(rig, bundle=root)


async def test_a_scripted_users_lines_are_turns_of_one_conversation(talking: Any) -> None:
    """Each is a prompt after the reply to the one before; with a template that keeps history the rollout is one datum."""
    talking = replace(talking, renderer_name="qwen3_instruct")
    script = [
        talking.call("add", number=3),
        talking.reply("Done."),
        talking.call("add", number=4),
        talking.reply("Done too."),
        talking.reply("Seven."),
    ]
    group = await talking.play(script, "talk")
    assert group.get_total_rewards() == [0.25]
    (datum,) = trajectory_to_data(group.trajectories_G[0], 1.0)
    text = talking.framing.renderer.tokenizer.decode(datum.model_input.to_ints())
    places = [text.index(line) for line in ("Add 3, please.", "Done.", "And 4.", "Done too.", "What is the total?")]
    assert places == sorted(places)
    (run,) = talking.filed()
    said = [
        event.data["message"]["content"] for event in talking.index.events(run.run_id) if event.kind == "agent_said"
    ]
    assert said == ["Add 3, please.", "And 4.", "What is the total?"]


async def test_a_skilled_agent_is_trained_with_its_skills(talking: Any) -> None:
    """With `skills: true` the system prompt names them, and `read_skill` is a tool like the others."""
    script = [talking.calls(("read_skill", '{"name": "sums"}')), talking.call("add", number=3), talking.reply("Three.")]
    group = await talking.play(script, "skilled")
    assert group.get_total_rewards() == [0.25]
    (datum,) = trajectory_to_data(group.trajectories_G[0], 1.0)
    text = talking.framing.renderer.tokenizer.decode(datum.model_input.to_ints())
    assert "- sums: How sums are done." in text
    assert "read_skill" in text


async def test_no_task_is_left_out_for_its_other_agents(talking: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Scripted agents play for themselves, so a trainer plays all three tasks."""
    train, _ = await talking.builder(train_split="all", groups_per_batch=3)()
    assert {builder.task_id for builder in train.get_batch(0)} == {"talk", "skilled", "asks"}
    assert not [record for record in caplog.records if "left out" in record.getMessage()]


async def test_a_turn_of_another_agent_is_no_example_to_learn_from(talking: Any) -> None:
    """What is asked of the customer is not in the adder's conversation, in training and in examples."""
    group = await talking.play([talking.call("add", number=3), talking.reply("Three.")], "asks")
    (datum,) = trajectory_to_data(group.trajectories_G[0], 1.0)
    decode = talking.framing.renderer.tokenizer.decode
    assert "Well?" not in decode(datum.model_input.to_ints())
    (run,) = talking.filed()
    (example,) = examples_of(talking.index.events(run.run_id), talking.framing)
    text = decode(example.tokens.to_ints())
    assert "Well?" not in text
    assert "Add." in text


async def test_what_this_machine_lacks_is_said_before_training(talking: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox that cannot be opened, and a model without its key: one line, and no rollout."""
    header = (talking.bundle / "bundle.yaml").read_text()
    sandbox = "sandboxes: {jail: {provider: docker, image: x}}\n"
    boxed = header.replace("envs:\n", "envs:\n  box: {sandbox: jail}\n").replace(
        "[counter], skills", "[counter, box], skills"
    )
    (talking.bundle / "bundle.yaml").write_text(boxed + sandbox)
    (talking.bundle / "tasks/all.jsonl").write_text(TASK.splitlines()[0])
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SandboxUnavailableError, match="docker"):
        await talking.builder(train_split="all")()
    model = "models: {small: {model: m, base_url: 'http://127.0.0.1:1/v1', api_key_env: NO_SUCH_KEY}}\n"
    (talking.bundle / "bundle.yaml").write_text(
        header.replace('{kind: scripted, python: "agents/customer.py:reply"}', "{kind: model, model: small}") + model
    )
    with pytest.raises((ModelServerError, MissingExtraError), match=r"NO_SUCH_KEY|openai"):
        await talking.builder(train_split="all")()
