"""The routes of the Tinker protocol.

Starlette on uvicorn, which the explorer uses too. Measured with 128 requests under way, aiohttp's C parser saved
0.07 ms a request of the 0.6 ms that a request takes in all; it is not worth a second web stack.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError  # pyright: ignore[reportMissingModuleSource]
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tinker.proto import tinker_public_pb2 as pb

from agent_env.engine.architecture import load_architecture, load_tensors
from agent_env.engine.checkpoints import CheckpointStore
from agent_env.engine.compute import Compute
from agent_env.engine.futures import Future, Reply
from agent_env.engine.listings import listing_routes
from agent_env.engine.options import EngineOptions
from agent_env.engine.runs import BaseModel
from agent_env.engine.sample_requests import BusyError
from agent_env.engine.service import Service
from agent_env.engine.sessions import GoneError
from agent_env.engine.tokenizer import token_bytes
from agent_env.errors import EngineError

__all__ = ["make_app"]

logger = logging.getLogger(__name__)

LONG_POLL_S = 25.0
"""Below the client's own limit of 45 s."""
EVICT_EVERY_S = 5.0

CLIENT_CONFIG = {
    "pjwt_auth_enabled": False,
    # With httpx's own transport a client with 128 requests under way spends 4.8 ms of CPU on each; with this, 0.4 ms.
    "use_pyqwest_transport": True,
    "sample_use_retrieve_futures": False,
    "custom_loss_server_side": False,
    "sample_join_sampling_session": False,
    "proto_compress_fwdbwd": False,
}


def make_app(model_dir: Path, state_dir: Path, options: EngineOptions, started: Callable[[], None]) -> Starlette:
    """The engine as an ASGI application.

    Args:
        model_dir: What it serves.
        state_dir: Where checkpoints are.
        options: How it runs.
        started: Called once it can answer.

    Raises:
        EngineError: When the model cannot be served.
    """
    architecture = load_architecture(model_dir)
    base = BaseModel(str(model_dir), architecture, dict(load_tensors(model_dir, architecture)), options.training)
    table = token_bytes(model_dir)
    compute = Compute(architecture, base.rope, table, options)
    store = CheckpointStore(state_dir)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        app.state.service = Service(base, store, compute, options, stop_strings=table is not None)
        compute.start()
        async with asyncio.TaskGroup() as tasks:
            evicting = tasks.create_task(_evict(app.state.service))
            started()
            yield
            evicting.cancel()
        compute.stop()

    app = Starlette(routes=_routes(), lifespan=lifespan)
    app.state.options = options
    return app


async def _evict(service: Service) -> None:
    while True:
        await asyncio.sleep(EVICT_EVERY_S)
        service.evict()
        try:
            await asyncio.to_thread(service.store.delete_expired)
        except (OSError, EngineError):
            # One that another request has deleted meanwhile, or a full disk: it is tried again.
            logger.exception("expired checkpoints could not be deleted")


async def _finish(request: Request) -> Reply:
    _document(await _body(request))  # why it is done; nothing is made of it
    return Reply.json(request.app.state.service.finish(request.path_params["session_id"]))


def _routes() -> list[Route]:
    def post(path: str, handler: Callable[[Service, Mapping[str, Any]], Mapping[str, Any]]) -> Route:
        async def answer(request: Request) -> Reply:
            return Reply.json(handler(request.app.state.service, _document(await _body(request))))

        return Route(f"/api/v1/{path}", _guarded(answer), methods=["POST"])

    return [
        # The two that a rollout calls come first: routes are tried in order.
        post("asample", lambda service, document: service.samples.sample(document)),
        Route("/api/v1/retrieve_future", _guarded(_retrieve), methods=["POST"]),
        Route("/api/v1/forward_backward", _guarded(_forward_backward), methods=["POST"]),
        post("optim_step", lambda service, document: service.runs.optim_step(document)),
        post("save_weights_for_sampler", lambda service, document: service.runs.save_weights_for_sampler(document)),
        post("save_weights", lambda service, document: service.runs.save_weights(document)),
        post("load_weights", lambda service, document: service.runs.load_weights(document)),
        post("create_model", lambda service, document: service.runs.create_model(document)),
        post("get_info", lambda service, document: service.runs.get_info(document)),
        post("client/config", lambda _service, _document: CLIENT_CONFIG),
        post("client/dynamic_config", lambda _service, _document: {"sample_cancel_enabled": True}),
        post("create_session", lambda service, _document: service.create_session()),
        post("session_heartbeat", Service.heartbeat),
        Route("/api/v1/sessions/{session_id}/finish", _guarded(_finish), methods=["POST"]),
        post("create_sampling_session", lambda service, document: service.samples.create(document)),
        post("cancel_future", lambda service, document: service.samples.cancel(document)),
        post("telemetry", lambda _service, _document: {"status": "accepted"}),
        *listing_routes(_guarded, _body),
        Route("/{path:path}", _guarded(_unknown), methods=["GET", "POST", "PUT", "DELETE", "PATCH"]),
    ]


async def _forward_backward(request: Request) -> Reply:
    body = await _body(request)
    if "protobuf" not in request.headers.get("content-type", "") or request.headers.get("content-encoding"):
        raise EngineError("forward_backward: send plain protobuf, as the tinker SDK 0.38 does")
    try:
        message = pb.ForwardBackwardRequest.FromString(body)
    except DecodeError as exc:
        raise EngineError(f"forward_backward: the body is not a ForwardBackwardRequest: {exc}") from exc
    service: Service = request.app.state.service
    return Reply.json(service.runs.forward_backward(message))


async def _retrieve(request: Request) -> Response:
    service: Service = request.app.state.service
    try:
        found = service.future(_document(await _body(request)))
    except GoneError as exc:
        # The SDK takes 410 for a lost answer and repeats a sample request.
        return _response(Reply.json({"detail": str(exc)}), 410)
    reply = await found.wait(LONG_POLL_S) if isinstance(found, Future) else found
    if reply is None:
        return _response(Reply.json({"queue_state": "active"}), 408)
    return _response(reply)


async def _unknown(request: Request) -> Reply:
    raise GoneError(f"{request.method} {request.url.path} is not supported by the embedded engine")


def _guarded(answer: Callable[[Request], Awaitable[Reply | Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Turn errors into answers that the SDK raises with their message and does not repeat."""

    async def guarded(request: Request) -> Response:
        try:
            reply = await answer(request)
        except EngineError as exc:
            status = next((status for kind, status in STATUSES.items() if isinstance(exc, kind)), 400)
            return _response(Reply.json({"detail": str(exc)}), status)
        return reply if isinstance(reply, Response) else _response(reply)

    return guarded


class _TooLargeError(EngineError):
    pass


STATUSES: Mapping[type[EngineError], int] = {GoneError: 404, _TooLargeError: 413, BusyError: 429}


async def _body(request: Request) -> bytes:
    """The body, up to the limit."""
    options: EngineOptions = request.app.state.options
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > options.max_body_bytes:
            raise _TooLargeError(f"the request is larger than {options.max_body_bytes} bytes; send fewer data at once")
        parts.append(part)
    return b"".join(parts)


def _document(body: bytes) -> Mapping[str, Any]:
    try:
        document = json.loads(body or b"{}")
    except ValueError as exc:
        raise EngineError(f"the request is not JSON: {exc}") from exc
    if not isinstance(document, dict):
        raise EngineError("the request is not a JSON object")
    return document


def _response(reply: Reply, status: int = 200) -> Response:
    return Response(reply.body, status_code=status, media_type=reply.media_type)
