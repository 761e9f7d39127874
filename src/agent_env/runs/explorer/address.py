"""What an address asks for: the parts of its query, each checked before a page uses it."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request

__all__ = ["LARGEST", "number_of", "text_of"]

LARGEST = 2**53
"""No place in anything is larger."""


def text_of(request: Request, name: str) -> str:
    """The text that the query has for `name`; empty where it has none."""
    return request.query_params.get(name, "")


def number_of(request: Request, name: str) -> int:
    """The whole number that the query has for `name`; 0 where it has none.

    Raises:
        HTTPException: When it is no number that counts something.
    """
    text = text_of(request, name) or "0"
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise HTTPException(400, f"{name} must be a whole number.")
    return int(text)
