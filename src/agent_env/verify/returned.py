"""A verify step's score, made of what its function returned, or its command wrote to a file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import cast

from agent_env.bundle import names_or_closest
from agent_env.outcome import Score

__all__ = ["score_of"]

_KEYS = ("score", "explanation", "metrics")


def score_of(step: str, returned: object) -> Score:
    """Make a score of a bool, a number, or a mapping of `score`, `explanation` and `metrics`.

    Raises:
        ValueError: When it is no finite number, or the mapping has other things in it. The message goes on after the
            verifier's name.
    """
    if not isinstance(returned, Mapping):
        return Score(step=step, value=_number(returned, "returned"))
    parts = cast("Mapping[object, object]", returned)
    for key in parts:
        if key not in _KEYS:
            raise ValueError(f"returned a key {key!r}: {names_or_closest(str(key), _KEYS)}")
    if "score" not in parts:
        raise ValueError("returned a mapping without 'score': put the number there")
    explanation = parts.get("explanation")
    if explanation is not None and not isinstance(explanation, str):
        raise ValueError(f"returned an explanation of type {type(explanation).__name__}: make it a string")
    metrics = parts.get("metrics")
    if metrics is not None and not isinstance(metrics, Mapping):
        raise ValueError(f"returned metrics of type {type(metrics).__name__}: make it a mapping of names to numbers")
    return Score(
        step=step,
        value=_number(parts["score"], "returned score"),
        explanation=explanation or "",
        metrics={
            str(name): _number(value, f"returned metric {name!r}:")
            for name, value in cast("Mapping[object, object]", metrics or {}).items()
        },
    )


def _number(value: object, what: str) -> float:
    # A NumPy bool is no Real; it says so only through its own `item`.
    item = getattr(value, "item", None)
    if not isinstance(value, Real) and type(value).__module__ == "numpy" and callable(item):
        value = item()
    if not isinstance(value, Real):
        raise ValueError(f"{what} {_shown(value)}, which is no number: return a finite number, or True or False")
    try:
        number = float(value)
    except (OverflowError, ValueError, TypeError):
        raise ValueError(f"{what} a number that no float can hold: return a finite one") from None
    if not math.isfinite(number):
        raise ValueError(f"{what} {number}: return a finite number")
    return number


def _shown(value: object) -> str:
    if value is None:
        return "None"
    if isinstance(value, str):
        return f"the string {value[:40]!r}"
    return f"a value of type {type(value).__name__}"
