"""How models write calls: each way is a dialect, which finds the calls in a text and takes them apart.

Which one a renderer writes is found out by letting it write a call, not by its name. What counts as a call is the parser's to
say (`_calls.py` puts the two together). A dialect also says about how long the cookbook's parser would take over a text
(`_parsing_effort.py`), so that `_safe_parsing.py` can keep from it what would stall it.
"""
# ruff: noqa: RUF001 - the fullwidth bars are DeepSeek's own

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agent_env._wording import clipped, in_line
from agent_env.envs import ToolError, ToolSpec
from agent_env.envs.strict_json import NestedTooDeeplyError
from agent_env.envs.typed_arguments import ParameterText, arguments_from_json, arguments_from_texts
from agent_env.training._cookbook import Renderer, ToolCall, TrainOnWhat
from agent_env.training._json_members import NoObjectError, after_blanks, members_of
from agent_env.training._parsing_effort import MAX_EFFORT, Span, effort_of_section, longest_blanks, with_short_blanks

__all__ = ["DIALECTS", "Block", "Dialect", "as_parsed", "broken", "dialect_of"]

_PROBE = "now 1.10"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
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

    def arguments(self, tool: ToolSpec | None) -> dict[str, Any]:
        """The arguments, typed by the tool's schema.

        Args:
            tool: None when there is none of that name.

        Raises:
            ToolError: When they cannot be read or do not fit; the message is for the model.
            NestedTooDeeplyError: When they are JSON too deep for what reads it again.
        """
        if self.error:
            raise ToolError(self.error)
        if self.texts is None:
            return arguments_from_json(self.raw, tool)
        return arguments_from_texts(self.texts, tool)


def as_parsed(text: str) -> Iterator[str]:
    """The text as the parser may have seen it: with the thinking that the prompt has begun, and as it is."""
    if "</think>" in text and not 0 <= text.find("<think>") < text.find("</think>"):
        yield f"<think>{text}"
    yield text


class Dialect(ABC):
    """One way of writing calls."""

    name: str
    mark: str
    """What no text has without a call."""
    before_name: str
    """What is before the tool's name in a call, as an expression."""
    takes_blanks_before = False
    """Whether the parser takes the blanks before a call for part of it."""

    def blocks(self, text: str) -> list[Block]:
        """The calls in a text, in its order, as the cookbook's parser finds them; none where that would take too long."""
        return self._blocks(text) if self._effort_around(text) <= MAX_EFFORT else []

    def name_in(self, call: str) -> str:
        """The tool that a call most likely meant which cannot be taken apart; empty when that cannot be told."""
        found = re.search(rf'"name"\s*:\s*"([^"]+)"|(?:{self.before_name})"?([\w\-. ]+)', call)
        return (found[1] or found[2]).strip() if found else ""

    def stalls(self, text: str) -> bool:
        """Whether the cookbook's parser would take too long over a text: its expressions go through much in vain."""
        around = self._effort_around(text)
        return around > MAX_EFFORT or around + self._effort_within(text) > MAX_EFFORT

    @abstractmethod
    def _blocks(self, text: str) -> list[Block]: ...

    @abstractmethod
    def _effort_around(self, text: str) -> int:
        """About how many characters are gone through in vain when the calls are looked for."""

    def _effort_within(self, text: str) -> int:
        """As many when the calls in it are taken apart."""
        return 0


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
        at = after_blanks(body, 0)
        while at < len(body):
            opened = self.opens.match(body, at)
            if opened is None:
                raise ToolError(f"this is no parameter: '{in_line(clipped(body[at : at + 61], 60))}'")
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
            after = after_blanks(body, end + len(self.close))
            if after == len(body) or self.opens.match(body, after):
                return end, after
            end = body.find(self.close, end + 1)
        raise ToolError(f"{in_line(name)}: it does not end, {self.close} is missing")


