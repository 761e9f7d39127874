"""Agents beside the played one, conversations that another leads, prompts by Python, and turns with tools of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agent_env import (
    BundleError,
    CutReason,
    EpisodeResult,
    FailureKind,
    Message,
    Outcome,
    PlayerTurn,
    Task,
    open_episode,
    play,
)

MakeTask = Callable[..., Task]
Steps = list[dict[str, Any]]

CUSTOMER = """
LINES = ["Add one.", "And two.", "Thank you."]


def reply(turn):
    said = sum(message["role"] == "assistant" for message in turn.messages)
    return LINES[said] if said < len(LINES) else None
"""
SEEN = "return {'score': len(episode.replies), 'explanation': ' / '.join(m['content'] for m in episode.messages if m['role'] == 'user')}"


def two(code: str, **customer: Any) -> dict[str, Any]:
    """A bundle's agents and files: the played clerk, and a scripted customer."""
    scripted = {"kind": "scripted", "python": "agents/customer.py:reply", **customer}
    return {
        "bundle": {"agents": {"clerk": {"envs": ["counter"]}, "customer": scripted}},
        "files": {"agents/customer.py": code},
    }


def talk(**more: Any) -> Steps:
    """The steps of a conversation that the customer leads."""
    return [
        {"deploy_env": "counter"},
        {"deploy_agent": "clerk"},
        {"deploy_agent": "customer"},
        {"prompt": {"by": "customer", **more}},
        {"verify": {"python": "verifiers/seen.py"}},
    ]


async def answered(task: Task, sink: Any = None) -> EpisodeResult:
    """Play a task, saying `ok` to each prompt."""
    return await play(task, lambda turn: {"role": "assistant", "content": f"ok {turn.turn}"}, sink=sink)


async def test_a_scripted_user_leads_a_conversation(make_task: MakeTask, sink: Any) -> None:
    """Each thing that it says is a turn of the played agent, until it returns None; it hears what the agent replies."""
    heard = CUSTOMER.replace("    said =", "    HEARD.append([m['content'] for m in turn.messages])\n    said =")
    task = make_task(talk(), verifiers={"seen": SEEN}, **two("HEARD = []\n" + heard))
    result = await answered(task, sink)
    assert result.scores["seen"].explanation == "Add one. / And two. / Thank you."
    assert result.scores["seen"].value == 3
    said = [event.data["message"]["content"] for event in sink.of("agent_said")]
    assert said == ["Add one.", "And two.", "Thank you."]
    heard_by_customer = task.bundle.agents["customer"].python.module().HEARD
    assert heard_by_customer == [
        [],
        ["Add one.", "ok 0"],
        ["Add one.", "ok 0", "And two.", "ok 1"],
        ["Add one.", "ok 0", "And two.", "ok 1", "Thank you.", "ok 2"],
    ]


async def test_the_short_form_deploys_whoever_leads(make_task: MakeTask) -> None:
    """`prompt: {by: ...}` is enough: the other agent and its envs are deployed too."""
    task = make_task(prompt={"by": "customer"}, verifiers={"seen": SEEN}, **two(CUSTOMER))
    assert (await answered(task)).scores["seen"].value == 3


async def test_a_conversation_is_over_after_its_turns(make_task: MakeTask) -> None:
    """`max_turns` bounds the prompts; the steps after it follow, and that is no cut."""
    task = make_task(talk(max_turns=2), verifiers={"seen": SEEN}, **two(CUSTOMER))
    result = await answered(task)
    assert result.scores["seen"].explanation == "Add one. / And two."
    assert (result.outcome, result.cut) == (Outcome.COMPLETED, None)


async def test_a_user_with_nothing_to_say_fails_the_episode(make_task: MakeTask) -> None:
    """The agent was never asked, so there is nothing of it to score."""
    task = make_task(talk(), verifiers={"seen": SEEN}, **two("def reply(turn):\n    return None\n"))
    result = await answered(task)
    assert result.failure is not None
    assert result.failure.message == (
        "agent 'customer' had nothing to say, so agent 'clerk' was never asked: have it say something first"
    )


