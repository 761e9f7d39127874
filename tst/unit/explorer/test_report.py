"""`agent-env report`: one page that stands alone."""

from __future__ import annotations

import html
import os
import re
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent_env.cli import root
from agent_env.errors import UsageError
from agent_env.outcome import CutReason, Failure, FailureKind
from agent_env.runs import RunIndex
from agent_env.runs.explorer import make_report

from .conftest import Element, Tell, parsed

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\u202e\"'>"
GROUP = "grid/train/step-0001"


@pytest.fixture
def folder(tell: Tell, index: RunIndex, tmp_path: Path) -> Path:
    """Two tasks: one whose rollouts differ, one with a failed and a cut rollout."""
    for reward in (0.0, 1.0, 0.5):
        told = tell(GROUP, "day-1")
        told.says(f"I earn {reward}")
        told.call("submit", {"hours": [1, 2]}, "accepted")
        told.ended(reward, scores={"saving": reward})
    told = tell(GROUP, "day-2")
    told.says(HOSTILE)
    told.ended(failure=Failure(kind=FailureKind.MCP_DIED, step="deploy_env", message=f"gone {HOSTILE}"))
    told = tell(GROUP, "day-2")
    told.ended(0.25, scores={"saving": 0.25}, cut=CutReason.TOKEN_LIMIT)
    tell("grid/test/step-0001", "day-9").ended(0.75, scores={"saving": 0.75})
    index.flush()
    return tmp_path


def page(folder: Path, name: str = GROUP, **more: int) -> Element:
    """A report as elements."""
    return parsed(make_report(folder, name, **more).html)


def titles(report: Element) -> list[str]:
    """Of the episodes that are shown in full, what their line says."""
    return [one.children[0].text for one in _episodes(report) if isinstance(one.children[0], Element)]


def _episodes(report: Element) -> list[Element]:
    return report.all("details", class_="episode")


def test_a_report_counts_failures_beside_the_mean(folder: Path) -> None:
    """Never inside it: four of five are scored."""
    account = page(folder).one("p", class_="account").text
    assert account.startswith("mean 0.438 ± ")
    assert "of 4 scored" in account
    assert "1 failed" in account
    assert "mcp died" in account
    assert "1 token limit" in account


def test_a_report_shows_one_failure_and_one_cut_of_each_kind_then_the_best_and_worst(folder: Path) -> None:
    """What a reviewer looks at first."""
    shown = titles(page(folder))
    assert [line.split()[0] for line in shown] == ["day-2", "day-2", "day-1", "day-1"]
    assert "failed: mcp died" in shown[0]
    assert "cut: token limit" in shown[1]
    assert "the best of its task" in shown[2]
    assert "the worst of its task" in shown[3]


def test_the_number_of_episodes_is_bounded(folder: Path) -> None:
    """None where none is asked for, and never more than asked for."""
    assert titles(page(folder, episodes=0)) == []
    assert len(titles(page(folder, episodes=3))) <= 3
    with pytest.raises(UsageError, match="0 or more"):
        make_report(folder, GROUP, episodes=-1)


def test_a_cell_leads_to_the_episode_where_the_report_has_it(folder: Path) -> None:
    """And nowhere else: there is no server."""
    report = page(folder, episodes=1)
    ids = {one["id"] for one in _episodes(report)}
    links = [one["href"] for one in report.all("a") if "href" in one.attributes]
    assert links
    assert {link.removeprefix("#") for link in links} == ids


@pytest.mark.parametrize("name", [GROUP, "grid"])
def test_a_report_asks_for_nothing(folder: Path, name: str) -> None:
    """No script, no address of another file or host, and a policy that would forbid them."""
    made = make_report(folder, name).html
    report = parsed(made)
    assert not report.all("script")
    addresses = [one.attributes[key] for one in report.all() for key in ("src", "href") if key in one.attributes]
    assert all(address.startswith(("#", "data:")) for address in addresses)
    assert not re.search(r"url\(\s*['\"]?(?!data:|#)", made)
    policy = next(one["content"] for one in report.all("meta") if one.attributes.get("http-equiv"))
    assert "default-src 'none'" in policy


def test_what_a_model_wrote_is_text(folder: Path) -> None:
    """Tags, handlers, escapes and bidi marks are shown and do nothing."""
    made = make_report(folder, GROUP).html
    report = parsed(made)
    assert not report.all("img", src="x")
    assert "<script>alert(1)</script>" in report.raw_text
    assert "\x1b" not in made
    assert "\u202e" not in made


