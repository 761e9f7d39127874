"""A report: one group of runs, or a whole training run, as one page that stands alone.

For a pull request, a notebook, or whoever has no access to the runs. It needs no server, no network and no script, and holds what
a reader asks first: what was earned, what broke, each task's rollouts, and some episodes in full.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path

from markupsafe import Markup

from agent_env._new_file import new_file
from agent_env._version import __version__
from agent_env.errors import UsageError
from agent_env.runs._reading import Reader, read_groups, read_summary
from agent_env.runs.conversation import Item, conversation
from agent_env.runs.explorer.group_filter import Sort
from agent_env.runs.explorer.group_page import GroupView, view_group
from agent_env.runs.explorer.item_rows import item_rows
from agent_env.runs.explorer.render import as_html
from agent_env.runs.explorer.rollouts import Rollout
from agent_env.runs.explorer.run_drawing import times_bar
from agent_env.runs.explorer.run_reading import after_last, read_events, read_head
from agent_env.runs.explorer.site import Site
from agent_env.runs.explorer.training_page import TrainingView, view_training
from agent_env.runs.record import RunState, RunSummary

__all__ = ["EPISODES", "Report", "make_report"]

EPISODES = 12
"""Episodes that a report shows in full, unless more or fewer are asked for."""
_EVENTS = 120
"""Of an episode, what is shown; the rest is counted."""
_FRAME_PX = 760
# Of our own templates: no value in a tag has a raw '>' or '"'.
_LINK = re.compile(r"""(?P<start><a\b[^>]*?) href="(?P<address>/[^"]*)\"""")
_RUN = re.compile(r"/run/(?P<id>[0-9a-f]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A page. In a notebook it shows itself."""

    title: str
    html: str
    """All of it: a document of its own."""

    def save(self, path: Path | str) -> Path:
        """Write it to a file, whole or not at all.

        Raises:
            UsageError: When the file cannot be written.
        """
        file = Path(path)
        with new_file(file) as out:
            out.write(self.html.encode())
        return file

    def _repr_html_(self) -> str:
        """What a notebook shows: the page in a frame, so that neither's style reaches the other."""
        page = html.escape(self.html, quote=True)
        return (
            f'<iframe srcdoc="{page}" sandbox="" title="{html.escape(self.title, quote=True)}"'
            f' width="100%" height="{_FRAME_PX}" style="border: 1px solid #ccc"></iframe>'
        )


@dataclass(frozen=True, kw_only=True)
class ShownEpisode:
    """An episode that the report shows in full."""

    run: RunSummary
    why: str
    """Why this one."""
    items: Sequence[Item]
    left_out: int
    """Events that are not among the items."""
    damage: str

    @property
    def rows(self) -> list[Sequence[Item]]:
        """The items in rows."""
        return item_rows(self.items)

    @cached_property
    def times_bar(self) -> Markup:
        """Where its seconds went."""
        return times_bar(self.run)


@dataclass(frozen=True, kw_only=True)
class ReportView:
    """What the report draws."""

    title: str
    folder: str
    version: str
    training: TrainingView | None
    groups: Sequence[GroupView]
    """The group, or the last step of each split of the training run."""
    episodes: Sequence[ShownEpisode]

    @cached_property
    def shown(self) -> frozenset[str]:
        """The ids of the runs that are shown in full: what a cell can link to."""
        return frozenset(episode.run.run_id for episode in self.episodes)


