"""Tokens of a conversation, piece by piece: what was sampled stays as it was sampled, and only what is new is rendered.

A renderer writes whole conversations. The next prompt should be the last one, then exactly the sampled tokens, then what is
new: that is what the model saw and wrote, a rollout is then one training example, and a call costs what is new and not the
conversation again. What a renderer can be continued with is found out by rendering probes, not by its name. Where it cannot
be, and always with `History.TEMPLATE`, the conversation is rendered whole, as the cookbook does.

A tokenizer is not thread-safe, so everything here runs where it is called: on the event loop.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import cache
from itertools import groupby, takewhile
from typing import Any, TypeVar, cast

from agent_env.bundle import Bundle
from agent_env.errors import TrainingError
from agent_env.training._cookbook import (
    EncodedTextChunk,
    Message,
    ModelInput,
    Renderer,
    RendererError,
    ToolCall,
    ToolSpec,
    TrainOnWhat,
    get_image_processor,
    get_renderer,
    get_tokenizer,
)
from agent_env.training._reading import Reading
from agent_env.training._tokenizer import shared_tokenizer

__all__ = ["Framing", "History", "extended", "framing_for", "framing_of"]

T = TypeVar("T")

logger = logging.getLogger(__name__)

_REMEMBERED_TOKENS = 500_000
"""First prompts that are kept, in all: the rollouts of a group start from the same one."""
_SAID_CHARS = 300
"""What is repeated of an error that is not ours."""
_END_TOKENS = 32
"""Sampled tokens that are read for a stop text."""

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


class History(StrEnum):
    """What a prompt says of the earlier messages."""

    TOKENS = "tokens"
    """The tokens that were seen and sampled, as far as the renderer can go on from them."""
    TEMPLATE = "template"
    """The conversation as the chat template writes it, rendered whole each time, as the cookbook does."""


class _Next(Enum):
    """What comes after an assistant's message."""

    ANSWERS = "tool answers"
    TURN = "a user's message"
    ANSWERS_TURN = "tool answers and a user's message"
    NOTHING = "no message"

    @property
    def has_answers(self) -> bool:
        return self in (_Next.ANSWERS, _Next.ANSWERS_TURN)

    @property
    def has_turn(self) -> bool:
        return self in (_Next.TURN, _Next.ANSWERS_TURN)

    @classmethod
    def of(cls, new: Sequence[Message]) -> _Next | None:
        """What these messages are; None when they are nothing that follows an assistant's message."""
        roles = [message["role"] for message in new]
        answers = sum(1 for _ in takewhile(lambda role: role == "tool", roles))
        if any(role != "user" for role in roles[answers:]):
            return None
        if answers:
            return cls.ANSWERS if answers == len(roles) else cls.ANSWERS_TURN
        return cls.TURN if roles else cls.NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class _StandIn:
    """A short conversation whose tokens are known: what is rendered after it is cut off there."""

    open: list[int]
    """Up to the end of its last message's text."""
    closed: list[int] | None
    """Up to the stop that ends this message; None where the template ends it in a way that no model samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _AroundCalls:
    """What a template writes around a message's calls."""

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


def framing_of(renderer_name: str, model_name: str, history: History = History.TOKENS) -> Framing:
    """The framing of one renderer on one model's tokenizer, probed once per process."""
    return _framing_of(renderer_name, model_name, history)


@cache
def _framing_of(renderer_name: str, model_name: str, history: History) -> Framing:
    tokenizer = _tokenizer_of(model_name)
    renderer = get_renderer(renderer_name, tokenizer, model_name=model_name)
    if getattr(renderer, "image_processor", renderer) is None:
        try:
            processor = get_image_processor(model_name)
        except Exception as exc:  # noqa: BLE001 - transformers' own, of many kinds: then it reads text only
            logger.info("renderer %s: images are placeholders (%s)", renderer_name, exc)
        else:
            renderer = get_renderer(renderer_name, tokenizer, processor, model_name=model_name)
    framing = Framing(renderer, history)
    if history is History.TOKENS and (differs := framing.differs):
        logger.warning(
            "renderer %s: a conversation cannot be continued token for token (%s); every message renders it whole, as with"
            " history='template'",
            renderer_name,
            differs,
        )
    return framing


@cache
def _tokenizer_of(model_name: str) -> Any:
    return shared_tokenizer(get_tokenizer(model_name))


