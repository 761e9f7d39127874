"""What a tool of an MCP server answered, as an episode takes it.

Text is what a model reads: of the answer's texts, of text in embedded resources, and a placeholder where there is
something else. Images, sound and files go into `content`, as does structured content, as a part of the type `structured`;
it is the text, too, when there is no other.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Iterator, Mapping
from typing import Any

from mcp_types import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from pydantic_core import from_json, to_json

from agent_env.envs.contract import ToolAnswer
from agent_env.envs.json_schema import whole_numbers
from agent_env.envs.parameter_check import Work, check_of
from agent_env.envs.result_text import clean_text, result_text

__all__ = ["BadAnswerError", "answer_of"]

_SHOWN_CHARS = 200


class BadAnswerError(Exception):
    """An answer that is none; the message says what is wrong with it, as what follows "answered 'x' with"."""


def answer_of(result: CallToolResult, output_schema: Mapping[str, Any] | None) -> ToolAnswer:
    """Return a result as an answer.

    Raises:
        BadAnswerError: When it is not what its own types, or the tool's output schema, say.
    """
    texts: list[str] = []
    parts: list[Mapping[str, Any]] = []
    for text, part in map(_block, result.content):
        texts.append(text)
        parts += part
    structured = result.structured_content
    if not result.is_error and output_schema is not None:
        _check(structured, output_schema)
    if structured is not None:
        if not texts:
            texts.append(result_text(structured))
        parts.append({"type": "structured", "structuredContent": _finite(structured)})
    said = "\n".join(texts)
    if not texts:
        said = "the tool failed, and does not say why" if result.is_error else "ok"
    return ToolAnswer(clean_text(said), is_error=result.is_error, content=tuple(parts))


def _block(
    block: TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource,
) -> tuple[str, list[Mapping[str, Any]]]:
    """What a model reads of one block, and what is kept beside it."""
    match block:
        case TextContent():
            return block.text, []
        case ImageContent() | AudioContent():
            _check_base64(block.data, block.type)
            mime = clean_text(block.mime_type)[:_SHOWN_CHARS]
            return f"[{block.type}: {mime}]", [{"type": block.type, "data": block.data, "mimeType": mime}]
        case ResourceLink():
            more = [part for part in (block.title or block.name, f"<{block.uri}>", block.description) if part]
            return f"[resource link: {' '.join(more)}]", []
        case EmbeddedResource():
            resource = block.resource
            if isinstance(resource, TextResourceContents):
                return f"[resource: {resource.uri}]\n{resource.text}", []
            _check_base64(resource.blob, "resource")
            uri = clean_text(resource.uri)[:_SHOWN_CHARS]
            mime = clean_text(resource.mime_type or "application/octet-stream")[:_SHOWN_CHARS]
            kept = {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "blob": resource.blob}}
            return f"[resource: {uri}, {mime}]", [kept]


def _check_base64(data: str, what: str) -> None:
    try:
        binascii.a2b_base64(data.encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        raise BadAnswerError(f"{'an' if what[0] in 'ai' else 'a'} {what} whose data is not base64") from None


def _check(structured: Any, output_schema: Mapping[str, Any]) -> None:
    if structured is None:
        raise BadAnswerError("no structured content, which its output schema says it has")
    check = check_of(output_schema)
    lines = list(_lines(check.misfits(structured, Work())))
    if lines:  # for JSON 2.0 is an integer; what checks the arguments of Python's tools says otherwise
        lines = list(_lines(check.misfits(whole_numbers(structured), Work())))
    if lines:
        raise BadAnswerError(f"structured content that does not fit its output schema: {lines[0]}")


def _lines(lines: list[str]) -> Iterator[str]:
    return (" ".join(line.split())[:_SHOWN_CHARS] for line in lines)


def _finite(value: Any) -> Any:
    """Return JSON that every reader takes: without the infinities that the SDK lets pass."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return from_json(to_json(value, inf_nan_mode="null"))
    return value
