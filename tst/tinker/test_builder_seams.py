"""The cookbook's own seams: limits and policies that its runner pushes into an env, hooks, rollout configs, images."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits, TerminationRewardPolicy
from tinker_cookbook.rl.rollout_presets import RolloutConfig, agentic
from tinker_cookbook.rl.rollout_runner import RolloutHooks, run_rollout
from tinker_cookbook.rl.rollout_strategy import MinViableGroup, RetryOnFailure
from tinker_cookbook.rl.rollouts import do_group_rollout

from agent_env.errors import EpisodeFailedError, EpisodeStateError, TrainingError
from agent_env.outcome import CutReason
from agent_env.runs import RunState
from agent_env.training._rollout import EpisodeEnv

BROKEN = '<tool_call>\n{"name": "add", "arguments": {"number": \n</tool_call><|im_end|>'


def unreadable(rig: Any) -> Any:
    """A message whose only call is no JSON."""
    return rig.Say(tokens=rig.framing.renderer.tokenizer.encode(BROKEN))


def truncated(rig: Any, message: Any) -> Any:
    """A message that sampling broke off before its end."""
    return rig.Say(tokens=rig.framing.written(message)[:-1], stop_reason="length")


async def run(rig: Any, script: Any, task: str = "plain-0", **how: Any) -> tuple[Any, float, dict[str, Any], Any]:
    """Run one rollout by the cookbook's runner, and score it as a group: trajectory, total reward, metrics, policy."""
    settings = how.pop("settings", {})
    builder = rig.group(task, **settings)
    policy = rig.policy(script)
    (env,) = await builder.make_envs()
    try:
        trajectory = await run_rollout(policy, env, **how)
        ((reward, metrics),) = await builder.compute_group_rewards([trajectory], [env])
    finally:
        await builder.cleanup()
    total = reward + sum(step.reward for step in trajectory.transitions)
    return trajectory, total, {**trajectory.transitions[-1].metrics, **metrics}, policy


def told(trajectory: Any, metrics: dict[str, Any]) -> list[str]:
    """The cuts that are named, over all steps and what the group adds."""
    named = [key for step in trajectory.transitions for key, value in step.metrics.items() if value]
    last = trajectory.transitions[-1].metrics
    named += [key for key, value in metrics.items() if value and key not in last]
    return [key for key in named if key.startswith("cut/")]


@pytest.mark.parametrize(
    ("limit", "calls", "stop", "reward", "made"),
    [
        (2, [("add", '{"number": 3}'), ("add", '{"number": 4}'), ("add", '{"number": 5}')], "max_tool_calls", 0.25, 2),
        (1, [("add", '{"number": 3}'), ("submit", '{"total": 3}')], "max_tool_calls", 0.25, 1),
        (1, [("add", '{"number": "3"}'), ("submit", '{"total": 3}')], "max_tool_calls", 0.0, 1),
        (2, [("add", '{"number": 3}'), ("submit", '{"total": 3}'), ("add", '{"number": 5}')], "tool_stopped", 1.0, 2),
    ],
)
async def test_the_runners_limit_of_tool_calls_is_kept_within_a_message(
    rig: Any, limit: int, calls: Any, stop: str, reward: float, made: int
) -> None:
    """Calls up to the limit run, the rest do not and the rollout is cut there; a submit among the first ends it cleanly."""
    limits = RolloutLimits(max_tool_calls=limit)
    trajectory, total, metrics, _ = await run(rig, [rig.calls(*calls)], limits=limits)
    assert (trajectory.stop_reason, total, metrics["tool_calls"]) == (stop, reward, made)
    assert told(trajectory, metrics) == (["cut/runner_limit"] if stop == "max_tool_calls" else [])


@pytest.mark.parametrize("limits", [(1, 5), (5, 1)])
async def test_of_two_limits_of_tool_calls_the_tighter_one_holds(rig: Any, limits: tuple[int, int]) -> None:
    """The builder's config and the runner may both have one."""
    config, runner = (RolloutLimits(max_tool_calls=limit) for limit in limits)
    trajectory, _, metrics, _ = await run(
        rig, rig.submits, limits=runner, settings={"rollout_config": RolloutConfig(limits=config)}
    )
    assert (trajectory.stop_reason, metrics["tool_calls"]) == ("max_tool_calls", 1)


