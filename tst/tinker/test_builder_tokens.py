"""Tokens in, tokens out: what was sampled is what later messages see and what is trained."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tinker_cookbook.renderers import ToolCall, get_renderer, register_renderer, unregister_renderer
from tinker_cookbook.renderers.qwen3 import Qwen3InstructRenderer
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollouts import do_group_rollout

from agent_env.training._framing import Framing, History, framing_of

KEEP_HISTORY = ["qwen3_instruct"]
"""Renderers whose template writes earlier messages as they were produced."""
REWRITE_HISTORY = ["qwen3", "qwen3_disable_thinking", "qwen3_5", "qwen3_5_disable_thinking", "qwen3_8_disable_thinking"]
"""Renderers whose template takes the (empty) thinking block out of earlier messages, or frames it in another way."""


async def played(rig: Any, script: Any, task: str = "plain-0") -> tuple[Any, Any]:
    """A rollout's trajectory, and the policy that saw its prompts."""
    policy = rig.policy(script)
    group = await do_group_rollout(rig.group(task), policy)
    return group.trajectories_G[0], policy


@pytest.mark.parametrize("renderer_name", [*KEEP_HISTORY, *REWRITE_HISTORY])
async def test_within_a_turn_each_prompt_is_the_last_one_and_the_sampled_tokens_and_what_is_new(
    rig: Any, renderer_name: str
) -> None:
    """Every prompt begins with the one before and exactly what was sampled after it; the rollout is one datum."""
    rig = replace(rig, renderer_name=renderer_name)
    trajectory, _ = await played(rig, rig.submits)
    transitions = trajectory.transitions
    assert len(transitions) == 3
    for before, after in pairwise(transitions):
        so_far = [*before.ob.to_ints(), *before.ac.tokens]
        assert after.ob.to_ints()[: len(so_far)] == so_far
        new = rig.framing.renderer.tokenizer.decode(after.ob.to_ints()[len(so_far) :])
        assert new.count("<tool_response>") == 1
        assert new.strip().startswith("<|im_start|>user")
    (datum,) = trajectory_to_data(trajectory, 1.0)
    assert sum(datum.loss_fn_inputs["mask"].data) == sum(len(step.ac.tokens) for step in transitions)


@pytest.mark.parametrize("renderer_name", KEEP_HISTORY)
async def test_where_the_template_keeps_history_the_pieces_are_the_whole(rig: Any, renderer_name: str) -> None:
    """Put together piece by piece, a prompt has the tokens of the conversation rendered whole."""
    rig = replace(rig, renderer_name=renderer_name)
    builder = rig.group()
    (env,) = await builder.make_envs()
    prompt, _ = await env.initial_observation()
    for message in (rig.call("add", number=3), rig.call("add", text="More.", number=4)):
        prompt = (await env.step(rig.framing.written(message))).next_observation
        assert prompt.to_ints() == rig.framing.renderer.build_generation_prompt(env.episode.messages).to_ints()
    await builder.cleanup()


@pytest.mark.parametrize("renderer_name", REWRITE_HISTORY)
async def test_where_the_template_rewrites_history_the_pieces_differ_in_that_only(rig: Any, renderer_name: str) -> None:
    """What a whole rendering has otherwise is the thinking block of earlier messages, and nothing else."""
    rig = replace(rig, renderer_name=renderer_name)
    builder = rig.group()
    (env,) = await builder.make_envs()
    await env.initial_observation()
    prompt = (await env.step(rig.framing.written(rig.call("add", number=3)))).next_observation
    decode = rig.framing.renderer.tokenizer.decode
    whole = decode(rig.framing.renderer.build_generation_prompt(env.episode.messages).to_ints())
    await builder.cleanup()
    empty = "<think>\n\n</think>\n\n"
    assert decode(prompt.to_ints()).replace(empty, "") == whole.replace(empty, "")


