"""One rollout beside others, in a grid or a row: what its cell needs of a run, and no more."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from agent_env.errors import RunIndexError
from agent_env.runs._reading import state_now
from agent_env.runs.record import RunState

__all__ = ["ROLLOUT_COLUMNS", "Rollout", "rollout_of"]

ROLLOUT_COLUMNS = f"""
r.run_id, r.rollout, r.attempt,
{state_now()} AS state, r.reward, r.cut, r.failure_kind, r.failure_message, r.messages, r.calls, r.call_errors,
max(0.0, coalesce(r.ended_at_s, r.last_at_s) - r.opened_at_s) AS seconds
"""
"""What `rollout_of` reads, of `runs r`; `:dead` is what `dead_json` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One try at a task."""

    run_id: str
    rollout: int
    attempt: int
    state: RunState
    reward: float | None
    cut: str | None
    failure_kind: str | None
    failure_message: str | None
    messages: int
    calls: int
    call_errors: int
    seconds: float
    """From open to end, or to the last word of it."""

    @property
    def score(self) -> float | None:
        """The reward that counts: of a completed run."""
        return self.reward if self.state is RunState.COMPLETED else None


def rollout_of(row: sqlite3.Row) -> Rollout:
    """A row of `ROLLOUT_COLUMNS` as a value.

    Raises:
        RunIndexError: When its outcome is damaged.
    """
    try:
        state = RunState(row["state"])
    except ValueError as exc:
        raise RunIndexError(f"run {row['run_id']}: its record is damaged: {exc}") from exc
    return Rollout(
        run_id=row["run_id"],
        rollout=row["rollout"],
        attempt=row["attempt"],
        state=state,
        reward=row["reward"],
        cut=row["cut"],
        failure_kind=row["failure_kind"],
        failure_message=row["failure_message"],
        messages=row["messages"],
        calls=row["calls"],
        call_errors=row["call_errors"],
        seconds=row["seconds"],
    )
