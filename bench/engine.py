"""What the embedded engine costs: sampling, rollouts through the real SDK, training, memory.

    python bench/engine.py [--hidden 128] [--layers 2] [--training lora|full] [--threads 1] [--repeat 3]

Needs the trainer tier (tinker, torch). The best of the repeats is shown, with the worst in brackets.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import tinker
from tinker import types

from agent_env.engine import EngineOptions, ModelShape, Training, build_model, start_engine

GROUPS, GROUP_SIZE, MESSAGES, MESSAGE_TOKENS, PROMPT_TOKENS, OBSERVATION_TOKENS = 8, 16, 3, 9, 200, 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--training", choices=["lora", "full"], default="lora")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    shape = ModelShape(hidden=args.hidden, layers=args.layers, intermediate=3 * args.hidden, vocabulary=654)
    options = EngineOptions(training=Training(args.training), threads=args.threads)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model = build_model(folder / "model", _texts(), shape=shape)
        with start_engine(model, state_dir=folder / "state", options=options) as engine:
            os.environ |= {"TINKER_API_KEY": engine.api_key, "TINKER_TELEMETRY": "0"}
            rows = Bench(engine.base_url, engine.model_name).rows(args.repeat)
            rows.append(("peak memory of the engine", f"{_peak_memory_mb(engine.pid):.0f} MB", ""))
    print(f"hidden {args.hidden}, layers {args.layers}, {args.training}, {args.threads} thread(s)")
    for name, took, rate in rows:
        print(f"  {name:<44}{took:>18}{rate:>20}")


def _texts() -> list[str]:
    draw = random.Random(0)
    words = ["charge", "hold", "discharge", "price", "block", "battery", "schedule", "day", "submit", "forecast"]
    return [" ".join(draw.choice(words) + str(draw.randrange(100)) for _ in range(60)) for _ in range(300)]


class Bench:
    """One client of one engine, and what it does."""

    def __init__(self, base_url: str, model_name: str) -> None:
        client = tinker.ServiceClient(base_url=base_url)
        self.training = client.create_lora_training_client(model_name, rank=32, seed=0).result()
        self.draw = random.Random(1)
        self.length = PROMPT_TOKENS + MESSAGES * (MESSAGE_TOKENS + OBSERVATION_TOKENS)
        prompts = [self.tokens(PROMPT_TOKENS) for _ in range(GROUPS)]
        self.grouped = [self.datum(prompts[at // GROUP_SIZE]) for at in range(GROUPS * GROUP_SIZE)]
        self.ungrouped = [self.datum(self.tokens(PROMPT_TOKENS)) for _ in range(GROUPS * GROUP_SIZE)]

    def tokens(self, count: int) -> list[int]:
        """Token ids."""
        return [self.draw.randrange(40, 300) for _ in range(count)]

    def datum(self, prompt: list[int]) -> types.Datum:
        """One episode that begins with a prompt."""
        episode = prompt + self.tokens(self.length + 1 - len(prompt))
        sampled = MESSAGES * MESSAGE_TOKENS
        inputs = {
            "target_tokens": episode[1:],
            "logprobs": [-5.0] * self.length,
            "advantages": [0.0] * (self.length - sampled) + [0.5] * sampled,
        }
        return types.Datum(model_input=types.ModelInput.from_ints(episode[:-1]), loss_fn_inputs=inputs)

    def decode(self) -> None:
        """One request of 128 samples."""
        sampler = self.training.save_weights_and_get_sampling_client().result()
        prompt = types.ModelInput.from_ints(self.tokens(PROMPT_TOKENS))
        sampler.sample(prompt, 128, types.SamplingParams(max_tokens=64, stop=[])).result()

    def rollouts(self) -> None:
        """A wave of rollouts: each message's prompt extends the last one."""

        async def rollout(policy: tinker.SamplingClient, prompt: list[int]) -> None:
            params = types.SamplingParams(max_tokens=MESSAGE_TOKENS, stop=[])
            for _ in range(MESSAGES):
                answer = await policy.sample(types.ModelInput.from_ints(prompt), 1, params)
                prompt = prompt + list(answer.sequences[0].tokens) + self.tokens(OBSERVATION_TOKENS)

        async def wave() -> None:
            policy = await self.training.save_weights_and_get_sampling_client()
            async with asyncio.TaskGroup() as group:
                for _ in range(GROUPS):
                    prompt = self.tokens(PROMPT_TOKENS)
                    for _ in range(GROUP_SIZE):
                        group.create_task(rollout(policy, prompt))

        asyncio.run(wave())

    def train(self, data: list[types.Datum]) -> None:
        """One forward_backward and one step."""
        step = self.training.forward_backward(data, "importance_sampling")
        self.training.optim_step(types.AdamParams(learning_rate=1e-5)).result()
        step.result()

    def rows(self, repeat: int) -> list[tuple[str, str, str]]:
        """Every measure."""
        tokens = self.length * len(self.grouped)
        return [
            _timed("sampling, 128 sequences, one request", self.decode, repeat, 128 * 64),
            _timed("128 rollouts of 3 messages through the SDK", self.rollouts, repeat, 3 * 128 * MESSAGE_TOKENS),
            _timed("a training step, 8 groups of 16", lambda: self.train(self.grouped), repeat, tokens),
            _timed("a training step, nothing in common", lambda: self.train(self.ungrouped), repeat, tokens),
        ]


def _timed(name: str, action: Callable[[], None], repeat: int, tokens: int) -> tuple[str, str, str]:
    action()
    took: list[float] = []
    for _ in range(repeat):
        began = time.perf_counter()
        action()
        took.append(time.perf_counter() - began)
    return name, f"{min(took):.2f} s ({max(took):.2f})", f"{tokens / min(took):,.0f} tokens/s"


def _peak_memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return float("nan")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1e3


if __name__ == "__main__":
    main()
