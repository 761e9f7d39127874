"""The calls of a message as the model wrote them: their raw text, typed by the tools' schemas.

The cookbook's parsers are lossy: they read an argument without the tool's schema (`19122` is a number, whatever it is for)
and write it again (`1.10` comes out as `1.1`). What counts as a call is theirs to say, so that a rollout and a rendered
conversation agree on it; what its arguments are is read here, from the text that was sampled.

Of a renderer whose dialect is not known (`_dialects.py`), the arguments are what its parser has made of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from agent_env.envs import ToolError, ToolSpec
from agent_env.envs.strict_json import NestedTooDeeplyError
from agent_env.training._cookbook import Message, Renderer, ToolCall, UnparsedToolCall
from agent_env.training._dialects import DIALECTS, Block, as_parsed, broken, dialect_of
from agent_env.training._parsing_effort import with_short_blanks
from agent_env.training._safe_parsing import SafeParsing

__all__ = ["CallReader", "Legibility", "WrittenCall"]


class Legibility(StrEnum):
    """How far a call can be read."""

    FITS = "fits"
    """It can be made, if there is such a tool."""
    MISFIT = "misfit"
    """It is a call, but its arguments are not what the tool takes."""
    UNREADABLE = "unreadable"
    """What it is made of cannot be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCall:
    """A call of a tool, as the model wrote it."""

    name: str
    """The tool; `unreadable` when not even that can be read."""
    raw: str
    """The text of the arguments; all of the call's when it cannot be taken apart."""
    call_id: str | None = None
    legibility: Legibility = Legibility.FITS
    arguments: Mapping[str, Any] | None = None
    """JSON values that fit the tool, where there is such a tool; None unless the call fits."""
    error: str = ""
    """What is wrong with a call that does not fit or cannot be read, for the model to read."""

    @property
    def is_made(self) -> bool:
        """Whether it counts as a call that was made, as limits count them: all do but those that cannot be read."""
        return self.legibility is not Legibility.UNREADABLE


