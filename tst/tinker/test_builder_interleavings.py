"""Groups of rollouts through random interleavings: whatever happens when, each run ends once and nothing is left behind.

Hypothesis draws bytes, and each byte decides what happens next: which of the policy calls, tool calls, starts, scorings and
closings that wait goes on and with what, whose group is cancelled, how far the clock goes, how many turns the loop makes
before that. No thread and no real time is in it, so that an example is its bytes. The groups are real ones, played by the
cookbook's `do_group_rollout` with its own strategies and limits into a real run index.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import math
import os
import random
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tinker_cookbook", reason="the trainer tier: make tinker-test")

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from tinker import EncodedTextChunk
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.exceptions import AllTrajectoriesFailedError
from tinker_cookbook.renderers import Message, ToolCall, UnparsedToolCall, register_renderer, unregister_renderer
from tinker_cookbook.renderers.base import ParseTermination, RenderedMessage, Renderer, ensure_text
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits, TerminationRewardPolicy
from tinker_cookbook.rl.rollout_presets import RolloutConfig
from tinker_cookbook.rl.rollout_runner import SamplingTurnTimeoutError
from tinker_cookbook.rl.rollout_strategy import FailFast, MinViableGroup, RetryOnFailure
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.rl.types import TrajectoryGroup
from tinker_cookbook.tokenizer_utils import register_tokenizer

from agent_env.errors import EpisodeFailedError
from agent_env.outcome import CutReason
from agent_env.runs import RunState, RunSummary
from agent_env.training import _process
from agent_env.training._slots import Slots, slots_for
from agent_env.training.tinker import AgentEnvDatasetBuilder, EpisodeGroupBuilder, GroupSettings

BATCHES = int(os.environ.get("INTERLEAVINGS_BATCHES", "10"))
BATCH = 1_000
SEED = int(os.environ.get("INTERLEAVINGS_SEED") or random.SystemRandom().randrange(1 << 32))

NAME = "AgentEnv/stand-in"
END = 0

ENV = '''
import asyncio
from agent_env import Env, EnvBrokenError, ToolAnswer, tool

class Room(Env):
    async def start(self):
        self.stage = asyncio.get_running_loop()
        self.stage.open_envs += 1
        if "start" in self.params["gates"]:
            await self.stage.gate("start")

    async def close(self):
        try:
            if "close" in self.params["gates"]:
                await self.stage.gate("close")
        finally:
            self.stage.open_envs -= 1

    @tool
    def add(self, number: int) -> str:
        """Add a number."""
        self.state["total"] += number
        return f"total {self.state['total']}"

    @tool
    async def wait(self) -> str:
        """Wait for what comes."""
        return await self.stage.gate("call")

    @tool
    def crash(self) -> str:
        """Break the room."""
        raise EnvBrokenError("the room is broken")

    @tool
    def submit(self) -> ToolAnswer:
        """End the turn."""
        return ToolAnswer("accepted", ends_turn=True)

class Shelf(Env):
    pass
'''

VERIFIER = """
import asyncio

async def score(episode):
    return await asyncio.get_running_loop().gate("score")
"""

COUNTING = """
import itertools

numbers = itertools.count(1)

def score(episode):
    return next(numbers) / (1 << 20)
"""

BUNDLE = """
name: room
version: 1.0.0
description: What happens, happens at the test's word.
license: Apache-2.0
envs:
  room: {python: "envs/room.py:Room", universe: universes/room.json}
  shelf: {python: "envs/room.py:Shelf", universe: universes/shelf}
agents:
  guest: {kind: played, system_prompt: "Be.", envs: [room]}
reward: right
"""

TASKS: tuple[dict[str, Any], ...] = (
    {"id": "plain"},
    {"id": "starts", "params": {"gates": ["start"]}},
    {"id": "closes", "params": {"gates": ["close"]}},
    {"id": "two-turns", "params": {"gates": ["close"]}, "prompt": ["First.", "Second."]},
    {"id": "starts-and-closes", "params": {"gates": ["start", "close"]}},
    {"id": "long", "prompt": "word " * 150},
    {
        "id": "goes-on",
        "steps": [
            {"deploy_env": "room"},
            {"deploy_agent": "guest"},
            {"prompt": {"text": "Crash it."}, "fail_task_on_error": False},
            {"verify": {"python": "verifiers/right.py"}, "id": "right"},
        ],
    },
)

IN_THREADS: dict[str, Any] = {
    "id": "in-threads",
    "steps": [
        {"deploy_env": "room"},
        {"deploy_env": "shelf"},
        {"deploy_agent": "guest"},
        {"prompt": "Wait."},
        {"verify": {"python": "verifiers/counting.py"}, "id": "right"},
    ],
}
"""A task whose state is a copy of a folder, and whose verifier is a plain function: both are a thread's work."""