class _ToolCallTags(Dialect):
    """`<tool_call>` around JSON, which Qwen3 and its kin write, or around tags of its own."""

    name = "tool_call JSON"
    mark = "<tool_call>"
    before_name = "<tool_call>"
    _BLOCK = re.compile(r"<think>.*?</think>|<tool_call>(.*?)</tool_call>", re.DOTALL)
    _OPENS = re.compile("<think>|<tool_call>")
    _PARAMETER: Span | None = None

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

    def _effort_within(self, text: str) -> int:
        if self._PARAMETER is None:
            return 0
        return sum(self._PARAMETER.effort(with_short_blanks(block.text)) for block in self._blocks(text))

    def _blocks(self, text: str) -> list[Block]:
        return [
            self._block(found.start(), found[0], found[1])
            for found in self._BLOCK.finditer(text)
            if found[1] is not None
        ]

    def _block(self, start: int, text: str, inner: str) -> Block:
        return _json_call(start, text, inner)


class _FunctionTags(_ToolCallTags):
    """`<function=name>` with `<parameter=name>` for each: Qwen3.5, Nemotron 3."""

    name = "function and parameter tags"
    before_name = "<function=|<tool_call>"
    _FUNCTION = re.compile(r"\s*<function=([^>\n]+)>")
    _TAGS = _Tags(re.compile(r"<parameter=([^>\n]+)>"), "</parameter>", newline=True)
    _PARAMETER = Span("<parameter=", "</parameter>", trims=True)
    _NAME_END = re.compile(r"[>\n]")

    def _effort_within(self, text: str) -> int:
        blocks = self._blocks(text)
        lines = [line for block in blocks for line in self._NAME_END.split(block.text)]
        names = sum((line.count("<parameter=") - 1) * len(line) for line in lines if "<parameter=" in line)
        return names + sum(self._effort_of_frame(block.text) for block in blocks) + super()._effort_within(text)

    def _effort_of_frame(self, text: str) -> int:
        if text.removesuffix("</tool_call>").rstrip().endswith("</function>"):
            return 0
        return len(text) * longest_blanks(with_short_blanks(text)) ** 2

    def _block(self, start: int, text: str, inner: str) -> Block:
        opened = self._FUNCTION.match(inner)
        if opened is None:
            return _json_call(start, text, inner)
        name, end = opened[1].strip(), inner.rstrip()
        if not end.endswith("</function>"):
            return Block(start=start, text=text, name=name, error=broken(f"{in_line(name)}: </function> is missing"))
        return _tagged(self._TAGS, start, text, name, end[opened.end() :].removesuffix("</function>"))


class _ArgTags(_ToolCallTags):
    """The name, then `<arg_key>` and `<arg_value>` for each parameter: GLM."""

    name = "arg_key and arg_value tags"
    _NAME = re.compile(r"\s*([\w\-\.]+)")
    _TAGS = _Tags(re.compile(r"<arg_key>([^<]*)</arg_key>\s*<arg_value>"), "</arg_value>")
    _PARAMETER = Span("<arg_key>", "</arg_value>", re.compile(r"</arg_key>\s*<arg_value>"))

    def _block(self, start: int, text: str, inner: str) -> Block:
        opened = self._NAME.match(inner)
        if opened is None:
            return _json_call(start, text, inner)
        return _tagged(self._TAGS, start, text, opened[1], inner[opened.end() :])


