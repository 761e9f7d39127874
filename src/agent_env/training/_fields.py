"""The fields of `AgentEnvDatasetBuilder`, checked before anything is trained: a mistake is one line that names the field."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from agent_env._wording import clipped
from agent_env.errors import TrainingError
from agent_env.training._cookbook import RolloutConfig
from agent_env.training._episodes import LARGEST_REWARD
from agent_env.training._framing import History

__all__ = ["check_fields"]

_Count = Annotated[int, Field(ge=1)]
_Text = Annotated[str, Field(min_length=1)]
_Folder = Path | _Text
_RunName = Annotated[str, Field(pattern=r"^[^/\s\x00-\x1f]([^\x00-\x1f]{0,198}[^/\s\x00-\x1f])?$")]

_GIVE: Mapping[str, str] = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "string_too_short": "a text that is not empty",
    "string_pattern_mismatch": "a name of at most 200 characters that neither begins nor ends with '/' or a blank",
    "is_instance_of": "the cookbook's RolloutConfig",
    "path_type": "a path",
    "bool_type": "True or False",
}
_SHOWN_CHARS = 60


class _Fields(BaseModel):
    model_config = ConfigDict(strict=True, arbitrary_types_allowed=True)

    bundle: _Folder
    model_name_for_tokenizer: _Text
    renderer_name: _Text
    train_split: _Text
    test_split: _Text | None
    reward: _Text | None
    groups_per_batch: _Count
    group_size: _Count
    eval_group_size: _Count
    epochs: _Count
    seed: int
    max_messages: _Count | None
    max_trajectory_tokens: _Count | None
    max_generation_tokens: _Count | None
    max_concurrent_episodes: _Count | None
    failed_reward: Annotated[float, Field(ge=-LARGEST_REWARD, le=LARGEST_REWARD, allow_inf_nan=False)]
    history: str
    rollout_config: RolloutConfig | None
    runs: _Folder
    run_name: _RunName | None
    record_tokens: bool


def check_fields(builder: object) -> History:
    """Check the fields of a dataset builder, and return what its prompts say of earlier messages.

    Raises:
        TrainingError: When one makes no sense, or two of them do not together.
    """
    given = {name: getattr(builder, name) for name in _Fields.model_fields}
    try:
        fields = _Fields.model_validate(given)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        name = str(first["loc"][0])
        raise TrainingError(f"{name}={_shown(given[name])}: give {_give(first, _Fields.model_fields[name])}") from None
    tokens, kept_free = fields.max_trajectory_tokens, fields.max_generation_tokens
    if tokens is not None and kept_free is not None and tokens <= kept_free:
        raise TrainingError(
            f"max_trajectory_tokens={tokens}: give more than max_generation_tokens={kept_free}, or no prompt has room"
        )
    try:
        return History(fields.history)
    except ValueError:
        raise TrainingError(f"history={fields.history!r}: write {' or '.join(History)}") from None


def _give(error: ErrorDetails, field: Any) -> str:
    said = error.get("ctx", {})
    match error["type"]:
        case "greater_than_equal" if said.get("ge") == 1:
            wanted = "at least 1"
        case "greater_than_equal" | "less_than_equal" | "finite_number":
            wanted = f"a number from -{LARGEST_REWARD:g} to {LARGEST_REWARD:g}"
        case kind:
            wanted = _GIVE.get(kind, error["msg"])
    optional = type(None) in getattr(field.annotation, "__args__", ())
    return f"{wanted}, or None" if optional else wanted


def _shown(value: object) -> str:
    return clipped(repr(value), _SHOWN_CHARS)