class StandInTokenizer:
    """A token for each word, space and sign; token 0 ends a message."""

    name_or_path = NAME
    eos_token_id = END
    unk_token_id = None

    def __init__(self) -> None:
        self.words = ["<end>"]
        self.ids = {"<end>": END}

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return [self.ids.setdefault(word, self._new(word)) for word in re.findall(r"<end>|\s+|\w+|[^\w\s]", text)]

    def _new(self, word: str) -> int:
        if word not in self.ids:
            self.words.append(word)
        return len(self.words) - 1

    def convert_tokens_to_ids(self, word: str) -> int | None:
        return self.ids.get(word)

    def decode(self, tokens: list[int]) -> str:
        return "".join(self.words[token] for token in tokens)


class StandInRenderer(Renderer):
    """`role: text<end>` for each message, each call as `«name arguments»` in its text."""

    has_extension_property = True

    def get_stop_sequences(self) -> list[int]:
        return [END]

    def render_message(self, message: Message, ctx: Any) -> RenderedMessage:
        text = ensure_text(message["content"]) + "".join(
            f"«{call.function.name} {call.function.arguments}»" for call in message.get("tool_calls") or ()
        )
        if UNWRITABLE in text:
            raise ValueError(UNWRITABLE)
        return RenderedMessage(
            header=EncodedTextChunk(tokens=self.tokenizer.encode(f"{message['role']}:")),
            output=[EncodedTextChunk(tokens=[*self.tokenizer.encode(text), END])],
        )

    def parse_response(self, response: list[int]) -> tuple[Message, ParseTermination]:
        text = self.tokenizer.decode([token for token in response if token != END])
        message: Message = {"role": "assistant", "content": text.partition("«")[0]}
        for name, arguments in re.findall(r"«(\w+) (.*?)»", text):
            if arguments == "unreadable":
                message.setdefault("unparsed_tool_calls", []).append(
                    UnparsedToolCall(raw_text=name, error="unreadable")
                )
            else:
                call = ToolCall(function=ToolCall.FunctionBody(name=name, arguments=arguments))
                message.setdefault("tool_calls", []).append(call)
        ends = bool(response) and response[-1] == END
        return message, ParseTermination.STOP_SEQUENCE if ends else ParseTermination.MALFORMED

    def create_conversation_prefix_with_tools(self, tools: list[Any], system_prompt: str = "") -> list[Message]:
        return [{"role": "system", "content": f"{system_prompt} {' '.join(tool['name'] for tool in tools)}"}]


TOKENIZER = StandInTokenizer()


class PolicyLostError(Exception):
    """The stand-in policy's server is gone."""


@dataclass
class Gate:
    """Something that waits for the test's word."""

    kind: str
    who: int
    """The number of its task on the stage."""
    future: asyncio.Future[Any]


