"""The state that an episode left against the one that is wanted: equal or not, and where they differ."""

from __future__ import annotations

import copy
import json
import sqlite3
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from anyio import to_thread

from agent_env.bundle import StateVerifier
from agent_env.errors import UniverseError
from agent_env.outcome import FailureKind, Score
from agent_env.universe.change import MISSING, Change, ChangeLimits, StateChanges
from agent_env.universe.containers import is_untouched
from agent_env.universe.diff import Rules, changes_between
from agent_env.verify.function import StepFailedError, call_in_thread, trace_of

__all__ = ["WantedState", "keep_state", "state_score"]

_LIMITS = ChangeLimits(changes=20, total_bytes=1_000_000)
"""How many differences an explanation names; the others are counted."""
_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedState:
    """A state to compare with, kept apart from the env that made it."""

    value: Any = field(repr=False)
    """A JSON value that nobody writes to."""
    size_bytes: int
    """What it takes in memory, about."""


async def keep_state(state: Any) -> WantedState:
    """Keep a state as it is now.

    Raises:
        UniverseError: When it is none that can be compared.
    """
    if state is None or isinstance(state, (sqlite3.Connection, Path)):
        raise UniverseError(f"a state that is a {type(state).__name__} cannot be compared yet")
    try:
        return await to_thread.run_sync(_kept_json, state)
    except (TypeError, RecursionError) as exc:
        raise UniverseError(f"the state cannot be kept: {exc}") from exc


def _kept_json(state: Any) -> WantedState:
    # Of a private copy of a large universe this copies what was touched, and shares the rest.
    value = copy.deepcopy(state)
    return WantedState(value=value, size_bytes=_size_bytes(value))


# The base classes see the storage itself; what is looked at by a container's own methods is touched.
_dict: Any = dict
_list: Any = list


def _size_bytes(value: Any) -> int:
    """Return about what a JSON value takes, without what is shared."""
    size, todo = 0, [value]
    while todo:
        one = todo.pop()
        if is_untouched(one):
            continue
        size += sys.getsizeof(one)
        if isinstance(one, dict):
            todo += _dict.values(one)
        elif isinstance(one, list):
            todo += _list.__iter__(one)
    return size


async def state_score(
    step: str, verifier: StateVerifier, wanted: WantedState, left: Any, *, timeout_s: float | None
) -> Score:
    """Compare a state with the wanted one.

    Args:
        step: The verify step's id.
        verifier: What does not count.
        wanted: The state to compare with.
        left: The state as the agent left it.
        timeout_s: Seconds that it may take.

    Raises:
        StepFailedError: When the states cannot be compared, or it takes too long.
    """
    env = verifier.env
    too_long = f"comparing the state of env '{env}' took longer than {timeout_s or 0:g} s"
    try:
        rules = Rules.of(verifier.ignore, verifier.unordered)
        found = await call_in_thread(
            partial(changes_between, wanted.value, left, rules=rules, limits=_LIMITS),
            timeout_s=timeout_s,
            too_long=StepFailedError(FailureKind.VERIFIER_TIMEOUT, too_long),
        )
    except (UniverseError, ValueError, RecursionError) as exc:
        raise StepFailedError(FailureKind.VERIFIER_RAISED, f"env '{env}': {exc}", trace_of(exc)) from exc
    count = len(found.changes) + found.left_out
    return Score(
        step=step,
        value=0.0 if count else 1.0,
        explanation=_explanation(found, count),
        metrics={"differences": float(count)},
    )


def _explanation(found: StateChanges, count: int) -> str:
    if not count:
        return ""
    lines = [f"{count} difference{'s' * (count != 1)}:", *map(_line, found.changes)]
    if found.left_out:
        lines.append(f"and {found.left_out} more")
    return "\n".join(lines)


def _line(change: Change) -> str:
    where = change.path or "the whole state"
    return f"{where}: wanted {_shown(change.before)}, left {_shown(change.after)}"


def _shown(side: Any) -> str:
    if side is MISSING:
        return "nothing"
    text = json.dumps(side, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 1]}…"
