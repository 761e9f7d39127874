"""Cancelled and abandoned episodes: from any state, by any task, and nothing is left behind."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_env import (
    CutReason,
    EpisodeFailedError,
    EpisodeState,
    EpisodeStateError,
    FailureKind,
    Limits,
    Outcome,
    RewardError,
    Task,
    open_episode,
    reward_of,
)

MakeTask = Callable[..., Task]

SAY: Any = {"role": "assistant", "content": "There."}
HOW = ("abandon", "leave", "cancel", "both")
SLOW = {"slow": "import asyncio\nasync def score(episode):\n    await asyncio.sleep(3600)\n    return 1\n"}


@pytest.fixture(autouse=True)
async def no_task_is_left() -> AsyncGenerator[None]:
    """After each test no task of an episode is under way."""
    yield
    await asyncio.sleep(0)
    left = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("agent-env")]
    assert not left


def done_by(task: Task) -> list[int]:
    """What the env's tools have done, over all episodes of the task."""
    return task.bundle.envs["counter"].python.module().DONE


async def reach(state: str, task: Task, episode: Any) -> asyncio.Task[Any] | None:
    """Bring an episode into a state, with another task inside it where the state needs one."""
    if state == "ready":
        return None
    if state == "starting":
        starting = asyncio.create_task(episode.start())
        await asyncio.sleep(0)
        return starting
    turn = await episode.start()
    inside: dict[str, Callable[[], Any]] = {
        "calling": lambda: turn.call("slowly", {"by": 1, "seconds": 30}),
        "stubborn": lambda: turn.call("stubborn", {}),
        "ending": lambda: turn.end(SAY),
        "cutting": lambda: episode.cut(CutReason.TIMEOUT),
    }
    if state not in inside:
        return None
    other = asyncio.create_task(inside[state]())
    await asyncio.sleep(0.02)
    return other


@pytest.mark.parametrize("state", ["ready", "starting", "turn", "calling", "stubborn", "ending", "cutting"])
async def test_an_episode_can_fail_from_any_state(make_task: MakeTask, sink: Any, state: str) -> None:
    """Whoever is inside gets what broke, the env is closed, and the run says failed, once, whatever is asked for later."""
    task = make_task(verifiers=SLOW)
    async with open_episode(task, sink=sink) as episode:
        other = await reach(state, task, episode)
        await episode.fail(FailureKind.MODEL_SERVER, "the model is gone", error=ConnectionError("refused"))
        assert episode.state is EpisodeState.ENDED
        await episode.fail(FailureKind.AGENT, "something else")
        await episode.abandon()
    if other is not None:
        with pytest.raises(EpisodeFailedError, match=r"the episode failed \(model_server\): the model is gone"):
            await other
    (result,) = sink.results
    assert result.outcome is Outcome.FAILED
    assert (result.failure.kind, result.failure.message) == (FailureKind.MODEL_SERVER, "the model is gone")
    assert "ConnectionError: refused" in result.failure.traceback
    assert [str(event.kind) for event in sink.events].count("failure") == 1
    assert await episode.result() == result
    assert not done_by(task)


async def test_an_abandoned_or_ended_episode_does_not_fail(make_task: MakeTask, sink: Any) -> None:
    """It stays what it was."""
    async with open_episode(make_task(), sink=sink) as episode:
        await episode.start()
        await episode.abandon()
        await episode.fail(FailureKind.AGENT, "too late")
    async with open_episode(make_task(), sink=sink) as episode:
        turn = await episode.start()
        assert turn is not None
        await turn.end(SAY)
        await episode.result()
        await episode.fail(FailureKind.AGENT, "too late")
    assert [result.outcome for result in sink.results] == [Outcome.ABANDONED, Outcome.COMPLETED]
    assert "failure" not in [str(event.kind) for event in sink.events]


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what no call of the API waits for."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("state", "how"),
    [
        *itertools.product(("ready", "turn", "calling", "stubborn", "ending", "cutting"), HOW),
        *(("starting", how) for how in HOW if how != "cancel"),  # by then it has started
    ],
)
async def test_an_episode_can_be_given_up_from_any_state(make_task: MakeTask, sink: Any, state: str, how: str) -> None:
    """Whoever is inside gets an error at once, the env is closed, and the run says abandoned, once."""
    task = make_task(verifiers=SLOW)
    other: asyncio.Task[Any] | None = None

    async def give_up() -> None:
        nonlocal other
        async with open_episode(task, sink=sink) as episode:
            other = await reach(state, task, episode)
            if how in ("abandon", "both"):
                async with asyncio.TaskGroup() as group:
                    for _ in range(2 if how == "both" else 1):
                        group.create_task(episode.abandon())
                assert episode.state is EpisodeState.ABANDONED
                assert (await episode.result()).outcome is Outcome.ABANDONED
            if how == "cancel":
                await anyio.sleep_forever()

    with anyio.move_on_after(0.1 if how == "cancel" else math.inf):
        await give_up()
    if other is not None:
        with pytest.raises(EpisodeStateError, match="the episode was abandoned, open another one"):
            await other
    assert [result.outcome for result in sink.results] == [Outcome.ABANDONED]
    assert not done_by(task)
    with pytest.raises(RewardError, match="was abandoned"):
        reward_of(sink.results[0])


