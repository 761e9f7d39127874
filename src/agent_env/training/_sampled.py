"""What a rollout's messages were sampled as, kept until the trainer is done with its group, and filed with its run then.

A trainer hands a rollout the tokens of one message after the other, and the log-probabilities of all of them when its group
is done. Where it never does, as for a rollout that failed, the tokens are filed without. A run without its tokens is a run
all the same: nothing here raises, and what goes wrong is logged, once for each reason.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from agent_env.runs import RunSink, SampledTokens
from agent_env.training._pace import paced
from agent_env.training._pieces import TokenPieces

__all__ = ["SampledMessages", "file_sampled"]

logger = logging.getLogger(__name__)

_AT_ONCE_TOKENS = 4_000
"""Tokens that are filed before others have their turn: about a millisecond's work."""


class _Reason(StrEnum):
    """Why something of it is not in a run."""

    RUN_INDEX = "the run index does not take them"
    NOT_READ = "the trainer's trajectory cannot be read: the tokens are kept without log-probs"
    OTHER_TOKENS = "the trainer's trajectory has other tokens than were sampled: those are kept without log-probs"


@dataclass(slots=True)
class _Sampled:
    tokens: Sequence[int]
    message: int | None = None
    """Which of the agent's messages in the run they are; None where none was made of them."""
    logprobs: Sequence[float] | None = None


class SampledMessages:
    """The messages of one rollout. What is handed over is kept, not copied: nobody may change it afterwards."""

    __slots__ = ("_pieces", "_sampled", "_sink")

    def __init__(self, sink: RunSink, pieces: TokenPieces) -> None:
        """Args: the rollout's run, and the texts of the tokens that it is sampled in."""
        self._sink = sink
        self._pieces = pieces
        self._sampled: list[_Sampled] = []

    def add(self, tokens: Sequence[int]) -> None:
        """The trainer has sampled once more."""
        self._sampled.append(_Sampled(tokens))

    def recorded(self, message: int) -> None:
        """What was sampled last is in the run as the agent's message of that number."""
        if self._sampled and self._sampled[-1].message is None:
            self._sampled[-1].message = message

    def learn(self, trajectory: Iterable[tuple[Sequence[int], Sequence[float] | None]]) -> None:
        """Take the log-probabilities from a trainer's trajectory: the tokens of each sampling, and theirs."""
        try:
            self._learn(trajectory)
        except Exception as exc:  # noqa: BLE001 - a trajectory of anyone's; the rewards are waited for
            _tell(_Reason.NOT_READ, f"run {self._sink.run_id}: {type(exc).__name__}: {exc}")

    def _learn(self, trajectory: Iterable[tuple[Sequence[int], Sequence[float] | None]]) -> None:
        # What was stopped within a message has a sampling less, and what was stopped before the first has one of nothing.
        known = (sampled for sampled in self._sampled if len(sampled.tokens))
        given = ((tokens, logprobs) for tokens, logprobs in trajectory if len(tokens))
        for sampled, (tokens, logprobs) in zip(known, given, strict=False):
            if not _are_same(tokens, sampled.tokens) or (logprobs is not None and len(logprobs) != len(tokens)):
                _tell(_Reason.OTHER_TOKENS, f"run {self._sink.run_id}")
                return
            sampled.logprobs = logprobs

    def file(self) -> Iterator[int]:
        """File message after message, and yield before each how many tokens it has. What is filed is forgotten."""
        while self._sampled:
            sampled = self._sampled[0]
            if sampled.message is not None and len(sampled.tokens):
                yield len(sampled.tokens)
                try:
                    self._sink.sampled(sampled.message, self._as_record(sampled))
                except Exception as exc:  # noqa: BLE001 - whatever it is, it is not worth a rollout
                    _tell(_Reason.RUN_INDEX, f"run {self._sink.run_id}: {type(exc).__name__}: {exc}")
                    self._sampled.clear()
                    return
            del self._sampled[0]

    def _as_record(self, sampled: _Sampled) -> SampledTokens:
        logprobs = sampled.logprobs
        return SampledTokens(
            ids=tuple(sampled.tokens),
            logprobs=None if logprobs is None else tuple(logprobs),
            pieces=self._pieces.of(sampled.tokens),
        )


async def file_sampled(rollouts: Iterable[SampledMessages]) -> None:
    """File what rollouts were sampled as. Of many tokens, or of many groups that end at once, some in one pass of the loop."""
    left = 0
    for rollout in rollouts:
        for at_once in rollout.file():
            left -= at_once
            if left <= 0:
                await paced()
                left = _AT_ONCE_TOKENS - at_once


def _are_same(one: Sequence[int], other: Sequence[int]) -> bool:
    return one is other or list(one) == list(other)


def _tell(reason: _Reason, what: str) -> None:
    if reason not in _told:
        _told.add(reason)
        logger.warning("sampled tokens are not all recorded: %s (%s; this is said once)", reason, what)


_told: set[_Reason] = set()
