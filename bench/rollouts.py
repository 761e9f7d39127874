"""What a rollout costs under tinker-cookbook: the builder's beside the cookbook's own tool env, in one run.

    make bench-rollouts                                 (or: python bench/rollouts.py, in a venv with the trainer)

Both sides play the same tasks through the cookbook's `do_group_rollout`: the same two Python tools with answers of about
350 tokens, which no two rollouts have in common, the same system prompt and prompts, the same scripted tokens from the policy,
the same reward. Ours is
`AgentEnvDatasetBuilder` with all it does in training: episodes, a verifier in a thread, every run recorded in a run index.
The cookbook's is `build_agent_tool_env` (`AgentToolMessageEnv` in `EnvFromMessageEnv`), which records nothing. The vocabulary
is Qwen3's own, the renderer `qwen3_disable_thinking`.

How it is measured:

- *CPU* is the process's, all threads of it, with the process bound to one core. Each figure is the median of the repeats,
  with the lowest and highest in brackets; the two sides take turns. Imports and caches are warm. The cookbook's rollouts are
  played one after the other: several at once may raise `Already borrowed`.
- *The same answers*: ours once more, with rollouts whose calls are answered alike in a group, as where a group looks up the same
  things. Such an answer is rendered once.
- *Train tokens* are those of all datums of `rl.data_processing.trajectory_to_data`. *The conversation* is the whole of it
  rendered once, by the renderer's `build_supervised_example`.
- *CPU of one call* is what passes between two samplings of a rollout that is alone in its process; the garbage collector is
  off meanwhile.
- *Loop lag*: a task sleeps 2 ms again and again, and notes how much later it wakes. *p99 of the sleeps* is over these. One
  sleep that is late by 1 s is one of them, and yet everybody waited for 1 s; so *p99 of the time* counts a stall as long as
  it lasts, 500 times in that case: it is what waits at most whatever becomes due at a random moment, in 99 of 100 cases.
- *Memory* is the growth of the resident set to its highest point, over the rollouts; the trajectories are in it.
- *With latency*, the policy answers 50 to 500 ms after it is asked, at random, and all rollouts are started in the same
  moment. *Without*, it answers at once: the loop has no idle moment, and all rollouts are always due.
- *Ways to render*: 300 tasks on one loop, each with five answers to render at random moments, by the same renderer; the
  tokens that are rendered a second, what a render costs, and the loop's lag.

Each part runs in a process of its own. A busy machine shows: the lags are those of all that runs on its cores.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import ctypes
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

os.environ |= {"TINKER_TELEMETRY": "0", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

RENDERER = "qwen3_disable_thinking"
AT_ONCE = 500
GROUP_SIZE = 10
ANSWER_LINES = 9
PROBE_S = 0.002
PARTS = ("cost", "latency", "harsh", "theirs", "inline", "ways")
LATENCY_S = (0.05, 0.5)

LIBRARY = """
import random

_DRAW = random.Random(7)
_THINGS = ("lamp", "chair", "kettle", "blanket", "notebook", "bicycle pump", "garden hose", "desk")
_TOWNS = ("Utrecht", "Porto", "Tampere", "Graz", "Leeds", "Bergen", "Ghent", "Turin")
LINES = [
    f"Order {_DRAW.randrange(10**6)}: {_DRAW.randrange(1, 20)} of {_DRAW.choice(_THINGS)} at"
    f" {_DRAW.randrange(5, 90)}.{_DRAW.randrange(100):02d} EUR, sent to {_DRAW.choice(_TOWNS)} on"
    f" 2026-{_DRAW.randrange(1, 13):02d}-{_DRAW.randrange(1, 29):02d}."
    for _ in range(4096)
]

def page_text(book: int, page: int, lines: int) -> str:
    first = (book * 613 + page * lines) % (len(LINES) - lines)
    return "\\n".join(LINES[first : first + lines])
