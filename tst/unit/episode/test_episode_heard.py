"""What verifiers are shown of an episode: the same while it is played, and of its record."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent_env import CutReason, EpisodeView, Outcome, RunIndex, Task, open_episode
from agent_env.episode.heard import Heard

MakeTask = Callable[..., Task]

USER = """
import json


def reply(turn):
    said = sum(message["role"] == "assistant" for message in turn.messages)
    if said == 0:
        call = {"name": "add", "arguments": json.dumps({"by": 10}), "id": "mine"}
        return {"role": "assistant", "content": "Let me see.", "tool_calls": [call]}
    return ["Add one.", "And two."][said - 1] if said < 3 else None
"""
SEEN = "import json\nSEEN = []\n\n\ndef score(episode):\n    SEEN.append(episode)\n    return 1.0\n"


@pytest.fixture
def talk(make_task: MakeTask) -> Task:
    """A user who calls a tool, leads two turns and has nothing more to say; then a turn with another system prompt."""
    steps = [
        {"deploy_env": "counter"},
        {"deploy_agent": "clerk"},
        {"deploy_agent": "user"},
        {"deploy_agent": "silent"},
        {"prompt": {"by": "user"}},
        {"prompt": {"text": "And now?", "system_prompt": "You count on."}},
        {"verify": {"python": "verifiers/seen.py"}},
    ]
    agents = {
        "clerk": {"system_prompt": "You count.", "envs": ["counter"]},
        "user": {
            "kind": "scripted",
            "python": "agents/user.py:reply",
            "envs": ["counter"],
            "system_prompt": "You ask.",
        },
        "silent": {"kind": "scripted", "python": "agents/user.py:reply", "envs": []},
    }
    bundle = {"agents": agents, "played": "clerk"}
    return make_task(steps, bundle=bundle, files={"agents/user.py": USER}, verifiers={"seen": SEEN})


def shown(view: EpisodeView) -> dict[str, Any]:
    """What is in a view, as JSON has it."""
    told = {
        "messages": view.messages,
        "replies": view.replies,
        "calls": [[call.tool, call.arguments, call.text, call.is_error, call.turn] for call in view.calls],
        "conversations": dict(view.conversations),
        "cut": view.cut,
    }
    return json.loads(json.dumps(told))


async def played(task: Task, sink: Any, *, cut: bool = False) -> dict[str, Any]:
    """Play the talk, with parallel calls of one id, a refused one among them, and return what its verifier was shown."""
    async with open_episode(task, sink=sink) as episode:
        turn = await episode.start()
        while turn is not None:
            turn.record({"role": "assistant", "content": "I add."})
            calls = [turn.call("add", {"by": by}, call_id="same") for by in (1, 2)]
            async with asyncio.TaskGroup() as group:
                made = [group.create_task(call) for call in calls]
                await asyncio.sleep(0)
                turn.refuse("add", "that is no JSON", raw="{", call_id="same")
            assert not any(task.result().is_error for task in made)
            await turn.call("finish", {})
            if cut and turn.index == 2:
                await episode.cut(CutReason.TOKEN_LIMIT)
                break
            turn = await turn.end(None if turn.index == 1 else {"role": "assistant", "content": f"Done {turn.index}."})
        result = await episode.result()
    assert result.outcome is Outcome.COMPLETED
    verifier = next(step.verifier for step in task.steps if step.id == "seen")
    return shown(verifier.module().SEEN[-1])


@pytest.mark.parametrize("cut", [False, True])
async def test_a_record_shows_what_the_episode_showed(talk: Task, tmp_path: Path, cut: bool) -> None:
    """Messages, replies, calls with their arguments, and other agents' conversations, through the run index."""
    with RunIndex.open(tmp_path / "runs") as index:
        sink = index.run("g")
        live = await played(talk, sink, cut=cut)
        index.flush()
        again = Heard(talk, index.events(sink.run_id))
    result = again.view(scores={}, cut=CutReason.TOKEN_LIMIT if cut else None, states={})
    assert shown(result) == live
    assert live["replies"] == (["Done 0.", ""] if cut else ["Done 0.", "", "Done 2."])
    assert [call[1] for call in live["calls"][:3]] == [{"by": 1}, None, {"by": 2}] or [
        call[1] for call in live["calls"][:3]
    ] == [None, {"by": 1}, {"by": 2}]
    assert live["conversations"]["silent"] == []
    assert [message["role"] for message in live["conversations"]["user"]] == [
        *("system", "assistant", "tool", "assistant"),
        *("user", "assistant"),
    ]


def test_calls_of_one_id_keep_their_own_arguments(talk: Task) -> None:
    """A call may be refused while another of the same id is under way: the one that began last is answered first."""

    def event(kind: str, **data: Any) -> Any:
        return SimpleNamespace(kind=kind, turn=0, data={"call_id": "same", "tool": "add", **data})

    answer = {"text": "x", "is_error": False}
    events = [
        event("call", arguments={"by": 1}),
        event("call", arguments=None),
        event("answer", **answer),
        event("answer", **answer),
        event("answer", **answer),
    ]
    heard = Heard(talk, events)
    assert [call.arguments for call in heard.calls] == [None, {"by": 1}, None]
