"""A step of a training run, or any other group: its tasks by rollouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from agent_env.runs.explorer.address import number_of, text_of
from agent_env.runs.explorer.group_filter import GroupFilter, Sort, filter_of, sort_of
from agent_env.runs.explorer.group_tasks import Matched, TaskRow, read_tasks
from agent_env.runs.explorer.heat import heat_span
from agent_env.runs.explorer.neighbours import Neighbours
from agent_env.runs.explorer.placed_group import ScoreMean, read_placed_group, read_scores, read_tools
from agent_env.runs.explorer.site import Site
from agent_env.runs.record import GroupSummary, RunState

__all__ = ["GroupView", "group_page"]

_FEW = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """One group: its counts and a page of its tasks."""

    group: GroupSummary
    before: GroupSummary | None
    """The step before, of the same split."""
    neighbours: Neighbours
    siblings: Mapping[str, str]
    """The groups of the other splits at this step, by split."""
    other: str | None
    """The training run that was laid over this one."""
    other_group: str | None
    """Its group of the same split and step."""
    filter: GroupFilter
    sort: Sort
    matched: Matched
    scores: tuple[ScoreMean, ...]
    """By verify step, where there are several."""
    tools: tuple[str, ...]
    """The tools that its runs called."""
    problem: str
    """Why the filter's text was not looked for in all of them; empty where it was."""
    rows: tuple[TaskRow, ...]
    first: int
    earlier: int | None
    later: int | None
    """Where the page before and the page after start."""
    reward_low: float
    reward_high: float
    """What the colours of the rewards span: 0 to 1, or all of the group's rewards where they are elsewhere."""

    @property
    def asked(self) -> dict[str, object]:
        """What the address asks for, but for the page."""
        return {"name": self.group.name, "with": self.other, **self.filter.asked, "sort": self.sort}

    @property
    def sorts(self) -> list[Sort]:
        """The orders there are: the change only where the step before played some of the same tasks."""
        has_change = self.sort is Sort.CHANGE or any(row.before is not None for row in self.rows)
        return [sort for sort in Sort if sort is not Sort.CHANGE or has_change]

    @property
    def has_before(self) -> bool:
        """Whether a task of the page was played in the step before."""
        return any(row.before is not None for row in self.rows)

    @property
    def change(self) -> float | None:
        """What the mean reward is above that of the step before."""
        before = None if self.before is None else self.before.reward_mean
        return None if before is None or self.group.reward_mean is None else self.group.reward_mean - before

    @property
    def states(self) -> list[RunState]:
        """The outcomes that its runs have, and the one that is asked for."""
        return [state for state in RunState if self.group.states[state] or state is self.filter.outcome]

    @property
    def is_sparse(self) -> bool:
        """Whether no task of the page has more than a few rollouts: then there is room for its name."""
        return all(len(row.rollouts) <= _FEW for row in self.rows)

    @property
    def tries(self) -> bool:
        """Whether a rollout of the page was tried again."""
        return any(rollout.attempt for row in self.rows for rollout in row.rollouts)


def group_page(site: Site, request: Request) -> Response:
    """Answer `/group?name=`."""
    view = view_group(
        site,
        text_of(request, "name"),
        asked=filter_of(request),
        sort=sort_of(request),
        other=text_of(request, "with"),
        offset=number_of(request, "from"),
    )
    return site.answer(request, "group.html", view)


def view_group(
    site: Site,
    name: str,
    *,
    asked: GroupFilter | None = None,
    sort: Sort | None = None,
    other: str = "",
    offset: int = 0,
) -> GroupView:
    """A group's page.

    Args:
        site: What to ask.
        name: The group's.
        asked: Which of its runs; all where it is None.
        sort: The order of its tasks; None for the one that suits it.
        other: A training run whose step is linked to.
        offset: The place of the page's first task, or with one task its first rollout.

    Raises:
        UsageError: When there is no such group.
    """
    asked = asked or GroupFilter()
    with site.reader.asking() as conn:
        group = read_placed_group(conn, name, other=other)
        scores, tools = read_scores(conn, group), read_tools(conn, group)
        page = read_tasks(site, conn, group, asked, tools=tools, sort=sort, offset=offset)
    low, high = heat_span(group.summary.reward_min, group.summary.reward_max)
    return GroupView(
        group=group.summary,
        before=group.before,
        neighbours=group.neighbours,
        siblings=group.siblings,
        other=other or None,
        other_group=group.other_group,
        filter=asked,
        sort=page.sort,
        matched=page.matched,
        scores=scores,
        tools=tools,
        problem=page.problem,
        rows=page.rows,
        first=offset,
        earlier=page.earlier,
        later=page.later,
        reward_low=low,
        reward_high=high,
    )