async def test_a_plain_verifier_is_not_waited_for(make_task: MakeTask, sink: Any, tmp_path: Path) -> None:
    """Its thread goes on until the function returns; the episode is given up without it."""
    go, done = tmp_path / "go", tmp_path / "done"
    waiting = (
        "import pathlib, time\n"
        f"while not pathlib.Path({str(go)!r}).exists():\n    time.sleep(0.01)\n"
        f"pathlib.Path({str(done)!r}).touch()\nreturn 1"
    )
    task = make_task(verifiers={"slow": waiting})
    async with open_episode(task, sink=sink) as episode:
        turn = await episode.start()
        assert turn is not None
        ending = asyncio.create_task(turn.end(SAY))
        await until(lambda: bool(sink.of("turn_ended")))
        await asyncio.sleep(0.1)
        await episode.abandon()
        assert not done.exists()
        with pytest.raises(EpisodeStateError):
            await ending
    go.touch()
    await until(done.exists)
    assert [result.outcome for result in sink.results] == [Outcome.ABANDONED]


async def test_an_episode_that_has_ended_stays_so(make_task: MakeTask, sink: Any) -> None:
    """Abandoning it then changes nothing."""
    async with open_episode(make_task(), sink=sink) as episode:
        turn = await episode.start()
        assert turn is not None
        await turn.end(SAY)
        await episode.abandon()
        await episode.abandon()
        assert (await episode.result()).outcome is Outcome.COMPLETED
    await episode.abandon()
    assert [result.outcome for result in sink.results] == [Outcome.COMPLETED]


async def test_an_episode_that_is_being_closed_has_its_outcome(make_task: MakeTask, sink: Any) -> None:
    """Abandoning it while its env closes waits for that and takes no score away."""
    code = (
        "import asyncio\nfrom agent_env import Env, tool\nCLOSING = []\nCLOSED = []\nclass Counter(Env):\n"
        "    async def close(self):\n"
        "        CLOSING.append(1)\n        await asyncio.sleep(0.05)\n        CLOSED.append(1)\n"
        "    @tool\n    def look(self) -> str:\n        '''Look.'''\n        return ''\n"
    )
    task = make_task(files={"envs/counter.py": code})
    env = task.bundle.envs["counter"].python.module()
    async with open_episode(task, sink=sink) as episode:
        turn = await episode.start()
        assert turn is not None
        ending = asyncio.create_task(turn.end(SAY))
        await until(lambda: bool(env.CLOSING))
        await episode.abandon()
        assert env.CLOSED
        assert await ending is None
        assert (await episode.result()).outcome is Outcome.COMPLETED
    assert [result.outcome for result in sink.results] == [Outcome.COMPLETED]


async def test_whoever_waits_for_the_result_gets_it(make_task: MakeTask) -> None:
    """A task that waits for the result of an episode learns that it was abandoned."""
    async with open_episode(make_task(verifiers=SLOW)) as episode:
        turn = await episode.start()
        assert turn is not None
        ending = asyncio.create_task(turn.end(SAY))
        waiting = asyncio.create_task(episode.result())
        await asyncio.sleep(0.01)
        await episode.abandon()
        assert (await waiting).outcome is Outcome.ABANDONED
        with pytest.raises(EpisodeStateError):
            await ending