async def test_a_message_that_comes_with_no_call_left_runs_nothing(rig: Any) -> None:
    """The limit was reached by the message before: none of the next one's calls is made."""
    settings = {"failed_reward": -0.5}
    limits = RolloutLimits(max_tool_calls=1)
    script = [rig.call("add", number=3), rig.call("submit", total=3)]
    trajectory, total, metrics, _ = await run(rig, script, limits=limits, settings=settings)
    assert (trajectory.stop_reason, total, metrics["tool_calls"]) == ("max_tool_calls", 0.25 - 0.5, 1)
    assert "1: at most 1" in trajectory.transitions[-1].logs["tool_calls_dropped"]
    (filed,) = rig.filed()
    assert (filed.cut, filed.reward) == (CutReason.RUNNER_LIMIT, -0.25)


async def test_a_parse_error_policy_lets_the_model_try_again(rig: Any) -> None:
    """A message none of whose calls can be read is followed by the policy's message, at its price; the run has the total."""
    policy = ParseErrorPolicy(
        max_consecutive=1, penalty_per_error=0.125, retry_message_template="Again, please: {details}"
    )
    script = [unreadable(rig), rig.call("add", number=7), unreadable(rig), rig.call("submit", total=7)]
    trajectory, total, metrics, completer = await run(rig, script, parse_errors=policy)
    assert [step.reward for step in trajectory.transitions] == [-0.125, 0.0, -0.125, 1.0]
    assert (total, metrics["cut"], metrics["tool_errors"]) == (0.75, 0, 0)
    decode = rig.framing.renderer.tokenizer.decode
    assert "Again, please:" in decode(completer.prompts[1])
    assert decode(completer.prompts[3]).count("Again, please:") == 2
    (filed,) = rig.filed()
    assert filed.reward == 0.75
    said = [event.data["message"] for event in rig.index.events(filed.run_id) if event.kind == "message"]
    assert [message["role"] for message in said] == ["assistant", "user", "assistant", "assistant", "user", "assistant"]
    assert '{"number":' in said[0]["unreadable_calls"][0]["raw"]


@pytest.mark.parametrize("kind", ["content", "structural"])
async def test_a_parse_error_policy_whose_patience_is_over_cuts_with_its_own_reward(rig: Any, kind: str) -> None:
    """The cut adds the score to the policy's `terminal_reward`, whichever kind of failure it is, and is told once."""
    policy = ParseErrorPolicy(max_consecutive=1, terminal_reward=-0.5, mask_error_turns=True)
    broken = unreadable(rig) if kind == "content" else rig.Say(tokens=rig.framing.written(rig.reply("x"))[:-1])
    trajectory, total, metrics, _ = await run(
        rig, [rig.call("add", number=3), broken, broken], parse_errors=policy, settings={"failed_reward": -9.0}
    )
    assert len(trajectory.transitions) == (3 if kind == "content" else 2)
    assert (trajectory.stop_reason, total, metrics["parse_error_masked"]) == ("parse_error", 0.25 - 0.5, 1)
    assert told(trajectory, metrics) == ["cut/parse_failure"]
    assert [filed.reward for filed in rig.filed()] == [-0.25]


async def test_a_parse_failure_in_the_last_allowed_message_is_the_end(rig: Any) -> None:
    """There is no message left in which the model could try again."""
    policy = ParseErrorPolicy(max_consecutive=5)
    trajectory, _, metrics, _ = await run(rig, [unreadable(rig)], parse_errors=policy, settings={"max_messages": 1})
    assert (len(trajectory.transitions), told(trajectory, metrics)) == (1, ["cut/parse_failure"])


async def test_a_call_that_can_be_read_is_no_parse_failure(rig: Any) -> None:
    """Beside one that fits, or with arguments that do not fit, a call is answered: the policy has nothing to do."""
    policy = ParseErrorPolicy(max_consecutive=0)
    misfit = rig.calls(("add", '{"number": "three"}'))
    mixed = '<tool_call>\n{"name": "add", "arguments": {"number": 7}}\n</tool_call>\n' + BROKEN
    both = rig.Say(tokens=rig.framing.renderer.tokenizer.encode(mixed))
    _, total, metrics, _ = await run(rig, [misfit, both, rig.call("submit", total=7)], parse_errors=policy)
    assert (total, metrics["cut"], metrics["tool_errors"]) == (1.0, 0, 2)


