"""What one renderer writes: a conversation as tokens, a message in it, and where a message ends."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, takewhile
from typing import Any

from agent_env.training._cookbook import EncodedTextChunk, Message, Renderer, RendererError, ToolSpec, TrainOnWhat

__all__ = ["Template", "thought"]

_END_OF_TEXT = "<|endoftext|>"
"""Ends a text for base models of families whose chat messages end otherwise."""
_END_TOKENS = 32
"""Tokens at the end of a message that are decoded to look for a stop text: such a text is a word or two."""


class Template:
    """One renderer, as a writer of tokens."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer = renderer
        stops = renderer.get_stop_sequences()
        self._ends = [stop for stop in stops if isinstance(stop, int)]
        self._end_texts = tuple(stop for stop in stops if isinstance(stop, str))
        tokenizer = renderer.tokenizer
        known = tokenizer.convert_tokens_to_ids(_END_OF_TEXT)
        self._ends_of_text = {tokenizer.eos_token_id, known} - {None, tokenizer.unk_token_id, *self._ends}

    def prefix(self, tools: Sequence[ToolSpec], system_prompt: str) -> list[Message]:
        """The messages that a conversation starts with: the system prompt, and the tools as the renderer writes them."""
        if tools:
            return self.renderer.create_conversation_prefix_with_tools(list(tools), system_prompt)
        return [{"role": "system", "content": system_prompt}] if system_prompt else []

    def chunks(self, messages: Sequence[Message]) -> list[Any]:
        """The prompt for a conversation's next message, with no text chunk next to another."""
        return _joined(self.renderer.build_generation_prompt(list(messages)).chunks)

    def split(self, messages: Sequence[Message]) -> tuple[list[int], list[Any]]:
        """The same as the tokens up to its first image, and the chunks from there on."""
        chunks = self.renderer.build_generation_prompt(list(messages)).chunks
        texts = list(takewhile(lambda chunk: isinstance(chunk, EncodedTextChunk), chunks))
        return [token for chunk in texts for token in chunk.tokens], _joined(chunks[len(texts) :])

    def tokens(self, messages: Sequence[Message]) -> list[int]:
        """The same as tokens, of a conversation without images."""
        return self.renderer.build_generation_prompt(list(messages)).to_ints()

    def message(self, message: Message) -> list[int]:
        """What the renderer writes for an assistant's message after the prompt that it was sampled from.

        Raises:
            RendererError: When it does not write it after a prompt, as reasoning with thinking turned off.
        """
        start: list[Message] = [{"role": "user", "content": "?"}]
        prompt, tokens = self.tokens(start), list[int]()
        for written in (message, thought("", message)):
            example, _ = self.renderer.build_supervised_example([*start, written], TrainOnWhat.LAST_ASSISTANT_MESSAGE)
            tokens = example.to_ints()
            if tokens[: len(prompt)] == prompt:
                return tokens[len(prompt) :]
        # A prompt may end within what the template writes as one token, as in the empty lines of an empty thinking block.
        before, text = (str(self.renderer.tokenizer.decode(some)) for some in (prompt, tokens))
        if not text.startswith(before):
            raise RendererError(f"{type(self.renderer).__name__} does not write this message after a prompt: {message}")
        return list(self.renderer.tokenizer.encode(text.removeprefix(before), add_special_tokens=False))

    def sampled(self, message: Message) -> list[int]:
        """The same with its end, as a model that follows the template samples it. Raises as `message` does."""
        tokens = self.message(message)
        # DeepSeek V3's writes no end behind calls without a text, where a model does.
        return tokens if self.is_ended(tokens) or not self._ends else [*tokens, self._ends[0]]

    def ended(self, sampled: Sequence[int]) -> list[int]:
        """What was sampled, with the end of a message in place of an end of text: both are a clean end."""
        if self._ends and sampled and sampled[-1] in self._ends_of_text:
            return [*sampled[:-1], self._ends[0]]
        return list(sampled)

    def is_ended(self, tokens: Sequence[int]) -> bool:
        """Whether tokens end with a stop of the renderer's."""
        if tokens and tokens[-1] in self._ends:
            return True
        return bool(self._end_texts) and self._end_of(tokens).endswith(self._end_texts)

    def ends_like(self, sampled: Sequence[int], closed: Sequence[int]) -> bool:
        """Whether a message was ended as the template ends it: other stops are no part of the template's conversation."""
        if sampled[-1] == closed[-1] and closed[-1] in self._ends:
            return True
        texts = [text for text in self._end_texts if self._end_of(closed).endswith(text)]
        return any(self._end_of(sampled).endswith(text) for text in texts)

    def _end_of(self, tokens: Sequence[int]) -> str:
        return str(self.renderer.tokenizer.decode(list(tokens[-_END_TOKENS:])))


def thought(thinking: str, message: Message) -> Message:
    """A message with thinking before it; with none, as some templates write one that was not thought about."""
    content = message["content"]
    parts: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if any(part["type"] == "thinking" for part in parts):
        return message
    return {**message, "content": [{"type": "thinking", "thinking": thinking}, *parts]}


def _joined(chunks: Sequence[Any]) -> list[Any]:
    """Chunks, with those of text that are next to one another made one."""
    joined: list[Any] = []
    for is_text, some in groupby(chunks, key=lambda chunk: isinstance(chunk, EncodedTextChunk)):
        if is_text:
            joined.append(EncodedTextChunk(tokens=tuple(token for chunk in some for token in chunk.tokens)))
        else:
            joined.extend(some)
    return joined
