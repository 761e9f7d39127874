"""The public names and their signatures: a change of one is a change for every user, so it is made here too."""

from __future__ import annotations

import importlib.metadata
import inspect
import re
import subprocess
import sys
from enum import StrEnum
from pathlib import Path

import pytest

import agent_env
import agent_env.runs
from agent_env.runs._where import COLUMNS

LISTED = """
AgentEnvError Bundle BundleError CallRecord ContextOverflowError CutReason EngineError Env EnvBrokenError Episode
EpisodeError EpisodeFailedError EpisodeResult EpisodeSink EpisodeState EpisodeStateError EpisodeView Event EventKind
Failure FailureKind Limits McpServerError Message MissingExtraError ModelServerError ModelSpec Outcome Place PlayerTurn
Problem Refusal RewardError RewardRule RunHeader RunIndex RunIndexError SandboxLostError SandboxUnavailableError Score Skipped
Task ToolAnswer ToolCall ToolError ToolSpec TrainingError Turn UniverseError UsageError __version__ drive gold_player
load_bundle model_player open_episode play resolve_reward reward_of tool validate_bundle
"""
NAMES = LISTED.split()

SIGNATURES = {
    "load_bundle": "(path: 'Path | str') -> 'Bundle'",
    "validate_bundle": "(path: 'Path | str', *, run_code: 'bool' = True) -> 'list[Problem]'",
    "open_episode": "(task: 'Task', *, sink: 'EpisodeSink | None' = None, limits: 'Limits' = Limits(deploy_s=300.0, "
    "run_s=600.0, verify_s=600.0, judges=None, close_s=30.0)) -> 'AsyncGenerator[Episode]'",
    "play": "(task: 'Task', player: 'Player | PythonRef', *, sink: 'EpisodeSink | None' = None, limits: 'Limits' = "
    "Limits(deploy_s=300.0, run_s=600.0, verify_s=600.0, judges=None, close_s=30.0), max_messages: 'int' = 200) -> 'EpisodeResult'",
    "reward_of": "(result: 'EpisodeResult', rule: 'RewardRule | RewardSpec | str | None' = None) -> 'float'",
    "resolve_reward": "(bundle: 'Bundle', reward: 'str | None', tasks: 'Iterable[Task]', *, "
    "judges: 'bool | None' = None) -> 'RewardRule'",
    "tool": "(function: 'F | None' = None, /, *, name: 'str | None' = None, ends_turn: 'bool' = False, "
    "blocking: 'bool' = False, timeout_s: 'float | None' = None) -> 'F | Callable[[F], F]'",
    "Limits": "(*, deploy_s: 'float' = 300.0, run_s: 'float' = 600.0, verify_s: 'float' = 600.0, "
    "judges: 'bool | None' = None, close_s: 'float' = 30.0) -> None",
    "RewardRule": "(*, weights: 'Mapping[str, float] | None', gated: 'bool' = True) -> None",
    "ToolAnswer": "(text: 'str', is_error: 'bool' = False, ends_turn: 'bool' = False, "
    "content: 'Sequence[Mapping[str, Any]]' = (), traceback: 'str' = '', refusal: 'Refusal | None' = None, "
    "raised_at: 'Place | None' = None) -> None",
    "EpisodeResult": "(*, outcome: 'Outcome', run_id: 'str', scores: 'Mapping[str, Score]', "
    "failure: 'Failure | None' = None, cut: 'CutReason | None' = None, "
    "metrics: 'Mapping[str, float]' = <factory>, skipped: 'Mapping[str, Skipped]' = <factory>) -> None",
    "Score": "(*, step: 'str', value: 'float', explanation: 'str' = '', "
    "metrics: 'Mapping[str, float]' = <factory>, weight: 'float | None' = None, required: 'bool' = False) -> None",
    "Episode.start": "(self) -> 'Turn | None'",
    "Episode.cut": "(self, reason: 'CutReason') -> 'None'",
    "Episode.result": "(self) -> 'EpisodeResult'",
    "Episode.fail": "(self, kind: 'FailureKind', message: 'str', *, error: 'BaseException | None' = None) -> 'None'",
    "Episode.abandon": "(self) -> 'None'",
    "Turn.record": "(self, message: 'Message', *, prompt_tokens: 'int | None' = None, "
    "sampled_tokens: 'int | None' = None) -> 'int | None'",
    "Turn.call": "(self, name: 'str', arguments: 'Mapping[str, Any]', *, call_id: 'str | None' = None, "
    "raw: 'str | None' = None) -> 'ToolAnswer'",
    "Turn.refuse": "(self, name: 'str', text: 'str', *, raw: 'str | None' = None, call_id: 'str | None' = None) "
    "-> 'ToolAnswer'",
    "Turn.end": "(self, reply: 'Message | None' = None) -> 'Turn | None'",
    "EpisodeView.state": "(self, env: 'str | None' = None) -> 'Any'",
    "RunIndex.open": "(folder: 'Path | str', *, read_only: 'bool' = False) -> 'Self'",
    "RunIndex.run": "(self, group: 'str', *, attempt: 'int' = 0, labels: 'Mapping[str, Any] | None' = None) -> 'RunSink'",
    "RunIndex.groups": "(self, prefix: 'str' = '') -> 'list[GroupSummary]'",
    "RunIndex.group": "(self, name: 'str') -> 'GroupSummary'",
    "RunIndex.runs": "(self, group: 'str', *, state: 'RunState | None' = None, task_id: 'str | None' = None, "
    "after: 'str | None' = None, limit: 'int' = 100) -> 'RunPage'",
    "RunIndex.all_runs": "(self, group: 'str', *, state: 'RunState | None' = None) -> 'Generator[RunSummary]'",
    "RunIndex.select": "(self, where: 'str | None' = None, *, group: 'str' = '', order: 'RunOrder' = "
    "<RunOrder.NEWEST: 'newest'>, limit: 'int' = 100, after: 'str | None' = None, limit_s: 'float' = 10.0) -> 'RunPage'",
    "RunIndex.search": "(self, text: 'str', *, group: 'str' = '', after: 'str | None' = None, limit: 'int' = 50, "
    "limit_s: 'float' = 2.0) -> 'SearchPage'",
    "RunIndex.frame": "(self, where: 'str | None' = None, *, group: 'str' = '') -> 'pd.DataFrame'",
    "RunIndex.export_jsonl": "(self, path: 'Path | str', where: 'str | None' = None, *, group: 'str' = '', "
    "events: 'bool' = True, tokens: 'bool' = False) -> 'Exported'",
    "RunIndex.export_parquet": "(self, path: 'Path | str', where: 'str | None' = None, *, group: 'str' = '', "
    "events: 'bool' = True, tokens: 'bool' = False) -> 'Exported'",
    "RunIndex.find": "(self, run_id: 'str') -> 'RunSummary'",
    "RunIndex.read": "(self, run_id: 'str', *, first: 'int' = 0, limit: 'int' = 200) -> 'RunRecord'",
    "RunIndex.events": "(self, run_id: 'str') -> 'Generator[RunEvent]'",
    "RunIndex.sampled": "(self, run_id: 'str', *, first_message: 'int' = 0, limit: 'int' = 200) -> 'dict[int, SampledTokens]'",
    "RunIndex.delete": "(self, where: 'str', *, group: 'str' = '') -> 'int'",
    "RunIndex.delete_group": "(self, group: 'str') -> 'int'",
    "RunIndex.begin_group": "(self, group: 'str') -> 'None'",
    "RunIndex.vacuum": "(self) -> 'Vacuumed'",
    "RunIndex.flush": "(self) -> 'None'",
    "RunIndex.ready": "(self) -> 'None'",
    "RunIndex.close": "(self) -> 'None'",
}

