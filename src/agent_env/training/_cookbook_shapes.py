"""What AgentEnv uses of tinker-cookbook, tinker and chz, as types: read by the type checker, never imported at run time.

The trainer is not installed where the types are checked. `tst/tinker` checks that these names and parameters are there in
the cookbook that is installed. The names of fields and methods are the cookbook's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NotRequired, Protocol, TypedDict, TypeVar, dataclass_transform

__all__ = [
    "Datum",
    "EncodedTextChunk",
    "Env",
    "EnvFromMessageEnv",
    "EnvGroupBuilder",
    "InitialObservationOverflow",
    "Message",
    "MessageEnv",
    "MessageStepResult",
    "ModelInput",
    "ParseErrorPolicy",
    "RLDataset",
    "RLDatasetBuilder",
    "Renderer",
    "RendererError",
    "RolloutConfig",
    "RolloutLimits",
    "SamplingClient",
    "StepResult",
    "StopReason",
    "SupervisedDataset",
    "SupervisedDatasetBuilder",
    "TerminationRewardPolicy",
    "TinkerError",
    "TinkerTokenCompleter",
    "TokenCompleter",
    "TokensWithLogprobs",
    "ToolCall",
    "ToolSpec",
    "TrainOnWhat",
    "Trajectory",
    "TrajectoryGroup",
    "UnparsedToolCall",
    "chz",
    "chz_field",
    "datum_from_model_input_weights",
    "default_rollout_config_for_model",
    "do_group_rollout",
    "get_image_processor",
    "get_renderer",
    "get_tokenizer",
    "tensor",
]

T = TypeVar("T")

StopCondition = Sequence[str] | Sequence[int]
Metrics = dict[str, float | int]
Logs = dict[str, str | int | float]


# chz


def chz_field(*, default: Any = ..., default_factory: Any = ..., doc: str = "") -> Any: ...


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(chz_field,))
def chz(cls: type[T]) -> type[T]: ...


# tinker


class EncodedTextChunk:
    tokens: Sequence[int]

    def __init__(self, *, tokens: Sequence[int]) -> None: ...


class ModelInput:
    chunks: Sequence[Any]

    def __init__(self, *, chunks: Sequence[Any]) -> None: ...
    @property
    def length(self) -> int: ...
    def to_ints(self) -> list[int]: ...
    @classmethod
    def from_ints(cls, tokens: list[int]) -> ModelInput: ...
    @classmethod
    def empty(cls) -> ModelInput: ...


class Datum:
    model_input: ModelInput
    loss_fn_inputs: dict[str, Any]


class SamplingClient: ...


# tinker_cookbook.renderers


class FunctionBody:
    name: str
    arguments: str

    def __init__(self, *, name: str, arguments: str) -> None: ...


class ToolCall:
    FunctionBody = FunctionBody
    id: str | None
    function: FunctionBody

    def __init__(self, *, function: FunctionBody, id: str | None = None) -> None: ...


class UnparsedToolCall:
    raw_text: str
    error: str

    def __init__(self, *, raw_text: str, error: str) -> None: ...


class Message(TypedDict):
    role: str
    content: str | list[dict[str, Any]]
    tool_calls: NotRequired[list[ToolCall]]
    unparsed_tool_calls: NotRequired[list[UnparsedToolCall]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


class ToolSpec(TypedDict):
    name: str
    description: str
    parameters: dict[str, Any]


class TrainOnWhat:
    LAST_ASSISTANT_MESSAGE: TrainOnWhat


class RendererError(Exception): ...


class TinkerError(Exception): ...


class Renderer(Protocol):
    tokenizer: Any

    @property
    def has_extension_property(self) -> bool: ...
    def get_stop_sequences(self) -> list[str] | list[int]: ...
    def create_conversation_prefix_with_tools(
        self, tools: list[ToolSpec], system_prompt: str = ""
    ) -> list[Message]: ...
    def build_generation_prompt(self, messages: list[Message]) -> ModelInput: ...
    def build_supervised_example(
        self, messages: list[Message], train_on_what: TrainOnWhat = ...
    ) -> tuple[ModelInput, Any]: ...
    def parse_response(self, response: list[int]) -> tuple[Message, Any]: ...


def get_renderer(name: str, tokenizer: Any, image_processor: Any = None, model_name: str | None = None) -> Renderer: ...
def get_tokenizer(model_name: str) -> Any: ...
def get_image_processor(model_name: str) -> Any: ...


# tinker_cookbook.completers


@dataclass
class TokensWithLogprobs:
    tokens: list[int]
    maybe_logprobs: list[float] | None
    stop_reason: str = "stop"


class TokenCompleter:
    async def __call__(
        self, model_input: ModelInput, stop: StopCondition, *, max_tokens: int | None = None
    ) -> TokensWithLogprobs: ...


class TinkerTokenCompleter(TokenCompleter):
    def __init__(self, sampling_client: SamplingClient, *, max_tokens: int, temperature: float = 1.0) -> None: ...


# tinker_cookbook.rl


class StopReason(StrEnum):
    COMPLETED = "completed"
    TOOL_STOPPED = "tool_stopped"
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    MAX_TOOL_CALLS = "max_tool_calls"
    CONTEXT_OVERFLOW = "context_overflow"
    PARSE_ERROR = "parse_error"
    ROLLOUT_TIMEOUT = "rollout_timeout"


class RolloutLimits:
    max_turns: int | None
    max_trajectory_tokens: int | None
    max_sampled_tokens: int | None
    max_tool_calls: int | None
    max_turn_tokens: int | None


class ParseErrorPolicy:
    max_consecutive: int
    retry_message_template: str
    penalty_per_error: float
    terminal_reward: float
    mask_error_turns: bool


class TerminationRewardPolicy:
    zero_reward_on_limit: bool
    grader_timeout_seconds: float | None


class RolloutConfig:
    limits: RolloutLimits
    parse_errors: ParseErrorPolicy | None
    termination: TerminationRewardPolicy | None


def default_rollout_config_for_model(model_name: str) -> RolloutConfig: ...


@dataclass(frozen=True)
class InitialObservationOverflow:
    reward: float
    metrics: Metrics = field(default_factory=dict[str, float | int])
    logs: Logs = field(default_factory=dict[str, str | int | float])


@dataclass
class StepResult:
    reward: float
    episode_done: bool
    next_observation: ModelInput
    next_stop_condition: StopCondition
    metrics: Metrics = field(default_factory=dict[str, float | int])
    logs: Logs = field(default_factory=dict[str, str | int | float])


@dataclass
class Transition:
    ob: ModelInput
    ac: TokensWithLogprobs
    reward: float
    episode_done: bool
    metrics: Metrics
    logs: Logs


@dataclass
class Trajectory:
    transitions: list[Transition]
    final_ob: ModelInput
    stop_reason: str | None = None


@dataclass
class TrajectoryGroup:
    trajectories_G: list[Trajectory]
    final_rewards_G: list[float]
    metrics_G: list[Metrics]

    def get_total_rewards(self) -> list[float]: ...


class Env(ABC):
    @abstractmethod
    async def initial_observation(self) -> tuple[ModelInput, StopCondition] | InitialObservationOverflow: ...
    @abstractmethod
    async def step(self, action: list[int], *, extra: Mapping[str, Any] | None = None) -> StepResult: ...


@dataclass
class MessageStepResult:
    reward: float
    episode_done: bool
    next_messages: list[Message]
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    logs: Logs = field(default_factory=dict[str, str | int | float])


class MessageEnv(ABC):
    @abstractmethod
    async def initial_observation(self) -> list[Message]: ...
    @abstractmethod
    async def step(self, message: Message) -> MessageStepResult: ...


class EnvFromMessageEnv(Env):
    def __init__(
        self,
        renderer: Renderer,
        message_env: MessageEnv,
        failed_parse_reward: float = -1.0,
        terminate_on_parse_error: bool = True,  # noqa: FBT001, FBT002 - the cookbook's
        max_trajectory_tokens: int | None = None,
        max_generation_tokens: int | None = None,
        context_overflow_reward: float = -0.1,
        terminate_on_length: bool = True,  # noqa: FBT001, FBT002 - the cookbook's
        parse_error_policy: ParseErrorPolicy | None = None,
        rollout_limits: RolloutLimits | None = None,
    ) -> None: ...
    async def initial_observation(self) -> tuple[ModelInput, StopCondition] | InitialObservationOverflow: ...
    async def step(self, action: list[int], *, extra: Mapping[str, Any] | None = None) -> StepResult: ...
    async def _render_in_thread(self, messages: list[Message], **kwargs: Any) -> ModelInput: ...


class EnvGroupBuilder:
    async def make_envs(self) -> Sequence[Env]: ...
    async def compute_group_rewards(
        self, trajectory_group: list[Trajectory], env_group: Sequence[Env]
    ) -> list[tuple[float, Metrics]]: ...
    async def cleanup(self) -> None: ...
    def logging_tags(self) -> list[str]: ...


class RLDataset(ABC):
    @abstractmethod
    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]: ...
    @abstractmethod
    def __len__(self) -> int: ...


@chz
class RLDatasetBuilder:
    async def __call__(self) -> tuple[RLDataset, RLDataset | None]: ...


do_group_rollout: Callable[[EnvGroupBuilder, TokenCompleter], Awaitable[TrajectoryGroup]]


# tinker_cookbook.supervised


class SupervisedDataset:
    def get_batch(self, index: int) -> list[Datum]: ...
    def __len__(self) -> int: ...
    def set_epoch(self, seed: int = 0) -> None: ...


@chz
class SupervisedDatasetBuilder:
    def __call__(self) -> tuple[SupervisedDataset, SupervisedDataset | None]: ...


def datum_from_model_input_weights(model_input: ModelInput, weights: Any, max_length: int | None = None) -> Datum: ...
def tensor(data: Sequence[float]) -> Any: ...