async def test_a_cut_stops_a_user_that_thinks(make_task: MakeTask) -> None:
    """What it was about to say is of no interest any more; the episode is scored at once."""
    code = "import asyncio\n\n\nasync def reply(turn):\n    if turn.turn == 1:\n        await asyncio.sleep(3600)\n    return 'Add.'\n"
    task = make_task(talk(), verifiers={"seen": SEEN}, **two(code))
    async with open_episode(task) as episode:
        turn = await episode.start()
        assert turn is not None
        ending = asyncio.create_task(turn.end({"role": "assistant", "content": "ok"}))
        await asyncio.sleep(0)
        await episode.cut(CutReason.TIMEOUT)
        assert await ending is None
        result = await episode.result()
    assert (result.outcome, result.cut, result.scores["seen"].value) == (Outcome.COMPLETED, CutReason.TIMEOUT, 1)


async def test_what_a_script_says_is_text(make_task: MakeTask) -> None:
    """Half a surrogate pair, NUL and megabytes are made fit for a model."""
    lines = "['a\\ud800b\\0', 'x' * 5_000_000]"
    code = f"def reply(turn):\n    said = sum(m['role'] == 'assistant' for m in turn.messages)\n    return {lines}[said] if said < 2 else None\n"
    prompts: list[str] = []

    def player(turn: PlayerTurn) -> Message:
        prompts.append(turn.prompt)
        return {"role": "assistant", "content": "ok"}

    await play(make_task(talk(), verifiers={"seen": SEEN}, **two(code)), player)
    assert prompts[0] == "a\ufffdb\ufffd"
    assert len(prompts[1]) <= 100_000


async def test_a_cut_ends_a_conversation(make_task: MakeTask) -> None:
    """After a cut the user is not asked again, and the verifiers score where it got to."""
    task = make_task(talk(), verifiers={"seen": SEEN}, **two(CUSTOMER))
    async with open_episode(task) as episode:
        turn = await episode.start()
        assert turn is not None
        turn = await turn.end({"role": "assistant", "content": "ok"})
        await episode.cut(CutReason.TOKEN_LIMIT)
        result = await episode.result()
    assert result.scores["seen"].explanation == "Add one. / And two."
    assert result.cut is CutReason.TOKEN_LIMIT


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def reply(turn):\n    raise KeyError('x')\n", "agents/customer.py:reply raised KeyError: 'x'"),
        ("def reply(turn):\n    return 3\n", "agents/customer.py:reply returned a int: return the text"),
        ("def reply(turn):\n    return {'content': 3}\n", "agents/customer.py:reply returned a dict: return the text"),
    ],
)
async def test_a_script_that_breaks_fails_the_episode(make_task: MakeTask, code: str, says: str) -> None:
    """What a scripted agent does wrong is nobody's play: the episode fails, with the function named."""
    task = make_task(talk(), verifiers={"seen": SEEN}, **two(code))
    result = await answered(task)
    assert result.outcome is Outcome.FAILED
    assert result.failure is not None
    assert result.failure.kind is FailureKind.AGENT
    assert says in result.failure.message


async def test_another_agent_has_tools_of_its_own(make_task: MakeTask, sink: Any) -> None:
    """A scripted agent calls the tools of its envs; those calls are recorded, and are none of the played agent's."""
    code = """
import json


def reply(turn):
    if turn.messages and turn.messages[-1]["role"] == "tool":
        return f"I see {turn.messages[-1]['content']}."
    if len(turn.messages) > 1:
        return None
    return {"tool_calls": [{"name": "add", "arguments": json.dumps({"by": 5})}]}
"""
    verifier = "return {'score': float(episode.state()['count']), 'explanation': str(len(episode.calls)) + ' '.join(m['content'] for m in episode.messages)}"
    task = make_task(talk(), verifiers={"seen": verifier}, **two(code, envs=["counter"]))
    result = await answered(task, sink)
    assert result.scores["seen"].value == 5
    assert result.scores["seen"].explanation.startswith("0")
    assert "I see 5." in result.scores["seen"].explanation
    (called,) = sink.of("agent_called")
    assert (called.data["agent"], called.data["tool"], called.data["text"]) == ("customer", "add", "5")


