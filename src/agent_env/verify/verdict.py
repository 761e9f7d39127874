"""What came of a verify step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agent_env.outcome import Score, Skipped

__all__ = ["JudgeRecord", "Verdict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRecord:
    """What a judge was asked and what it answered, for the run."""

    prompt: str
    """The bundle's prompt, as it was asked."""
    answers: tuple[str, ...]
    """What the judge said, without its thinking: one answer, or two where the first had no score in it."""
    model: str
    """Which model answered."""
    prompt_tokens: int | None
    """Over all questions; None where the endpoint does not say."""
    completion_tokens: int | None
    duration_s: float
    """Seconds from the first question to the last answer."""

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        usage = {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens}
        return {
            "prompt": self.prompt,
            "answers": list(self.answers),
            "model": self.model,
            "usage": None if self.prompt_tokens is None else usage,
            "duration_s": self.duration_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A verify step that did not fail."""

    outcome: Score | Skipped
    """Its score, or that it was left out."""
    judge: JudgeRecord | None = None
    """When a judge was asked."""