def framing_for(bundle: Bundle, renderer_name: str, model_name: str, history: History = History.TOKENS) -> Framing:
    """The framing of the episodes of a bundle's played agent.

    Raises:
        TrainingError: When there is no such renderer, or the renderer cannot write the agent's tools.
    """
    try:
        get_tokenizer(model_name)
    except Exception as exc:
        said = " ".join(str(exc).split())[:_SAID_CHARS]
        raise TrainingError(f"model_name_for_tokenizer={model_name!r}: its tokenizer cannot be loaded: {said}") from exc
    try:
        framing = framing_of(renderer_name, model_name, history)
    except RendererError as exc:
        raise TrainingError(f"renderer_name={renderer_name!r}: {exc}") from exc
    except Exception as exc:
        raise TrainingError(
            f"renderer_name={renderer_name!r}: it cannot be used with the tokenizer of {model_name!r}:"
            f" {type(exc).__name__}: {exc}"
        ) from exc
    played = bundle.agents[bundle.played]
    if played.envs and not framing.writes_tools:
        raise TrainingError(
            f"renderer_name={renderer_name!r}: it cannot write tools, and agent '{played.name}' of bundle"
            f" {bundle.name} has those of env '{played.envs[0]}'; take one that can, such as qwen3_disable_thinking"
        )
    return framing


