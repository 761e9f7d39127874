"""The calls of a message as the model wrote them: their raw text, typed by the tools' schemas.

The cookbook's parsers are lossy: they read an argument without the tool's schema (`19122` is a number, whatever it is for)
and write it again (`1.10` comes out as `1.1`). What counts as a call is theirs to say, so that a rollout and a rendered
conversation agree on it; what its arguments are is read here, from the text that was sampled.

Each way of writing calls is a dialect below. Which one a renderer writes is found out by letting it write a call, not by its
name. Of a renderer that writes another, the arguments are what its parser has made of them.
"""
# ruff: noqa: RUF001 - the fullwidth bars are DeepSeek's own

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, cast

from agent_env.envs import ToolError, ToolSpec
from agent_env.envs.strict_json import JsonTextError, NestedTooDeeplyError, read_json
from agent_env.envs.typed_arguments import ParameterText, arguments_from_json, arguments_from_texts
from agent_env.training._cookbook import Message, Renderer, RendererError, ToolCall, TrainOnWhat, UnparsedToolCall

__all__ = ["CallReader", "WrittenCall"]

_PROBE = "now 1.10"
_STEP = re.compile(r"\s*")
_BLANK_RUN = re.compile(r"\s+")
_NAMED = re.compile(
    r'"name"\s*:\s*"([^"]+)"|(?:<function=|invoke name=|<tool_call>|tool▁call▁begin｜>|functions\.)"?([\w\-. ]+)'
)
_BLANKS = re.compile(r"\s{50,}")
_LONG_BLANKS = 50
"""More blanks than that in a row are not parsed: the cookbook's expressions take the cube of their number in time."""
_MAX_EFFORT = 2_000_000
"""How many characters an expression may go through in vain: some ten milliseconds."""
_NEVER_CLOSED = "it has marks that nothing closes"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCall:
    """A call of a tool, as the model wrote it."""

    name: str
    """The tool; `unreadable` when not even that can be read."""
    raw: str
    """The text of the arguments; all of the call's when it cannot be taken apart."""
    call_id: str | None = None
    arguments: Mapping[str, Any] | None = None
    """JSON values that fit the tool, where there is such a tool; None when there is an error."""
    error: str = ""
    """What is wrong with the call, for the model to read."""
    is_misfit: bool = False
    """Whether there is an error though the call can be read: the arguments are not what the tool takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Where in a text a call is, and what it is made of."""

    start: int
    text: str
    name: str = ""
    raw: str = ""
    call_id: str | None = None
    texts: Sequence[ParameterText] | None = None
    """For a dialect that has a text for each parameter; else `raw` is JSON."""
    error: str = ""
    """Why it cannot be taken apart."""

    def written(self, tools: Mapping[str, ToolSpec], *, name: str, call_id: str | None) -> WrittenCall:
        call = WrittenCall(name=name, raw=self.raw or self.text, call_id=call_id, error=self.error)
        if self.error:
            return call
        tool = tools.get(name)
        try:
            if self.texts is None:
                return replace(call, raw=self.raw, arguments=arguments_from_json(self.raw, tool))
            return replace(call, raw=self.raw, arguments=arguments_from_texts(self.texts, tool))
        except ToolError as exc:
            return replace(call, raw=self.raw, error=str(exc))

    def recorded(self, call: WrittenCall, parsed: ToolCall | UnparsedToolCall) -> str:
        """The arguments as JSON text, for the renderer to write again and for the run to keep."""
        if self.error and isinstance(parsed, ToolCall):
            return parsed.function.arguments
        if self.texts is None:
            return self.raw
        if call.arguments is not None:
            return json.dumps(call.arguments)
        return json.dumps({written.name: written.text for written in self.texts})