MEMBERS = {
    "Outcome": "completed failed abandoned",
    "EpisodeState": "ready running turn ended abandoned",
    "CutReason": "token_limit context_overflow parse_failure prompt_over_budget message_limit runner_limit timeout",
    "FailureKind": "env_start env_broken mcp_died sandbox_lost universe prompt run_step step_timeout verifier_raised "
    "verifier_timeout score_invalid agent model_server",
    "Refusal": "no_such_tool misfit refused raised timed_out cancelled turn_over broken",
    "EventKind": "step_started step_ended turn_started message call answer agent_said agent_called turn_ended cut state "
    "score skipped failure",
}

FIELDS = {
    "Event": "kind at_s step turn data",
    "RunHeader": "task_id bundle_name bundle_version params tags bundle_root",
    "PlayerTurn": "prompt system_prompt tools messages params task_id turn",
    "EpisodeView": "task_id params tags messages replies calls conversations scores cut states",
    "CallRecord": "tool arguments text is_error turn",
    "Failure": "kind step message traceback place",
    "Place": "path line",
}

RUNS = """
Exported GroupPlace GroupSummary RunEvent RunFailure RunIndex RunOrder RunPage RunRecord RunSink RunState RunSummary
SampledTokens SearchHit SearchPage ToolCount Vacuumed place_of
"""

