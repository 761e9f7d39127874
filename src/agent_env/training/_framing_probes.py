"""What a renderer can be continued with, and what its parser takes for text, found out by probes and not by its name.

A probe is a short conversation that the renderer writes before any rollout. To be continued, it must write what follows an
assistant's message after another conversation as it does after a short one: this is then the stand-in for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import takewhile
from typing import TypeVar

from agent_env.training._cookbook import Message, Renderer, RendererError, ToolCall, ToolSpec
from agent_env.training._template import Template, thought

__all__ = ["AroundCalls", "Next", "Probes", "StandIn"]

T = TypeVar("T")

_TOOL: ToolSpec = {
    "name": "probe",
    "description": "A probe.",
    "parameters": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
}
_IMAGE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAEAAAABAAQAAAACCEkxzAAAAFElEQVR42mP8zwABTAyjjFEGyQwAzx8Bf7QK4E8AAAAASUVO"
    "RK5CYII="
)
"""A white one of 64 by 64."""


class Next(Enum):
    """What comes after an assistant's message."""

    ANSWERS = "tool answers"
    TURN = "a user's message"
    ANSWERS_TURN = "tool answers and a user's message"
    NOTHING = "no message"

    @property
    def has_answers(self) -> bool:
        return self in (Next.ANSWERS, Next.ANSWERS_TURN)

    @property
    def has_turn(self) -> bool:
        return self in (Next.TURN, Next.ANSWERS_TURN)

    @classmethod
    def of(cls, new: Sequence[Message]) -> Next | None:
        """What these messages are; None when they are nothing that follows an assistant's message."""
        roles = [message["role"] for message in new]
        answers = sum(1 for _ in takewhile(lambda role: role == "tool", roles))
        if any(role != "user" for role in roles[answers:]):
            return None
        if answers:
            return cls.ANSWERS if answers == len(roles) else cls.ANSWERS_TURN
        return cls.TURN if roles else cls.NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """A short conversation whose tokens are known: what is rendered after it is cut off there."""

    messages: Sequence[Message]
    open: list[int]
    """Up to the end of its last message's text."""
    closed: list[int] | None
    """Up to the stop that ends this message; None where the template ends it in a way that no model samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AroundCalls:
    """What a template writes around a message's calls, and a parser takes for its text."""

    after_text: str = ""
    alone: str = ""
    gap: str = ""
    """For each call more than one."""

    def taken_from(self, text: str, *, calls: int) -> str:
        """A text without it, where it is there."""
        gaps = self.gap * (calls - 1)
        return "" if text == self.alone + gaps else text.removesuffix(self.after_text + gaps)


class _DiffersError(Exception):
    """Why a renderer cannot be continued."""


