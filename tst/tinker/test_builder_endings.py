"""Every way that a rollout ends: it is scored then, or its failure is raised then, and its slot is free."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import tinker
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.rollout_runner import run_rollout
from tinker_cookbook.rl.rollout_strategy import MinViableGroup

from agent_env.errors import EpisodeFailedError
from agent_env.outcome import CutReason
from agent_env.runs import RunFailure, RunState


def last(group: Any) -> tuple[float, dict[str, Any]]:
    """The reward and the last step's metrics of a group's only rollout."""
    (reward,) = group.get_total_rewards()
    return reward, group.trajectories_G[0].transitions[-1].metrics


async def test_an_accepted_submit_ends_the_rollout_with_its_score(rig: Any) -> None:
    """The answer that ends the turn is the end: nothing more is sampled, and it is no cut."""
    group = await rig.play()
    reward, metrics = last(group)
    assert reward == 1.0
    assert metrics["cut"] == 0
    assert metrics["score/right"] == 1.0
    assert (metrics["messages"], metrics["tool_calls"], metrics["tool_errors"]) == (3, 3, 0)
    assert len(group.trajectories_G[0].transitions) == 3
    assert group.trajectories_G[0].stop_reason == "tool_stopped"
    (run,) = rig.filed()
    assert (run.state, run.reward, run.cut) == (RunState.COMPLETED, 1.0, None)


async def test_a_reply_ends_the_rollout_with_its_score(rig: Any) -> None:
    """A message without a call is the agent's reply, and the verifiers score what it left."""
    reward, metrics = last(await rig.play([rig.call("add", number=3), rig.reply("Done.")]))
    assert (reward, metrics["cut"], metrics["stop/completed"]) == (0.25, 0, 1.0)


async def test_several_calls_of_a_message_run_in_order(rig: Any) -> None:
    """Each call of one message is answered, one after the other, on the same state."""
    both = rig.calls(("add", '{"number": 3}'), ("add", '{"number": 4}'))
    reward, metrics = last(await rig.play([both, rig.call("submit", total=7)]))
    assert (reward, metrics["tool_calls"]) == (1.0, 3)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (("add", '{"number": "three"}'), "expected an integer"),
        (("subtract", "{}"), "there is no tool 'subtract'"),
        (("add", '{"number": 13}'), "13 is not added here"),
    ],
)
async def test_a_models_mistake_is_answered_and_the_rollout_goes_on(rig: Any, bad: tuple[str, str], says: str) -> None:
    """Arguments that do not fit, a tool that is not there and a tool that refuses are answers, not failures."""
    policy = rig.policy([rig.calls(bad, ("add", '{"number": 7}')), rig.call("submit", total=7)])
    from tinker_cookbook.rl.rollouts import do_group_rollout

    reward, metrics = last(await do_group_rollout(rig.group(), policy))
    assert (reward, metrics["tool_errors"]) == (1.0, 1)
    assert says in rig.framing.renderer.tokenizer.decode(policy.prompts[1])


async def test_an_unreadable_call_is_answered_as_a_tool_error(rig: Any) -> None:
    """Text between the call's marks that is no JSON does not end the rollout: the model is told, and may try again."""
    tokenizer = rig.framing.renderer.tokenizer
    broken = tokenizer.encode('<tool_call>\n{"name": "add", "arguments": {"number": \n</tool_call><|im_end|>')
    reward, metrics = last(
        await rig.play([rig.Say(tokens=broken), rig.call("add", number=7), rig.call("submit", total=7)])
    )
    assert (reward, metrics["tool_errors"], metrics["tool_calls"]) == (1.0, 1, 3)
    (run,) = rig.filed()
    answers = [event.data for event in rig.index.events(run.run_id) if event.kind == "answer"]
    assert answers[0]["tool"] == "add"
    assert "could not be read" in answers[0]["text"]