"""
ENV = '''
import itertools
from agent_env import Env, ToolAnswer, tool
from .library import page_text

COPIES = itertools.count(1)

class Orders(Env):
    def __init__(self):
        self.copy = next(COPIES)

    @tool
    def read_page(self, page: int) -> str:
        """Read one page of the order book.

        Args:
            page: Which page, from 0.
        """
        self.state["read"].append(page)
        copy = self.copy if self.params["own"] else 0
        return f"Copy {copy}\\n{page_text(self.params['book'], page, self.params['lines'])}"

    @tool
    def submit(self, pages: int) -> ToolAnswer:
        """Say how many pages you have read; this ends the work.

        Args:
            pages: How many.
        """
        self.state["submitted"] = pages
        return ToolAnswer("accepted", ends_turn=True)
'''
VERIFIER = """
def score(episode):
    state = episode.state()
    return float(state["submitted"] == len(state["read"]))
"""
SYSTEM_PROMPT = "You keep the books of a shop. Read what you are asked to, page by page, then submit. Say what you do."
BUNDLE = f"""
name: orders
version: 1.0.0
description: Read pages, say how many.
license: Apache-2.0
envs:
  orders: {{python: "envs/orders.py:Orders", universe: universes/start.json}}
agents:
  clerk: {{kind: played, system_prompt: "{SYSTEM_PROMPT}", envs: [orders]}}
"""


def write_bundle(root: Path, books: int, *, own: bool) -> Path:
    """A bundle in which each rollout has answers of its `own`, or those of a task have the same."""
    tasks = [
        {
            "id": f"book-{book}",
            "params": {"book": book, "lines": ANSWER_LINES, "own": own},
            "prompt": "Read the pages of order book {{ params.book }}, one after the other, then submit.",
            "verify": {"python": "verifiers/read.py", "id": "read"},
        }
        for book in range(books)
    ]
    files = {
        "bundle.yaml": BUNDLE,
        "envs/library.py": LIBRARY,
        "envs/orders.py": ENV,
        "verifiers/read.py": VERIFIER,
        "universes/start.json": json.dumps({"read": [], "submitted": None}),
        "tasks/all.jsonl": "".join(json.dumps(task) + "\n" for task in tasks),
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


# What runs in a part's own process. The trainer is imported here, after the process was bound to a core.


@dataclass
class Player:
    """One side: makes groups of rollouts, each of which can be played once."""

    name: str
    groups: Callable[[int, int], Awaitable[Sequence[Any]]]
    """So many group builders, each of so many rollouts."""


@dataclass
class Scripted:
    """A policy that says its messages, in every rollout; it knows a rollout by its task."""

    messages: Sequence[tuple[array[int], array[float]]]
    latency: tuple[float, float] | None = None
    marks: list[float] = field(default_factory=list[float])
    """The process's CPU seconds at each sampling of a rollout that is alone."""
    finished: int = 0
    _said: dict[asyncio.Task[Any], int] = field(default_factory=dict[asyncio.Task[Any], int])
    _draw: random.Random = field(default_factory=lambda: random.Random(11))

    async def __call__(self, model_input: Any, stop: Any, *, max_tokens: int | None = None) -> Any:
        """Sample, as a `TokenCompleter`."""
        from tinker_cookbook.completers import TokensWithLogprobs

        self.marks.append(time.process_time())
        task = asyncio.current_task()
        assert task is not None
        at = self._said.get(task, 0)
        self._said[task] = at + 1
        if at + 1 == len(self.messages):
            del self._said[task]
            self.finished += 1
        await asyncio.sleep(0 if self.latency is None else self._draw.uniform(*self.latency))
        tokens, logprobs = self.messages[at]
        return TokensWithLogprobs(tokens=tokens.tolist(), maybe_logprobs=logprobs.tolist(), stop_reason="stop")


