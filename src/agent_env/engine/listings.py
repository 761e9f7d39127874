"""The routes that list and delete: training runs, checkpoints, samplers, what the server can do."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agent_env.engine.checkpoints import Checkpoint, CheckpointKind, CheckpointUri, RunRecord
from agent_env.engine.futures import Reply
from agent_env.engine.run_requests import lora_fields
from agent_env.engine.service import Service
from agent_env.engine.sessions import GoneError
from agent_env.errors import EngineError

__all__ = ["listing_routes"]

Answer = Callable[[Request], Awaitable[Reply | Response]]
MAX_PAGE = 1000


def listing_routes(
    guarded: Callable[[Answer], Callable[[Request], Awaitable[Response]]],
    body: Callable[[Request], Awaitable[bytes]],
) -> list[Route]:
    """The routes.

    Args:
        guarded: Turns errors into answers.
        body: Reads a request's body.
    """

    def get(path: str, handler: Callable[[Service, Request], Mapping[str, Any]]) -> Route:
        async def answer(request: Request) -> Reply:
            return Reply.json(handler(request.app.state.service, request))

        return Route(f"/api/v1/{path}", guarded(answer), methods=["GET"])

    async def weights_info(request: Request) -> Reply:
        service: Service = request.app.state.service
        document: Any = json.loads(await body(request) or b"{}")
        uri = CheckpointUri.parse(str(document.get("tinker_path")))
        service.store.saved_at(uri)
        record = _record(service, uri.run_id)
        lora = record.lora
        trained = {name: lora[name] for name in ("train_unembed", "train_mlp", "train_attn")}
        fields = lora_fields(record)
        return Reply.json({"base_model": record.base_model, **fields, **(trained if fields["is_lora"] else {})})

    async def delete(request: Request) -> Response:
        service: Service = request.app.state.service
        parts = request.path_params
        uri = CheckpointUri.parse(f"tinker://{parts['run_id']}/{parts['kind']}/{parts['name']}")
        service.store.delete(uri)
        return Response(status_code=204)

    return [
        get("get_server_capabilities", lambda service, _request: service.capabilities()),
        get("healthz", lambda _service, _request: {"status": "ok"}),
        get("training_runs", _runs),
        get("training_runs/{run_id}", _one_run),
        get("training_runs/{run_id}/checkpoints", _run_checkpoints),
        Route("/api/v1/training_runs/{run_id}/checkpoints/{kind}/{name}", guarded(delete), methods=["DELETE"]),
        get("checkpoints", _all_checkpoints),
        get("samplers/{sampler_id}", lambda service, request: service.samples.info(request.path_params["sampler_id"])),
        Route("/api/v1/weights_info", guarded(weights_info), methods=["POST"]),
    ]


def _record(service: Service, run_id: str) -> RunRecord:
    record = service.store.run(run_id)
    if record is None:
        raise GoneError(f"this engine knows no training run {run_id!r}; is this its state directory?")
    return record


def _page(request: Request) -> tuple[int, int]:
    try:
        limit, offset = int(request.query_params.get("limit", 100)), int(request.query_params.get("offset", 0))
    except ValueError as exc:
        raise EngineError(f"limit and offset must be whole numbers: {exc}") from exc
    if not 1 <= limit <= MAX_PAGE or offset < 0:
        raise EngineError(f"limit must be from 1 to {MAX_PAGE}, offset 0 or more")
    return limit, offset


def _runs(service: Service, request: Request) -> dict[str, Any]:
    limit, offset = _page(request)
    records = service.store.runs()
    return {
        "training_runs": [_run(service, record) for record in records[offset : offset + limit]],
        "cursor": {"offset": offset, "limit": limit, "total_count": len(records)},
    }


def _one_run(service: Service, request: Request) -> dict[str, Any]:
    return _run(service, _record(service, request.path_params["run_id"]))


def _run(service: Service, record: RunRecord) -> dict[str, Any]:
    checkpoints = service.store.checkpoints(record.run_id)

    def last(kind: CheckpointKind) -> dict[str, Any] | None:
        return next((_checkpoint(checkpoint) for checkpoint in checkpoints if checkpoint.uri.kind is kind), None)

    return {
        "training_run_id": record.run_id,
        "base_model": record.base_model,
        "model_owner": "local",
        "last_request_time": _time(max([record.started, *(checkpoint.time for checkpoint in checkpoints)])),
        "last_checkpoint": last(CheckpointKind.TRAINING),
        "last_sampler_checkpoint": last(CheckpointKind.SAMPLER),
        "user_metadata": dict(record.user_metadata),
        **lora_fields(record),
    }


def _run_checkpoints(service: Service, request: Request) -> dict[str, Any]:
    record = _record(service, request.path_params["run_id"])
    return {"checkpoints": [_checkpoint(checkpoint) for checkpoint in service.store.checkpoints(record.run_id)]}


def _all_checkpoints(service: Service, request: Request) -> dict[str, Any]:
    limit, offset = _page(request)
    checkpoints = service.store.checkpoints()
    return {
        "checkpoints": [_checkpoint(checkpoint) for checkpoint in checkpoints[offset : offset + limit]],
        "cursor": {"offset": offset, "limit": limit, "total_count": len(checkpoints)},
    }


def _checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    kinds = {CheckpointKind.TRAINING: "training", CheckpointKind.SAMPLER: "sampler"}
    return {
        "checkpoint_id": f"{checkpoint.uri.kind}/{checkpoint.uri.name}",
        "checkpoint_type": kinds[checkpoint.uri.kind],
        "time": _time(checkpoint.time),
        "tinker_path": str(checkpoint.uri),
        "size_bytes": checkpoint.size_bytes,
        "user_metadata": dict(checkpoint.user_metadata),
        "expires_at": None if checkpoint.expires is None else _time(checkpoint.expires),
    }


def _time(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).isoformat()