class Stage(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still until it is moved, and on which whatever waits at a gate is told to go on."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__()
        self.timers: list[asyncio.TimerHandle] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.inner: list[Any] = []
        self.complaints: list[dict[str, Any]] = []
        self.gates: list[Gate] = []
        self.open_envs = 0
        self.scored = 0
        self.set_exception_handler(lambda _, context: self.complaints.append(context))

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        self.timers.append(timer := super().call_at(when, callback, *args, context=context))
        return timer

    def create_task(self, coro: Any, **kwargs: Any) -> asyncio.Task[Any]:
        self.tasks.append(task := super().create_task(coro, **kwargs))
        self.inner.append(inspect.getcoroutinelocals(coro).get("fut"))  # what a `wait_for` is to wait for
        return task

    def close(self) -> None:
        """Close what was never begun too: a strategy leaves its rollout so that is cancelled before the first step."""
        super().close()
        for coro in self.inner:
            if inspect.iscoroutine(coro) and inspect.getcoroutinestate(coro) == inspect.CORO_CREATED:
                coro.close()

    async def gate(self, kind: str) -> Any:
        """Wait for the test's word, and do what it says."""
        who = self.tasks.index(asyncio.current_task())  # type: ignore[arg-type]
        self.gates.append(gate := Gate(kind, who, self.create_future()))
        return await gate.future

    def waiting(self) -> list[Gate]:
        """What waits, in the order it came."""
        self.gates = [gate for gate in self.gates if not gate.future.done()]
        return self.gates

    def under_way(self) -> int:
        """How many episodes are."""
        return sum(task.get_name().startswith("agent-env run") and not task.done() for task in self.tasks)

    async def settle(self) -> None:
        """Let everything happen that does not wait for the test or for the clock."""
        await asyncio.sleep(0)
        while self._ready:  # noqa: ASYNC110 - this is what the loop has no event for
            await asyncio.sleep(0)

    async def advance(self, seconds: float | None) -> None:
        """Move the clock, from timer to timer as it would go by itself.

        Args:
            seconds: How far; None is to the next timer, which then goes off in the loop's next pass.
        """
        await self.settle()
        until = math.inf if seconds is None else self.now + seconds
        while True:
            self.timers = [timer for timer in self.timers if not timer.cancelled() and timer.when() > self.now]
            due = min((timer.when() for timer in self.timers), default=math.inf)
            if due > until or due == math.inf:
                break
            self.now = due
            if seconds is None:
                return
            await self.settle()
        if seconds is not None:
            self.now = until


class StagedPolicy(TokenCompleter):
    """Samples what the test says, when it says so."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    async def __call__(self, model_input: Any, stop: Any, *, max_tokens: int | None = None) -> TokensWithLogprobs:
        text, ended = await self.stage.gate("sample")
        tokens = TOKENIZER.encode(text)
        if ended and max_tokens is not None and len(tokens) > max_tokens:
            tokens, ended = tokens[:max_tokens], "length"
        return TokensWithLogprobs(tokens=tokens, maybe_logprobs=[-0.5] * len(tokens), stop_reason=ended)


UNWRITABLE = "unwritable"
"""What the stand-in renderer raises on."""
ADD = '«add {"number": 3}»'
SAMPLES = (
    ("Done.<end>", "stop"),
    ("«submit {}»<end>", "stop"),
    (f"{ADD}<end>", "stop"),
    (f"{ADD}<end>", "stop"),
    ("«wait {}»<end>", "stop"),
    ("«wait {}»<end>", "stop"),
    (f"So.{ADD}«wait {{}}»{ADD}<end>", "stop"),
    ("«add unreadable»<end>", "stop"),
    ("«add unreadable»«wait unreadable»<end>", "stop"),
    ('«add {"number": "three"}»<end>', "stop"),
    ('«add {"number»<end>', "stop"),
    ("No end", "stop"),
    ("No end", "length"),
    (f"«wait {{}}»{ADD}«submit {{}}»{ADD}<end>", "stop"),
    ("«crash {}»<end>", "stop"),
    (f"{ADD}«crash {{}}»<end>", "stop"),
)


def outcomes(stage: Stage, kind: str) -> tuple[Any, ...]:
    """What may come of what waits; the first is the plain one, from which every rollout comes to its end."""
    from agent_env import EnvBrokenError, ToolError

    match kind:
        case "sample":
            return (*SAMPLES, PolicyLostError("no server"))
        case "call":
            return (*["went on"] * 5, UNWRITABLE, ToolError("not now"), ValueError("a bug"), EnvBrokenError("broken"))
        case "score":
            stage.scored += 1
            score = stage.scored / (1 << 20)  # no other episode has this one, whatever a cut costs
            return (*[score] * 9, math.nan, RuntimeError("no score today"), asyncio.CancelledError())
        case _:
            return (*[None] * 5, OSError("no room"))


class Choices:
    """The drawn bytes, one decision after the other; then zeros."""

    def __init__(self, drawn: bytes) -> None:
        self.drawn = drawn
        self._left = deque(drawn)

    @property
    def are_left(self) -> bool:
        return bool(self._left)

    def of(self, count: int) -> int:
        """A number below `count`."""
        return self._left.popleft() % count if self._left else 0

    def among(self, *options: Any) -> Any:
        return options[self.of(len(options))]


ROOMS = re.compile(r"env 'room': close (raised|took longer)")
"""What may be logged as an error: what the bundle's own env does."""


class Errors(logging.Handler):
    """Keeps what is logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


@dataclass(eq=False)
class Theatre:
    """What all interleavings share, and what they came to."""

    bundle: Path
    runs: Path
    temporary: Path
    errors: Errors
    played: int = 0
    orders: set[int] = field(default_factory=set[int])
    """A hash for each order of events, to count those that differ."""
    seen: Counter[str] = field(default_factory=Counter[str])
    """How often things happened."""

    @cached_property
    def checked(self) -> GroupSettings:
        """What the dataset builder makes of its own defaults."""
        own = {"bundle": str(self.bundle), "runs": str(self.runs), "run_name": "room"}
        builder = AgentEnvDatasetBuilder(model_name_for_tokenizer=NAME, renderer_name=NAME, **own)
        return builder.checked("all")[0]

    def settings(self, *, max_concurrent_episodes: int | None, **rollout: Any) -> GroupSettings:
        """The settings of groups that are played like this."""
        changed = replace(self.checked.rollout, **rollout)
        return replace(self.checked, rollout=changed, max_concurrent_episodes=max_concurrent_episodes)

    def holdings(self) -> dict[str, Any]:
        """What the process holds, which no interleaving may add to."""
        children = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]  # of each thread
        # The run index's own come once, when its log is long, and stay until it is closed.
        threads = [thread.name for thread in threading.enumerate() if thread.name != "agent-env-runs-checkpoints"]
        return {
            "threads": sorted(threads),
            "files": sum("index.sqlite3" not in path for path in open_files()),
            "temporary": os.listdir(self.temporary),
            "processes": "".join(sorted(children)),
        }


def open_files() -> list[str]:
    """What the process has open; a file that is closed meanwhile is not."""
    paths: list[str] = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            paths.append(str(link.readlink()))
    return paths


@dataclass(kw_only=True)
class Play:
    """One play of a group."""

    builder: EpisodeGroupBuilder
    strategy: Any
    group: str
    task: asyncio.Task[TrajectoryGroup] | None = None
    cancelled: int = 0

    @property
    def is_over(self) -> bool:
        return self.task is not None and self.task.done()


STRATEGIES = (
    FailFast(),
    FailFast(),
    RetryOnFailure(max_retries=2),
    RetryOnFailure(max_retries=1, per_rollout_timeout=30),
    RetryOnFailure(max_retries=0, per_rollout_timeout=30),
    MinViableGroup(min_successful=1, max_retries=1),
    MinViableGroup(max_retries=3, per_rollout_timeout=30),
)
CONFIGS = (
    None,
    None,
    None,
    RolloutConfig(limits=RolloutLimits(max_turns=1)),
    RolloutConfig(limits=RolloutLimits(max_turns=2, rollout_timeout_seconds=50)),
    RolloutConfig(limits=RolloutLimits(max_sampled_tokens=16)),
    RolloutConfig(limits=RolloutLimits(max_trajectory_tokens=55)),
    RolloutConfig(limits=RolloutLimits(max_turn_tokens=5, max_sampled_tokens=30)),
    RolloutConfig(limits=RolloutLimits(max_tool_calls=2)),
    RolloutConfig(limits=RolloutLimits(max_tool_calls=1, max_turns=3)),
    RolloutConfig(limits=RolloutLimits(rollout_timeout_seconds=20)),
    RolloutConfig(limits=RolloutLimits(rollout_timeout_seconds=20, max_tool_calls=1)),
    RolloutConfig(limits=RolloutLimits(sampling_turn_timeout_seconds=20)),
    RolloutConfig(parse_errors=ParseErrorPolicy(max_consecutive=1, penalty_per_error=0.25, terminal_reward=-0.5)),
    RolloutConfig(parse_errors=ParseErrorPolicy(max_consecutive=0, mask_error_turns=True)),
    RolloutConfig(termination=TerminationRewardPolicy(grader_timeout_seconds=25)),
    RolloutConfig(limits=RolloutLimits(max_turns=2), termination=TerminationRewardPolicy(grader_timeout_seconds=25)),
)
STOPS = {
    "completed": {None},
    "tool_stopped": {None},
    "max_tokens": {
        CutReason.TOKEN_LIMIT,
        CutReason.PROMPT_OVER_BUDGET,
        CutReason.RUNNER_LIMIT,
        CutReason.MESSAGE_LIMIT,  # the last allowed one was broken off
    },
    "context_overflow": {CutReason.CONTEXT_OVERFLOW},
    "parse_error": {CutReason.PARSE_FAILURE},
    "max_turns": {CutReason.MESSAGE_LIMIT, CutReason.RUNNER_LIMIT},
    "max_sampled_tokens": {CutReason.RUNNER_LIMIT},
    "max_tool_calls": {CutReason.RUNNER_LIMIT},
    "rollout_timeout": {CutReason.TIMEOUT, *CutReason, None},  # also while a cut, or the end, is scored
}
"""What may have cut the episode of a trajectory, by the cookbook's word for why it stopped."""


EXPECTED = [
    *(f"cancelled while {what}" for what in ("slot", "start", "sample", "call", "score", "close")),
    *(f"run {state}" for state in ("completed", "failed", "abandoned")),
    *(f"cut {reason}" for reason in CutReason),
    *(f"stop {stop}" for stop in STOPS),
    *(f"play raised {error}" for error in ("EpisodeFailedError", "AllTrajectoriesFailedError", "TimeoutError")),
    *(f"rollout raised {error}" for error in ("EpisodeFailedError", "TimeoutError", "PolicyLostError")),
    "earned before the end",
    "play cancelled",
    "renderer raised",
    "scored too slowly",
    "stopped before its first turn",
]
"""What must have happened in 10,000 interleavings, or the drawing of them is not what it was."""


class Interleaving:
    """One order of events, as the drawn bytes have it."""

    def __init__(self, theatre: Theatre, stage: Stage, drawn: bytes, tasks: Sequence[Mapping[str, Any]]) -> None:
        self.theatre = theatre
        self.tasks = tasks
        self.is_timed = IN_THREADS not in tasks  # what a thread does takes none of the stage's time
        self.stage = stage
        self.choices = Choices(drawn)
        self.log: list[str] = []
        self.policy = StagedPolicy(stage)
        self.limit = self.choices.among(2, 1, 3, None)
        self.name = f"interleaving-{theatre.played}"
        self.outlived = 0
        """Episodes that were still under way when their groups were over."""
        self.plays: list[Play] = []
        for at in range(1 + self.choices.of(3)):
            self.plays.append(self._play(at))

    def _play(self, at: int) -> Play:
        choices = self.choices
        if at and choices.of(8) == 1:  # an evaluation plays the same builders again
            before = self.plays[-1]
            return Play(builder=before.builder, strategy=before.strategy, group=before.group)
        task = choices.among(*self.tasks)["id"]
        settings = self.theatre.settings(
            max_messages=choices.among(None, None, 1, 2, 3),
            max_trajectory_tokens=60 if task == "long" else choices.among(None, None, 50),
            failed_reward=choices.among(0.0, -1.0),
            config=choices.among(*CONFIGS),
            max_concurrent_episodes=self.limit,
        )
        group = f"{self.name}/{choices.among('train', 'eval')}/step-{at:04d}"
        builder = EpisodeGroupBuilder(settings, task, 1 + choices.of(4), group)
        strategy = choices.among(*STRATEGIES)
        self._note(f"{group}: {builder.size} of {task}, {strategy}, {settings.rollout}")
        return Play(builder=builder, strategy=strategy, group=group)

    def _note(self, line: str) -> None:
        self.log.append(line)

    @property
    def slots(self) -> Slots:
        """The slots that the groups share."""
        return slots_for(f"{self.theatre.runs.resolve()}/room", self.limit)

    async def play(self) -> None:
        """Let it happen, to the end of every group."""
        self._start()
        for _ in range(5_000):
            if all(play.is_over for play in self.plays):
                break
            await self._act()
            await self._turn()
        else:
            self._hangs("it goes on and on")
        await self._clear()

    async def _act(self) -> None:
        at = self.choices.of(256)
        waiting, running = self.stage.waiting(), [play for play in self.plays if play.task and not play.is_over]
        unstarted = [play for play in self.plays if play.task is None]
        if at >= 248 and running:
            self._cancel(running[self.choices.of(len(running))])
        elif at >= 222 and self.is_timed and self.stage.timers:
            await self._wait(self.choices.among(5, 16, 31, None))
        elif at >= 190 and unstarted:
            self._start()
        elif waiting:
            self._release(waiting[self.choices.of(len(waiting))])
        elif unstarted:
            self._start()
        elif not await self._goes_on():
            self._hangs("nothing goes on, and nothing waits for the test")

    async def _goes_on(self) -> bool:
        """Let happen what happens by itself. False when that is nothing, and nothing waits for the test."""
        return await self._until(lambda: bool(self.stage.waiting()) or all(play.is_over for play in self.plays))

    async def _until(self, holds: Callable[[], bool]) -> bool:
        """Settle; where threads are at work, give them time, which the loop's clock does not show."""
        for _ in range(2_000):
            await self.stage.settle()
            if holds() or not any(thread.name.startswith("AnyIO") for thread in threading.enumerate()):
                break
            time.sleep(0.002)  # noqa: ASYNC251 - nothing else is to happen meanwhile
        return holds()

    async def _turn(self) -> None:
        passes = self.choices.of(32)
        if 0 < passes < 20:
            for _ in range(passes - 1):
                await asyncio.sleep(0)
            self._check_slots()
        else:
            await self.stage.settle()
            self._check_slots(settled=True)

    def _start(self) -> None:
        play = next(play for play in self.plays if play.task is None)
        self._note(f"start {play.group}")
        config = play.builder.settings.rollout.config
        termination = None if config is None else config.termination
        coro = do_group_rollout(play.builder, self.policy, play.strategy, termination)
        play.task = self.stage.create_task(coro, name=f"play {play.group}")
        play.task.add_done_callback(self._on_over)

    def _on_over(self, _: object) -> None:
        """A group is over: when that was the last one, and none was stopped in its cleanup, no episode is under way."""
        if all(play.is_over and not play.cancelled for play in self.plays):
            self.outlived = self.stage.under_way()

    def _release(self, gate: Gate, outcome: int | None = None) -> None:
        possible = outcomes(self.stage, gate.kind)
        what = possible[self.choices.of(len(possible)) if outcome is None else outcome]
        self._note(f"{gate.kind} in task {gate.who}: {what!r}")
        if isinstance(what, BaseException):
            gate.future.set_exception(what)
        else:
            gate.future.set_result(what)

    def _cancel(self, play: Play) -> None:
        assert play.task is not None
        waiting = sorted({gate.kind for gate in self.stage.waiting()})
        self._note(f"cancel {play.group} while {waiting}")
        self.theatre.seen.update(f"cancelled while {kind}" for kind in [*waiting, *["slot"] * self._is_full()])
        play.task.cancel()
        play.cancelled += 1

    def _is_full(self) -> bool:
        return self.slots.taken == self.limit

    async def _wait(self, seconds: float | None) -> None:
        self._note("the next timer" if seconds is None else f"{seconds} s later")
        await self.stage.advance(seconds)

    def _hangs(self, why: str) -> None:
        raise AssertionError("\n".join([why, *map(repr, self._left())]))

    async def _clear(self) -> None:
        """Let what the cookbook leaves behind come to its end, and see that nothing of ours is."""
        await self.stage.settle()
        while self.stage.waiting():
            # A strategy that is cancelled leaves its rollouts alone: their policy's answer finds the episode closed.
            self._release(self.stage.waiting()[0], 0)
            await self.stage.settle()
        await self._until(lambda: not self._left())
        self._check_slots(settled=True)
        assert self.slots.taken == 0
        assert self.stage.open_envs == 0
        assert self.outlived == 0
        assert self._left() == []
        self._check_nothing_unheard()

    def _left(self) -> list[asyncio.Task[Any]]:
        return [task for task in self.stage.tasks[1:] if not task.done()]

    def _check_nothing_unheard(self) -> None:
        """No task of ours ended with an exception that nobody has asked for."""
        for task in self.stage.tasks:
            code = getattr(task.get_coro(), "__qualname__", "")
            if task.done() and not task.cancelled():
                is_unheard = task._log_traceback  # type: ignore[attr-defined] - what asyncio logs it by
                error = task.exception()
                if is_unheard and code not in COOKBOOKS:
                    raise AssertionError(f"nobody was told: {task!r}") from error
        assert self.stage.complaints == []

    def told(self) -> str:
        """What happened, and how to have it again."""
        return "\n".join([*self.log, f"once more: INTERLEAVING={self.choices.drawn.rstrip(bytes(1)).hex()}"])

    def _check_slots(self, *, settled: bool = False) -> None:
        taken, under_way = self.slots.taken, self.stage.under_way()
        assert under_way <= taken
        assert self.limit is None or taken <= self.limit
        assert self.stage.open_envs <= taken
        if settled:
            assert taken == under_way

    def check(self) -> None:
        """See that each run ended once, and that the trainer was told what the run index says."""
        index = _process.run_index(self.theatre.runs)
        index.flush()
        runs = {name: list(index.all_runs(name)) for name in {play.group for play in self.plays}}
        assert {group.name for group in index.groups(f"{self.name}/")} == {name for name in runs if runs[name]}
        for filed in runs.values():
            for run in filed:
                self._check_run(run)
        for name, filed in runs.items():
            plays = [play for play in self.plays if play.group == name]
            told = sum(self._check_play(play, filed) for play in plays)
            assert told <= sum(run.reward is not None for run in filed)

    def _check_run(self, run: RunSummary) -> None:
        self.theatre.seen[f"run {run.state}"] += 1
        assert run.state in (RunState.COMPLETED, RunState.FAILED, RunState.ABANDONED)
        assert run.ended_at_s is not None
        assert (run.failure is not None) == (run.state is RunState.FAILED)
        if run.state is not RunState.COMPLETED:
            assert run.reward is None

    def _check_play(self, play: Play, runs: list[RunSummary]) -> int:
        """Return how many trajectories the trainer got."""
        assert play.task is not None
        if play.task.cancelled():
            self.theatre.seen["play cancelled"] += 1
            assert play.cancelled
            return 0
        error = play.task.exception()
        if error is not None:
            self.theatre.seen[f"play raised {type(error).__name__}"] += 1
            self._check_error(error, runs)
            return 0
        group = play.task.result()
        self._check_group(play, group, runs)
        return len(group.trajectories_G)

    def _check_error(self, error: BaseException, runs: list[RunSummary]) -> None:
        expected = (
            EpisodeFailedError,
            PolicyLostError,
            AllTrajectoriesFailedError,
            TimeoutError,
            SamplingTurnTimeoutError,
        )
        if not isinstance(error, expected):
            raise AssertionError("a group raised what is no answer to it") from error
        if isinstance(error, EpisodeFailedError):
            self._check_named(str(error), runs)

    def _check_named(self, message: str, runs: list[RunSummary]) -> None:
        """An episode's failure names its task, its step and its run."""
        for reason in ("stopped before its first turn", "given up before it could be scored"):
            if reason in message:
                self.theatre.seen[reason] += 1
                return
        (run_id,) = re.findall(r"\brun ([0-9a-f]{16})", message)
        (run,) = [run for run in runs if run.run_id == run_id]
        assert f"'{run.task_id}'" in message
        if "took longer than score_within_s" in message:
            self.theatre.seen["scored too slowly"] += 1
            assert run.reward is None
        elif UNWRITABLE in message:
            self.theatre.seen["renderer raised"] += 1
            assert "at step 'prompt" in message
            assert run.failure is not None
            assert UNWRITABLE in run.failure.message
        else:
            assert run.state is RunState.FAILED
            assert run.failure is not None
            assert f"'{run.failure.step}'" in message

    def _check_group(self, play: Play, group: TrajectoryGroup, runs: list[RunSummary]) -> None:
        seen = self.theatre.seen
        if not isinstance(play.strategy, MinViableGroup):
            assert len(group.trajectories_G) == play.builder.size
        for error in group.rollout_errors:
            seen[f"rollout raised {error.error_type}"] += 1
            if error.error_type == "EpisodeFailedError":
                self._check_named(error.error_message, runs)
        each = (group.trajectories_G, group.get_total_rewards(), group.final_rewards_G, group.metrics_G)
        for trajectory, total, last, metrics in zip(*each, strict=True):
            (run,) = [run for run in runs if run.reward == total]
            assert run.state is RunState.COMPLETED
            told = [*((step.reward, step.metrics) for step in trajectory.transitions), (last, metrics)]
            ((reward, ending),) = [each for each in told if "cut" in each[1]]
            cuts = [reason for reason in CutReason if ending[f"cut/{reason}"]]
            assert ending["cut"] == len(cuts) <= 1
            assert cuts == ([] if run.cut is None else [run.cut])
            cut = CutReason(run.cut) if run.cut else None
            assert cut in STOPS[str(trajectory.stop_reason)]
            assert ending["score/right"] == run.scores["right"]
            self._check_bounds(play, ending)
            self._check_sum(play, cut, reward - run.scores["right"], total - reward)
            seen.update([f"stop {trajectory.stop_reason}", f"cut {cut}"])

    def _check_bounds(self, play: Play, ending: Mapping[str, float]) -> None:
        rollout = play.builder.settings.rollout
        max_tool_calls = None if rollout.config is None else rollout.config.limits.max_tool_calls
        assert rollout.max_messages is None or ending["messages"] <= rollout.max_messages
        assert max_tool_calls is None or ending["tool_calls"] - ending["tool_errors"] <= max_tool_calls

    def _check_sum(self, play: Play, cut: CutReason | None, penalty: float, earned: float) -> None:
        """The reward is the score, what a cut costs, and what steps before it have earned."""
        rollout = play.builder.settings.rollout
        policy = None if rollout.config is None else rollout.config.parse_errors
        if cut is None:
            assert penalty == 0
        elif policy is not None and cut is CutReason.PARSE_FAILURE:
            assert penalty == policy.terminal_reward
        else:
            assert penalty == rollout.failed_reward
        per_error = 0.0 if policy is None else policy.penalty_per_error
        assert earned == 0 if not per_error else earned <= 0 and (earned / per_error).is_integer()
        self.theatre.seen["earned before the end"] += earned != 0


COOKBOOKS = {"do_single_rollout", "run_rollout", "wait_for", "do_group_rollout"}
"""Tasks of the cookbook's and of this test: a strategy that is cancelled forgets its rollouts."""


@pytest.fixture
def theatre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Theatre]:
    """The bundle, the stand-in renderer, an empty run index, a folder for temporary files."""
    root, temporary = tmp_path / "room", tmp_path / "temporary"
    short = {"prompt": "Wait.", "verify": {"python": "verifiers/right.py", "id": "right"}, "params": {"gates": []}}
    tasks = [
        {"params": {"gates": []}, **task} if "steps" in task else {**short, **task} for task in (*TASKS, IN_THREADS)
    ]
    files = {
        "bundle.yaml": BUNDLE,
        "envs/room.py": ENV,
        "verifiers/right.py": VERIFIER,
        "verifiers/counting.py": COUNTING,
        "universes/shelf/book.txt": "a book",
        "universes/room.json": json.dumps({"total": 0}),
        "tasks/all.jsonl": "".join(json.dumps(task) + "\n" for task in tasks),
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    register_renderer(NAME, lambda tokenizer, image_processor=None: StandInRenderer(tokenizer))
    register_tokenizer(NAME, lambda: TOKENIZER)
    cookbook, own, errors = logging.getLogger("tinker_cookbook"), logging.getLogger("agent_env"), Errors()
    level = cookbook.level
    cookbook.setLevel(logging.CRITICAL)
    own.addHandler(errors)
    record = logging.getLogRecordFactory()
    # pytest keeps every record, which with its traceback would be all that an interleaving has made.
    logging.setLogRecordFactory(lambda *args, **kwargs: record(*args[:6], None, *args[7:], **kwargs))
    yield Theatre(bundle=root, runs=tmp_path / "runs", temporary=temporary, errors=errors)
    own.removeHandler(errors)
    logging.setLogRecordFactory(record)
    cookbook.setLevel(level)
    unregister_renderer(NAME)
    _process.close_run_indexes()


def interleave(theatre: Theatre, drawn: bytes, tasks: Sequence[Mapping[str, Any]], before: Mapping[str, Any]) -> None:
    """Play one interleaving, check what it came to, and that the process holds what it held `before`."""
    play(theatre, drawn, tasks)
    wait_for(lambda: theatre.holdings() == before)  # a thread that was told to end does so
    assert theatre.holdings() == before


def wait_for(holds: Callable[[], bool]) -> None:
    """Give threads some time."""
    for _ in range(1_000):
        if holds():
            return
        time.sleep(0.002)


def play(theatre: Theatre, drawn: bytes, tasks: Sequence[Mapping[str, Any]]) -> None:
    """Play one interleaving, in a loop of its own."""
    theatre.played += 1
    theatre.errors.said.clear()
    stage = Stage()
    order = Interleaving(theatre, stage, drawn, tasks)
    try:
        try:
            stage.run_until_complete(order.play())
        finally:
            stage.close()
        order.check()
        assert [said for said in theatre.errors.said if not ROOMS.match(said)] == []
    except BaseException as exc:
        exc.add_note(order.told())
        raise
    theatre.orders.add(hash(tuple(line.replace(order.name, "") for line in order.log)))


def explore(theatre: Theatre, tasks: Sequence[Mapping[str, Any]], *, batches: int, size: int) -> None:
    """Play interleavings that Hypothesis draws, each batch from a seed of its own."""
    options = settings(
        max_examples=size,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    play(theatre, b"", tasks)  # loads what is loaded once, and starts the run index's thread
    wait_for(lambda: not any(thread.name.startswith("AnyIO") for thread in threading.enumerate()))
    before = theatre.holdings()
    if again := os.environ.get("INTERLEAVING"):
        interleave(theatre, bytes.fromhex(again), tasks, before)
        return
    for batch in range(batches):

        @seed(SEED + batch)
        @options
        @given(st.binary(min_size=60, max_size=240))
        def one(drawn: bytes) -> None:
            interleave(theatre, drawn, tasks, before)

        one()
    assert theatre.played > batches * size


def report(theatre: Theatre, capsys: pytest.CaptureFixture[str]) -> None:
    """Print how many interleavings there were, their seed, and what happened in them."""
    lines = [f"{theatre.played} interleavings, {len(theatre.orders)} different, INTERLEAVINGS_SEED={SEED}"]
    lines += [f"{count:9} {name}" for name, count in sorted(theatre.seen.items())]
    with capsys.disabled():
        print("", *lines, sep="\n")  # noqa: T201 - the seed is to be read


@pytest.mark.timeout(900)
def test_any_interleaving_ends_every_run_once_and_leaves_nothing(
    theatre: Theatre, capsys: pytest.CaptureFixture[str]
) -> None:
    """10,000 orders of ends, cuts, failures, cancellations, timeouts and retries, of one to three groups in few slots."""
    try:
        explore(theatre, TASKS, batches=BATCHES, size=BATCH)
    finally:
        report(theatre, capsys)
    if BATCHES >= 10:
        assert sorted(name for name in EXPECTED if not theatre.seen[name]) == []
        assert len(theatre.orders) > 0.9 * theatre.played


@pytest.mark.timeout(300)
def test_an_interleaving_with_threads_and_files_leaves_none(
    theatre: Theatre, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same where state is copied to a folder of its own and a plain function scores, both of which threads do."""
    try:
        explore(theatre, [IN_THREADS], batches=1, size=BATCH // 5)
    finally:
        report(theatre, capsys)
