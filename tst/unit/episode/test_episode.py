"""Episodes from start to end: turns, calls, cuts, outcomes, and what is recorded of them."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from agent_env import (
    CutReason,
    Episode,
    EpisodeState,
    EpisodeStateError,
    FailureKind,
    Outcome,
    PlayerTurn,
    Task,
    Turn,
    UsageError,
    open_episode,
    play,
)

MakeTask = Callable[..., Task]
Steps = list[dict[str, Any]]

SAY: Any = {"role": "assistant", "content": "There."}


async def test_an_episode_is_played_from_start_to_score(make_task: MakeTask) -> None:
    """Prompt, tools and system prompt come with the turn; calls change the state; the verifier scores it."""
    async with open_episode(make_task()) as episode:
        assert episode.state is EpisodeState.READY
        turn = await episode.start()
        assert turn is not None
        assert (turn.index, turn.agent, turn.prompt) == (0, "clerk", "Count to 3.")
        assert turn.system_prompt == "You count to 3."
        assert "add" in [tool.name for tool in turn.tools]
        assert (await turn.call("add", {"by": 2})).text == "2"
        assert (await turn.call("add", {"by": 1})).text == "3"
        assert await turn.end(SAY) is None
        assert episode.state is EpisodeState.ENDED
        result = await episode.result()
    assert result.outcome is Outcome.COMPLETED
    assert {step: score.value for step, score in result.scores.items()} == {"counted": 3.0}
    assert result.metrics == {"messages": 1, "tool_calls": 2, "tool_errors": 0, "turns": 1}
    assert result.run_id == episode.run_id


async def test_two_episodes_do_not_see_each_other(make_task: MakeTask) -> None:
    """Each has a copy of the universe of its own, also when they are open at once."""
    task = make_task()
    async with open_episode(task) as one, open_episode(task) as other:
        turn, turn_of_other = await one.start(), await other.start()
        assert turn is not None
        assert turn_of_other is not None
        await turn.call("add", {"by": 5})
        assert (await turn_of_other.call("add", {"by": 1})).text == "1"
        assert one.run_id < other.run_id or one.run_id[:12] == other.run_id[:12]


async def test_what_a_tool_raises_is_an_answer(make_task: MakeTask, sink: Any) -> None:
    """A refusal, a bug, wrong arguments and an unknown tool answer the model, and the episode completes."""
    async with open_episode(make_task(), sink=sink) as episode:
        turn = await episode.start()
        assert turn is not None
        answers = [
            await turn.call("refuse", {}),
            await turn.call("crash", {}),
            await turn.call("cancel", {}),
            await turn.call("add", {"by": "two"}),
            await turn.call("ad", {"by": 2}),
            turn.refuse("add", "no JSON", raw="{by:"),
        ]
        assert all(answer.is_error for answer in answers)
        assert answers[0].text == "not today"
        assert answers[1].text == "KeyError: 'bug'"
        assert "did you mean 'add'?" in answers[4].text
        await turn.end(SAY)
        result = await episode.result()
    assert result.outcome is Outcome.COMPLETED
    assert (result.metrics["tool_calls"], result.metrics["tool_errors"]) == (6, 6)
    kinds = ["refused", "raised", "raised", "misfit", "no_such_tool", "misfit"]
    assert [answer.refusal for answer in answers] == kinds
    events = [event.data for event in sink.of("answer")]
    assert [data["error_kind"] for data in events] == kinds
    assert events[1]["raised_at"] == {"path": "envs/counter.py", "line": 41}
    assert "raised_at" not in events[0]


async def test_calls_made_at_once_run_in_their_order(make_task: MakeTask) -> None:
    """Calls of one message run one after the other, also when the first one waits."""
    async with open_episode(make_task()) as episode:
        turn = await episode.start()
        assert turn is not None
        async with asyncio.TaskGroup() as group:
            first = group.create_task(turn.call("slowly", {"by": 1, "seconds": 0.01}))
            second = group.create_task(turn.call("add", {"by": 10}))
            third = group.create_task(turn.call("add", {"by": 100}))
        assert [task.result().text for task in (first, second, third)] == ["1", "11", "111"]


async def test_an_answer_can_end_the_turn(make_task: MakeTask) -> None:
    """After an answer that ends the turn nothing more is done in it, and that is no cut."""
    async with open_episode(make_task()) as episode:
        turn = await episode.start()
        assert turn is not None
        assert (await turn.call("finish", {})).ends_turn
        late = await turn.call("add", {"by": 1})
        assert late.is_error
        assert late.ends_turn
        assert "turn has ended" in late.text
        assert await turn.end() is None
        result = await episode.result()
    assert result.scores["counted"].value == 0
    assert result.cut is None


async def test_turns_may_differ(make_task: MakeTask, deploy: Steps) -> None:
    """Each prompt is a turn, with the tools and system prompt of the agent that is asked."""
    agents = {"clerk": {"system_prompt": "You count."}, "boss": {"system_prompt": "You check.", "envs": []}}
    seen = "return {'score': len(episode.replies), 'explanation': ' / '.join(episode.replies)}"
    task = make_task(
        [
            *deploy,
            {"deploy_agent": "boss"},
            {"prompt": "One."},
            {"prompt": {"agent": "boss", "text": "Two."}},
            {"prompt": "Three."},
            {"verify": {"python": "verifiers/seen.py"}},
        ],
        verifiers={"seen": seen},
        bundle={"agents": agents, "played": "clerk"},
    )
    async with open_episode(task) as episode:
        turn = await episode.start()
        shown = []
        while turn is not None:
            shown.append((turn.index, turn.agent, turn.prompt, turn.system_prompt, bool(turn.tools)))
            turn = await turn.end({"role": "assistant", "content": [{"type": "text", "text": f"reply {turn.index}"}]})
        result = await episode.result()
        roles = [(message["role"], message["content"]) for message in episode.view.messages]
    assert shown == [
        (0, "clerk", "One.", "You count.", True),
        (1, "boss", "Two.", "You check.", False),
        (2, "clerk", "Three.", "You count.", True),
    ]
    assert result.scores["seen"].explanation == "reply 0 / reply 1 / reply 2"
    assert [role for role, _ in roles] == ["system", "user", "assistant"] * 3


async def test_a_turn_says_which_skills_its_agent_has(make_task: MakeTask, deploy: Steps) -> None:
    """Those it was given before the prompt, in the order they came, each once."""
    steps = [
        *deploy,
        *(
            {"prompt": "A"},
            {"add_skills": ["sums"]},
            {"prompt": "B"},
            {"add_skills": ["tables", "sums"]},
            {"prompt": "C"},
        ),
        _counted(),
    ]
    task = make_task(steps, files={f"skills/{name}/SKILL.md": "Count." for name in ("sums", "tables")})
    async with open_episode(task) as episode:
        turn, skills = await episode.start(), []
        while turn is not None:
            skills.append(turn.skills)
            turn = await turn.end(SAY)
        assert (await episode.result()).outcome is Outcome.COMPLETED
    assert skills == [(), ("sums",), ("sums", "tables")]


async def test_steps_between_turns_change_the_state(make_task: MakeTask, deploy: Steps) -> None:
    """A `run` step sees the episode as a verifier does, and what it changes stays changed."""
    task = make_task(
        [*deploy, {"prompt": "A"}, {"run": {"python": "scripts/x.py:double"}}, {"prompt": "B"}, _counted()],
        files={"scripts/x.py": "async def double(episode):\n    episode.state('counter')['count'] *= 2\n"},
    )
    async with open_episode(task) as episode:
        turn = await episode.start()
        assert turn is not None
        await turn.call("add", {"by": 4})
        turn = await turn.end(SAY)
        assert turn is not None
        assert (await turn.call("add", {"by": 1})).text == "9"
        await turn.end(SAY)
        assert (await episode.result()).scores["counted"].value == 9


async def test_a_cut_is_scored_where_it_got_to(make_task: MakeTask, deploy: Steps, sink: Any) -> None:
    """After a cut no agent is prompted, what leads up to a prompt is left out, and every verifier scores."""
    task = make_task(
        [
            *deploy,
            {"prompt": "A"},
            {**_counted(), "id": "between"},
            {"run": {"python": "scripts/x.py:add"}},
            {"prompt": "B"},
            {"run": {"python": "scripts/x.py:add"}},
            {**_counted(), "id": "last"},
        ],
        files={"scripts/x.py": "def add(episode):\n    episode.state()['count'] += 10\n"},
    )
    async with open_episode(task, sink=sink) as episode:
        turn = await episode.start()
        assert turn is not None
        await turn.call("add", {"by": 1})
        await episode.cut(CutReason.TOKEN_LIMIT)
        await episode.cut(CutReason.TIMEOUT)
        result = await episode.result()
        with pytest.raises(EpisodeStateError, match=r"call\(\): turn 0 was cut \(token_limit\)"):
            await turn.call("add", {"by": 1})
    assert result.outcome is Outcome.COMPLETED
    assert result.cut is CutReason.TOKEN_LIMIT
    assert {step: score.value for step, score in result.scores.items()} == {"between": 1.0, "last": 11.0}
    assert [event.data["reason"] for event in sink.of("cut")] == ["token_limit"]
    assert not episode.view.replies


async def test_a_cut_stops_the_call_that_is_under_way(make_task: MakeTask) -> None:
    """The other task learns that the turn was cut, and the tool goes no further."""
    async with open_episode(make_task()) as episode:
        turn = await episode.start()
        assert turn is not None
        call = asyncio.create_task(turn.call("slowly", {"by": 1, "seconds": 30}))
        queued = asyncio.create_task(turn.call("add", {"by": 1}))
        await asyncio.sleep(0.01)
        await episode.cut(CutReason.TIMEOUT)
        for task in (call, queued):
            with pytest.raises(EpisodeStateError, match=r"turn 0 was cut \(timeout\)"):
                await task
        assert (await episode.result()).scores["counted"].value == 0


async def test_a_cut_between_turns_is_a_cut_too(make_task: MakeTask, deploy: Steps) -> None:
    """While steps between two turns run, a cut leaves out the turn that was to come."""
    wait = "import asyncio\nasync def wait(episode):\n    await asyncio.sleep(0.05)\n"
    task = make_task(
        [*deploy, {"prompt": "A"}, {"run": {"python": "scripts/x.py:wait"}}, {"prompt": "B"}, _counted()],
        files={"scripts/x.py": wait},
    )
    async with open_episode(task) as episode:
        turn = await episode.start()
        assert turn is not None
        ending = asyncio.create_task(turn.end(SAY))
        await asyncio.sleep(0.01)
        await episode.cut(CutReason.TIMEOUT)
        assert await ending is None
        result = await episode.result()
    assert (result.outcome, result.cut, result.metrics["turns"]) == (Outcome.COMPLETED, CutReason.TIMEOUT, 1)


async def test_a_cut_after_the_last_turn_is_none(make_task: MakeTask, sink: Any) -> None:
    """When the agent was done, the trainer's cut comes too late to be one, scored already or not."""
    score = "import asyncio\nasync def score(episode):\n    await asyncio.sleep(0.02)\n    return 1"
    async with open_episode(make_task(verifiers={"slow": score}), sink=sink) as episode:
        turn = await episode.start()
        assert turn is not None
        ending = asyncio.create_task(turn.end(SAY))
        await asyncio.sleep(0)
        await episode.cut(CutReason.TIMEOUT)
        assert await ending is None
        await episode.cut(CutReason.TIMEOUT)
        assert (await episode.result()).cut is None
    assert not sink.of("cut")


