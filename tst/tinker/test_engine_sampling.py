"""Sampling from the engine through the real SDK."""

from __future__ import annotations

import asyncio
import gc
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
from tinker import types

from agent_env.engine import EngineHandle, ModelShape, build_model, start_engine
from agent_env.engine.tokenizer import token_bytes

# The SDK leaves its connections to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SHAPE = ModelShape(hidden=32, layers=2, heads=4, kv_heads=2, intermediate=64, vocabulary=420, context=256)
TEXTS = [f"Block {at}: charge at {at * 7 % 90}, then discharge.\n" for at in range(40)]


@pytest.fixture(scope="module", autouse=True)
def sdk_connections() -> Iterator[None]:
    """Collect what the SDK left, here and not in another module's test."""
    yield
    with warnings.catch_warnings(action="ignore"):
        gc.collect()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHandle]:
    """One engine for the module."""
    folder = tmp_path_factory.mktemp("engine")
    with start_engine(build_model(folder / "model", TEXTS, shape=SHAPE), state_dir=folder / "state") as handle:
        yield handle


@pytest.fixture(scope="module")
def service(engine: EngineHandle) -> tinker.ServiceClient:
    """The real client."""
    return tinker.ServiceClient(base_url=engine.base_url, api_key=engine.api_key)


@pytest.fixture(scope="module")
def trained(engine: EngineHandle, service: tinker.ServiceClient) -> tinker.TrainingClient:
    """A run whose adapters are no longer zero."""
    client = service.create_lora_training_client(engine.model_name, rank=8, seed=1).result()
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(ints(30)),
        loss_fn_inputs={"target_tokens": ints(30, seed=1), "weights": [1.0] * 30},
    )
    client.forward_backward([datum], "cross_entropy").result()
    client.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    return client


@pytest.fixture(scope="module")
def sampler(trained: tinker.TrainingClient) -> tinker.SamplingClient:
    """Its sampler."""
    return trained.save_weights_and_get_sampling_client().result()


def ints(count: int, seed: int = 0) -> list[int]:
    """Token ids."""
    return np.random.default_rng(seed).integers(0, 280, count).tolist()


def prompt(tokens: list[int]) -> types.ModelInput:
    """A prompt."""
    return types.ModelInput.from_ints(tokens)


def greedy(max_tokens: int = 12, **changes: Any) -> types.SamplingParams:
    """The likeliest tokens, with no stop."""
    return types.SamplingParams(**{"max_tokens": max_tokens, "temperature": 0.0, "stop": [], **changes})


def drawn(max_tokens: int = 12, **changes: Any) -> types.SamplingParams:
    """Drawn tokens, with no stop."""
    return types.SamplingParams(**{"max_tokens": max_tokens, "stop": [], **changes})


def test_sampled_log_probabilities_are_the_trainers(
    trained: tinker.TrainingClient, sampler: tinker.SamplingClient
) -> None:
    """Importance weights of an unchanged policy are one: sampler and trainer agree to 1e-5, shared prompt or not."""
    starts = [ints(40), ints(40)[:35] + ints(9, seed=5), ints(3, seed=6)]
    data: list[types.Datum] = []
    sampled: list[np.ndarray[Any, Any]] = []
    for start in starts:
        response = sampler.sample(prompt(start), 8, drawn(20), include_prompt_logprobs=start is starts[0]).result()
        for sequence in response.sequences:
            assert sequence.tokens_np is not None
            assert sequence.logprobs_np is not None
            whole = start + sequence.tokens
            inputs = {"target_tokens": whole[1:], "weights": [0.0] * (len(start) - 1) + [1.0] * 20}
            data.append(types.Datum(model_input=prompt(whole[:-1]), loss_fn_inputs=inputs))
            sampled.append(sequence.logprobs_np)
    result = trained.forward(data, "cross_entropy").result()
    for output, logprobs in zip(result.loss_fn_outputs, sampled, strict=True):
        assert np.abs(output["logprobs"].to_numpy()[-20:] - logprobs).max() <= 1e-5
    assert result.metrics["loss:sum"] == pytest.approx(-sum(float(values.sum()) for values in sampled), rel=1e-5)


