"""A model as a simulated user, or as a second agent, in an episode; the endpoint is a real server on loopback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agent_env import FailureKind, Outcome, RunIndex, Task, load_bundle, play

ENV = '''
from agent_env import Env, tool


class Desk(Env):
    @tool
    def look(self) -> str:
        """Look at the desk."""
        return "a lamp"
'''
SEEN = "def score(episode):\n    return {'score': len(episode.replies), 'explanation': str(episode.conversations['customer'])}\n"
TASK = "id: a\nprompt: {by: customer}\nverify: {python: verifiers/seen.py}\n"


def make_task(folder: Path, base_url: str, customer: str = "", task: str = TASK) -> Task:
    """A bundle whose customer is a model behind `base_url`."""
    files = {
        "bundle.yaml": (
            f"name: desk\nenvs:\n  desk: {{python: 'envs/desk.py:Desk'}}\nmodels:\n  small: {{model: m, base_url: '{base_url}'}}\n"
            f"agents:\n  clerk: {{}}\n  customer: {{kind: model, model: small, system_prompt: 'You are Ada.'{customer}}}\n"
        ),
        "envs/desk.py": ENV,
        "verifiers/seen.py": SEEN,
        "tasks/a.yaml": task,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return load_bundle(folder).task("a")


def says(turn: Any) -> Any:
    """The played agent."""
    return {"role": "assistant", "content": f"reply {turn.turn}"}


async def test_a_model_plays_the_user_until_its_stop_text(endpoint: Any, tmp_path: Path) -> None:
    """It hears an opening, then each reply; its stop text ends the conversation, and everything it said is in the run."""
    endpoint.says(endpoint.reply("I want a lamp."), endpoint.reply("A blue one."), endpoint.reply("Thanks! ###STOP###"))
    with RunIndex.open(tmp_path / "runs") as index:
        result = await play(make_task(tmp_path / "b", endpoint.base_url), says, sink=index.run("g"))
        index.flush()
        events = list(index.events(result.run_id))
    assert result.scores["seen"].value == 2
    assert [message["content"] for message in endpoint.bodies[-1]["messages"]] == [
        *("You are Ada.", "Hello. How can I help you?", "I want a lamp.", "reply 0", "A blue one.", "reply 1"),
    ]
    assert [message["role"] for message in endpoint.bodies[-1]["messages"]] == [
        *("system", "user", "assistant", "user", "assistant", "user"),
    ]
    assert {body["temperature"] for body in endpoint.bodies} == {0}
    said = [event.data for event in events if event.kind == "agent_said"]
    assert [data["message"]["content"] for data in said] == ["I want a lamp.", "A blue one.", "Thanks! ###STOP###"]
    assert said[0]["usage"] == {"prompt_tokens": 12, "completion_tokens": 3}


async def test_a_models_opening_and_stop_text_are_the_bundles(endpoint: Any, tmp_path: Path) -> None:
    """`opening` and `stop` in the agent."""
    endpoint.says(endpoint.reply("A lamp."), endpoint.reply("Bye."))
    task = make_task(tmp_path, endpoint.base_url, ", opening: Yes?, stop: Bye")
    assert (await play(task, says)).scores["seen"].value == 1
    assert endpoint.bodies[0]["messages"][-1] == {"role": "user", "content": "Yes?"}


async def test_a_model_that_stops_at_once_fails_the_episode(endpoint: Any, tmp_path: Path) -> None:
    """The agent was never asked, so there is nothing of it to score."""
    endpoint.says(endpoint.reply("###STOP###"))
    result = await play(make_task(tmp_path, endpoint.base_url), says)
    assert result.failure is not None
    assert "had nothing to say" in result.failure.message


async def test_a_model_has_tools_of_its_own(endpoint: Any, tmp_path: Path) -> None:
    """Those of its envs: it calls them before it speaks."""
    endpoint.says(
        endpoint.reply(None, ("look", "{}"), ("look", "[")),
        endpoint.reply("A lamp, I see."),
        endpoint.reply("###STOP###"),
    )
    result = await play(make_task(tmp_path, endpoint.base_url, ", envs: [desk]"), says)
    assert "'a lamp'" in result.scores["seen"].explanation
    assert [tool["function"]["name"] for tool in endpoint.bodies[0]["tools"]] == ["look"]
    assert "A lamp, I see." in result.scores["seen"].explanation


async def test_a_second_model_is_asked_itself(endpoint: Any, tmp_path: Path) -> None:
    """A prompt to it is a turn that it plays, beside the played agent's."""
    task = (
        "id: a\nsteps:\n  - deploy_env: desk\n  - deploy_agent: clerk\n  - deploy_agent: customer\n  - prompt: One.\n"
        "  - prompt: {agent: customer, text: What do you say?}\n  - verify: {python: verifiers/seen.py}\n"
    )
    endpoint.says(endpoint.reply("Well done."))
    result = await play(make_task(tmp_path, endpoint.base_url, task=task), says)
    assert result.scores["seen"].value == 1
    assert "Well done." in result.scores["seen"].explanation


async def test_an_endpoint_that_fails_fails_the_episode(endpoint: Any, tmp_path: Path) -> None:
    """It is nobody's play: `model_server`, and the line says whose endpoint it was."""
    endpoint.fails(401, "no")
    result = await play(make_task(tmp_path, endpoint.base_url), says)
    assert result.outcome is Outcome.FAILED
    assert result.failure is not None
    assert result.failure.kind is FailureKind.MODEL_SERVER
    assert "agent 'customer'" in result.failure.message
    assert "401" in result.failure.message


async def test_a_model_that_says_nothing_fails_the_episode(endpoint: Any, tmp_path: Path) -> None:
    """An empty line is no prompt, and no end either."""
    endpoint.says(endpoint.reply(""))
    result = await play(make_task(tmp_path, endpoint.base_url), says)
    assert result.failure is not None
    assert result.failure.kind is FailureKind.AGENT
    assert "agent 'customer' (model m) said nothing" in result.failure.message


async def test_a_step_bounds_a_model_that_hangs(endpoint: Any, tmp_path: Path) -> None:
    """`timeout_s` holds for the whole conversation; the request is given up."""
    endpoint.hangs()
    task = (
        "id: a\nsteps:\n  - deploy_env: desk\n  - deploy_agent: clerk\n  - deploy_agent: customer\n"
        "  - {prompt: {by: customer}, timeout_s: 0.3}\n  - verify: {python: verifiers/seen.py}\n"
    )
    played = make_task(tmp_path, endpoint.base_url, task=task)
    has_arrived = False
    while not has_arrived:  # the time may be over before: the SDK is imported in it, once
        result = await play(played, says)
        assert result.failure is not None
        assert result.failure.kind is FailureKind.STEP_TIMEOUT
        has_arrived = endpoint.under_way.acquire(blocking=False)
    assert endpoint.given_up.acquire(timeout=20)