RUN_FIELDS = {
    "RunSummary": "run_id group task_id rollout attempt labels bundle_name bundle_version state cut failure scores reward "
    "event_count messages calls call_errors turns tools times prompt_tokens sampled_tokens opened_at_s ended_at_s last_at_s",
    "RunRecord": "run params tags bundle_root events next_event",
    "RunEvent": "seq kind at_s step turn data",
    "RunPage": "runs next_page damaged",
    "GroupSummary": "name place runs states scored reward_mean reward_se reward_min reward_max finished messages_mean "
    "calls_mean call_errors_mean turns_mean duration_s_mean prompt_tokens_mean sampled_tokens_mean failures cuts first_at_s "
    "last_at_s",
    "SearchPage": "hits next_page waiting damaged",
    "SearchHit": "run seq excerpt",
    "SampledTokens": "ids logprobs pieces",
    "ToolCount": "calls errors",
    "Exported": "runs damaged unreadable",
    "Vacuumed": "before_bytes after_bytes is_search_rebuilt",
}

HEAVY = (
    "tinker",
    "tinker_cookbook",
    "torch",
    "transformers",
    "chz",
    "starlette",
    "uvicorn",
    "mcp",
    "openenv",
    "rich",
    "pandas",
    "pyarrow",
)


def test_the_public_names_are_these() -> None:
    """A name is added, renamed or removed on purpose."""
    assert sorted(agent_env.__all__) == sorted(NAMES)
    assert sorted(dir(agent_env)) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there(name: str) -> None:
    """Also those that are imported when they are first used; each says what it is."""
    value = getattr(agent_env, name)
    assert inspect.getdoc(value)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    """As with any module."""
    with pytest.raises(AttributeError, match="module 'agent_env' has no attribute 'open_epsiode'"):
        _ = agent_env.open_epsiode  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_these(name: str) -> None:
    """Parameters, defaults and what comes back."""
    value: object = agent_env
    for part in name.split("."):
        value = getattr(value, part)
    assert callable(value)
    assert str(inspect.signature(value)) == SIGNATURES[name]


@pytest.mark.parametrize("name", MEMBERS)
def test_vocabularies_are_these(name: str) -> None:
    """Words that stand in runs and in tables."""
    words: type[StrEnum] = getattr(agent_env, name)
    assert [str(word) for word in words] == MEMBERS[name].split()


@pytest.mark.parametrize("name", FIELDS)
def test_fields_are_these(name: str) -> None:
    """What verifiers, players and sinks read."""
    assert list(getattr(agent_env, name).__dataclass_fields__) == FIELDS[name].split()


def test_the_names_of_runs_are_these() -> None:
    """What reads and writes a run index."""
    assert sorted(agent_env.runs.__all__) == sorted(RUNS.split())


@pytest.mark.parametrize("name", RUN_FIELDS)
def test_fields_of_runs_are_these(name: str) -> None:
    """What notebooks and pages read."""
    assert list(getattr(agent_env.runs, name).__dataclass_fields__) == RUN_FIELDS[name].split()


def test_the_columns_of_a_condition_are_those_that_the_docs_name() -> None:
    """Each in the table, and no other."""
    docs = (Path(__file__).parents[2] / "docs" / "runs.md").read_text()
    table = docs.partition("### Conditions")[2].partition("###")[0]
    named = [word for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for word in re.findall(r"`(\w+)`", row)]
    assert named
    assert sorted(named) == sorted(COLUMNS)


def test_the_version_is_the_distribution_s() -> None:
    """One place says it."""
    assert agent_env.__version__ == importlib.metadata.version("agent-env")


def run(code: str) -> str:
    """What a new Python process prints."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize("code", ["import agent_env", "from agent_env import *"])
def test_importing_pulls_in_no_trainer_and_no_web_server(code: str) -> None:
    """Not even when every name is used."""
    assert run(f"{code}\nimport sys\nprint([name for name in {HEAVY} if name in sys.modules])") == "[]"
