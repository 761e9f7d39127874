"""Files that are there as a whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent_env._new_file import new_file
from agent_env.errors import UsageError


def test_a_file_is_replaced_when_all_is_written(tmp_path: Path) -> None:
    """Until then the old one is there."""
    target = tmp_path / "runs.jsonl"
    target.write_text("old")
    with new_file(target) as file:
        file.write(b"new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_what_stops_the_writing_leaves_the_old_file(tmp_path: Path) -> None:
    """Ctrl-C too."""
    target = tmp_path / "runs.jsonl"
    target.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        _write_and_be_stopped(target)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_two_that_write_the_same_file_do_not_meet(tmp_path: Path) -> None:
    """Each is whole; the last one stays, and so does a file of the user's that looks like a half one."""
    target, other = tmp_path / "runs.jsonl", tmp_path / "runs.jsonl.part"
    other.write_text("the user's")
    with new_file(target) as first:
        first.write(b"fir")
        with new_file(target) as second:
            second.write(b"second")
        first.write(b"st")
    assert target.read_text() == "first"
    assert other.read_text() == "the user's"


@pytest.mark.parametrize("where", ["missing/runs.jsonl", "file/runs.jsonl", "folder", f"{'x' * 300}.jsonl"])
def test_where_no_file_can_be_is_said_and_nothing_is_left(tmp_path: Path, where: str) -> None:
    """A folder that is missing, a file above it, a folder of that name, a name that is too long."""
    (tmp_path / "file").write_text("a file")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="choose a file in a folder that can be written"), new_file(tmp_path / where):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    """As /dev/stdout and /dev/null must, which root could replace."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with new_file(pipe) as file:
            file.write(b"page")
        assert os.read(reader, 10) == b"page"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    """As /dev/stdout leads to the file that a shell has it in."""
    file, link = tmp_path / "report.html", tmp_path / "latest.html"
    file.write_text("old")
    link.symlink_to(file)
    with new_file(link) as out:
        out.write(b"new")
    assert link.is_symlink()
    assert file.read_text() == "new"


def _write_and_be_stopped(target: Path) -> None:
    with new_file(target) as file:
        file.write(b"ne")
        raise KeyboardInterrupt
