"""What an episode writes its run to."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from agent_env.errors import RewardError, RunIndexError, UsageError
from agent_env.outcome import EpisodeResult
from agent_env.runs._codec import encode
from agent_env.runs._log import Ended, Noted, Opened, RunLog
from agent_env.runs._tokens import checked_tokens, size_of
from agent_env.runs._totals import TotalsSoFar
from agent_env.runs._words import searchable
from agent_env.runs._writer import Writer
from agent_env.runs.record import EventLike, HeaderLike, SampledTokens

__all__ = ["RunSink", "new_sink"]

_LARGEST_REWARD = 1e100
"""Squares of rewards are summed, and of a sum that is infinite nothing can be taken away again."""
_YEAR_9999_S = 253_370_764_800.0
"""From here on, and before 1970, an event's time is no time that anything can show: the time of its recording is."""


class RunSink:
    """Records one episode. Has the shape of `agent_env.episode.EpisodeSink`; made by `RunIndex.run`.

    No method waits for the disk. Each may raise RunIndexError when the index is closed or the disk does not take what was
    written before.
    """

    def __init__(self, writer: Writer, log: RunLog) -> None:
        self._writer = writer
        self._log = log
        self._is_opened = False

    @property
    def run_id(self) -> str:
        """The run's id; a part of it that is unique is enough for `agent-env show`."""
        return self._log.run_id

    @property
    def group(self) -> str:
        """The name that the run is filed under."""
        return self._log.group

    def opened(self, header: HeaderLike) -> None:
        """Start the run.

        Raises:
            RunIndexError: When it was started before, or the index cannot record.
        """
        if self._is_opened:
            raise RunIndexError(f"run {self.run_id} was opened twice: each episode needs a sink of its own")
        now = time.time()
        start = Opened.of(header, now)

        def change(log: RunLog) -> int:
            log.opened, log.last_at_s, log.totals = start, now, TotalsSoFar(now)
            return len(start.head)

        self._is_opened = True
        self._writer.note(self._log, change)

    def event(self, event: EventLike) -> None:
        """Record one thing that happened. What it holds is copied now.

        Raises:
            RunIndexError: When the run was not started, or the index cannot record.
        """
        now = time.time()
        line = encode(
            {
                "kind": str(event.kind),
                "at_s": event.at_s if 0 <= event.at_s < _YEAR_9999_S else now,
                "step": event.step,
                "turn": event.turn,
                "data": dict(event.data),
            }
        )
        noted = Noted(line, searchable(str(event.kind), event.data))

        def change(log: RunLog) -> int:
            log.events.append(noted)
            log.totals.note(event, now)
            log.last_at_s = max(log.last_at_s, now)
            return noted.size_bytes

        self._note(change)

    def sampled(self, message: int, tokens: SampledTokens) -> None:
        """Record what a message was sampled as; also after `ended`, for a trainer that knows it later.

        Args:
            message: The how-manieth message of the played agent it is, from 0. Again replaces what was recorded.
            tokens: Its tokens.

        Raises:
            UsageError: When there are not as many pieces or log-probs as ids.
            RunIndexError: When the run was not started, or the index cannot record.
        """
        checked = checked_tokens(tokens)
        if message < 0:
            raise UsageError(f"messages are counted from 0, not {message}")

        def change(log: RunLog) -> int:
            log.sampled[message] = checked
            return size_of(checked)

        self._note(change)

    def ended(self, result: EpisodeResult) -> None:
        """Record how the episode ended.

        Raises:
            RunIndexError: When the run was not started, or the index cannot record.
        """
        now = time.time()
        end = Ended.of(result, now)

        def change(log: RunLog) -> int:
            log.totals.spend_until(now, now)
            log.ended, log.last_at_s = end, now
            return 0

        self._note(change)

    def set_reward(self, value: float) -> None:
        """Record what the trainer got for the episode.

        Raises:
            RewardError: When it is no finite number, or one beyond 1e100.
            RunIndexError: When the run was not started, or the index cannot record.
        """
        reward = float(value)
        if not abs(reward) <= _LARGEST_REWARD:
            raise RewardError(f"run {self.run_id}: a reward must be a finite number from -1e100 to 1e100, not {reward}")

        def change(log: RunLog) -> int:
            log.reward = reward
            return 0

        self._note(change)

    def _note(self, change: Callable[[RunLog], int]) -> None:
        if not self._is_opened:
            raise RunIndexError(f"run {self.run_id} has not been opened: call `opened` with the header first")
        self._writer.note(self._log, change)


def new_sink(writer: Writer, group: str, *, attempt: int, labels: Mapping[str, Any]) -> RunSink:
    """A sink for one more run, under an id that no other has."""
    log = RunLog(run_id=secrets.token_hex(8), group=group, attempt=attempt, labels=dict(labels))
    return RunSink(writer, log)
