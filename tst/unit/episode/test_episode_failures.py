"""What breaks an episode: one vocabulary, written down where it happened, and never a score."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agent_env import (
    CutReason,
    EpisodeFailedError,
    EpisodeResult,
    EpisodeState,
    EpisodeStateError,
    FailureKind,
    Limits,
    Outcome,
    RewardError,
    RunIndexError,
    Task,
    open_episode,
    reward_of,
)

MakeTask = Callable[..., Task]
Steps = list[dict[str, Any]]

SAY: Any = {"role": "assistant", "content": "There."}
COUNTED = {"verify": {"python": "verifiers/counted.py"}}


async def played(task: Task, *calls: str, sink: Any = None, limits: Limits | None = None) -> EpisodeResult:
    """Play a task: the same calls in every turn, each turn ended with a reply."""
    async with open_episode(task, sink=sink, limits=limits or Limits()) as episode:
        turn = await episode.start()
        while turn is not None:
            for name in calls:
                await turn.call(name, {"by": 1} if name == "add" else {})
            turn = await turn.end(SAY)
        return await episode.result()


@pytest.mark.parametrize(
    ("verifier", "kind", "said"),
    [
        ("raise ValueError('no such row')", "verifier_raised", "raised ValueError: no such row"),
        ("raise SystemExit(3)", "verifier_raised", "raised SystemExit: 3"),
        ("raise StopIteration", "verifier_raised", "raised StopIteration"),
        ("raise GeneratorExit", "verifier_raised", "raised GeneratorExit"),
        ("import asyncio; raise asyncio.CancelledError", "verifier_raised", "raised CancelledError"),
        ("raise TimeoutError('mine')", "verifier_raised", "raised TimeoutError: mine"),
        ("return float('nan')", "score_invalid", "returned nan: return a finite number"),
        ("return float('-inf')", "score_invalid", "returned -inf: return a finite number"),
        ("return 10 ** 400", "score_invalid", "a number that no float can hold"),
        ("return None", "score_invalid", "returned None, which is no number"),
        ("return '1.0'", "score_invalid", "returned the string '1.0', which is no number"),
        ("return [1.0]", "score_invalid", "returned a value of type list, which is no number"),
        ("return {'value': 1.0}", "score_invalid", "returned a key 'value'"),
        ("return {'scor': 1.0}", "score_invalid", "returned a key 'scor': did you mean 'score'?"),
        ("return {'explanation': 'x'}", "score_invalid", "without 'score'"),
        ("return {'score': float('nan')}", "score_invalid", "returned score nan"),
        ("return {'score': 1, 'metrics': {'x': None}}", "score_invalid", "returned metric 'x': None"),
        ("return {'score': 1, 'explanation': 3}", "score_invalid", "an explanation of type int"),
        ("return {'score': 1, 'metrics': [1]}", "score_invalid", "metrics of type list"),
        ("episode.state('countr')", "verifier_raised", "did you mean 'counter'?"),
        ("async def score(episode):\n    raise ValueError('later')", "verifier_raised", "raised ValueError: later"),
        ("async def score(episode):\n    raise SystemExit(3)", "verifier_raised", "raised SystemExit: 3"),
        (
            "import asyncio\nasync def score(episode):\n    raise asyncio.CancelledError",
            "verifier_raised",
            "raised CancelledError",
        ),
        ("async def score(episode):\n    return None", "score_invalid", "returned None"),
    ],
)
async def test_a_verifier_without_a_finite_number_fails_the_episode(
    make_task: MakeTask, verifier: str, kind: str, said: str
) -> None:
    """Raising, or returning what is no finite number, is a failure of the verifier's, and no reward is made of it."""
    result = await played(make_task(verifiers={"broken": verifier}))
    assert result.outcome is Outcome.FAILED
    assert result.failure is not None
    assert (result.failure.kind, result.failure.step) == (kind, "broken")
    assert result.failure.message.startswith("verifiers/broken.py:score ")
    assert said in result.failure.message
    assert "\n" not in result.failure.message
    assert ("Traceback" in result.failure.traceback) == (kind == "verifier_raised")
    assert not result.scores
    with pytest.raises(RewardError, match=f"it failed \\({kind}"):
        reward_of(result)