class Framing:
    """How one renderer's conversations go on."""

    def __init__(self, renderer: Renderer, history: History = History.TOKENS) -> None:
        self.renderer = renderer
        self.history = history
        self.reading = Reading(renderer)
        """How what was sampled is read."""
        self.writes_tools = _writes_tools(renderer)
        self._stops: list[Any] = list(renderer.get_stop_sequences())
        self._ends = frozenset(stop for stop in self._stops if isinstance(stop, int))
        self._end_texts = tuple(stop for stop in self._stops if isinstance(stop, str))
        self._first: OrderedDict[tuple[object, ...], ModelInput] = OrderedDict()
        self._first_tokens = 0
        self._stand_ins: dict[_Next, _StandIn] = {}
        self._differs: dict[_Next, str] = {}
        for after in _Next:
            rendered_whole = history is History.TEMPLATE
            self._differs[after] = "history='template'" if rendered_whole else self._why_not(after)
        self._repeats_calls = self.writes_tools and _holds(self._probe_repeats, default=False)
        self._around_calls = _holds(self._probe_around, default=_AroundCalls()) if self.writes_tools else _AroundCalls()
        self.shows_images = _holds(self._probe_images, default=False)
        """Whether images in a tool's answer are given to the model."""

    @property
    def continues(self) -> bool:
        """Whether tool answers can be put after the sampled tokens."""
        return not self._differs[_Next.ANSWERS]

    @property
    def continues_turns(self) -> bool:
        """Whether a later prompt can be: not where the template writes earlier replies without their thinking, say."""
        return not self._differs[_Next.TURN]

    @property
    def differs(self) -> str:
        """Why nothing can be put after the sampled tokens within a turn, or without tools at a new one; else empty."""
        return self._differs[_Next.ANSWERS if self.writes_tools else _Next.TURN]

    def prefix(self, tools: Sequence[ToolSpec], system_prompt: str) -> list[Message]:
        """The messages that a conversation starts with: the system prompt, and the tools as the renderer writes them."""
        if tools:
            return self.renderer.create_conversation_prefix_with_tools(list(tools), system_prompt)
        return [{"role": "system", "content": system_prompt}] if system_prompt else []

    def first(self, messages: list[Message]) -> ModelInput:
        """The prompt that a conversation starts with."""
        key = tuple(item for message in messages for item in ("", *message.items()))
        if not all(isinstance(value, str) for message in messages for value in message.values()):
            return self.whole(messages)  # an image is not told from another by what it prints as
        if (known := self._first.get(key)) is None:
            known = self._first[key] = self.whole(messages)
            self._first_tokens += known.length
            while self._first_tokens > _REMEMBERED_TOKENS and len(self._first) > 1:
                self._first_tokens -= self._first.popitem(last=False)[1].length
        return known

    def whole(self, messages: list[Message]) -> ModelInput:
        """The prompt for the next message of a conversation, all of it rendered."""
        return ModelInput(chunks=self._chunks(messages))

    def continued(
        self, prompt: ModelInput, sampled: Sequence[int], new: Sequence[Message], *, truncated: bool = False
    ) -> ModelInput | None:
        """The prompt after `prompt`, the tokens `sampled` from it, and then the `new` messages.

        Args:
            prompt: What was sampled from.
            sampled: The assistant's message, its end included.
            new: What comes after it: tool answers, then messages of the user; or nothing, where the assistant goes on.
            truncated: Whether sampling broke off: what the template writes to end a message is then put after `sampled`.

        Returns:
            None when this renderer cannot go on like that, or not from these tokens.
        """
        after = _Next.of(new)
        if after is None or self._differs[after] or not sampled:
            return None
        rest = self._rest(after, new, sampled, truncated=truncated)
        if rest is None:
            return None
        tokens, others = rest
        return ModelInput(chunks=[*prompt.chunks, EncodedTextChunk(tokens=[*sampled, *tokens]), *others])

    def written(self, message: Message) -> list[int]:
        """The tokens that a model writes for an assistant's message, as the renderer would have them.

        Raises:
            RendererError: When the renderer does not write it after a prompt, as reasoning with thinking turned off.
        """
        tokens = self._rendered(message)
        # DeepSeek V3's writes no end behind calls without a text, where a model does.
        return tokens if self._is_ended(tokens) or not self._ends else [*tokens, self._stops[0]]

    def _rendered(self, message: Message) -> list[int]:
        """What the renderer writes for an assistant's message after the prompt that it was sampled from."""
        start: list[Message] = [{"role": "user", "content": "?"}]
        prompt, tokens = self._tokens(start), list[int]()
        for said in (message, _thought("", message)):
            example, _ = self.renderer.build_supervised_example([*start, said], TrainOnWhat.LAST_ASSISTANT_MESSAGE)
            tokens = example.to_ints()
            if tokens[: len(prompt)] == prompt:
                return tokens[len(prompt) :]
        # A prompt may end within what the template writes as one token, as in the empty lines of an empty thinking block.
        before, text = (str(self.renderer.tokenizer.decode(some)) for some in (prompt, tokens))
        if not text.startswith(before):
            raise RendererError(f"{type(self.renderer).__name__} does not write this message after a prompt: {message}")
        return list(self.renderer.tokenizer.encode(text.removeprefix(before), add_special_tokens=False))

    def cleaned(self, message: Message) -> Message:
        """A parsed message without what the renderer writes itself, so that rendered again it is what was sampled.

        Templates write line ends around a message's calls, which the cookbook's parsers take for text; and where a message
        has nothing but a call, one of them gives the call as text too.
        """
        content = message["content"]
        if not message.get("tool_calls"):
            return message
        if isinstance(content, str):
            return {**message, "content": ""} if self._repeats_calls else message
        kept = sum(1 for _ in takewhile(lambda part: part["type"] != "text", content))
        if any(part["type"] != "text" for part in content[kept:]):
            return message
        text = "".join(part["text"] for part in content[kept:])
        calls = len(message.get("tool_calls", ())) + len(message.get("unparsed_tool_calls", ()))
        text = self._around_calls.taken_from(text, calls=calls)
        return {**message, "content": [*content[:kept], *([{"type": "text", "text": text}] if text else [])]}

    def _probe_repeats(self) -> bool:
        content = self._parsed_call("a")["content"]
        return isinstance(content, str) and bool(content.strip())

    def _probe_around(self) -> _AroundCalls:
        """What the parser takes for text around calls: after a text and alone, and for each call more."""
        (texts, bares) = (
            [_plain_text(self._parsed_call(*["b"] * calls, text=text)) for calls in (1, 2, 3)]
            for text in ("Now b.", "")
        )
        ends = [text.removeprefix("Now b.") for text in texts]
        gap = ends[1][len(ends[0]) :]
        grows = all(some == [some[0] + gap * more for more in range(3)] for some in (ends, bares))
        if not grows or not all(text.startswith("Now b.") for text in texts):
            return _AroundCalls()
        return _AroundCalls(after_text=ends[0], alone=bares[0], gap=gap)

    def _parsed_call(self, *arguments: str, text: str = "") -> Message:
        message, _ = self.renderer.parse_response(self.written(_call_message(*arguments, text=text)))
        return message

    def _probe_images(self) -> bool:
        answer = Message(
            role="tool", content=[{"type": "image", "image": _IMAGE}], name="probe", tool_call_id="probe:0"
        )
        return len(self._chunks([*_stub(answers=True), answer])) > 1

    def _chunks(self, messages: Sequence[Message]) -> list[Any]:
        """A conversation rendered, with no text chunk next to another."""
        return _joined(self.renderer.build_generation_prompt(list(messages)).chunks)

    def _split(self, messages: Sequence[Message]) -> tuple[list[int], list[Any]]:
        """The same as the tokens up to its first image, and the chunks from there on."""
        chunks = self.renderer.build_generation_prompt(list(messages)).chunks
        texts = list(takewhile(lambda chunk: isinstance(chunk, EncodedTextChunk), chunks))
        return [token for chunk in texts for token in chunk.tokens], _joined(chunks[len(texts) :])

    def _tokens(self, messages: Sequence[Message]) -> list[int]:
        return self.renderer.build_generation_prompt(list(messages)).to_ints()

    def _rest(
        self, after: _Next, new: Sequence[Message], sampled: Sequence[int], *, truncated: bool
    ) -> tuple[list[int], list[Any]] | None:
        """What a template writes after an assistant's message for the new ones, up to where the next one starts.

        The new messages are rendered after a stand-in for the conversation, which is cut off.

        Returns:
            The tokens up to the first image, and the chunks from there on.
        """
        known = self._stand_ins[after]
        tokens, others = self._split([*_stub(answers=after.has_answers), *new])
        if tokens[: len(known.open)] != known.open:  # a template that says the date, on another day
            self._differs[after] = self._why_not(after)
            if self._differs[after]:
                return None
            known = self._stand_ins[after]
        if known.closed is not None and self._ends_like(sampled, known.closed):
            cut = known.closed
        elif truncated and not self._is_ended(sampled) and not after.has_answers:
            cut = known.open
        else:
            return None
        if tokens[: len(cut)] != cut:
            return None
        return tokens[len(cut) :], others

    def _is_ended(self, tokens: Sequence[int]) -> bool:
        """Whether tokens end with a stop of the renderer's."""
        if not self._ends.isdisjoint(tokens[-1:]):
            return True
        return bool(self._end_texts) and self._text(tokens).endswith(self._end_texts)

    def _ends_like(self, sampled: Sequence[int], closed: Sequence[int]) -> bool:
        """Whether a message was ended as the template ends it: other stops are no part of the template's conversation."""
        if sampled[-1] == closed[-1] and closed[-1] in self._ends:
            return True
        texts = [text for text in self._end_texts if self._text(closed).endswith(text)]
        return any(self._text(sampled).endswith(text) for text in texts)

    def _text(self, tokens: Sequence[int]) -> str:
        return str(self.renderer.tokenizer.decode(list(tokens[-_END_TOKENS:])))

    def _why_not(self, after: _Next) -> str:
        """What differs when `after` is put after sampled tokens; empty where nothing does."""
        if after.has_answers and not self.writes_tools:
            return "it cannot write tools"
        try:
            self._stand_ins[after] = self._stand_in(after)
            self._compare(after)
        except _DiffersError as exc:
            return str(exc)
        except Exception as exc:  # noqa: BLE001 - a renderer of anyone's: one that cannot write a probe cannot be continued
            return f"a probe with {after.value} fails with {type(exc).__name__}: {exc}"
        return ""

    def _stand_in(self, after: _Next) -> _StandIn:
        """Find what all continuations of a short conversation begin with, and in it where the message ends."""
        one, other = (
            _shared([self._tokens([*_stub(text, answers=after.has_answers), *new]) for new in _news(after)])
            for text in ("x", "y")
        )
        end = len(_shared([one[::-1], other[::-1]]))
        at = len(one) - end
        if not at or not end or one[:at] == other[:at]:
            raise _DiffersError(f"what it writes before {after.value} depends on what comes after")
        stops = (here for here in range(at + 1, len(one) + 1) if self._is_ended(one[:here]))
        closed = next(stops, None)
        if closed is None and after is not _Next.NOTHING:
            raise _DiffersError(f"no stop token ends a message before {after.value}")
        return _StandIn(open=one[:at], closed=None if closed is None else one[:closed])

    def _compare(self, after: _Next) -> None:
        """Compare whole renderings with the pieces.

        Within a turn they must end alike. Where a user's message follows they must be the same text: a template may write
        what was said before it in another way. Nor may it take thinking out, unless the renderer says that no model thinks.
        """
        text = self.renderer.tokenizer.decode
        said = _said(after)
        if after.has_turn and not self.renderer.has_extension_property:
            said += [message for message in (_thought("Why?", said[1]),) if self._can_write(message)]
        for start in self._starts(after):
            prompt = self._tokens(start)
            for message in said:
                for new in _news(after):
                    whole, rest = self._tokens([*start, message, *new]), self._probed_rest(after, new)
                    ends_alike = whole[len(whole) - len(rest) :] == rest
                    if after is _Next.NOTHING:  # the end of a text may be one token with what follows
                        ends_alike = str(text(whole)).endswith(str(text(rest)))
                    if not ends_alike:
                        raise _DiffersError(f"it writes {after.value} differently after another conversation")
                    if after.has_turn and text(whole) != text([*prompt, *self._rendered(message), *rest]):
                        raise _DiffersError(f"it rewrites earlier messages before {after.value}")

    def _can_write(self, message: Message) -> bool:
        try:
            self._rendered(message)
        except RendererError:
            return False
        return True

    def _probed_rest(self, after: _Next, new: Sequence[Message]) -> list[int]:
        known = self._stand_ins[after]
        cut = known.open if known.closed is None else known.closed
        tokens = self._tokens([*_stub(answers=after.has_answers), *new])
        if tokens[: len(cut)] != cut:
            raise _DiffersError(f"what it writes before {after.value} depends on what comes after")
        return tokens[len(cut) :]

    def _starts(self, after: _Next) -> list[list[Message]]:
        """Conversations to go on from: without tools too, for a template may keep thinking only where there are some."""
        go = Message(role="user", content="Go.")
        if not self.writes_tools:
            return [[*self.prefix([], "Probe."), go]]
        start = [*self.prefix([_TOOL], "Probe."), go]
        called = [*start, _call_message("a", text="First."), *_answers("1")]
        return [start, called] if after.has_answers else [[go], start, called]


