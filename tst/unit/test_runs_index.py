"""The run index in one process, over a real SQLite file."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_env.episode.sink import EpisodeSink, Event, EventKind, RunHeader
from agent_env.errors import RewardError, RunIndexError, UsageError
from agent_env.outcome import CutReason, EpisodeResult, Failure, FailureKind, Outcome, Score
from agent_env.runs import RunIndex, RunSink, RunState, place_of
from agent_env.runs._codec import decode, encode


def _open(sink: EpisodeSink, task: str = "day-1", params: Mapping[str, Any] | None = None) -> None:
    header = RunHeader(
        task_id=task, bundle_name="gridsim", bundle_version="1.0.0", params=params or {}, tags=("short",)
    )
    sink.opened(header)


def _say(sink: EpisodeSink, text: str) -> None:
    message = {"role": "assistant", "content": text}
    sink.event(Event(kind=EventKind.MESSAGE, at_s=time.time(), step="prompt", turn=0, data={"message": message}))


def _end(sink: EpisodeSink, **more: Any) -> None:
    scores = {"saving": Score(step="saving", value=0.5)}
    sink.ended(EpisodeResult(run_id=sink.run_id, scores=scores, **({"outcome": Outcome.COMPLETED} | more)))


def _played(index: RunIndex, group: str, reward: float | None, *, task: str = "day-1", attempt: int = 0) -> RunSink:
    sink = index.run(group, attempt=attempt)
    _open(sink, task)
    _say(sink, "hello")
    _end(sink)
    if reward is not None:
        sink.set_reward(reward)
    return sink


@pytest.fixture
def index(tmp_path: Path) -> Iterator[RunIndex]:
    """An index in a folder that is not there before."""
    with RunIndex.open(tmp_path / "new" / "runs") as opened:
        yield opened


def test_a_run_is_read_back_as_it_was_played(index: RunIndex) -> None:
    """Header, labels, events, counts, scores and reward all come back."""
    sink = index.run("grid/train/step-0003", attempt=1, labels={"policy_step": 3})
    _open(sink, params={"prices": [1, 2.5]})
    _say(sink, "ok")
    call = {"call_id": "c1", "tool": "read", "arguments": {"hour": 3}, "raw": '{"hour": 3}'}
    sink.event(Event(kind=EventKind.CALL, at_s=1.5, step="prompt", turn=0, data=call))
    answer = {"call_id": "c1", "tool": "read", "text": "no", "is_error": True}
    sink.event(Event(kind=EventKind.ANSWER, at_s=1.6, step="prompt", turn=0, data=answer))
    _end(sink, cut=CutReason.TOKEN_LIMIT)
    sink.set_reward(0.25)
    index.flush()
    record = index.read(sink.run_id)
    run = record.run
    assert (run.group, run.task_id, run.attempt, run.rollout) == ("grid/train/step-0003", "day-1", 1, 0)
    assert (run.state, run.cut, run.reward, run.scores) == (RunState.COMPLETED, "token_limit", 0.25, {"saving": 0.5})
    assert (run.event_count, run.messages, run.calls, run.call_errors) == (3, 1, 1, 1)
    assert (run.labels, record.params, record.tags) == ({"policy_step": 3}, {"prices": [1, 2.5]}, ("short",))
    assert [(event.seq, event.kind) for event in record.events] == [(0, "message"), (1, "call"), (2, "answer")]
    assert (record.events[1].data, record.events[1].at_s, record.events[1].turn) == (call, 1.5, 0)
    assert record.next_event is None


def test_an_event_is_readable_before_the_run_ends(index: RunIndex) -> None:
    """A run under way is there with what was said so far."""
    sink = index.run("g")
    _open(sink)
    _say(sink, "first")
    index.flush()
    assert index.find(sink.run_id).state is RunState.RUNNING
    assert len(index.read(sink.run_id).events) == 1
    _say(sink, "second")
    index.flush()
    assert [event.seq for event in index.events(sink.run_id)] == [0, 1]


def test_what_the_caller_changes_afterwards_is_not_recorded(index: RunIndex) -> None:
    """An event is copied when it is handed over."""
    sink = index.run("g")
    _open(sink)
    message = {"role": "assistant", "content": "as said"}
    sink.event(Event(kind=EventKind.MESSAGE, at_s=0.0, step="prompt", turn=0, data={"message": message}))
    message["content"] = "as changed"
    index.flush()
    assert index.read(sink.run_id).events[0].data["message"]["content"] == "as said"


@settings(max_examples=10, deadline=None)
@given(rewards=st.lists(st.floats(-1e3, 1e3), max_size=12), offset=st.sampled_from([0.0, 1e6]))
def test_mean_and_standard_error_are_those_of_the_scored_runs(
    rewards: list[float], offset: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Kept up run by run, the figures equal those computed over all rewards at once."""
    values = [reward + offset for reward in rewards]
    with RunIndex.open(tmp_path_factory.mktemp("runs")) as index:
        for value in values:
            _played(index, "g", value)
        _played(index, "g", None)
        index.flush()
        group = index.group("g")
    assert group.scored == len(values)
    assert group.reward_mean == (pytest.approx(statistics.fmean(values), abs=1e-6) if values else None)
    if len(values) > 1:
        error = statistics.stdev(values) / math.sqrt(len(values))
        assert group.reward_se == pytest.approx(error, rel=1e-4, abs=1e-4)
    else:
        assert group.reward_se is None


