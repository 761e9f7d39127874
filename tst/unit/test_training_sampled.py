"""What a rollout was sampled as, filed with its run when the trainer is done with it; needs no trainer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_env import RunHeader, RunIndex
from agent_env.runs import RunSink
from agent_env.training import _sampled
from agent_env.training._pieces import TokenPieces
from agent_env.training._sampled import SampledMessages, file_sampled

HEADER = RunHeader(task_id="a", bundle_name="b", bundle_version="1", params={}, tags=())


class Letters:
    """A tokenizer whose tokens are letters."""

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return [ord(letter) - ord("a") for letter in text if "a" <= letter <= "z"]

    def decode(self, tokens: list[int]) -> str:
        return "".join(chr(ord("a") + token) for token in tokens)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[RunIndex]:
    """A run index."""
    with RunIndex.open(tmp_path / "runs") as index:
        yield index


@pytest.fixture
def sink(index: RunIndex) -> RunSink:
    """A run that has begun."""
    sink = index.run("test")
    sink.opened(HEADER)
    return sink


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said once has not been said."""
    monkeypatch.setattr(_sampled, "_told", set())


def sampled(sink: RunSink, *messages: list[int]) -> SampledMessages:
    """A rollout with messages, each in the run."""
    rollout = SampledMessages(sink, TokenPieces(Letters()))
    for at, tokens in enumerate(messages):
        rollout.add(tokens)
        rollout.recorded(at)
    return rollout


def filed(index: RunIndex, sink: RunSink) -> dict[int, Any]:
    """What the run has of it."""
    index.flush()
    return {
        at: (tokens.ids, tokens.logprobs, "".join(tokens.pieces)) for at, tokens in index.sampled(sink.run_id).items()
    }


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged of it."""
    return [record.message for record in caplog.records if record.message.startswith("sampled tokens")]


async def test_each_message_is_filed_with_its_tokens_texts_and_log_probabilities(
    index: RunIndex, sink: RunSink
) -> None:
    """Once: what was filed is forgotten."""
    rollout = sampled(sink, [0, 1], [2])
    rollout.learn([([0, 1], [-0.5, -0.25]), ([2], [-1.0])])
    await file_sampled([rollout])
    assert filed(index, sink) == {0: ((0, 1), (-0.5, -0.25), "ab"), 1: ((2,), (-1.0,), "c")}
    assert list(rollout.file()) == []


async def test_what_is_no_message_of_the_run_is_left_out(index: RunIndex, sink: RunSink) -> None:
    """A sampling of nothing, and one of which no message was made; the numbers of the others stay theirs."""
    rollout = SampledMessages(sink, TokenPieces(Letters()))
    rollout.recorded(7)  # somebody else's message, before the first sampling
    for tokens, message in (([0], 0), ([], 1), ([1], None), ([2], 2)):
        rollout.add(tokens)
        if message is not None:
            rollout.recorded(message)
    rollout.learn([([0], [-1.0]), ([], []), ([1], [-2.0]), ([2], [-3.0])])
    await file_sampled([rollout])
    assert filed(index, sink) == {0: ((0,), (-1.0,), "a"), 2: ((2,), (-3.0,), "c")}


@pytest.mark.parametrize(
    ("trajectory", "learned"),
    [
        ([([0, 1], [-1.0, -2.0])], 1),
        ([([], []), ([0, 1], [-1.0, -2.0])], 1),
        ([((0, 1), (-1.0, -2.0)), ([2], None)], 1),
        ([], 0),
        ([([], [])], 0),
    ],
)
async def test_a_trajectory_may_have_less_than_was_sampled(
    index: RunIndex, sink: RunSink, caplog: pytest.LogCaptureFixture, trajectory: Any, learned: int
) -> None:
    """The rest is kept without log-probabilities, and there is nothing to say about it."""
    rollout = sampled(sink, [0, 1], [2])
    rollout.learn(trajectory)
    await file_sampled([rollout])
    assert [logprobs is not None for _, logprobs, _ in filed(index, sink).values()] == [learned > 0, learned > 1]
    assert said(caplog) == []


@pytest.mark.parametrize(
    ("trajectory", "says"),
    [
        ([([0, 5], [-1.0, -2.0]), ([2], [-1.0])], "other tokens"),
        ([([0, 1], [-1.0]), ([2], [-1.0])], "other tokens"),
        ([([0, 1], [])], "other tokens"),
        (["nothing"], "cannot be read"),
        ([(3, 4)], "cannot be read"),
        (None, "cannot be read"),
    ],
)
async def test_a_trajectory_that_is_another_one_is_not_believed(
    index: RunIndex, sink: RunSink, caplog: pytest.LogCaptureFixture, trajectory: Any, says: str
) -> None:
    """No log-probability stands beside a token that it is not of; the reason is said, once."""
    rollout = sampled(sink, [0, 1], [2])
    rollout.learn(trajectory)
    rollout.learn(trajectory)
    await file_sampled([rollout])
    assert filed(index, sink) == {0: ((0, 1), None, "ab"), 1: ((2,), None, "c")}
    (once,) = said(caplog)
    assert says in once
    assert sink.run_id in once


async def test_what_the_index_does_not_take_is_said_once(
    index: RunIndex, sink: RunSink, caplog: pytest.LogCaptureFixture
) -> None:
    """An index that is closed, and a number that no model samples: nothing is raised, and other runs have their tokens."""
    odd, well = sampled(sink, [2**40]), sampled(other := index.run("test"), [3])
    other.opened(HEADER)
    await file_sampled([odd, well])
    assert (filed(index, sink), filed(index, other)) == ({}, {0: ((3,), None, "d")})
    (once,) = said(caplog)
    assert "the run index does not take them" in once
    caplog.clear()
    index.close()
    await file_sampled([sampled(sink, [0]), sampled(other, [1])])
    assert said(caplog) == []