@pytest.mark.parametrize(
    ("verifier", "value"),
    [
        ("return True", 1.0),
        ("return False", 0.0),
        ("return 3", 3.0),
        ("return {'score': True, 'explanation': None}", 1.0),
        ("async def score(episode):\n    return 0.5", 0.5),
        ("import asyncio\nasync def score(episode):\n    await asyncio.sleep(0)\n    return 0.25", 0.25),
        (
            "class Scorer:\n    async def __call__(self, episode):\n        return 0.5\ndef score(e): 0\nscore = Scorer()",
            0.5,
        ),
        ("from fractions import Fraction; return Fraction(1, 4)", 0.25),
    ],
)
async def test_a_verifier_may_return_a_bool_or_a_number(make_task: MakeTask, verifier: str, value: float) -> None:
    """Booleans are 1 and 0; a verifier may be async; that is a completed episode."""
    result = await played(make_task(verifiers={"fine": verifier}))
    assert result.outcome is Outcome.COMPLETED
    assert result.scores["fine"].value == value
    assert type(result.scores["fine"].value) is float


async def test_a_verifier_that_cannot_be_imported_fails_the_episode(make_task: MakeTask) -> None:
    """The failure says where in the file."""
    result = await played(
        make_task(verifiers={"broken": "import nothing_like_it\ndef score(episode):\n    return 1\n"})
    )
    assert result.failure is not None
    assert result.failure.kind is FailureKind.VERIFIER_RAISED
    assert "verifiers/broken.py:1" in result.failure.message


@pytest.mark.parametrize(
    "verifier",
    ["import time; time.sleep(0.3); return 1", "import asyncio\nasync def score(e):\n    await asyncio.sleep(9)"],
)
async def test_a_verifier_that_takes_too_long_fails_the_episode(
    make_task: MakeTask, deploy: Steps, verifier: str
) -> None:
    """The step's own timeout counts, plain or async."""
    steps = [*deploy, {"prompt": "Go."}, {"verify": {"python": "verifiers/slow.py"}, "timeout_s": 0.05}]
    result = await played(make_task(steps, verifiers={"slow": verifier}))
    assert result.failure is not None
    assert result.failure.kind is FailureKind.VERIFIER_TIMEOUT
    assert result.failure.message == "verifiers/slow.py:score took longer than 0.05 s"


async def test_a_verifier_s_clock_starts_when_it_does(make_task: MakeTask) -> None:
    """Waiting for other episodes' verifiers does not count against the timeout."""
    task = make_task(verifiers={"slow": "import time; time.sleep(0.15); return 1"})
    limits = Limits(verify_s=0.6)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(played(task, limits=limits)) for _ in range(24)]
    assert [task.result().outcome for task in tasks] == [Outcome.COMPLETED] * 24


async def test_a_verifier_does_not_hold_the_event_loop(make_task: MakeTask) -> None:
    """While a plain verifier sleeps, other tasks of the loop go on."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.01)

    ticking = asyncio.create_task(tick())
    await played(make_task(verifiers={"slow": "import time; time.sleep(0.2); return 1"}))
    ticking.cancel()
    assert ticks > 5


async def test_a_broken_env_fails_the_episode(make_task: MakeTask, sink: Any) -> None:
    """The call raises, nothing more can be done in the turn, no verifier runs, and the run says what broke."""
    async with open_episode(make_task(), sink=sink) as episode:
        turn = await episode.start()
        assert turn is not None
        queued = asyncio.create_task(turn.call("add", {"by": 1}))
        dying = asyncio.create_task(turn.call("die", {}))
        behind = asyncio.create_task(turn.call("add", {"by": 1}))
        with pytest.raises(EpisodeFailedError, match=r"turn 0 is over, the episode failed \(env_broken\): tool die"):
            await dying
        assert (await queued).text == "1"
        with pytest.raises(EpisodeFailedError, match="the server is gone"):
            await behind
        with pytest.raises(EpisodeFailedError, match=r"end\(\): turn 0 is over"):
            await turn.end(SAY)
        result = await episode.result()
    assert result.outcome is Outcome.FAILED
    assert result.failure is not None
    assert (result.failure.kind, result.failure.step) == (FailureKind.ENV_BROKEN, "prompt")
    assert "Traceback" in result.failure.traceback
    assert not result.scores
    answer, failure = sink.of("answer")[-1], sink.of("failure")[0]
    assert (answer.data["tool"], answer.data["is_error"]) == ("die", True)
    assert (failure.data["kind"], failure.step, failure.turn) == ("env_broken", "prompt", 0)
    assert sink.results == [result]


async def test_what_no_session_lets_through_is_a_broken_env(make_task: MakeTask) -> None:
    """An exception that is none for `except Exception` fails the episode and takes nobody else down."""
    async with open_episode(make_task()) as episode:
        turn = await episode.start()
        assert turn is not None
        with pytest.raises(EpisodeFailedError, match="tool odd: BaseExceptionGroup"):
            await turn.call("odd", {})
        assert (await episode.result()).outcome is Outcome.FAILED


SLIP = """
import asyncio
from agent_env import Env, tool
class Own(BaseException):
    pass
