"""Running the explorer: on this machine alone, or for whoever has the token."""

from __future__ import annotations

import asyncio
import errno
import gc
import socket
import threading
import webbrowser
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from agent_env.errors import UsageError
from agent_env.runs._schema import FILE_NAME
from agent_env.runs.explorer.access import Access, is_loopback
from agent_env.runs.explorer.app import build_app
from agent_env.runs.explorer.live import Live

__all__ = ["Server", "serve"]

_HEAD_BYTES = 16 << 10
"""The request line and the headers of one request."""
_CONNECTIONS = 256
_GRACE_S = 2
_ASKING_S = 10.0
"""How long the head of a request may take: who sends none would hold one of the connections for ever."""


class _Prompt(H11Protocol):
    """HTTP/1.1, also the bounds of headers that the other implementation has not; hangs up on who is slow to ask."""

    _giving_up: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request, not for long."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        super().connection_lost(exc)
        if self._giving_up is not None:
            self._giving_up.cancel()

    def _wait(self) -> None:
        is_asking = not self.cycle or self.cycle.response_complete  # none before the first request
        if is_asking and self._giving_up is None:
            self._giving_up = self.loop.call_later(_ASKING_S, self.transport.close)
        elif not is_asking and self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None


class Server(uvicorn.Server):
    """Ends open streams when it is told to stop: it would wait for them otherwise."""

    def __init__(self, folder: Path, access: Access | None = None, live: Live | None = None) -> None:
        """Make the server of the runs in `folder`.

        Args:
            folder: The runs folder.
            access: Who may read; None for this machine alone.
            live: What tells pages of changes; None makes one.

        Raises:
            RunIndexError: When there is no run index in it, or it cannot be read.
        """
        self._live = live or Live(folder / FILE_NAME)
        app = build_app(folder, access=access, live=self._live)
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,  # an address may have the token in it
                lifespan="off",
                server_header=False,
                http=_Prompt,
                ws="none",
                h11_max_incomplete_event_size=_HEAD_BYTES,
                limit_concurrency=_CONNECTIONS,
                timeout_graceful_shutdown=_GRACE_S,
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, and end what is under way."""
        self._live.stop()
        await super().shutdown(sockets)


def serve(
    folder: Path,
    *,
    host: str,
    port: int,
    say: Callable[[str], None],
    token: str = "",
    allow_hosts: Iterable[str] = (),
    opens_browser: bool = False,
) -> None:
    """Serve the explorer until Ctrl-C.

    Args:
        folder: The runs folder.
        host: Where to listen: an address or a name of this machine. Any but loopback needs a token.
        port: 0 takes a free one.
        say: Told the URL once it is listening.
        token: What a reader must know; empty for nothing.
        allow_hosts: Names that browsers call it by, beside addresses and this machine's own name: a proxy's.
        opens_browser: Open it in this machine's browser.

    Raises:
        UsageError: When others could read without a token, when the token is too short, when there is no listening
            there, or the port is in use.
        RunIndexError: When there is no run index in `folder`, or it cannot be read.
        KeyboardInterrupt: After Ctrl-C, when all is closed.
    """
    hosts = frozenset(name.lower() for name in allow_hosts)
    access = Access(token=token, hosts=hosts, is_public=not is_loopback(host))
    server = Server(folder, access)
    with _listening(host, port) as listener, _seldom_collected():
        url = _url(host, listener.getsockname()[1])
        say(url)
        if opens_browser:
            word = f"?token={access.pass_once()}" if token else ""
            threading.Thread(target=webbrowser.open, args=(f"{url}{word}",), daemon=True).start()
        server.run(sockets=[listener])


@contextmanager
def _seldom_collected() -> Generator[None]:
    """Have the garbage collector go through everything seldom: what pages remember is much, and is no garbage."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _url(host: str, port: int) -> str:
    if host in {"0.0.0.0", "::"}:
        host = socket.gethostname()
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
    except (OSError, UnicodeError) as exc:
        raise UsageError(f"--host: this machine does not know {host}: write an address, such as 127.0.0.1") from exc
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as exc:
        listener.close()
        if exc.errno == errno.EADDRINUSE:
            raise UsageError(f"port {port} is in use: stop what uses it, or choose another with --port") from exc
        raise UsageError(f"cannot listen on {host}, port {port} ({exc.strerror}): choose another with --port") from exc
    return listener
