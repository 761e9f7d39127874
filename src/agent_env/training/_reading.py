"""What a model sampled, read: where its message ends, and which calls it asks for with which arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent_env.envs import ToolSpec
from agent_env.training._calls import CallReader, WrittenCall
from agent_env.training._cookbook import Message, Renderer

__all__ = ["Reading"]

_END_OF_TEXT = "<|endoftext|>"
"""Ends a text for base models of families whose chat messages end otherwise."""


class Reading:
    """How one renderer's messages are read."""

    def __init__(self, renderer: Renderer) -> None:
        self._calls = CallReader(renderer)
        self._tokenizer = renderer.tokenizer
        self._stops = [stop for stop in renderer.get_stop_sequences() if isinstance(stop, int)]
        known = self._tokenizer.convert_tokens_to_ids(_END_OF_TEXT)
        self._ends_of_text = {self._tokenizer.eos_token_id, known} - {None, self._tokenizer.unk_token_id, *self._stops}

    @property
    def renderer(self) -> Renderer:
        """The renderer, whose `parse_response` never raises for what a model may write."""
        return self._calls.renderer

    def ended(self, sampled: Sequence[int]) -> list[int]:
        """What was sampled, with the end of a message in place of an end of text: both are a clean end."""
        if self._stops and sampled and sampled[-1] in self._ends_of_text:
            return [*sampled[:-1], self._stops[0]]
        return list(sampled)

    def calls(
        self, message: Message, sampled: Sequence[int], tools: Mapping[str, ToolSpec]
    ) -> tuple[Message, list[WrittenCall]]:
        """The calls of a message, in the order they were written, and the message with their arguments typed.

        Args:
            message: As the renderer parsed it.
            sampled: The tokens that it was parsed from.
            tools: What may be called, by name.
        """
        return self._calls.read(message, str(self._tokenizer.decode(sampled)), tools)
