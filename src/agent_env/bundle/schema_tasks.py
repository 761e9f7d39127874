"""The shape of a task's file: its two forms, every kind of step, and every kind of verifier."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, cast

from pydantic import Discriminator, Field, Tag, model_validator

from agent_env.bundle.schema_base import Name, Shape, Text, exactly_one, misfit

__all__ = [
    "STEP_ERROR",
    "STEP_KINDS",
    "VERIFY_ERROR",
    "VERIFY_KINDS",
    "AddSkillsStep",
    "AnyStep",
    "CallPatternFile",
    "CallsFile",
    "CheckFile",
    "DeployAgentStep",
    "DeployEnvStep",
    "GoldCallFile",
    "GoldTurnFile",
    "JudgeFile",
    "LongTaskFile",
    "PromptFile",
    "PromptStep",
    "PromptText",
    "Prompts",
    "RunFile",
    "RunStep",
    "ShortTaskFile",
    "StepFile",
    "TaskDefaultsFile",
    "UniverseFile",
    "Verifier",
    "Verifiers",
    "VerifyCheck",
    "VerifyCommand",
    "VerifyFile",
    "VerifyJudge",
    "VerifyPython",
    "VerifyState",
    "VerifyStep",
]


class PromptFile(Shape):
    """What an agent is asked: one of `text`, `template`, `python` and `by`."""

    text: str | None = None
    """The text itself, a Jinja template over `params`, `task_id` and `tags`."""
    template: str | None = None
    """The file that holds it, relative to the bundle's folder."""
    python: str | None = None
    """`prompts/file.py:function`, which gets the episode so far and returns the text, or None to ask nothing."""
    by: str | None = None
    """Another agent, scripted or a model, that leads: each thing that it says is a prompt, until it is done."""
    max_turns: Annotated[int, Field(ge=1)] | None = None
    """With `by`: prompts at most. Default: 20."""
    agent: str | None = None
    """Who is asked; the played agent when nothing is written."""
    system_prompt: Text | None = None
    """From this prompt on, instead of the agent's own."""
    tools: list[str] | None = None
    """The tools that the agent has for this prompt, by name; all that it has when nothing is written."""

    @model_validator(mode="after")
    def _one_of_four(self) -> PromptFile:
        exactly_one(self, ("text", "template", "python", "by"), "a prompt")
        if self.max_turns is not None and self.by is None:
            raise misfit("a prompt says 'max_turns' without 'by'", "remove it: it bounds a conversation")
        return self


def _keys(data: object) -> Collection[str]:
    """Return the keys of what was read, or of the model that was made of it before."""
    if isinstance(data, Shape):
        return type(data).model_fields
    return cast("dict[str, object]", data) if isinstance(data, dict) else ()


def _one_prompt(data: object) -> str | None:
    return "<text>" if isinstance(data, str) else "<file>" if isinstance(data, (dict, PromptFile)) else None


def _prompts(data: object) -> str | None:
    return "<list>" if isinstance(data, list) else _one_prompt(data)


PromptText = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[PromptFile, Tag("<file>")],
    Discriminator(_one_prompt, custom_error_type="misfit_prompt", custom_error_message="prompt"),
]
Prompts = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[PromptFile, Tag("<file>")]
    | Annotated[list[PromptText], Field(min_length=1), Tag("<list>")],
    Discriminator(_prompts, custom_error_type="misfit_prompt", custom_error_message="prompt"),
]


class StepFile(Shape):
    """What every step may say."""

    id: Name | None = None
    """Names the step; the kind of step, numbered, when nothing is written."""
    timeout_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds that the step may take."""
    fail_task_on_error: bool | None = None
    """Whether the episode stops when the step fails. It ends `failed` either way. Default: true."""


class GoldCallFile(Shape):
    """One tool call of a reference solution."""

    tool: str
    """The tool's name."""
    arguments: dict[str, Any] = {}
    """Its arguments."""


class GoldTurnFile(Shape):
    """One turn of a reference solution: the calls, then the reply."""

    calls: list[GoldCallFile] = []
    """Tool calls, in order."""
    reply: str | None = None
    """What the agent says at the end of the turn. None when the last call ends the turn."""


class RunFile(Shape):
    """What a step runs: a Python function, or a command in a sandbox."""

    python: str | None = None
    """`scripts/file.py:function`."""
    command: str | None = None
    """For the shell of a sandbox. An exit code other than 0 fails the step."""
    sandbox: str | None = None
    """With `command`: the env that is the sandbox; with one in the bundle, that one when nothing is written."""
    files: str | None = None
    """With `command`: a folder of the bundle that is there just for it, in `$AGENT_ENV_VERIFIER`."""

    @model_validator(mode="after")
    def _one_of_both(self) -> RunFile:
        exactly_one(self, ("python", "command"), "a run step")
        if self.python is not None and (self.sandbox is not None or self.files is not None):
            raise misfit("a run step with 'python' says 'sandbox' or 'files'", "remove them: they go with 'command'")
        return self