@pytest.mark.parametrize(
    ("prepare", "misuse", "sentence"),
    [
        ("", "start twice", "start(): the episode was started before; go on with `episode.turn`"),
        ("end", "start twice", "start(): the episode has ended and cannot be played again, open another one"),
        ("abandon", "start twice", "start(): the episode was abandoned, open another one"),
        ("end", "call", "call(): turn 0 has ended, go on with the turn that end() returned"),
        ("end", "end", "end(): turn 0 has ended, go on with the turn that end() returned"),
        ("end", "record", "record(): turn 0 has ended, go on with the turn that end() returned"),
        ("end", "refuse", "refuse(): turn 0 has ended, go on with the turn that end() returned"),
        ("abandon", "call", "call(): the episode was abandoned, open another one"),
        ("abandon", "end", "end(): the episode was abandoned, open another one"),
        ("abandon", "cut", "cut(): the episode was abandoned, open another one"),
        ("", "result", "result(): turn 0 is open, end it with turn.end() or cut it"),
        ("cut", "end", "end(): turn 0 was cut (timeout); await episode.result()"),
    ],
)
async def test_each_misuse_has_a_sentence_of_its_own(
    make_task: MakeTask, prepare: str, misuse: str, sentence: str
) -> None:
    """A call that does not fit the state says what is wrong and what to do instead, and changes nothing."""
    async with open_episode(make_task()) as episode:
        turn = await episode.start()
        assert turn is not None
        match prepare:
            case "end":
                await turn.end(SAY)
            case "abandon":
                await episode.abandon()
            case "cut":
                await episode.cut(CutReason.TIMEOUT)
        before = episode.state
        with pytest.raises(EpisodeStateError) as caught:
            await _misuse(misuse, episode, turn)
        assert str(caught.value) == sentence
        assert episode.state is before


