"""Training on the engine: losses, the optimizer, the order of requests, checkpoints."""

from __future__ import annotations

import gc
import os
import re
import signal
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
import torch
from tinker import types
from tinker.proto.request_conv import forward_backward_request_to_proto
from transformers import AutoModelForCausalLM

from agent_env.engine import EngineHandle, EngineOptions, ModelShape, Training, build_model, start_engine
from agent_env.engine.architecture import load_architecture, load_tensors
from agent_env.engine.parameters import LORA_ALPHA, LoraSettings, Parameters
from agent_env.engine.protocol import parse_forward_backward
from agent_env.engine.runs import BaseModel
from agent_env.engine.trainer import AdamSettings, Batch, ForwardBackwardResult, Trainer

# The SDK leaves its connections to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SHAPE = ModelShape(hidden=32, layers=2, heads=4, kv_heads=2, intermediate=64, vocabulary=420, context=256)
TEXTS = [f"Block {at}: charge at {at * 7 % 90}, then discharge.\n" for at in range(40)]
ADAM = types.AdamParams(learning_rate=1e-2, beta1=0.8, beta2=0.9, eps=1e-8, weight_decay=0.1, grad_clip_norm=1.0)
LOSSES = ["cross_entropy", "importance_sampling", "ppo", "cispo"]


@pytest.fixture(scope="module", autouse=True)
def sdk_connections() -> Iterator[None]:
    """Collect what the SDK left, here and not in another module's test."""
    yield
    with warnings.catch_warnings(action="ignore"):
        gc.collect()


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model, built once."""
    return build_model(tmp_path_factory.mktemp("built") / "model", TEXTS, shape=SHAPE)


@pytest.fixture(scope="module")
def engine(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineHandle]:
    """One engine for the tests that need no other."""
    with start_engine(model_dir, state_dir=tmp_path_factory.mktemp("engine")) as handle:
        yield handle


@pytest.fixture
def client(engine: EngineHandle) -> tinker.TrainingClient:
    """A new run."""
    return _service(engine).create_lora_training_client(engine.model_name, rank=8, seed=1).result()


def _service(engine: EngineHandle) -> tinker.ServiceClient:
    return tinker.ServiceClient(base_url=engine.base_url, api_key=engine.api_key)


def data(loss: str, count: int = 6) -> list[types.Datum]:
    """Sequences of several lengths, four of which share a beginning of 40 tokens; a third of the tokens count not."""
    draw = np.random.default_rng(7)
    shared = draw.integers(0, 280, 40).tolist()
    made: list[types.Datum] = []
    for at in range(count):
        whole = (shared if at < 4 else []) + draw.integers(0, 280, 9 + 3 * at).tolist()
        length = len(whole) - 1
        counts = draw.random(length) > 0.33
        inputs: dict[str, Any] = {"target_tokens": whole[1:]}
        if loss == "cross_entropy":
            inputs["weights"] = (counts * draw.random(length)).tolist()
        else:
            inputs["logprobs"] = (-6.0 + draw.normal(0, 0.5, length)).tolist()
            inputs["advantages"] = (counts * draw.normal(0, 1, length)).tolist()
        made.append(types.Datum(model_input=types.ModelInput.from_ints(whole[:-1]), loss_fn_inputs=inputs))
    return made


def reference_model(model_dir: Path) -> Any:
    """Transformers' own model; it gives the padding token no gradient unless told to."""
    model = AutoModelForCausalLM.from_pretrained(str(model_dir))
    model.model.embed_tokens.padding_idx = None
    return model


def reference_loss(model: Any, batch: list[types.Datum], loss: str, low: float, high: float) -> torch.Tensor:
    """The formulas of Tinker's documentation ("Loss Functions"), token by token, on transformers' own model."""
    total = torch.zeros(())
    for datum in batch:
        logits = model(torch.tensor([datum.model_input.to_ints()])).logits[0]
        inputs = {name: tensor.to_torch() for name, tensor in datum.loss_fn_inputs.items()}
        target = inputs["target_tokens"][:, None]
        target_logprobs = torch.log_softmax(logits, -1).gather(1, target).squeeze(1)
        if loss == "cross_entropy":
            total = total + (-target_logprobs * inputs["weights"]).sum()
            continue
        ratio = torch.exp(target_logprobs - inputs["logprobs"])
        clipped = torch.clamp(ratio, low, high)
        advantages = inputs["advantages"]
        objective = {
            "importance_sampling": ratio * advantages,
            "ppo": torch.min(ratio * advantages, clipped * advantages),
            "cispo": clipped.detach() * target_logprobs * advantages,
        }[loss]
        total = total - objective.sum()
    return total


