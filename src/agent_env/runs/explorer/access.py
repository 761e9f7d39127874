"""Who may read the explorer: whoever is on this machine, or whoever has the token."""

from __future__ import annotations

import hmac
import secrets
import socket
from dataclasses import dataclass, field
from hashlib import sha256
from ipaddress import ip_address

from agent_env.errors import UsageError

__all__ = ["TOKEN_CHARS", "Access", "is_loopback", "name_of"]

TOKEN_CHARS = 16
"""A shorter token is refused."""

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may read. The default is this machine alone, without a token."""

    token: str = field(default="", repr=False)
    """What a reader must know; empty for nothing."""
    hosts: frozenset[str] = frozenset()
    """Names that the Host header may have, beside this machine's own."""
    is_public: bool = False
    """Whether other machines may ask: by any address, which no other site can have as its name."""
    _pass: list[str] = field(default_factory=list[str], repr=False)
    """A word that opens it once, in place of the token."""

    def __post_init__(self) -> None:
        """Check the token.

        Raises:
            UsageError: When it is too short, there is none and there should be, or it cannot be in an address.
        """
        if self.token and (len(self.token) < TOKEN_CHARS or not self.token.isascii() or not self.token.isprintable()):
            raise UsageError(
                f"the explorer's token has at least {TOKEN_CHARS} letters, digits and signs: make one with"
                " `python3 -c 'import secrets; print(secrets.token_urlsafe())'`"
            )
        if self.is_public and not self.token:
            raise UsageError(
                "the explorer shows every run to whoever can reach it: to let other machines in, set the environment"
                " variable AGENT_ENV_EXPLORE_TOKEN to a secret (or give --token, which others on this machine can see)"
            )

    def knows_host(self, host: str) -> bool:
        """Whether the Host header names this machine. A site of another name that points here must read nothing."""
        name = name_of(host)
        if name in _LOOPBACK or name in self.hosts:
            return True
        return self.is_public and (_is_address(name) or name in _own_names())

    def accepts(self, token: str) -> bool:
        """Whether a text is the token, or the word that opens it once."""
        if _same(token, self.token):
            return True
        if self._pass and _same(token, self._pass[0]):
            self._pass.clear()
            return True
        return False

    def accepts_cookie(self, cookie: str) -> bool:
        """Whether a text is what `cookie` returned."""
        return _same(cookie, self.cookie)

    @property
    def cookie(self) -> str:
        """What a browser keeps in place of the token: who sees it does not know the token."""
        return hmac.new(self.token.encode(), b"agent-env explorer cookie", sha256).hexdigest()

    def pass_once(self) -> str:
        """Make a word that opens it once: for the browser that is started here, whose address others can see."""
        self._pass[:] = [secrets.token_urlsafe(24)]
        return self._pass[0]


def is_loopback(host: str) -> bool:
    """Whether what listens there is reached from this machine alone."""
    if host in _LOOPBACK:
        return True
    return _is_address(host) and ip_address(host).is_loopback


def _same(one: str, other: str) -> bool:
    return bool(other) and hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _own_names() -> set[str]:
    return {socket.gethostname().lower(), socket.getfqdn().lower()}


def name_of(host: str) -> str:
    """A Host header without its port, in small letters."""
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        return name.lower() if bracket and (not port or _is_port(port)) else ""
    name, colon, port = host.rpartition(":")
    return (name if colon and _is_port(f":{port}") else host).lower().removesuffix(".")


def _is_port(text: str) -> bool:
    return text.startswith(":") and text[1:].isascii() and text[1:].isdigit()