class CallReader:
    """Reads the calls that models write in one renderer's dialect.

    Args:
        renderer: The renderer; it writes one probe.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._dialect = _dialect_of(renderer)
        self.renderer = cast("Renderer", _SafeParsing(renderer, self._dialect))
        """The renderer, whose `parse_response` here does not raise or stall for what a model may write."""

    @property
    def dialect(self) -> str:
        """The dialect's name; empty when it is none that is known here."""
        return self._dialect.name if self._dialect else ""

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
        pairs = self._pairs(text, calls, unparsed)
        kept: list[ToolCall] = []
        unreadable: list[UnparsedToolCall] = []
        written: list[WrittenCall] = []
        for block, parsed in pairs:
            is_call = isinstance(parsed, ToolCall)
            name = _clean(parsed.function.name if is_call else block.name or _call_name(parsed))
            call_id = (parsed.id if is_call else None) or block.call_id
            call = block.written(tools, name=name, call_id=_clean(call_id) if call_id else None)
            is_misfit = bool(call.error) and is_call and not _is_too_deep(block)
            written.append(replace(call, is_misfit=is_misfit))
            if is_misfit or not call.error:
                body = cast("Callable[..., Any]", ToolCall.FunctionBody)(
                    name=name, arguments=block.recorded(call, parsed)
                )
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
    ) -> list[tuple[_Block, ToolCall | UnparsedToolCall]]:
        """The text of each call that the parser has found; where there is doubt which is which, its own text of it."""
        if self._dialect is not None:
            for seen in _as_parsed(text):
                pairs = _matched(self._dialect.blocks(seen), seen, calls, unparsed)
                if pairs is not None:
                    return pairs
        return [
            *((_Block(start=0, text=call.function.arguments, raw=call.function.arguments), call) for call in calls),
            *((_unread(call, 0), call) for call in unparsed),
        ]


def _as_parsed(text: str) -> Iterator[str]:
    """The text as the parser may have seen it: with the thinking that the prompt has begun, and as it is."""
    if "</think>" in text and not 0 <= text.find("<think>") < text.find("</think>"):
        yield f"<think>{text}"
    yield text


def _clean(text: str) -> str:
    """A name or an id as Unicode text: JSON can have half of a surrogate pair in it."""
    return text.encode("utf-8", "replace").decode()


def _is_too_deep(block: _Block) -> bool:
    """Whether arguments are nested so deeply that what reads them again may fail where the parser just did not."""
    try:
        read_json("" if block.texts is not None else block.raw)
    except NestedTooDeeplyError:
        return True
    except JsonTextError:
        return False
    return False


def _call_name(call: UnparsedToolCall) -> str:
    """The tool that an unreadable call most likely meant."""
    found = _NAMED.search(call.raw_text)
    return (found[1] or found[2]).strip() if found else "unreadable"


def _unread(call: UnparsedToolCall, start: int) -> _Block:
    return _Block(start=start, text=call.raw_text, error=f"this tool call could not be read: {call.error}")


def _matched(
    blocks: Sequence[_Block], text: str, calls: Sequence[ToolCall], unparsed: Sequence[UnparsedToolCall]
) -> list[tuple[_Block, ToolCall | UnparsedToolCall]] | None:
    """Each block with what the parser has made of it; None when the two do not agree on what is a call."""
    # What is unparsed beyond the blocks is no block: the parser puts last what it takes for a call that does not end.
    whole = max(len(blocks) - len(calls), 0)
    calls_left, unparsed_left = list(calls), list(unparsed[:whole])
    pairs: list[tuple[_Block, ToolCall | UnparsedToolCall]] = []
    for block in blocks:
        left: Sequence[ToolCall | UnparsedToolCall] = unparsed_left
        known = (block.text, _short(block.text))
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
        if not any(block.start <= start < block.start + len(block.text) for block in blocks):
            # Elsewhere it is the mark of a call inside the text of one, which the parser takes for another that is cut off.
            pairs.append((_unread(call, start if start >= 0 else len(text)), call))
    return pairs


class _SafeParsing:
    """A renderer that parses whatever a model may write; in all else it is the renderer."""

    def __init__(self, renderer: Renderer, dialect: _Dialect | None) -> None:
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
        as a short one: the call's text is what was sampled all the same.
        """
        at = next((at for at, token in enumerate(response) if token in self._stops), None)
        if self._dialect is None or at is None:
            return self._renderer.parse_response(response)
        text = str(self._renderer.tokenizer.decode(response[:at]))
        mark = text.find(self._dialect.mark)
        start = 0 if self._dialect.takes_blanks_before else mark
        if mark >= 0 and (short := _short(text[start:])) != text[start:]:
            response = [*self._tokens(text[:start] + short), *response[at:]]
        if any(self._dialect.effort(seen) > _MAX_EFFORT for seen in _as_parsed(text)):
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
        for seen in _as_parsed(text):
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


def _short(text: str) -> str:
    return _BLANKS.sub(lambda found: found[0][:_LONG_BLANKS], text)


class _Dialect(ABC):
    """One way of writing calls."""

    name: str
    mark: str
    """What no text has without a call."""
    takes_blanks_before = False
    """Whether the parser takes the blanks before a call for part of it."""

    def blocks(self, text: str) -> list[_Block]:
        """The calls in a text, in its order, as the cookbook's parser of this dialect finds them.

        None where finding them would take too long.
        """
        return self._blocks(text) if self._effort_around(text) <= _MAX_EFFORT else []

    def effort(self, text: str) -> int:
        """About how many characters the parser's expressions go through in vain."""
        around = self._effort_around(text)
        return around if around > _MAX_EFFORT else around + self._effort_within(self._blocks(text))

    @abstractmethod
    def _blocks(self, text: str) -> list[_Block]: ...

    @abstractmethod
    def _effort_around(self, text: str) -> int:
        """Finding the calls."""

    def _effort_within(self, blocks: Sequence[_Block]) -> int:
        """Taking them apart."""
        return 0


