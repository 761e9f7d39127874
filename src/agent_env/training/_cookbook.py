"""What rollouts and datasets take from tinker-cookbook, tinker and chz. What differs between their versions is settled here.

Not the trainers themselves: the main job calls those in `_stages.py`.

Checked against cookbook 0.5.8 and 0.6.1: what is used of them is the same in both, but for

- `EnvGroupBuilder.cleanup`: 0.6 runs it in a task of its own, so nothing may be keyed by the current task;
- `TokensWithLogprobs`: 0.6 has more fields, with defaults;
- `rl.train.Config.num_epochs`: 0.6 goes through a dataset again and again, see `step_of_batch`;
- asynchronous training: 0.5 plays a group again whose runs became too old; 0.6 trains on them, by default with a loss
  (`AsyncConfig.loss_fn`) that not every server has;
- evaluations: 0.6 has one more, after the last step.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from agent_env._optional import TRAINER, require

require("tinker_cookbook", install=TRAINER, feature="training with tinker-cookbook")

if TYPE_CHECKING:
    from agent_env.training._cookbook_shapes import (
        Datum,
        EncodedTextChunk,
        Env,
        EnvFromMessageEnv,
        EnvGroupBuilder,
        InitialObservationOverflow,
        Message,
        MessageEnv,
        MessageStepResult,
        ModelInput,
        ParseErrorPolicy,
        Renderer,
        RendererError,
        RLDataset,
        RLDatasetBuilder,
        RolloutConfig,
        RolloutLimits,
        SamplingClient,
        StepResult,
        StopReason,
        SupervisedDataset,
        SupervisedDatasetBuilder,
        TerminationRewardPolicy,
        TinkerTokenCompleter,
        TokenCompleter,
        TokensWithLogprobs,
        ToolCall,
        ToolSpec,
        TrainOnWhat,
        Trajectory,
        TrajectoryGroup,
        UnparsedToolCall,
        chz,
        chz_field,
        datum_from_model_input_weights,
        default_rollout_config_for_model,
        do_group_rollout,
        get_image_processor,
        get_renderer,
        get_tokenizer,
        tensor,
    )

    EpochCycledRLDataset: type[RLDataset] | None
else:
    import chz as chz_package
    from tinker import Datum, EncodedTextChunk, ModelInput, SamplingClient
    from tinker_cookbook.completers import TinkerTokenCompleter, TokenCompleter, TokensWithLogprobs
    from tinker_cookbook.exceptions import RendererError
    from tinker_cookbook.image_processing_utils import get_image_processor
    from tinker_cookbook.renderers import (
        Message,
        Renderer,
        ToolCall,
        ToolSpec,
        TrainOnWhat,
        UnparsedToolCall,
        get_renderer,
    )
    from tinker_cookbook.rl.message_env import EnvFromMessageEnv, MessageEnv, MessageStepResult
    from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits, TerminationRewardPolicy
    from tinker_cookbook.rl.rollout_presets import RolloutConfig, default_rollout_config_for_model
    from tinker_cookbook.rl.rollouts import do_group_rollout
    from tinker_cookbook.rl.types import (
        Env,
        EnvGroupBuilder,
        InitialObservationOverflow,
        RLDataset,
        RLDatasetBuilder,
        StepResult,
        StopReason,
        Trajectory,
        TrajectoryGroup,
    )
    from tinker_cookbook.supervised.common import datum_from_model_input_weights
    from tinker_cookbook.supervised.types import SupervisedDataset, SupervisedDatasetBuilder
    from tinker_cookbook.tokenizer_utils import get_tokenizer
    from torch import tensor

    try:
        from tinker_cookbook.rl.dataset_utils import EpochCycledRLDataset
    except ImportError:  # before 0.6
        EpochCycledRLDataset = None

    chz, chz_field = chz_package.chz, chz_package.field

__all__ = [
    "PARSE_ERROR_MASKED",
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
    "step_of_batch",
    "step_under_evaluation",
    "tensor",
]

PARSE_ERROR_MASKED = "parse_error_masked"
"""The metric of a step whose tokens are not trained on."""

_EVALUATION = re.compile(r"eval_.*_iteration_(\d+)")
"""How `rl.train.run_evaluations_parallel` names the task of an evaluator."""


def step_of_batch(index: int) -> int:
    """The trainer's step that a dataset is asked for batch `index` for; called by the dataset's `get_batch`.

    With `num_epochs` the trainer asks through a dataset of its own, which counts the steps, and asks the one it was given for
    the same batches in each epoch. Only that one's call knows the step, also after a resume.
    """
    asking = sys._getframe(2).f_locals  # pyright: ignore[reportPrivateUsage] - the caller of `get_batch`
    if EpochCycledRLDataset is not None and isinstance(asking.get("self"), EpochCycledRLDataset):
        return int(asking["index"])
    return index


def step_under_evaluation(loop: asyncio.AbstractEventLoop) -> int | None:
    """The step that the trainer on `loop` evaluates now; None when it evaluates none, or more than one.

    An evaluator is not told its step, and plays the same group builders at every step. The trainer names its task by it.
    """
    steps = set(_evaluated_steps(asyncio.all_tasks(loop)))
    return steps.pop() if len(steps) == 1 else None


def _evaluated_steps(tasks: Iterable[asyncio.Task[Any]]) -> Iterable[int]:
    for task in tasks:
        if (found := _EVALUATION.fullmatch(task.get_name())) is not None:
            yield int(found[1])
