"""A folder that whoever works in it has prepared against whoever reads it: nothing outside is reached, nothing is waited for."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_env.bundle import UniverseKind, UniverseSpec
from agent_env.universe import open_universe, open_universe_on_disk, sweep_left_copies


@pytest.fixture(autouse=True)
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary directory of the test's own, in which nothing is left."""
    folder = tmp_path / "temp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture
def spec(tmp_path: Path) -> UniverseSpec:
    """A directory with a file."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/a.txt").write_text("a")
    return UniverseSpec(path=tmp_path / "site", kind=UniverseKind.DIRECTORY)


def nest(top: Path, levels: int) -> None:
    """Make directories in directories, deeper than a path can name and than Python calls itself."""
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)


async def test_directories_of_any_depth_are_removed(spec: UniverseSpec, temp: Path) -> None:
    """When their episode ends, and when a process has left them: one such would keep every later process from its work."""
    async with open_universe(spec) as copy:
        nest(copy.state, 4000)
    async with open_universe_on_disk(None) as folder:
        nest(folder, 4000)
    left = temp / "agent-env-universe-1-0123abcd-x"
    left.mkdir()
    nest(left, 4000)
    assert sweep_left_copies() == [left]
