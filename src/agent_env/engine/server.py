"""The routes of the Tinker protocol, and the process that answers them.

Starlette on uvicorn, which the explorer uses too. Measured with 128 requests under way, aiohttp's C parser saved
0.07 ms a request of the 0.6 ms that a request takes in all; it is not worth a second web stack.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tinker.proto import tinker_public_pb2 as pb

from agent_env.engine.architecture import load_architecture, load_tensors
from agent_env.engine.checkpoints import CheckpointKind, CheckpointStore
from agent_env.engine.compute import Compute
from agent_env.engine.futures import Future, Reply
from agent_env.engine.listings import listing_routes
from agent_env.engine.options import EngineOptions
from agent_env.engine.protocol import field as read
from agent_env.engine.runs import BaseModel
from agent_env.engine.service import GoneError, Service
from agent_env.engine.tokenizer import token_bytes
from agent_env.errors import EngineError

__all__ = ["run_server"]

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

Handler = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def run_server(
    model_dir: Path,
    *,
    state_dir: Path,
    host: str,
    port: int,
    options: EngineOptions,
    ready: Callable[[int], None],
) -> None:
    """Answer until the process is told to end.

    Raises:
        EngineError: When the model cannot be served, the address is not this machine's own, the port is taken, or
            another engine uses the state directory.
    """
    address = _loopback(host)
    with _listen(address, port) as listener, _only_engine(state_dir):
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
                ready(listener.getsockname()[1])
                yield
                evicting.cancel()
            compute.stop()

        app = Starlette(routes=_routes(options), lifespan=lifespan)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, ws="none", timeout_graceful_shutdown=1, backlog=2048
        )
        uvicorn.Server(config).run(sockets=[listener])


def _loopback(host: str) -> str:
    """The address to bind.

    Raises:
        EngineError: When it is not one of this machine's own.
    """
    try:
        address = ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError as exc:
        raise EngineError(f"host {host!r}: write 127.0.0.1, ::1 or localhost") from exc
    if not address.is_loopback:
        raise EngineError(
            f"host {host!r}: the embedded engine has no access control, so it listens on this machine alone "
            "(127.0.0.1, ::1 or localhost)"
        )
    return str(address)


@contextmanager
def _listen(address: str, port: int) -> Generator[socket.socket]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        # A port whose last owner has just ended can be used again at once; a port in use cannot.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
            listener.listen(2048)
        except OSError as exc:
            raise EngineError(
                f"{address}:{port} cannot be listened on ({exc.strerror}); give another --port, or 0 for any free one"
            ) from exc
        yield listener


@contextmanager
def _only_engine(state_dir: Path) -> Generator[None]:
    """Hold the state directory's lock; the system gives it back when the process ends, however it ends."""
    state_dir.mkdir(parents=True, exist_ok=True)
    with (state_dir / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EngineError(f"{state_dir}: another engine uses this state directory; give another one") from None
        yield


async def _evict(service: Service) -> None:
    while True:
        await asyncio.sleep(EVICT_EVERY_S)
        service.evict()
        await asyncio.to_thread(service.store.delete_expired)


def _routes(options: EngineOptions) -> list[Route]:
    def post(path: str, handler: Callable[[Service, Mapping[str, Any]], Mapping[str, Any]]) -> Route:
        async def answer(request: Request) -> Reply:
            return Reply.json(handler(request.app.state.service, _document(await _body(request, options))))

        return Route(f"/api/v1/{path}", _guarded(answer), methods=["POST"])

    async def forward_backward(request: Request) -> Reply:
        body = await _body(request, options)
        if "protobuf" not in request.headers.get("content-type", ""):
            raise EngineError("forward_backward: send protobuf (tinker SDK 0.38 does)")
        if request.headers.get("content-encoding"):
            raise EngineError("forward_backward: a compressed body is not supported")
        service: Service = request.app.state.service
        return Reply.json(service.forward_backward(pb.ForwardBackwardRequest.FromString(body)))

    async def retrieve(request: Request) -> Response:
        document = _document(await _body(request, options))
        service: Service = request.app.state.service
        try:
            found = service.future(read(document, "request_id", str))
        except GoneError as exc:
            # The SDK takes 410 for a lost answer and repeats a sample request.
            return _response(Reply.json({"detail": str(exc)}), 410)
        reply = await found.wait(LONG_POLL_S) if isinstance(found, Future) else found
        if reply is None:
            return _response(Reply.json({"queue_state": "active"}), 408)
        return _response(reply)

    def save_for_sampler(service: Service, document: Mapping[str, Any]) -> Mapping[str, Any]:
        if document.get("path") is None:
            return service.save_snapshot(document)
        return service.save_weights(document, CheckpointKind.SAMPLER)

    return [
        post("asample", Service.sample),
        Route("/api/v1/retrieve_future", _guarded(retrieve), methods=["POST"]),
        Route("/api/v1/forward_backward", _guarded(forward_backward), methods=["POST"]),
        post("optim_step", Service.optim_step),
        post("save_weights_for_sampler", save_for_sampler),
        post("save_weights", lambda service, document: service.save_weights(document, CheckpointKind.TRAINING)),
        post("load_weights", Service.load_weights),
        post("create_model", Service.create_model),
        post("get_info", Service.get_info),
        post("client/config", lambda _service, _document: CLIENT_CONFIG),
        post("client/dynamic_config", lambda _service, _document: {"sample_cancel_enabled": True}),
        post("create_session", lambda service, _document: service.create_session()),
        post("session_heartbeat", Service.heartbeat),
        post("create_sampling_session", Service.create_sampler),
        post("cancel_future", Service.cancel),
        post("telemetry", lambda _service, _document: {"status": "accepted"}),
        *listing_routes(_guarded, lambda request: _body(request, options)),
        Route("/{path:path}", _guarded(_unknown), methods=["GET", "POST", "PUT", "DELETE", "PATCH"]),
    ]


async def _unknown(request: Request) -> Reply:
    raise GoneError(f"{request.method} {request.url.path} is not supported by the embedded engine")


def _guarded(answer: Callable[[Request], Awaitable[Reply | Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Turn errors into answers that the SDK raises with their message and does not repeat."""

    async def guarded(request: Request) -> Response:
        try:
            reply = await answer(request)
        except GoneError as exc:
            return _response(Reply.json({"detail": str(exc)}), 404)
        except _TooLargeError as exc:
            return _response(Reply.json({"detail": str(exc)}), 413)
        except EngineError as exc:
            return _response(Reply.json({"detail": str(exc)}), 400)
        return reply if isinstance(reply, Response) else _response(reply)

    return guarded


class _TooLargeError(EngineError):
    pass


async def _body(request: Request, options: EngineOptions) -> bytes:
    """The body, up to the limit."""
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