@pytest.mark.parametrize("renderer_name", ["qwen3_instruct", "qwen3_disable_thinking", "qwen3_5"])
async def test_a_broken_off_message_is_kept_where_the_config_has_token_budgets(rig: Any, renderer_name: str) -> None:
    """As in the cookbook: nothing of it is run, the model goes on in its next message, and what was sampled is kept."""
    rig = replace(rig, renderer_name=renderer_name)
    config = RolloutConfig(limits=RolloutLimits(max_turn_tokens=64, max_trajectory_tokens=5_000))
    script = [truncated(rig, rig.call("add", number=3)), *rig.submits]
    policy = rig.policy(script)
    group = await do_group_rollout(rig.group(rollout_config=config), policy)
    (trajectory,) = group.trajectories_G
    assert group.get_total_rewards() == [1.0]
    assert trajectory.transitions[-1].metrics["tool_calls"] == 3
    for before, after in pairwise(trajectory.transitions):
        so_far = [*before.ob.to_ints(), *before.ac.tokens]
        assert after.ob.to_ints()[: len(so_far)] == so_far
    assert len(trajectory_to_data(trajectory, 1.0)) == 1


async def test_a_broken_off_message_counts_as_one_that_the_agent_wrote(rig: Any) -> None:
    """On the last allowed message it is the end: cut by `max_messages`."""
    config = RolloutConfig(limits=RolloutLimits(max_turn_tokens=64))
    script = [rig.call("add", number=3), truncated(rig, rig.reply("more"))]
    group = await rig.play(script, rollout_config=config, max_messages=2)
    assert group.get_total_rewards() == [0.25]
    assert group.trajectories_G[0].transitions[-1].metrics["cut/message_limit"] == 1


async def test_a_rollout_config_bounds_the_rollouts_of_a_training(rig: Any) -> None:
    """`do_group_rollout` is given no limits: those of the builder's config hold, its tool calls and its parse errors too."""
    turns = RolloutConfig(limits=RolloutLimits(max_turns=1))
    group = await rig.play([rig.call("add", number=3)], rollout_config=turns)
    (step,) = group.trajectories_G[0].transitions
    assert (group.get_total_rewards(), step.metrics["cut/runner_limit"], step.metrics["stop/max_turns"]) == (
        [0.25],
        1,
        1,
    )
    sampled = RolloutConfig(limits=RolloutLimits(max_sampled_tokens=40))
    group = await rig.play([rig.call("add", number=3)], rollout_config=sampled)
    assert (group.get_total_rewards(), group.metrics_G[0]["cut/runner_limit"]) == ([0.25], 1)
    config = RolloutConfig(limits=RolloutLimits(max_tool_calls=2), parse_errors=ParseErrorPolicy(max_consecutive=1))
    group = await rig.play([unreadable(rig), *rig.submits], rollout_config=config)
    assert group.trajectories_G[0].stop_reason == "max_tool_calls"
    config = RolloutConfig(parse_errors=ParseErrorPolicy(terminal_reward=-0.5))
    group = await rig.play([rig.Say(tokens=rig.framing.written(rig.reply("x"))[:-1])], rollout_config=config)
    assert group.get_total_rewards() == [-0.5]
    builder = rig.group(rollout_config=agentic())
    assert pickle.loads(pickle.dumps(builder)).settings == builder.settings


@pytest.mark.parametrize("strategy", [RetryOnFailure(max_retries=2), MinViableGroup(min_successful=3, max_retries=2)])
async def test_a_rollout_that_fails_at_its_last_turn_is_the_strategys_to_retry(rig: Any, strategy: Any) -> None:
    """The turns of a config end the rollout in its own step: the failure of one does not cost its group."""
    config = RolloutConfig(limits=RolloutLimits(max_turns=1))
    crashes = iter([True])

    def script(at: int, text: str) -> Any:
        return rig.call("crash") if next(crashes, False) else rig.call("add", number=3)

    group = await rig.play(script, "goes-on", size=4, strategy=strategy, rollout_config=config)
    assert group.get_total_rewards() == [0.25] * len(group.trajectories_G)
    assert len(group.trajectories_G) >= 3
    assert sum(filed.state is RunState.FAILED for filed in rig.filed()) == 1


class Injects(RolloutHooks):
    """Puts a message before some of the agent's."""

    async def on_turn_begin(self, state: Any) -> Any:
        return [{"role": "user", "content": f"Mind turn {state.turn_index}."}] if state.turn_index in (0, 2) else None


