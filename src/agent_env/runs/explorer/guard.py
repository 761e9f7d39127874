"""What every request and answer passes: who asks, from where, for what, and the headers that keep a page to itself."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_env.runs.explorer.access import Access, is_loopback, name_of
from agent_env.runs.explorer.render import as_html

__all__ = ["Guard"]

_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_TARGET_CHARS = 8_000
_PATH_CHARS = 4_000
"""Python reads no number of more than 4,300 digits."""
_HEADERS_BYTES = 16_000


class Guard:
    """Lets those read who may, and nobody else.

    A page of another site can make a browser ask this server, and with a name that it points at this machine (DNS
    rebinding) read the answer: so the Host header must name this machine, and what another site asks for is refused, but for
    a link that someone follows.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        if scope["type"] != "http":
            return
        headers = dict(_HEADERS)
        if scope.get("scheme") == "https" or is_loopback(name_of(Headers(scope=scope).get("host", ""))):
            headers["cross-origin-opener-policy"] = "same-origin"  # elsewhere browsers complain of it
        await self._answering(scope)(scope, receive, _with_headers(send, headers))

    def _answering(self, scope: Scope) -> ASGIApp:
        headers = Headers(scope=scope)
        if not self._access.knows_host(headers.get("host", "")):
            return PlainTextResponse("The explorer is not called by this name: see --allow-host.\n", status_code=403)
        if scope["method"] not in {"GET", "HEAD"}:
            return PlainTextResponse("The explorer is read-only.\n", status_code=405, headers={"allow": "GET, HEAD"})
        if (
            len(scope["path"]) > _PATH_CHARS
            or len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"") > _TARGET_CHARS
        ):
            return PlainTextResponse("The address is too long.\n", status_code=414)
        if sum(len(name) + len(value) for name, value in scope["headers"]) > _HEADERS_BYTES:
            return PlainTextResponse("The headers are too long.\n", status_code=431)
        if not _is_asked_from_here(headers, scope["path"]):
            return PlainTextResponse("Another site may not ask the explorer.\n", status_code=403)
        return self._app if not self._access.token else self._with_token(scope, headers)

    def _with_token(self, scope: Scope, headers: Headers) -> ASGIApp:
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if given:
            rest = [(name, value) for name, value in query if name != "token"]
            return (
                self._sign_in(scope, rest) if self._access.accepts(given[-1]) else _refused(scope, rest, is_wrong=True)
            )
        scheme, _, word = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._access.accepts(word.strip()):
            return self._app
        # Not `SimpleCookie`: it reads nothing after a cookie that it does not like, and every port of a machine shares them.
        cookie = cookie_parser(headers.get("cookie", "")).get(_cookie_name(scope), "")
        # What the pages look like is no secret: the sign-in page needs it.
        if self._access.accepts_cookie(cookie) or scope["path"].startswith("/static/"):
            return self._app
        return _refused(scope, query, is_wrong=False)

    def _sign_in(self, scope: Scope, rest: list[tuple[str, str]]) -> Response:
        """Keep the token's stead in a cookie, and go on to the address without it."""
        answer = RedirectResponse(_address(scope, rest), status_code=303)
        answer.set_cookie(
            _cookie_name(scope),
            self._access.cookie,
            httponly=True,
            samesite="strict",
            secure=scope.get("scheme") == "https",
        )
        return answer


def _is_asked_from_here(headers: Headers, path: str) -> bool:
    origin = headers.get("origin")
    if origin is not None:
        scheme, _, host = origin.lower().partition("://")
        if scheme not in {"http", "https"} or host != headers.get("host", "").lower():
            return False
    if headers.get("sec-fetch-site", "none") in {"same-origin", "none"}:
        return True
    is_followed = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    return is_followed and path != "/live"


def _refused(scope: Scope, query: list[tuple[str, str]], *, is_wrong: bool) -> Response:
    if scope["path"].endswith(".json") or scope["path"] == "/live":
        return PlainTextResponse("The explorer's token is needed: Authorization: Bearer TOKEN.\n", status_code=401)
    # A link from another site comes without the cookie, which the same address asked for from here comes with.
    page = as_html("sign_in.html", address=_address(scope, query), query=query, path=_path(scope), is_wrong=is_wrong)
    return Response(page.encode(), status_code=401, media_type="text/html")


def _address(scope: Scope, query: list[tuple[str, str]]) -> str:
    return f"{_path(scope)}?{urlencode(query)}" if query else _path(scope)


def _path(scope: Scope) -> str:
    """The path as it was asked for. One that starts with two slashes would be an address of another site."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return "/" + raw.decode("latin-1").partition("?")[0].lstrip("/\\")


def _cookie_name(scope: Scope) -> str:
    # Cookies do not tell ports apart: each explorer on a machine has its own.
    server = scope.get("server")
    return f"agent_env_explorer_{server[1] if server else 0}"


def _with_headers(send: Send, added: Mapping[str, str]) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            _add(message, added)
        await send(message)

    return sending


def _add(message: MutableMapping[str, Any], added: Mapping[str, str]) -> None:
    headers = MutableHeaders(raw=list(message.get("headers", [])))
    for name, value in added.items():
        headers[name] = value
    headers.setdefault("cache-control", "no-store")
    message["headers"] = headers.raw