@pytest.mark.parametrize("penalty", [0.0, -0.5])
@pytest.mark.parametrize(
    ("cut", "script", "task", "settings"),
    [
        (CutReason.TOKEN_LIMIT, ["add", "length"], "plain-0", {}),
        (CutReason.PARSE_FAILURE, ["add", "malformed"], "plain-0", {}),
        (CutReason.CONTEXT_OVERFLOW, ["add"], "plain-0", {"max_trajectory_tokens": "first + 10"}),
        (CutReason.MESSAGE_LIMIT, ["add"], "plain-0", {"max_messages": 2}),
        (CutReason.MESSAGE_LIMIT, ["add", "reply"], "two-turns", {"max_messages": 2}),
        (CutReason.PROMPT_OVER_BUDGET, [], "long", {"max_trajectory_tokens": 200, "max_generation_tokens": 10}),
    ],
)
async def test_a_cut_is_scored_where_it_got_to(
    rig: Any, cut: CutReason, script: list[str], task: str, settings: dict[str, Any], penalty: float
) -> None:
    """Each cut lets the verifiers score, adds that to `failed_reward`, and is named once in the metrics and in the run."""
    said = {
        "add": rig.call("add", number=3),
        "length": rig.Say(tokens=rig.framing.written(rig.call("add", number=3))[:-1], stop_reason="length"),
        "malformed": rig.Say(tokens=rig.framing.written(rig.call("add", number=3))[:-1]),
        "reply": rig.reply("Done."),
    }
    if settings.get("max_trajectory_tokens") == "first + 10":
        env = (await (probe := rig.group(group="test/probe")).make_envs())[0]
        settings = {"max_trajectory_tokens": (await env.initial_observation())[0].length + 10}
        await probe.cleanup()
    group = await rig.play([said[name] for name in script], task, failed_reward=penalty, **settings)
    reward, metrics = last(group)
    score = 0.25 if script else 0.0
    assert reward == score + penalty
    assert metrics["score/right"] == score
    assert metrics["cut"] == 1
    assert [key for key, value in metrics.items() if key.startswith("cut/") and value] == [f"cut/{cut}"]
    (run,) = rig.filed()
    assert (run.state, run.cut, run.reward) == (RunState.COMPLETED, cut, score + penalty)
    assert rig.slots(256).taken == 0
    if script[-1:] in (["length"], ["malformed"]):
        said = [event.data["message"] for event in rig.index.events(run.run_id) if event.kind == "message"]
        assert '{"name": "add", "arguments": {"number": 3}}' in said[-1]["content"]


async def test_finishing_on_the_last_allowed_message_is_no_cut(rig: Any) -> None:
    """`max_messages` messages may be written, and the last of them may be the end."""
    reward, metrics = last(await rig.play(max_messages=3))
    assert (reward, metrics["cut"]) == (1.0, 0)


@pytest.mark.parametrize(
    ("limits", "script", "cut"),
    [
        (RolloutLimits(max_turns=1), ["add"], CutReason.RUNNER_LIMIT),
        (RolloutLimits(max_sampled_tokens=40), ["add"], CutReason.RUNNER_LIMIT),
        (RolloutLimits(rollout_timeout_seconds=0.3), ["add", "slow"], CutReason.TIMEOUT),
        (RolloutLimits(rollout_timeout_seconds=0.3), ["add", "wait"], CutReason.TIMEOUT),
    ],
)
async def test_a_runners_stop_is_scored_though_it_tells_the_env_nothing(
    rig: Any, limits: RolloutLimits, script: list[str], cut: CutReason
) -> None:
    """The runner returns a trajectory and never calls the env again: the score comes as the group's reward."""
    said = {
        "add": rig.call("add", number=3),
        "slow": rig.Say(message=rig.call("add", number=3), after_s=30),
        "wait": rig.call("wait", seconds=30),
    }
    builder = rig.group(size=3, max_concurrent_episodes=1)
    envs = await builder.make_envs()
    policy = rig.policy([said[name] for name in script])
    trajectories = await asyncio.gather(*(run_rollout(policy, env, limits=limits) for env in envs[:1]))  # noqa: TID251
    scored = await builder.compute_group_rewards(list(trajectories), envs[:1])
    await builder.cleanup()
    ((reward, metrics),) = scored
    assert (reward, metrics["cut"], metrics[f"cut/{cut}"]) == (0.25, 1, 1)
    assert [run.cut for run in rig.filed()] == [cut]
    assert rig.slots(1).taken == 0