class VerifyFile(StepFile):
    """What every verifier may say. Its id is the name of the score."""

    weight: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """What the score is multiplied by in the reward."""
    required: bool = False
    """A gate: while this score is below 1, the whole reward is at most 0."""


class VerifyPython(VerifyFile):
    """A verifier in Python. Its id is by default the file's name without `.py`."""

    python: str
    """`verifiers/file.py`, or `verifiers/file.py:function` when the function is not `score`."""


class CallsFile(Shape):
    """The state that calls leave."""

    after: Annotated[list[GoldCallFile], Field(min_length=1)]
    """The calls, in order, from the start of the episode."""


class UniverseFile(Shape):
    """The state in a file."""

    universe: str
    """A .json, .sqlite or .db file, or a directory: of the kind that the env's own universe is."""


Pointer = Annotated[str, Field(pattern=r"^/")]
"""A JSON Pointer (RFC 6901) whose segments may be `*`."""


def _wanted_form(data: object) -> str | None:
    if isinstance(data, str):
        return "<word>"
    keys = _keys(data)
    return "<after>" if "after" in keys else "<universe>" if "universe" in keys else None


Wanted = Annotated[
    Annotated[Literal["gold", "start"], Tag("<word>")]
    | Annotated[CallsFile, Tag("<after>")]
    | Annotated[UniverseFile, Tag("<universe>")],
    Discriminator(_wanted_form, custom_error_type="misfit_wanted", custom_error_message="wanted"),
]


class VerifyState(VerifyFile):
    """A comparison of the state that the agent left with the one wanted."""

    state: str
    """The env whose state is compared."""
    equals: Wanted
    """`gold`: what the task's gold calls leave; `start`: what the episode began with; or `{after: [calls]}`, `{universe: file}`."""
    ignore: list[Pointer] = []
    """Places that do not count, as JSON Pointers: `/orders/*/updated_at`."""
    unordered: list[Pointer] = []
    """Lists whose order does not count, as JSON Pointers."""


class VerifyCommand(VerifyFile):
    """A command in a sandbox: it scores 1 where it ends with 0, else 0; or what it writes to a file."""

    command: str
    """For the sandbox's shell, in its working directory."""
    sandbox: str | None = None
    """The env that is the sandbox; with one in the bundle, that one when nothing is written."""
    files: str | None = None
    """A folder of the bundle that is there just for the command, in `$AGENT_ENV_VERIFIER`."""
    score_file: Annotated[str, Field(min_length=1)] | None = None
    """The name of the file, at `$AGENT_ENV_SCORE`, that the command writes a number to, or `{"score": ..., "explanation": ...}`."""

    @model_validator(mode="after")
    def _scores_in_a_folder_of_its_own(self) -> VerifyCommand:
        path = PurePosixPath(self.score_file or "score")
        if path.is_absolute() or ".." in path.parts or not path.parts:
            fix = 'write a name, as in score.json, and have the command write to "$AGENT_ENV_SCORE"'
            raise misfit(f"'score_file' is '{path}', where an agent could write", fix)
        return self


class CallPatternFile(Shape):
    """Calls that are meant."""

    tool: str
    """The tool's name."""
    arguments: dict[str, Any] = {}
    """The arguments that count; a call may have others."""


Said = Annotated[str, Field(pattern=r"\w")]
"""Words or a number: something that can be said."""


class CheckFile(Shape):
    """Checks on the conversation: the score is the share of them that hold."""

    called: list[CallPatternFile] = []
    """Each was called, and the answer was no error."""
    not_called: list[CallPatternFile] = []
    """None was called."""
    said: list[Said] = []
    """Each is in what the agent said to whoever asked."""
    not_said: list[Said] = []
    """None is in it."""

    @model_validator(mode="after")
    def _checks(self) -> CheckFile:
        if not (self.called or self.not_called or self.said or self.not_said):
            raise misfit("the check checks nothing", "write called:, not_called:, said: or not_said:")
        return self


class VerifyCheck(VerifyFile):
    """Checks on the conversation."""

    check: CheckFile
    """What must have been done and said, and what not."""


class JudgeFile(Shape):
    """A model that is asked for a score."""

    model: str
    """One of the bundle's `models`."""
    prompt: Text
    """What it is asked: a template that also has `conversation` and `replies`."""
    max_score: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """What its scale ends at; the score is its number divided by this."""


class VerifyJudge(VerifyFile):
    """A model as judge. Judges are off unless whoever plays the task allows them."""

    judge: JudgeFile
    """Who is asked, and what."""


