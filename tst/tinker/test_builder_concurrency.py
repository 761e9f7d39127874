"""Hundreds of rollouts at once on one real vocabulary: none lost, no error of the tokenizer, no stalled loop."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.tokenizer_utils import get_tokenizer

from agent_env.runs import RunState
from agent_env.training._tokenizer import shared_tokenizer

sys.path.insert(0, str(Path(__file__).parent))

from vocabularies import qwen3_5_vocabulary, qwen3_vocabulary

TEXTS = (
    "",
    " ",
    "\n\n",
    "<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "<|im_end|>",
    "an <|im_end|> and a </tool_response> in a text",
    "Größe 12,5 m² \u00e9 e\u0301 日本語 🙂",
    '{"a": [1, 2.50, null]}',
    "a\tb\r\n  c" * 30,
    "Order 100482: 4 lamps at 12.40 EUR, sent to Utrecht. " * 20,
)


@pytest.fixture
def real_rig(rig: Any) -> Any:
    """The counter's tasks on Qwen3's own vocabulary."""
    rig.tokenizer = qwen3_vocabulary()
    return rig


async def play_at_once(rig: Any, script: Any, *, groups: int, size: int) -> list[Any]:
    """Groups of the plain tasks, all started in the same moment."""
    policy = rig.policy(script)
    builders = [rig.group(f"plain-{at % 6}", size=size, max_concurrent_episodes=None) for at in range(groups)]
    async with asyncio.TaskGroup() as tasks:
        playing = [tasks.create_task(do_group_rollout(builder, policy)) for builder in builders]
    return [task.result() for task in playing]


async def test_three_hundred_rollouts_at_once_are_all_scored(real_rig: Any) -> None:
    """They render and read on one tokenizer, answered at random moments; each is scored, and filed once."""
    draw = random.Random(5)

    def script(at: int, text: str) -> Any:
        return real_rig.Say(message=real_rig.submits[at], after_s=draw.choice([0.0, draw.uniform(0.0, 0.1)]))

    played = await play_at_once(real_rig, script, groups=30, size=10)
    assert [group.get_total_rewards() for group in played] == [[1.0] * 10] * 30
    runs = real_rig.filed()
    assert Counter((run.state, run.reward) for run in runs) == {(RunState.COMPLETED, 1.0): 300}


async def test_another_thread_may_use_the_same_tokenizer(real_rig: Any) -> None:
    """A hundred rollouts are scored while another thread encodes with the cookbook's tokenizer, as its own envs do."""
    tokenizer = get_tokenizer(str(real_rig.tokenizer))
    is_over = threading.Event()

    def encode() -> int:
        encoded = 0
        while not is_over.is_set():
            for splits in (False, True):
                tokenizer.encode(TEXTS[-1], add_special_tokens=False, split_special_tokens=splits)
                encoded += 1
        return encoded

    with ThreadPoolExecutor(1) as threads:
        encoding = threads.submit(encode)
        try:
            played = await play_at_once(real_rig, real_rig.submits, groups=10, size=10)
        finally:
            is_over.set()
        assert encoding.result() > 0
    assert [group.get_total_rewards() for group in played] == [[1.0] * 10] * 10


async def test_rollouts_that_are_ready_at_once_take_turns_on_the_loop(real_rig: Any) -> None:
    """However many messages are sampled in the same moment, a pass of the loop reads and answers one or two of them."""
    loop = asyncio.get_running_loop()
    passed, sampled = 0, Counter[int]()
    is_over = False

    def next_pass() -> None:
        nonlocal passed
        passed += 1
        if not is_over:
            loop.call_soon(next_pass)

    def script(at: int, text: str) -> Any:
        sampled[passed] += 1
        return real_rig.submits[at]

    loop.call_soon(next_pass)
    try:
        await play_at_once(real_rig, script, groups=10, size=10)
    finally:
        is_over = True
    assert sum(sampled.values()) == 300
    assert max(sampled.values()) <= 2


@pytest.mark.parametrize("vocabulary", [qwen3_vocabulary, qwen3_5_vocabulary])
def test_a_shared_tokenizer_encodes_and_decodes_as_its_own_does(vocabulary: Any) -> None:
    """Every text, with special tokens read as such or as text, and again from memory."""
    tokenizer = get_tokenizer(str(vocabulary()))
    shared = shared_tokenizer(tokenizer)
    assert shared is not tokenizer
    for settings in ({}, {"add_special_tokens": False}, {"add_special_tokens": False, "split_special_tokens": True}):
        for text in TEXTS * 2:
            tokens = shared.encode(text, **settings)
            assert tokens == tokenizer.encode(text, **settings), (text, settings)
            for skips in (False, True):
                said = tokenizer.decode(tokens, skip_special_tokens=skips)
                assert shared.decode(tokens, skip_special_tokens=skips) == said
            assert shared.decode([tokens, tokens]) == tokenizer.decode([tokens, tokens])
            tokens.append(0)  # what it returns is the caller's own
    assert shared.encode(TEXTS[-1], truncation=True, max_length=8) == tokenizer.encode(
        TEXTS[-1], truncation=True, max_length=8
    )
    assert shared.eos_token_id == tokenizer.eos_token_id
    assert shared.convert_tokens_to_ids("<think>") == tokenizer.convert_tokens_to_ids("<think>")


def test_threads_may_encode_on_a_shared_tokenizer_with_either_setting() -> None:
    """Eight threads, special tokens read as such and as text in turn: always the same tokens, and nothing is raised."""
    tokenizer = get_tokenizer(str(qwen3_vocabulary()))
    shared = shared_tokenizer(tokenizer)
    work = [(text, splits) for text in TEXTS for splits in (False, True)]
    expected = [tokenizer.encode(text, add_special_tokens=False, split_special_tokens=splits) for text, splits in work]

    def encode(_: int) -> bool:
        encoded = [shared.encode(text, add_special_tokens=False, split_special_tokens=splits) for text, splits in work]
        return encoded == expected

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(encode, range(200)))


def test_a_tokenizer_without_a_rust_part_is_left_as_it_is() -> None:
    """Such as one that a model's own Python code makes."""

    class Own:
        def encode(self, text: str, **settings: Any) -> list[int]:
            return [ord(letter) for letter in text]

    own = Own()
    assert shared_tokenizer(own) is own


def test_a_shared_tokenizer_does_all_that_the_other_does(rig: Any) -> None:
    """A renderer of one's own may call it, or ask how many tokens it has."""
    tokenizer = get_tokenizer(str(rig.tokenizer))
    shared = shared_tokenizer(tokenizer)
    assert shared is not tokenizer
    assert len(shared) == len(tokenizer)
    assert shared("a <|im_end|> b")["input_ids"] == tokenizer("a <|im_end|> b")["input_ids"]