class _Dsml(Dialect):
    """DeepSeek V4's marks."""

    name = "DSML"
    mark = "<｜DSML｜"
    before_name = "invoke name="
    _CALLS = re.compile("<｜DSML｜ calls>(.*?)</｜DSML｜ calls>", re.DOTALL)
    _INVOKE = re.compile('<｜DSML｜ invoke name="(.*?)">\n(.*?)</｜DSML｜ invoke>', re.DOTALL)
    _TAGS = _Tags(re.compile('<｜DSML｜ parameter name="([^"]*)" string="(true|false)">'), "</｜DSML｜ parameter>")
    _SECTION = Span("<｜DSML｜ calls>", "</｜DSML｜ calls>")
    _CALL = Span('<｜DSML｜ invoke name="', "</｜DSML｜ invoke>", re.compile('">\n'))
    _PARAMETER = Span('<｜DSML｜ parameter name="', "</｜DSML｜ parameter>", re.compile('" string="(?:true|false)">'))

    def _effort_around(self, text: str) -> int:
        effort = self._SECTION.effort(text)
        if effort > MAX_EFFORT:
            return effort
        return effort + effort_of_section(self._CALLS.search(text), text, self._CALL)

    def _effort_within(self, text: str) -> int:
        return sum(self._PARAMETER.effort(block.raw) for block in self._blocks(text))

    def _blocks(self, text: str) -> list[Block]:
        section = self._CALLS.search(text)
        if section is None:
            return []
        return [
            _tagged(self._TAGS, found.start(), found[0], found[1], found[2])
            for found in self._INVOKE.finditer(text, section.start(1), section.end(1))
        ]


class _Sections(Dialect):
    """One section of calls, a mark between a call's name and its JSON: Kimi K2, DeepSeek V3."""

    def __init__(
        self,
        name: str,
        mark: str,
        before_name: str,
        section: str,
        call: str,
        *,
        spans: Sequence[Span],
        within: Span,
        names: Callable[[str], str] | None = None,
        takes_blanks_before: bool = False,
    ) -> None:
        self.name, self.mark, self.before_name = name, mark, before_name
        self.takes_blanks_before = takes_blanks_before
        self._spans, self._within = spans, within
        self._section = re.compile(section, re.DOTALL)
        self._call = re.compile(call, re.DOTALL)
        self._names = names
        """Makes a name of an id, where calls have ids."""

    def _effort_around(self, text: str) -> int:
        effort = sum(span.effort(text) for span in self._spans)
        if effort > MAX_EFFORT:
            return effort
        return effort + effort_of_section(self._section.search(text), text, self._within)

    def _blocks(self, text: str) -> list[Block]:
        section = self._section.search(text)
        if section is None:
            return []
        group = section.lastindex or 0
        found = self._call.finditer(text, section.start(group), section.end(group))
        return [self._block(call) for call in found]

    def _block(self, found: re.Match[str]) -> Block:
        said = found[1].strip()
        name, call_id = (self._names(said), said) if self._names else (said, None)
        return Block(start=found.start(), text=found[0], name=name, raw=found[2].strip(), call_id=call_id)


class _Harmony(Dialect):
    """Messages to `functions.name`: gpt-oss."""

    name = "Harmony"
    mark = "to=functions."
    before_name = r"functions\."
    _STOP = re.compile(r"<\|call\|>|<\|return\|>")
    _MESSAGE = re.compile(r"<\|message\|>(.*?)(?:<\|end\|>|\Z)", re.DOTALL)
    _TO = re.compile(r"to=functions\.([^\s<]*)")

    def _effort_around(self, text: str) -> int:
        return 0  # the parser goes by the marks, once

    def _blocks(self, text: str) -> list[Block]:
        stop = self._STOP.search(text)
        end = stop.start() if stop else len(text)
        blocks: list[Block] = []
        at = 0
        for message in self._MESSAGE.finditer(text, 0, end):
            start = max(text.rfind("<|start|>", at, message.start()), at)
            at = message.end()
            to = self._TO.search(text, start, message.start())
            if to is None or not message[1].strip():
                continue
            raw = message[1].strip()
            blocks.append(Block(start=start, text=text[start:at], name=to[1], raw=raw))
        return blocks


def _kimi_name(call_id: str) -> str:
    named = call_id.split(":", 1)[0]
    return named.split(".", 1)[1] if "." in named else named


