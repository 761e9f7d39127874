"""What a run has come to: tools, seconds, tokens, and what a group sums up of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_env.episode.sink import Event, EventKind, RunHeader
from agent_env.errors import UsageError
from agent_env.outcome import EpisodeResult, Failure, FailureKind, Outcome
from agent_env.runs import RunIndex, RunSink, SampledTokens, ToolCount

Make = Callable[..., RunSink]
Do = Callable[..., None]


def test_calls_and_errors_are_counted_by_tool(index: RunIndex, begin: Make, tell: Do) -> None:
    """In the order of the first call; an error counts for the tool that answered."""
    sink = begin(index)
    for tool, is_error in (("read", False), ("write", True), ("read", True), ("read", False)):
        tell(sink, EventKind.CALL, {"call_id": "c", "tool": tool, "arguments": {}})
        tell(sink, EventKind.ANSWER, {"call_id": "c", "tool": tool, "text": "", "is_error": is_error})
    index.flush()
    run = index.find(sink.run_id)
    assert list(run.tools) == ["read", "write"]
    assert run.tools == {"read": ToolCount(calls=3, errors=1), "write": ToolCount(calls=1, errors=1)}
    assert (run.calls, run.call_errors) == (4, 2)


def test_names_that_a_model_makes_up_do_not_fill_the_list(index: RunIndex, begin: Make, tell: Do) -> None:
    """A hundred names, each cut to a hundred characters; the rest is counted together."""
    sink = begin(index)
    for number in range(150):
        tell(sink, EventKind.CALL, {"call_id": "c", "tool": f"{number:03}{'x' * 1000}", "arguments": {}})
    index.flush()
    tools = index.find(sink.run_id).tools
    assert len(tools) == 101
    assert tools["…"].calls == 50
    assert max(map(len, tools)) == 100


def test_seconds_are_counted_by_what_they_went_to(index: RunIndex, begin: Make, tell: Do, end: Do) -> None:
    """The env is set up, the model thinks, two calls run at once, a verifier scores; what is between is other."""
    sink = begin(index)
    start = time.time() - 100.0
    sink._log.totals._at_s = start  # the run was opened then
    tell(sink, EventKind.STEP_STARTED, {"kind": "deploy_env"}, start + 1)
    tell(sink, EventKind.STEP_ENDED, {"duration_s": 2.0}, start + 3)
    tell(sink, EventKind.TURN_STARTED, {"agent": "a", "kind": "played", "prompt": "go"}, start + 4)
    tell(sink, EventKind.MESSAGE, {"message": {"role": "assistant", "content": ""}}, start + 9)
    for call_id, at_s in (("1", 10), ("2", 11)):
        tell(sink, EventKind.CALL, {"call_id": call_id, "tool": "t"}, start + at_s)
    for call_id, at_s in (("1", 14), ("2", 16)):
        tell(sink, EventKind.ANSWER, {"call_id": call_id, "tool": "t", "text": ""}, start + at_s)
    tell(sink, EventKind.MESSAGE, {"message": {"role": "assistant", "content": ""}}, start + 20)
    tell(sink, EventKind.TURN_ENDED, {"reply": ""}, start + 20)
    tell(sink, EventKind.TURN_STARTED, {"agent": "customer", "kind": "model", "prompt": "go"}, start + 20)
    tell(sink, EventKind.TURN_ENDED, {"reply": ""}, start + 27)
    tell(sink, EventKind.STEP_STARTED, {"kind": "verify"}, start + 28)
    tell(sink, EventKind.STEP_ENDED, {"duration_s": 30.0}, start + 58)
    index.flush()
    times = index.find(sink.run_id).times
    assert times == pytest.approx({"env": 2, "model": 10, "tools": 6, "verify": 30, "other": 10}, abs=0.01)
    end(sink)
    index.flush()
    assert sum(index.find(sink.run_id).times.values()) == pytest.approx(100, abs=10)


@pytest.mark.parametrize("at_s", [0.0, 1e12, float("inf"), float("nan")])
def test_a_clock_that_is_wrong_makes_no_seconds_up(index: RunIndex, begin: Make, tell: Do, at_s: float) -> None:
    """An event from long ago or from the future counts as now."""
    sink = begin(index)
    tell(sink, EventKind.STEP_STARTED, {"kind": "verify"}, at_s)
    tell(sink, EventKind.STEP_ENDED, {}, at_s)
    index.flush()
    run = index.find(sink.run_id)
    assert sum(run.times.values()) <= time.time() - run.opened_at_s


@pytest.mark.parametrize("at_s", [-1.0, 1e12, float("inf"), float("nan")])
def test_a_time_that_no_page_can_show_is_that_of_the_recording(
    index: RunIndex, begin: Make, tell: Do, at_s: float
) -> None:
    """Pages, exports and reports compute with it."""
    sink = begin(index)
    tell(sink, EventKind.STEP_STARTED, {"kind": "verify"}, at_s)
    index.flush()
    assert index.read(sink.run_id).events[0].at_s == pytest.approx(time.time(), abs=60)


def test_tokens_are_summed_where_they_are_counted(index: RunIndex, begin: Make, say: Do) -> None:
    """Over the messages; a run without counts has none, and not zero."""
    counted, uncounted = begin(index), begin(index)
    say(counted, "a", index=0, prompt_tokens=100, sampled_tokens=7)
    say(counted, "b", index=1, prompt_tokens=120, sampled_tokens=5)
    say(uncounted, "a")
    index.flush()
    run = index.find(counted.run_id)
    assert (run.prompt_tokens, run.sampled_tokens) == (220, 12)
    assert index.find(uncounted.run_id).sampled_tokens is None


def test_labels_say_which_policy_played(index: RunIndex, record: Make) -> None:
    """Step, model and renderer; a label of another type says nothing."""
    sink = record(index, labels={"policy_step": 3, "model": "m", "renderer": "r"})
    other = record(index, labels={"policy_step": "three", "model": 4})
    index.flush()
    run = index.find(sink.run_id)
    assert (run.policy_step, run.model, run.renderer) == (3, "m", "r")
    run = index.find(other.run_id)
    assert (run.policy_step, run.model, run.renderer) == (None, "", "")


def test_a_group_has_the_means_of_its_completed_runs(
    index: RunIndex, begin: Make, say: Do, end: Do, record: Make
) -> None:
    """Runs that failed or are under way are in no mean; tokens are over the runs that counted them."""
    for number, tokens in ((1, None), (3, 30)):
        sink = begin(index)
        for _ in range(number):
            say(sink, "x", **({} if tokens is None else {"prompt_tokens": 100, "sampled_tokens": tokens}))
        end(sink, reward=float(number))
    record(
        index, texts=["a"] * 50, outcome=Outcome.FAILED, failure=Failure(kind=FailureKind.AGENT, step="", message="")
    )
    begin(index)
    index.flush()
    group = index.group("g")
    assert (group.finished, group.messages_mean, group.turns_mean) == (2, 2.0, 0.0)
    assert (group.reward_min, group.reward_mean, group.reward_max) == (1.0, 2.0, 3.0)
    assert (group.prompt_tokens_mean, group.sampled_tokens_mean) == (300.0, 90.0)
    assert group.duration_s_mean is not None


def test_a_group_without_a_completed_run_has_no_means(index: RunIndex, begin: Make) -> None:
    """Nothing is not zero."""
    begin(index)
    index.flush()
    group = index.group("g")
    assert (group.finished, group.messages_mean, group.sampled_tokens_mean, group.reward_max) == (0, None, None, None)


def test_sums_of_a_group_go_with_its_runs(index: RunIndex, record: Make) -> None:
    """After deleting some runs, the means are those of the rest."""
    record(index, task="a", texts=["x"] * 9, reward=9.0)
    record(index, task="b", texts=["x"], reward=1.0)
    index.flush()
    assert index.delete("task_id = 'a'") == 1
    group = index.group("g")
    assert (group.finished, group.messages_mean, group.reward_max) == (1, 1.0, 1.0)


def test_sampled_tokens_come_back_also_when_they_come_late(index: RunIndex, record: Make) -> None:
    """After the end, by message, a page at a time; again replaces."""
    sink = record(index)
    tokens = SampledTokens(ids=(1, 2**31 - 1), logprobs=(-0.5, -0.25), pieces=("a", "⟨0xE2⟩"))
    without = SampledTokens(ids=(7,), logprobs=None, pieces=("x",))
    sink.sampled(0, without)
    sink.sampled(0, tokens)
    for message in range(1, 5):
        sink.sampled(message, without)
    index.flush()
    sink.sampled(4, tokens)
    index.flush()
    assert index.sampled(sink.run_id) == {0: tokens, 1: without, 2: without, 3: without, 4: tokens}
    assert list(index.sampled(sink.run_id, first_message=2, limit=2)) == [2, 3]


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (SampledTokens(ids=(1, 2), logprobs=None, pieces=("a",)), "2 ids, 1 pieces, no log-probs"),
        (SampledTokens(ids=(1,), logprobs=(), pieces=("a",)), "1 ids, 1 pieces, 0 log-probs"),
        (SampledTokens(ids=(2**31,), logprobs=None, pieces=("a",)), "from 0 to 2147483647"),
    ],
)
def test_tokens_that_do_not_fit_together_are_refused(
    index: RunIndex, record: Make, tokens: SampledTokens, words: str
) -> None:
    """At the call, not when someone reads them."""
    sink = record(index)
    with pytest.raises(UsageError, match=words):
        sink.sampled(0, tokens)


def test_tokens_of_a_deleted_run_are_gone(index: RunIndex, record: Make) -> None:
    """Nothing of it stays in the file."""
    sink = record(index)
    sink.sampled(0, SampledTokens(ids=(1,), logprobs=None, pieces=("a",)))
    index.flush()
    index.delete("true")
    with index._reader.asking() as conn:
        assert conn.execute("SELECT count(*) FROM tokens").fetchone()[0] == 0


@pytest.mark.parametrize("how", ["deleted", "corrected"])
def test_a_reward_that_was_far_off_leaves_nothing_behind_in_the_standard_error(tmp_path: Path, how: str) -> None:
    """Its square had eaten the digits of the others: they are added up again once it is gone."""
    header = RunHeader(task_id="t", bundle_name="b", bundle_version="1", params={}, tags=())
    with RunIndex.open(tmp_path) as index:
        rewards = [0.0, 1.0] * 20
        sinks: list[RunSink] = []
        for reward in [1e12, *rewards]:
            sinks.append(index.run("g"))
            sinks[-1].opened(header)
            sinks[-1].ended(EpisodeResult(outcome=Outcome.COMPLETED, run_id=sinks[-1].run_id, scores={}))
            sinks[-1].set_reward(reward)
        index.flush()
        if how == "deleted":
            index.delete("reward > 1e6")
        else:
            sinks[0].set_reward(0.5)
            rewards.append(0.5)
            index.flush()
        group = index.group("g")
    assert group.reward_mean == pytest.approx(0.5)
    assert group.reward_se == pytest.approx(statistics.stdev(rewards) / len(rewards) ** 0.5)


def test_a_count_of_tokens_that_fits_no_file_is_left_out(tmp_path: Path) -> None:
    """It stopped the writer, and with it every run of the process."""
    with RunIndex.open(tmp_path) as index:
        sink = index.run("g")
        sink.opened(RunHeader(task_id="t", bundle_name="b", bundle_version="1", params={}, tags=()))
        data = {"message": {"role": "assistant", "content": "Yes."}, "prompt_tokens": 2**63, "sampled_tokens": 7}
        sink.event(Event(kind=EventKind.MESSAGE, at_s=1.0, step="s", turn=0, data=data))
        index.flush()
        run = index.find(sink.run_id)
        assert (run.prompt_tokens, run.sampled_tokens) == (None, 7)


@pytest.mark.parametrize("page", [{"limit": 0}, {"limit": -1}, {"limit": 10**30}])
def test_a_page_that_cannot_be_is_said(tmp_path: Path, page: dict[str, Any]) -> None:
    """In a list, a selection, a search, a run."""
    with RunIndex.open(tmp_path) as index:
        asking: tuple[Callable[[], object], ...] = (
            lambda: index.runs("g", **page),
            lambda: index.select(**page),
            lambda: index.search("x", **page),
            lambda: index.read("x", **page),
            lambda: index.read("x", first=10**30),
        )
        for ask in asking:
            with pytest.raises(UsageError, match="a page"):
                ask()
