"""What a chart over the steps can show: the value of a step, and how an axis and a sentence say it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from agent_env.runs.explorer.points import StepPoint
from agent_env.runs.explorer.wording import MINUS, clock, count, duration, number, percent, plural, short_count, tally

__all__ = ["Measure"]


class Measure(StrEnum):
    """What a line can show."""

    REWARD = "reward"
    FAILED = "failed"
    CUT = "cut"
    MESSAGES = "messages"
    CALLS = "calls"
    SECONDS = "seconds"
    PROMPT_TOKENS = "prompt_tokens"
    SAMPLED_TOKENS = "sampled_tokens"

    @property
    def heading(self) -> str:
        """For people, with the unit."""
        return _HEADINGS[self]

    def of(self, point: StepPoint) -> float | None:
        """Its value in a step."""
        return _VALUES[self](point)

    def axis(self, value: float) -> str:
        """A value as an axis has it."""
        if self in {Measure.FAILED, Measure.CUT}:
            return percent(value)
        if self is Measure.SECONDS:
            return clock(value)
        return f"{value:.6g}".replace("-", MINUS) if self is Measure.REWARD else short_count(value)

    def about(self, point: StepPoint) -> str:
        """What a step has of it, in words."""
        value = self.of(point)
        if value is None:
            return "nothing known"
        match self:
            case Measure.REWARD:
                return _reward_words(point)
            case Measure.FAILED | Measure.CUT:
                kinds = point.failures if self is Measure.FAILED else point.cuts
                words = f"{self} {sum(kinds.values())} of {plural(point.runs, 'run')} ({percent(value)})"
                return f"{words}: {tally(kinds)}" if kinds else words
            case Measure.SECONDS:
                return f"{duration(value)} an episode"
            case Measure.MESSAGES | Measure.CALLS:
                return f"{value:.1f} {self} an episode"
            case Measure.PROMPT_TOKENS | Measure.SAMPLED_TOKENS:
                return f"{count(round(value))} {self.replace('_', ' ')} an episode"


_HEADINGS: Mapping[Measure, str] = {
    Measure.REWARD: "Mean reward",
    Measure.FAILED: "Failed, share of runs",
    Measure.CUT: "Cut, share of runs",
    Measure.MESSAGES: "Messages per episode",
    Measure.CALLS: "Calls per episode",
    Measure.SECONDS: "Time per episode",
    Measure.PROMPT_TOKENS: "Prompt tokens per episode",
    Measure.SAMPLED_TOKENS: "Sampled tokens per episode",
}
_VALUES: Mapping[Measure, Callable[[StepPoint], float | None]] = {
    Measure.REWARD: lambda point: point.mean,
    Measure.FAILED: lambda point: point.failed / point.runs if point.runs else None,
    Measure.CUT: lambda point: point.cut / point.runs if point.runs else None,
    Measure.MESSAGES: lambda point: point.messages,
    Measure.CALLS: lambda point: point.calls,
    Measure.SECONDS: lambda point: point.seconds,
    Measure.PROMPT_TOKENS: lambda point: point.prompt_tokens,
    Measure.SAMPLED_TOKENS: lambda point: point.sampled_tokens,
}


def _reward_words(point: StepPoint) -> str:
    words = number(point.mean)
    if point.se is not None:
        words += f" ± {number(point.se)}"
    words += f" ({number(point.low)} to {number(point.high)}, {point.scored} of {plural(point.runs, 'run')} scored"
    return f"{words}; {point.failed} failed)" if point.failed else f"{words})"
