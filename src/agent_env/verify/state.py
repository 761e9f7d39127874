"""The state that an episode left against the one that is wanted: equal or not, and where they differ.

A wanted state is kept as what is different in it from a universe, and made again when something is compared with it. So is the
one that an episode left, unless it is a JSON value, which is compared as it is.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from agent_env._wording import clipped, counted
from agent_env.bundle import StateVerifier, UniverseKind, UniverseSpec
from agent_env.bundle.raised import trace_of
from agent_env.errors import UniverseError
from agent_env.outcome import FailureKind, Score
from agent_env.universe import (
    MISSING,
    Change,
    ChangeLimits,
    PrivateCopy,
    StateChanges,
    apply,
    compare,
    differences,
    open_universe,
)
from agent_env.universe.directory_diff import is_unread
from agent_env.universe.threads import in_thread
from agent_env.verify.own_time import within_own_time
from agent_env.verify.step_failed import StepFailedError

__all__ = ["LeftState", "WantedState", "state_score"]

_LIMITS = ChangeLimits(changes=20, total_bytes=1_000_000)
"""How many differences an explanation names; the others are counted."""
_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedState:
    """A state to compare with: a universe, and what is different from it. Holds nothing open."""

    spec: UniverseSpec | None
    changes: StateChanges = field(default_factory=StateChanges)
    """All of them; large files may be told by their size and hash."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftState:
    """The state of an env as the agent left it."""

    spec: UniverseSpec | None
    """The universe that it started from."""
    state: Any
    """A JSON value, which is compared as it is; of anything else the changes are."""
    changes: Callable[[], Awaitable[StateChanges | None]]
    """Tells what is different from the universe; None where there is no universe of its own."""


async def state_score(
    step: str, verifier: StateVerifier, wanted: WantedState, left: LeftState, *, timeout_s: float | None
) -> Score:
    """Compare a state with the wanted one.

    Args:
        step: The verify step's id.
        verifier: What does not count.
        wanted: The state to compare with.
        left: The state to score. It stays as it is.
        timeout_s: Seconds that it may take.

    Raises:
        StepFailedError: When the states cannot be compared, or it takes too long.
    """
    env = verifier.env

    def too_long() -> StepFailedError:
        message = f"comparing the state of env '{env}' took longer than {timeout_s or 0:g} s"
        return StepFailedError(FailureKind.VERIFIER_TIMEOUT, message)

    try:
        async with within_own_time(timeout_s, too_long):
            found = await _differences(verifier, wanted, left)
    except (UniverseError, ValueError) as exc:
        raise StepFailedError(FailureKind.VERIFIER_RAISED, f"env '{env}': {exc}", trace_of(exc)) from exc
    count = len(found.changes) + found.left_out
    return Score(
        step=step,
        value=0.0 if count else 1.0,
        explanation=_explanation(found, count),
        metrics={"differences": float(count)},
    )


async def _differences(verifier: StateVerifier, wanted: WantedState, left: LeftState) -> StateChanges:
    is_json = left.spec is None or left.spec.kind is UniverseKind.JSON
    async with AsyncExitStack() as stack:
        if is_json and not isinstance(left.state, Path):
            ours = await stack.enter_async_context(open_universe(left.spec))
            our_state = left.state
        else:
            changes = await left.changes()
            if changes is None:
                raise UniverseError("it has no universe of its own, so its state cannot be compared")
            if not (wanted.changes.is_whole and changes.is_whole):
                return _between_changes(verifier, wanted, left, changes)
            if wanted.spec == left.spec and not _differing(wanted.changes, changes):
                return StateChanges()
            ours = await stack.enter_async_context(open_universe(left.spec))
            our_state = await _made_again(changes, ours)
        theirs = await stack.enter_async_context(open_universe(wanted.spec))
        their_state = await _made_again(wanted.changes, theirs)
        return await compare(
            theirs,
            ours,
            wanted_state=their_state,
            left_state=our_state,
            ignore=verifier.ignore,
            unordered=verifier.unordered,
            limits=_LIMITS,
        )


def _between_changes(
    verifier: StateVerifier, wanted: WantedState, left: LeftState, changes: StateChanges
) -> StateChanges:
    """Compare what differs from the universe on both sides: where a state cannot be made again, as it has a large file.

    Raises:
        UniverseError: When that does not say whether the states are equal.
    """
    if wanted.changes.left_out or wanted.spec != left.spec or verifier.ignore or verifier.unordered:
        raise UniverseError("more was changed than can be compared: without ignore and unordered large files can be")
    found = _differing(wanted.changes, changes)
    return StateChanges(
        changes=tuple(found[: _LIMITS.changes]), left_out=max(len(found) - _LIMITS.changes, 0) + changes.left_out
    )


def _differing(wanted: StateChanges, left: StateChanges) -> list[Change]:
    """Return where two sets of changes of one universe do not leave the same."""
    ours = {change.path: change for change in left.changes}
    theirs = {change.path: change for change in wanted.changes}
    found: list[Change] = []
    for path in sorted({*ours, *theirs}):
        # Where one side has changed nothing, it has what the other side had before.
        after = ours[path].after if path in ours else theirs[path].before
        before = theirs[path].after if path in theirs else ours[path].before
        if not _is_same(path, before, after):
            found.append(Change(path, before, after))
    return found


def _is_same(path: str, one: Any, other: Any) -> bool:
    if one is MISSING or other is MISSING:
        return one is other
    if differences(one, other):
        return False
    if isinstance(one, dict) and is_unread(cast("dict[str, Any]", one)):
        raise UniverseError(f"{path} has the size that is wanted, and is too long to be read, or cannot be")
    return True


async def _made_again(changes: StateChanges, copy: PrivateCopy) -> Any:
    if not changes:
        return copy.state
    return await in_thread(lambda _: apply(changes, copy.state), what="making a state again")


def _explanation(found: StateChanges, count: int) -> str:
    if not count:
        return ""
    lines = [f"{counted(count, 'difference')}:", *map(_line, found.changes)]
    if found.left_out:
        lines.append(f"and {found.left_out} more")
    return "\n".join(lines)


def _line(change: Change) -> str:
    where = change.path or "the whole state"
    return f"{where}: wanted {_shown(change.before)}, left {_shown(change.after)}"


def _shown(side: Any) -> str:
    if side is MISSING:
        return "nothing"
    return clipped(json.dumps(side, ensure_ascii=False), _SHOWN_CHARS, mark="…")
