"""Which runs of a group a page shows: what its address asks for, and the same as SQL."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from agent_env.runs._reading import stands
from agent_env.runs.explorer.address import text_of
from agent_env.runs.explorer.wording import MINUS
from agent_env.runs.record import RunState

__all__ = ["GroupFilter", "Sort", "Where", "filter_of", "sort_of", "where_of"]


class Sort(StrEnum):
    """What the tasks are in order of."""

    SPREAD = "spread"
    """Whose rollouts differ most in reward."""
    TASK = "task"
    """By name."""
    MEAN = "mean"
    """The lowest mean first."""
    CHANGE = "change"
    """What fell most since the step before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFilter:
    """What a run must be to be shown; what is None or empty is not asked for."""

    outcome: RunState | None = None
    cut: str = ""
    failure: str = ""
    tool: str = ""
    """A tool it called."""
    with_errors: bool = False
    """Whether a call came to an error; a call of `tool`, where that is asked for."""
    reward_from: float | None = None
    reward_to: float | None = None
    text: str = ""
    """Words that are in its messages, calls or answers."""
    task: str = ""

    @property
    def asked(self) -> dict[str, object]:
        """The same as parts of an address."""
        return {
            "outcome": self.outcome,
            "cut": self.cut,
            "failure": self.failure,
            "tool": self.tool,
            "errors": "1" if self.with_errors else "",
            "reward_from": self.reward_from,
            "reward_to": self.reward_to,
            "text": self.text,
            "task": self.task,
        }

    @property
    def is_on(self) -> bool:
        """Whether anything is asked for."""
        return self != GroupFilter()


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """A condition on `runs r`, and its values."""

    sql: str
    values: Mapping[str, Any]


def filter_of(request: Request) -> GroupFilter:
    """What an address asks for.

    Raises:
        HTTPException: When it is no outcome, or no number.
    """
    outcome = text_of(request, "outcome")
    if outcome and outcome not in list(RunState):
        raise HTTPException(400, f"No outcome is called like this. There are: {', '.join(RunState)}.")
    return GroupFilter(
        outcome=RunState(outcome) if outcome else None,
        cut=text_of(request, "cut"),
        failure=text_of(request, "failure"),
        tool=text_of(request, "tool"),
        with_errors=text_of(request, "errors") == "1",
        reward_from=_reward(request, "reward_from"),
        reward_to=_reward(request, "reward_to"),
        text=text_of(request, "text").strip(),
        task=text_of(request, "task"),
    )


def sort_of(request: Request) -> Sort | None:
    """The order that an address asks for.

    Raises:
        HTTPException: When there is no such order.
    """
    asked = text_of(request, "sort")
    if asked and asked not in list(Sort):
        raise HTTPException(400, f"No order is called like this. There are: {', '.join(Sort)}.")
    return Sort(asked) if asked else None


def where_of(group_key: int, asked: GroupFilter, *, dead: str, tools: Sequence[str], found: Sequence[str]) -> Where:
    """A filter as SQL.

    Args:
        group_key: The group's key.
        asked: The filter.
        dead: The writers that died, as JSON.
        tools: The names of the tools that `asked.tool` means.
        found: The ids of the runs that have `asked.text`.
    """
    sql = ["r.group_key = :group"]
    values: dict[str, Any] = {"group": group_key, "dead": dead}
    if asked.outcome is not None:
        sql.append(stands(asked.outcome, dead))
    for name in ("cut", "failure", "task"):
        if wanted := getattr(asked, name):
            sql.append(f"r.{_COLUMNS[name]} = :{name}")
            values[name] = wanted
    if asked.tool:
        errors = " AND json_extract(j.value, '$[1]') > 0" if asked.with_errors else ""
        sql.append(
            f"EXISTS (SELECT 1 FROM json_each(r.tools) j WHERE j.key IN (SELECT value FROM json_each(:tools)){errors})"
        )
        values["tools"] = json.dumps(list(tools))
    elif asked.with_errors:
        sql.append("r.call_errors > 0")
    for name, sign in (("reward_from", ">="), ("reward_to", "<=")):
        if (bound := getattr(asked, name)) is not None:
            sql.append(f"r.state = 'completed' AND r.reward {sign} :{name}")
            values[name] = bound
    if asked.text:
        sql.append("r.run_id IN (SELECT value FROM json_each(:found))")
        values["found"] = json.dumps(list(found))
    return Where(sql=" AND ".join(sql), values=values)


_COLUMNS = {"cut": "cut", "failure": "failure_kind", "task": "task_id"}


def _reward(request: Request, name: str) -> float | None:
    text = text_of(request, name).strip().replace(MINUS, "-")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise HTTPException(400, f"{name} must be a number.")
    return value