def test_failed_runs_are_counted_beside_the_mean(index: RunIndex) -> None:
    """One success and two failures: the mean is of one, and the failures are counted by kind."""
    _played(index, "g", 1.0)
    for _ in range(2):
        sink = index.run("g")
        _open(sink)
        failure = Failure(kind=FailureKind.ENV_BROKEN, step="prompt", message="gone")
        sink.ended(EpisodeResult(outcome=Outcome.FAILED, run_id=sink.run_id, scores={}, failure=failure))
        sink.set_reward(0.0)
    index.flush()
    group = index.group("g")
    assert (group.runs, group.scored, group.reward_mean) == (3, 1, 1.0)
    assert group.failures == {"env_broken": 2}
    assert group.states[RunState.FAILED] == 2


def test_rewards_set_again_replace_the_first(index: RunIndex) -> None:
    """A reward set twice counts once."""
    sink = _played(index, "g", 1.0)
    _played(index, "g", 0.0)
    index.flush()
    sink.set_reward(0.5)
    index.flush()
    assert index.group("g").reward_mean == 0.25


def test_retried_attempts_are_kept_apart(index: RunIndex) -> None:
    """Each attempt numbers its rollouts from 0."""
    for attempt in (0, 0, 1, 1):
        _played(index, "g", None, attempt=attempt)
        index.flush()
    assert [(run.attempt, run.rollout) for run in index.runs("g").runs] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_group_is_read_a_page_at_a_time_and_filtered(index: RunIndex) -> None:
    """Pages have every run once, by task; a filter by state or task leaves those."""
    ids = {_played(index, "g", None, task=f"day-{number % 3}").run_id for number in range(25)}
    under_way = index.run("g")
    _open(under_way)
    index.flush()
    first = index.runs("g", limit=10, state=RunState.COMPLETED)
    assert len(first.runs) == 10
    every = list(index.all_runs("g", state=RunState.COMPLETED))
    assert {run.run_id for run in every} == ids
    assert [run.task_id for run in every] == sorted(run.task_id for run in every)
    rest = index.runs("g", state=RunState.COMPLETED, after=first.next_page, limit=100)
    assert [run.run_id for run in (*first.runs, *rest.runs)] == [run.run_id for run in every]
    assert [run.run_id for run in index.runs("g", state=RunState.RUNNING).runs] == [under_way.run_id]
    assert len(index.runs("g", task_id="day-2").runs) == 8


def test_events_of_a_long_run_come_in_pages_and_in_order(index: RunIndex) -> None:
    """A page starts at any event, whatever was written together."""
    sink = index.run("g")
    _open(sink)
    for number in range(300):
        _say(sink, f"{number} " + "x" * (200_000 if number % 100 == 0 else 10))
        if number % 70 == 0:
            index.flush()
    index.flush()
    for first in (0, 1, 63, 64, 150, 299):
        record = index.read(sink.run_id, first=first, limit=20)
        assert [event.seq for event in record.events] == list(range(first, min(first + 20, 300)))
        assert record.next_event == (first + 20 if first < 280 else None)
    texts = [event.data["message"]["content"].split(" ")[0] for event in index.events(sink.run_id)]
    assert texts == [str(number) for number in range(300)]


def test_a_page_of_large_events_is_shorter(index: RunIndex) -> None:
    """A page stays near 4 MB, so that a run of any size is read in steps."""
    sink = index.run("g")
    _open(sink)
    for letter in "abcdef":
        _say(sink, letter * 1_500_000)
    index.flush()
    record = index.read(sink.run_id, limit=200)
    assert len(record.events) == 2
    assert record.next_event == 2
    assert [event.data["message"]["content"][0] for event in index.events(sink.run_id)] == list("abcdef")


def test_deleting_a_group_takes_what_is_below_it_and_nothing_beside_it(index: RunIndex) -> None:
    """`grid` is not the start of `grid-2`; counts and events go with the runs."""
    for name in ("grid/train/step-0001", "grid/train/step-0002", "grid", "grid-2/train/step-0001", "grid0"):
        _played(index, name, 0.5)
    assert index.delete_group("grid/train/step-0001") == 1
    assert index.delete_group("grid/train/step-0001") == 0
    assert index.delete_group("grid") == 2
    assert [group.name for group in index.groups()] == ["grid-2/train/step-0001", "grid0"]


