"""The process that answers: where it listens, and that it is the only one on its state directory.

What can be wrong with the call is found out before torch is imported.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

import uvicorn

from agent_env._locking import HeldError, hold
from agent_env.engine.options import EngineOptions
from agent_env.errors import EngineError

__all__ = ["run_server"]


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
    if not (model_dir / "config.json").exists():
        raise EngineError(
            f"{model_dir / 'config.json'}: not there; give a model's directory (agent_env.engine.build_model makes one)"
        )
    with _listen(address, port) as listener, _only_engine(state_dir):
        # What can be wrong with the call has been said; importing torch takes longer than that.
        from agent_env.engine.app import make_app

        app = make_app(model_dir, state_dir, options, lambda: ready(listener.getsockname()[1]))
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
    try:
        file = hold(state_dir / "lock")
    except OSError as exc:
        raise EngineError(f"{state_dir}: {exc.strerror}: choose a state directory that can be written") from exc
    except HeldError:
        raise EngineError(f"{state_dir}: another engine uses this state directory; give another one") from None
    with file:
        yield