VERIFY_KINDS = ("python", "state", "command", "check", "judge")
"""Every kind of verifier, as the key that makes it one."""
VERIFY_ERROR = "misfit_verify"


def _verify_kind(data: object) -> str | None:
    kinds = [kind for kind in VERIFY_KINDS if kind in _keys(data)]
    return f"<{kinds[0]}>" if len(kinds) == 1 else None


Verifier = Annotated[
    Annotated[VerifyPython, Tag("<python>")]
    | Annotated[VerifyState, Tag("<state>")]
    | Annotated[VerifyCommand, Tag("<command>")]
    | Annotated[VerifyCheck, Tag("<check>")]
    | Annotated[VerifyJudge, Tag("<judge>")],
    Discriminator(_verify_kind, custom_error_type=VERIFY_ERROR, custom_error_message="verify"),
]


def _verifiers(data: object) -> str | None:
    return "<list>" if isinstance(data, list) else "<one>" if isinstance(data, (dict, VerifyFile)) else None


Verifiers = Annotated[
    Annotated[Verifier, Tag("<one>")] | Annotated[list[Verifier], Field(min_length=1), Tag("<list>")],
    Discriminator(_verifiers, custom_error_type=VERIFY_ERROR, custom_error_message="verify"),
]
SkillNames = Annotated[list[str], Field(min_length=1)]


class DeployEnvStep(StepFile):
    """Start an env."""

    deploy_env: str
    """The env's name."""


class DeployAgentStep(StepFile):
    """Start an agent; its envs are deployed before."""

    deploy_agent: str
    """The agent's name."""


class PromptStep(StepFile):
    """Ask an agent something: a turn."""

    prompt: PromptText
    """The text."""


class RunStep(StepFile):
    """Run a Python function, or a command in a sandbox."""

    run: RunFile
    """What to run."""


class VerifyStep(StepFile):
    """Score what the agent did."""

    verify: Verifier
    """The verifier. Its `id`, `timeout_s` and `fail_task_on_error` stand beside `verify`, or in it."""


class AddSkillsStep(StepFile):
    """Give the played agent skills, for the prompts that follow. It is deployed before."""

    add_skills: SkillNames
    """The skills by the names of their folders: `refunds` is `skills/refunds`, which has a SKILL.md."""


STEP_KINDS = ("deploy_env", "deploy_agent", "prompt", "run", "verify", "add_skills")
"""Every kind of step, as the key that makes a step one."""


def _step_kind(data: object) -> str | None:
    kinds = [kind for kind in STEP_KINDS if kind in _keys(data)]
    return f"<{kinds[0]}>" if len(kinds) == 1 else None


STEP_ERROR = "misfit_step"
AnyStep = Annotated[
    Annotated[DeployEnvStep, Tag("<deploy_env>")]
    | Annotated[DeployAgentStep, Tag("<deploy_agent>")]
    | Annotated[PromptStep, Tag("<prompt>")]
    | Annotated[RunStep, Tag("<run>")]
    | Annotated[VerifyStep, Tag("<verify>")]
    | Annotated[AddSkillsStep, Tag("<add_skills>")],
    Discriminator(_step_kind, custom_error_type=STEP_ERROR, custom_error_message="step"),
]


class TaskFile(Shape):
    """What every task may say."""

    id: Name
    """Unique in the bundle."""
    tags: list[str] = []
    """Words that evals select tasks by."""
    params: dict[str, Any] = {}
    """What makes this task different: reaches the env, the templates and the verifiers."""
    gold: list[GoldTurnFile] | None = None
    """A reference solution, turn by turn."""
    gold_reward: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    """The reward that the reference solution claims; `agent-env validate` plays it."""


class ShortTaskFile(TaskFile):
    """A task in its short form: the agents and their envs are deployed, the played one is asked, and it is scored."""

    skills: SkillNames | None = None
    """What the played agent is given, by the names of the folders under `skills/`."""
    prompt: Prompts | None = None
    """What the agent is asked; a list is a turn each."""
    verify: Verifiers | None = None
    """The verifiers."""
    fail_task_on_error: bool | None = None
    """For every step of the task."""


class LongTaskFile(TaskFile):
    """A task in its long form: every step is written out."""

    steps: Annotated[list[AnyStep], Field(min_length=1)]
    """What is done, in order."""


class TaskDefaultsFile(Shape):
    """What a short-form task has when it does not say so itself."""

    skills: SkillNames | None = None
    """See the task's `skills`."""
    prompt: Prompts | None = None
    """See the task's `prompt`."""
    verify: Verifiers | None = None
    """See the task's `verify`."""
    fail_task_on_error: bool | None = None
    """See the task's `fail_task_on_error`."""