async def test_an_agent_that_never_ends_fails_the_episode(make_task: MakeTask) -> None:
    """Calls without end are bounded by `max_messages`."""
    code = "def reply(turn):\n    return {'tool_calls': [{'name': 'add', 'arguments': '{\"by\": 1}'}]}\n"
    task = make_task(talk(), verifiers={"seen": SEEN}, **two(code, envs=["counter"], max_messages=4))
    result = await answered(task)
    assert result.failure is not None
    assert "said 4 messages and was not done" in result.failure.message


async def test_another_agent_may_be_asked_itself(make_task: MakeTask, deploy: Steps, sink: Any) -> None:
    """A prompt to a scripted agent is a turn that it plays; verifiers find what it said, and it is not the agent's."""
    code = "def reply(turn):\n    return 'I checked: ' + turn.prompt\n"
    said = "return {'score': 1, 'explanation': episode.conversations['customer'][-1]['content'] + str(len(episode.messages))}"
    steps = [
        *deploy,
        {"deploy_agent": "customer"},
        {"prompt": "One."},
        {"prompt": {"agent": "customer", "text": "Look."}},
    ]
    task = make_task([*steps, {"verify": {"python": "verifiers/said.py"}}], verifiers={"said": said}, **two(code))
    result = await answered(task, sink)
    assert result.scores["said"].explanation == "I checked: Look.2"
    assert [event.data["kind"] for event in sink.of("turn_started")] == ["played", "scripted"]


async def test_a_prompt_may_be_a_function_of_the_episode(make_task: MakeTask, deploy: Steps) -> None:
    """Python sees the episode so far and returns the text; None asks nothing."""
    code = "def ask(episode):\n    n = len(episode.replies)\n    return f'You said {episode.replies[-1]!r}.' if n else None\n"
    prompt = {"prompt": {"python": "prompts/next.py:ask"}}
    task = make_task(
        [*deploy, prompt, {"prompt": "One."}, prompt, {"verify": {"python": "verifiers/seen.py"}}],
        verifiers={"seen": SEEN},
        files={"prompts/next.py": code},
    )
    assert (await answered(task)).scores["seen"].explanation == "One. / You said 'ok 0'."


async def test_tools_and_system_prompts_change_between_turns(make_task: MakeTask, deploy: Steps) -> None:
    """`tools` holds for its prompt, `system_prompt` from it on; a tool that is not there is refused."""
    steps = [
        *deploy,
        {"prompt": {"text": "One.", "tools": ["add"]}},
        {"prompt": {"text": "Two.", "system_prompt": "You count, {{ params.goal }} times."}},
        {"prompt": "Three."},
        {"verify": {"python": "verifiers/counted.py"}},
    ]
    shown: list[tuple[bool, str, str]] = []

    def player(turn: PlayerTurn) -> Message:
        shown.append((len(turn.tools) == 1, turn.system_prompt, turn.messages[-1]["role"]))
        if turn.messages[-1]["role"] == "user" and turn.turn == 0:
            call = {"name": "refuse", "arguments": "{}"}
            return {"role": "assistant", "content": "", "tool_calls": [call]}  # type: ignore[typeddict-item]
        return {"role": "assistant", "content": "ok"}

    result = await play(make_task(steps), player)
    assert shown == [
        (True, "You count to 3.", "user"),
        (True, "You count to 3.", "tool"),
        (False, "You count, 3 times.", "user"),
        (False, "You count, 3 times.", "user"),
    ]
    assert result.metrics["tool_errors"] == 1


async def test_a_tool_that_the_agent_has_not_fails_the_prompt(make_task: MakeTask, deploy: Steps) -> None:
    """`tools` with another name: validation says so, and so does an episode that is played all the same."""
    steps = [*deploy, {"prompt": {"text": "One.", "tools": ["ad"]}}, {"verify": {"python": "verifiers/counted.py"}}]
    result = await answered(make_task(steps))
    assert result.failure is not None
    assert result.failure.message == "agent 'clerk' has no tool 'ad', did you mean 'add'?"