async def test_a_sampled_message_is_kept_as_it_was_sampled_and_not_as_it_would_be_rendered(rig: Any) -> None:
    """JSON with other spacing than the template writes stays so in the next prompt."""
    tokenizer = rig.framing.renderer.tokenizer
    odd = '<tool_call>\n{"arguments":{"number":3},  "name":"add"}\n</tool_call><|im_end|>'
    trajectory, policy = await played(rig, [rig.Say(tokens=tokenizer.encode(odd)), *rig.submits[1:]])
    assert odd in tokenizer.decode(policy.prompts[2])
    assert len(trajectory_to_data(trajectory, 1.0)) == 1


async def test_a_call_costs_what_is_new(rig: Any) -> None:
    """After the first prompt no rendering grows with the conversation."""
    rendered: list[int] = []
    renderer = rig.framing.renderer
    original = renderer.build_generation_prompt
    try:
        renderer.build_generation_prompt = lambda messages: (rendered.append(len(messages)), original(messages))[1]
        # Totals that no other test comes to: an answer that was rendered before is not rendered again.
        await played(rig, [*[rig.call("add", number=1009)] * 20, rig.reply("Done.")])
    finally:
        del renderer.build_generation_prompt
    rendered = [messages for messages in rendered if messages > 1]  # the policy's own are of one message
    assert rendered[-20:] == [3] * 20  # a stand-in of two, and the answer
    assert rendered[:-20] in ([], [2])  # the first prompt, where no rollout had it before


async def test_rendering_never_leaves_the_event_loop(rig: Any) -> None:
    """All prompts of 64 rollouts are rendered in one thread: the way to another would cost more than a prompt."""
    threads: set[int] = set()
    renderer = rig.framing.renderer
    original = renderer.build_generation_prompt
    try:
        renderer.build_generation_prompt = lambda messages: (threads.add(threading.get_ident()), original(messages))[1]
        group = await rig.play(size=64)
    finally:
        del renderer.build_generation_prompt
    assert threads == {threading.get_ident()}
    assert group.get_total_rewards() == [1.0] * 64


async def test_a_new_turn_is_rendered_again_where_the_template_rewrites_history(rig: Any) -> None:
    """Two turns are two datums with such a template: the first turn's messages look otherwise in the second."""
    script = [rig.call("add", number=3), rig.reply("Added."), rig.call("submit", total=3)]
    trajectory, policy = await played(rig, script, "two-turns")
    assert len(trajectory_to_data(trajectory, 1.0)) == 2
    assert "Now the total." in rig.framing.renderer.tokenizer.decode(policy.prompts[2])


async def test_a_new_turn_goes_on_where_the_template_keeps_history(rig: Any) -> None:
    """Two turns are one datum with a renderer that keeps what was said."""
    rig = replace(rig, renderer_name="qwen3_instruct")
    script = [rig.call("add", number=3), rig.reply("Added."), rig.call("submit", total=3)]
    trajectory, policy = await played(rig, script, "two-turns")
    assert len(trajectory_to_data(trajectory, 1.0)) == 1
    text = rig.framing.renderer.tokenizer.decode(policy.prompts[2])
    assert text.count("Now the total.") == 1


async def test_thinking_stays_in_the_turn_that_it_was_thought_in(rig: Any) -> None:
    """Qwen3's own template keeps the thinking of the turn under way; so do the prompts, one datum a turn."""
    rig = replace(rig, renderer_name="qwen3")
    thought = {**rig.call("add", number=3), "content": [{"type": "thinking", "thinking": "three first"}]}
    trajectory, policy = await played(rig, [thought, *rig.submits[1:]])
    assert "three first" in rig.framing.renderer.tokenizer.decode(policy.prompts[2])
    assert len(trajectory_to_data(trajectory, 1.0)) == 1