async def test_nothing_can_be_done_before_the_start(make_task: MakeTask) -> None:
    """Before `start` there is no result and nothing to cut."""
    async with open_episode(make_task()) as episode:
        with pytest.raises(EpisodeStateError, match=r"result\(\): the episode was not started, call start\(\) first"):
            await episode.result()
        with pytest.raises(EpisodeStateError, match=r"cut\(\): the episode was not started"):
            await episode.cut(CutReason.TIMEOUT)
        assert episode.state is EpisodeState.READY


@pytest.mark.parametrize("message", ["hello", {"role": "robot", "content": ""}, {"role": "assistant", "content": 3}])
async def test_what_is_no_message_is_refused(make_task: MakeTask, message: Any) -> None:
    """A message that no store could hold is the caller's mistake, and the turn stays open."""
    async with open_episode(make_task()) as episode:
        turn = await episode.start()
        assert turn is not None
        with pytest.raises(UsageError, match="message"):
            turn.record(message)
        with pytest.raises(UsageError, match="message"):
            await turn.end(message)
        with pytest.raises(UsageError, match=r"turn.refuse\(\)"):
            await turn.call("add", "by=1")  # type: ignore[arg-type]
        assert await turn.end({"role": "assistant"}) is None  # type: ignore[typeddict-item]