def trainer_of(model_dir: Path, training: Training) -> Trainer:
    """The engine's trainer, without the server."""
    architecture = load_architecture(model_dir)
    base = BaseModel("m", architecture, dict(load_tensors(model_dir, architecture)), training)
    lora = LoraSettings(rank=8, seed=1)
    return Trainer(architecture, base.rope, Parameters(architecture, base.tensors, training, lora))


def parsed(batch: list[types.Datum], loss: Any, config: dict[str, Any]) -> Batch:
    """A request as the server reads it from the SDK's bytes."""
    inputs = types.ForwardBackwardInput(data=batch, loss_fn=loss, loss_fn_config=config)
    request = types.ForwardBackwardRequest(model_id="m", seq_id=1, forward_backward_input=inputs)
    message = forward_backward_request_to_proto(request)
    return parse_forward_backward(message, vocabulary=SHAPE.vocabulary, context=SHAPE.context)


def run(trainer: Trainer, batch: list[types.Datum], loss: str, config: dict[str, Any]) -> ForwardBackwardResult:
    """Do one request to its end."""
    work = trainer.forward_backward(parsed(batch, loss, config))
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_and_gradients_are_those_of_plain_autograd(loss: str, model_dir: Path) -> None:
    """Sharing a beginning, packing and leaving out tokens change neither the loss nor any weight's gradient."""
    config = {} if loss in LOSSES[:2] else {"clip_low_threshold": 0.7, "clip_high_threshold": 1.1}
    reference = reference_model(model_dir)
    wanted = reference_loss(reference, data(loss), loss, 0.7, 1.1)
    wanted.backward()
    gradients = {name.removeprefix("model."): value.grad for name, value in reference.named_parameters()}

    full = trainer_of(model_dir, Training.FULL)
    result = run(full, data(loss), loss, config)
    assert result.metrics["loss:sum"] == pytest.approx(wanted.item(), rel=1e-4)
    assert full.parameters.vector.grad is not None
    for name, gradient in full.parameters.named(full.parameters.vector.grad).items():
        assert torch.allclose(gradient, gradients[name], atol=2e-5 * float(gradients[name].abs().max())), name

    lora = trainer_of(model_dir, Training.LORA)
    assert run(lora, data(loss), loss, config).metrics["loss:sum"] == pytest.approx(wanted.item(), rel=1e-4)
    assert lora.parameters.vector.grad is not None
    found = lora.parameters.named(lora.parameters.vector.grad)
    adapters = lora.parameters.named(lora.parameters.vector.detach())
    for name in [name.removesuffix(".lora_A") for name in adapters if name.endswith(".lora_A")]:
        # B is zero at first: A has no gradient, and B's is the matrix's, seen through A.
        through = LORA_ALPHA / 8 * gradients[f"{name}.weight"] @ adapters[f"{name}.lora_A"].T
        assert float(found[f"{name}.lora_A"].abs().max()) == 0.0
        assert torch.allclose(found[f"{name}.lora_B"], through, atol=2e-5 * float(through.abs().max())), name