class Bench:
    """Both sides on one vocabulary."""

    def __init__(self, folder: Path, vocabulary: str) -> None:
        from tinker_cookbook.renderers import get_renderer
        from tinker_cookbook.tokenizer_utils import get_tokenizer

        self.folder = folder
        self.vocabulary = vocabulary
        self.tokenizer = get_tokenizer(vocabulary)
        self.renderer = get_renderer(RENDERER, self.tokenizer, model_name=vocabulary)
        self.bundle = write_bundle(folder / "orders", AT_ONCE, own=True)
        self.bundle_of_same = write_bundle(folder / "same", AT_ONCE, own=False)
        self._batch = 0
        self._orders: Any = None

    def policy(self, calls: int, latency: tuple[float, float] | None = None) -> Scripted:
        """One that reads so many pages."""
        return Scripted([self._written(at, calls) for at in range(calls + 1)], latency)

    def _written(self, at: int, calls: int) -> tuple[array[int], array[float]]:
        from tinker_cookbook.renderers import TrainOnWhat

        start: list[Any] = [{"role": "user", "content": "?"}]
        prompt = self.renderer.build_generation_prompt(start).to_ints()
        said: Any = self._message(at, calls)
        example, _ = self.renderer.build_supervised_example([*start, said], TrainOnWhat.LAST_ASSISTANT_MESSAGE)
        tokens = example.to_ints()[len(prompt) :]
        draw = random.Random(at)
        return array("l", tokens), array("d", [-draw.random() for _ in tokens])

    def _message(self, at: int, calls: int) -> dict[str, Any]:
        from tinker_cookbook.renderers import ToolCall

        last = at == calls
        name, arguments = ("submit", {"pages": calls}) if last else ("read_page", {"page": at})
        text = "I have read all pages and submit." if last else f"I read page {at} and note its orders."
        body = ToolCall.FunctionBody(name=name, arguments=json.dumps(arguments))
        return {"role": "assistant", "content": text, "tool_calls": [ToolCall(function=body)]}

    def ours(self, calls: int, *, own: bool = True) -> Player:
        """The builder's, recorded in a run index; a rollout has answers of its `own`, or those of its group."""
        from agent_env.training.tinker import AgentEnvDatasetBuilder

        async def groups(count: int, size: int) -> Sequence[Any]:
            self._batch += 1
            builder = AgentEnvDatasetBuilder(
                bundle=str(self.bundle if own else self.bundle_of_same),
                model_name_for_tokenizer=self.vocabulary,
                renderer_name=RENDERER,
                runs=str(self.folder / "runs"),
                run_name=f"bench-{self._batch}",
                groups_per_batch=count,
                group_size=size,
                max_messages=calls + 2,
                max_concurrent_episodes=None,
            )
            dataset, _ = await builder()
            return dataset.get_batch(0)

        return Player("ours", groups)

    def theirs(self, calls: int, *, inline: bool = False) -> Player:
        """The cookbook's own; `inline` renders on the loop and not in its threads."""
        from tinker_cookbook.rl.message_env import EnvFromMessageEnv
        from tinker_cookbook.rl.types import EnvGroupBuilder
        from tinker_cookbook.tool_use import build_agent_tool_env
        from tinker_cookbook.tool_use.types import ToolResult

        from agent_env import load_bundle
        from agent_env.envs.python_tools import toolbox_of

        bundle = load_bundle(self.bundle)
        orders: Any = bundle.envs["orders"].python.load()
        specs = {name: tool.spec for name, tool in toolbox_of(orders).tools.items()}
        shown: list[Any] = [
            {"name": spec.name, "description": spec.description, "parameters": json.loads(json.dumps(spec.parameters))}
            for spec in specs.values()
        ]
        renderer = self.renderer

        @dataclass
        class CookbookTool:
            name: str
            description: str
            parameters_schema: dict[str, Any]
            env: Any

            async def run(self, input: Any) -> Any:
                answer = getattr(self.env, self.name)(**input.arguments)
                ends = not isinstance(answer, str)
                text = answer.text if ends else answer
                message: Any = {
                    "role": "tool",
                    "content": text,
                    "tool_call_id": input.call_id or "",
                    "name": self.name,
                }
                return ToolResult(messages=[message], should_stop=ends)

            def to_spec(self) -> Any:
                return {
                    "name": self.name,
                    "description": self.description,
                    "parameters": self.parameters_schema,
                }

        @dataclass
        class Group(EnvGroupBuilder):
            book: int
            size: int

            async def make_envs(self) -> Sequence[Any]:
                return [self._env() for _ in range(self.size)]

            def _env(self) -> Any:
                env = orders()
                env.state = {"read": [], "submitted": None}
                env.params = {"book": self.book, "lines": ANSWER_LINES, "own": True}
                tools: list[Any] = [
                    CookbookTool(spec["name"], spec["description"], spec["parameters"], env) for spec in shown
                ]
                prompt = f"Read the pages of order book {self.book}, one after the other, then submit."
                prefix = renderer.create_conversation_prefix_with_tools(shown, SYSTEM_PROMPT)

                async def reward(history: Any) -> tuple[float, dict[str, float]]:
                    return float(env.state["submitted"] == len(env.state["read"])), {}

                return build_agent_tool_env(
                    renderer, tools, [*prefix, {"role": "user", "content": prompt}], reward, max_turns=calls + 2
                )

        async def groups(count: int, size: int) -> Sequence[Any]:
            return [Group(book, size) for book in range(count)]

        if inline:

            async def render(self: Any, messages: Any, **more: Any) -> Any:
                return self.renderer.build_generation_prompt(messages, **more)

            EnvFromMessageEnv._render_in_thread = render  # nothing else is measured in this process
        return Player("the cookbook", groups)

    def history(self, book: int, calls: int) -> list[Any]:
        """The whole conversation of a rollout, as the cookbook's env has it at its end."""
        from agent_env import load_bundle
        from agent_env.envs.python_tools import toolbox_of

        if self._orders is None:
            self._orders = load_bundle(self.bundle).envs["orders"].python.load()
        env = self._orders()
        env.state, env.params = {"read": []}, {"book": book, "lines": ANSWER_LINES, "own": True}
        shown: list[Any] = [
            {"name": tool.spec.name, "description": tool.spec.description, "parameters": dict(tool.spec.parameters)}
            for tool in toolbox_of(self._orders).tools.values()
        ]
        messages: list[Any] = [
            *self.renderer.create_conversation_prefix_with_tools(shown, SYSTEM_PROMPT),
            {"role": "user", "content": f"Read the pages of order book {book}, one after the other, then submit."},
        ]
        for at in range(calls):
            answer = {"role": "tool", "content": env.read_page(at), "name": "read_page", "tool_call_id": ""}
            messages += [self._message(at, calls), answer]
        return [*messages, self._message(calls, calls)]

    def whole(self, calls: int) -> int:
        """The tokens of the whole conversation, rendered once."""
        from tinker_cookbook.renderers import TrainOnWhat

        messages = self.history(0, calls)
        example, _ = self.renderer.build_supervised_example(messages, TrainOnWhat.LAST_ASSISTANT_MESSAGE)
        return len(example.to_ints())

    def answer_tokens(self) -> float:
        """The mean of some answers."""
        answers = [message["content"] for message in self.history(1, 64) if message["role"] == "tool"]
        return statistics.mean(len(self.tokenizer.encode(answer, add_special_tokens=False)) for answer in answers)

    async def play(self, player: Player, policy: Scripted, count: int, size: int) -> list[Any]:
        """All groups at once; their trajectory groups, checked."""
        from tinker_cookbook.rl.rollouts import do_group_rollout

        groups = await player.groups(count, size)
        async with asyncio.TaskGroup() as tasks:
            playing = [tasks.create_task(do_group_rollout(group, policy)) for group in groups]
        played = [task.result() for task in playing]
        for group in played:
            assert group.get_total_rewards() == [1.0] * size, group.get_total_rewards()
        return played

    def close(self) -> None:
        """Let go of the run index."""
        from agent_env.training import _process

        _process.close_run_indexes()

    def filed(self) -> int:
        """How many completed runs with a reward of 1 are in the run index."""
        from agent_env.runs import RunIndex

        with RunIndex.open(self.folder / "runs", read_only=True) as index:
            return sum(
                run.reward == 1.0 and run.state == "completed"
                for group in index.groups()
                for run in index.all_runs(group.name)
            )