async def test_a_batch_gives_each_request_what_it_gets_alone(sampler: tinker.SamplingClient) -> None:
    """Requests of all lengths under way together do not touch each other."""
    starts = [ints(2 + at * 5 % 60, seed=at) for at in range(40)]
    alone = [(await sampler.sample(prompt(start), 1, greedy(6 + at % 9))).sequences[0].tokens
             for at, start in enumerate(starts[:8])]  # fmt: skip
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_tokens(sampler, start, greedy(6 + at % 9))) for at, start in enumerate(starts)]
    assert [task.result() for task in tasks][:8] == alone


async def _tokens(sampler: tinker.SamplingClient, start: list[int], params: types.SamplingParams) -> list[int]:
    return (await sampler.sample(prompt(start), 1, params)).sequences[0].tokens


@pytest.mark.parametrize("cancelled", [[0], [0, 3, 4], [9], [*range(9)]], ids=["first", "some", "last", "all but one"])
async def test_cancelling_some_requests_leaves_the_others_as_they_were(
    sampler: tinker.SamplingClient, caplog: pytest.LogCaptureFixture, cancelled: list[int]
) -> None:
    """Whichever row of the batch goes, its neighbours' tokens are those that they get alone, and nobody complains."""
    starts = [ints(20 + at, seed=100 + at) for at in range(10)]
    left = [at for at in range(10) if at not in cancelled]
    alone = {at: await _tokens(sampler, starts[at], greedy(200)) for at in left}
    tasks = [asyncio.create_task(_tokens(sampler, start, greedy(200))) for start in starts]
    await asyncio.sleep(0.1)  # they are under way; where they are not yet, or not any more, this still holds
    for at in cancelled:
        tasks[at].cancel()
    await asyncio.wait(tasks)
    assert {at: tasks[at].result() for at in left} == alone
    gc.collect()
    assert not [record.getMessage() for record in caplog.records if "never retrieved" in record.getMessage()]


def test_a_prompt_that_extends_an_earlier_one_is_not_read_again_and_gives_the_same(
    trained: tinker.TrainingClient,
) -> None:
    """A rollout's next message: what was computed is found, and a sampler that never saw it agrees."""
    first, fresh, third = (trained.save_weights_and_get_sampling_client().result() for _ in range(3))
    start = ints(64, seed=9)
    answer = first.sample(prompt(start), 1, greedy(10)).result()
    longer = start + answer.sequences[0].tokens + ints(7, seed=10)
    reused = first.sample(prompt(longer), 1, greedy(10)).result()
    assert reused.prompt_cache_hit_tokens == 64 + 9
    anew = fresh.sample(prompt(longer), 1, greedy(10)).result()
    assert anew.prompt_cache_hit_tokens == 0
    assert reused.sequences[0].tokens == anew.sequences[0].tokens
    assert np.allclose(reused.sequences[0].logprobs, anew.sequences[0].logprobs, atol=1e-5)
    diverging = longer[:50] + ints(9, seed=11)
    half, whole = (client.sample(prompt(diverging), 1, greedy(10)).result() for client in (first, third))
    assert half.prompt_cache_hit_tokens == 50
    assert half.sequences[0].tokens == whole.sequences[0].tokens
    assert np.allclose(half.sequences[0].logprobs, whole.sequences[0].logprobs, atol=1e-5)


def test_a_seed_gives_the_same_tokens_and_samples_of_a_request_differ(sampler: tinker.SamplingClient) -> None:
    """Reproducible by request, whatever else is in the batch."""

    def ask(params: types.SamplingParams, samples: int) -> list[list[int]]:
        return [sequence.tokens for sequence in sampler.sample(prompt(ints(20)), samples, params).result().sequences]

    assert ask(drawn(seed=5), 4) == ask(drawn(seed=5), 6)[:4]
    assert len({tuple(tokens) for tokens in ask(drawn(seed=5), 4)}) == 4
    assert ask(drawn(seed=6), 1) != ask(drawn(seed=5), 1)
    assert ask(drawn(), 1) != ask(drawn(), 1)


