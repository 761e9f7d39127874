"""`agent-env show`: what it prints of a run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agent_env.cli import root
from agent_env.episode.sink import Event, EventKind, RunHeader
from agent_env.outcome import EpisodeResult, Failure, FailureKind, Outcome
from agent_env.runs import RunIndex, RunSink
from agent_env.runs.export import columns_of


def _say(sink: RunSink, kind: EventKind, /, **data: Any) -> None:
    sink.event(Event(kind, time.time(), "prompt", 0, data))


def _shown(folder: Path, run_id: str, *more: str) -> str:
    done = CliRunner().invoke(root, ["show", run_id, "--runs", str(folder), *more], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_all_that_a_run_keeps_is_printed(tmp_path: Path) -> None:
    """Tags, labels, tokens, kinds of errors, changes of a state and where the time went, beside the conversation."""
    with RunIndex.open(tmp_path) as index:
        sink = index.run("g", labels={"policy_step": 3, "model": "tiny"})
        sink.opened(RunHeader(task_id="t", bundle_name="b", bundle_version="1", params={"day": 1}, tags=("a", "b")))
        message = {"role": "assistant", "content": "Hm."}
        _say(sink, EventKind.MESSAGE, message=message, index=0, prompt_tokens=90, sampled_tokens=4)
        _say(sink, EventKind.CALL, call_id="1", tool="lend", arguments={"days": 3}, raw='{"days": "3"}')
        _say(
            sink,
            EventKind.ANSWER,
            call_id="1",
            tool="lend",
            text="no",
            is_error=True,
            refusal="refused",
            duration_s=0.5,
        )
        changes = [{"path": "/a", "after": 1}, {"path": "/b", "before": 2}, {"path": "/c", "before": 3, "after": 4}]
        _say(sink, EventKind.STATE, env="store", changes=changes, left_out=5)
        failure = Failure(kind=FailureKind.VERIFIER_RAISED, step="sold", message="KeyError: 'x'", traceback="")
        sink.ended(EpisodeResult(outcome=Outcome.FAILED, run_id=sink.run_id, scores={}, failure=failure))
    lines = [line.strip() for line in _shown(tmp_path, sink.run_id).splitlines()]
    for line in (
        "tags         a, b",
        'params       {"day": 1}',
        "policy_step  3",
        "model        tiny",
        "+ /a: 1",
        "- /b: 2",
        "/c: 3 → 4",
        "and 5 more, which the run did not keep",
        "failed in sold (verifier_raised): KeyError: 'x'",
    ):
        assert line in lines
    assert any(line.endswith("assistant  4 tokens") for line in lines)
    assert any(line.endswith("lend  refused · 500 ms") for line in lines)
    assert "4 tokens sampled" in lines[-2] + lines[-3]


def test_a_long_list_of_changes_is_printed_in_part(tmp_path: Path) -> None:
    """With the command that prints all."""
    with RunIndex.open(tmp_path) as index:
        sink = index.run("g")
        sink.opened(RunHeader(task_id="t", bundle_name="b", bundle_version="1", params={}, tags=()))
        _say(sink, EventKind.STATE, env="store", changes=[{"path": f"/{at}", "after": at} for at in range(250)])
    shown = _shown(tmp_path, sink.run_id)
    assert "+ /199: 199" in shown
    assert "+ /200: 200" not in shown
    assert "and 50 more: `agent-env universe diff` prints them" in shown


def test_json_and_a_script_are_not_asked_for_together(tmp_path: Path) -> None:
    """One of the two."""
    done = CliRunner().invoke(root, ["show", "x", "--runs", str(tmp_path), "--json", "--script"])
    assert done.exit_code == 2
    assert "leave one of them out" in done.output


def test_json_is_one_object_with_every_event(tmp_path: Path) -> None:
    """As Python writes it, also of a run that has none."""
    with RunIndex.open(tmp_path) as index:
        sinks = [index.run("g"), index.run("g")]
        for sink in sinks:
            sink.opened(RunHeader(task_id="t", bundle_name="b", bundle_version="1", params={"a": "\n"}, tags=()))
        for text in ("one\ntwo", "\x1b[31m\u2028", ""):
            _say(sinks[0], EventKind.MESSAGE, message={"role": "assistant", "content": text}, empty={}, none=[])
        index.flush()
        for sink in sinks:
            record = index.read(sink.run_id)
            more = {"params": record.params, "tags": record.tags, "bundle_root": record.bundle_root}
            run = columns_of(record.run) | more
            whole = {"run": run, "events": [asdict(event) for event in record.events]}
            assert _shown(tmp_path, sink.run_id, "--json") == json.dumps(whole, indent=1) + "\n"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="nothing here says what memory a process took")
@pytest.mark.parametrize("options", [[], ["--json"], ["--script"]])
def test_a_large_run_is_printed_without_being_held(tmp_path: Path, options: list[str]) -> None:
    """A run of 60 MB costs little more memory than a small one."""
    with RunIndex.open(tmp_path) as index:
        small, large = (_run_of(index, answers) for answers in (1, 60))
    assert _peak_mb(tmp_path, large, *options) - _peak_mb(tmp_path, small, *options) < 40


def _run_of(index: RunIndex, answers: int) -> str:
    """A run with so many answers of a megabyte."""
    sink = index.run("g")
    sink.opened(RunHeader(task_id="t", bundle_name="b", bundle_version="1", params={}, tags=()))
    _say(sink, EventKind.TURN_STARTED, agent="clerk", kind="played", prompt="Go on.")
    for number in range(answers):
        call = {"call_id": str(number), "tool": "look"}
        _say(sink, EventKind.CALL, **call, arguments={"n": number}, raw=None)
        _say(sink, EventKind.ANSWER, **call, text=f"{'lorem ipsum ' * 10}\n" * 8_000, is_error=False)
    index.flush()
    return sink.run_id


def _peak_mb(folder: Path, *words: str) -> float:
    """The most memory that printing took, in a process of its own."""
    command = [sys.executable, "-c", _SHOW, "show", *words, "--runs", str(folder)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
    return int(done.stderr) / 1e3


_SHOW = """
import re, sys
from pathlib import Path
from agent_env.cli import root
root(standalone_mode=False)
sys.stderr.write(re.search(r"VmHWM:\\s*([0-9]+) kB", Path("/proc/self/status").read_text())[1])
"""
