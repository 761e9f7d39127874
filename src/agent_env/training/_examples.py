"""Recorded runs as training examples: the tokens that the rollout had, with weight on what the assistant wrote."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_env.runs import RunEvent
from agent_env.training._cookbook import Datum, Message, ModelInput, datum_from_model_input_weights, tensor
from agent_env.training._episodes import next_prompt
from agent_env.training._framing import Framing, extended
from agent_env.training._messages import answer_message, from_record, shown_tools

__all__ = ["Example", "examples_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A conversation's tokens, or a part's where the renderer cannot go on with it."""

    tokens: ModelInput
    weights: Sequence[float]
    """1 for each token that the assistant wrote, else 0."""

    def datum(self, max_length: int | None = None) -> Datum:
        """For `forward_backward` with `cross_entropy`; cut off on the right at `max_length` tokens."""
        return datum_from_model_input_weights(self.tokens, tensor(self.weights), max_length)


def examples_of(events: Iterable[RunEvent], framing: Framing) -> list[Example]:
    """The examples of one run: one, where the renderer lets the conversation be continued; else more, each ending at a
    message that its prompt was rendered anew for.

    Raises:
        RendererError: When the renderer cannot write a message, as reasoning with thinking turned off.
    """
    reading = _Reading(framing)
    for event in events:
        if event.kind == "turn_started" and event.data.get("kind", "played") == "played":
            reading.start_turn(event.data)
        elif event.kind == "message":
            reading.say(event.data["message"])
        elif event.kind == "answer":
            reading.answer(event.data)
    return reading.examples()


@dataclass(slots=True)
class _Reading:
    framing: Framing
    messages: list[Message] = field(default_factory=list[Message])
    new: list[Message] = field(default_factory=list[Message])
    """What came after the assistant's last message."""
    system_prompt: str | None = None
    calls: deque[tuple[str, str | None]] = field(default_factory=deque[tuple[str, str | None]])
    """The calls of the last message that are not answered yet: tool and id."""
    prompt: ModelInput | None = None
    """What the assistant's last message was written after."""
    written: list[int] = field(default_factory=list[int])
    weights: list[float] = field(default_factory=list[float])
    done: list[Example] = field(default_factory=list[Example])

    def start_turn(self, data: Mapping[str, Any]) -> None:
        said: str = data["system_prompt"]
        if self.system_prompt is None:
            self.system_prompt = said
            self.new += self.framing.prefix(shown_tools(data["tools"]), said)
        prompt = next_prompt(data["prompt"], said, first_system_prompt=self.system_prompt)
        self.new.append(Message(role="user", content=prompt))

    def answer(self, data: Mapping[str, Any]) -> None:
        name, call_id = self.calls.popleft() if self.calls else (data["tool"], None)
        images = self.framing.shows_images
        self.new.append(
            answer_message(data["text"], data.get("content", ()), name=name, call_id=call_id, images=images)
        )

    def say(self, recorded: Mapping[str, Any]) -> None:
        if recorded["role"] != "assistant":  # a rollout's hook put it in, or it said that a call could not be read
            self.new.append(Message(role=recorded["role"], content=recorded["content"]))
            return
        message = from_record(recorded)
        self.messages += self.new
        prompt = self._next_prompt()
        self.prompt, self.written = prompt, self.framing.written(message)
        self.weights += [0.0] * (prompt.length - len(self.weights)) + [1.0] * len(self.written)
        self.messages.append(message)
        self.calls = deque((call.function.name, call.id) for call in message.get("tool_calls") or ())
        self.new = []

    def _next_prompt(self) -> ModelInput:
        if self.prompt is None:
            return self.framing.first(self.messages)
        continued = self.framing.continued(self.prompt, self.written, self.new)
        if continued is not None:
            return continued
        self._close()
        return self.framing.whole(self.messages)

    def _close(self) -> None:
        if self.prompt is not None:
            self.done.append(Example(tokens=extended(self.prompt, self.written), weights=self.weights))
        self.weights = []

    def examples(self) -> list[Example]:
        self._close()
        return self.done