@pytest.mark.parametrize("renderer_name", ["qwen3_instruct", "qwen3_disable_thinking"])
async def test_a_hooks_messages_reach_the_model(rig: Any, renderer_name: str) -> None:
    """Before the first message and between later ones; kept in the run, and after what was sampled where history is kept."""
    rig = replace(rig, renderer_name=renderer_name)
    trajectory, total, _, policy = await run(rig, rig.submits, hooks=Injects())
    decode = rig.framing.renderer.tokenizer.decode
    assert total == 1.0
    assert "Mind turn 0." in decode(policy.prompts[0])
    assert decode(policy.prompts[2]).index("total 7") < decode(policy.prompts[2]).index("Mind turn 2.")
    assert len(trajectory_to_data(trajectory, 1.0)) == (1 if renderer_name == "qwen3_instruct" else 2)
    (filed,) = rig.filed()
    said = [event.data["message"] for event in rig.index.events(filed.run_id) if event.kind == "message"]
    assert [message["content"] for message in said if message["role"] == "user"] == ["Mind turn 0.", "Mind turn 2."]
    assert filed.messages == 3, "those that the agent wrote"


class Clears(RolloutHooks):
    """Clears stops, the first ones."""

    def __init__(self, times: int) -> None:
        self.times = times

    async def on_stop_reason(self, reason: str, state: Any) -> str | None:
        self.times -= 1
        return None if self.times >= 0 else reason


async def test_a_limit_that_a_hook_clears_does_not_end_the_episode(rig: Any) -> None:
    """The rollout goes on to its own end, and is scored there, once."""
    trajectory, total, metrics, _ = await run(rig, rig.submits, limits=RolloutLimits(max_turns=2), hooks=Clears(1))
    assert (trajectory.stop_reason, total, metrics["cut"]) == ("tool_stopped", 1.0, 0)


@pytest.mark.parametrize(
    ("script", "reward", "cuts"),
    [("submit", 0.5, []), ("add", 0.25, ["cut/message_limit"]), ("length", 0.0, ["cut/token_limit"])],
)
async def test_an_end_that_a_hook_clears_stays_the_end(rig: Any, script: str, reward: float, cuts: list[str]) -> None:
    """The episode is over and was scored: the next message ends the rollout again, earns nothing and is not trained on."""
    add = rig.call("add", number=3)
    said = {"submit": rig.call("submit", total=3), "add": add, "length": truncated(rig, add)}[script]
    trajectory, total, metrics, policy = await run(rig, [said], hooks=Clears(1), settings={"max_messages": 1})
    assert [step.reward for step in trajectory.transitions] == [reward, 0.0]
    assert (total, told(trajectory, metrics)) == (reward, cuts)
    first = trajectory.transitions[0]
    assert policy.prompts[1] == [*first.ob.to_ints(), *first.ac.tokens]
    (datum,) = trajectory_to_data(trajectory, 1.0)
    assert sum(datum.loss_fn_inputs["mask"].data) == len(first.ac.tokens)
    assert [(filed.state, filed.reward) for filed in rig.filed()] == [(RunState.COMPLETED, reward)]


async def test_a_hook_that_clears_every_end_is_told_so(rig: Any) -> None:
    """Else the rollout would sample for ever."""
    with pytest.raises(EpisodeStateError, match="episode has ended"):
        await run(rig, [rig.call("submit", total=3)], hooks=Clears(100))


async def test_the_presets_clamp_is_the_trainers_and_the_run_keeps_the_score(rig: Any) -> None:
    """`agentic()` takes what a cut rollout earned; without its `termination`, the score at the cut is what is trained on."""
    config = RolloutConfig(limits=RolloutLimits(max_turns=1))
    policy = rig.policy([rig.call("add", number=3)])
    group = await do_group_rollout(rig.group(rollout_config=config), policy, termination=agentic().termination)
    assert group.get_total_rewards() == [0.0]
    assert group.metrics_G[0]["zero_reward_on_limit"] == 1
    assert [(filed.reward, filed.cut) for filed in rig.filed()] == [(0.25, CutReason.RUNNER_LIMIT)]
    group = await do_group_rollout(rig.group(rollout_config=config), policy, termination=TerminationRewardPolicy())
    assert group.get_total_rewards() == [0.25]


