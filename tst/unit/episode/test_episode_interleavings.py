"""Two or three tasks drive one episode in any order: whatever they do, it ends once, and says one thing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_env import (
    CutReason,
    Episode,
    EpisodeError,
    EpisodeFailedError,
    EpisodeState,
    FailureKind,
    Outcome,
    Task,
    Turn,
    open_episode,
)

MakeTask = Callable[..., Task]

MOVES = [
    "start", "start_and_go", "record", "call", "call", "slow", "slow_and_go", "finish", "refuse", "end", "end_and_go",
    "cut", "abandon", "fail", "result", "pause", "pause", "die",
]  # fmt: skip
"""What a driver does; `_and_go` gives up waiting after a moment."""
SAY: Any = {"role": "assistant", "content": "There."}

moves = st.lists(st.sampled_from(MOVES), min_size=1, max_size=10)
first = moves.map(lambda then: ["start", *then])
tasks_of_one_loop = st.tuples(st.one_of(first, moves), st.lists(moves, max_size=2)).map(
    lambda each: [each[0], *each[1]]
)


@given(drivers=tasks_of_one_loop, leaves_early=st.booleans())
@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    derandomize=True,
)
def test_any_interleaving_ends_once_and_leaves_nothing(
    make_task: MakeTask, make_sink: Callable[..., Any], drivers: Sequence[Sequence[str]], *, leaves_early: bool
) -> None:
    """The only errors are the episode's own; the sink hears of one end; no task and no env is left."""
    task = _task(make_task)
    sink = make_sink()
    asyncio.run(asyncio.wait_for(_drive(task, sink, drivers, leaves_early=leaves_early), 10))
    assert len(sink.results) == 1
    result = sink.results[0]
    kinds = [str(event.kind) for event in sink.events]
    assert kinds.count("turn_started") == result.metrics["turns"]
    assert kinds.count("answer") == result.metrics["tool_calls"]
    assert (result.failure is not None) == (result.outcome is Outcome.FAILED)
    if result.outcome is Outcome.COMPLETED:
        assert list(result.scores) == ["counted"]
        assert kinds.count("turn_ended") == kinds.count("turn_started")
        assert kinds.count("call") == kinds.count("answer")
        assert (result.cut is not None) == ("cut" in kinds)
    module = task.bundle.envs["counter"].python.module()
    assert not module.OPEN
    open_turn = False
    for kind in kinds:
        if kind in ("call", "answer", "message"):
            assert open_turn
        open_turn = kind == "turn_started" or (open_turn and kind != "turn_ended")


async def _drive(task: Task, sink: Any, drivers: Sequence[Sequence[str]], *, leaves_early: bool) -> None:
    async with open_episode(task, sink=sink) as episode, asyncio.TaskGroup() as group:
        driving = [group.create_task(_moves(episode, moves)) for moves in drivers]
        if leaves_early:
            await asyncio.sleep(0.002)
            for one in driving:
                one.cancel()
    assert episode.state in (EpisodeState.ENDED, EpisodeState.ABANDONED)
    outcome = (await episode.result()).outcome
    assert (outcome is Outcome.ABANDONED) == (episode.state is EpisodeState.ABANDONED)
    await episode.abandon()
    assert (await episode.result()).outcome is outcome
    assert [other for other in asyncio.all_tasks() if other.get_name().startswith("agent-env")] == []


async def _moves(episode: Episode, moves: Sequence[str]) -> None:
    turn: Turn | None = None
    for move in moves:
        turn = episode.turn or turn
        try:
            async with asyncio.timeout(0.001 if move.endswith("_and_go") else 5):
                await _move(episode, turn, move)
        except EpisodeFailedError:
            assert (await episode.result()).outcome is not Outcome.COMPLETED
        except EpisodeError:
            pass
        except TimeoutError:
            assert move.endswith("_and_go")


async def _move(episode: Episode, turn: Turn | None, move: str) -> None:  # noqa: C901 - a table of moves
    match move:
        case "start" | "start_and_go":
            await episode.start()
        case "cut":
            await episode.cut(CutReason.TIMEOUT)
        case "abandon":
            await episode.abandon()
        case "fail":
            await episode.fail(FailureKind.AGENT, "it broke")
        case "result":
            await episode.result()
        case "pause":
            await asyncio.sleep(0.001)
        case _ if turn is None:
            pass
        case "record":
            turn.record(SAY)
        case "call":
            await turn.call("add", {"by": 1})
        case "slow" | "slow_and_go":
            await turn.call("slowly", {"by": 1, "seconds": 0.002})
        case "finish" | "die":
            await turn.call(move, {})
        case "refuse":
            turn.refuse("add", "no")
        case _:
            await turn.end(SAY)


_made: dict[MakeTask, Task] = {}


def _task(make_task: MakeTask) -> Task:
    """One task for all examples: two turns, a step between them that waits, an async verifier."""
    if make_task not in _made:
        wait = "import asyncio\nasync def wait(episode):\n    await asyncio.sleep(0.001)\n"
        steps = [
            {"deploy_env": "counter"},
            {"deploy_agent": "clerk"},
            {"prompt": "A"},
            {"run": {"python": "scripts/x.py:wait"}},
            {"prompt": "B"},
            {"verify": {"python": "verifiers/counted.py"}},
        ]
        score = (
            "import asyncio\nasync def score(episode):\n    await asyncio.sleep(0.001)\n    return len(episode.calls)"
        )
        _made.clear()
        _made[make_task] = make_task(steps, files={"scripts/x.py": wait}, verifiers={"counted": score})
    return _made[make_task]
