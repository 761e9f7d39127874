"""What the embedded engine costs: sampling, rollouts through the real SDK, training, memory.

    python bench/engine.py [--hidden 128] [--layers 2] [--training lora|full] [--threads 1] [--repeat 3]

Needs the trainer tier (tinker, torch). The best of the repeats is shown, with the worst beside it.
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
from typing import Any

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
            rows = _measure(engine.base_url, engine.model_name, args.repeat)
            rows.append(("peak memory of the engine", f"{_peak_memory_mb(engine.pid):.0f} MB", ""))
    size = (model / "model.safetensors").stat().st_size if model.exists() else 0
    print(f"hidden {args.hidden}, layers {args.layers}, {args.training}, {args.threads} thread(s) {size or ''}")
    for name, best, worst in rows:
        print(f"  {name:<48}{best:>16}{worst:>24}")


def _texts() -> list[str]:
    draw = random.Random(0)
    words = ["charge", "hold", "discharge", "price", "block", "battery", "schedule", "day", "submit", "forecast"]
    return [" ".join(draw.choice(words) + str(draw.randrange(100)) for _ in range(60)) for _ in range(300)]


def _measure(base_url: str, model_name: str, repeat: int) -> list[tuple[str, str, str]]:
    import tinker
    from tinker import types

    client = tinker.ServiceClient(base_url=base_url)
    training = client.create_lora_training_client(model_name, rank=32, seed=0).result()
    draw = random.Random(1)
    rows: list[tuple[str, str, str]] = []

    def timed(name: str, unit: str, amount: float, action: Callable[[], Any]) -> None:
        action()
        took: list[float] = []
        for _ in range(repeat):
            began = time.perf_counter()
            action()
            took.append(time.perf_counter() - began)
        if amount:
            rows.append((name, f"{amount / min(took):.0f} {unit}", f"(worst {amount / max(took):.0f})"))
        else:
            rows.append((name, f"{min(took):.2f} {unit}", f"(worst {max(took):.2f})"))

    def tokens(count: int) -> list[int]:
        return [draw.randrange(40, 300) for _ in range(count)]

    def sampler() -> tinker.SamplingClient:
        return training.save_weights_and_get_sampling_client().result()

    def decode() -> None:
        prompt = types.ModelInput.from_ints(tokens(PROMPT_TOKENS))
        params = types.SamplingParams(max_tokens=64, stop=[])
        sampler().sample(prompt, 128, params).result()

    async def rollout(policy: tinker.SamplingClient, prompt: list[int]) -> list[int]:
        params = types.SamplingParams(max_tokens=MESSAGE_TOKENS, stop=[])
        for _ in range(MESSAGES):
            answer = await policy.sample(types.ModelInput.from_ints(prompt), 1, params)
            prompt = prompt + list(answer.sequences[0].tokens) + tokens(OBSERVATION_TOKENS)
        return prompt

    async def rollouts() -> None:
        policy = await training.save_weights_and_get_sampling_client()
        async with asyncio.TaskGroup() as group:
            for _ in range(GROUPS):
                prompt = tokens(PROMPT_TOKENS)
                for _ in range(GROUP_SIZE):
                    group.create_task(rollout(policy, prompt))

    length = PROMPT_TOKENS + MESSAGES * (MESSAGE_TOKENS + OBSERVATION_TOKENS)
    episodes = [tokens(length + 1) for _ in range(GROUPS * GROUP_SIZE)]
    data = [
        types.Datum(
            model_input=types.ModelInput.from_ints(episode[:-1]),
            loss_fn_inputs={
                "target_tokens": episode[1:],
                "logprobs": [-5.0] * length,
                "advantages": [0.0] * (length - 27) + [0.5] * 27,
            },
        )
        for episode in episodes
    ]

    def train() -> None:
        step = training.forward_backward(data, "importance_sampling")
        training.optim_step(types.AdamParams(learning_rate=1e-5))
        step.result()

    timed("sampling, 128 sequences, one request", "tokens/s", 128 * 64, decode)
    timed("128 rollouts, 3 messages, through the SDK", "s", 0, lambda: asyncio.run(rollouts()))
    timed("forward_backward + optim_step, 128 episodes", "s", 0, train)
    timed("forward_backward + optim_step", "tokens/s", len(data) * length, train)
    return rows


def _peak_memory_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return float("nan")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1e3


if __name__ == "__main__":
    main()
