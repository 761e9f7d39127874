from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agent_env import EpisodeResult, Event, RunHeader, Task, load_bundle

COUNTER = """
import asyncio
import time

from agent_env import Env, ToolAnswer, ToolError, tool
from agent_env.errors import EnvBrokenError

OPEN = set()
DONE = []


class Counter(Env):
    def start(self):
        OPEN.add(self)

    async def close(self):
        await asyncio.sleep(0)
        OPEN.remove(self)

    @tool
    def add(self, by: int) -> int:
        '''Add to the count.'''
        self.state["count"] += by
        DONE.append(by)
        return self.state["count"]

    @tool
    async def slowly(self, by: int, seconds: float = 0.0) -> int:
        '''Add to the count after a while.'''
        await asyncio.sleep(seconds)
        return self.add(by)

    @tool
    def refuse(self) -> None:
        '''Refuse.'''
        raise ToolError("not today")

    @tool
    def crash(self) -> None:
        '''Have a bug.'''
        raise KeyError("bug")

    @tool
    def cancel(self) -> None:
        '''Raise what looks like a cancellation.'''
        raise asyncio.CancelledError

    @tool
    def die(self) -> None:
        '''Break the env.'''
        raise EnvBrokenError("the server is gone")

    @tool
    def odd(self) -> None:
        '''Raise what no handler of exceptions expects.'''
        raise BaseExceptionGroup("odd", [KeyboardInterrupt()])

    @tool
    def finish(self) -> ToolAnswer:
        '''End the turn.'''
        return ToolAnswer("done", ends_turn=True)

    @tool
    async def stubborn(self) -> str:
        '''Go on although it is cancelled, as no tool should.'''
        for _ in range(200):
            try:
                await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                pass
        return "still here"
"""

BUNDLE = {
    "name": "counting",
    "version": "1.0",
    "envs": {"counter": {"python": "envs/counter.py:Counter", "universe": "universes/counter.json"}},
    "agents": {"clerk": {"system_prompt": "You count to {{ params.goal }}."}},
}

MakeTask = Callable[..., Task]


@pytest.fixture
def make_task(tmp_path: Path) -> Generator[MakeTask]:
    """Makes a task of a real bundle: an env that counts, and the given steps, verifiers and other files.

    Every env that an episode of it opened must have been closed when the test is over.
    """
    made: list[Task] = []

    def make(
        steps: Sequence[Mapping[str, Any]] | None = None,
        *,
        verifiers: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
        bundle: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Task:
        verifiers = {"counted": "return float(episode.state()['count'])"} if verifiers is None else verifiers
        root = tmp_path / f"bundle-{len(made)}"
        task = {"id": "a", "tags": ["easy"], "params": {"goal": 3}, **fields}
        if steps is None:
            scored = [{"python": f"verifiers/{name}.py"} for name in verifiers]
            task = {"prompt": "Count to {{ params.goal }}.", "verify": scored, **task}
        else:
            task["steps"] = list(steps)
        contents = {
            "bundle.yaml": json.dumps({**BUNDLE, **(bundle or {})}),
            "envs/counter.py": COUNTER,
            "universes/counter.json": '{"count": 0}',
            "tasks/a.yaml": json.dumps(task),
            **{f"verifiers/{name}.py": _verifier(code) for name, code in verifiers.items()},
            **(files or {}),
        }
        for name, content in contents.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(content)
        made.append(load_bundle(root).task("a"))
        return made[-1]

    yield make
    for task in made:
        for env in task.bundle.envs.values():
            assert not getattr(env.python.module(), "OPEN", None), "an env was left open"


def _verifier(code: str) -> str:
    if "def score" in code:
        return code
    return "def score(episode):\n" + "".join(f"    {line}\n" for line in code.splitlines())


@pytest.fixture
def deploy() -> list[dict[str, Any]]:
    """The first steps of a long-form task."""
    return [{"deploy_env": "counter"}, {"deploy_agent": "clerk"}]


class ListSink:
    """Keeps what an episode says; raises when `fails_at` says that it is time."""

    def __init__(self, fails_at: Callable[[str], bool] | None = None) -> None:
        self.run_id = "run-1"
        self.header: RunHeader | None = None
        self.events: list[Event] = []
        self.results: list[EpisodeResult] = []
        self.fails_at = fails_at

    def opened(self, header: RunHeader) -> None:
        self._note("opened")
        self.header = header

    def event(self, event: Event) -> None:
        self._note(str(event.kind))
        self.events.append(event)

    def ended(self, result: EpisodeResult) -> None:
        self._note("ended")
        self.results.append(result)

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]

    def _note(self, what: str) -> None:
        if self.fails_at is not None and self.fails_at(what):
            raise OSError(28, "No space left on device")


@pytest.fixture
def sink() -> ListSink:
    """A sink that keeps everything."""
    return ListSink()


@pytest.fixture
def make_sink() -> type[ListSink]:
    """Makes such sinks."""
    return ListSink
