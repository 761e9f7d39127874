"""A small bundle, a tokenizer made here, and policies that say what a script says: real rollouts without a model."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("TINKER_TELEMETRY", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

pytest.importorskip("tinker_cookbook", reason="the trainer tier: make tinker-test")

from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.renderers import ToolCall
from tinker_cookbook.rl.rollout_strategy import RolloutStrategy
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.rl.types import TrajectoryGroup

from agent_env.runs import RunIndex, RunSummary
from agent_env.training import _process
from agent_env.training._framing import Framing, framing_of
from agent_env.training._slots import Slots, slots_for
from agent_env.training.tinker import AgentEnvDatasetBuilder, EpisodeGroupBuilder

ENV = '''
import asyncio
from agent_env import Env, EnvBrokenError, ToolAnswer, ToolError, tool

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAADgAAAA4CAIAAAAn5KxJAAAAQElEQVR42u3OQQkAAAgAsetfWh+mEAYLsKZeSFRUVFRUVFRUVFRUVFRUVFRU"
    "VFRUVFRUVFRUVFRUVFRUVFRU9CwicjR1t9nCvQAAAABJRU5ErkJggg=="
)

class Counter(Env):
    def start(self):
        if self.params.get("breaks_at_start"):
            raise RuntimeError("no counter here")

    @tool
    def add(self, number: int) -> str:
        """Add a number.

        Args:
            number: What to add.
        """
        if number == 13:
            raise ToolError("13 is not added here")
        self.state["total"] += number
        self.state["added"].append(number)
        return f"total {self.state['total']}"

    @tool
    async def wait(self, seconds: float) -> str:
        """Wait.

        Args:
            seconds: How long.
        """
        await asyncio.sleep(seconds)
        return "waited"

    @tool
    def crash(self) -> str:
        """Break the counter."""
        raise EnvBrokenError("the counter is broken")

    @tool
    def picture(self) -> ToolAnswer:
        """Show a picture."""
        image = {"type": "image", "data": PNG, "mimeType": "image/png"}
        return ToolAnswer("a red square", content=[image])

    @tool
    def submit(self, total: int) -> ToolAnswer:
        """Say the total; this ends the turn.

        Args:
            total: The total.
        """
        self.state["submitted"] = total
        return ToolAnswer("accepted", ends_turn=True)
'''

VERIFIER = """
import asyncio

async def score(episode):
    state, params = episode.state(), episode.params
    await asyncio.sleep(params.get("slow", 0))
    if params.get("verifier") == "raises":
        raise RuntimeError("no score today")
    if params.get("verifier") == "nan":
        return float("nan")
    if state["submitted"] is not None:
        return 1.0 if state["submitted"] == state["total"] else 0.5
    return 0.25 if state["added"] else 0.0
"""

BUNDLE = """
name: counter
version: 1.0.0
description: Add numbers, say the total.
license: Apache-2.0
envs:
  counter: {python: "envs/counter.py:Counter", universe: universes/zero.json}
agents:
  adder: {kind: played, system_prompt: "Add what you are told.", envs: [counter]}
reward: right
players: {good: "players/good.py:play"}
"""

PLAYER = """
import json

def play(turn):
    said = sum(message["role"] == "assistant" for message in turn.messages)
    name, arguments = [("add", {"number": 3}), ("add", {"number": 4}), ("submit", {"total": 7})][said]
    text = "I add." if said == 1 else ""
    return {"role": "assistant", "content": text, "tool_calls": [{"name": name, "arguments": json.dumps(arguments)}]}