@dataclass(frozen=True, slots=True)
class _Span:
    """What an expression looks for: an opening mark, a closing one, and maybe something between them."""

    open: str
    close: str
    between: re.Pattern[str] | None = None
    trims: bool = False
    """Whether it takes the blanks at both ends off, and tries each number of them."""

    def effort(self, text: str) -> int:
        """About how many characters it goes through in vain.

        From each opening mark that nothing closes it goes to the end of the text, and does so again from each place between.
        """
        end = text.rfind(self.close)
        places = [found.start() for found in self.between.finditer(text)] if self.between else []
        if self.between:
            end = next((place for place in reversed(places) if place < end), -1)
        opened = text.count(self.open, end + 1)
        if not opened:
            return 0
        ways = 1 + sum(place > end for place in places)
        if self.trims:
            ways *= _longest_blanks(text[end + 1 :]) ** 2
        return opened * ways * (len(text) - end)


@dataclass(frozen=True, slots=True)
class _Tags:
    """What the text of one parameter is between."""

    opens: re.Pattern[str]
    """Its first group is the name; its second, when there is one, says whether it is a string."""
    close: str
    newline: bool = False
    """Whether there is a line end around the text that is not its own."""

    def texts(self, body: str) -> list[ParameterText]:
        """The parameters that `body` is made of.

        Raises:
            ToolError: When there is something else in it.
        """
        found: list[ParameterText] = []
        at = _blank(body, 0)
        while at < len(body):
            opened = self.opens.match(body, at)
            if opened is None:
                raise ToolError(f"this is no parameter: {body[at : at + 60]}")
            name, *kind = opened.groups()
            name = name.strip()
            if not name:
                raise ToolError("a parameter has no name")
            end, at = self._end(body, opened.end(), name)
            text = body[opened.end() : end]
            if self.newline:
                text = text.removeprefix("\n").removesuffix("\n")
            found.append(ParameterText(name, text, kind[0] == "true" if kind else None))
        return found

    def _end(self, body: str, start: int, name: str) -> tuple[int, int]:
        """Where a text ends, and where what comes after it begins: a mark of its end may be in the text itself."""
        end = body.find(self.close, start)
        while end >= 0:
            after = _blank(body, end + len(self.close))
            if after == len(body) or self.opens.match(body, after):
                return end, after
            end = body.find(self.close, end + 1)
        raise ToolError(f"{name}: it does not end, {self.close} is missing")


def _blank(text: str, at: int) -> int:
    found = _STEP.match(text, at)
    return found.end() if found else at


_THINKING = _Span("<think>", "</think>")


def _effort_of_section(section: re.Match[str] | None, text: str, call: _Span) -> int:
    """About what reading a section of calls takes, and the thinking around it."""
    if section is None:
        return _THINKING.effort(text)
    around = text[: section.start()] + text[section.end() :]
    return _THINKING.effort(around) + call.effort(_short(section[section.lastindex or 0]))


def _longest_blanks(text: str) -> int:
    return max((len(found[0]) for found in _BLANK_RUN.finditer(text)), default=1)