def make_report(folder: Path | str, name: str, *, episodes: int = EPISODES) -> Report:
    """Make the report of a group of runs, or of a training run.

    Args:
        folder: The runs folder.
        name: The group's name, `grid/train/step-0003`, or the training run's, `grid`.
        episodes: How many episodes are shown in full, at most: those that failed or were cut, one of each kind, then the
            best and the worst of the tasks whose rollouts differ the most.

    Raises:
        UsageError: When there is no such group or training run.
        RunIndexError: When the index cannot be read.
    """
    if episodes < 0:
        raise UsageError(f"episodes: 0 or more are shown in full, not {episodes}")
    site = Site(Path(folder))
    try:
        training = _training(site, name)
        names = [name] if training is None else [point.group for point in training.latest]
        groups = [view_group(site, one, sort=Sort.SPREAD) for one in names]
        view = ReportView(
            title=name,
            folder=Path(folder).resolve().name,
            version=__version__,
            training=training,
            groups=groups,
            episodes=[_episode(site.reader, run_id, why) for run_id, why in _chosen(groups, episodes).items()],
        )
    finally:
        site.close()
    page = as_html("report.html", view=view, styles=_styles(), icon=_icon())
    return Report(title=name, html=_standing_alone(page, view.shown))


def _standing_alone(page: str, shown: frozenset[str]) -> str:
    """The page without links to a server: one to an episode that it shows leads there, the others lead nowhere."""

    def link(found: re.Match[str]) -> str:
        run = _RUN.fullmatch(found["address"])
        if run is not None and run["id"] in shown:
            return f'{found["start"]} href="#run-{run["id"]}"'
        return found["start"]

    return _LINK.sub(link, page)


def _training(site: Site, name: str) -> TrainingView | None:
    """The training run of that name; None where a group has it."""
    with site.reader.asking() as conn:
        if read_groups(conn, names=[name]):
            return None
        is_training = conn.execute("SELECT 1 FROM groups WHERE training = ? LIMIT 1", (name,)).fetchone()
    if not is_training:
        raise UsageError(f"no group and no training run {name!r}: `agent-env runs` lists them")
    return view_training(site, name)


def _chosen(groups: Sequence[GroupView], most: int) -> Mapping[str, str]:
    """The runs to show in full, by id, and why each."""
    chosen: dict[str, str] = {}
    kinds: set[str] = set()
    rollouts = [rollout for group in groups for row in group.rows for rollout in row.rollouts]
    for rollout in rollouts:
        for kind in _troubles(rollout):
            if kind not in kinds and len(chosen) < most:
                kinds.add(kind)
                chosen.setdefault(rollout.run_id, kind)
    for group in groups:
        for row in group.rows:
            if row.extremes is not None and len(chosen) + 2 <= most:
                best, worst = row.extremes
                chosen.setdefault(best.run_id, "the best of its task")
                chosen.setdefault(worst.run_id, "the worst of its task")
    for rollout in rollouts:
        if len(chosen) < min(most, 1):
            chosen[rollout.run_id] = "an example"
    return chosen


def _troubles(rollout: Rollout) -> Iterable[str]:
    if rollout.failure_kind is not None:
        yield f"failed: {rollout.failure_kind.replace('_', ' ')}"
    elif rollout.state is not RunState.COMPLETED:
        yield str(rollout.state)
    if rollout.cut is not None:
        yield f"cut: {rollout.cut.replace('_', ' ')}"


def _episode(reader: Reader, run_id: str, why: str) -> ShownEpisode:
    with reader.asking() as conn:
        run = read_summary(conn, run_id)
        events = read_events(conn, run, first=0, limit=_EVENTS)
        damage = read_head(conn, run).damage
    shown = after_last(events, 0)
    is_whole = shown >= run.event_count and run.state is not RunState.RUNNING
    return ShownEpisode(
        run=run,
        why=why,
        items=conversation(events, is_whole=is_whole),
        left_out=max(0, run.event_count - shown),
        damage=damage,
    )


def _styles() -> Markup:
    static = files("agent_env.runs.explorer").joinpath("static")
    return Markup("\n".join(static.joinpath(name).read_text("utf-8") for name in ("explorer.css", "run.css")))


def _icon() -> str:
    body = files("agent_env.runs.explorer").joinpath("static", "icon.svg").read_bytes()
    return f"data:image/svg+xml;base64,{base64.b64encode(body).decode('ascii')}"