async def test_a_cancelled_rollout_gives_its_slot_back_while_the_policy_samples(rig: Any) -> None:
    """Cancelled in the middle of sampling, of which the env hears nothing, the episode is abandoned."""
    builder = rig.group(max_concurrent_episodes=1)
    (env,) = await builder.make_envs()
    playing = asyncio.create_task(run_rollout(rig.policy([rig.Say(message=rig.reply("x"), after_s=30)]), env))
    await rig.until(lambda: bool(env.episode.messages))
    assert rig.slots(1).taken == 1
    playing.cancel()
    await asyncio.wait([playing])
    await rig.until(lambda: rig.slots(1).taken == 0)
    await builder.cleanup()
    assert [run.state for run in rig.filed()] == [RunState.ABANDONED]


@pytest.mark.parametrize(
    ("task", "script", "step", "says"),
    [
        ("plain-0", ["crash"], "prompt", "the counter is broken"),
        ("goes-on", ["crash"], "prompt", "the counter is broken"),
        ("nan", ["reply"], "right", "nan"),
        ("raises", ["reply"], "right", "no score today"),
        ("no-start", [], "deploy_env", "no counter here"),
    ],
)
async def test_a_failed_episode_raises_and_is_never_a_number(
    rig: Any, task: str, script: list[str], step: str, says: str
) -> None:
    """A broken env, a verifier that raises or returns NaN, a start that fails: the error names task, step and run."""
    said = {"crash": rig.call("crash"), "reply": rig.reply("Done.")}
    with pytest.raises(EpisodeFailedError, match=says) as raised:
        await rig.play([said[name] for name in script], task, max_concurrent_episodes=1)
    (run,) = rig.filed()
    assert (run.state, run.reward) == (RunState.FAILED, None)
    for named in (f"'{task}'", f"'{step}'", run.run_id):
        assert named in str(raised.value)
    assert rig.slots(1).taken == 0


async def test_a_failure_leaves_the_rest_of_the_group_to_a_tolerant_strategy(rig: Any) -> None:
    """One crash of four is a failure that `MinViableGroup` goes without; the other three are scored."""
    crashes = iter([True])

    def script(at: int, text: str) -> Any:
        return rig.call("crash") if at == 0 and next(crashes, False) else rig.submits[at]

    group = await rig.play(script, size=4, strategy=MinViableGroup(min_successful=3, max_retries=0))
    assert group.get_total_rewards() == [1.0, 1.0, 1.0]
    assert [error.error_type for error in group.rollout_errors] == ["EpisodeFailedError"]
    assert sorted(run.state for run in rig.filed()) == [*[RunState.COMPLETED] * 3, RunState.FAILED]


async def test_a_failed_sibling_is_closed_when_the_group_is_given_up(rig: Any) -> None:
    """When one rollout raises, what its siblings hold is given back by the group's cleanup, and they file as abandoned."""
    crashes = iter([True])

    def script(at: int, text: str) -> Any:
        crash = at == 0 and next(crashes, False)
        return rig.call("crash") if crash else rig.Say(message=rig.reply("late"), after_s=30)

    with pytest.raises(EpisodeFailedError, match="the counter is broken"):
        await rig.play(script, size=3)
    assert sorted(run.state for run in rig.filed()) == [RunState.ABANDONED, RunState.ABANDONED, RunState.FAILED]
    assert rig.slots(256).taken == 0


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionError("gone"), "model_server"),
        (tinker.TinkerError("gone"), "model_server"),
        (ValueError("gone"), "agent"),
    ],
)
async def test_a_policy_that_raises_leaves_nothing_under_way(rig: Any, error: Exception, kind: str) -> None:
    """An error of the sampler comes out as it is, and the run says that the episode has failed of it, and where."""
    with pytest.raises(type(error), match="gone"):
        await rig.play([rig.Say(error=error)])
    (run,) = rig.filed()
    assert run.state is RunState.FAILED
    message = f"the trainer's rollout raised {type(error).__name__}: gone"
    assert run.failure == RunFailure(kind=kind, step="prompt", message=message)
    assert rig.slots(256).taken == 0