class _ToolCallTags(_Dialect):
    """`<tool_call>` around JSON, which Qwen3 and its kin write, or around tags of its own."""

    name = "tool_call JSON"
    mark = "<tool_call>"
    _BLOCK = re.compile(r"<think>.*?</think>|<tool_call>(.*?)</tool_call>", re.DOTALL)
    _OPENS = re.compile("<think>|<tool_call>")
    _PARAMETER: _Span | None = None

    def _effort_around(self, text: str) -> int:
        effort = at = 0
        never: set[str] = set()
        for opened in self._OPENS.finditer(text):
            if opened.start() < at:
                continue
            close = f"</{opened[0][1:]}"
            end = -1 if close in never else text.find(close, opened.end())
            if end < 0:
                never.add(close)
                effort += len(text) - opened.start()
            else:
                at = end + len(close)
        return effort

    def _effort_within(self, blocks: Sequence[_Block]) -> int:
        return sum(self._PARAMETER.effort(_short(block.text)) for block in blocks) if self._PARAMETER else 0

    def _blocks(self, text: str) -> list[_Block]:
        return [
            self._block(found.start(), found[0], found[1])
            for found in self._BLOCK.finditer(text)
            if found[1] is not None
        ]

    def _block(self, start: int, text: str, inner: str) -> _Block:
        return _json_call(start, text, inner)


class _FunctionTags(_ToolCallTags):
    """`<function=name>` with `<parameter=name>` for each: Qwen3.5, Nemotron 3."""

    name = "function and parameter tags"
    _FUNCTION = re.compile(r"\s*<function=([^>\n]+)>")
    _TAGS = _Tags(re.compile(r"<parameter=([^>\n]+)>"), "</parameter>", newline=True)
    _PARAMETER = _Span("<parameter=", "</parameter>", trims=True)
    _NAME_END = re.compile(r"[>\n]")

    def _effort_within(self, blocks: Sequence[_Block]) -> int:
        lines = [line for block in blocks for line in self._NAME_END.split(block.text)]
        names = sum((line.count("<parameter=") - 1) * len(line) for line in lines if "<parameter=" in line)
        return names + sum(self._effort_of_frame(block.text) for block in blocks) + super()._effort_within(blocks)

    def _effort_of_frame(self, text: str) -> int:
        if text.removesuffix("</tool_call>").rstrip().endswith("</function>"):
            return 0
        return len(text) * _longest_blanks(_short(text)) ** 2

    def _block(self, start: int, text: str, inner: str) -> _Block:
        opened = self._FUNCTION.match(inner)
        if opened is None:
            return _json_call(start, text, inner)
        name, end = opened[1].strip(), inner.rstrip()
        if not end.endswith("</function>"):
            return _Block(start=start, text=text, name=name, error=_broken(f"{name}: </function> is missing"))
        return _tagged(self._TAGS, start, text, name, end[opened.end() :].removesuffix("</function>"))


class _ArgTags(_ToolCallTags):
    """The name, then `<arg_key>` and `<arg_value>` for each parameter: GLM."""

    name = "arg_key and arg_value tags"
    _NAME = re.compile(r"\s*([\w\-\.]+)")
    _TAGS = _Tags(re.compile(r"<arg_key>([^<]*)</arg_key>\s*<arg_value>"), "</arg_value>")
    _PARAMETER = _Span("<arg_key>", "</arg_value>", re.compile(r"</arg_key>\s*<arg_value>"))

    def _block(self, start: int, text: str, inner: str) -> _Block:
        opened = self._NAME.match(inner)
        if opened is None:
            return _json_call(start, text, inner)
        return _tagged(self._TAGS, start, text, opened[1], inner[opened.end() :])


class _Dsml(_Dialect):
    """DeepSeek V4's marks."""

    name = "DSML"
    mark = "<｜DSML｜"
    _CALLS = re.compile("<｜DSML｜ calls>(.*?)</｜DSML｜ calls>", re.DOTALL)
    _INVOKE = re.compile('<｜DSML｜ invoke name="(.*?)">\n(.*?)</｜DSML｜ invoke>', re.DOTALL)
    _TAGS = _Tags(re.compile('<｜DSML｜ parameter name="([^"]*)" string="(true|false)">'), "</｜DSML｜ parameter>")
    _SECTION = _Span("<｜DSML｜ calls>", "</｜DSML｜ calls>")
    _CALL = _Span('<｜DSML｜ invoke name="', "</｜DSML｜ invoke>", re.compile('">\n'))
    _PARAMETER = _Span('<｜DSML｜ parameter name="', "</｜DSML｜ parameter>", re.compile('" string="(?:true|false)">'))

    def _effort_around(self, text: str) -> int:
        effort = self._SECTION.effort(text)
        if effort > _MAX_EFFORT:
            return effort
        return effort + _effort_of_section(self._CALLS.search(text), text, self._CALL)

    def _effort_within(self, blocks: Sequence[_Block]) -> int:
        return sum(self._PARAMETER.effort(block.raw) for block in blocks)

    def _blocks(self, text: str) -> list[_Block]:
        section = self._CALLS.search(text)
        if section is None:
            return []
        return [
            _tagged(self._TAGS, found.start(), found[0], found[1], found[2])
            for found in self._INVOKE.finditer(text, section.start(1), section.end(1))
        ]


