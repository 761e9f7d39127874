"""Checks on the conversation: which calls were made and which not, what was said to whoever asks and what not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from agent_env._wording import clipped
from agent_env.bundle import CallPattern, CheckVerifier
from agent_env.outcome import Score
from agent_env.verify.phrase import Phrase, plain
from agent_env.verify.view import CallRecord, EpisodeView, text_of

__all__ = ["check_score"]

_SHOWN_CHARS = 200
"""How much of a call is repeated in an explanation."""
_AROUND_CHARS = 40
"""How much of what was said before and after a phrase is."""


def check_score(step: str, verifier: CheckVerifier, view: EpisodeView) -> Score:
    """Score a conversation: the share of the checks that hold, with a line for each that does not.

    Arguments are compared as JSON values: numbers by value (10 is 10.0), everything else exactly ("10" is not 10). Said
    is what the agent wrote for a reader, in its replies and beside its calls; `verify.phrase` says when a phrase is in it.

    Raises:
        ValueError: When there are no checks, or one has nothing to be said in it. The message goes on after the step's id.
    """
    outcomes = [
        *(_called(pattern, view.calls) for pattern in verifier.called),
        *(_not_called(pattern, view.calls) for pattern in verifier.not_called),
        *_said(verifier, view),
    ]
    if not outcomes:
        raise ValueError("checks nothing: give it calls or phrases")
    wrong = [outcome for outcome in outcomes if outcome is not None]
    held = len(outcomes) - len(wrong)
    return Score(
        step=step,
        value=held / len(outcomes),
        explanation="\n".join(wrong),
        metrics={"checks": float(len(outcomes)), "checks_held": float(held)},
    )


def _called(pattern: CallPattern, calls: Sequence[CallRecord]) -> str | None:
    meant = [call for call in calls if _fits(call, pattern)]
    if any(not call.is_error for call in meant):
        return None
    shown = _call_text(pattern.tool, pattern.arguments)
    if meant:
        return f"{shown} was called, and refused: {_one_line(meant[-1].text)}"
    others = [call for call in calls if call.tool == pattern.tool]
    if not others:
        return f"{shown} was not called"
    last = _call_text(pattern.tool, others[-1].arguments)
    return f"{shown} was not called, {pattern.tool} was with other arguments ({_times(len(others))}, last {last})"


def _not_called(pattern: CallPattern, calls: Sequence[CallRecord]) -> str | None:
    meant = [call for call in calls if _fits(call, pattern)]
    if not meant:
        return None
    first = meant[0]
    answer = " and refused" if all(call.is_error for call in meant) else ""
    call = _call_text(first.tool, first.arguments)
    return f"{call} was called{answer} ({_times(len(meant))}, first in turn {first.turn}), which must not be"


def _fits(call: CallRecord, pattern: CallPattern) -> bool:
    if call.tool != pattern.tool:
        return False
    arguments = call.arguments or {}
    return all(name in arguments and _same(arguments[name], value) for name, value in pattern.arguments.items())


def _same(one: Any, other: Any) -> bool:
    """Compare JSON values; a bool is no number."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        ones, others = cast("Mapping[str, Any]", one), cast("Mapping[str, Any]", other)
        return ones.keys() == others.keys() and all(_same(ones[key], others[key]) for key in ones)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        first, second = cast("Sequence[Any]", one), cast("Sequence[Any]", other)
        return len(first) == len(second) and all(map(_same, first, second))
    return one is other or (isinstance(one, str) and one == other)


def _said(verifier: CheckVerifier, view: EpisodeView) -> Iterator[str | None]:
    if not (verifier.said or verifier.not_said):
        return
    written = [text_of(message) for message in view.messages if message["role"] == "assistant"]
    texts = [plain(text) for text in dict.fromkeys((*written, *view.replies)) if text]
    for phrase in verifier.said:
        wanted = _phrase(phrase)
        yield None if any(map(wanted.found_in, texts)) else f"'{phrase}' was not said"
    for phrase in verifier.not_said:
        unwanted = _phrase(phrase)
        found = next((hit for hit in map(unwanted.found_in, texts) if hit), None)
        yield (
            None if found is None else f"'{phrase}' was said, which must not be: {_around(found.string, *found.span())}"
        )


def _phrase(phrase: str) -> Phrase:
    try:
        return Phrase(phrase)
    except ValueError as exc:
        raise ValueError(f"looks for {phrase!r}, but {exc}") from None


def _around(text: str, start: int, end: int) -> str:
    before, after = max(start - _AROUND_CHARS, 0), end + _AROUND_CHARS
    dots = "…" if before else "", "…" if after < len(text) else ""
    return f"{dots[0]}{text[before:after].strip()}{dots[1]}"


def _call_text(tool: str, arguments: Mapping[str, Any] | None) -> str:
    if not arguments:
        return tool
    return f"{tool}({_one_line(json.dumps(dict(arguments), ensure_ascii=False, default=str))})"


def _one_line(text: str) -> str:
    return clipped(" ".join(text.split()), _SHOWN_CHARS, mark="…")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