async def test_a_cancelled_call_leaves_the_turn_open(make_task: MakeTask, sink: Any) -> None:
    """The tool is stopped, the run says so, and the next call runs."""
    async with open_episode(make_task(), sink=sink) as episode:
        turn = await episode.start()
        assert turn is not None
        with anyio.move_on_after(0.02) as scope:
            await turn.call("slowly", {"by": 1, "seconds": 30})
        assert scope.cancelled_caught
        assert (await turn.call("add", {"by": 1})).text == "1"
        assert await turn.end(SAY) is None
    assert sink.of("answer")[0].data["text"] == "the call was cancelled before it was done"


async def test_a_call_cancelled_before_its_turn_is_not_made(make_task: MakeTask) -> None:
    """A call that waits behind another one and is cancelled never reaches the env."""
    task = make_task()
    async with open_episode(task) as episode:
        turn = await episode.start()
        assert turn is not None
        first = asyncio.create_task(turn.call("slowly", {"by": 1, "seconds": 0.03}))
        second = asyncio.create_task(turn.call("add", {"by": 10}))
        await asyncio.sleep(0.01)
        second.cancel()
        assert (await first).text == "1"
        await turn.end(SAY)
        assert (await episode.result()).metrics["tool_calls"] == 1
    assert done_by(task) == [1]


async def test_a_cancelled_wait_stops_only_the_waiting(make_task: MakeTask) -> None:
    """The turn that a cancelled `start` was to return is `episode.turn`; a cancelled `end` has ended the turn."""
    verifiers = {"slow": "import asyncio\nasync def score(episode):\n    await asyncio.sleep(0.05)\n    return 1\n"}
    async with open_episode(make_task(verifiers=verifiers)) as episode:
        starting = asyncio.create_task(episode.start())
        await asyncio.sleep(0)
        starting.cancel()
        await until(lambda: episode.turn is not None)
        turn = episode.turn
        assert turn is not None
        assert turn is episode.turn
        with anyio.move_on_after(0.01):
            await turn.end(SAY)
        assert (await episode.result()).outcome is Outcome.COMPLETED


async def test_a_second_cancel_does_not_leave_the_episode_behind(make_task: MakeTask) -> None:
    """`Task.cancel()` goes through a shield; the block is left only when the env is closed all the same."""
    task = make_task()
    env = task.bundle.envs["counter"].python.module()

    started = asyncio.Event()

    async def drive() -> None:
        async with open_episode(task) as episode:
            turn = await episode.start()
            assert turn is not None
            started.set()
            await turn.call("stubborn", {})

    driving = asyncio.create_task(drive())
    await started.wait()
    await asyncio.sleep(0.005)
    assert env.OPEN
    driving.cancel()
    await asyncio.sleep(0.005)
    driving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await driving
    assert not env.OPEN


async def test_a_tool_that_will_not_be_cancelled_fails_the_episode_that_is_cut(
    make_task: MakeTask, caplog: pytest.LogCaptureFixture
) -> None:
    """A cut is bounded too: the failure names the tool, the processor is left alone, and the tool may end when it likes."""
    code = (
        "import asyncio\nfrom agent_env import Env, tool\nCANCELLED = []\nGO_ON = asyncio.Event()\n"
        "class Counter(Env):\n"
        "    @tool\n    async def stay(self) -> str:\n        '''Stay.'''\n"
        "        while not GO_ON.is_set():\n"
        "            try:\n                await GO_ON.wait()\n"
        "            except asyncio.CancelledError:\n                CANCELLED.append(1)\n"
        "        return 'stayed'\n"
    )
    task = make_task(files={"envs/counter.py": code})
    async with open_episode(task, limits=Limits(close_s=0.05)) as episode:
        turn = await episode.start()
        assert turn is not None
        calling = asyncio.create_task(turn.call("stay", {}))
        await asyncio.sleep(0.01)
        await episode.cut(CutReason.TIMEOUT)
        result = await episode.result()
        with pytest.raises(EpisodeStateError, match="was cut"):
            await calling
        assert episode.state is EpisodeState.ENDED
        await episode.cut(CutReason.TIMEOUT)
    assert result.outcome is Outcome.FAILED
    assert result.failure is not None
    assert (result.failure.kind, result.scores) == (FailureKind.ENV_BROKEN, {})
    assert "tool stay did not stop within 0.05 s" in result.failure.message
    assert caplog.text.count("will not stop, and is left to itself") == 1
    assert "still there" not in caplog.text
    module = task.bundle.envs["counter"].python.module()
    assert len(module.CANCELLED) < 5
    module.GO_ON.set()
    await asyncio.sleep(0.01)