class _Sections(_Dialect):
    """One section of calls, a mark between a call's name and its JSON: Kimi K2, DeepSeek V3."""

    def __init__(
        self,
        name: str,
        mark: str,
        section: str,
        call: str,
        *,
        spans: Sequence[_Span],
        within: _Span,
        names: Callable[[str], str] | None = None,
        takes_blanks_before: bool = False,
    ) -> None:
        self.name, self.mark, self.takes_blanks_before = name, mark, takes_blanks_before
        self._spans, self._within = spans, within
        self._section = re.compile(section, re.DOTALL)
        self._call = re.compile(call, re.DOTALL)
        self._names = names
        """Makes a name of an id, where calls have ids."""

    def _effort_around(self, text: str) -> int:
        effort = sum(span.effort(text) for span in self._spans)
        if effort > _MAX_EFFORT:
            return effort
        return effort + _effort_of_section(self._section.search(text), text, self._within)

    def _blocks(self, text: str) -> list[_Block]:
        section = self._section.search(text)
        if section is None:
            return []
        group = section.lastindex or 0
        found = self._call.finditer(text, section.start(group), section.end(group))
        return [self._block(call) for call in found]

    def _block(self, found: re.Match[str]) -> _Block:
        said = found[1].strip()
        name, call_id = (self._names(said), said) if self._names else (said, None)
        return _Block(start=found.start(), text=found[0], name=name, raw=found[2].strip(), call_id=call_id)


class _Harmony(_Dialect):
    """Messages to `functions.name`: gpt-oss."""

    name = "Harmony"
    mark = "to=functions."
    _STOP = re.compile(r"<\|call\|>|<\|return\|>")
    _MESSAGE = re.compile(r"<\|message\|>(.*?)(?:<\|end\|>|\Z)", re.DOTALL)
    _TO = re.compile(r"to=functions\.([^\s<]*)")

    def _effort_around(self, text: str) -> int:
        return 0  # the parser goes by the marks, once

    def _blocks(self, text: str) -> list[_Block]:
        stop = self._STOP.search(text)
        end = stop.start() if stop else len(text)
        blocks: list[_Block] = []
        at = 0
        for message in self._MESSAGE.finditer(text, 0, end):
            start = max(text.rfind("<|start|>", at, message.start()), at)
            at = message.end()
            to = self._TO.search(text, start, message.start())
            if to is None or not message[1].strip():
                continue
            raw = message[1].strip()
            blocks.append(_Block(start=start, text=text[start:at], name=to[1], raw=raw))
        return blocks


def _kimi_name(call_id: str) -> str:
    named = call_id.split(":", 1)[0]
    return named.split(".", 1)[1] if "." in named else named


