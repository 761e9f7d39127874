"""The shape of each kind of file in a bundle, and its JSON Schema.

One pydantic model per file kind, strict: nothing is converted, an unknown key is an error. What the values refer to
(files, envs, agents) is for `load.py` to follow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

__all__ = [
    "AgentFile",
    "BundleFile",
    "EnvFile",
    "EvalFile",
    "GoldTurnFile",
    "LongTaskFile",
    "PromptFile",
    "ShortTaskFile",
    "StepFile",
    "TextFile",
    "UnknownKeys",
    "VerifyFile",
]

_ID = r"^[A-Za-z0-9][A-Za-z0-9._/-]*$"
Name = Annotated[str, Field(pattern=_ID, max_length=200)]
"""A name or an id: a letter or digit, then letters, digits and `. _ - /`."""

T = TypeVar("T")


@dataclass(slots=True)
class UnknownKeys:
    """Keys that a model does not have. Pydantic's own error does not say which ones it does have."""

    found: list[tuple[int, str, tuple[str, ...]]] = field(default_factory=list[tuple[int, str, tuple[str, ...]]])
    """The `id()` of the mapping, the key, and the keys known there."""


class Shape(BaseModel):
    """What every file of a bundle has in common: strict types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _note_unknown_keys(cls, data: object, info: ValidationInfo) -> object:
        if not isinstance(data, dict) or not isinstance(info.context, UnknownKeys):
            return cast("object", data)
        mapping = cast("dict[str, Any]", data)
        unknown = mapping.keys() - cls.model_fields.keys()
        if not unknown:
            return mapping
        known = tuple(cls.model_fields)
        info.context.found += [(id(mapping), key, known) for key in mapping if key in unknown]
        return {key: value for key, value in mapping.items() if key not in unknown}


def _misfit(what: str, fix: str) -> PydanticCustomError:
    return PydanticCustomError("misfit", "{what}, {fix}", {"what": what, "fix": fix})


class TextFile(Shape):
    """A text, written in place or in a file. Both are Jinja templates over `params`, `task_id` and `tags`."""

    text: str | None = None
    """The text itself."""
    template: str | None = None
    """The file that holds it, relative to the bundle's folder."""

    @model_validator(mode="after")
    def _one_of_both(self) -> TextFile:
        if (self.text is None) == (self.template is None):
            raise _misfit(
                "a text says neither 'text' nor 'template'"
                if self.text is None
                else "a text says both 'text' and 'template'",
                "write one of the two",
            )
        return self


class PromptFile(TextFile):
    """What an agent is asked."""

    agent: str | None = None
    """Who is asked; the played agent when nothing is written."""


class StepFile(Shape):
    """What every step may say."""

    id: Name | None = None
    """Names the step; the kind of step, numbered, when nothing is written."""
    timeout_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds that the step may take."""
    fail_task_on_error: bool | None = None
    """Whether the episode stops when the step fails. It ends `failed` either way. Default: true."""


class VerifyFile(StepFile):
    """A verifier in Python. Its id is the name of the score; by default the file's name without `.py`."""

    python: str
    """`verifiers/file.py`, or `verifiers/file.py:function` when the function is not `score`."""


class RunFile(Shape):
    """A Python function that a step runs."""

    python: str
    """`scripts/file.py:function`."""


class VerifyTargetFile(Shape):
    """A verifier in Python."""

    python: str
    """`verifiers/file.py`, or `verifiers/file.py:function` when the function is not `score`."""


def _one_text(data: object) -> str | None:
    return "<text>" if isinstance(data, str) else "<file>" if isinstance(data, (dict, TextFile)) else None


def _texts(data: object) -> str | None:
    return "<list>" if isinstance(data, list) else _one_text(data)


def _verifiers(data: object) -> str | None:
    return "<list>" if isinstance(data, list) else "<one>" if isinstance(data, (dict, VerifyFile)) else None


def _reward_form(data: object) -> str | None:
    return "<id>" if isinstance(data, str) else "<weights>" if isinstance(data, dict) else None


_TEXT_ERROR = "misfit_text"
_VERIFY_ERROR = "misfit_verify"

Text = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[TextFile, Tag("<file>")],
    Discriminator(_one_text, custom_error_type=_TEXT_ERROR, custom_error_message="text"),
]
"""A text field: a string is the text itself, or, when it ends in .md, .j2 or .txt and has no blank, the file of it."""
Texts = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[TextFile, Tag("<file>")]
    | Annotated[list[Text], Field(min_length=1), Tag("<list>")],
    Discriminator(_texts, custom_error_type=_TEXT_ERROR, custom_error_message="text"),
]
PromptText = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[PromptFile, Tag("<file>")],
    Discriminator(_one_text, custom_error_type=_TEXT_ERROR, custom_error_message="text"),
]
Verifiers = Annotated[
    Annotated[VerifyFile, Tag("<one>")] | Annotated[list[VerifyFile], Field(min_length=1), Tag("<list>")],
    Discriminator(_verifiers, custom_error_type=_VERIFY_ERROR, custom_error_message="verify"),
]


