"""A renderer's parser that bears what a model may write: it neither stalls on a call nor breaks on one."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from agent_env.training._cookbook import Message, Renderer, RendererError, UnparsedToolCall
from agent_env.training._dialects import Dialect, as_parsed
from agent_env.training._parsing_effort import with_short_blanks

__all__ = ["SafeParsing"]

_NEVER_CLOSED = "it has marks that nothing closes"


class SafeParsing:
    """A renderer that parses whatever a model may write; in all else it is the renderer."""

    def __init__(self, renderer: Renderer, dialect: Dialect | None) -> None:
        self._renderer = renderer
        self._dialect = dialect
        stops = renderer.get_stop_sequences() if dialect else ()
        self._stops = frozenset(stop for stop in stops if isinstance(stop, int))
        marks = [re.escape(mark) for stop in self._stops if (mark := str(renderer.tokenizer.decode([stop])))]
        self._stop_text = re.compile("|".join(marks) or r"(?!)")

    def __getattr__(self, name: str) -> Any:
        if name == "_renderer":  # not there yet, as while it is unpickled
            raise AttributeError(name)
        return getattr(self._renderer, name)

    def parse_response(self, response: list[int]) -> tuple[Message, Any]:
        """Parse sampled tokens.

        What breaks the parser, as JSON nested a thousand deep or a number of 5,000 digits does, comes back as unparsed
        calls; so does what would stall it, as `<tool_call>` a thousand times does. A long run of blanks in a call is parsed
        as a short one: the call's text is what was sampled all the same. In a dialect that is not known here, the renderer
        parses alone.

        Raises:
            RendererError: When the renderer says that it cannot parse these tokens.
        """
        at = next((at for at, token in enumerate(response) if token in self._stops), None)
        if self._dialect is None or at is None:
            return self._renderer.parse_response(response)
        text = str(self._renderer.tokenizer.decode(response[:at]))
        mark = text.find(self._dialect.mark)
        start = 0 if self._dialect.takes_blanks_before else mark
        if mark >= 0 and (short := with_short_blanks(text[start:])) != text[start:]:
            response = [*self._tokens(text[:start] + short), *response[at:]]
        if any(self._dialect.stalls(seen) for seen in as_parsed(text)):
            return self._without_calls(text, response[at:], _NEVER_CLOSED)
        try:
            return self._renderer.parse_response(response)
        except RendererError:
            raise
        except (RecursionError, ValueError) as exc:
            return self._without_calls(text, response[at:], str(exc))

    def _without_calls(self, text: str, end: list[int], why: str) -> tuple[Message, Any]:
        """Parse what is around the calls, and leave those unparsed."""
        rest, calls = text, [text]
        for seen in as_parsed(text):
            blocks = self._dialect.blocks(seen) if self._dialect else []
            if not blocks:
                continue
            added = len(seen) - len(text)
            for block in reversed(blocks):
                start = block.start - added
                rest = rest[:start] + rest[start + len(block.text) :]
            calls = [block.text for block in blocks]
            break
        message, termination = self._renderer.parse_response([*self._tokens(rest if rest != text else ""), *end])
        if rest == text:
            message["content"] = text
        if self._dialect and self._dialect.mark in text:
            message["unparsed_tool_calls"] = [UnparsedToolCall(raw_text=call, error=why) for call in calls]
        return message, termination

    def _tokens(self, text: str) -> list[int]:
        """Tokens of a text, none of which is a stop: it may be written in a text with the tokens of its letters."""
        cuts = [0, *(found.start() + 1 for found in self._stop_text.finditer(text)), len(text)]
        encode = self._renderer.tokenizer.encode
        return [token for start, end in pairwise(cuts) for token in encode(text[start:end], add_special_tokens=False)]
