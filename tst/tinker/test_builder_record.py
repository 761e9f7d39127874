"""What a run keeps of the sampling: every token with its text and its log-probability, counts, and by which weights."""

from __future__ import annotations

import asyncio
import logging
import random
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits
from tinker_cookbook.rl.rollout_presets import RolloutConfig, agentic
from tinker_cookbook.rl.rollout_runner import run_rollout
from tinker_cookbook.rl.rollout_strategy import MinViableGroup, RetryOnFailure
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.rl.types import Trajectory

from agent_env.errors import EpisodeFailedError, RunIndexError, TrainingError
from agent_env.runs import RunState, RunSummary, SampledTokens
from agent_env.training import _process, _sampled

sys.path.insert(0, str(Path(__file__).parent))

from vocabularies import qwen3_vocabulary


class Sampling(TokenCompleter):
    """Another policy's tokens, each with a log-probability of its own."""

    def __init__(self, policy: Any, *, has_logprobs: bool = True) -> None:
        self.policy = policy
        self.has_logprobs = has_logprobs
        self.sampled: list[list[int]] = []
        self._draw = random.Random(5)

    async def __call__(self, model_input: Any, stop: Any, *, max_tokens: int | None = None) -> TokensWithLogprobs:
        said = await self.policy(model_input, stop, max_tokens=max_tokens)
        self.sampled.append(said.tokens)
        logprobs = [-self._draw.expovariate(1.0) for _ in said.tokens]
        return replace(said, maybe_logprobs=logprobs if self.has_logprobs else None)


def sampling(rig: Any, script: Any, **how: Any) -> Sampling:
    """A policy that says what a script says."""
    return Sampling(rig.policy(script), **how)


def kept(rig: Any, run: RunSummary) -> dict[int, SampledTokens]:
    """What a run has of the sampling, by message."""
    return rig.index.sampled(run.run_id)


def messages(rig: Any, run: RunSummary) -> list[dict[str, Any]]:
    """The messages of a run, the agent's and others, with what is told beside them."""
    return [event.data for event in rig.index.events(run.run_id) if event.kind == "message"]


def check(rig: Any, run: RunSummary, trajectory: Trajectory) -> None:
    """See that a run has exactly the tokens of a trajectory, their log-probabilities and texts, and counts them right."""
    tokenizer = rig.framing.renderer.tokenizer
    done = [step for step in trajectory.transitions if step.ac.tokens]
    found = kept(rig, run)
    assert sorted(found) == list(range(len(done)))
    for at, step in enumerate(done):
        assert found[at].ids == tuple(step.ac.tokens)
        assert found[at].logprobs == pytest.approx(step.ac.maybe_logprobs, rel=1e-6)
        assert "".join(found[at].pieces) == tokenizer.decode(step.ac.tokens)
    said = [told for told in messages(rig, run) if "index" in told]
    assert [told["index"] for told in said] == list(range(len(done)))
    assert [told["sampled_tokens"] for told in said] == [len(step.ac.tokens) for step in done]
    assert [told["prompt_tokens"] for told in said] == [step.ob.length for step in done]


async def test_every_sampled_token_is_in_the_run_with_its_log_probability(rig: Any) -> None:
    """Of each rollout of a group its own, message by message, also when read by another index and in pages."""
    policy = sampling(rig, rig.submits)
    group = await do_group_rollout(rig.group(size=3), policy)
    assert group.get_total_rewards() == [1.0] * 3
    runs = rig.filed()
    for run, trajectory in zip(runs, group.trajectories_G, strict=True):
        check(rig, run, trajectory)
    assert len({kept(rig, run)[0].logprobs for run in runs}) == 3
    assert list(rig.index.sampled(runs[0].run_id, first_message=1, limit=1)) == [1]
    assert runs[0].sampled_tokens == sum(len(step.ac.tokens) for step in group.trajectories_G[0].transitions)
    assert runs[0].prompt_tokens == sum(step.ob.length for step in group.trajectories_G[0].transitions)


@pytest.mark.parametrize(
    "renderer_name", ["qwen3_instruct", "qwen3_disable_thinking", "qwen3", "qwen3_5", "role_colon"]
)
async def test_messages_of_all_turns_are_counted_through(rig: Any, renderer_name: str) -> None:
    """A reply ends the first turn; the second turn's messages go on from its number."""
    rig = replace(rig, renderer_name=renderer_name)
    script = [rig.reply("Seven it is."), rig.reply("Seven.")]
    if renderer_name != "role_colon":
        script = [rig.call("add", number=3), *script]
    group = await do_group_rollout(
        rig.group("two-turns") if renderer_name != "role_colon" else toolless(rig), sampling(rig, script)
    )
    (run,) = rig.filed()
    assert run.turns == 2
    check(rig, run, group.trajectories_G[0])