def train_tokens(group: Any) -> tuple[int, int]:
    """Datums and tokens that a trainer trains on for the group's first rollout."""
    from tinker_cookbook.rl.data_processing import trajectory_to_data

    data = trajectory_to_data(group.trajectories_G[0], 1.0)
    return len(data), sum(datum.model_input.length + 1 for datum in data)


async def cost(bench: Bench, repeats: int) -> dict[str, Any]:
    """CPU and tokens of single rollouts, the sides in turn."""
    told: dict[str, Any] = {"answer_tokens": bench.answer_tokens()}
    for calls, ours, theirs in ((48, (2, 4), (1, 1)), (8, (8, 4), (4, 4))):
        for player in (bench.ours(calls), bench.theirs(calls)):
            await bench.play(player, bench.policy(8), 1, 1)
        times: dict[str, list[float]] = {"ours": [], "the cookbook": []}
        for _ in range(repeats):
            for player, (count, size) in ((bench.ours(calls), ours), (bench.theirs(calls), theirs)):
                policy = bench.policy(calls)
                gc.collect()
                began = time.process_time()
                if player.name == "ours":
                    played = await bench.play(player, policy, count, size)
                else:  # at once they may raise: one after the other
                    played = [(await bench.play(player, policy, 1, 1))[0] for _ in range(count * size)]
                times[player.name].append((time.process_time() - began) / (count * size))
                told[f"datums {calls} {player.name}"], told[f"tokens {calls} {player.name}"] = train_tokens(played[0])
        told[f"cpu {calls}"] = times
        told[f"cpu same {calls}"] = await cost_of_same(bench, calls, *ours, repeats)
        told[f"whole {calls}"] = bench.whole(calls)
    told["steps"] = {}
    for player, rounds in ((bench.ours(64), 4 * repeats), (bench.theirs(64), 1)):
        each: list[list[float]] = []
        for _ in range(rounds):
            policy = bench.policy(64)
            gc.collect()
            gc.disable()
            await bench.play(player, policy, 1, 1)
            gc.enable()
            each.append([later - mark for mark, later in zip(policy.marks, policy.marks[1:], strict=False)])
        told["steps"][player.name] = [statistics.median(step) for step in zip(*each, strict=True)]
    return told