async def test_a_call_may_be_cancelled_in_the_moment_in_which_it_ends(make_task: MakeTask) -> None:
    """Whichever comes first, by some passes of the loop: nothing is raised in a callback, where nobody would hear it."""
    code = (
        "import asyncio\nfrom agent_env import Env, tool\nGO_ON = asyncio.Event()\n"
        "class Counter(Env):\n    @tool\n    async def wait(self) -> str:\n        '''Wait.'''\n"
        "        await GO_ON.wait()\n        return 'done'\n"
    )
    task = make_task(files={"envs/counter.py": code})
    heard: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
    async with open_episode(task) as episode:
        turn = await episode.start()
        assert turn is not None
        go_on = task.bundle.envs["counter"].python.module().GO_ON
        for passes in range(6):
            go_on.clear()
            calling = asyncio.create_task(turn.call("wait", {}))
            await asyncio.sleep(0.001)
            go_on.set()
            for _ in range(passes):
                await asyncio.sleep(0)
            calling.cancel()
            await asyncio.wait([calling])
        await asyncio.sleep(0.001)
    assert heard == []


async def test_the_block_may_be_left_by_another_task(make_task: MakeTask) -> None:
    """A trainer opens an episode in a rollout's task and closes it in the group's."""
    manager = open_episode(make_task())
    episode = await asyncio.create_task(manager.__aenter__())
    turn = await asyncio.create_task(episode.start())
    assert turn is not None
    assert (await asyncio.create_task(turn.call("add", {"by": 1}))).text == "1"
    await asyncio.create_task(manager.__aexit__(None, None, None))
    assert episode.state is EpisodeState.ABANDONED


async def test_an_env_that_never_closes_is_left_and_logged(
    make_task: MakeTask, caplog: pytest.LogCaptureFixture
) -> None:
    """Closing is bounded, so that one bundle's mistake does not stop a training run."""
    code = (
        "import asyncio\nfrom agent_env import Env, tool\nclass Counter(Env):\n"
        "    async def close(self):\n        await asyncio.sleep(3600)\n"
        "    @tool\n    def look(self) -> str:\n        '''Look.'''\n        return ''\n"
    )
    async with open_episode(make_task(files={"envs/counter.py": code}), limits=Limits(close_s=0.05)) as episode:
        turn = await episode.start()
        assert turn is not None
    assert "closing took longer than 0.05 s" in caplog.text


def test_an_event_loop_that_is_shut_down_closes_the_episode(make_task: MakeTask) -> None:
    """Whoever forgets to leave the block loses nothing but the episode."""
    task = make_task()
    managers: list[Any] = []

    async def forget() -> None:
        managers.append(open_episode(task))
        episode = await managers[0].__aenter__()
        await episode.start()
        assert task.bundle.envs["counter"].python.module().OPEN

    asyncio.run(forget())
    assert not task.bundle.envs["counter"].python.module().OPEN


async def test_a_thousand_episodes_are_abandoned_at_once(make_task: MakeTask) -> None:
    """All of them close, whatever each was doing."""
    task = make_task()
    finished = 0

    async def drive(at: int) -> None:
        nonlocal finished
        async with open_episode(task) as episode:
            turn = await episode.start()
            assert turn is not None
            await asyncio.sleep(0.001 * (at % 7))
            if at % 3 == 0:
                await episode.abandon()
            elif at % 3 == 1:
                await turn.call("add", {"by": 1})
                await turn.end(SAY)
            finished += 1

    async with asyncio.TaskGroup() as group:
        for at in range(1000):
            group.create_task(drive(at))
    assert finished == 1000
