"""The small pictures on a run's page: where its time went, how long a call took, how likely each token was."""

from __future__ import annotations

import math

from markupsafe import Markup, escape

from agent_env.runs.explorer.wording import duration
from agent_env.runs.record import TIMES, RunSummary, SampledTokens
from agent_env.runs.visible import one_line, visible

__all__ = ["duration_bar", "shaded", "times_bar"]

_TOKENS = 4_000
"""Tokens of one message that a page shades; the rest is counted."""
_LIKELY = (0.9, 0.5, 0.2, 0.05)
"""Where one shade ends and the next, darker one begins."""
_UNLIKELIEST = 5


def times_bar(run: RunSummary) -> Markup:
    """Where a run's seconds went, as a bar and in words; empty where the record does not say."""
    times = {name: max(0.0, run.times[name]) for name in TIMES if run.times.get(name)}
    total = sum(times.values())
    if total <= 0:
        return Markup("")
    at = 0.0
    parts: list[str] = []
    words: list[str] = []
    for name, seconds in times.items():
        width = 100 * seconds / total
        share = f"{name} {duration(seconds)} ({width:.0f}%)"
        parts.append(f'<rect class="time-{name}" x="{at:.2f}" y="0" width="{width:.2f}" height="10"/>')
        words.append(f'<span class="time-{name}">{share}</span>')
        at += width
    return Markup(
        '<svg class="times" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'{"".join(parts)}</svg><span class="words">{" ".join(words)}</span>'
    )


def duration_bar(seconds: float | None, longest_s: float) -> Markup:
    """What a call took, in words and as a bar beside the longest."""
    if seconds is None:
        return Markup("")
    width = 100 * seconds / longest_s if longest_s > 0 else 0.0
    text = duration(seconds)
    return Markup(
        f'<span class="took"><svg viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect x="0" y="0" width="{max(1.5, width):.1f}" height="6"/></svg>{text}</span>'
    )


def shaded(tokens: SampledTokens) -> Markup:
    """A message as its tokens, each marked by how likely it was, with its numbers in its title."""
    parts: list[str] = []
    logprobs = tokens.logprobs or (None,) * len(tokens.ids)
    for place, (token, piece, logprob) in enumerate(zip(tokens.ids, tokens.pieces, logprobs, strict=False)):
        if place == _TOKENS:
            break
        look, about = "tok", f"token {place}, id {token}"
        if logprob is not None and not math.isnan(logprob):
            probability = _probability(logprob)
            look, about = (
                f"tok tok-{_shade(probability)}",
                f"probability {_share(probability)}, log {logprob:.3f}, {about}",
            )
        parts.append(f'<span class="{look}" title="{about}">{escape(visible(piece))}</span>')
    more = len(tokens.pieces) - _TOKENS
    rest = f'<p class="tokens-note">and {more} more tokens, which the JSON has</p>' if more > 0 else ""
    return Markup(f'<pre class="tokens">{"".join(parts)}</pre>{rest}{_summary(tokens)}')


def _summary(tokens: SampledTokens) -> str:
    count = f"{len(tokens.ids)} tokens"
    if not tokens.logprobs:
        return f'<p class="tokens-note">{count}; the trainer gave no probabilities.</p>'
    mean = sum(tokens.logprobs) / len(tokens.logprobs)
    least = ", ".join(
        f"<code>{escape(one_line(repr(piece), 40))}</code> {_share(_probability(logprob))}"
        for logprob, piece in sorted(zip(tokens.logprobs, tokens.pieces, strict=False))[:_UNLIKELIEST]
    )
    return f'<p class="tokens-note">{count}, mean log-probability {mean:.3f}. Least likely: {least}</p>'


def _probability(logprob: float) -> float:
    return math.exp(min(0.0, logprob))


def _shade(probability: float) -> int:
    return sum(probability < bound for bound in _LIKELY)


def _share(probability: float) -> str:
    return f"{100 * probability:.3g}%"