async def test_the_agents_messages_are_numbered_and_say_what_they_took(make_task: MakeTask, sink: Any) -> None:
    """From 0, over all turns; a hook's message has no number. Counts are the trainer's, or those of the message itself."""
    asks: Any = {"role": "assistant", "content": "Hm.", "usage": {"prompt_tokens": 9, "completion_tokens": 2}}
    odd: Any = {"role": "assistant", "content": "Odd.", "usage": {"prompt_tokens": -1, "completion_tokens": 10**30}}
    odder: Any = {"role": "assistant", "content": "Odder.", "usage": "none"}
    async with open_episode(make_task(), sink=sink) as episode:
        turn = await episode.start()
        assert turn is not None
        numbers = [
            turn.record({"role": "assistant", "content": "One."}, prompt_tokens=7, sampled_tokens=3),
            turn.record({"role": "user", "content": "Go on."}),
            turn.record(asks),
            turn.record(odd),
            turn.record(odder),
        ]
        await turn.end(SAY)
        await episode.result()
    assert numbers == [0, None, 1, 2, 3]
    told = [{key: value for key, value in event.data.items() if key != "message"} for event in sink.of("message")]
    assert told == [
        {"index": 0, "prompt_tokens": 7, "sampled_tokens": 3},
        {},
        {"index": 1, "prompt_tokens": 9, "sampled_tokens": 2},
        {"index": 2},
        {"index": 3},
        {"index": 4},
    ]


async def test_everything_is_recorded_as_it_happens(make_task: MakeTask, sink: Any) -> None:
    """A run has every message, call, answer and score in order, with times that do not go back."""
    asks: Any = {"role": "assistant", "content": None, "tool_calls": [{"id": "x", "name": "add", "arguments": "{}"}]}
    async with open_episode(make_task(), sink=sink) as episode:
        turn = await episode.start()
        assert turn is not None
        turn.record(asks)
        await turn.call("add", {"by": 1}, call_id="x", raw='{"by":1}')
        await turn.call("finish", {})
        await turn.end(asks)  # what was recorded last is not recorded again
        await episode.result()
    assert sink.header.task_id == "a"
    assert (sink.header.bundle_name, sink.header.params) == ("counting", {"goal": 3})
    kinds = [str(event.kind) for event in sink.events if "step" not in event.kind]
    answered = ["call", "answer"]
    assert kinds == ["turn_started", "message", *answered, *answered, "turn_ended", "state", "score"]
    call, answer = sink.of("call")[0], sink.of("answer")[0]
    assert call.data == {"call_id": "x", "tool": "add", "arguments": {"by": 1}, "raw": '{"by":1}'}
    assert (answer.data["call_id"], answer.data["text"], answer.turn, answer.step) == ("x", "1", 0, "prompt")
    assert [event.step for event in sink.of("step_ended")] == ["deploy_env", "deploy_agent", "prompt", "counted"]
    assert all(one.at_s <= two.at_s for one, two in itertools.pairwise(sink.events))
    assert [result.outcome for result in sink.results] == [Outcome.COMPLETED]


