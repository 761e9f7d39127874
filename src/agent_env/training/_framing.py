"""Tokens of a conversation, piece by piece: what was sampled stays as it was sampled, and only what is new is rendered.

A renderer writes whole conversations. Within a turn the next prompt should be the last one, then exactly the sampled tokens,
then the tool's answer: that is what the model saw and wrote, a rollout is then one training example, and an answer costs what
is new and not the conversation again. Whether a renderer can be continued like that is found out by rendering probes, not by
its name. Where it cannot, the conversation is rendered whole each time, as the cookbook does.

A tokenizer is not thread-safe, so everything here runs where it is called: on the event loop.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache
from itertools import takewhile
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
    get_renderer,
    get_tokenizer,
)

__all__ = ["Framing", "framing_for", "framing_of"]

T = TypeVar("T")

logger = logging.getLogger(__name__)

_REMEMBERED = 256
"""First prompts that are kept: the rollouts of a group start from the same one."""

_TOOL: ToolSpec = {
    "name": "probe",
    "description": "A probe.",
    "parameters": {"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]},
}


@cache
def framing_of(renderer_name: str, model_name: str) -> Framing:
    """The framing of one renderer on one model's tokenizer, probed once per process."""
    renderer = get_renderer(renderer_name, get_tokenizer(model_name), model_name=model_name)
    framing = Framing(renderer)
    if framing.writes_tools and not framing.continues:
        logger.warning(
            "renderer %s: a conversation cannot be continued token for token; every message renders it whole",
            renderer_name,
        )
    return framing


def framing_for(bundle: Bundle, renderer_name: str, model_name: str) -> Framing:
    """The framing of the episodes of a bundle's played agent.

    Raises:
        TrainingError: When there is no such renderer, or the renderer cannot write the agent's tools.
    """
    try:
        framing = framing_of(renderer_name, model_name)
    except RendererError as exc:
        raise TrainingError(f"renderer_name={renderer_name!r}: {exc}") from exc
    played = bundle.agents[bundle.played]
    if played.envs and not framing.writes_tools:
        raise TrainingError(
            f"renderer_name={renderer_name!r}: it cannot write tools, and agent '{played.name}' of bundle"
            f" {bundle.name} has those of env '{played.envs[0]}'; take one that can, such as qwen3_disable_thinking"
        )
    return framing