def test_drawn_tokens_follow_the_models_probabilities(sampler: tinker.SamplingClient) -> None:
    """2,000 draws: every likely token comes as often as its probability says, at temperature 1 and at 0.5."""
    for temperature in (1.0, 0.5):
        params = drawn(1, temperature=temperature, seed=1)
        drawn_tokens: list[int] = []
        logprobs: dict[int, float] = {}
        for seed in (1, 2):
            params = drawn(1, temperature=temperature, seed=seed)
            for sequence in sampler.sample(prompt(ints(20)), 1000, params).result().sequences:
                drawn_tokens += sequence.tokens
                logprobs[sequence.tokens[0]] = (sequence.logprobs or [])[0]
        counts = np.bincount(drawn_tokens, minlength=SHAPE.vocabulary)
        seen = sorted(logprobs)
        weights = np.exp(np.array([logprobs[token] for token in seen]) / temperature)
        # Tokens that were never drawn have little weight; at temperature 1 the weights are the probabilities.
        share = weights if temperature == 1.0 else weights / weights.sum()
        expected = share * 2000
        sigma = np.sqrt(expected + 1)
        assert (np.abs(counts[seen] - expected) < 5 * sigma).all()


def test_top_k_and_top_p_leave_only_the_likeliest(sampler: tinker.SamplingClient) -> None:
    """top_k=1 and a tiny top_p are greedy; top_k=3 draws three tokens at most."""
    likeliest = sampler.sample(prompt(ints(20)), 1, greedy()).result().sequences[0].tokens
    assert sampler.sample(prompt(ints(20)), 1, drawn(top_k=1)).result().sequences[0].tokens == likeliest
    assert sampler.sample(prompt(ints(20)), 1, drawn(top_p=1e-6)).result().sequences[0].tokens == likeliest
    few = sampler.sample(prompt(ints(20)), 200, drawn(1, top_k=3)).result().sequences
    assert 2 <= len({sequence.tokens[0] for sequence in few}) <= 3
    half = sampler.sample(prompt(ints(20)), 1000, drawn(1, top_p=0.5)).result().sequences
    every = {sequence.tokens[0]: (sequence.logprobs or [])[0] for sequence in half}
    assert np.exp(list(every.values())).sum() - np.exp(min(every.values())) < 0.5


def test_sampling_stops_at_a_stop_token_a_stop_string_and_the_length(
    sampler: tinker.SamplingClient, engine: EngineHandle
) -> None:
    """The token that stops is part of the answer, as the cookbook's renderers expect."""
    free = sampler.sample(prompt(ints(20)), 1, drawn(30, seed=2)).result().sequences[0]
    assert (free.stop_reason, len(free.tokens)) == ("length", 30)
    stop = free.tokens[9]
    at = free.tokens.index(stop)
    stopped = sampler.sample(prompt(ints(20)), 1, drawn(30, seed=2, stop=[stop])).result().sequences[0]
    assert (stopped.stop_reason, stopped.tokens) == ("stop", free.tokens[: at + 1])
    table = token_bytes(Path(engine.model_name)) or []
    text = b"".join(table[token] for token in free.tokens).decode(errors="replace")
    spanning = next(text[begin : begin + 4] for begin in range(12, 60) if "�" not in text[begin : begin + 4])
    cut = sampler.sample(prompt(ints(20)), 1, drawn(30, seed=2, stop=[spanning])).result().sequences[0]
    ended = b"".join(table[token] for token in cut.tokens)
    assert cut.stop_reason == "stop"
    assert spanning.encode() in ended
    assert spanning.encode() not in b"".join(table[token] for token in cut.tokens[:-1])
    assert cut.tokens == free.tokens[: len(cut.tokens)]


def test_without_a_stop_the_models_own_end_stops_and_an_empty_list_does_not(
    service: tinker.ServiceClient, engine: EngineHandle
) -> None:
    """What the SDK says of `stop`: None keeps the end of turn, [] has no stop at all."""
    trained = service.create_lora_training_client(engine.model_name, rank=8, seed=1).result()
    end = next(at for at, text in enumerate(token_bytes(Path(engine.model_name)) or []) if text == b"<|im_end|>")
    datum = types.Datum(model_input=prompt(ints(8)), loss_fn_inputs={"target_tokens": [end] * 8, "weights": [1.0] * 8})
    for _ in range(12):
        step = trained.forward_backward([datum], "cross_entropy")
        trained.optim_step(types.AdamParams(learning_rate=1e-2)).result()
        step.result()
    taught = trained.save_weights_and_get_sampling_client().result()
    assert taught.sample(prompt(ints(8)), 1, greedy(5, stop=None)).result().sequences[0].tokens == [end]
    assert len(taught.sample(prompt(ints(8)), 1, greedy(5)).result().sequences[0].tokens) == 5