def test_the_report_of_a_training_run_has_its_chart_and_its_last_steps(folder: Path) -> None:
    """Of each split; with the small charts beside the reward, which say of failures and cuts what kinds there were."""
    report = page(folder, "grid")
    reward = report.all("figure")[0]
    assert len(reward.all("svg", class_="chart")) == 2  # a wide and a narrow one
    small = report.all("figure", class_="small")
    assert [one.one("b").text for one in small][:2] == ["Failed, share of runs", "Cut, share of runs"]
    assert small[0].one(class_="legend").text == "mcp died 1"
    assert all(len(one.all("svg", class_="chart")) == 1 for one in small)
    assert {one.text for one in report.all("h2")} >= {"Beside the reward", "train step 1", "test step 1"}


def test_a_report_says_which_folder_it_was_read_from(folder: Path) -> None:
    """By its name alone: the path is nobody else's business."""
    foot = page(folder).one("footer").text
    assert f" from the folder “{folder.name}”." in foot
    assert str(folder) not in foot


def test_a_name_that_is_not_there_is_said(folder: Path) -> None:
    """With the way to find out which there are."""
    with pytest.raises(UsageError, match="no group and no training run 'gird': `agent-env runs` lists them"):
        make_report(folder, "gird")


def test_a_notebook_shows_the_report_in_a_frame_of_its_own(folder: Path) -> None:
    """Neither's style reaches the other, and no script would run."""
    report = make_report(folder, GROUP)
    frame = parsed(report._repr_html_()).one("iframe")  # pyright: ignore[reportPrivateUsage] -- the protocol of notebooks
    assert html.unescape(frame["srcdoc"]) == report.html or frame["srcdoc"] == report.html
    assert frame["sandbox"] == ""


def test_the_command_writes_a_file(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named after the group, or as asked."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    done = CliRunner().invoke(root, ["report", GROUP, "--runs", str(folder), "--html"], catch_exceptions=False)
    assert done.output == "grid-train-step-0001.html\n"
    assert parsed(Path("grid-train-step-0001.html").read_text()).one("h1").text == GROUP
    done = CliRunner().invoke(root, ["report", "grid", "--html", "x.html", "--runs", str(folder)])
    assert done.exit_code == 0
    assert sorted(file.name for file in Path().iterdir()) == ["grid-train-step-0001.html", "x.html"]


def test_events_that_cannot_be_read_are_not_said_to_be_left_out(tell: Tell, index: RunIndex, tmp_path: Path) -> None:
    """They are in the conversation, as one item that says so."""
    told = tell()
    for number in range(70):
        told.says(f"line {number}.")
    told.ended(0.5)
    index.flush()
    with sqlite3.connect(tmp_path / "index.sqlite3") as conn:
        (first,) = conn.execute("SELECT max(first_seq) FROM chunks").fetchone()
        conn.execute("UPDATE chunks SET body = x'00' WHERE first_seq = ?", (first,))
    conn.close()
    text = page(tmp_path, "g").text
    assert f"events {first} to 69 cannot be read" in text
    assert "more events are not in this report" not in text


def test_a_file_that_cannot_be_written_is_said(folder: Path) -> None:
    """And nothing is left behind."""
    with pytest.raises(UsageError, match="choose a file in a folder that can be written"):
        make_report(folder, GROUP).save(folder / "none" / "x.html")


def test_a_report_lets_go_of_the_index(folder: Path, index: RunIndex) -> None:
    """A notebook makes many: no connection stays open."""
    index.close()
    report = make_report(folder, "grid")
    assert report.title == "grid"
    assert _open_files(folder) == []


def _open_files(folder: Path) -> list[str]:
    """This process's open files in a folder."""
    found: list[str] = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # what listed them is closed by now
            found.append(os.readlink(link))
    return [file for file in found if file.startswith(str(folder))]


def test_a_trainings_report_has_its_drops_and_what_stands_beside_it(tell: Tell, index: RunIndex) -> None:
    """As its page has, without links: the report stands alone."""
    for step, reward in ((0, 0.9), (1, 0.1)):
        for wobble in (-0.05, 0.05):
            tell(f"a/train/step-{step:04}", "day-1").ended(reward + wobble)
    tell("a/held-out/after", "day-2").ended(0.75)
    index.flush()
    report = page(index.folder, "a")
    drops = report.one(class_="drops")
    assert "train step 1 0.900 → 0.100" in drops.text
    assert not drops.all("a")
    beside = report.one("table", class_="others")
    assert [group.text for group in beside.all(data_label="group")] == ["held-out/after"]
    assert " ago" not in beside.text