"""

TASKS: list[dict[str, Any]] = [
    *({"id": f"plain-{at}", "tags": ["plain"], "params": {"numbers": [3, 4 + at]}} for at in range(6)),
    {"id": "long", "params": {"numbers": ["many words, " * 200]}},
    {"id": "nan", "params": {"numbers": [1], "verifier": "nan"}},
    {"id": "raises", "params": {"numbers": [1], "verifier": "raises"}},
    {"id": "slow", "params": {"numbers": [1], "slow": 0.05}},
    {"id": "very-slow", "params": {"numbers": [1], "slow": 30}},
    {"id": "no-start", "params": {"numbers": [1], "breaks_at_start": True}},
    {"id": "two-turns", "params": {"numbers": [3, 4]}, "prompt": ["First: {{ params.numbers[0] }}.", "Now the total."]},
    {
        "id": "skilled",
        "params": {"numbers": [1]},
        "steps": [
            {"deploy_env": "counter"},
            {"deploy_agent": "adder"},
            {"add_skills": ["sums"]},
            {"prompt": "Add 1."},
            {"verify": {"python": "verifiers/right.py"}, "id": "right"},
        ],
    },
    {
        "id": "skilled-later",
        "params": {"numbers": [1]},
        "steps": [
            {"deploy_env": "counter"},
            {"deploy_agent": "adder"},
            {"prompt": "Add 1."},
            {"add_skills": ["sums"]},
            {"prompt": "Go on."},
            {"verify": {"python": "verifiers/right.py"}, "id": "right"},
        ],
    },
    {
        "id": "goes-on",
        "params": {"numbers": [1]},
        "steps": [
            {"deploy_env": "counter"},
            {"deploy_agent": "adder"},
            {"prompt": {"text": "Crash it."}, "fail_task_on_error": False},
            {"verify": {"python": "verifiers/right.py"}, "id": "right"},
        ],
    },
]


@pytest.fixture(scope="session")
def tokenizer_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE with Qwen's special tokens, as transformers loads it."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tokenizer")
    words = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(
        [ENV, VERIFIER, BUNDLE, "system user assistant function arguments parameters"], trainer
    )
    special = [
        AddedToken(text, special=True, normalized=False) for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    ]
    plain = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>", "</tool_response>")
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in plain])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="session")
def counter_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of tasks to add numbers, some of which break in one way or another."""
    root = tmp_path_factory.mktemp("bundles") / "counter"
    short = {"prompt": "Add {{ params.numbers }}.", "verify": {"python": "verifiers/right.py", "id": "right"}}
    tasks = [task if "steps" in task else {**short, **task} for task in TASKS]
    playable = [task["id"] for task in TASKS if task["id"].startswith("plain")]
    files = {
        "bundle.yaml": BUNDLE,
        "envs/counter.py": ENV,
        "verifiers/right.py": VERIFIER,
        "players/good.py": PLAYER,
        "skills/sums/SKILL.md": "---\nname: sums\ndescription: How sums are done.\n---\nAdd.\n",
        "universes/zero.json": json.dumps({"total": 0, "added": [], "submitted": None}),
        "tasks/all.jsonl": "".join(json.dumps(task) + "\n" for task in tasks),
        "evals/train.yaml": f"tasks: {json.dumps(playable[:5])}\n",
        "evals/test.yaml": f"tasks: {json.dumps(playable[5:])}\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


@dataclass(frozen=True, kw_only=True)
class Say:
    """What a policy samples once."""

    message: dict[str, Any] | None = None
    tokens: list[int] | None = None
    stop_reason: str = "stop"
    after_s: float = 0.0
    error: Exception | None = None


def call(name: str, *, text: str = "", **arguments: Any) -> dict[str, Any]:
    """A message with one call."""
    return calls((name, json.dumps(arguments)), text=text)


def calls(*named: tuple[str, str], text: str = "") -> dict[str, Any]:
    """A message with calls: tool and JSON text."""
    made = [ToolCall(function=ToolCall.FunctionBody(name=name, arguments=raw)) for name, raw in named]
    return {"role": "assistant", "content": text, "tool_calls": made}


def reply(text: str) -> dict[str, Any]:
    """A message without a call."""
    return {"role": "assistant", "content": text}


class Scripted(TokenCompleter):
    """Samples the script's next message, by how many the conversation has; the same script for every rollout."""

    def __init__(self, framing: Framing, script: Sequence[Any] | Callable[[int, str], Any]) -> None:
        self.framing = framing
        self.script = script
        self.prompts: list[list[int]] = []
        self.calls = 0

    async def __call__(self, model_input: Any, stop: Any, *, max_tokens: int | None = None) -> TokensWithLogprobs:
        tokens = [token for chunk in model_input.chunks for token in getattr(chunk, "tokens", ())]
        self.prompts.append(tokens)
        self.calls += 1
        text = str(self.framing.renderer.tokenizer.decode(tokens))
        at = text.count("assistant\n") + text.count("Assistant:") - 1
        said = self.script(at, text) if callable(self.script) else self.script[min(at, len(self.script) - 1)]
        say = said if isinstance(said, Say) else Say(message=said)
        await asyncio.sleep(say.after_s)
        if say.error is not None:
            raise say.error
        sampled = say.tokens if say.tokens is not None else self.framing.written(say.message)  # type: ignore[arg-type]
        return TokensWithLogprobs(tokens=sampled, maybe_logprobs=[-0.5] * len(sampled), stop_reason=say.stop_reason)


SUBMITS = (call("add", number=3), call("add", number=4), call("submit", total=7))


@dataclass
class Rig:
    """One runs folder, and how to play the counter's tasks into it."""

    bundle: Path
    runs: Path
    tokenizer: Path
    renderer_name: str = "qwen3_disable_thinking"
    settings: dict[str, Any] = field(default_factory=dict[str, Any])

    call = staticmethod(call)
    calls = staticmethod(calls)
    reply = staticmethod(reply)
    Say = Say
    submits = SUBMITS

    @property
    def framing(self) -> Framing:
        """The renderer's framing, shared by the process."""
        return framing_of(self.renderer_name, str(self.tokenizer))

    def builder(self, **changes: Any) -> AgentEnvDatasetBuilder:
        """A dataset builder on the counter bundle."""
        settings: dict[str, Any] = {
            "bundle": str(self.bundle),
            "model_name_for_tokenizer": str(self.tokenizer),
            "renderer_name": self.renderer_name,
            "train_split": "train",
            "runs": str(self.runs),
        }
        return AgentEnvDatasetBuilder(**{**settings, **self.settings, **changes})

    def policy(self, script: Sequence[Any] | Callable[[int, str], Any]) -> Scripted:
        """A policy that says what the script says."""
        return Scripted(self.framing, script)

    def group(
        self, task_id: str = "plain-0", *, size: int = 1, group: str = "test/group", **changes: Any
    ) -> EpisodeGroupBuilder:
        """The group builder of one task."""
        settings, _ = self.builder(**{"train_split": "all", **changes}).checked("all")
        return EpisodeGroupBuilder(settings, task_id, size, group)

    async def play(
        self,
        script: Sequence[Any] | Callable[[int, str], Any] = SUBMITS,
        task_id: str = "plain-0",
        *,
        size: int = 1,
        strategy: RolloutStrategy | None = None,
        **changes: Any,
    ) -> TrajectoryGroup:
        """Play one group with the cookbook's own rollouts."""
        return await do_group_rollout(self.group(task_id, size=size, **changes), self.policy(script), strategy=strategy)

    def slots(self, limit: int | None) -> Slots:
        """The slots that the counter's groups share."""
        return slots_for(f"{self.runs.resolve()}/counter", limit)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds; a few turns of the loop, seconds at most."""
        async with asyncio.timeout(5):
            while not holds():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.005)

    @property
    def index(self) -> RunIndex:
        """The run index, with all that was recorded so far in it."""
        index = _process.run_index(self.runs)
        index.flush()
        return index

    def filed(self, group: str = "test/group") -> list[RunSummary]:
        """The runs of a group."""
        return list(self.index.all_runs(group))


@pytest.fixture
def rig(counter_bundle: Path, tokenizer_dir: Path, tmp_path: Path) -> Iterator[Rig]:
    """Plays the counter's tasks; what it opened is closed after the test."""
    yield Rig(bundle=counter_bundle, runs=tmp_path / "runs", tokenizer=tokenizer_dir)
    _process.close_run_indexes()