async def test_a_model_whose_cut_rollouts_the_trainer_clamps_by_default_is_warned_of(
    rig: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The cookbook does it for Inkling models unless it is told otherwise: one line says how to keep the scores."""
    from tinker_cookbook.tokenizer_utils import get_tokenizer, register_tokenizer

    name = "thinkingmachines/Inkling-probe"
    register_tokenizer(name, lambda: get_tokenizer(str(rig.tokenizer)))
    await rig.builder(model_name_for_tokenizer=name)()
    assert [record.message for record in caplog.records if "termination=TerminationRewardPolicy()" in record.message]
    caplog.clear()
    await rig.builder()()
    assert not [record.message for record in caplog.records if "termination=" in record.message]


async def test_a_group_whose_grading_the_trainer_skips_leaves_nothing_under_way(rig: Any) -> None:
    """All timed out, and `skip_grading_on_timeout`: nobody asks for the rewards, and every episode is given back."""
    config = RolloutConfig(limits=RolloutLimits(rollout_timeout_seconds=0.05), termination=agentic().termination)
    script = [rig.Say(message=rig.reply("x"), after_s=30)]
    builder = rig.group("slow", size=3, rollout_config=config)
    group = await do_group_rollout(builder, rig.policy(script), termination=config.termination)
    assert group.get_total_rewards() == [0.0] * 3
    assert rig.slots(256).taken == 0
    assert {filed.state for filed in rig.filed()} <= {RunState.ABANDONED, RunState.COMPLETED}


async def test_scoring_is_bounded_by_the_configs_grader_timeout(rig: Any) -> None:
    """Longer than `grader_timeout_seconds`, it is a failure that names the setting, and no reward."""
    config = RolloutConfig(termination=TerminationRewardPolicy(grader_timeout_seconds=0.01))
    with pytest.raises(EpisodeFailedError, match=r"longer than score_within_s=0\.01 s"):
        await rig.play([rig.reply("Done.")], "slow", rollout_config=config)
    (filed,) = rig.filed()
    assert (filed.state, filed.reward, filed.failure.kind) == (RunState.FAILED, None, "step_timeout")
    assert "longer than score_within_s=0.01 s" in filed.failure.message
    assert rig.slots(256).taken == 0


async def test_a_timeout_before_the_first_turn_is_a_failure_that_says_so(rig: Any) -> None:
    """Nothing was played, so there is nothing to score: the time went by while it waited for a slot."""
    first = rig.group(max_concurrent_episodes=1)
    (env,) = await first.make_envs()
    await env.initial_observation()
    limits = RolloutLimits(rollout_timeout_seconds=0.02)
    with pytest.raises(EpisodeFailedError, match=r"before its first turn \(rollout_timeout\).*max_concurrent_episodes"):
        await run(rig, rig.submits, limits=limits, settings={"max_concurrent_episodes": 1})
    await first.cleanup()
    assert rig.slots(1).taken == 0


@pytest.mark.parametrize("renderer_name", ["qwen3", "qwen3_5", "qwen3_instruct"])
async def test_a_reply_that_ends_in_end_of_text_is_a_clean_end(rig: Any, renderer_name: str) -> None:
    """Base models end so; it is neither a parse failure nor a cut, and the tokens that are trained on are those sampled."""
    rig = replace(rig, renderer_name=renderer_name)
    tokens = rig.framing.written(rig.reply("Done."))
    end_of_text = rig.framing.renderer.tokenizer.convert_tokens_to_ids("<|endoftext|>")
    sampled = [*tokens[: tokens.index(rig.framing.renderer.get_stop_sequences()[0])], end_of_text]
    trajectory, total, metrics, _ = await run(rig, [rig.call("add", number=3), rig.Say(tokens=sampled)])
    assert (trajectory.stop_reason, total, metrics["cut"]) == ("completed", 0.25, 0)
    assert trajectory.transitions[-1].ac.tokens == sampled


async def test_history_template_renders_each_prompt_whole(rig: Any) -> None:
    """As the cookbook does, for those who want the template's own history: Qwen3's without its empty thinking blocks."""
    policy = rig.policy(rig.submits)
    builder = rig.group(history="template")
    (trajectory,) = (await do_group_rollout(builder, policy)).trajectories_G
    assert pickle.loads(pickle.dumps(builder)).settings.history == "template"
    assert len(trajectory_to_data(trajectory, 1.0)) == 3
    decode = rig.framing.renderer.tokenizer.decode
    assert decode(policy.prompts[2]).count("<think>") == 1
    with pytest.raises(TrainingError, match="write tokens or template"):
        rig.builder(history="none").checked("train")


async def test_step_logs_are_clipped(rig: Any) -> None:
    """The conversation is in the run index: a step's logs keep the first `LOGGED_CHARS` characters of each text."""
    long = "x" * 5_000
    message = rig.calls(("add", '{"number": 3}'), ("wait", f'{{"seconds": "{long}"}}'), text=long)
    trajectory, *_ = await run(rig, [message, rig.reply("Done.")])
    logs = trajectory.transitions[0].logs
    assert logs["tool_call_0"] == 'add({"number": 3})'
    assert logs["tool_result_0"] == "total 3"
    for key in ("assistant_content", "tool_call_1"):
        assert len(logs[key]) == EpisodeEnv.LOGGED_CHARS + 1
        assert logs[key].endswith("…")
    assert all(len(text) <= EpisodeEnv.LOGGED_CHARS + 1 for text in logs.values())


async def test_the_cookbooks_labels_are_there(rig: Any) -> None:
    """`example_id` is the task, also on the adapter; `logging_tags` are the bundle and the task's tags."""
    train, _ = await rig.builder()()
    builder = train.get_batch(0)[0]
    assert builder.logging_tags() == ["counter", "plain"]
    (env, *_) = await builder.make_envs()
    assert env.example_id == env.episode.example_id == builder.task_id


@pytest.mark.parametrize("fails_at", ["prompt", "answer", "reply"])
async def test_a_renderer_that_fails_raises_with_the_task_and_gives_the_slot_back(
    rig: Any, fails_at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it cannot write the first prompt, a later one, or read a message: at that moment, not when the group ends."""
    renderer = rig.framing.renderer
    builder = rig.group(size=2, max_concurrent_episodes=1)
    failing, waiting = await builder.make_envs()

    def cannot(*_: Any, **__: Any) -> Any:
        raise RuntimeError("cannot do that")

    add = rig.framing.written(rig.call("add", number=3))
    with monkeypatch.context() as broken:
        if fails_at == "prompt":
            rig.framing._first.clear()
            broken.setattr(renderer, "build_generation_prompt", cannot)
        if fails_at != "prompt":
            await failing.initial_observation()
            rig.framing._after_stand_in.clear()
            broken.setattr(
                *((renderer, "build_generation_prompt") if fails_at == "answer" else (failing, "_render_in_thread")),
                cannot,
            )
        with pytest.raises(
            EpisodeFailedError, match=r"task 'plain-0' at step '.*': RuntimeError: cannot do that; run "
        ):
            await (failing.initial_observation() if fails_at == "prompt" else failing.step(add))
        assert rig.slots(1).taken == 0
    await waiting.initial_observation()
    await builder.cleanup()


async def test_a_later_turn_with_other_tools_is_refused(rig: Any) -> None:
    """A conversation says its tools once: the error names the task, the step and the run, and the slot is free."""
    builder = rig.group("two-turns", max_concurrent_episodes=1)
    (env,) = await builder.make_envs()
    rollout = env.episode.rollout
    first = await rollout.start()
    second = await first.end({"role": "assistant", "content": "Next."})
    with pytest.raises(
        EpisodeFailedError, match=r"task 'two-turns' at step '.*turn 1 offers other tools.*; run "
    ) as raised:
        await rollout.go_on(second, ["add", "ask"])
    (filed,) = rig.filed()
    assert filed.run_id in str(raised.value)
    assert (filed.state, rig.slots(1).taken) == (RunState.FAILED, 0)
    assert (filed.failure.kind, filed.failure.step) == ("agent", second.step)
    assert "turn 1 offers other tools" in filed.failure.message
    await builder.cleanup()


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("skilled", r"at step '.*has skills \(sums\).*; run "),
        ("skilled-later", r"at step '.*has skills \(sums\).*; run "),
    ],
)
async def test_a_turn_that_a_trained_agent_cannot_play_is_refused(rig: Any, task: str, says: str) -> None:
    """Whoever plays such a task directly is told, at the first turn or a later one; a dataset leaves it out before."""
    with pytest.raises(EpisodeFailedError, match=f"task '{task}' {says}"):
        await rig.play([rig.reply("Done.")], task)
    assert rig.slots(256).taken == 0
    (filed,) = rig.filed()
    assert (filed.state, filed.failure.kind) == (RunState.FAILED, "agent")
    assert "has skills (sums)" in filed.failure.message


async def test_a_turn_of_another_agent_is_refused(rig: Any, tmp_path: Path) -> None:
    """What it would say is not what the trained agent is to learn."""
    root = tmp_path / "boss"
    shutil.copytree(rig.bundle, root)
    header = (root / "bundle.yaml").read_text().replace("agents:\n", "agents:\n  boss: {envs: []}\n")
    (root / "bundle.yaml").write_text(f"{header}played: adder\n")
    shutil.rmtree(root / "evals")
    asks = '{"prompt": {"agent": "boss", "text": "Add."}}, {"verify": {"python": "verifiers/right.py"}, "id": "right"}'
    deploys = '{"deploy_env": "counter"}, {"deploy_agent": "adder"}, {"deploy_agent": "boss"}'
    plain = '{"id": "adds", "prompt": "Add.", "verify": {"python": "verifiers/right.py", "id": "right"}}'
    (root / "tasks/all.jsonl").write_text(f'{plain}\n{{"id": "asks", "steps": [{deploys}, {asks}]}}\n')
    with pytest.raises(
        EpisodeFailedError, match=r"task 'asks' at step '.*it prompts agent 'boss', which is not the played"
    ):
        await replace(rig, bundle=root).play([rig.reply("Done.")], "asks")


@pytest.fixture
def sees(rig: Any, tmp_path: Path) -> Any:
    """The rig on a tokenizer's folder that has an image processor, as vision models have."""
    from transformers import Qwen2VLImageProcessor

    folder = tmp_path / "vision"
    shutil.copytree(rig.tokenizer, folder)
    Qwen2VLImageProcessor(patch_size=14, merge_size=2).save_pretrained(str(folder))
    return replace(rig, tokenizer=folder, renderer_name="qwen3_5")


async def test_a_tools_image_reaches_a_vision_renderer_as_an_image(sees: Any) -> None:
    """As a chunk of its own in the next prompt, which still begins with the last one and what was sampled."""
    trajectory, *_ = await run(sees, [sees.call("picture"), sees.reply("Red.")])
    first, second = trajectory.transitions
    kinds = [type(chunk).__name__ for chunk in second.ob.chunks]
    assert kinds.count("ImageChunk") == 1
    sampled_so_far = [*first.ob.to_ints(), *first.ac.tokens]
    text = [token for chunk in second.ob.chunks if hasattr(chunk, "tokens") for token in chunk.tokens]
    assert text[: len(sampled_so_far)] == sampled_so_far
    assert len(trajectory_to_data(trajectory, 1.0)) == 1


async def test_a_hook_may_speak_after_an_end_that_it_cleared(rig: Any) -> None:
    """It is the end all the same, and nothing of it is in the run."""

    class Both(Clears, Injects):
        pass

    hooks = Both(1)
    trajectory, total, *_ = await run(rig, [rig.call("add", number=3), rig.reply("Done.")], hooks=hooks)
    assert (len(trajectory.transitions), total) == (3, 0.25)
    assert [event.kind for event in rig.index.events(rig.filed()[0].run_id)].count("message") == 3


def test_every_part_of_a_tools_answer_is_said(rig: Any) -> None:
    """A text that is in the answer's text already is not said twice; parts of kinds that nobody knows are named."""
    from agent_env.training._messages import answer_message

    parts = [
        {"type": "text", "text": "one"},
        {"type": "text", "text": "two"},
        {"type": "audio", "mimeType": "audio/wav"},
    ]
    parts += [{"type": "image", "data": "", "mimeType": "image/png"}] * 2 + [{"type": "resource"}]
    parts = [{"type": "text", "text": "on"}, *parts]
    message = answer_message("one", parts, name="look", call_id=None)
    assert message["content"] == "one\non\ntwo\n[audio: audio/wav]\n[image: image/png]\n[image: image/png]\n[resource]"


async def test_a_tools_image_is_a_placeholder_for_other_renderers(rig: Any) -> None:
    """The model is told that there was one."""
    _, _, _, policy = await run(rig, [rig.call("picture"), rig.reply("I cannot see it.")])
    text = rig.framing.renderer.tokenizer.decode(policy.prompts[1])
    assert "a red square\n[image: image/png]" in text