class Counter(Env):
    @tool
    def slip(self) -> None:
        '''Slip.'''
        raise {raised}
"""


@pytest.mark.parametrize(
    "raised",
    [
        *("StopIteration", "StopAsyncIteration", "GeneratorExit", "SystemExit(3)", "asyncio.CancelledError"),
        "BaseExceptionGroup('x', [SystemExit(3), ValueError()])",
    ],
)
async def test_a_tool_that_raises_what_ends_other_things_is_answered(make_task: MakeTask, raised: str) -> None:
    """It is the tool's mistake: the model is told, the episode goes on and is scored."""
    task = make_task(verifiers={"one": "return 1"}, files={"envs/counter.py": SLIP.format(raised=raised)})
    result = await played(task, "slip", "slip")
    assert (result.outcome, result.metrics["tool_errors"]) == (Outcome.COMPLETED, 2)


@pytest.mark.parametrize("raised", ["Own('x')", "BaseExceptionGroup('x', [KeyboardInterrupt()])"])
async def test_a_tool_that_raises_past_every_handler_fails_the_episode(make_task: MakeTask, raised: str) -> None:
    """Nobody can say what it was to end, so no reward is made of it."""
    task = make_task(files={"envs/counter.py": SLIP.format(raised=raised)})
    async with open_episode(task) as episode:
        turn = await episode.start()
        assert turn is not None
        with pytest.raises(EpisodeFailedError, match="tool slip: "):
            await turn.call("slip", {})
        failure = (await episode.result()).failure
    assert failure is not None
    assert failure.kind is FailureKind.ENV_BROKEN


def test_ctrl_c_in_a_tool_ends_the_program(make_task: MakeTask) -> None:
    """It comes out of the event loop as it does elsewhere, and what was open is closed."""
    hooks = "OPEN = []\nclass Slipping(Counter):\n    def start(self):\n        OPEN.append(self)\n    def close(self):\n        OPEN.remove(self)\n"
    code = SLIP.format(raised="KeyboardInterrupt") + hooks + "Counter = Slipping\n"
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(played(make_task(files={"envs/counter.py": code}), "slip"))


@pytest.mark.parametrize(
    ("fields", "files", "place"),
    [
        ({}, {"verifiers/counted.py": "def score(episode):\n    return 1 / 0\n"}, "verifiers/counted.py:2"),
        ({}, {"verifiers/counted.py": "def score(episode):\n    return 1 +\n"}, "verifiers/counted.py:2"),
        ({"prompt": "a\n{{ params.nope }}"}, {}, "tasks/a.yaml:1"),
        ({"prompt": {"template": "p.txt"}}, {"p.txt": "a\n{{ params.nope }}"}, "p.txt:2"),
        ({}, {"envs/counter.py": SLIP.format(raised="Own('x')")}, "envs/counter.py:10"),
    ],
)
async def test_a_failure_says_where_in_the_bundle_it_came_from(
    make_task: MakeTask, sink: Any, fields: dict[str, Any], files: dict[str, str], place: str
) -> None:
    """The innermost line of the bundle's own, as a value; the run has it too."""
    async with open_episode(make_task(files=files, **fields), sink=sink) as episode:
        turn = await episode.start()
        if turn is not None and "envs/counter.py" in files:
            with pytest.raises(EpisodeFailedError):
                await turn.call("slip", {})
        elif turn is not None:
            await turn.end(SAY)
        failure = (await episode.result()).failure
    assert failure is not None
    assert str(failure.place) == place
    path, _, line = place.partition(":")
    assert sink.of("failure")[0].data["place"] == {"path": path, "line": int(line)}


