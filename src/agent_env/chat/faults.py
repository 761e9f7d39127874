"""What may go wrong between a question and its answer, as one line that says what to do."""

from __future__ import annotations

import json
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, cast

from agent_env.bundle import ModelSpec
from agent_env.chat._text import printable_line

__all__ = ["ChatFaultError", "status_fault", "timeout_fault", "unreachable_fault"]

_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|context (size|window|length) (limit )?(is |was )?exceeded"
    r"|exceeds? the (available|maximum|model's|model) context|(longer|larger) than the (maximum )?(model|context)|prompt is too long",
    re.IGNORECASE,
)
_FILTER = re.compile(r"content_filter|content_policy_violation", re.IGNORECASE)


class ChatFaultError(Exception):
    """What is wrong, without where: `Chat.complete` says whose endpoint it was."""

    def __init__(self, what: str, *, is_overflow: bool = False, wants_newer_limit: bool = False) -> None:
        super().__init__(what)
        self.is_overflow = is_overflow
        self.wants_newer_limit = wants_newer_limit
        """The model takes `max_completion_tokens` and not `max_tokens`."""


def timeout_fault(spec: ModelSpec, *, tries: int) -> ChatFaultError:
    """Say that no answer came in time."""
    return ChatFaultError(f"no answer within {spec.timeout_s:g} s{_often(tries)}: is timeout_s enough for it?")


def unreachable_fault(exc: BaseException, *, tries: int) -> ChatFaultError:
    """Say why no answer came, from what was raised on the way."""
    often = _often(tries)
    for cause in _causes(exc):
        match cause:
            case ConnectionRefusedError():
                return ChatFaultError(f"the connection is refused{often}: is the server running, on this port?")
            case socket.gaierror():
                return ChatFaultError(f"the host's name is not known{often}: is base_url right, and the network there?")
            case ssl.SSLCertVerificationError():
                return ChatFaultError(f"the certificate is not trusted ({printable_line(cause.verify_message, 100)})")
            case ssl.SSLError():
                return ChatFaultError(
                    f"no TLS connection can be made{often} ({printable_line(str(cause), 100)}): http or https?"
                )
            case OSError() if cause.strerror:
                return ChatFaultError(f"{cause.strerror.lower()}{often}")
            case _:
                pass
    return ChatFaultError(f"the connection broke{often}: {printable_line(_last(exc), 200)}")


def _last(exc: BaseException) -> str:
    """What the innermost exception with a message says."""
    said = [f"{type(cause).__name__}: {cause}" for cause in _causes(exc) if str(cause)]
    return said[-1] if said else type(exc).__name__


def _causes(exc: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while exc is not None and id(exc) not in seen:
        seen.add(id(exc))
        yield exc
        if isinstance(exc, BaseExceptionGroup):
            for inner in cast("BaseExceptionGroup[BaseException]", exc).exceptions:
                yield from _causes(inner)
        exc = exc.__cause__ or exc.__context__


def status_fault(status: int, body: str, spec: ModelSpec, *, tries: int) -> ChatFaultError:
    """Say what an answer with an HTTP status of 300 and more means.

    Args:
        status: The status.
        body: The body, as text.
        spec: Who was asked.
        tries: How often.
    """
    said, code = _said(body)
    quoted = f": {said}" if said else ""
    if status < 500 and _OVERFLOW.search(f"{code} {said}"):
        return ChatFaultError(
            f"the conversation does not fit the model's context (HTTP {status}){quoted}", is_overflow=True
        )
    if status < 500 and _FILTER.search(f"{code} {said}"):
        return ChatFaultError(f"the endpoint's content filter refuses the conversation (HTTP {status}){quoted}")
    key = f"the key in {spec.api_key_env}" if spec.api_key_env else None
    match status:
        case 401:
            what = f"{key} is refused" if key else "it wants a key: name the variable that holds it (api_key_env)"
        case 403:
            what = (
                f"{key} may not use this model"
                if key
                else "it wants a key: name the variable that holds it (api_key_env)"
            )
        case 404:
            what = "there is no such model, or no such path: does base_url end with its /v1?"
        case 429:
            what = f"too many requests, or the quota is used up{_often(tries)}"
        case status if status >= 500:
            what = f"the server failed{_often(tries)}"
        case status if status < 400:
            what = "it sends somewhere else"
        case _:
            what = "it refuses the request"
    return ChatFaultError(
        f"{what} (HTTP {status}){quoted}", wants_newer_limit=status == 400 and "max_completion_tokens" in said
    )


def _often(tries: int) -> str:
    return f", {tries} times in a row" if tries > 1 else ""


def _said(body: str) -> tuple[str, str]:
    """Return what an error's body says, in one line, and its code; of a page of HTML the text."""
    try:
        data: object = json.loads(body)
    except (ValueError, RecursionError):
        return printable_line(re.sub(r"<(style|script).*?</\1>|<[^>]*>", " ", body[:5000], flags=re.DOTALL)), ""
    error = cast("Mapping[str, Any]", data).get("error", data) if isinstance(data, dict) else data
    if not isinstance(error, dict):
        return printable_line(error if isinstance(error, str) else json.dumps(error)), ""
    fields = cast("dict[str, Any]", error)
    message: object = fields.get("message") or fields.get("detail") or fields
    text = message if isinstance(message, str) else json.dumps(message)
    return printable_line(text), f"{fields.get('code')} {fields.get('type')}"