async def cost_of_same(bench: Bench, calls: int, count: int, size: int, repeats: int) -> list[float]:
    """CPU of one of our rollouts, where those of a group have the same answers; each repeat has its own."""
    player = bench.ours(calls, own=False)
    times: list[float] = []
    for _ in range(repeats):
        policy = bench.policy(calls)
        framing_forgets(bench)
        gc.collect()
        began = time.process_time()
        await bench.play(player, policy, count, size)
        times.append((time.process_time() - began) / (count * size))
    return times


def framing_forgets(bench: Bench) -> None:
    """Have nothing remembered of the repeats before."""
    from agent_env.training._framing import framing_of

    framing = framing_of(RENDERER, bench.vocabulary)
    framing._after_stand_in.clear()


async def at_once(
    bench: Bench, player: Player, latency: tuple[float, float] | None, repeats: int, calls: int = 8
) -> list[dict[str, Any]]:
    """Many rollouts in the same moment, some times over."""
    await bench.play(player, bench.policy(calls), 1, GROUP_SIZE if player.name == "ours" else 1)
    return [await once(bench, player, latency, calls) for _ in range(repeats)]


async def once(bench: Bench, player: Player, latency: tuple[float, float] | None, calls: int) -> dict[str, Any]:
    policy = bench.policy(calls, latency)
    count = AT_ONCE // GROUP_SIZE
    groups = await player.groups(count, GROUP_SIZE)
    ready = Player(player.name, _returning(groups))
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    probe = Probe()
    probing = asyncio.create_task(probe.run())
    await asyncio.sleep(0.05)
    before, probe.peak_bytes = rss_bytes(), 0
    probe.lags.clear()
    began, cpu = time.perf_counter(), time.process_time()
    lost = ""
    try:
        played = await bench.play(ready, policy, count, GROUP_SIZE)
        finished = sum(len(group.trajectories_G) for group in played)
    except* Exception as errors:  # noqa: BLE001 - what the cookbook raises is what is to be shown
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        lost, finished = f"{type(first).__name__}: {first}", 0
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    probing.cancel()
    with suppress(asyncio.CancelledError):
        await probing
    lags = probe.weighted()
    sleeps = sorted(lag for _, lag in probe.lags)
    return {
        "finished": finished,
        "said_all": policy.finished,
        "error": lost,
        "took_s": took,
        "cpu_s": cpu,
        "p50_s": lags[len(lags) // 2],
        "sleeps_p99_s": sleeps[int(len(sleeps) * 0.99)],
        "p99_s": lags[int(len(lags) * 0.99)],
        "max_s": lags[-1],
        "start_s": probe.early(0.5),
        "bytes_each": (probe.peak_bytes - before) / AT_ONCE,
    }


def _returning(groups: Sequence[Any]) -> Callable[[int, int], Awaitable[Sequence[Any]]]:
    async def made(count: int, size: int) -> Sequence[Any]:
        return groups

    return made


@dataclass
class Probe:
    """Wakes every 2 ms, if the loop lets it, and looks at the memory in use."""

    lags: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    peak_bytes: int = 0

    async def run(self) -> None:
        """Probe until cancelled."""
        looked = 0.0
        while True:
            began = time.perf_counter()
            await asyncio.sleep(PROBE_S)
            now = time.perf_counter()
            self.lags.append((now, now - began - PROBE_S))
            if now - looked > 0.01:
                looked = now
                self.peak_bytes = max(self.peak_bytes, rss_bytes())

    def weighted(self) -> list[float]:
        """What a sleeper would have waited that was due at any moment, sorted."""
        waits: list[float] = []
        for _, lag in self.lags:
            waits.append(max(lag, 0.0))
            left = lag - PROBE_S
            while left > 0:
                waits.append(left)
                left -= PROBE_S
        return sorted(waits)

    def early(self, seconds: float) -> float:
        """The longest lag in the beginning, when everything starts."""
        start = self.lags[0][0] - self.lags[0][1]
        return max(lag for at, lag in self.lags if at - lag - start < seconds)


def rss_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def ways(bench: Bench, rollouts: int = 300, answers: int = 5) -> dict[str, Any]:
    """Rendering and reading on the loop, in threads with a lock, with a tokenizer for each thread, and as the cookbook does."""
    from tinker_cookbook.renderers import get_renderer

    from agent_env.training._pace import paced
    from agent_env.training._tokenizer import shared_tokenizer

    shared = get_renderer(RENDERER, shared_tokenizer(bench.tokenizer), model_name=bench.vocabulary)
    lock, own = threading.Lock(), threading.local()
    said = bench.policy(1).messages[0][0].tolist()
    histories = [bench.history(book, 1)[-4:-1] for book in range(AT_ONCE)]
    """A prompt, a message and its answer each."""

    def work(renderer: Any, at: int) -> None:
        renderer.parse_response(said)
        renderer.build_generation_prompt(histories[at])

    def locked(at: int) -> None:
        with lock:
            work(bench.renderer, at)

    def own_one(at: int) -> None:
        if not hasattr(own, "renderer"):
            own.renderer = get_renderer(RENDERER, copy.deepcopy(bench.tokenizer), model_name=bench.vocabulary)
        work(own.renderer, at)

    async def on_loop(at: int) -> None:
        work(bench.renderer, at)

    async def on_loop_paced(at: int) -> None:
        await paced()
        work(shared, at)

    in_thread = asyncio.to_thread
    designs: dict[str, Callable[[int], Awaitable[None]]] = {
        "in threads, as the cookbook does": lambda at: in_thread(work, bench.renderer, at),
        "in threads, one lock": lambda at: in_thread(locked, at),
        "in threads, a tokenizer each": lambda at: in_thread(own_one, at),
        "in threads, one that is shared": lambda at: in_thread(work, shared, at),
        "on the loop": on_loop,
        "on the loop, one a pass, one that is shared (ours)": on_loop_paced,
    }
    return {name: await way(design, rollouts, answers) for name, design in designs.items()}


async def way(design: Callable[[int], Awaitable[None]], rollouts: int, answers: int) -> dict[str, Any]:
    draw = random.Random(3)

    async def rollout(at: int) -> None:
        for answer in range(answers):
            await asyncio.sleep(draw.uniform(0.0, 0.2))
            await design((at * answers + answer) % AT_ONCE)

    async def played(count: int) -> str:
        error = ""
        try:
            async with asyncio.TaskGroup() as tasks:
                for at in range(count):
                    tasks.create_task(rollout(at))
        except* RuntimeError as errors:
            error = str(errors.exceptions[0])
        return error

    await played(8)
    probe = Probe()
    probing = asyncio.create_task(probe.run())
    began, cpu = time.perf_counter(), time.process_time()
    error = await played(rollouts)
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    probing.cancel()
    with suppress(asyncio.CancelledError):
        await probing
    lags = probe.weighted()
    renders = rollouts * answers
    return {
        "error": error,
        "rate": renders / took,
        "cpu_s": cpu / renders,
        "p99_s": lags[int(len(lags) * 0.99)],
        "max_s": lags[-1],
    }


def run_part(name: str, repeats: int, vocabulary: str) -> Any:
    if name == "cost":
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch), vocabulary)
        match name:
            case "cost":
                told: Any = asyncio.run(cost(bench, repeats))
            case "ways":
                told = asyncio.run(ways(bench))
            case "latency" | "harsh":
                few = min(repeats, 3)
                told = asyncio.run(at_once(bench, bench.ours(8), LATENCY_S if name == "latency" else None, few))
                bench.close()
                told[0]["filed"] = bench.filed() - GROUP_SIZE - (few - 1) * AT_ONCE
            case _:
                told = asyncio.run(at_once(bench, bench.theirs(8, inline=name == "inline"), LATENCY_S, 1))
        bench.close()
    return told