async def test_what_is_answered_once_a_turn_is_over_says_so(make_task: MakeTask, deploy: Steps) -> None:
    """By its kind: the turn had ended, or the env broke in the call."""
    async with open_episode(make_task([*deploy, {"prompt": "A", "fail_task_on_error": False}, COUNTED])) as episode:
        turn = await episode.start()
        assert turn is not None
        assert (await turn.call("die", {})).refusal == "broken"
        assert (await turn.call("add", {"by": 1})).refusal == "turn_over"


async def test_a_step_may_let_the_episode_go_on(make_task: MakeTask, deploy: Steps, sink: Any) -> None:
    """With `fail_task_on_error: false` later steps run, and the outcome is failed all the same."""
    steps = [
        *deploy,
        {"prompt": "A", "fail_task_on_error": False},
        {"run": {"python": "scripts/x.py:broken"}, "fail_task_on_error": False},
        {"prompt": "B"},
        COUNTED,
    ]
    task = make_task(steps, files={"scripts/x.py": "def broken(episode):\n    raise ValueError('x')\n"})
    async with open_episode(task, sink=sink) as episode:
        turn = await episode.start()
        assert turn is not None
        answer = await turn.call("die", {})
        assert answer.is_error
        assert answer.ends_turn
        assert "the server is gone" in answer.text
        assert (await turn.call("add", {"by": 1})).is_error
        turn = await turn.end()
        assert turn is not None
        assert turn.prompt == "B"
        await turn.call("add", {"by": 2})
        await turn.end(SAY)
        result = await episode.result()
    assert result.outcome is Outcome.FAILED
    assert result.failure is not None
    assert result.failure.kind is FailureKind.ENV_BROKEN
    assert result.scores["counted"].value == 2
    assert [event.data["kind"] for event in sink.of("failure")] == ["env_broken", "run_step"]
    with pytest.raises(RewardError, match="it failed"):
        reward_of(result)


async def test_a_failed_verifier_may_let_the_next_one_score(make_task: MakeTask, deploy: Steps) -> None:
    """Scores that come after a failure are kept, and make no reward."""
    steps = [*deploy, {"prompt": "A"}, {**COUNTED, "id": "first", "fail_task_on_error": False}, COUNTED]
    task = make_task(steps, verifiers={"counted": "return 1 if 'first' in episode.scores else 1 / len(episode.calls)"})
    result = await played(task)
    assert (result.outcome, dict(result.scores)) == (Outcome.FAILED, {})
    task = make_task(steps, verifiers={"counted": "return 1 / (len(episode.calls) - 1)"})
    assert (await played(task, "add")).failure is not None