class CallReader:
    """Reads the calls that models write in one renderer's dialect.

    Args:
        renderer: The renderer; it writes one probe.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._dialect = dialect_of(renderer)
        self.parser = cast("Renderer", SafeParsing(renderer, self._dialect))
        """The renderer to parse with: in a dialect that is known, it neither breaks nor stalls on what a model may write."""

    def read(self, message: Message, text: str, tools: Mapping[str, ToolSpec]) -> tuple[Message, list[WrittenCall]]:
        """Read a message's calls.

        Args:
            message: What the renderer's parser made of the sampled tokens.
            text: The sampled tokens, decoded.
            tools: The tools that the model was shown, by name. A call of another is read without a schema.

        Returns:
            The message with the arguments that were read, so that it is rendered as it was sampled; and its calls in the
            order they were written, those that cannot be read or do not fit among them.
        """
        calls, unparsed = message.get("tool_calls") or [], message.get("unparsed_tool_calls") or []
        if not calls and not unparsed:
            return message, []
        kept: list[ToolCall] = []
        unreadable: list[UnparsedToolCall] = []
        written: list[WrittenCall] = []
        for block, parsed in self._pairs(text, calls, unparsed):
            call = self._written(block, parsed, tools)
            written.append(call)
            if call.is_made:
                body = ToolCall.FunctionBody(name=call.name, arguments=_recorded(call, block, parsed))
                kept.append(ToolCall(function=body, id=call.call_id))
            else:
                unreadable.append(UnparsedToolCall(raw_text=block.text, error=call.error))
        read = cast("Message", {key: value for key, value in message.items() if not key.endswith("tool_calls")})
        if kept:
            read["tool_calls"] = kept
        if unreadable:
            read["unparsed_tool_calls"] = unreadable
        return read, written

    def _pairs(
        self, text: str, calls: Sequence[ToolCall], unparsed: Sequence[UnparsedToolCall]
    ) -> list[tuple[Block, ToolCall | UnparsedToolCall]]:
        """The text of each call that the parser has found; where there is doubt which is which, its own text of it."""
        if self._dialect is not None:
            for seen in as_parsed(text):
                pairs = _matched(self._dialect.blocks(seen), seen, calls, unparsed)
                if pairs is not None:
                    return pairs
        return [
            *((Block(start=0, text=call.function.arguments, raw=call.function.arguments), call) for call in calls),
            *((_unread(call, 0), call) for call in unparsed),
        ]

    def _written(self, block: Block, parsed: ToolCall | UnparsedToolCall, tools: Mapping[str, ToolSpec]) -> WrittenCall:
        """What the model wrote. A call that does not fit is one all the same where the parser could read it."""
        is_call = isinstance(parsed, ToolCall)
        name = _clean(parsed.function.name if is_call else block.name or self._name_in(parsed.raw_text))
        call_id = (parsed.id if is_call else None) or block.call_id
        arguments, error, legibility = None, "", Legibility.FITS
        try:
            arguments = block.arguments(tools.get(name))
        except ToolError as exc:
            error, legibility = str(exc), Legibility.MISFIT if is_call else Legibility.UNREADABLE
        except NestedTooDeeplyError as exc:
            # What reads it again may fail where the parser just did not.
            error, legibility = str(exc), Legibility.UNREADABLE
        return WrittenCall(
            name=name,
            raw=block.raw or (block.text if block.error else ""),
            call_id=_clean(call_id) if call_id else None,
            legibility=legibility,
            arguments=arguments,
            error=error,
        )

    def _name_in(self, call: str) -> str:
        names = (dialect.name_in(call) for dialect in ([self._dialect] if self._dialect else DIALECTS))
        return next(filter(None, names), "unreadable")


def _recorded(call: WrittenCall, block: Block, parsed: ToolCall | UnparsedToolCall) -> str:
    """The arguments as JSON text, for the renderer to write again and for the run to keep."""
    if block.error and isinstance(parsed, ToolCall):
        return parsed.function.arguments
    if block.texts is None:
        return block.raw
    if call.arguments is not None:
        return json.dumps(call.arguments)
    return json.dumps({written.name: written.text for written in block.texts})


def _clean(text: str) -> str:
    """A name or an id as Unicode text: JSON can have half of a surrogate pair in it."""
    return text.encode("utf-8", "replace").decode()


def _unread(call: UnparsedToolCall, start: int) -> Block:
    return Block(start=start, text=call.raw_text, error=broken(call.error))


def _matched(
    blocks: Sequence[Block], text: str, calls: Sequence[ToolCall], unparsed: Sequence[UnparsedToolCall]
) -> list[tuple[Block, ToolCall | UnparsedToolCall]] | None:
    """Each block with what the parser has made of it; None when the two do not agree on what is a call."""
    # What is unparsed beyond the blocks is no block: the parser puts last what it takes for a call that does not end.
    whole = max(len(blocks) - len(calls), 0)
    calls_left, unparsed_left = list(calls), list(unparsed[:whole])
    pairs: list[tuple[Block, ToolCall | UnparsedToolCall]] = []
    for block in blocks:
        left: Sequence[ToolCall | UnparsedToolCall] = unparsed_left
        known = (block.text, with_short_blanks(block.text))
        found: ToolCall | UnparsedToolCall | None = next((u for u in unparsed_left if u.raw_text in known), None)
        if found is None:
            left, found = calls_left, next((call for call in calls_left if call.function.name == block.name), None)
        if found is None:
            return None
        cast("list[object]", left).remove(found)
        pairs.append((block, found))
    if calls_left:
        return None
    for call in (*unparsed_left, *unparsed[whole:]):
        start = text.rfind(call.raw_text)
        if start < 0:  # it was parsed with its blanks cut
            start = text.rfind(call.raw_text[: call.raw_text.find(">") + 1] or call.raw_text)
        if not any(block.start <= start < block.start + len(block.text) for block in blocks):
            # Elsewhere it is the mark of a call inside the text of one, which the parser takes for another that is cut off.
            pairs.append((_unread(call, start if start >= 0 else len(text)), call))
    return pairs