# The table.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--vocabulary", help="a tokenizer's folder; Qwen3's own by default")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args()
    vocabulary = args.vocabulary or qwen3()
    if args.part:
        print(json.dumps(run_part(args.part, args.repeats, vocabulary)))
        return
    began, before = time.perf_counter(), cpu_ticks()
    told = {part: asked(part, args.repeats, vocabulary) for part in PARTS}
    show(told, args.repeats)
    busy, stolen, every = (now - then for now, then in zip(cpu_ticks(), before, strict=True))
    print(
        f"took {time.perf_counter() - began:.0f} s on {os.cpu_count()} cores, {busy / every:.0%} busy with this and all else;"
        f" the host took {stolen / every:.0%} for other machines"
    )


def cpu_ticks() -> tuple[int, int, int]:
    """How long the cores were busy, were taken by the host, and were there at all."""
    with open("/proc/stat") as file:
        user, nice, system, idle, wait, irq, soft, stolen = map(int, file.readline().split()[1:9])
    busy = user + nice + system + irq + soft
    return busy, stolen, busy + idle + wait + stolen


def qwen3() -> str:
    sys.path.insert(0, str(Path(__file__).parent.parent / "tst" / "tinker"))
    from vocabularies import qwen3_vocabulary

    return str(qwen3_vocabulary())