@pytest.mark.parametrize(
    ("start", "kind", "said"),
    [
        ("raise ValueError('no port')", "env_start", "env 'counter' cannot start: ValueError: no port"),
        ("raise EnvBrokenError('no server')", "env_start", "no server"),
        ("raise SystemExit(1)", "env_start", "SystemExit: 1"),
        ("raise asyncio.CancelledError", "env_start", "CancelledError"),
        ("return asyncio.sleep(9)", "step_timeout", "starting env 'counter' took longer than 0.4 s"),
    ],
)
async def test_an_env_that_does_not_start_fails_the_episode(
    make_task: MakeTask, deploy: Steps, start: str, kind: str, said: str
) -> None:
    """`start` gives no turn, and the result says what broke; nothing is left open."""
    code = (
        "import asyncio\nfrom agent_env import Env, tool\nfrom agent_env.errors import EnvBrokenError\n"
        "class Counter(Env):\n"
        f"    def start(self):\n        {start}\n"
        "    @tool\n    def look(self) -> str:\n        '''Look.'''\n        return ''\n"
    )
    steps = [{**deploy[0], "timeout_s": 0.4}, deploy[1], {"prompt": "A"}, COUNTED]
    async with open_episode(make_task(steps, files={"envs/counter.py": code})) as episode:
        assert await episode.start() is None
        result = await episode.result()
    assert result.outcome is Outcome.FAILED
    assert result.failure is not None
    assert (result.failure.kind, result.failure.step) == (kind, "deploy_env")
    assert said in result.failure.message


async def test_a_universe_that_cannot_be_read_fails_the_episode(make_task: MakeTask) -> None:
    """The state's copy is no fault of the model's."""
    task = make_task(files={"universes/counter.json": "{"})
    result = await played(task)
    assert result.failure is not None
    assert result.failure.kind is FailureKind.UNIVERSE


async def test_a_prompt_that_cannot_be_written_fails_the_episode(make_task: MakeTask) -> None:
    """An undefined name in a template is the bundle's."""
    result = await played(make_task(prompt="Count to {{ params.gaol }}."))
    assert result.failure is not None
    assert result.failure.kind is FailureKind.PROMPT
    assert "did you mean 'goal'?" in result.failure.message


async def test_an_agent_whose_system_prompt_cannot_be_written_is_not_prompted(
    make_task: MakeTask, deploy: Steps
) -> None:
    """Also where the bundle says to go on: the prompt that comes fails for lack of an agent."""
    steps = [deploy[0], {**deploy[1], "fail_task_on_error": False}, {"prompt": "A"}, COUNTED]
    bundle = {"agents": {"clerk": {"system_prompt": "{{ params.none }}"}}}
    async with open_episode(make_task(steps, bundle=bundle)) as episode:
        assert await episode.start() is None
        result = await episode.result()
    assert result.failure is not None
    assert (result.failure.kind, result.failure.step) == (FailureKind.PROMPT, "deploy_agent")
    assert not result.scores


@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_turn_may_have_a_timeout(make_task: MakeTask, deploy: Steps, *, goes_on: bool) -> None:
    """When it is up the tool is stopped and the episode has failed, whatever the agent does."""
    steps = [*deploy, {"prompt": "A", "timeout_s": 0.05, "fail_task_on_error": not goes_on}, COUNTED]
    async with open_episode(make_task(steps)) as episode:
        turn = await episode.start()
        assert turn is not None
        call = turn.call("slowly", {"by": 1, "seconds": 30})
        if goes_on:
            answer = await call
            assert answer.is_error
            assert answer.ends_turn
            assert await turn.end() is None
        else:
            with pytest.raises(EpisodeFailedError, match=r"turn 0 took longer than 0.05 s"):
                await call
        result = await episode.result()
    assert result.failure is not None
    assert result.failure.kind is FailureKind.STEP_TIMEOUT
    assert list(result.scores) == (["counted"] if goes_on else [])


async def test_a_cut_episode_may_fail(make_task: MakeTask) -> None:
    """A verifier that raises after a cut fails the episode like any other."""
    async with open_episode(make_task(verifiers={"broken": "return 1 / 0"})) as episode:
        await episode.start()
        await episode.cut(CutReason.TOKEN_LIMIT)
        result = await episode.result()
    assert (result.outcome, result.cut) == (Outcome.FAILED, CutReason.TOKEN_LIMIT)


