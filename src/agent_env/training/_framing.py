"""Tokens of a conversation, piece by piece: what was sampled stays as it was sampled, and only what is new is rendered.

A renderer writes whole conversations. The next prompt should be the last one, then exactly the sampled tokens, then what is
new: that is what the model saw and wrote, a rollout is then one training example, and a call costs what is new and not the
conversation again. What a renderer can be continued with is found out by rendering probes, not by its name. Where it cannot
be, and always with `History.TEMPLATE`, the conversation is rendered whole, as the cookbook does.

Of a rollout all of this runs on the event loop. The way to a thread and back costs more than it saves, as
`bench/rollouts.py` measures, and rollouts that are ready at once take turns (`_pace.py`). It is not for the tokenizer's sake:
threads may share that (`_tokenizer.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cache
from itertools import takewhile
from typing import Any

from agent_env.bundle import Bundle
from agent_env.envs import ToolSpec
from agent_env.errors import TrainingError
from agent_env.training._calls import CallReader, WrittenCall
from agent_env.training._cookbook import (
    EncodedTextChunk,
    Message,
    ModelInput,
    Renderer,
    RendererError,
    get_image_processor,
    get_renderer,
    get_tokenizer,
)
from agent_env.training._cookbook import ToolSpec as CookbookToolSpec
from agent_env.training._framing_probes import Next, Probes, StandIn
from agent_env.training._remembered import Remembered, key_of
from agent_env.training._template import Template
from agent_env.training._tokenizer import shared_tokenizer

__all__ = ["Framing", "History", "extended", "framing_for", "framing_of"]

logger = logging.getLogger(__name__)

_ERROR_CHARS = 300
"""Characters that are repeated of an error which is not ours: enough for what is wrong, without the page on what to try."""


class History(StrEnum):
    """What a prompt says of the earlier messages."""

    TOKENS = "tokens"
    """The tokens that were seen and sampled, as far as the renderer can go on from them."""
    TEMPLATE = "template"
    """The conversation as the chat template writes it, rendered whole each time, as the cookbook does."""


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
    if differs := framing.differs:
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
    except Exception as exc:  # transformers' and the hub's own, of many kinds
        why = " ".join(str(exc).split())[:_ERROR_CHARS]
        raise TrainingError(f"model_name_for_tokenizer={model_name!r}: its tokenizer cannot be loaded: {why}") from exc
    try:
        framing = framing_of(renderer_name, model_name, history)
    except RendererError as exc:
        raise TrainingError(f"renderer_name={renderer_name!r}: {exc}") from exc
    except Exception as exc:  # a renderer of anyone's, on a tokenizer that it may not be made for
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
    """How one renderer's conversations go on, and how what was sampled in them is read."""

    def __init__(self, renderer: Renderer, history: History = History.TOKENS) -> None:
        self.renderer = renderer
        self._template = Template(renderer)
        self._calls = CallReader(renderer)
        self._probes = Probes(self._template, self.parser)
        self._first = Remembered[ModelInput]()
        self._after_stand_in = Remembered[tuple[int, ...]]()
        """What was rendered for new messages of text after their stand-in: a group's rollouts make many of the same calls."""
        self._stand_ins: dict[Next, StandIn | str] = {}
        """For what may come next, what it is rendered after; or why it cannot be put after sampled tokens."""
        if history is History.TOKENS:
            self._stand_ins = {after: self._probes.stand_in(after) for after in Next}
        self._repeats_calls = self._probes.repeats_calls()
        self._around_calls = self._probes.around_calls()
        self.writes_tools = self._probes.writes_tools
        self.shows_images = self._probes.shows_images()
        """Whether images in a tool's answer are given to the model."""

    @property
    def parser(self) -> Renderer:
        """The renderer to parse with: its `parse_response` neither raises nor stalls on calls in a dialect that is known."""
        return self._calls.parser

    @property
    def differs(self) -> str:
        """Why nothing can be put after the sampled tokens within a turn, or without tools at a new one.

        Empty where it can be, and with `History.TEMPLATE`, where nobody wants to.
        """
        found = self._stand_ins.get(Next.ANSWERS if self.writes_tools else Next.TURN)
        return found if isinstance(found, str) else ""

    def prefix(self, tools: Sequence[CookbookToolSpec], system_prompt: str) -> list[Message]:
        """The messages that a conversation starts with: the system prompt, and the tools as the renderer writes them."""
        return self._template.prefix(tools, system_prompt)

    def first(self, messages: list[Message]) -> ModelInput:
        """The prompt that a conversation starts with; the rollouts of a group start from the same one."""
        key = key_of(messages)
        known = self._first.get(key)
        if known is None:
            known = self.whole(messages)
            self._first.put(key, known, tokens=known.length)
        return known

    def whole(self, messages: list[Message]) -> ModelInput:
        """The prompt for the next message of a conversation, all of it rendered."""
        return ModelInput(chunks=self._template.chunks(messages))

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
            None with `History.TEMPLATE`, and when this renderer cannot go on like that, or not from these tokens.
        """
        after = Next.of(new)
        rest = self._rest(after, new, sampled, truncated=truncated) if after is not None and sampled else None
        if rest is None:
            return None
        tokens, others = rest
        return ModelInput(chunks=[*prompt.chunks, EncodedTextChunk(tokens=(*sampled, *tokens)), *others])

    def written(self, message: Message) -> list[int]:
        """The tokens that a model writes for an assistant's message, as the renderer would have them.

        Raises:
            RendererError: When the renderer does not write it after a prompt, as reasoning with thinking turned off.
        """
        return self._template.sampled(message)

    def ended(self, sampled: Sequence[int]) -> list[int]:
        """What was sampled, with the end of a message in place of an end of text: both are a clean end."""
        return self._template.ended(sampled)

    def read(
        self, message: Message, sampled: Sequence[int], tools: Mapping[str, ToolSpec]
    ) -> tuple[Message, list[WrittenCall]]:
        """Read a message as the model wrote it.

        Args:
            message: What the parser has made of `sampled`.
            sampled: The tokens of the message.
            tools: What may be called, by name.

        Returns:
            The message, so that rendered again it is what was sampled, its arguments typed by the tools' schemas; and its
            calls in the order they were written.
        """
        return self._calls.read(self._cleaned(message), str(self.renderer.tokenizer.decode(sampled)), tools)

    def _cleaned(self, message: Message) -> Message:
        """A parsed message without what the renderer writes itself.

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

    def _rest(
        self, after: Next, new: Sequence[Message], sampled: Sequence[int], *, truncated: bool
    ) -> tuple[list[int], list[Any]] | None:
        """What a template writes after an assistant's message for the new ones, up to where the next one starts.

        The new messages are rendered after a stand-in for the conversation, which is cut off.

        Returns:
            The tokens up to the first image, and the chunks from there on.
        """
        known = self._stand_ins.get(after)
        if not isinstance(known, StandIn):
            return None
        tokens, others = self._after(known, new)
        if tokens[: len(known.open)] != known.open:
            # A template that says the date, on another day: from then on the old stand-in is of no use to anyone.
            self._after_stand_in.clear()
            known = self._stand_ins[after] = self._probes.stand_in(after)
            if not isinstance(known, StandIn):
                return None
        if known.closed is not None and self._template.ends_like(sampled, known.closed):
            cut = known.closed
        elif truncated and not self._template.is_ended(sampled) and not after.has_answers:
            cut = known.open
        else:
            return None
        return (tokens[len(cut) :], others) if tokens[: len(cut)] == cut else None

    def _after(self, known: StandIn, new: Sequence[Message]) -> tuple[list[int], list[Any]]:
        """A stand-in with new messages behind it: the tokens up to the first image, and the chunks from there on."""
        key = key_of(new)
        remembered = self._after_stand_in.get(key)
        if remembered is not None:
            return list(remembered), []
        tokens, others = self._template.split([*known.messages, *new])
        self._after_stand_in.put(key, tuple(tokens), tokens=len(tokens))
        return tokens, others


def extended(prompt: ModelInput, *pieces: Sequence[int]) -> ModelInput:
    """`prompt` with more tokens after it."""
    return ModelInput(chunks=[*prompt.chunks, *(EncodedTextChunk(tokens=tuple(piece)) for piece in pieces if piece)])