def test_a_group_of_any_size_is_deleted_whole(index: RunIndex) -> None:
    """More runs than a transaction deletes are gone after one call."""
    for _ in range(1100):
        _open(index.run("g"))
    assert index.delete_group("g") == 1100
    assert index.groups() == []


def test_a_replayed_step_is_filed_once(index: RunIndex) -> None:
    """After a step is deleted and played again, only the second play is there."""
    _played(index, "g/train/step-0001", 0.0)
    index.delete_group("g/train/step-0001")
    again = _played(index, "g/train/step-0001", 1.0)
    index.flush()
    group = index.group("g/train/step-0001")
    assert (group.runs, group.reward_mean) == (1, 1.0)
    assert [run.run_id for run in index.all_runs("g/train/step-0001")] == [again.run_id]


def test_a_group_that_is_begun_has_only_what_is_opened_after(index: RunIndex) -> None:
    """What was filed before goes, written or not; what comes after stays, also when another process writes it first."""
    _played(index, "g/train/step-0001", 0.0)
    index.flush()
    _played(index, "g/train/step-0001", 0.0)
    _played(index, "g/train/step-0002", 0.0)
    file = next(index.folder.glob("*.sqlite*"))
    with sqlite3.connect(file, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")  # whoever waited for the disk would never come back
        index.begin_group("g/train/step-0001")
        mine = _played(index, "g/train/step-0001", 1.0)
        other.execute("ROLLBACK")
        with RunIndex.open(index.folder) as worker:
            theirs = _played(worker, "g/train/step-0001", 1.0)
    other.close()
    index.flush()
    assert {run.run_id for run in index.all_runs("g/train/step-0001")} == {mine.run_id, theirs.run_id}
    assert index.group("g/train/step-0001").reward_mean == 1.0
    assert index.group("g/train/step-0002").runs == 1


def test_a_run_that_is_under_way_when_its_group_is_begun_is_dropped(index: RunIndex) -> None:
    """It belongs to the play before."""
    before = index.run("g")
    _open(before)
    index.begin_group("g")
    after = _played(index, "g", 1.0)
    _say(before, "too late")
    _end(before)
    index.flush()
    assert [run.run_id for run in index.all_runs("g")] == [after.run_id]


def test_beginning_a_group_is_tried_again_until_the_disk_takes_it(index: RunIndex) -> None:
    """Meanwhile what is recorded raises, and is kept."""
    _played(index, "g", 0.0)
    index.flush()
    other = sqlite3.connect(next(index.folder.glob("*.sqlite*")), isolation_level=None)
    other.execute("CREATE TRIGGER refuses BEFORE DELETE ON runs BEGIN SELECT RAISE(ABORT, 'not now'); END")
    index.begin_group("g")
    with pytest.raises(RunIndexError, match="not now"):
        index.flush()
    sink = index.run("g")
    with pytest.raises(RunIndexError, match="not now"):
        _open(sink)
    other.execute("DROP TRIGGER refuses")
    other.close()
    while _is_refused(index.flush):
        time.sleep(0.01)
    assert [run.run_id for run in index.all_runs("g")] == [sink.run_id]


def _is_refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except RunIndexError:
        return True
    return False


def test_a_run_whose_group_is_deleted_under_way_is_dropped(index: RunIndex) -> None:
    """Its later events leave no orphan, and the index goes on."""
    sink = index.run("g")
    _open(sink)
    index.delete_group("g")
    _say(sink, "too late")
    _end(sink)
    _played(index, "h", 1.0)
    index.flush()
    assert [group.name for group in index.groups()] == ["h"]


def test_a_part_of_the_id_finds_a_run_when_it_is_enough(index: RunIndex) -> None:
    """A prefix of one run finds it; of several, or of none, it is a clear refusal."""
    ids = [_played(index, "g", None).run_id for _ in range(40)]
    index.flush()
    assert index.find(ids[0][:14]).run_id == ids[0]
    start = next(run_id[0] for run_id in ids if sum(other[0] == run_id[0] for other in ids) > 1)
    with pytest.raises(UsageError, match="several runs start with"):
        index.find(start)
    with pytest.raises(UsageError, match="no run 'zz'"):
        index.find("zz")


def test_closing_ends_what_is_under_way_as_interrupted(tmp_path: Path) -> None:
    """After close nothing is `running`, and recording says that the index is closed."""
    with RunIndex.open(tmp_path) as index:
        sink = index.run("g")
        _open(sink)
        _say(sink, "half")
    index.close()
    with pytest.raises(RunIndexError, match="closed"):
        _say(sink, "after")
    with RunIndex.open(tmp_path, read_only=True) as again:
        assert again.find(sink.run_id).state is RunState.INTERRUPTED
        assert len(again.read(sink.run_id).events) == 1


def test_an_idle_index_has_no_thread_and_writes_nothing(tmp_path: Path) -> None:
    """Opening costs no thread; the file is left as it is."""
    before = threading.active_count()
    with RunIndex.open(tmp_path) as index:
        assert index.groups() == []
        assert threading.active_count() == before


async def test_the_loop_goes_on_while_another_process_holds_the_lock(tmp_path: Path) -> None:
    """Recording returns at once although the file is locked, and is written once the lock is gone."""
    with RunIndex.open(tmp_path) as index:
        blocker = sqlite3.connect(tmp_path / "index.sqlite3", isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        sink = index.run("g")
        _open(sink)
        for number in range(100):
            _say(sink, str(number))
            await asyncio.sleep(0)
        _end(sink)
        assert index.groups() == [], "a reader waits for nobody either"
        blocker.execute("ROLLBACK")
        blocker.close()
        await index.ready()
        await asyncio.to_thread(index.flush)
        assert index.find(sink.run_id).messages == 100


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_refused(index: RunIndex, value: float) -> None:
    """NaN and infinity never reach the index."""
    sink = index.run("g")
    _open(sink)
    with pytest.raises(RewardError, match="finite"):
        sink.set_reward(value)


def test_a_reward_whose_square_is_infinite_is_refused_and_recording_goes_on(index: RunIndex) -> None:
    """Taken away again, it left a sum that the file refuses, and nothing could be written any more."""
    _played(index, "g", 0.0)
    sink = _played(index, "g", 1.0)
    with pytest.raises(RewardError, match=r"from -1e100 to 1e100, not 1e\+200"):
        sink.set_reward(1e200)
    for reward in (-1e100, 1e100, 1.0):
        sink.set_reward(reward)
        index.flush()
    assert [run.reward for run in index.all_runs("g")] == [0.0, 1.0]


def test_an_attempt_that_the_file_cannot_hold_is_refused(index: RunIndex) -> None:
    """It would stop the writer, and with it every other run of the process."""
    for attempt in (-1, 2**63):
        with pytest.raises(UsageError, match="attempt counts from 0"):
            index.run("g", attempt=attempt)


@pytest.mark.parametrize("name", ["", "/a", "a/", "a\nb", "a\x1bb", "x" * 501, "a\ud800"])
def test_a_name_that_no_page_could_show_is_refused(index: RunIndex, name: str) -> None:
    """Group names are printable and not too long."""
    with pytest.raises(UsageError, match="cannot name a group"):
        index.run(name)


def test_a_sink_is_for_one_episode_and_says_so(index: RunIndex) -> None:
    """Opening twice, and recording before opening, are refused."""
    sink = index.run("g")
    with pytest.raises(RunIndexError, match="not been opened"):
        _say(sink, "early")
    _open(sink)
    with pytest.raises(RunIndexError, match="opened twice"):
        _open(sink)


def test_a_place_is_read_from_the_end_of_a_name() -> None:
    """A training run's own name may have slashes; other forms have no place."""
    place = place_of("team/grid/train/step-0003")
    assert place is not None
    assert (place.training, place.split, place.step) == ("team/grid", "train", 3)
    assert place_of("train/step-0003") is None
    assert place_of("grid/train/step-x") is None


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner)))
def test_any_value_becomes_one_line_of_ascii(value: object) -> None:
    """Whatever a model wrote, lone surrogates and NaN included, is encoded and read back."""
    line = encode({"value": value})
    assert b"\n" not in line
    assert line.isascii()
    decode(line)


def test_what_is_too_deep_to_be_read_is_said_to_be_damaged() -> None:
    """In a line, as other damage is: what could just be written may be too deep for who reads it."""
    with pytest.raises(RunIndexError, match="damaged: maximum recursion depth"):
        decode(b"[" * 100_000 + b"]" * 100_000)


def test_values_json_has_no_word_for_are_written_in_the_nearest_way() -> None:
    """Sets, tuples as keys, circles, objects and broken reprs stop no episode."""

    class Broken:
        def __repr__(self) -> str:
            raise ValueError("no")

    circle: list[object] = []
    circle.append(circle)
    read = decode(encode({"a": {1}, ("b", 1): Broken(), "c": circle, "d": math.nan, "e": "\ud800\x00"}))
    assert read["a"] == [1]
    assert read["('b', 1)"] == "<Broken>"
    assert read["d"] == "NaN"
    assert read["e"] == "\ud800\x00"