@pytest.mark.parametrize("fails_at", ["turn_started", "message", "call", "answer", "score", "ended", "cut"])
async def test_a_sink_that_raises_ends_the_episode_loudly(
    make_task: MakeTask, make_sink: Callable[..., Any], fails_at: str
) -> None:
    """What the sink raises comes out of the call that was under way, everything is given back, nothing goes on."""
    sink = make_sink(lambda what: what == fails_at)

    async def drive() -> None:
        async with open_episode(make_task(), sink=sink) as episode:
            turn = await episode.start()
            assert turn is not None
            turn.record(SAY)
            await turn.call("add", {"by": 1})
            if fails_at == "cut":
                await episode.cut(CutReason.TIMEOUT)
            await turn.end(SAY)
            await episode.result()
            raise AssertionError("it went on")

    with pytest.raises(OSError, match="No space left") as caught:
        await drive()
    assert caught.value.errno == 28
    assert [result.outcome for result in sink.results] == ([] if fails_at == "ended" else [Outcome.ABANDONED])


@pytest.mark.parametrize("fails_at", ["message", "answer", "score"])
async def test_an_episode_that_cannot_be_recorded_is_given_up(
    make_task: MakeTask, make_sink: Callable[..., Any], fails_at: str
) -> None:
    """Whoever has heard of it may leave the block quietly; nothing more can be done in the episode."""
    async with open_episode(make_task(), sink=make_sink(lambda what: what == fails_at)) as episode:
        turn = await episode.start()
        assert turn is not None
        with pytest.raises(OSError, match="No space left"):  # noqa: PT012 - whichever of them it is
            turn.record(SAY)
            await turn.call("add", {"by": 1})
            await turn.end(SAY)
        assert episode.state is EpisodeState.ABANDONED
        with pytest.raises(EpisodeStateError, match=r"cut\(\): the episode was abandoned, because of OSError"):
            await episode.cut(CutReason.TIMEOUT)


async def test_an_index_that_cannot_be_written_is_not_told_twice(
    make_task: MakeTask, sink: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The end is not recorded either: whoever drives the episode has the error, and the log no traceback of the same."""

    def full(_: str) -> bool:
        raise RunIndexError("the disk is full")

    async with open_episode(make_task(), sink=sink) as episode:
        turn = await episode.start()
        assert turn is not None
        sink.fails_at = full
        with pytest.raises(RunIndexError, match="the disk is full"):
            turn.record(SAY)
    assert caplog.text == ""


async def test_a_sink_that_raises_while_nobody_waits_is_heard_at_the_end(
    make_task: MakeTask, make_sink: Callable[..., Any]
) -> None:
    """Leaving the block raises what no call has raised."""
    sink = make_sink(lambda what: what == "step_started")

    async def drive() -> None:
        async with open_episode(make_task(), sink=sink) as episode:
            starting = asyncio.create_task(episode.start())
            await asyncio.sleep(0)
            starting.cancel()
            await asyncio.sleep(0.01)

    with pytest.raises(OSError, match="No space left"):
        await drive()


async def test_a_sink_that_refuses_the_header_opens_nothing(make_task: MakeTask, make_sink: Callable[..., Any]) -> None:
    """An episode that cannot be recorded is not opened."""
    with pytest.raises(OSError, match="No space left"):
        async with open_episode(make_task(), sink=make_sink(lambda what: what == "opened")):
            raise AssertionError("it opened")


async def test_a_close_that_raises_is_logged(make_task: MakeTask, caplog: pytest.LogCaptureFixture) -> None:
    """The scores stand: what an env does after the end changes no outcome."""
    code = (
        "from agent_env import Env, tool\nclass Counter(Env):\n    def close(self):\n        raise ValueError('stuck')\n"
        "    @tool\n    def look(self) -> str:\n        '''Look.'''\n        return ''\n"
    )
    result = await played(make_task(files={"envs/counter.py": code}))
    assert result.outcome is Outcome.COMPLETED
    assert "close raised" in caplog.text


async def test_a_call_that_was_stopped_says_so(make_task: MakeTask, sink: Any) -> None:
    """By the kind of its answer, in the run: whoever made it is gone."""
    async with open_episode(make_task(), sink=sink) as episode:
        turn = await episode.start()
        assert turn is not None
        calling = asyncio.create_task(turn.call("slowly", {"by": 1, "seconds": 60.0}))
        while not sink.of("call"):  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)
        calling.cancel()
        await turn.call("finish", {})
    assert [event.data.get("error_kind") for event in sink.of("answer")] == ["cancelled", None]
