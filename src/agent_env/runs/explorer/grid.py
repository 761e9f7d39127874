"""Rollouts as cells, coloured by reward. What a colour says, a number or a word says too."""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape

from agent_env.runs.explorer.heat import heat
from agent_env.runs.explorer.rollouts import Rollout
from agent_env.runs.explorer.wording import duration, number, plural, short_number
from agent_env.runs.record import RunState
from agent_env.runs.visible import one_line

__all__ = ["about", "cells"]

_MESSAGE_CHARS = 160


def cells(
    rollouts: Iterable[Rollout], low: float, high: float, *, choosing: tuple[str | None, str | None] | None = None
) -> Markup:
    """The rollouts of one row, in order.

    Args:
        rollouts: What to show.
        low: The reward with the lowest colour.
        high: The reward with the highest colour.
        choosing: Where two of the page's runs can be chosen to be compared, the two that are chosen at first.
    """
    # There may be thousands on a page: a string each, and only what may be foreign text is escaped.
    return Markup("".join([_cell(rollout, low, high, choosing) for rollout in rollouts]))


def _cell(rollout: Rollout, low: float, high: float, choosing: tuple[str | None, str | None] | None) -> str:
    state = rollout.state
    score = rollout.score
    if state is RunState.COMPLETED:
        value = "no reward" if score is None else short_number(score)
        looks = heat(score, low, high)
    else:
        value, looks = str(state), f"is-{state}"
    marks: list[str] = []
    if rollout.cut is not None:
        looks += " is-cut"
        marks.append(rollout.cut)
    if rollout.failure_kind is not None:
        marks.append(rollout.failure_kind)
    below = f'<span class="mark">{escape(one_line(", ".join(marks).replace("_", " "), 60))}</span>' if marks else ""
    again = f'<span class="again">try {rollout.attempt + 1}</span>' if rollout.attempt else ""
    run_id = escape(rollout.run_id)
    title = escape(about(rollout))
    value_class = "value" if score is not None else "value word"
    chosen = "" if choosing is None else _choices(rollout, choosing)
    return (
        f'<li id="r{run_id}" class="cell {looks}"><a data-cell href="/run/{run_id}" title="{title}">'
        f'<span class="{value_class}">{value}</span>{again}'
        f"{below}</a>{chosen}</li>"
    )


def _choices(rollout: Rollout, chosen: tuple[str | None, str | None]) -> str:
    run_id = escape(rollout.run_id)
    parts = [
        f'<label title="{name} of the comparison"><input type="radio" name="{name}" value="{run_id}" required'
        f'{" checked" if rollout.run_id == at else ""} aria-label="rollout {rollout.rollout}, {name} of the comparison">'
        f'<span aria-hidden="true">{letter}</span></label>'
        for name, letter, at in (("left", "L", chosen[0]), ("right", "R", chosen[1]))
    ]
    return f'<span class="choices">{"".join(parts)}</span>'


def about(rollout: Rollout) -> str:
    """What a rollout came to, in words: the title of its cell."""
    words = [f"rollout {rollout.rollout}" + (f", try {rollout.attempt + 1}" if rollout.attempt else "")]
    if rollout.state is RunState.COMPLETED:
        words.append("no reward" if rollout.reward is None else f"reward {number(rollout.reward)}")
    else:
        words.append(str(rollout.state))
    if rollout.cut is not None:
        words.append(f"cut: {one_line(rollout.cut.replace('_', ' '), 60)}")
    if rollout.failure_kind is not None:
        message = one_line(rollout.failure_message or "", _MESSAGE_CHARS)
        words.append(f"{one_line(rollout.failure_kind.replace('_', ' '), 60)}: {message}")
    errors = f" ({rollout.call_errors} with an error)" if rollout.call_errors else ""
    words.append(f"{plural(rollout.messages, 'message')}, {plural(rollout.calls, 'call')}{errors}")
    words.append(duration(rollout.seconds))
    return "; ".join(words)
