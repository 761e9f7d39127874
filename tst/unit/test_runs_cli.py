"""`agent-env runs` and `agent-env show` over a real index."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent_env.cli import root
from agent_env.episode.sink import Event, EventKind, RunHeader
from agent_env.errors import RunIndexError, UsageError
from agent_env.outcome import EpisodeResult, Failure, FailureKind, Outcome, Score
from agent_env.runs import RunIndex


@pytest.fixture
def run_id(tmp_path: Path) -> str:
    """Two scored runs and a failed one; the first one's id."""
    ids: list[str] = []
    header = RunHeader(task_id="day-1", bundle_name="b", bundle_version="1", params={"day": 1}, tags=())
    with RunIndex.open(tmp_path) as index:
        for reward in (0.25, 0.75):
            sink = index.run("grid/train/step-0001")
            ids.append(sink.run_id)
            sink.opened(header)
            events = {
                EventKind.TURN_STARTED: {"agent": "operator", "system_prompt": "Be short.", "prompt": "Plan it."},
                EventKind.MESSAGE: {"message": {"role": "assistant", "content": "I will."}},
                EventKind.CALL: {"call_id": "1", "tool": "submit", "arguments": {"hours": [1]}, "raw": "{}"},
                EventKind.ANSWER: {"call_id": "1", "tool": "submit", "text": "accepted", "is_error": False},
                EventKind.SCORE: {"value": reward, "explanation": "fair", "metrics": {}},
            }
            for kind, data in events.items():
                sink.event(Event(kind=kind, at_s=time.time(), step="saving", turn=0, data=data))
            scores = {"saving": Score(step="saving", value=reward)}
            sink.ended(EpisodeResult(outcome=Outcome.COMPLETED, run_id=sink.run_id, scores=scores))
            sink.set_reward(reward)
        sink = index.run("grid/train/step-0001")
        sink.opened(header)
        failure = Failure(kind=FailureKind.ENV_START, step="deploy_env", message="no such file")
        sink.ended(EpisodeResult(outcome=Outcome.FAILED, run_id=sink.run_id, scores={}, failure=failure))
    return ids[0]


def test_runs_lists_groups_with_counts_and_rewards(tmp_path: Path, run_id: str) -> None:
    """A line per group: mean, standard error, outcomes, failures by kind."""
    assert run_id
    done = CliRunner().invoke(root, ["runs", str(tmp_path), "--group", "grid"], catch_exceptions=False)
    line = next(line for line in done.output.splitlines() if line.startswith("grid/train/step-0001"))
    assert line.split()[1:6] == ["3", "0.500", "±", "0.250", "2"]
    assert "2 completed, 1 failed (1 env_start)" in line


def test_runs_as_json(tmp_path: Path, run_id: str) -> None:
    """The same for a program."""
    assert run_id
    done = CliRunner().invoke(root, ["runs", str(tmp_path), "--group", "grid", "--json"], catch_exceptions=False)
    (group,) = json.loads(done.output)["groups"]
    assert (group["name"], group["scored"], group["reward_mean"]) == ("grid/train/step-0001", 2, 0.5)
    assert group["place"] == {"training": "grid", "split": "train", "step": 1}
    assert group["failures"] == {"env_start": 1}


def test_runs_of_an_empty_index_says_so(tmp_path: Path) -> None:
    """No runs is no error."""
    RunIndex.open(tmp_path).close()
    done = CliRunner().invoke(root, ["runs", str(tmp_path)], catch_exceptions=False)
    assert "no runs yet" in done.output


def test_runs_where_none_are(tmp_path: Path) -> None:
    """A folder without an index is one clear line, and stays without one."""
    done = CliRunner().invoke(root, ["runs", str(tmp_path / "none")])
    assert isinstance(done.exception, RunIndexError)
    assert not (tmp_path / "none").exists()


def test_show_prints_the_conversation_in_order(tmp_path: Path, run_id: str) -> None:
    """Prompt, message, call with arguments, answer, score, outcome; the start of the id is enough."""
    done = CliRunner().invoke(root, ["show", run_id[:12], "--runs", str(tmp_path)], catch_exceptions=False)
    words = ["day-1", "Plan it.", "Be short.", "I will.", "submit", '{"hours": [1]}', "accepted", "saving", "fair"]
    places = [done.output.index(word) for word in (*words, "completed", "reward 0.25")]
    assert places == sorted(places)


def test_show_as_json_has_every_event(tmp_path: Path, run_id: str) -> None:
    """The record for a program: the run and its events."""
    done = CliRunner().invoke(root, ["show", run_id, "--runs", str(tmp_path), "--json"], catch_exceptions=False)
    read = json.loads(done.output)
    assert read["run"]["params"] == {"day": 1}
    assert [event["kind"] for event in read["events"]] == ["turn_started", "message", "call", "answer", "score"]


def test_show_of_no_run_is_a_usage_error(tmp_path: Path, run_id: str) -> None:
    """A wrong id says how to find the right one."""
    assert run_id
    done = CliRunner().invoke(root, ["show", "zzz", "--runs", str(tmp_path)])
    assert isinstance(done.exception, UsageError)
    assert "agent-env runs" in str(done.exception)