def test_prompt_log_probabilities_are_of_every_token_but_the_first_or_of_the_last_ones(
    sampler: tinker.SamplingClient, trained: tinker.TrainingClient
) -> None:
    """The KL reference asks for them."""
    tokens = ints(25, seed=4)
    fresh = trained.save_weights_and_get_sampling_client().result()
    scores = fresh.compute_logprobs(prompt(tokens)).result()
    datum = types.Datum(model_input=prompt(tokens[:-1]), loss_fn_inputs={"target_tokens": tokens[1:]})
    wanted = trained.forward([datum], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].to_numpy()
    assert scores[0] is None
    assert np.allclose(scores[1:], wanted, atol=1e-5)
    last = (
        fresh.sample(prompt(tokens), 1, greedy(1), include_prompt_logprobs=True, prompt_logprobs_last_n=3)
        .result()
        .prompt_logprobs
    )
    assert last is not None
    assert [score is None for score in last] == [True] * 22 + [False] * 3
    assert np.allclose(last[-3:], wanted[-3:], atol=1e-5)


def test_a_sequence_ends_at_the_end_of_the_context(sampler: tinker.SamplingClient) -> None:
    """The model has no positions beyond it."""
    last = sampler.sample(prompt(ints(250)), 1, drawn(50)).result().sequences[0]
    assert (last.stop_reason, len(last.tokens)) == ("length", 6)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"topk_prompt_logprobs": 3}, "topk_prompt_logprobs is not supported"),
        ({"topk_sample_logprobs": 3}, "topk_sample_logprobs is not supported"),
        ({"prompt_alt_tokens_k": 2}, "prompt_alt_tokens_k is not supported"),
        (
            {"target_prompt_logprobs": types.TensorData(data=[1, 2], dtype="int64", shape=[2, 1])},
            "target_prompt_logprobs is not supported",
        ),
        ({"prompt": prompt([5, 100_000])}, "token id 100000 is not in the model's vocabulary"),
        ({"prompt": prompt([])}, "prompt: empty"),
        ({"prompt": prompt([1] * 256)}, "leave no room in the model's context of 256"),
        (
            {"prompt": types.ModelInput(chunks=[types.ImageChunk(data=b"x", format="png")])},
            "type 'image' is not supported",
        ),
        ({"sampling_params": drawn(temperature=-1.0)}, "temperature -1.0"),
        ({"sampling_params": drawn(top_p=0.0)}, "top_p 0.0"),
        ({"sampling_params": drawn(top_k=0)}, "top_k 0"),
        ({"sampling_params": drawn(0)}, "max_tokens 0"),
        ({"sampling_params": drawn(stop=[""])}, "stop ['']"),
        ({"num_samples": 5000}, "num_samples 5000"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    change: dict[str, Any], said: str, sampler: tinker.SamplingClient
) -> None:
    """Ignoring a field would hand back numbers that mean something else."""
    arguments: dict[str, Any] = {"prompt": prompt([1, 2, 3]), "num_samples": 1, "sampling_params": drawn()}
    with pytest.raises(tinker.BadRequestError, match=re.escape(said)):
        sampler.sample(**(arguments | change)).result()


def test_another_model_or_checkpoint_is_refused_by_name(service: tinker.ServiceClient, engine: EngineHandle) -> None:
    """The engine serves one model, and the checkpoints in its own state directory."""
    with pytest.raises(tinker.BadRequestError, match="this engine serves"):
        service.create_sampling_client(base_model="Qwen/Qwen3-8B").result()
    with pytest.raises(tinker.BadRequestError, match="knows no run 'other'"):
        service.create_sampling_client(model_path="tinker://other/weights/a").result()
    with pytest.raises(tinker.BadRequestError, match="is no checkpoint"):
        service.create_sampling_client(model_path="tinker://a/b").result()
    base = service.create_sampling_client(base_model=engine.model_name).result()
    assert len(base.sample(prompt([1, 2]), 1, greedy(3)).result().sequences[0].tokens) == 3