SKILL = "---\nname: sums\ndescription: How sums are made.\n---\nAdd them up.\n"


async def test_an_agent_reads_its_skills(make_task: MakeTask, deploy: Steps) -> None:
    """With `skills: true` they are named in the system prompt, and `read_skill` reads them; not before they are given."""
    steps = [
        *deploy,
        {"prompt": "One."},
        {"add_skills": ["sums"]},
        {"prompt": "Two."},
        {"verify": {"python": "verifiers/counted.py"}},
    ]
    task = make_task(
        steps,
        bundle={"agents": {"clerk": {"system_prompt": "You count.", "skills": True}}},
        files={"skills/sums/SKILL.md": SKILL, "skills/sums/more/table.md": "1 2 3"},
    )
    async with open_episode(task) as episode:
        turn = await episode.start()
        assert turn is not None
        assert turn.system_prompt == "You count."
        assert "you have none so far" in (await turn.call("read_skill", {"name": "sums"})).text
        turn = await turn.end()
        assert turn is not None
        assert "- sums: How sums are made." in turn.system_prompt
        read = await turn.call("read_skill", {"name": "sums"})
        assert "Add them up." in read.text
        assert "more/table.md" in read.text
        assert (await turn.call("read_skill", {"name": "sums", "file": "more/table.md"})).text == "1 2 3"
        for arguments in (
            {"name": "sum"},
            {"name": "sums", "file": "../../bundle.yaml"},
            {"name": 3},
            {},
            {"nme": "x"},
        ):
            assert (await turn.call("read_skill", arguments)).is_error


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("---\nname: other\n---\nx", "names the skill 'other', write name: sums, as its folder"),
        ("---\nname: [\n---\nx", "is not YAML"),
        ("---\n- a\n---\nx", "is no mapping"),
        ("---\nname: sums\n", "has no end, close it with a line ---"),
        ("\n\n", "does not say what the skill is for, add description: to its front matter"),
    ],
)
def test_a_skill_that_cannot_be_shown_is_a_problem(make_task: MakeTask, deploy: Steps, text: str, says: str) -> None:
    """A SKILL.md is checked when its bundle is loaded."""
    steps = [*deploy, {"add_skills": ["sums"]}, {"prompt": "x"}, {"verify": {"python": "verifiers/counted.py"}}]
    with pytest.raises(BundleError) as caught:
        make_task(steps, files={"skills/sums/SKILL.md": text})
    assert says in str(caught.value)


async def test_the_run_keeps_what_was_left_of_the_universe(make_task: MakeTask, sink: Any) -> None:
    """One event for each env, before the verifiers: what they do to the state does not count."""
    spoil = "episode.state()['count'] = 99\nreturn 1"
    task = make_task(verifiers={"spoil": spoil})
    async with open_episode(task, sink=sink) as episode:
        turn = await episode.start()
        assert turn is not None
        await turn.call("add", {"by": 2})
        await turn.end()
        await episode.result()
    (state,) = sink.of("state")
    assert (state.data["env"], len(state.data["universe"])) == ("counter", 64)
    assert state.data["changes"] == [{"path": "/count", "before": 0, "after": 2}]
    kinds = [event.kind for event in sink.events]
    assert kinds.index("state") < kinds.index("score")


async def test_a_state_that_is_no_json_is_told_and_fails_nothing(make_task: MakeTask, sink: Any) -> None:
    """The run says why it could not be kept; the episode is scored all the same."""
    task = make_task(
        [
            {"deploy_env": "counter"},
            {"deploy_agent": "clerk"},
            {"run": {"python": "scripts/spoil.py:spoil"}},
            {"prompt": "x"},
            {"verify": {"python": "verifiers/counted.py"}},
        ],
        files={"scripts/spoil.py": "def spoil(episode):\n    episode.state()['seen'] = {1, 2}\n"},
    )
    result = await answered(task, sink)
    assert result.outcome is Outcome.COMPLETED
    (state,) = sink.of("state")
    assert "a set is no JSON value" in state.data["error"]