def test_a_request_that_ends_half_way_leaves_none_of_its_gradient(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step that follows must not apply a part of it."""
    trainer = trainer_of(model_dir, Training.FULL)
    run(trainer, data("cross_entropy"), "cross_entropy", {})
    assert trainer.parameters.vector.grad is not None
    before = trainer.parameters.vector.grad.clone()
    monkeypatch.setattr("agent_env.engine.trainer.MICRO_BATCH_TOKENS", 1)
    work = trainer.forward_backward(parsed(data("cross_entropy"), "cross_entropy", {}))
    next(work)
    assert not torch.equal(trainer.parameters.vector.grad, before)
    work.close()
    assert torch.equal(trainer.parameters.vector.grad, before)


def test_the_optimizer_is_torchs_adamw_with_the_clients_settings(model_dir: Path) -> None:
    """Three steps with clipping and decay, the learning rate changing, against torch's own over single matrices."""
    reference = reference_model(model_dir)
    full = trainer_of(model_dir, Training.FULL)
    optimizer = torch.optim.AdamW(reference.parameters(), betas=(0.8, 0.9), eps=1e-8, weight_decay=0.1)
    for step in range(3):
        rate = 1e-2 / (step + 1)
        reference_loss(reference, data("cross_entropy"), "cross_entropy", 0, 0).backward()
        torch.nn.utils.clip_grad_norm_(reference.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        run(full, data("cross_entropy"), "cross_entropy", {})
        full.optim_step(
            AdamSettings(learning_rate=rate, beta1=0.8, beta2=0.9, eps=1e-8, weight_decay=0.1, grad_clip_norm=1.0)
        )
    named = full.parameters.named(full.parameters.vector.detach())
    for name, value in reference.named_parameters():
        assert torch.allclose(named[name.removeprefix("model.")], value, atol=1e-4), name


def test_gradients_add_up_until_the_step_and_a_forward_alone_adds_none(client: tinker.TrainingClient) -> None:
    """Two halves are the whole, and the log-probabilities come back in the order of the data."""
    batch = data("cross_entropy")
    whole = client.forward_backward(batch, "cross_entropy").result()
    norm = client.optim_step(types.AdamParams(learning_rate=0.0)).result().metrics["grad_norm"]  # type: ignore[index]
    parts = [client.forward_backward(part, "cross_entropy").result() for part in (batch[:1], batch[1:])]
    client.forward(batch, "cross_entropy").result()
    again = client.optim_step(types.AdamParams(learning_rate=0.0)).result().metrics["grad_norm"]  # type: ignore[index]
    assert again == pytest.approx(norm, rel=1e-5)
    assert sum(part.metrics["loss:sum"] for part in parts) == pytest.approx(whole.metrics["loss:sum"], rel=1e-5)
    joined = [output["logprobs"].to_numpy() for part in parts for output in part.loss_fn_outputs]
    assert [len(values) for values in joined] == [datum.model_input.length for datum in batch]
    for output, values in zip(whole.loss_fn_outputs, joined, strict=True):
        assert np.allclose(output["logprobs"].to_numpy(), values, atol=1e-5)


def test_requests_run_in_the_order_of_their_numbers_and_each_once(client: tinker.TrainingClient) -> None:
    """A split request sends its first part last, and a broken connection makes the client send a request again."""
    import httpx

    def body(seq_id: int) -> bytes:
        inputs = types.ForwardBackwardInput(data=data("cross_entropy"), loss_fn="cross_entropy")
        request = types.ForwardBackwardRequest(model_id=client.model_id, seq_id=seq_id, forward_backward_input=inputs)
        return forward_backward_request_to_proto(request).SerializeToString()

    url = str(client.holder._base_url).rstrip("/")
    headers = {"Content-Type": "application/x-protobuf"}
    with httpx.Client(base_url=f"{url}/api/v1", timeout=30) as http:
        adam = {"learning_rate": 1e-2}
        step = {"model_id": client.model_id, "seq_id": 3, "adam_params": adam}
        last = http.post("/optim_step", json=step).json()["request_id"]
        ids = [
            http.post("/forward_backward", content=body(seq), headers=headers).json()["request_id"] for seq in (2, 2)
        ]
        assert ids[0] == ids[1]
        time.sleep(0.2)
        first = http.post("/forward_backward", content=body(1), headers=headers).json()["request_id"]
        stepped = http.post("/retrieve_future", json={"request_id": last}).json()
        for request_id in (first, ids[0]):
            assert http.post("/retrieve_future", json={"request_id": request_id}).status_code == 200
        repeated = http.post("/optim_step", json=step).json()["request_id"]
        assert http.post("/retrieve_future", json={"request_id": repeated}).json() == stepped
    alone = _norm_of_two(client)
    assert stepped["metrics"]["grad_norm"] == pytest.approx(alone, rel=1e-4)


def _norm_of_two(client: tinker.TrainingClient) -> float:
    info = client.get_info()
    fresh = tinker.ServiceClient(base_url=str(client.holder._base_url), api_key="tml-x")
    other = fresh.create_lora_training_client(str(info.model_name), rank=8, seed=1).result()
    for _ in range(2):
        other.forward_backward(data("cross_entropy"), "cross_entropy").result()
    metrics = other.optim_step(types.AdamParams(learning_rate=1e-2)).result().metrics
    assert metrics is not None
    return metrics["grad_norm"]


def _train(client: tinker.TrainingClient, steps: int) -> list[float]:
    """Losses of some steps."""
    losses: list[float] = []
    for _ in range(steps):
        step = client.forward_backward(data("cross_entropy"), "cross_entropy")
        client.optim_step(ADAM)
        losses.append(step.result().metrics["loss:sum"])
    return losses


@pytest.mark.parametrize("training", list(Training))
def test_training_goes_on_exactly_in_a_new_process_after_kill(
    training: Training, model_dir: Path, tmp_path: Path
) -> None:
    """Weights, optimizer, samplers and the list of checkpoints survive kill -9; the numbers are the same, not close."""
    options = EngineOptions(training=training)
    with start_engine(model_dir, state_dir=tmp_path, options=options) as engine:
        service = _service(engine)
        client = service.create_lora_training_client(
            engine.model_name, rank=8, seed=1, user_metadata={"renderer_name": "qwen3"}
        ).result()
        _train(client, 3)
        saved = client.save_state("step-3").result().path
        assert re.fullmatch(r"tinker://[^/]+/weights/step-3", saved)
        sampled_from = client.save_weights_for_sampler("step-3").result().path
        prompt, params = types.ModelInput.from_ints([5, 6, 7]), types.SamplingParams(max_tokens=9, seed=3)
        drawn = service.create_sampling_client(model_path=sampled_from).result().sample(prompt, 2, params).result()
        wanted = _train(client, 3)
        os.kill(engine.pid, signal.SIGKILL)
    with start_engine(model_dir, state_dir=tmp_path, options=options) as engine:
        service = _service(engine)
        resumed = service.create_training_client_from_state_with_optimizer(saved).result()
        assert _train(resumed, 3) == wanted
        again = service.create_sampling_client(model_path=sampled_from).result().sample(prompt, 2, params).result()
        assert [(one.tokens, one.logprobs) for one in again.sequences] == [
            (one.tokens, one.logprobs) for one in drawn.sequences
        ]
        weights_only = service.create_training_client_from_state(saved).result()
        losses = _train(weights_only, 3)
        assert losses[0] == wanted[0]
        assert losses[2] != wanted[2]
        rest = tinker.RestClient(base_url=engine.base_url, api_key=engine.api_key)
        found = rest.get_training_run_by_tinker_path(saved).result()
        assert (found.user_metadata or {})["renderer_name"] == "qwen3"
        assert found.is_lora is (training is Training.LORA)
        listed = rest.list_checkpoints(found.training_run_id).result().checkpoints
        assert {checkpoint.tinker_path for checkpoint in listed} == {saved, sampled_from}
        rest.delete_checkpoint_from_tinker_path(saved).result()
        assert len(rest.list_checkpoints(found.training_run_id).result().checkpoints) == 1
        with pytest.raises(tinker.BadRequestError, match="no such checkpoint"):
            service.create_training_client_from_state_with_optimizer(saved).result()


def test_a_checkpoint_is_replaced_only_when_asked(client: tinker.TrainingClient) -> None:
    """Two saves under one name would otherwise lose the first without a word."""
    client.save_state("same").result()
    with pytest.raises(tinker.RequestFailedError, match="is there already"):
        client.save_state("same").result()
    client.save_state("same", overwrite=True).result()


def test_a_snapshot_stays_as_it_is_while_training_goes_on(model_dir: Path, tmp_path: Path) -> None:
    """Off-policy rollouts sample from the weights they began with; full training changes weights in place."""
    prompt, params = types.ModelInput.from_ints([5, 6, 7]), types.SamplingParams(max_tokens=9, seed=3)
    with start_engine(model_dir, state_dir=tmp_path, options=EngineOptions(training=Training.FULL)) as engine:
        client = _service(engine).create_lora_training_client(engine.model_name, rank=8).result()
        sampler = client.save_weights_and_get_sampling_client().result()
        before = sampler.sample(prompt, 1, params).result().sequences[0].logprobs
        _train(client, 2)
        assert sampler.sample(prompt, 1, params).result().sequences[0].logprobs == before
        moved = client.save_weights_and_get_sampling_client().result()
        assert moved.sample(prompt, 1, params).result().sequences[0].logprobs != before


def _datum(**inputs: Any) -> types.Datum:
    return types.Datum(model_input=types.ModelInput.from_ints([1, 2, 3]), loss_fn_inputs=inputs)


IMAGE = types.ModelInput(chunks=[types.ImageChunk(data=b"x", format="png")])


@pytest.mark.parametrize(
    ("datum", "loss", "config", "said"),
    [
        (_datum(target_tokens=[1, 2, 3]), "dro", None, "loss_fn 'dro' is not supported"),
        (_datum(target_tokens=[1, 2, 3]), "gspo", None, "loss_fn 'gspo' is not supported"),
        (_datum(target_tokens=[1, 2, 3]), "cross_entropy", {"beta": 1.0}, "loss_fn_config 'beta'"),
        (_datum(target_tokens=[1, 2, 3]), "ppo", None, "has no 'advantages'"),
        (_datum(target_tokens=[1, 2]), "cross_entropy", None, "shape [2], but the datum has 3 tokens"),
        (_datum(target_tokens=[[1, 2], [1, 2], [1, 2]]), "cross_entropy", None, "more than one target a position"),
        (_datum(target_tokens=[1, 2, 9999]), "cross_entropy", None, "token id 9999"),
        (_datum(target_tokens=[1, 2, 3], weights=[1.0, float("nan"), 1.0]), "cross_entropy", None, "NaN"),
        (
            _datum(target_tokens=[1, 2, 3], advantages=[1.0] * 3),
            "cross_entropy",
            None,
            "'advantages'] is not supported",
        ),
        (
            types.Datum(model_input=IMAGE, loss_fn_inputs={"target_tokens": [1]}),
            "cross_entropy",
            None,
            "type 'image' is not supported",
        ),
    ],
)
def test_training_that_is_not_supported_is_refused_by_name_and_holds_up_nothing(
    datum: types.Datum, loss: Any, config: dict[str, float] | None, said: str, client: tinker.TrainingClient
) -> None:
    """The next request of the run has its turn, and finds no gradient of the refused one."""
    with pytest.raises(tinker.RequestFailedError, match=re.escape(said)):
        client.forward_backward([datum], loss, config).result()
    with pytest.raises(tinker.RequestFailedError, match="nothing to apply"):
        client.optim_step(ADAM).result()
    assert _train(client, 1)[0] > 0


def test_settings_that_are_not_supported_are_refused_by_name(engine: EngineHandle) -> None:
    """Another optimizer, an impossible rank, another model."""
    service = _service(engine)
    with pytest.raises(tinker.BadRequestError, match="dimuon"):
        service.create_lora_training_client(engine.model_name, optimizer=types.DimuonOptimizerConfig()).result()
    with pytest.raises(tinker.BadRequestError, match=r"lora_config\.rank 0"):
        service.create_lora_training_client(engine.model_name, rank=0).result()
    with pytest.raises(tinker.BadRequestError, match="this engine serves"):
        service.create_lora_training_client("Qwen/Qwen3-8B").result()


def test_a_gradient_that_is_not_finite_is_an_error_and_moves_no_weight(client: tinker.TrainingClient) -> None:
    """One step would make every weight NaN."""
    before = _train(client, 1)[0]
    del before
    loss = client.forward(data("cross_entropy"), "cross_entropy").result().metrics["loss:sum"]
    bad = _datum(target_tokens=[1, 2, 3], logprobs=[-1e9] * 3, advantages=[1.0] * 3)
    client.forward_backward([bad], "importance_sampling").result()
    with pytest.raises(tinker.RequestFailedError, match="gradient's norm is"):
        client.optim_step(ADAM).result()
    assert client.forward(data("cross_entropy"), "cross_entropy").result().metrics["loss:sum"] == loss