def asked(part: str, repeats: int, vocabulary: str) -> Any:
    command = [sys.executable, __file__, "--part", part, "--repeats", str(repeats), "--vocabulary", vocabulary]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def show(told: dict[str, Any], repeats: int) -> None:
    cost: dict[str, Any] = told["cost"]
    title = f"a rollout, answers of {cost['answer_tokens']:.0f} tokens, medians of {repeats} (lowest to highest)"
    table = Table(title=title, title_justify="left")
    for name in ("", "ours", "the cookbook's", "ratio", "to reach"):
        table.add_column(name, justify="left" if name == "" else "right")
    for calls in (48, 8):
        whole, ours, theirs = (cost[f"{what} {calls}{who}"] for what, who in TOKENS)
        table.add_row(f"{calls} calls: tokens of the conversation", f"{whole:,}", f"{whole:,}", "", "")
        table.add_row("  train tokens", f"{ours:,}", f"{theirs:,}", times(theirs / ours), "")
        reach = "at most 1.1" if calls == 48 else ""
        table.add_row("  train tokens over the conversation's", times(ours / whole), times(theirs / whole), "", reach)
        table.add_row("  datums", *(str(cost[f"datums {calls} {who}"]) for who in SIDES), "", "")
        times_of = [cost[f"cpu {calls}"][who] for who in SIDES]
        ratio = statistics.median(times_of[1]) / statistics.median(times_of[0])
        reach = "at least 15" if calls == 48 else ""
        table.add_row("  CPU per rollout", *(ms_of(each) for each in times_of), times(ratio), reach)
        table.add_row("  with the same answers in a group", ms_of(cost[f"cpu same {calls}"]), "", "", "")
        rates = [[1 / each for each in side] for side in times_of]
        reach = "at least 3" if calls == 8 else ""
        table.add_row("  rollouts a second of one core", *(range_of(each) for each in rates), times(ratio), reach)
    steps = [cost["steps"][who] for who in SIDES]
    for at in (2, 64):
        table.add_row(f"CPU of call {at}", *(f"{each[at - 1] * 1e3:.2f} ms" for each in steps), "", "")
    grown = [each[63] / each[1] for each in steps]
    table.add_row("  call 64 over call 2", *(times(each) for each in grown), "", "at most 1.3")
    for part, name in (("latency", "50 to 500 ms of latency"), ("harsh", "no latency")):
        table.add_section()
        add_at_once(table, name, told[part], told["inline"][0] if part == "latency" else None)
    table.add_section()
    theirs = told["theirs"][0]
    said = f"{theirs['error'] or 'none lost'} after {theirs['took_s']:.1f} s"
    table.add_row(f"{AT_ONCE} at once with latency, the cookbook's as it is", "", said, "", "")
    Console(width=150).print(table)
    design = Table(title="ways to render and read, 300 rollouts at once", title_justify="left")
    for name in ("", "renders a second", "CPU of one", "lag p99 of the time", "longest", "error"):
        design.add_column(name, justify="left" if name in ("", "error") else "right")
    for name, way in told["ways"].items():
        figures = (f"{way['cpu_s'] * 1e3:.2f} ms", f"{way['p99_s'] * 1e3:.1f} ms", f"{way['max_s'] * 1e3:.1f} ms")
        design.add_row(name, *(("",) * 4 if way["error"] else (f"{way['rate']:.0f}", *figures)), way["error"])
    Console(width=150).print(design)