_DIALECTS: Sequence[_Dialect] = (
    _ToolCallTags(),
    _FunctionTags(),
    _ArgTags(),
    _Dsml(),
    _Sections(
        "Kimi K2",
        "<|tool_call",
        r"<\|tool_calls_section_begin\|>(.*?)<\|tool_calls_section_end\|>"
        r"|<\|tool_call_section_begin\|>(.*?)<\|tool_call_section_end\|>",
        r"<\|tool_call_begin\|>\s*([^<]+:\d+)\s*<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>",
        spans=(
            _Span("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            _Span("<|tool_call_section_begin|>", "<|tool_call_section_end|>"),
        ),
        within=_Span("<|tool_call_begin|>", "<|tool_call_end|>", trims=True),
        names=_kimi_name,
    ),
    _Sections(
        "DeepSeek V3",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁begin｜>(.*?)<｜tool▁calls▁end｜>",
        r"<｜tool▁call▁begin｜>(\w+)<｜tool▁sep｜>(.*?)<｜tool▁call▁end｜>",
        spans=(_Span("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),),
        within=_Span("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        takes_blanks_before=True,
    ),
    _Harmony(),
)


def _broken(why: str) -> str:
    return f"this tool call could not be read: {why}"


def _tagged(tags: _Tags, start: int, text: str, name: str, body: str) -> _Block:
    try:
        texts = tags.texts(body)
    except ToolError as exc:
        return _Block(start=start, text=text, name=name, raw=body, error=_broken(str(exc)))
    return _Block(start=start, text=text, name=name, raw=body, texts=texts)


def _json_call(start: int, text: str, inner: str) -> _Block:
    """A call that is a JSON object with `name` and `arguments`, the text of the latter kept."""
    try:
        spans = _members(inner.strip())
    except _NoObjectError as exc:
        return _Block(start=start, text=text, name=exc.name, error=_broken(str(exc)))
    named = spans.get("name", "")
    name = json.loads(named) if named.startswith('"') else None
    call_id = json.loads(spans["id"]) if spans.get("id", "").startswith('"') else None
    if not isinstance(name, str) or not name:
        return _Block(start=start, text=text, error=_broken('it has no "name", the tool to call'))
    if "arguments" not in spans:
        error = _broken('it has no "arguments": write a JSON object, {} when there are none')
        return _Block(start=start, text=text, name=name, error=error)
    return _Block(start=start, text=text, name=name, raw=spans["arguments"], call_id=call_id)


class _NoObjectError(Exception):
    def __init__(self, why: str, name: str = "") -> None:
        super().__init__(why)
        self.name = name


_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SCALAR = re.compile(r"[^\s,\]}]+")
_INSIDE = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
"""A string that does not end goes on to the end, and not one from each quote in it."""


def _members(text: str) -> dict[str, str]:
    """The text of each member of a JSON object. What is inside of them is not checked, only where they end.

    Raises:
        _NoObjectError: When the text is no object.
    """
    if not text.startswith("{"):
        raise _NoObjectError("it is no JSON object")
    members: dict[str, str] = {}
    twice = ""
    at = _blank(text, 1)
    if text[at:] == "}":
        return members
    while True:
        key = _STRING.match(text, at)
        colon = _blank(text, key.end()) if key else at
        if key is None or text[colon : colon + 1] != ":":
            raise _NoObjectError(f"no valid JSON, a key is missing at character {at + 1}", _named(members))
        start = _blank(text, colon + 1)
        end = _value_end(text, start)
        name = _decoded(key[0])
        if name in members:
            twice = key[0][:60]
        if end is None:
            raise _NoObjectError(f"no valid JSON, the value of {key[0][:60]} does not end", _named(members))
        members[name] = text[start:end]
        at = _blank(text, end)
        if text[at:] == "}" and twice:
            raise _NoObjectError(f"the key {twice} is written twice", _named(members))
        if text[at:] == "}":
            return members
        if text[at : at + 1] != ",":
            what = "it is cut off" if at == len(text) else f"{text[at : at + 20]} is not expected"
            raise _NoObjectError(f"no valid JSON, {what} at character {at + 1}", _named(members))
        at = _blank(text, at + 1)


def _value_end(text: str, start: int) -> int | None:
    if text[start : start + 1] == '"':
        found = _STRING.match(text, start)
        return found.end() if found else None
    if text[start : start + 1] not in ("{", "["):
        found = _SCALAR.match(text, start)
        return found.end() if found else None
    depth = 0
    for found in _INSIDE.finditer(text, start):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(found[0], 0)
        if depth == 0:
            return found.end()
    return None


def _decoded(quoted: str) -> str:
    try:
        return cast("str", json.loads(quoted))
    except ValueError:  # an escape that JSON does not have
        return quoted


def _named(members: Mapping[str, str]) -> str:
    return _decoded(members["name"]) if members.get("name", "").startswith('"') else ""


def _dialect_of(renderer: Renderer) -> _Dialect | None:
    """The dialect in which a renderer writes a call."""
    try:
        text = _probe(renderer)
    except Exception:  # noqa: BLE001 - a renderer of anyone's: one that cannot write a call has no dialect
        return None
    for dialect in _DIALECTS:
        blocks = dialect.blocks(text)
        if len(blocks) == 1 and blocks[0].name == "probe":
            read = blocks[0].written({}, name="probe", call_id=None)
            if read.arguments == {"x": _PROBE}:
                return dialect
    return None


def _probe(renderer: Renderer) -> str:
    body = cast("Callable[..., Any]", ToolCall.FunctionBody)(name="probe", arguments=json.dumps({"x": _PROBE}))
    said: Message = {
        "role": "assistant",
        "content": "",
        "tool_calls": [ToolCall(function=body, id="functions.probe:0")],
    }
    example, _ = renderer.build_supervised_example(
        [{"role": "user", "content": "Go."}, said], TrainOnWhat.LAST_ASSISTANT_MESSAGE
    )
    return str(renderer.tokenizer.decode(example.to_ints()))
