"""The builder under tinker-cookbook's own `rl.train.main`, on the embedded engine: what is filed, and where."""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import chz
import pytest
from tinker_cookbook.rl import train as rl_train

from agent_env.engine import EngineHandle, ModelShape, build_model, start_engine
from agent_env.runs import RunIndex, RunState, RunSummary
from agent_env.training import _process
from agent_env.training.tinker import AgentEnvDatasetBuilder

# The SDK leaves its connections to the garbage collector; the cookbook calls SDK methods that are being renamed.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(180)]

SHAPE = ModelShape(hidden=32, layers=2, heads=4, kv_heads=2, intermediate=64, vocabulary=420, context=512)
TASKS, GROUPS, SIZE = 8, 2, 2

# The reward is the task's, whatever the model says: what is compared is where runs are filed, not what was sampled.
VERIFIER = """
import asyncio
from pathlib import Path

async def score(episode):
    held = Path(__file__).parent / "held"
    while held.exists() and held.read_text() == episode.task_id:
        await asyncio.sleep(0.05)
    return episode.params["worth"]
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHandle]:
    """One engine for the module."""
    folder = tmp_path_factory.mktemp("engine")
    texts = [f"Say {word}. {word}\n" for word in ("yes", "no", "hold", "charge")]
    with start_engine(build_model(folder / "model", texts, shape=SHAPE), state_dir=folder / "state") as handle:
        yield handle
    with warnings.catch_warnings(action="ignore"):
        gc.collect()


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Eight tasks, each worth something else."""
    root = tmp_path / "worth"
    tasks = [{"id": f"t-{at}", "tags": ["train"], "params": {"worth": at / 10}} for at in range(TASKS)]
    tasks += [{"id": f"e-{at}", "tags": ["test"], "params": {"worth": 1 - at / 10}} for at in range(2)]
    files = {
        "bundle.yaml": "name: worth\ntask_defaults:\n  prompt: Say yes.\n  verify: {python: verifiers/worth.py}\n",
        "verifiers/worth.py": VERIFIER,
        "tasks/all.jsonl": "".join(json.dumps(task) + "\n" for task in tasks),
        "evals/train.yaml": "tags: [train]\n",
        "evals/test.yaml": "tags: [test]\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@dataclass
class Trainer:
    """One training: its folders, and `rl.train.main` on them as often as one likes."""

    engine: EngineHandle
    bundle: Path
    folder: Path
    epochs: int = 1

    def builder(self) -> AgentEnvDatasetBuilder:
        """The dataset builder."""
        return AgentEnvDatasetBuilder(
            bundle=str(self.bundle),
            model_name_for_tokenizer=self.engine.model_name,
            renderer_name="qwen3_disable_thinking",
            train_split="train",
            test_split="test",
            groups_per_batch=GROUPS,
            group_size=SIZE,
            epochs=self.epochs,
            runs=str(self.folder / "runs"),
        )

    def train(
        self, executor: Executor | None = None, *, until: Callable[[], bool] | None = None, **changes: Any
    ) -> None:
        """Train to the end, or until something holds, in a loop of its own: nothing of it goes on in the next training."""
        settings: dict[str, Any] = {"eval_every": 2, "save_every": 2, **changes}
        config = rl_train.Config(
            learning_rate=1e-4,
            dataset_builder=self.builder(),
            model_name=self.engine.model_name,
            recipe_name="test",
            max_tokens=6,
            log_path=str(self.folder / "log"),
            renderer_name="qwen3_disable_thinking",
            lora_rank=8,
            base_url=self.engine.base_url,
            num_groups_to_log=0,
            **settings,
        )

        async def train() -> None:
            training = asyncio.create_task(rl_train.main(config, rollout_executor=executor))
            while until is not None and not training.done() and not until():  # noqa: ASYNC110 - files have no event
                await asyncio.sleep(0.02)
            if until is not None:
                training.cancel("stopped")
                await asyncio.wait([training])
                assert training.cancelled()
            else:
                await training

        try:
            asyncio.run(train())
        finally:
            _process.close_run_indexes()

    @cached_property
    def batches(self) -> list[list[str]]:
        """The tasks of each step."""
        elsewhere = chz.replace(self.builder(), runs=str(self.folder / "elsewhere"))
        train, _ = asyncio.run(elsewhere())
        tasks = [[group.task_id for group in train.get_batch(step)] for step in range(len(train))]  # type: ignore[attr-defined]
        _process.close_run_indexes()
        return tasks

    def filed(self) -> dict[str, list[RunSummary]]:
        """The runs by group, without the run's name."""
        with RunIndex.open(self.folder / "runs", read_only=True) as index:
            return {group.name.removeprefix("worth/"): list(index.all_runs(group.name)) for group in index.groups()}

    def check_record(self, *, steps: bool = True, stopped: Container[str] = ()) -> None:
        """See that each run has what was sampled, and the step of its weights, which is that of its group where `steps`.

        A run of those in `stopped` may have no log-probabilities: its trainer was stopped before its group was done.
        """
        with RunIndex.open(self.folder / "runs", read_only=True) as index:
            for run in (run for group in index.groups() for run in index.all_runs(group.name)):
                assert (run.renderer, run.model) == ("qwen3_disable_thinking", self.engine.model_name)
                if steps or "/eval/" in run.group:
                    assert run.policy_step == int(run.group[-4:])
                if run.state is RunState.COMPLETED:
                    sampled = index.sampled(run.run_id)
                    assert sum(len(tokens.ids) for tokens in sampled.values()) == run.sampled_tokens
                    has_logprobs = all(tokens.logprobs is not None for tokens in sampled.values())
                    assert has_logprobs or run.run_id in stopped

    def trained_on(self, *, since: int) -> Counter[Any]:
        """Of each rollout that was trained on since a step, by the cookbook's own record: step of its weights, reward, tokens."""
        files = (self.folder / "log").rglob("train_rollout_summaries.jsonl")
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return Counter(
            (line["sampling_client_step"], line["total_reward"], sum(step["ac_len"] for step in line["steps"]))
            for line in lines
            if line["iteration"] >= since
        )

    def evaluated(self) -> set[str]:
        """The groups of the steps that the cookbook has evaluated, by its own metrics."""
        lines = [json.loads(line) for line in (self.folder / "log" / "metrics.jsonl").read_text().splitlines()]
        return {f"eval/step-{line['step']:04d}" for line in lines if any(key.startswith("test/") for key in line)}

    def hold(self, task_id: str | None) -> None:
        """Have the verifier of one task wait, or of none any more."""
        (self.bundle / "verifiers" / "held").write_text(task_id or "")

    def saved(self, step: int) -> bool:
        """Whether there is a checkpoint of what was trained before a step."""
        file = self.folder / "log" / "checkpoints.jsonl"
        return file.exists() and any(json.loads(line).get("batch") == step for line in file.read_text().splitlines())


@pytest.fixture
def trainer(engine: EngineHandle, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """A training that has not begun."""
    monkeypatch.setenv("TINKER_API_KEY", engine.api_key)
    return Trainer(engine, bundle, tmp_path)


def worth(task_id: str) -> float:
    """What a task gives."""
    at = int(task_id[2:]) / 10
    return at if task_id.startswith("t") else 1 - at


def results(filed: dict[str, list[RunSummary]]) -> dict[str, Counter[Any]]:
    """What there is of each group, apart from what was sampled."""
    return {
        group: Counter((run.task_id, run.attempt, run.state, run.reward) for run in runs)
        for group, runs in filed.items()
    }


def whole(trainer: Trainer) -> dict[str, Counter[Any]]:
    """What there is after every step was played once."""
    done = RunState.COMPLETED
    expected = {
        f"train/step-{step:04d}": Counter({(task, 0, done, worth(task)): SIZE for task in tasks})
        for step, tasks in enumerate(trainer.batches)
    }
    evaluated = trainer.evaluated()
    assert evaluated >= {"eval/step-0000", "eval/step-0002"}
    return expected | {group: Counter({(f"e-{at}", 0, done, 1 - at / 10): 1 for at in range(2)}) for group in evaluated}


MODES: dict[str, dict[str, Any]] = {
    "sync": {},
    "streaming": {
        "stream_minibatch_config": rl_train.StreamMinibatchConfig(groups_per_batch=GROUPS, num_minibatches=2)
    },
}


@pytest.mark.parametrize("mode", MODES)
def test_a_training_stopped_in_the_middle_and_resumed_has_every_step_once(trainer: Trainer, mode: str) -> None:
    """Stopped in step 3, after the checkpoint before step 2: steps 2 and 3 and the evaluations at them are played again,
    and of these there is only the second play.
    """
    changes = MODES[mode]
    first, second = trainer.batches[3]
    trainer.hold(second)
    trainer.train(until=lambda: trainer.saved(2) and scored(trainer, "train/step-0003", first) == SIZE, **changes)
    before = trainer.filed()
    trainer.hold(None)
    trainer.train(**changes)
    after = trainer.filed()
    assert results(after) == whole(trainer)
    kept = {group for group in before if {run.run_id for run in before[group]} & {run.run_id for run in after[group]}}
    assert kept == {"train/step-0000", "train/step-0001", "eval/step-0000"}
    trainer.check_record()


def test_asynchronous_training_files_what_it_plays_again_as_another_attempt(trainer: Trainer) -> None:
    """Groups by the batch they belong to, also those whose runs became too old and are played again; an evaluation by the
    step it is played at, while training goes on; and after a resume nothing is left of the steps played again.
    """
    trainer.epochs = 4
    asynchronous: dict[str, Any] = {"max_steps_off_policy": 0, "groups_per_batch": GROUPS}
    plays_again = "loss_fn" not in rl_train.AsyncConfig.__annotations__
    if not plays_again:  # from 0.6 on it trains on what became too old, with a loss that the engine has not
        asynchronous["loss_fn"] = "importance_sampling"
    changes = {"async_config": rl_train.AsyncConfig(**asynchronous), "eval_every": 1}
    trainer.train(until=lambda: trainer.saved(2), **changes)
    before = trainer.filed()
    trainer.train(**changes)
    after = trainer.filed()
    again = {f"train/step-{step:04d}" for step in range(2, len(trainer.batches))}
    assert not {run.run_id for group in again for run in before.get(group, [])} & {
        run.run_id for group in again for run in after[group]
    }
    for step, tasks in enumerate(trainer.batches):
        runs = after[f"train/step-{step:04d}"]
        assert {run.task_id for run in runs} == set(tasks)
        if step < 2:
            continue  # what the stopped training was playing of it was not played to its end
        for task in tasks:
            by_attempt = Counter(run.attempt for run in runs if run.task_id == task)
            assert by_attempt == dict.fromkeys(range(len(by_attempt)), SIZE)
    assert any(run.attempt > 0 for group in again for run in after[group]) == plays_again
    assert {group for group in after if group.startswith("eval")} == trainer.evaluated()
    trainer.check_record(steps=False, stopped={run.run_id for runs in before.values() for run in runs})
    trained_on = trainer.trained_on(since=2)
    assert len({step for step, _, _ in trained_on}) > 2
    assert trained_on <= Counter(
        (run.policy_step, run.reward, run.sampled_tokens) for group in again for run in after[group]
    )


def scored(trainer: Trainer, group: str, task_id: str) -> int:
    """How many runs of a task are scored."""
    return sum(run.reward is not None for run in trainer.filed().get(group, []) if run.task_id == task_id)


def test_a_training_in_worker_processes_is_the_one_in_process(trainer: Trainer) -> None:
    """The same runs with the same rewards in the same groups, all of them filed when the pool is gone."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        trainer.train(pool)
    assert results(trainer.filed()) == whole(trainer)
    trainer.check_record()


class RayExecutor(Executor):
    """Rollouts as Ray tasks, as a user of the cookbook would write it."""

    def __init__(self) -> None:
        self._ray = pytest.importorskip("ray", reason="installed by hand: no test dependency")
        self._ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run it in one of Ray's workers."""
        return self._ray.remote(fn).remote(*args, **kwargs).future()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End Ray's processes."""
        self._ray.shutdown()


def test_a_training_on_ray_is_the_one_in_process(trainer: Trainer) -> None:
    """As with a process pool."""
    trainer.train(RayExecutor())
    assert results(trainer.filed()) == whole(trainer)