DIALECTS: Sequence[Dialect] = (
    _ToolCallTags(),
    _FunctionTags(),
    _ArgTags(),
    _Dsml(),
    _Sections(
        "Kimi K2",
        "<|tool_call",
        r"functions\.",
        r"<\|tool_calls_section_begin\|>(.*?)<\|tool_calls_section_end\|>"
        r"|<\|tool_call_section_begin\|>(.*?)<\|tool_call_section_end\|>",
        r"<\|tool_call_begin\|>\s*([^<]+:\d+)\s*<\|tool_call_argument_begin\|>(.*?)<\|tool_call_end\|>",
        spans=(
            Span("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            Span("<|tool_call_section_begin|>", "<|tool_call_section_end|>"),
        ),
        within=Span("<|tool_call_begin|>", "<|tool_call_end|>", trims=True),
        names=_kimi_name,
    ),
    _Sections(
        "DeepSeek V3",
        "<｜tool▁calls▁begin｜>",
        "tool▁call▁begin｜>",
        "<｜tool▁calls▁begin｜>(.*?)<｜tool▁calls▁end｜>",
        r"<｜tool▁call▁begin｜>(\w+)<｜tool▁sep｜>(.*?)<｜tool▁call▁end｜>",
        spans=(Span("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),),
        within=Span("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
        takes_blanks_before=True,
    ),
    _Harmony(),
)


def broken(why: str) -> str:
    """What the model is told of a call that cannot be taken apart: one line, also where it is a parser's that says why."""
    return f"this tool call could not be read: {' '.join(why.split())}"


def _tagged(tags: _Tags, start: int, text: str, name: str, body: str) -> Block:
    try:
        texts = tags.texts(body)
    except ToolError as exc:
        return Block(start=start, text=text, name=name, raw=body, error=broken(str(exc)))
    return Block(start=start, text=text, name=name, raw=body, texts=texts)


def _json_call(start: int, text: str, inner: str) -> Block:
    """A call that is a JSON object with `name` and `arguments`, the text of the latter kept."""
    try:
        spans = members_of(inner.strip())
    except NoObjectError as exc:
        return Block(start=start, text=text, name=exc.name, error=broken(str(exc)))
    named = spans.get("name", "")
    name = json.loads(named) if named.startswith('"') else None
    call_id = json.loads(spans["id"]) if spans.get("id", "").startswith('"') else None
    if not isinstance(name, str) or not name:
        return Block(start=start, text=text, error=broken('it has no "name", the tool to call'))
    if "arguments" not in spans:
        error = broken('it has no "arguments": write a JSON object, {} when there are none')
        return Block(start=start, text=text, name=name, error=error)
    return Block(start=start, text=text, name=name, raw=spans["arguments"], call_id=call_id)


def dialect_of(renderer: Renderer) -> Dialect | None:
    """The dialect in which a renderer writes a call; None when it is none of these."""
    try:
        text = _probe(renderer)
    except Exception:  # noqa: BLE001 - a renderer of anyone's: one that cannot write a call has no dialect
        return None
    return next((dialect for dialect in DIALECTS if _reads_probe(dialect, text)), None)


def _probe(renderer: Renderer) -> str:
    body = ToolCall.FunctionBody(name="probe", arguments=json.dumps({"x": _PROBE}))
    example, _ = renderer.build_supervised_example(
        [
            {"role": "user", "content": "Go."},
            {"role": "assistant", "content": "", "tool_calls": [ToolCall(function=body, id="functions.probe:0")]},
        ],
        TrainOnWhat.LAST_ASSISTANT_MESSAGE,
    )
    return str(renderer.tokenizer.decode(example.to_ints()))


def _reads_probe(dialect: Dialect, text: str) -> bool:
    blocks = dialect.blocks(text)
    if len(blocks) != 1 or blocks[0].name != "probe":
        return False
    try:
        return blocks[0].arguments(None) == {"x": _PROBE}
    except (ToolError, NestedTooDeeplyError):
        return False
