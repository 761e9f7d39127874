"""Running the explorer on this machine."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from agent_env.errors import UsageError
from agent_env.runs.explorer.app import build_app

__all__ = ["LOOPBACK", "serve"]

LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""The hosts it may listen on."""


def serve(folder: Path, *, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve the explorer until Ctrl-C.

    Args:
        folder: The runs folder.
        host: One of `LOOPBACK`.
        port: 0 takes a free one.
        say: Told the URL once it is listening.

    Raises:
        UsageError: When `host` is not this machine alone, or the port is in use.
        RunIndexError: When there is no run index in `folder`.
        KeyboardInterrupt: After Ctrl-C, when all is closed.
    """
    if host not in LOOPBACK:
        raise UsageError(
            f"the explorer is for this machine alone: --host is one of {', '.join(LOOPBACK)}, not {host}."
            f" From another machine: ssh -L {port}:localhost:{port} <this machine>"
        )
    app = build_app(folder)
    with _listening(host, port) as listener:
        address = f"[{host}]" if ":" in host else host
        say(f"http://{address}:{listener.getsockname()[1]}/")
        config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", server_header=False)
        uvicorn.Server(config).run(sockets=[listener])


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as exc:
        listener.close()
        if exc.errno == errno.EADDRINUSE:
            raise UsageError(f"port {port} is in use: stop what uses it, or choose another with --port") from exc
        raise UsageError(f"cannot listen on {host}, port {port} ({exc.strerror}): choose another with --port") from exc
    return listener