def test_a_renderer_that_cannot_be_continued_is_found_out_by_rendering_not_by_name(
    tokenizer_dir: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A renderer that numbers answers by their place cannot be continued, whatever it claims."""

    class Numbering(Qwen3InstructRenderer):
        def render_message(self, message: Any, ctx: Any) -> Any:
            numbered = (
                {**message, "content": f"{ctx.idx}: {message['content']}"} if message["role"] == "tool" else message
            )
            return super().render_message(numbered, ctx)

    class Reversed(Qwen3InstructRenderer):
        def build_generation_prompt(self, messages: Any, role: str = "assistant", prefill: str | None = None) -> Any:
            return super().build_generation_prompt(list(reversed(messages)), role, prefill)

    class Forgetful(Qwen3InstructRenderer):
        has_extension_property = False

    register_renderer("numbering", lambda tokenizer, _: Numbering(tokenizer))
    try:
        with caplog.at_level(logging.WARNING):
            framing = framing_of("numbering", str(tokenizer_dir))
            framing_of("numbering", str(tokenizer_dir))
    finally:
        unregister_renderer("numbering")
    (warning,) = [record.message for record in caplog.records if "cannot be continued" in record.message]
    assert "numbering" in warning
    assert "tool answers differently after another conversation" in warning
    tokenizer = framing.renderer.tokenizer
    assert not goes_on(framing, "tool")
    assert not goes_on(Framing(Reversed(tokenizer)), "tool")
    assert goes_on(Framing(Forgetful(tokenizer)), "tool")
    assert not goes_on(Framing(Forgetful(tokenizer)), "user")


def goes_on(framing: Framing, role: str) -> bool:
    """Whether a conversation is continued with a message of `role` after a reply, or an answer after a call."""
    start: list[Any] = [{"role": "user", "content": "Go."}]
    call = ToolCall(function=ToolCall.FunctionBody(name="add", arguments='{"number": 3}'), id="add:0")
    said: Any = {"role": "assistant", "content": "Yes."} | ({"tool_calls": [call]} if role == "tool" else {})
    new: Any = {"role": role, "content": "3"} | ({"name": "add", "tool_call_id": "add:0"} if role == "tool" else {})
    return framing.continued(framing.first(start), framing.written(said), [new]) is not None


def test_a_template_that_says_the_date_is_continued_on_the_next_day_too(tokenizer_dir: Any) -> None:
    """The frame of an answer is what the template writes today, also where a training runs past midnight."""

    class Dated(Qwen3InstructRenderer):
        day = "Monday"

        def render_message(self, message: Any, ctx: Any) -> Any:
            is_first = ctx.idx == 0
            dated = {**message, "content": f"{self.day}. {message['content']}"} if is_first else message
            return super().render_message(dated, ctx)

    renderer = Dated(framing_of("qwen3_instruct", str(tokenizer_dir)).renderer.tokenizer)
    framing = Framing(renderer)
    assert goes_on(framing, "tool")
    renderer.day = "Tuesday, the day after"
    assert goes_on(framing, "tool")
    assert goes_on(framing, "user")


async def test_what_was_sampled_after_the_end_of_a_message_is_not_continued(rig: Any) -> None:
    """Tokens after the stop token are no part of the message: the next prompt is the conversation, rendered whole."""
    tokens = rig.framing.written(rig.call("add", number=3))
    trajectory, policy = await played(rig, [rig.Say(tokens=[*tokens, 70]), rig.call("submit", total=3)])
    assert len(trajectory_to_data(trajectory, 1.0)) == 2
    junk = rig.framing.renderer.tokenizer.decode([tokens[-1], 70])
    assert junk not in rig.framing.renderer.tokenizer.decode(policy.prompts[1])


async def test_a_renderer_that_cannot_be_continued_renders_the_whole_each_time(rig: Any) -> None:
    """The fallback is the cookbook's own way, and it still plays."""
    framing = Framing(get_renderer("qwen3_disable_thinking", rig.framing.renderer.tokenizer), History.TEMPLATE)
    builder = rig.group()
    builder._env = lambda rollout, _: type(builder)._env(builder, rollout, framing)
    group = await do_group_rollout(builder, rig.policy(rig.submits))
    assert group.get_total_rewards() == [1.0]
    assert len(trajectory_to_data(group.trajectories_G[0], 1.0)) == 3


@pytest.fixture
def chat_rig(rig: Any, tmp_path: Path) -> Any:
    """A bundle without tools, whose task has three prompts."""
    files = {
        "bundle.yaml": "name: chat\nversion: 1.0.0\ndescription: Talk.\nlicense: Apache-2.0\n"
        "agents:\n  talker: {kind: played, system_prompt: Talk.}\n",
        "tasks/talk.yaml": "id: talk\nprompt: [Hello., And now?, Bye.]\nverify: {python: verifiers/polite.py}\n",
        "verifiers/polite.py": "def score(episode):\n    return len(episode.replies) / 3\n",
    }
    for name, text in files.items():
        (tmp_path / "chat" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "chat" / name).write_text(text)
    return replace(rig, bundle=tmp_path / "chat", renderer_name="role_colon")


async def test_a_bundle_without_tools_is_played_with_role_colon_as_one_sequence(chat_rig: Any) -> None:
    """Its replies end with the start of the next message; turns go on from that, and the rollout is one datum."""
    trajectory, policy = await played(
        chat_rig, [chat_rig.reply("Hi."), chat_rig.reply("I sit."), chat_rig.reply("Bye.")], "talk"
    )
    assert sum(step.reward for step in trajectory.transitions) == 1.0
    (datum,) = trajectory_to_data(trajectory, 1.0)
    assert sum(datum.loss_fn_inputs["mask"].data) == sum(len(step.ac.tokens) for step in trajectory.transitions)
    said = "System: Talk.\n\nUser: Hello.\n\nAssistant: Hi.\n\nUser: And now?\n\nAssistant: I sit.\n\nUser: Bye.\n\nAssistant:"
    assert chat_rig.framing.renderer.tokenizer.decode(policy.prompts[-1]) == said


async def test_a_reply_that_ends_in_end_of_text_is_a_clean_end(chat_rig: Any) -> None:
    """End-of-text is no part of the conversation: the next turn is rendered whole, and nothing is cut."""
    tokenizer = chat_rig.framing.renderer.tokenizer
    ended = chat_rig.Say(tokens=[*tokenizer.encode(" Hi."), tokenizer.eos_token_id])
    trajectory, policy = await played(chat_rig, [ended, chat_rig.reply("I sit."), chat_rig.reply("Bye.")], "talk")
    assert sum(step.reward for step in trajectory.transitions) == 1.0
    assert len(trajectory_to_data(trajectory, 1.0)) == 2
    said = "System: Talk.\n\nUser: Hello.\n\nAssistant: Hi.\n\nUser: And now?\n\nAssistant:"
    assert tokenizer.decode(policy.prompts[1]) == said


def test_the_same_answers_are_rendered_once(tokenizer_dir: Any) -> None:
    """The rollouts of a group make many of the same calls; another answer, or another tool's, is rendered for itself."""
    rendered: list[str] = []

    class Counting(Qwen3InstructRenderer):
        def render_message(self, message: Any, ctx: Any) -> Any:
            rendered.append(message["content"])
            return super().render_message(message, ctx)

    register_renderer("counting", lambda tokenizer, image_processor=None: Counting(tokenizer))
    try:
        framing = framing_of("counting", str(tokenizer_dir))
    finally:
        unregister_renderer("counting")
    start = framing.first([{"role": "user", "content": "Look."}])
    said = framing.written({"role": "assistant", "content": "", "tool_calls": [call_of("look")]})

    def after(text: str) -> Any:
        rendered.clear()
        answer = {"role": "tool", "content": text, "name": "look", "tool_call_id": ""}
        return framing.continued(start, said, [answer])

    first, was_rendered = after("a lamp"), list(rendered)
    again = after("a lamp")
    assert "a lamp" in was_rendered
    assert rendered == []
    assert again.to_ints() == first.to_ints()
    assert after("a chair").to_ints() != first.to_ints()
    assert "a chair" in rendered


def call_of(name: str) -> ToolCall:
    """A call of a tool."""
    return ToolCall(function=ToolCall.FunctionBody(name=name, arguments="{}"))
