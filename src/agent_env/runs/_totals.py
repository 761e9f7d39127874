"""What a run has come to so far: counts, calls by tool, tokens, and where its seconds went.

Kept up event by event, so that no page reads a whole run to show them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard, cast

from agent_env.runs.record import TIMES, EventLike

__all__ = ["Totals", "TotalsSoFar"]

_MODEL, _TOOLS, _ENV, _VERIFY, _OTHER = TIMES
_STEPS = {"deploy_env": _ENV, "deploy_agent": _ENV, "add_skills": _ENV, "run": _ENV, "verify": _VERIFY}
_CHANGES = frozenset({"step_started", "step_ended", "turn_started", "turn_ended", "cut"})
_TOOL_NAMES = 100
_NAME_CHARS = 100
_REST = "…"
_MOST_TOKENS = 10**12


class Totals(NamedTuple):
    """What a run has come to; all of it, not what is new."""

    events: int
    messages: int
    calls: int
    call_errors: int
    turns: int
    tools: Mapping[str, tuple[int, int]]
    """Calls, and those that came to an error, by tool."""
    times: Mapping[str, float]
    """Seconds by what they went to, to a millisecond."""
    prompt_tokens: int | None
    sampled_tokens: int | None


class TotalsSoFar:
    """The totals of a run that goes on."""

    __slots__ = (
        "_at_s",
        "_calls",
        "_errors",
        "_events",
        "_messages",
        "_open_calls",
        "_prompt_tokens",
        "_sampled_tokens",
        "_spent_on",
        "_times",
        "_tools",
        "_turns",
    )

    def __init__(self, opened_at_s: float) -> None:
        self._at_s = opened_at_s
        self._spent_on = _OTHER
        self._open_calls = 0
        self._events = self._messages = self._calls = self._errors = self._turns = 0
        self._tools: dict[str, list[int]] = {}
        self._times: dict[str, float] = {}
        self._prompt_tokens: int | None = None
        self._sampled_tokens: int | None = None

    @property
    def events(self) -> int:
        """How many events there were."""
        return self._events

    def note(self, event: EventLike, now_s: float) -> None:
        """Count an event that happened not after `now_s`, in Unix seconds."""
        data = event.data
        self._events += 1
        if event.at_s > self._at_s:
            self.spend_until(event.at_s, now_s)
        kind = event.kind
        if kind == "message":
            self._note_message(data)
        elif kind == "call":
            self._calls += 1
            self._tool(data.get("tool"))[0] += 1
            self._open_calls += 1
            self._spent_on = _TOOLS
        elif kind == "answer":
            self._note_answer(data)
        elif kind in _CHANGES:
            self._open_calls = 0
            self._spent_on = _OTHER
            self._note_start(kind, data)

    def spend_until(self, at_s: float, now_s: float) -> None:
        """Count the seconds up to `at_s`, which is held to be neither before the last event nor after `now_s`."""
        at_s = min(max(at_s, self._at_s), now_s)
        if at_s > self._at_s:
            self._times[self._spent_on] = self._times.get(self._spent_on, 0.0) + at_s - self._at_s
            self._at_s = at_s

    def now(self) -> Totals:
        """A copy of how they stand."""
        return Totals(
            events=self._events,
            messages=self._messages,
            calls=self._calls,
            call_errors=self._errors,
            turns=self._turns,
            tools={name: (calls, errors) for name, (calls, errors) in self._tools.items()},
            times={name: round(seconds, 3) for name, seconds in self._times.items()},
            prompt_tokens=self._prompt_tokens,
            sampled_tokens=self._sampled_tokens,
        )

    def _note_message(self, data: Mapping[str, Any]) -> None:
        message = data.get("message")
        # Hooks and trainers may put in messages that the agent did not write.
        if (
            isinstance(message, Mapping)
            and cast("Mapping[str, object]", message).get("role", "assistant") != "assistant"
        ):
            return
        self._messages += 1
        prompt, sampled = data.get("prompt_tokens"), data.get("sampled_tokens")
        if _is_count(prompt):
            self._prompt_tokens = (self._prompt_tokens or 0) + prompt
        if _is_count(sampled):
            self._sampled_tokens = (self._sampled_tokens or 0) + sampled

    def _note_start(self, kind: str, data: Mapping[str, Any]) -> None:
        if kind == "turn_started":
            self._turns += 1
            if data.get("kind", "played") == "played":
                self._spent_on = _MODEL
        elif kind == "step_started":
            self._spent_on = _STEPS.get(str(data.get("kind")), _OTHER)

    def _note_answer(self, data: Mapping[str, Any]) -> None:
        if data.get("is_error"):
            self._errors += 1
            self._tool(data.get("tool"))[1] += 1
        if self._open_calls:
            self._open_calls -= 1
            if not self._open_calls:
                self._spent_on = _MODEL

    def _tool(self, name: object) -> list[int]:
        # A model makes names up, as many and as long as it likes.
        key = name[:_NAME_CHARS] if isinstance(name, str) else _REST
        found = self._tools.get(key)
        if found is None:
            key = key if len(self._tools) < _TOOL_NAMES else _REST
            found = self._tools.setdefault(key, [0, 0])
        return found


def _is_count(value: object) -> TypeGuard[int]:
    """Whether it is a number of tokens: a sum of larger ones does not fit the file."""
    return type(value) is int and 0 <= value <= _MOST_TOKENS
