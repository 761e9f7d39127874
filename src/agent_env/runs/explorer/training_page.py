"""A training run: its charts over the steps, and its steps as a table."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from agent_env.errors import UsageError
from agent_env.runs._reading import Reader, read_groups
from agent_env.runs.explorer.address import number_of, text_of
from agent_env.runs.explorer.charts import splits_of
from agent_env.runs.explorer.points import StepPoint, points_of
from agent_env.runs.explorer.site import Site
from agent_env.runs.record import GroupSummary

__all__ = ["TrainingView", "training_page"]

_GROUPS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingView:
    """One training run: every step for the chart, some for the table, the latest first."""

    name: str
    points: tuple[StepPoint, ...]
    groups: tuple[GroupSummary, ...]
    next_page: int | None

    @property
    def splits(self) -> list[str]:
        """The splits with a line in the chart, in the order of their colours."""
        return splits_of(self.points)


def training_page(site: Site, request: Request) -> Response:
    """Answer `/training?name=`."""
    view = view_training(site.reader, text_of(request, "name"), offset=number_of(request, "from"))
    return site.answer(request, "training.html", view)


def view_training(reader: Reader, name: str, *, offset: int) -> TrainingView:
    """A training run's page.

    Raises:
        UsageError: When there is no such training run.
    """
    with reader.asking() as conn:
        points = points_of(conn, name)
        if not points:
            raise UsageError(f"no training run {name!r}")
        latest = sorted(points, key=lambda point: (-point.step, point.split != "train", point.split))
        shown = latest[offset : offset + _GROUPS]
        groups = read_groups(conn, names=[point.group for point in shown])
    return TrainingView(
        name=name,
        points=tuple(points),
        groups=tuple(groups),
        next_page=offset + _GROUPS if len(latest) > offset + _GROUPS else None,
    )