class Framing:
    """How one renderer's conversations go on."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        self.writes_tools = _writes_tools(renderer)
        self._ends = frozenset(stop for stop in renderer.get_stop_sequences() if isinstance(stop, int))
        self._first: OrderedDict[tuple[object, ...], ModelInput] = OrderedDict()
        self._stand_ins: dict[bool, list[int]] = {}
        self.continues = self.writes_tools and _holds(self._probe_answers, default=False)
        """Whether tool answers can be put after the sampled tokens."""
        self.continues_turns = renderer.has_extension_property and _holds(self._probe_prompts, default=False)
        """Whether a later prompt can be: not where the template writes earlier replies in another way, as without their
        thinking."""
        self._between = _holds(self._probe_between, default="") if self.writes_tools else ""

    def prefix(self, tools: Sequence[ToolSpec], system_prompt: str) -> list[Message]:
        """The messages that a conversation starts with: the system prompt, and the tools as the renderer writes them."""
        if tools:
            return self.renderer.create_conversation_prefix_with_tools(list(tools), system_prompt)
        return [{"role": "system", "content": system_prompt}] if system_prompt else []

    def first(self, messages: list[Message]) -> ModelInput:
        """The prompt that a conversation starts with."""
        key = tuple((message["role"], str(message["content"])) for message in messages)
        if (known := self._first.get(key)) is None:
            known = self._first[key] = self.whole(messages)
            if len(self._first) > _REMEMBERED:
                self._first.popitem(last=False)
        return known

    def whole(self, messages: list[Message]) -> ModelInput:
        """The prompt for the next message of a conversation, all of it rendered."""
        chunks: list[Any] = []
        for chunk in self.renderer.build_generation_prompt(messages).chunks:
            if chunks and isinstance(chunk, EncodedTextChunk) and isinstance(chunks[-1], EncodedTextChunk):
                chunks[-1] = EncodedTextChunk(tokens=[*chunks[-1].tokens, *chunk.tokens])
            else:
                chunks.append(chunk)
        return ModelInput(chunks=chunks)

    def continued(self, prompt: ModelInput, sampled: Sequence[int], new: Sequence[Message]) -> ModelInput | None:
        """The prompt after `prompt`, the tokens `sampled` from it, and then the `new` messages.

        Returns:
            None when this renderer cannot go on like that, or not from these tokens.
        """
        kinds = {message["role"] == "tool" for message in new}
        can = len(kinds) == 1 and (self.continues if kinds.pop() else self.continues_turns)
        if not can or not sampled or sampled[-1] not in self._ends or (rest := self._rest(new)) is None:
            return None
        return extended(prompt, sampled, rest)

    def written(self, message: Message) -> list[int]:
        """The tokens that a model writes for an assistant's message, as the renderer would have them.

        Raises:
            RendererError: When the renderer does not write it after a prompt, as reasoning with thinking turned off.
        """
        start: list[Message] = [{"role": "user", "content": "?"}]
        prompt = self.renderer.build_generation_prompt(start).to_ints()
        example, _ = self.renderer.build_supervised_example([*start, message], TrainOnWhat.LAST_ASSISTANT_MESSAGE)
        tokens = example.to_ints()
        if tokens[: len(prompt)] != prompt:
            raise RendererError(f"{type(self.renderer).__name__} does not write this message after a prompt: {message}")
        return tokens[len(prompt) :]

    def cleaned(self, message: Message) -> Message:
        """A parsed message without what the renderer writes itself, so that rendered again it is what was sampled.

        Qwen's template ends the text before a message's calls with a line end, which the cookbook's parser takes for text.
        """
        content = message["content"]
        if not self._between or not message.get("tool_calls") or not isinstance(content, list) or not content:
            return message
        *before, last = content
        if last["type"] != "text" or not last["text"].endswith(self._between):
            return message
        text = last["text"].removesuffix(self._between)
        return {**message, "content": [*before, {"type": "text", "text": text}] if text else before}

    def _probe_between(self) -> str:
        """What the parser takes for the end of the text before a call."""
        message, _ = self.renderer.parse_response(self.written(_call_message("b", text="Now b.")))
        content = message["content"]
        text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
        return text.removeprefix("Now b.") if text.startswith("Now b.") else ""

    def _rest(self, new: Sequence[Message]) -> list[int] | None:
        """What a template writes after an assistant's message for the new ones, up to where the next one starts.

        The new messages are rendered after a short stand-in for the conversation, whose tokens are known.
        """
        answers = new[0]["role"] == "tool"
        stand_in = self._stand_ins[answers]
        tokens = self.renderer.build_generation_prompt([*_stub(answers=answers), *new]).to_ints()
        return tokens[len(stand_in) :] if tokens[: len(stand_in)] == stand_in else None

    def _probe_answers(self) -> bool:
        news = [_answers("one\ntwo"), _answers("2"), _answers("<x>", "three")]
        said = [_call_message("a"), _call_message("b", text="Now b."), _call_message("c", "d")]
        return self._find_stand_in(news, answers=True) and self._rest_is_the_same(said, news, whole=False)

    def _probe_prompts(self) -> bool:
        news: list[list[Message]] = [[{"role": "user", "content": text}] for text in ("one\ntwo", "2", "<x>")]
        said: list[Message] = [{"role": "assistant", "content": "Yes."}, {"role": "assistant", "content": "a\nb"}]
        return self._find_stand_in(news, answers=False) and self._rest_is_the_same(said, news, whole=True)

    def _find_stand_in(self, news: Sequence[Sequence[Message]], *, answers: bool) -> bool:
        """Find the tokens of the stand-in: up to the last stop token that all continuations of it share."""
        rendered = [self.renderer.build_generation_prompt([*_stub(answers=answers), *new]).to_ints() for new in news]
        shared = [same[0] for same in takewhile(lambda tokens: len(set(tokens)) == 1, zip(*rendered, strict=False))]
        while shared and shared[-1] not in self._ends:
            shared.pop()
        self._stand_ins[answers] = shared
        return bool(shared)

    def _rest_is_the_same(self, said: Sequence[Message], news: Sequence[Sequence[Message]], *, whole: bool) -> bool:
        """Whether whole renderings end like the pieces; when `whole`, whether they are the pieces."""
        tools = [_TOOL] if self.writes_tools else []
        start = [*self.prefix(tools, "Probe."), Message(role="user", content="Go.")]
        prompt = self.whole(start)
        for message in said:
            sampled = self.written(message)
            if sampled[-1] not in self._ends:
                return False
            for new in news:
                rendered = self.renderer.build_generation_prompt([*start, message, *new]).to_ints()
                rest = self._rest(new)
                if rest is None:
                    return False
                at = len(rendered) - len(rest)
                if rendered[at:] != rest or rendered[at - 1] != sampled[-1]:
                    return False
                if whole and rendered[:at] != [*prompt.to_ints(), *sampled]:
                    return False
        return True


def extended(prompt: ModelInput, *pieces: Sequence[int]) -> ModelInput:
    """`prompt` with more tokens after it."""
    return ModelInput(chunks=[*prompt.chunks, *(EncodedTextChunk(tokens=list(piece)) for piece in pieces if piece)])


def _holds(probe: Callable[[], T], default: T) -> T:
    try:
        return probe()
    except Exception:  # noqa: BLE001 - a renderer of anyone's: one that cannot write a probe cannot be continued
        return default


def _writes_tools(renderer: Renderer) -> bool:
    try:
        renderer.create_conversation_prefix_with_tools([_TOOL], "")
    except NotImplementedError:
        return False
    return True


def _stub(*, answers: bool) -> list[Message]:
    said = _call_message("x") if answers else Message(role="assistant", content="x")
    return [{"role": "user", "content": "x"}, said]


def _call_message(*arguments: str, text: str = "") -> Message:
    body = cast("Callable[..., Any]", ToolCall.FunctionBody)
    calls = [
        ToolCall(function=body(name="probe", arguments=f'{{"x": "{text}"}}'), id=f"probe:{at}")
        for at, text in enumerate(arguments)
    ]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def _answers(*texts: str) -> list[Message]:
    return [
        {"role": "tool", "content": text, "name": "probe", "tool_call_id": f"probe:{at}"}
        for at, text in enumerate(texts)
    ]
