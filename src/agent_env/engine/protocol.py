"""The Tinker protocol's messages: requests to values, results to bodies.

What the engine cannot do is refused here, before anything runs. The protobuf messages are those of the `tinker`
package itself, so that both ends agree.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from tinker.proto import tinker_public_pb2 as pb

from agent_env.engine.futures import Reply
from agent_env.engine.losses import LOSSES, loss_settings
from agent_env.engine.sampler import SampleJob
from agent_env.engine.trainer import AdamSettings, Batch, Example, ForwardBackwardResult
from agent_env.errors import EngineError

__all__ = [
    "adam_settings",
    "field",
    "forward_backward_reply",
    "parse_forward_backward",
    "parse_sample",
    "sample_reply",
]

PROTOBUF = "application/x-protobuf"

UNSUPPORTED_SAMPLING = (
    "topk_prompt_logprobs",
    "topk_sample_logprobs",
    "target_prompt_logprobs",
    "prompt_alt_tokens_k",
    "record_stability_info",
)
SAMPLE_FIELDS = {
    *UNSUPPORTED_SAMPLING,
    "base_model",
    "model_path",
    "num_samples",
    "prompt",
    "prompt_logprobs",
    "prompt_logprobs_last_n",
    "sampling_params",
    "sampling_session_id",
    "seq_id",
    "type",
}
SAMPLING_PARAMS = {"max_tokens", "seed", "stop", "temperature", "top_k", "top_p"}
MAX_SAMPLES = 1024


def field(document: Mapping[str, Any], name: str, kind: type | tuple[type, ...], default: Any = ...) -> Any:
    """One field of a JSON request.

    Raises:
        EngineError: When it is missing and has no default, or is of another type.
    """
    value = document.get(name)
    if value is None:
        if default is ...:
            raise EngineError(f"the request has no {name!r}")
        return default
    wrong = isinstance(value, bool) and kind is not bool
    if wrong or not isinstance(value, kind):
        raise EngineError(f"{name} {value!r}: not of the type that the protocol says")
    return value


def parse_sample(
    document: Mapping[str, Any], *, vocabulary: int, context: int, end_tokens: frozenset[int], stop_strings: bool
) -> SampleJob:
    """Read a sample request.

    Args:
        document: The JSON body.
        vocabulary: Token ids are below this.
        context: Tokens of the longest sequence.
        end_tokens: Where sampling stops if the request names no stop.
        stop_strings: Whether the model's tokenizer lets the engine match them.

    Raises:
        EngineError: When the request is wrong, or asks for something that is not supported.
    """
    for name in UNSUPPORTED_SAMPLING:
        if document.get(name):
            raise EngineError(f"{name} is not supported by the embedded engine")
    _known(document, SAMPLE_FIELDS, "sample request")
    params: Mapping[str, Any] = field(document, "sampling_params", dict, {})
    _known(params, SAMPLING_PARAMS, "sampling_params")
    prompt = _tokens_of_chunks(field(field(document, "prompt", dict), "chunks", list))
    _check_tokens(prompt, vocabulary, "prompt")
    if not len(prompt):
        raise EngineError("prompt: empty; the model needs at least one token to go on from")
    room = context - len(prompt)
    if room < 1:
        raise EngineError(f"prompt: {len(prompt)} tokens leave no room in the model's context of {context}")
    stop_tokens, strings = _stops(params.get("stop"), end_tokens)
    if strings and not stop_strings:
        raise EngineError("stop strings are not supported with this model's tokenizer (not byte-level); use token ids")
    return SampleJob(
        prompt=prompt,
        samples=_at_least(document, "num_samples", 1, 1, limit=MAX_SAMPLES),
        max_tokens=min(_at_least(params, "max_tokens", 1, room), room),
        temperature=_temperature(params),
        top_k=_top_k(params),
        top_p=_top_p(params),
        seed=secrets.randbits(63) if params.get("seed") is None else field(params, "seed", int),
        stop_tokens=stop_tokens,
        stop_strings=strings,
        prompt_logprobs_from=_prompt_logprobs_from(document, len(prompt)),
    )


def _at_least(document: Mapping[str, Any], name: str, least: int, default: int, *, limit: int = 2**31) -> int:
    value: int = field(document, name, int, default)
    if not least <= value <= limit:
        raise EngineError(f"{name} {value}: must be from {least} to {limit}")
    return value


def _temperature(params: Mapping[str, Any]) -> float:
    value = float(field(params, "temperature", (int, float), 1.0))
    if not 0 <= value < float("inf"):
        raise EngineError(f"temperature {value}: must be 0 (the likeliest token) or more")
    return value


def _top_p(params: Mapping[str, Any]) -> float:
    value = float(field(params, "top_p", (int, float), 1.0))
    if not 0 < value <= 1:
        raise EngineError(f"top_p {value}: must be above 0 and at most 1")
    return value


def _top_k(params: Mapping[str, Any]) -> int:
    value: int = field(params, "top_k", int, -1)
    if value == 0 or value < -1:
        raise EngineError(f"top_k {value}: must be -1 (no limit) or at least 1")
    return value


def _prompt_logprobs_from(document: Mapping[str, Any], length: int) -> int | None:
    if not document.get("prompt_logprobs"):
        return None
    return max(0, length - _at_least(document, "prompt_logprobs_last_n", 1, length))


def _known(document: Mapping[str, Any], names: set[str], what: str) -> None:
    for name, value in document.items():
        if name not in names and value:
            raise EngineError(f"{what}: {name!r} is not supported by the embedded engine")


def _tokens_of_chunks(chunks: Sequence[Any]) -> NDArray[np.int64]:
    parts: list[NDArray[np.int64]] = []
    for chunk in chunks:
        kind = chunk.get("type") if isinstance(chunk, dict) else None
        if kind != "encoded_text":
            raise EngineError(f"prompt chunk of type {kind!r} is not supported; the embedded engine reads text only")
        try:
            parts.append(np.array(cast("dict[str, Any]", chunk)["tokens"], dtype=np.int64).reshape(-1))
        except (KeyError, TypeError, ValueError, OverflowError) as exc:
            raise EngineError(f"prompt chunk: tokens are not a list of token ids ({exc})") from exc
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _check_tokens(tokens: NDArray[np.int64], vocabulary: int, what: str) -> None:
    if len(tokens) and (tokens.min() < 0 or tokens.max() >= vocabulary):
        bad = tokens[(tokens < 0) | (tokens >= vocabulary)][0]
        raise EngineError(
            f"{what}: token id {bad} is not in the model's vocabulary of {vocabulary}: "
            "was the text encoded with another model's tokenizer?"
        )


def _stops(stop: Any, end_tokens: frozenset[int]) -> tuple[frozenset[int], tuple[bytes, ...]]:
    """Stop tokens and strings. None keeps the model's own end; an empty list has no stop at all (the SDK's words)."""
    if stop is None:
        return end_tokens, ()
    if isinstance(stop, str | list):
        stops: list[Any] = [stop] if isinstance(stop, str) else stop
        if all(isinstance(item, int) and not isinstance(item, bool) for item in stops):
            return frozenset(stops), ()
        if all(isinstance(item, str) and item for item in stops):
            return frozenset(), tuple(item.encode() for item in stops)
    raise EngineError(f"stop {stop!r}: must be a string, a list of non-empty strings, or a list of token ids")


def sample_reply(job: SampleJob) -> Reply:
    """The body of a finished sample request."""
    message = pb.SampleResponse(prompt_cache_hit_tokens=job.reused_tokens)
    for sequence in job.sequences:
        assert sequence is not None  # the job is done
        message.sequences.add(
            stop_reason=pb.STOP_REASON_STOP if sequence.stopped else pb.STOP_REASON_LENGTH,
            tokens=np.array(sequence.tokens, np.int32).tobytes(),
            logprobs=np.array(sequence.logprobs, np.float32).tobytes(),
        )
    if job.prompt_logprobs is not None:
        message.prompt_logprobs = job.prompt_logprobs.tobytes()
    return Reply(body=message.SerializeToString(), media_type=PROTOBUF)


def parse_forward_backward(message: pb.ForwardBackwardRequest, *, vocabulary: int, context: int) -> Batch:
    """Read a forward or forward_backward request.

    Raises:
        EngineError: When it is wrong, or asks for something that is not supported.
    """
    config: dict[str, float | str] = dict(message.loss_fn_config)
    for key, value in message.loss_fn_config_v2.items():
        config[key] = value.text if value.WhichOneof("value") == "text" else value.number
    settings = loss_settings(message.loss_fn, config)
    if not message.data:
        raise EngineError("forward_backward: no data")
    # Provenance spans (`model_input_spans`) say where tokens came from; no supported loss depends on them.
    examples = [
        _example(datum, message.loss_fn, f"data[{at}]", vocabulary, context) for at, datum in enumerate(message.data)
    ]
    return Batch(examples=examples, loss=message.loss_fn, settings=settings, forward_only=message.forward_only)


def _example(datum: pb.Datum, loss: str, where: str, vocabulary: int, context: int) -> Example:
    parts: list[NDArray[np.int64]] = []
    for chunk in datum.model_input:
        kind = chunk.WhichOneof("chunk")
        if kind != "encoded_text":
            raise EngineError(
                f"{where}: a chunk of type {kind!r} is not supported; the embedded engine reads text only"
            )
        parts.append(np.frombuffer(chunk.encoded_text.tokens, np.int32).astype(np.int64))
    tokens = np.concatenate(parts) if parts else np.empty(0, np.int64)
    if not 1 <= len(tokens) <= context:
        raise EngineError(f"{where}: {len(tokens)} tokens; must be from 1 to the model's context of {context}")
    _check_tokens(tokens, vocabulary, f"{where}.model_input")
    wanted = ("target_tokens", *LOSSES[loss].inputs)
    given = dict(datum.loss_fn_inputs)
    for name in given:
        if name not in wanted:
            raise EngineError(f"{where}: loss_fn_inputs[{name!r}] is not supported by {loss}; it takes {wanted}")
    if "weights" in wanted and "weights" not in given:
        given["weights"] = pb.Tensor(
            dtype=pb.DTYPE_FLOAT32, dense=np.ones(len(tokens), np.float32).tobytes(), shape=[len(tokens)]
        )
    arrays: dict[str, NDArray[Any]] = {}
    for name in wanted:
        if name not in given:
            raise EngineError(f"{where}: loss_fn_inputs has no {name!r}, which {loss} needs")
        arrays[name] = _array(given[name], f"{where}.loss_fn_inputs[{name!r}]", len(tokens))
    targets = arrays.pop("target_tokens").astype(np.int64)
    _check_tokens(targets, vocabulary, f"{where}.target_tokens")
    return Example(
        tokens=tokens, targets=targets, inputs={name: array.astype(np.float32) for name, array in arrays.items()}
    )


def _array(tensor: pb.Tensor, where: str, length: int) -> NDArray[Any]:
    if tensor.HasField("sparse_csr"):
        raise EngineError(f"{where}: sparse tensors (more than one target a position) are not supported")
    kinds = {pb.DTYPE_FLOAT32: np.float32, pb.DTYPE_INT64: np.int64, pb.DTYPE_INT32: np.int32}
    if tensor.dtype not in kinds:
        raise EngineError(f"{where}: element type {tensor.dtype} is not supported")
    array = np.frombuffer(tensor.dense, kinds[tensor.dtype])
    shape = list(tensor.shape) or [len(array)]
    if shape != [length] or len(array) != length:
        raise EngineError(
            f"{where}: shape {shape}, but the datum has {length} tokens; one value a token is needed "
            "(more than one target a position is not supported)"
        )
    if array.dtype == np.float32 and not np.isfinite(array).all():
        raise EngineError(f"{where}: holds NaN or infinity at position {int(np.flatnonzero(~np.isfinite(array))[0])}")
    return array


def forward_backward_reply(result: ForwardBackwardResult) -> Reply:
    """The body of a finished forward or forward_backward request."""
    data = np.concatenate(result.logprobs).astype(np.float32)
    offsets = np.cumsum([0, *(array.nbytes for array in result.logprobs)], dtype=np.int64)
    message = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", metrics=dict(result.metrics))
    record = message.loss_fn_outputs.add(type_tag="ArrayRecord", num_datums=len(result.logprobs))
    record.fields["logprobs"].CopyFrom(
        pb.BatchedTensor(data=data.tobytes(), offsets=offsets.tobytes(), dtype=pb.DTYPE_FLOAT32)
    )
    return Reply(body=message.SerializeToString(), media_type=PROTOBUF)


def adam_settings(document: Mapping[str, Any]) -> AdamSettings:
    """Read the parameters of an optimizer step.

    Raises:
        EngineError: When they are wrong, or of another optimizer than Adam.
    """
    if document.get("optimizer_params") is not None:
        raise EngineError("optimizer_params is not supported: the embedded engine has Adam alone (adam_params)")
    adam: Mapping[str, Any] = field(document, "adam_params", dict)

    def number(name: str, default: float) -> float:
        value = float(field(adam, name, (int, float), default))
        if not 0 <= value < float("inf"):
            raise EngineError(f"adam_params.{name} {value}: must be a finite number, 0 or more")
        return value

    settings = AdamSettings(
        learning_rate=number("learning_rate", 1e-4),
        beta1=number("beta1", 0.9),
        beta2=number("beta2", 0.95),
        eps=number("eps", 1e-12),
        weight_decay=number("weight_decay", 0.0),
        grad_clip_norm=number("grad_clip_norm", 0.0),
    )
    if settings.beta1 >= 1 or settings.beta2 >= 1:
        raise EngineError("adam_params: beta1 and beta2 must be below 1")
    return settings