SIDES = ("ours", "the cookbook")
TOKENS = (("whole", ""), ("tokens", " ours"), ("tokens", " the cookbook"))


def add_at_once(table: Table, name: str, ours: list[dict[str, Any]], theirs: dict[str, Any] | None) -> None:
    """Rows of many rollouts in the same moment; the cookbook's are those that render on the loop."""

    def row(what: str, say: Callable[[list[float]], str], key: str, reach: str = "") -> None:
        beside = "" if theirs is None else say([theirs[key]])
        table.add_row(what, say([each[key] for each in ours]), beside, "", reach)

    lost = AT_ONCE * len(ours) - sum(each["finished"] for each in ours)
    unfiled = AT_ONCE - ours[0]["filed"]
    beside = "" if theirs is None else f"{AT_ONCE - theirs['finished']} (rendering on the loop)"
    table.add_row(f"{AT_ONCE} at once, {name}: lost", f"{lost}, not filed {unfiled}", beside, "", "none")
    row("  loop lag, p50 of the time", ms_of, "p50_s")
    row("  loop lag, p99 of the sleeps", ms_of, "sleeps_p99_s", "under 20 ms")
    row("  loop lag, p99 of the time", ms_of, "p99_s", "under 20 ms")
    row("  longest lag", ms_of, "max_s")
    row("  longest lag in the first half second", ms_of, "start_s")
    first = [f"{each['bytes_each'] / 1000:.0f} kB" for each in (ours[0], *((theirs,) if theirs else ()))]
    table.add_row("  memory each", *(first if theirs else (*first, "")), "", "at most 300 kB")
    row("  seconds for all", lambda each: range_of(each, 1), "took_s")


def times(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def ms_of(seconds: Sequence[float]) -> str:
    return f"{range_of([each * 1e3 for each in seconds], 1)} ms"


def range_of(values: Sequence[float], digits: int = 1) -> str:
    middle = f"{statistics.median(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.{digits}f} to {max(values):.{digits}f})"


if __name__ == "__main__":
    main()