async def test_a_player_plays_an_episode(make_task: MakeTask) -> None:
    """A player sees the conversation with the answers, and says message after message."""

    def player(turn: PlayerTurn) -> Any:
        answers = [message["content"] for message in turn.messages if message["role"] == "tool"]
        if len(answers) < turn.params["goal"]:
            raw = json.dumps({"by": 1}) if answers != ["1"] else "{by: 1}"
            return {"role": "assistant", "content": "", "tool_calls": [{"name": "add", "arguments": raw}]}
        return {"role": "assistant", "content": ", ".join(str(answer) for answer in answers)}

    result = await play(make_task(), player)
    assert result.scores["counted"].value == 2
    assert (result.metrics["tool_calls"], result.metrics["tool_errors"]) == (3, 1)


async def test_a_player_is_not_asked_after_the_turn_has_ended(make_task: MakeTask) -> None:
    """An answer that ends the turn ends it, and what the player said then is not taken down twice."""
    call = {"name": "finish", "arguments": "{}"}
    result = await play(make_task(), lambda _: {"role": "assistant", "content": "", "tool_calls": [call]})
    assert result.cut is None
    assert (result.metrics["messages"], result.metrics["tool_calls"]) == (1, 1)


async def test_a_player_that_never_ends_is_cut(make_task: MakeTask) -> None:
    """After `max_messages` the episode is cut for that reason."""
    call = {"name": "add", "arguments": '{"by": 1}'}
    result = await play(
        make_task(), lambda _: {"role": "assistant", "content": "", "tool_calls": [call]}, max_messages=5
    )
    assert result.cut is CutReason.MESSAGE_LIMIT
    assert result.scores["counted"].value == 5


async def test_what_a_player_raises_comes_out(make_task: MakeTask, sink: Any) -> None:
    """It is raised, and the run says that the episode has failed because of it, where, and with its traceback."""

    def player(turn: PlayerTurn) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await play(make_task(), player, sink=sink)
    (result,) = sink.results
    assert result.outcome is Outcome.FAILED
    assert (result.failure.kind, result.failure.step) == (FailureKind.AGENT, "prompt")
    assert result.failure.message == "the player raised ZeroDivisionError"
    assert "raise ZeroDivisionError" in result.failure.traceback
    assert [str(event.kind) for event in sink.events][-2:] == ["failure", "turn_ended"]


@pytest.mark.parametrize(
    "call",
    [{"name": "add", "arguments": {"by": 1}}, {"function": {"name": "add", "arguments": "{}"}}, "add"],
    ids=["arguments that are no text", "another shape", "no mapping"],
)
async def test_a_players_call_in_another_shape_says_which_to_write(make_task: MakeTask, call: Any) -> None:
    """It is the player's bug, so it is raised, and it says what a call looks like."""

    def player(turn: PlayerTurn) -> Any:
        return {"role": "assistant", "content": "", "tool_calls": [call]}

    with pytest.raises(UsageError, match=r'write \{"name": ..., "arguments": JSON text\}'):
        await play(make_task(), player)


async def _misuse(what: str, episode: Episode, turn: Turn) -> None:
    match what:
        case "start twice":
            await episode.start()
        case "call":
            await turn.call("add", {"by": 1})
        case "record":
            turn.record(SAY)
        case "refuse":
            turn.refuse("add", "no")
        case "end":
            await turn.end(SAY)
        case "cut":
            await episode.cut(CutReason.TIMEOUT)
        case _:
            await episode.result()


def _counted() -> dict[str, Any]:
    return {"verify": {"python": "verifiers/counted.py"}}


@pytest.mark.parametrize("ending", ["end", "cut"])
async def test_an_episode_that_has_ended_does_not_wait_for_the_garbage_collector(
    make_task: MakeTask, ending: str
) -> None:
    """What it held, as a large universe, is freed when the last one lets go of it."""
    task = make_task()
    gc.collect()
    gc.disable()
    try:
        async with open_episode(task) as episode:
            turn = await episode.start()
            assert turn is not None
            env = weakref.ref(next(iter(task.bundle.envs["counter"].python.module().OPEN)))
            await turn.call("add", {"by": 2})
            if ending == "end":
                await turn.end(SAY)
            else:
                await episode.cut(CutReason.TOKEN_LIMIT)
        del episode, turn
        await asyncio.sleep(0)
        assert env() is None
    finally:
        gc.enable()