class Probes:
    """What is asked of one renderer.

    Args:
        template: The renderer.
        parser: The one that parses what models write with it.
    """

    def __init__(self, template: Template, parser: Renderer) -> None:
        self._template = template
        self._parser = parser
        self.writes_tools = self._writes_tools()

    def stand_in(self, after: Next) -> StandIn | str:
        """What stands in for a conversation when `after` is put after sampled tokens; or why nothing does."""
        if after.has_answers and not self.writes_tools:
            return "it cannot write tools"
        try:
            known = self._found(after)
            self._compare(known, after)
        except _DiffersError as exc:
            return str(exc)
        except Exception as exc:  # noqa: BLE001 - a renderer of anyone's: one that cannot write a probe cannot be continued
            return f"a probe with {after.value} fails with {type(exc).__name__}: {exc}"
        return known

    def around_calls(self) -> AroundCalls:
        """What the parser takes for text around calls: after a text and alone, and for each call more."""
        return _holds(self._around_calls, default=AroundCalls()) if self.writes_tools else AroundCalls()

    def repeats_calls(self) -> bool:
        """Whether the parser gives the call of a message without a text as its text too."""
        return self.writes_tools and _holds(self._repeats_calls, default=False)

    def shows_images(self) -> bool:
        """Whether images in a tool's answer are given to the model."""
        return _holds(self._shows_images, default=False)

    def _writes_tools(self) -> bool:
        try:
            self._template.prefix([_TOOL], "")
        except NotImplementedError:
            return False
        return True

    def _repeats_calls(self) -> bool:
        content = self._parsed_call("a")["content"]
        return isinstance(content, str) and bool(content.strip())

    def _around_calls(self) -> AroundCalls:
        (texts, bares) = (
            [_text_parts(self._parsed_call(*["b"] * calls, text=text)) for calls in (1, 2, 3)]
            for text in ("Now b.", "")
        )
        ends = [text.removeprefix("Now b.") for text in texts]
        gap = ends[1][len(ends[0]) :]
        grows = all(some == [some[0] + gap * more for more in range(3)] for some in (ends, bares))
        if not grows or not all(text.startswith("Now b.") for text in texts):
            return AroundCalls()
        return AroundCalls(after_text=ends[0], alone=bares[0], gap=gap)

    def _parsed_call(self, *arguments: str, text: str = "") -> Message:
        message, _ = self._parser.parse_response(self._template.sampled(_call_message(*arguments, text=text)))
        return message

    def _shows_images(self) -> bool:
        answer = Message(
            role="tool", content=[{"type": "image", "image": _IMAGE}], name="probe", tool_call_id="probe:0"
        )
        return len(self._template.chunks([*_stub(answers=True), answer])) > 1

    def _found(self, after: Next) -> StandIn:
        """Find what all continuations of a short conversation begin with, and in it where the message ends."""
        stub = _stub(answers=after.has_answers)
        one, other = (
            _shared([self._template.tokens([*start, *new]) for new in _following(after)])
            for start in (stub, _stub("y", answers=after.has_answers))
        )
        end = len(_shared([one[::-1], other[::-1]]))
        at = len(one) - end
        if not at or not end or one[:at] == other[:at]:
            raise _DiffersError(f"what it writes before {after.value} depends on what comes after")
        stops = (here for here in range(at + 1, len(one) + 1) if self._template.is_ended(one[:here]))
        closed = next(stops, None)
        if closed is None and after is not Next.NOTHING:
            raise _DiffersError(f"no stop token ends a message before {after.value}")
        return StandIn(messages=stub, open=one[:at], closed=None if closed is None else one[:closed])

    def _compare(self, known: StandIn, after: Next) -> None:
        """Compare whole renderings with the pieces.

        Within a turn they must end alike. Where a user's message follows they must be the same text: a template may write
        what was said before it in another way. Nor may it take thinking out, unless the renderer says that no model thinks.
        """
        text = self._template.renderer.tokenizer.decode
        replies = _replies(after)
        if after.has_turn and not self._template.renderer.has_extension_property:
            replies += [message for message in (thought("Why?", replies[1]),) if self._can_write(message)]
        for start in self._starts(after):
            prompt = self._template.tokens(start)
            for reply in replies:
                for new in _following(after):
                    whole, rest = self._template.tokens([*start, reply, *new]), self._rest(known, after, new)
                    ends_alike = whole[len(whole) - len(rest) :] == rest
                    if after is Next.NOTHING:  # the end of a text may be one token with what follows
                        ends_alike = str(text(whole)).endswith(str(text(rest)))
                    if not ends_alike:
                        raise _DiffersError(f"it writes {after.value} differently after another conversation")
                    if after.has_turn and text(whole) != text([*prompt, *self._template.message(reply), *rest]):
                        raise _DiffersError(f"it rewrites earlier messages before {after.value}")

    def _can_write(self, message: Message) -> bool:
        try:
            self._template.message(message)
        except RendererError:
            return False
        return True

    def _rest(self, known: StandIn, after: Next, new: Sequence[Message]) -> list[int]:
        cut = known.open if known.closed is None else known.closed
        tokens = self._template.tokens([*known.messages, *new])
        if tokens[: len(cut)] != cut:
            raise _DiffersError(f"what it writes before {after.value} depends on what comes after")
        return tokens[len(cut) :]

    def _starts(self, after: Next) -> list[list[Message]]:
        """Conversations to go on from: without tools too, for a template may keep thinking only where there are some."""
        go = Message(role="user", content="Go.")
        if not self.writes_tools:
            return [[*self._template.prefix([], "Probe."), go]]
        start = [*self._template.prefix([_TOOL], "Probe."), go]
        called = [*start, _call_message("a", text="First."), *_answers("1")]
        return [start, called] if after.has_answers else [[go], start, called]


def _holds(probe: Callable[[], T], default: T) -> T:
    try:
        return probe()
    except Exception:  # noqa: BLE001 - a renderer of anyone's, asked for what it may not be able to write
        return default


def _shared(sequences: Sequence[Sequence[int]]) -> list[int]:
    """What all of them begin with."""
    return [same[0] for same in takewhile(lambda tokens: len(set(tokens)) == 1, zip(*sequences, strict=False))]


@cache
def _stub(text: str = "x", *, answers: bool) -> tuple[Message, ...]:
    """The conversation of a stand-in, up to its assistant's message."""
    reply = _call_message("x", text=text) if answers else Message(role="assistant", content=text)
    return {"role": "user", "content": "x"}, reply


def _replies(after: Next) -> list[Message]:
    """Assistant's messages that `after` may follow."""
    if after.has_answers:
        return [_call_message("a"), _call_message("b", text="Now b."), _call_message("c", "d")]
    return [{"role": "assistant", "content": "Yes."}, {"role": "assistant", "content": "a\nb"}]


def _following(after: Next) -> list[list[Message]]:
    """Messages as `after` says, that have nothing in common."""
    answers = [_answers("one\ntwo"), _answers("2"), _answers("<x>", "three")]
    prompts = [_prompts("one\ntwo"), _prompts("2"), _prompts("<x>", "three")]
    match after:
        case Next.ANSWERS:
            return answers
        case Next.TURN:
            return prompts
        case Next.ANSWERS_TURN:
            return [[*some, *more] for some, more in zip(answers, prompts, strict=True)]
        case Next.NOTHING:
            return [[]]


def _call_message(*arguments: str, text: str = "") -> Message:
    calls = [
        ToolCall(function=ToolCall.FunctionBody(name="probe", arguments=f'{{"x": "{value}"}}'), id=f"probe:{at}")
        for at, value in enumerate(arguments)
    ]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def _answers(*texts: str) -> list[Message]:
    return [
        {"role": "tool", "content": text, "name": "probe", "tool_call_id": f"probe:{at}"}
        for at, text in enumerate(texts)
    ]


def _prompts(*texts: str) -> list[Message]:
    return [{"role": "user", "content": text} for text in texts]


def _text_parts(message: Message) -> str:
    """What a message says without its thinking, as it is."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
