"""What a tool returned, as text that any model and any store can hold."""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

__all__ = ["MAX_TEXT_CHARS", "clean_text", "result_text"]

MAX_TEXT_CHARS = 100_000
"""The longest answer, in characters; a longer one has its middle cut out, and says so."""

_NOT_TEXT = re.compile("[\x00\ud800-\udfff]")


def result_text(value: Any) -> str:
    """Return a tool's result as text.

    Text stays as it is, None is `ok`, everything else is compact JSON; in it `null` stands for a number that is not
    finite, and a line below says so.

    Raises:
        TypeError: When it is something that has no JSON form.
    """
    if isinstance(value, str):
        return clean_text(value)
    if value is None:
        return "ok"
    if isinstance(value, (bytes, bytearray)):
        return clean_text(bytes(value).decode("utf-8", "replace"))
    return clean_text(_json(value))


def _json(value: Any) -> str:
    try:
        text = to_json(value, inf_nan_mode="null", bytes_mode="base64").decode()
        exact = to_json(value, inf_nan_mode="constants", bytes_mode="base64").decode() if "null" in text else text
    except UnicodeEncodeError:  # half of a surrogate pair in a string
        text = exact = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    except (PydanticSerializationError, ValueError) as exc:
        if "surrogate" in str(exc):
            text = exact = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
        else:
            raise TypeError(f"the tool's result, a {type(value).__name__}, has no JSON form: {exc}") from exc
    return text if text == exact else f"{text}\n(null stands for a number that is not finite)"


def clean_text(text: str) -> str:
    """Return `text` with nothing in it that is no Unicode text, and at most `MAX_TEXT_CHARS` long."""
    if len(text) > MAX_TEXT_CHARS:
        half = (MAX_TEXT_CHARS - 100) // 2
        left_out = len(text) - 2 * half
        text = f"{text[:half]}\n[... {left_out:,} characters left out ...]\n{text[-half:]}"
    if text.isascii() and "\0" not in text:
        return text
    return _NOT_TEXT.sub("\N{REPLACEMENT CHARACTER}", text)
