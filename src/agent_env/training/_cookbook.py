"""What rollouts and datasets take from tinker-cookbook, tinker and chz. What differs between their versions is settled here.

Not the trainers themselves: the main job calls those in `_stages.py`.

Checked against cookbook 0.5.8 and 0.6.1: what is used of them is the same in both, but for

- `EnvGroupBuilder.cleanup`: 0.6 runs it in a task of its own, so nothing may be keyed by the current task;
- `TokensWithLogprobs`: 0.6 has more fields, with defaults;
- `rl.train.Config.num_epochs`: 0.6 goes through a dataset again and again, see `step_of_batch`;
- asynchronous training: its variables that `policy_step_of_group` reads are the same; 0.5 plays a group again whose runs became too old; 0.6 trains on them, by default with a loss
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
        TinkerError,
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
    from tinker import Datum, EncodedTextChunk, ModelInput, SamplingClient, TinkerError
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
    "policy_step_of_batch",
    "policy_step_of_group",
    "step_of_batch",
    "step_under_evaluation",
    "tensor",
]

PARSE_ERROR_MASKED = "parse_error_masked"
"""The metric of a step whose tokens are not trained on."""

_TRAINER = "tinker_cookbook.rl.train"
_SYNCHRONOUS = frozenset({"do_sync_training", "do_sync_training_with_stream_minibatch"})
_ASYNCHRONOUS = frozenset({"trajectory_group_worker_loop"})
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


def policy_step_of_batch() -> int | None:
    """The step of the weights that the batch will be played with which a dataset is asked for; None where that is not known.

    Synchronous training plays a batch with the weights of its own step, and streaming training as well: it starts all groups of
    a batch before it trains on the first. Asynchronous training asks for batches ahead: see `policy_step_of_group`.
    """
    return _trainers_own(_SYNCHRONOUS, "i_batch")


def policy_step_of_group() -> int | None:
    """The step of the weights that the group is played with whose rollouts are asked for, in asynchronous training.

    None elsewhere, and in another process than the trainer's.
    """
    return _trainers_own(_ASYNCHRONOUS, "sampling_client_step_copy")


def _trainers_own(functions: frozenset[str], name: str) -> int | None:
    """What one of the trainer's functions that wait for us has in a variable; it tells nobody."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage] - who waits for us, up to the trainer
    while frame is not None:
        if frame.f_code.co_name in functions and frame.f_globals.get("__name__") == _TRAINER:
            found = frame.f_locals.get(name)
            return found if isinstance(found, int) else None
        frame = frame.f_back
    return None


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