def extended(prompt: ModelInput, *pieces: Sequence[int]) -> ModelInput:
    """`prompt` with more tokens after it."""
    return ModelInput(chunks=[*prompt.chunks, *(EncodedTextChunk(tokens=list(piece)) for piece in pieces if piece)])


def _holds(probe: Callable[[], T], default: T) -> T:
    try:
        return probe()
    except Exception:  # noqa: BLE001 - a renderer of anyone's, asked for what it may not be able to write
        return default


def _writes_tools(renderer: Renderer) -> bool:
    try:
        renderer.create_conversation_prefix_with_tools([_TOOL], "")
    except NotImplementedError:
        return False
    return True


def _shared(sequences: Sequence[Sequence[int]]) -> list[int]:
    """What all of them begin with."""
    return [same[0] for same in takewhile(lambda tokens: len(set(tokens)) == 1, zip(*sequences, strict=False))]


def _joined(chunks: Sequence[Any]) -> list[Any]:
    """Chunks, with those of text that are next to one another made one."""
    joined: list[Any] = []
    for is_text, some in groupby(chunks, key=lambda chunk: isinstance(chunk, EncodedTextChunk)):
        if is_text:
            joined.append(EncodedTextChunk(tokens=[token for chunk in some for token in chunk.tokens]))
        else:
            joined.extend(some)
    return joined