Reward = Annotated[
    Annotated[str, Tag("<id>")] | Annotated[dict[str, float], Field(min_length=1), Tag("<weights>")],
    Discriminator(_reward_form, custom_error_type="misfit_reward", custom_error_message="reward"),
]


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
    """Run a Python function."""

    run: RunFile
    """What to run."""


class VerifyStep(StepFile):
    """Score what the agent did."""

    verify: VerifyTargetFile
    """The verifier."""


class AddSkillsStep(StepFile):
    """Give the played agent skills, for the prompts that follow. It is deployed before."""

    add_skills: Annotated[list[str], Field(min_length=1)]
    """The skills by the names of their folders: `refunds` is `skills/refunds`, which has a SKILL.md."""


STEP_KINDS = ("deploy_env", "deploy_agent", "prompt", "run", "verify", "add_skills")
"""Every kind of step, as the key that makes a step one."""


def _step_kind(data: object) -> str | None:
    if isinstance(data, StepFile):
        kinds = [kind for kind in STEP_KINDS if kind in type(data).model_fields]
    else:
        kinds = [kind for kind in STEP_KINDS if kind in data] if isinstance(data, dict) else []
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


class ShortTaskFile(TaskFile):
    """A task in its short form: the played agent and its envs are deployed, asked, and scored."""

    prompt: Texts | None = None
    """What the agent is asked; a list is a turn each."""
    verify: Verifiers | None = None
    """The verifiers."""
    fail_task_on_error: bool | None = None
    """For every step of the task."""


class LongTaskFile(TaskFile):
    """A task in its long form: every step is written out."""

    steps: Annotated[list[AnyStep], Field(min_length=1)]
    """What is done, in order."""


class EnvFile(Shape):
    """A set of tools over a universe."""

    python: str
    """`envs/file.py:Class`, a subclass of `agent_env.Env`."""
    universe: str | None = None
    """The state that each episode starts from: a .json, .sqlite or .db file, or a directory."""


class AgentFile(Shape):
    """Who answers prompts."""

    kind: Literal["played", "model", "scripted"] = "played"
    """`played` by the trainer. `model` and `scripted` are not played yet."""
    system_prompt: Text | None = None
    """What the agent is told before everything else."""
    envs: list[str] | None = None
    """Whose tools it has; with one env in the bundle, that one when nothing is written."""


class TaskDefaultsFile(Shape):
    """What a short-form task has when it does not say so itself."""

    prompt: Texts | None = None
    """See the task's `prompt`."""
    verify: Verifiers | None = None
    """See the task's `verify`."""
    fail_task_on_error: bool | None = None
    """See the task's `fail_task_on_error`."""


class BundleFile(Shape):
    """bundle.yaml: what the bundle has."""

    name: Name
    """The bundle's name."""
    version: str = "0"
    """The bundle's version."""
    description: str = ""
    """What its tasks are about."""
    license: str = ""
    """The licence of its files, as an SPDX expression."""
    envs: dict[Name, EnvFile] = {}
    """The envs by name."""
    agents: Annotated[dict[Name, AgentFile], Field(min_length=1)] = {"agent": AgentFile()}
    """The agents by name. Default: one played agent, `agent`."""
    played: str | None = None
    """The agent that a trainer plays; needed when several are `played`."""
    reward: Reward | None = None
    """The verify step whose score is the reward, or weights by step. Needed with several verify steps in a task."""
    players: dict[Name, str] = {}
    """Python policies that come with the bundle, `players/file.py:function` by name."""
    task_defaults: TaskDefaultsFile = TaskDefaultsFile()
    """For short-form tasks."""


class EvalFile(Shape):
    """evals/<name>.yaml: a named selection of tasks, those named by any of its lists."""

    description: str = ""
    """What the eval is for."""
    tasks: list[str] = []
    """Task ids, or globs over them."""
    tags: list[str] = []
    """Tags: every task that has one of them."""

    @model_validator(mode="after")
    def _selects(self) -> EvalFile:
        if not self.tasks and not self.tags:
            raise _misfit("the eval selects nothing", "write tasks: [ids or globs] or tags: [tags]")
        return self
