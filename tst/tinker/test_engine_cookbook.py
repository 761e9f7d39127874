"""tinker-cookbook's own training loops, unchanged, on the engine."""

from __future__ import annotations

import gc
import json
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import chz
import pytest
from tinker_cookbook.renderers import TrainOnWhat, get_renderer
from tinker_cookbook.rl import train as rl_train
from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
from tinker_cookbook.rl.types import EnvGroupBuilder, RLDataset, RLDatasetBuilder
from tinker_cookbook.supervised import train as sft_train
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig
from tinker_cookbook.tokenizer_utils import get_tokenizer

from agent_env.engine import EngineHandle, ModelShape, build_model, start_engine

# The SDK leaves its connections to the garbage collector; the cookbook calls SDK methods that are being renamed.
pytestmark = [pytest.mark.filterwarnings("ignore")]

SHAPE = ModelShape(hidden=32, layers=2, heads=4, kv_heads=2, intermediate=64, vocabulary=420, context=512)
TEXTS = [f"Say {word}. {word}\n" for word in ("yes", "no", "hold", "charge")]
RENDERER = "qwen3_disable_thinking"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHandle]:
    """One engine for the module."""
    folder = tmp_path_factory.mktemp("engine")
    with start_engine(build_model(folder / "model", TEXTS, shape=SHAPE), state_dir=folder / "state") as handle:
        yield handle
    with warnings.catch_warnings(action="ignore"):
        gc.collect()


@pytest.fixture(autouse=True)
def api_key(engine: EngineHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cookbook's loops take the key from the environment."""
    monkeypatch.setenv("TINKER_API_KEY", engine.api_key)


class SayYes(ProblemEnv):
    """Rewarded for the letter y."""

    def get_question(self) -> str:
        """The question."""
        return "Say yes."

    def check_answer(self, sample_str: str) -> bool:
        """Whether the answer is right."""
        return "y" in sample_str

    def check_format(self, sample_str: str) -> bool:
        """Any form will do."""
        return True

    def get_reference_answer(self) -> str:
        """The answer."""
        return "yes"


class SayYesDataset(RLDataset):
    """Two groups a batch."""

    def __init__(self, model_name: str, batches: int) -> None:
        self._renderer = get_renderer(RENDERER, get_tokenizer(model_name))
        self._batches = batches

    def get_batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        """The groups of a batch."""
        return [ProblemGroupBuilder(lambda: SayYes(self._renderer), num_envs=8) for _ in range(2)]

    def __len__(self) -> int:
        return self._batches


@chz.chz
class SayYesBuilder(RLDatasetBuilder):
    """Makes the dataset."""

    model_name: str
    batches: int = 2

    async def __call__(self) -> tuple[RLDataset, None]:
        """The dataset."""
        return SayYesDataset(self.model_name, self.batches), None


def metrics_of(log_path: Path) -> list[dict[str, Any]]:
    """What the loop wrote of its steps."""
    return [json.loads(line) for line in (log_path / "metrics.jsonl").read_text().splitlines()]


async def test_supervised_training_runs_unchanged_and_learns(engine: EngineHandle, tmp_path: Path) -> None:
    """Two steps and a resume: the loss falls, checkpoints are named, the second run goes on from the first's end."""
    conversations = tmp_path / "conversations.jsonl"
    line = json.dumps({"messages": [{"role": "user", "content": "Say yes."}, {"role": "assistant", "content": "yes"}]})
    conversations.write_text(f"{line}\n" * 8)
    common = ChatDatasetBuilderCommonConfig(
        model_name_for_tokenizer=engine.model_name,
        renderer_name=RENDERER,
        max_length=128,
        batch_size=4,
        train_on_what=TrainOnWhat.ALL_ASSISTANT_MESSAGES,
    )
    for epochs, steps in ((1, 2), (2, 4)):
        config = sft_train.Config(
            log_path=str(tmp_path / "log"),
            model_name=engine.model_name,
            recipe_name="test",
            renderer_name=RENDERER,
            dataset_builder=FromConversationFileBuilder(common_config=common, file_path=str(conversations)),
            learning_rate=1e-2,
            num_epochs=epochs,
            lora_rank=8,
            base_url=engine.base_url,
            save_every=1,
            eval_every=0,
        )
        await sft_train.main(config)
        losses = [step["train_mean_nll"] for step in metrics_of(tmp_path / "log") if "train_mean_nll" in step]
        assert len(losses) == steps
    assert losses[-1] < losses[0]
    saved = [json.loads(text) for text in (tmp_path / "log" / "checkpoints.jsonl").read_text().splitlines()]
    assert saved[-1]["state_path"].startswith("tinker://")


async def test_reinforcement_learning_runs_unchanged(engine: EngineHandle, tmp_path: Path) -> None:
    """Two steps, sampling and training on-policy: the sampler's log-probabilities are the trainer's."""
    config = rl_train.Config(
        learning_rate=1e-3,
        dataset_builder=SayYesBuilder(model_name=engine.model_name),
        model_name=engine.model_name,
        recipe_name="test",
        max_tokens=12,
        log_path=str(tmp_path / "log"),
        renderer_name=RENDERER,
        lora_rank=8,
        base_url=engine.base_url,
        eval_every=0,
        save_every=1,
    )
    await rl_train.main(config)
    steps = [step for step in metrics_of(tmp_path / "log") if "optim/kl_sample_train_v1" in step]
    assert len(steps) == 2
    assert all(abs(step["optim/kl_sample_train_v1"]) < 1e-5 for step in steps)