@cache
def _stub(text: str = "x", *, answers: bool) -> tuple[Message, ...]:
    said = _call_message("x", text=text) if answers else Message(role="assistant", content=text)
    return {"role": "user", "content": "x"}, said


def _said(after: _Next) -> list[Message]:
    if after.has_answers:
        return [_call_message("a"), _call_message("b", text="Now b."), _call_message("c", "d")]
    return [{"role": "assistant", "content": "Yes."}, {"role": "assistant", "content": "a\nb"}]


def _news(after: _Next) -> list[list[Message]]:
    answers = [_answers("one\ntwo"), _answers("2"), _answers("<x>", "three")]
    prompts = [_prompts("one\ntwo"), _prompts("2"), _prompts("<x>", "three")]
    match after:
        case _Next.ANSWERS:
            return answers
        case _Next.TURN:
            return prompts
        case _Next.ANSWERS_TURN:
            return [[*some, *more] for some, more in zip(answers, prompts, strict=True)]
        case _Next.NOTHING:
            return [[]]


def _call_message(*arguments: str, text: str = "") -> Message:
    body = cast("Callable[..., Any]", ToolCall.FunctionBody)
    calls = [
        ToolCall(function=body(name="probe", arguments=f'{{"x": "{value}"}}'), id=f"probe:{at}")
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


def _plain_text(message: Message) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _thought(thinking: str, message: Message) -> Message:
    """A message with thinking before it; with none, as some templates write one that was not thought about."""
    content = message["content"]
    parts: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if any(part["type"] == "thinking" for part in parts):
        return message
    return {**message, "content": [{"type": "thinking", "thinking": thinking}, *parts]}