def toolless(rig: Any) -> Any:
    """A group of a bundle that has no tools."""
    root = rig.runs.parent / "chat"
    files = {
        "bundle.yaml": "name: chat\nversion: 1.0.0\ndescription: Talk.\nlicense: Apache-2.0\n"
        "agents:\n  talker: {kind: played, system_prompt: Talk.}\n",
        "tasks/talk.yaml": "id: talk\nprompt: [Hello., Bye.]\nverify: {python: verifiers/polite.py}\n",
        "verifiers/polite.py": "def score(episode):\n    return 1.0\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return rig.group("talk", bundle=str(root))


@pytest.mark.parametrize("how", ["length", "malformed", "message limit", "context"])
async def test_a_cut_rollouts_tokens_are_in_the_run(rig: Any, how: str) -> None:
    """Those of the message that the cut came in too, of which the run has the text."""
    add = rig.call("add", number=3)
    whole = rig.framing.written(add)
    last = {
        "length": rig.Say(tokens=whole[:-1], stop_reason="length"),
        "malformed": rig.Say(tokens=whole[:-1]),
    }.get(how, add)
    settings: dict[str, Any] = {"message limit": {"max_messages": 2}}.get(how, {})
    if how == "context":
        env = (await (probe := rig.group(group="test/probe")).make_envs())[0]
        settings = {"max_trajectory_tokens": (await env.initial_observation())[0].length + 10}
        await probe.cleanup()
    group = await do_group_rollout(rig.group(**settings), sampling(rig, [add, last]))
    (run,) = rig.filed()
    assert (run.state, run.cut is None) == (RunState.COMPLETED, False)
    check(rig, run, group.trajectories_G[0])


@pytest.mark.parametrize("stops", ["while a tool runs", "while the policy samples", "before the first message"])
async def test_a_rollout_that_its_runner_stops_keeps_what_was_sampled(rig: Any, stops: str) -> None:
    """The runner's trajectory has no log-probabilities for a message whose answer it did not wait for."""
    wait = rig.call("wait", seconds=30)
    script: list[Any] = {
        "while a tool runs": [rig.call("add", number=3), wait],
        "while the policy samples": [rig.call("add", number=3), rig.Say(message=wait, after_s=30)],
        "before the first message": [rig.Say(message=wait, after_s=30)],
    }[stops]
    policy = sampling(rig, script)
    builder = rig.group()
    (env,) = await builder.make_envs()
    trajectory = await run_rollout(policy, env, limits=RolloutLimits(rollout_timeout_seconds=0.5))
    await builder.compute_group_rewards([trajectory], [env])
    await builder.cleanup()
    (run,) = rig.filed()
    found = kept(rig, run)
    assert [found[at].ids for at in sorted(found)] == [tuple(tokens) for tokens in policy.sampled]
    answered = [step for step in trajectory.transitions if step.ac.tokens]
    assert [tokens.logprobs is not None for tokens in found.values()] == [
        at < len(answered) for at in range(len(policy.sampled))
    ]


async def test_a_failed_rollouts_tokens_are_in_the_run_without_log_probabilities(rig: Any) -> None:
    """Its trajectory is lost with it, and what the rollout itself was handed is kept."""
    policy = sampling(rig, [rig.call("add", number=3), rig.call("crash")])
    with pytest.raises(EpisodeFailedError, match="the counter is broken"):
        await do_group_rollout(rig.group(), policy)
    (run,) = rig.filed()
    assert run.state is RunState.FAILED
    found = kept(rig, run)
    assert [found[at].ids for at in (0, 1)] == [tuple(tokens) for tokens in policy.sampled]
    assert [tokens.logprobs for tokens in found.values()] == [None, None]
    assert "".join(found[1].pieces) == rig.framing.renderer.tokenizer.decode(policy.sampled[1])
    assert [told["sampled_tokens"] for told in messages(rig, run)] == [len(tokens) for tokens in policy.sampled]


async def test_a_message_that_the_renderer_breaks_on_is_in_the_run(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is what one wants to see: its text as it decodes, and its tokens."""
    builder = rig.group()
    (env,) = await builder.make_envs()
    await env.initial_observation()
    tokens = rig.framing.written(rig.call("add", number=3))

    def cannot(_: list[int]) -> Any:
        raise RuntimeError("cannot read that")

    with monkeypatch.context() as broken:
        broken.setattr(env.renderer, "parse_response", cannot, raising=False)
        with pytest.raises(EpisodeFailedError, match="cannot read that"):
            await env.step(tokens)
    await builder.cleanup()
    (run,) = rig.filed()
    (told,) = messages(rig, run)
    assert told["message"]["content"] == rig.framing.renderer.tokenizer.decode(tokens)
    assert kept(rig, run)[0].ids == tuple(tokens)


@pytest.mark.parametrize("strategy", [RetryOnFailure(max_retries=2), MinViableGroup(min_successful=3, max_retries=2)])
async def test_each_attempt_of_a_retried_group_has_its_own_tokens(rig: Any, strategy: Any) -> None:
    """What was played and lost shows what it had sampled; what was played in its place has its log-probabilities."""
    crashes = iter([True, True])

    def script(at: int, text: str) -> Any:
        if at == 0:
            return rig.call("add", number=3)
        return rig.call("crash") if next(crashes, False) else rig.call("submit", total=3)

    group = await do_group_rollout(rig.group(size=3), sampling(rig, script), strategy=strategy)
    assert len(group.trajectories_G) == 3
    runs = rig.filed()
    lost = [run for run in runs if run.state is RunState.FAILED]
    assert (len(runs), len(lost)) == (5, 2)
    for run in lost:
        assert [(at, tokens.logprobs) for at, tokens in kept(rig, run).items()] == [(0, None), (1, None)]
    finished = {kept(rig, run)[0].logprobs: run for run in runs if run.state is RunState.COMPLETED}
    assert len(finished) == 3
    for trajectory in group.trajectories_G:
        first = pytest.approx(trajectory.transitions[0].ac.maybe_logprobs, rel=1e-6)
        (run,) = (run for logprobs, run in finished.items() if logprobs == first)
        check(rig, run, trajectory)


async def test_siblings_of_a_failed_rollout_keep_what_they_had_sampled(rig: Any) -> None:
    """The group is given up while they are under way: their runs show as far as they got."""
    crashes = iter([True])
    crash = rig.framing.written(rig.call("crash"))

    def script(at: int, text: str) -> Any:
        if at == 0:
            return rig.call("add", number=3)
        return rig.Say(tokens=crash) if next(crashes, False) else rig.call("wait", seconds=30)

    class CrashesLast(Sampling):
        async def __call__(self, *args: Any, **more: Any) -> TokensWithLogprobs:
            said = await super().__call__(*args, **more)
            if said.tokens == crash:
                await rig.until(lambda: sum(run.messages == 2 for run in rig.filed()) == 2)
            return said

    with pytest.raises(EpisodeFailedError):
        await do_group_rollout(rig.group(size=3), CrashesLast(rig.policy(script)))
    runs = rig.filed()
    assert sorted(run.state for run in runs) == [RunState.ABANDONED, RunState.ABANDONED, RunState.FAILED]
    for run in runs:
        assert sorted(kept(rig, run)) == [0, 1]


async def test_a_cancelled_rollout_keeps_what_it_had_sampled(rig: Any) -> None:
    """Also where the trainer stops the whole group."""
    policy = sampling(rig, [rig.call("add", number=3), rig.Say(message=rig.reply("x"), after_s=30)])
    playing = asyncio.create_task(do_group_rollout(rig.group(size=2), policy))
    await rig.until(lambda: policy.policy.calls == 4)
    playing.cancel()
    await asyncio.wait([playing])
    runs = rig.filed()
    assert [run.state for run in runs] == [RunState.ABANDONED] * 2
    for run in runs:
        assert [(at, tokens.logprobs) for at, tokens in kept(rig, run).items()] == [(0, None)]


async def test_a_group_whose_grading_is_skipped_keeps_its_tokens(rig: Any) -> None:
    """Nobody hands the trajectories back: what was sampled is there without log-probabilities."""
    config = RolloutConfig(limits=RolloutLimits(rollout_timeout_seconds=0.4), termination=agentic().termination)
    policy = sampling(rig, [rig.call("add", number=3), rig.Say(message=rig.reply("x"), after_s=30)])
    await do_group_rollout(rig.group(rollout_config=config), policy, termination=config.termination)
    (run,) = rig.filed()
    found = kept(rig, run)
    assert [found[at].ids for at in sorted(found)] == [tuple(tokens) for tokens in policy.sampled]
    assert {tokens.logprobs for tokens in found.values()} <= {None}


async def test_a_message_that_was_broken_off_and_kept_has_its_tokens(rig: Any) -> None:
    """With token budgets the agent goes on after it: the same text twice is two messages."""
    config = RolloutConfig(limits=RolloutLimits(max_turn_tokens=64, max_trajectory_tokens=5_000))
    broken = rig.Say(tokens=rig.framing.written(rig.reply("Done."))[:-1], stop_reason="length")
    group = await do_group_rollout(
        rig.group(rollout_config=config), sampling(rig, [broken, rig.reply("Done."), rig.reply("Done.")])
    )
    (run,) = rig.filed()
    assert run.messages == 2
    check(rig, run, group.trajectories_G[0])


async def test_a_call_that_cannot_be_read_has_its_tokens(rig: Any) -> None:
    """The trainer's message after it has no number; the agent's next one goes on."""
    broken = '<tool_call>\n{"name": "add", "arguments": {"number": \n</tool_call><|im_end|>'
    said = rig.Say(tokens=rig.framing.renderer.tokenizer.encode(broken))
    config = RolloutConfig(parse_errors=ParseErrorPolicy(max_consecutive=1))
    group = await do_group_rollout(
        rig.group(rollout_config=config), sampling(rig, [said, rig.call("add", number=7), rig.call("submit", total=7)])
    )
    (run,) = rig.filed()
    assert [told.get("index") for told in messages(rig, run)] == [0, None, 1, 2]
    check(rig, run, group.trajectories_G[0])


async def test_a_sampler_without_log_probabilities_leaves_them_out(rig: Any) -> None:
    """The tokens are there all the same."""
    policy = sampling(rig, rig.submits, has_logprobs=False)
    await do_group_rollout(rig.group(), policy)
    (run,) = rig.filed()
    found = kept(rig, run)
    assert [found[at].ids for at in (0, 1, 2)] == [tuple(tokens) for tokens in policy.sampled]
    assert {tokens.logprobs for tokens in found.values()} == {None}


async def test_tokens_are_left_out_where_nobody_wants_them(rig: Any) -> None:
    """`record_tokens=False` keeps the counts, which cost nothing."""
    await do_group_rollout(rig.group(record_tokens=False), sampling(rig, rig.submits))
    (run,) = rig.filed()
    assert kept(rig, run) == {}
    assert all(told["sampled_tokens"] for told in messages(rig, run))
    with pytest.raises(TrainingError, match="record_tokens='yes': give True or False"):
        rig.builder(record_tokens="yes").checked("train")


async def test_other_tokens_in_a_trajectory_are_not_taken_for_what_was_sampled(
    rig: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever edits a trajectory before its rewards are computed keeps the log-probabilities out of the runs, said once."""
    monkeypatch.setattr(_sampled, "_told", set())
    builder = rig.group(size=2)
    envs = await builder.make_envs()
    policy = sampling(rig, rig.submits)
    trajectories = [await run_rollout(policy, env) for env in envs]
    for trajectory in trajectories:
        first = trajectory.transitions[0]
        first.ac = replace(first.ac, tokens=[1, *first.ac.tokens[1:]])
    rewards = await builder.compute_group_rewards(trajectories, envs)
    await builder.cleanup()
    assert [reward for reward, _ in rewards] == [0.0, 0.0], "told by the steps"
    for run in rig.filed():
        assert [tokens.logprobs for tokens in kept(rig, run).values()] == [None] * 3
    (said,) = [record.message for record in caplog.records if "sampled tokens" in record.message]
    assert "other tokens" in said


async def test_an_index_that_takes_no_more_costs_no_rollout(
    rig: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group has its rewards; that its tokens are not recorded is said once, with the reason."""
    monkeypatch.setattr(_sampled, "_told", set())
    for name in ("test/one", "test/two"):
        builder = rig.group(size=2, group=name)
        envs = await builder.make_envs()
        policy = sampling(rig, rig.submits)
        trajectories = [await run_rollout(policy, env) for env in envs]
        _process.close_run_indexes()
        rewards = await builder.compute_group_rewards(trajectories, envs)
        await builder.cleanup()
        assert [sum(step.reward for step in each.transitions) for each in trajectories] == [1.0, 1.0]
        assert [reward for reward, _ in rewards] == [0.0, 0.0]
    with caplog.at_level(logging.WARNING):
        assert [run.reward for run in rig.filed("test/one")] == [1.0, 1.0]
    (said,) = [record.message for record in caplog.records if "sampled tokens" in record.message]
    assert "the run index does not take them" in said
    assert "RunIndexError" in said


@contextmanager
def no_larger_files(most_bytes: int) -> Iterator[None]:
    """Have every file of this process end at a size, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_disk_that_is_full_when_tokens_are_filed_costs_no_reward(rig: Any) -> None:
    """The rollouts were played and scored: they keep their rewards. The next event of a run is what raises."""
    builder = rig.group(size=2)
    envs = await builder.make_envs()
    policy = sampling(rig, rig.submits)
    trajectories = [await run_rollout(policy, env) for env in envs]
    index = rig.index
    with no_larger_files(1):
        rewards = await builder.compute_group_rewards(trajectories, envs)
        await builder.cleanup()
        with pytest.raises(RunIndexError):
            await asyncio.to_thread(index.flush)
    assert [reward for reward, _ in rewards] == [0.0, 0.0]
    assert [sum(step.reward for step in each.transitions) for each in trajectories] == [1.0, 1.0]
    assert [run.reward for run in index.all_runs("test/group")] == [1.0, 1.0]


async def test_what_a_model_has_never_learned_is_recorded_too(rig: Any) -> None:
    """Half a character, a special token in the middle, and a number beyond the vocabulary, as untrained weights sample."""
    tokenizer = rig.framing.renderer.tokenizer
    half = tokenizer.encode("日", add_special_tokens=False)[:1]
    start = tokenizer.convert_tokens_to_ids("<|im_start|>")
    beyond = len(tokenizer) + 40
    tokens = [*half, start, beyond, *rig.framing.written(rig.reply("ok"))]
    group = await do_group_rollout(rig.group(), sampling(rig, [rig.Say(tokens=tokens)]))
    assert len(group.trajectories_G) == 1
    (run,) = rig.filed()
    found = kept(rig, run)[0]
    assert found.ids == tuple(tokens)
    assert found.pieces[:3] == ("⟨0xE6⟩", "<|im_start|>", f"⟨{beyond}⟩")


async def test_the_tokens_of_a_real_vocabulary_are_kept_as_they_are(rig: Any) -> None:
    """Qwen3's own: text outside of the basic plane, tokens that are parts of a character, thinking."""
    rig = replace(rig, tokenizer=qwen3_vocabulary(), renderer_name="qwen3_disable_thinking")
    script = [rig.call("add", number=3, text="Naïve 日本 🎈"), rig.reply("Done ☃.")]
    group = await do_group_rollout(rig.group(), sampling(rig, script))
    (run,) = rig.filed()
    (trajectory,) = group.trajectories_G
    found = kept(rig, run)
    assert [found[at].ids for at in (0, 1)] == [tuple(step.ac.tokens) for step in trajectory.transitions]
    assert any("⟨0x" in piece for piece in found[0].pieces)
    assert found[1].pieces[0] == "Done"


async def test_a_run_says_by_what_it_was_played(rig: Any) -> None:
    """The renderer and the model; the weights' step only where the trainer says it."""
    await do_group_rollout(rig.group(), sampling(rig, rig.submits))
    (run,) = rig.filed()
    assert (run.renderer, run.model, run.policy_step) == ("qwen3_disable_thinking", str(rig.tokenizer), None)
    train, _ = await rig.builder(groups_per_batch=1, group_size=1)()
    (builder,) = train.get_batch(2)
    await do_group_rollout(builder, sampling(rig, rig.submits))
    (run,) = rig.filed("counter/train/step-0002")
    assert run.policy_step is None, "a trainer of its own may be asynchronous"


async def test_many_tokens_are_filed_in_parts(rig: Any) -> None:
    """A group of long messages does not hold up the loop's other work, and loses nothing of it."""
    tokenizer = rig.framing.renderer.tokenizer
    long = [*tokenizer.encode("word " * 3_000, add_special_tokens=False), *rig.framing.written(rig.reply("x"))]
    policy = sampling(rig, [rig.Say(tokens=long)])
    await do_group_rollout(rig.group(size=4), policy)
    for run in rig.filed():
        assert [tokens.ids for tokens in kept(rig, run).values()] == [tuple(long)]
