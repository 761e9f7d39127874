"""Groups sent to other processes: what travels, what is filed there, and what a worker's death leaves."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.rl.rollouts import do_group_rollout

from agent_env.runs import RunState
from agent_env.training._framing import framing_of


async def play_all(rig: Any, builders: Sequence[Any]) -> None:
    """Play groups at once, as the cookbook's training does."""
    async with asyncio.TaskGroup() as tasks:
        for builder in builders:
            tasks.create_task(do_group_rollout(builder, rig.policy(rig.submits)))


async def test_a_pickled_group_plays_the_same(rig: Any) -> None:
    """A builder that went through pickle holds paths and settings, and files where the other would."""
    train, test = await rig.builder(groups_per_batch=1, group_size=2, test_split="test")()
    train.get_batch(3)
    builders = [*train.get_batch(4), *test.get_batch(0)]
    sent = [pickle.dumps(builder) for builder in builders]
    assert all(len(data) < 2_000 for data in sent)
    copies = [pickle.loads(data) for data in sent]
    assert [copy.logging_tags() for copy in copies] == [builder.logging_tags() for builder in builders]
    await play_all(rig, copies)
    filed = {group.name: group.runs for group in rig.index.groups()}
    assert filed == {"counter/eval/step-0005": 1, "counter/train/step-0004": 2}


async def test_a_group_sent_again_is_another_attempt(rig: Any) -> None:
    """As one that is played again in its own process: each sending is a play."""
    builder = rig.group(size=2)
    for _ in range(2):
        await play_all(rig, [pickle.loads(pickle.dumps(builder))])
    await play_all(rig, [builder])
    assert Counter(run.attempt for run in rig.filed()) == {0: 2, 1: 2, 2: 2}


def rewards_in_a_worker(builder: Any, pid_file: Path, *, hangs: bool) -> list[float]:
    """Play a group in a process of its own, as the cookbook's executor does; `hangs`: after its first message."""
    pid_file.write_text(str(os.getpid()))

    class Says:
        async def __call__(self, model_input: Any, stop: Any, *, max_tokens: int | None = None) -> TokensWithLogprobs:
            framing = framing_of(builder.settings.renderer_name, builder.settings.model_name)
            if "total 3" in framing.renderer.tokenizer.decode(model_input.to_ints()):
                await asyncio.sleep(3600)
            text = (
                'Adding.\n<tool_call>\n{"name": "add", "arguments": {"number": 3}}\n</tool_call>' if hangs else "Done."
            )
            tokens = framing.renderer.tokenizer.encode(text + "<|im_end|>", add_special_tokens=False)
            return TokensWithLogprobs(tokens=tokens, maybe_logprobs=[0.0] * len(tokens))

    return asyncio.run(do_group_rollout(builder, Says())).get_total_rewards()  # type: ignore[arg-type]


@pytest.mark.timeout(120)
async def test_what_a_worker_played_is_filed_before_its_result_is_back(rig: Any, tmp_path: Path) -> None:
    """Killed the moment it is done, and not told to close anything, it has lost nothing."""
    pid = tmp_path / "pid"
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        played = pool.submit(rewards_in_a_worker, rig.group(size=2), pid, hangs=False)
        played.add_done_callback(lambda _: os.kill(int(pid.read_text()), signal.SIGKILL))
        assert await asyncio.wrap_future(played) == [0.0, 0.0]
    assert [(run.state, run.reward) for run in rig.filed()] == [(RunState.COMPLETED, 0.0)] * 2


@pytest.mark.timeout(120)
async def test_what_a_killed_worker_was_playing_is_interrupted(rig: Any, tmp_path: Path) -> None:
    """The trainer hears of it, and the runs show as far as they got, not as running for ever."""
    pid = tmp_path / "pid"
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        played = pool.submit(rewards_in_a_worker, rig.group(size=2), pid, hangs=True)
        async with asyncio.timeout(60):
            while [run.calls for run in rig.filed()] != [1, 1]:
                await asyncio.sleep(0.05)
                assert not played.done(), played.result()
        assert {run.state for run in rig.filed()} == {RunState.RUNNING}
        os.kill(int(pid.read_text()), signal.SIGKILL)
        with pytest.raises(BrokenProcessPool):
            await asyncio.wrap_future(played)
    assert {run.state for run in rig.filed()} == {RunState.INTERRUPTED}
    assert [run.calls for run in rig.filed()] == [1, 1]
