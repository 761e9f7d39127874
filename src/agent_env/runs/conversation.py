"""A run's events as a conversation to read: prompts, messages, calls with their answers, scores, failures.

For the explorer and `agent-env show`. What an event lacks is left out; an event of an unknown kind is shown as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from agent_env._wording import counted
from agent_env.runs.json_text import Retyped, brief, pretty, relaid, retyped
from agent_env.runs.record import RunEvent, short_model
from agent_env.runs.visible import one_line

__all__ = ["Item", "Section", "StateChange", "conversation", "each_item", "step_durations"]

_SAID_CHARS = 200
"""Of an answer, this much of its first line is beside its call."""
_HELD = 500
"""Items that may come after a call before its answer: one that comes later is an item of its own."""
_AT_ONCE = 8
"""Items that are handed over together."""
_AFTER_CALLS = frozenset({"message", "turn_ended", "turn_started", "failure"})
"""What comes when no more of a message's calls do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A titled text inside an item, folded at first where it is not what a reader came for."""

    name: str
    """What it is among the texts of its event, in letters, digits and dashes."""
    seq: int
    """The place of its event in the run."""
    title: str
    text: str
    is_folded: bool = True
    is_error: bool = False

    @property
    def relaid(self) -> str:
        """An answer that is JSON in one line, laid out; empty for any other text."""
        return relaid(self.text) if self.name == "answer" else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """One difference that an episode made in a universe."""

    kept: Mapping[str, Any]
    """`path`, `before` and `after`, as the record has them."""

    @property
    def path(self) -> str:
        """A JSON Pointer; empty for the whole state."""
        return _text(self.kept.get("path"))

    @property
    def segments(self) -> tuple[str, ...]:
        """The pointer's segments."""
        return tuple(part.replace("~1", "/").replace("~0", "~") for part in self.path.split("/")[1:])

    @property
    def kind(self) -> str:
        """`added`, `removed` or `changed`."""
        return "added" if "before" not in self.kept else "removed" if "after" not in self.kept else "changed"

    @property
    def before(self) -> str:
        """What was there, as JSON; empty where nothing was."""
        return pretty(self.kept["before"]) if "before" in self.kept else ""

    @property
    def after(self) -> str:
        """What is there now, as JSON; empty where nothing is."""
        return pretty(self.kept["after"]) if "after" in self.kept else ""

    def __str__(self) -> str:
        path = self.path or "/"
        if self.kind == "added":
            return f"+ {path}: {self.after}"
        return f"- {path}: {self.before}" if self.kind == "removed" else f"{path}: {self.before} → {self.after}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One thing to read."""

    seq: int
    """The place of its event in the run."""
    look: str
    """How it looks: `step`, `prompt`, a message's role, `agent`, `call`, `state`, `score`, `failure`, `cut`, `other`."""
    title: str
    text: str = ""
    note: str = ""
    """Beside the title: a reason, a model, a step's duration."""
    brief: str = ""
    """Of a call: its arguments in one line."""
    said: str = ""
    """Of a call: the first line of its answer."""
    error_kind: str = ""
    """Why a call's answer is an error, where the record says so."""
    retyped: tuple[Retyped, ...] = ()
    """Of a call: where its arguments differ from what the model wrote."""
    sections: tuple[Section, ...] = ()
    changes: tuple[StateChange, ...] = ()
    """Of a state: what the episode changed."""
    left_out: int = 0
    """Changes that the record did not keep."""
    duration_s: float | None = None
    """What a call, or a step, took."""
    message: int | None = None
    """The how-manieth message of the played agent it is, from 0."""
    prompt_tokens: int | None = None
    sampled_tokens: int | None = None
    at_s: float
    """Unix seconds."""
    turn: int | None
    is_error: bool = False
    is_answered: bool = True
    """False for a call whose answer is not among the events."""

    def section(self, name: str) -> Section | None:
        """The section of that name."""
        return next((section for section in self.sections if section.name == name), None)


def conversation(events: Sequence[RunEvent], *, is_whole: bool) -> list[Item]:
    """Turn events into what a reader sees.

    Args:
        events: A page of a run, in order.
        is_whole: Nothing follows them: a call that a message asks for and that is not among them was never made.
    """
    return list(each_item(events, durations=step_durations(events), is_whole=is_whole))


def each_item(events: Iterable[RunEvent], *, durations: Mapping[str, float], is_whole: bool) -> Iterator[Item]:
    """Turn the events of a run of any length into what a reader sees, as they come: few are held at a time.

    Args:
        events: As `conversation` has them.
        durations: What `step_durations` says of them: a step is told before it has ended.
        is_whole: As `conversation` has it.
    """
    reading = _Reading(durations)
    for event in events:
        reading.take(event)
        if len(reading.items) >= _AT_ONCE:
            yield from reading.hand_over()
    yield from reading.end(is_whole=is_whole)


def step_durations(events: Iterable[RunEvent]) -> dict[str, float]:
    """What each step took, in seconds, of those that end among some events and say so."""
    ended = ((event.step, _duration_s(event)) for event in events if event.kind == "step_ended")
    return {step: duration_s for step, duration_s in ended if duration_s is not None}


@dataclass(slots=True)
class _Asking:
    """A message whose calls may still come."""

    event: RunEvent
    place: int
    calls: Sequence[Mapping[str, Any]]
    unreadable: Sequence[Mapping[str, Any]]
    """The calls that could not be read; none once one of the message's was answered: each is shown with its answer then."""
    made: int = 0
    is_followed: bool = False


class _Reading:
    """Items as they are made of events. Places are counted from the first item, also when that was handed over."""

    def __init__(self, durations: Mapping[str, float]) -> None:
        self.durations = durations
        self.items: list[Item] = []
        self.last_text = ""
        self.shown: dict[str, str] = {}
        """What each agent was shown before its last prompt, by agent and title: said again only where it has changed."""
        self.open_calls: dict[str, int] = {}
        """The places of the calls without an answer, by call id."""
        self._asking: _Asking | None = None
        self._handed_over = 0

    @property
    def next_place(self) -> int:
        """The place of the next item."""
        return self._handed_over + len(self.items)

    def take(self, event: RunEvent) -> None:
        """Read one more event."""
        if self._asking is not None:
            self._follow(self._asking, event)
        if event.kind in _CHANGES:
            _CHANGES[event.kind](self, event)
        else:
            self.items.append(_ITEMS.get(event.kind, _other)(event))

    def await_calls(self, event: RunEvent) -> None:
        """Remember which calls a message asks for, the item that is next."""
        message = _mapping(event.data.get("message"))
        calls, unreadable = (
            [_mapping(call) for call in _list(message.get(name))] for name in ("tool_calls", "unreadable_calls")
        )
        if calls or unreadable:
            self._asking = _Asking(event, self.next_place, calls, unreadable)

    def change(self, place: int, **changed: Any) -> None:
        """Say more of an item that was not handed over yet."""
        at = place - self._handed_over
        self.items[at] = replace(self.items[at], **changed)

    def item(self, place: int) -> Item:
        """An item that was not handed over yet."""
        return self.items[place - self._handed_over]

    def hand_over(self) -> Iterator[Item]:
        """The items that nothing to come changes, in order."""
        unsettled = [self.next_place, *self.open_calls.values()]
        if self._asking is not None:
            unsettled.append(self._asking.place)
        if self.items and self.items[-1].look == "agent":  # what it said may be the next prompt
            unsettled.append(self.next_place - 1)
        first = min(unsettled)
        if first < self.next_place - _HELD:
            first = self.next_place - _HELD
            self.open_calls = {name: place for name, place in self.open_calls.items() if place >= first}
            if self._asking is not None and self._asking.place < first:
                self._settle(self._asking, may_come=True)
        yield from self._hand_over_to(first)

    def end(self, *, is_whole: bool) -> Iterator[Item]:
        """The items that are left, when no event comes after."""
        if self._asking is not None:
            self._settle(self._asking, may_come=not is_whole)
        yield from self._hand_over_to(self.next_place)

    def _hand_over_to(self, place: int) -> Iterator[Item]:
        count = place - self._handed_over
        if count > 0:
            given, self.items = self.items[:count], self.items[count:]
            self._handed_over = place
            yield from given

    def _follow(self, asking: _Asking, event: RunEvent) -> None:
        if event.kind == "call":
            asking.made += 1
            asking.unreadable = asking.unreadable if asking.is_followed else ()
        asking.is_followed = True
        if event.kind in _AFTER_CALLS:
            self._settle(asking, may_come=False)

    def _settle(self, asking: _Asking, *, may_come: bool) -> None:
        """Say of a message which of its calls were not made, unless they may still come, and which could not be read."""
        self._asking = None
        sections = list(self.item(asking.place).sections)
        had = len(sections)
        for number, call in enumerate(() if may_come else asking.calls[asking.made :]):
            title = f"call not made: {_text(call.get('name'))}"
            text = _text(call.get("arguments"))
            sections.append(_section(asking.event, f"not-made-{number}", title, text, is_folded=False))
        for number, call in enumerate(asking.unreadable):
            title = f"call that could not be read: {_text(call.get('error'))}"
            text = _text(call.get("raw"))
            sections.append(_section(asking.event, f"unreadable-{number}", title, text, is_folded=False))
        if len(sections) > had:
            self.change(asking.place, sections=tuple(sections))


def _item(event: RunEvent, look: str, title: str, **more: Any) -> Item:
    return Item(seq=event.seq, look=look, title=title, at_s=event.at_s, turn=event.turn, **more)


def _section(event: RunEvent, name: str, title: str, text: str, **more: bool) -> Section:
    return Section(name=name, seq=event.seq, title=title, text=text, **more)


def _other(event: RunEvent) -> Item:
    return _item(event, "other", event.kind, text=pretty(event.data))


def _start_step(reading: _Reading, event: RunEvent) -> None:
    kind = _text(event.data.get("kind"))
    note = "" if kind == event.step else kind
    reading.items.append(_item(event, "step", event.step, note=note, duration_s=reading.durations.get(event.step)))


def _cut(event: RunEvent) -> Item:
    return _item(event, "cut", "cut", note=_text(event.data.get("reason")).replace("_", " "))


def _start_turn(reading: _Reading, event: RunEvent) -> None:
    data = event.data
    agent, prompt = _text(data.get("agent")), _text(data.get("prompt"))
    tools = _list(data.get("tools"))
    shown = {
        "system-prompt": ("system prompt", _text(data.get("system_prompt"))),
        "tools": (counted(len(tools), "tool"), _tools(tools)),
    }
    sections: list[Section] = []
    for name, (title, text) in shown.items():
        key = f"{agent} {name}"
        if text and reading.shown.get(key) != text:
            sections.append(_section(event, name, title, text))
        reading.shown[key] = text
    note = f"to {agent}" if agent else ""
    last = reading.items[-1] if reading.items else None
    if last is not None and last.look == "agent" and last.text == prompt:
        # What another agent has said is the prompt: once is enough.
        note = " · ".join(filter(None, (f"by {last.title} {note}", last.note)))
        sections = [*last.sections, *sections]
        reading.items.pop()
    reading.items.append(_item(event, "prompt", "prompt", text=prompt, note=note, sections=tuple(sections)))


def _message(reading: _Reading, event: RunEvent) -> None:
    reading.await_calls(event)
    data = event.data
    message = _mapping(data.get("message"))
    text, sections = _content(event, message.get("content"))
    role = _text(message.get("role")) or "message"
    names = [_text(_mapping(call).get("name")) for call in _list(message.get("tool_calls"))]
    note = f"calls {', '.join(names)}" if names else _text(message.get("name"))
    counts = {name: _count(data.get(name)) for name in ("prompt_tokens", "sampled_tokens")}
    index = _count(data.get("index"))
    reading.items.append(
        _item(event, role, role, text=text, sections=tuple(sections), note=note, message=index, **counts)
    )
    reading.last_text = text


def _call(reading: _Reading, event: RunEvent) -> None:
    data = event.data
    arguments = data.get("arguments")
    raw = data.get("raw")
    sections: list[Section] = []
    is_other = isinstance(raw, str) and raw and not _says(raw, arguments)
    if arguments is not None or not is_other:
        sections.append(_section(event, "arguments", "arguments", pretty(arguments), is_folded=False))
    if is_other:
        sections.append(_section(event, "raw", "as the model wrote them", _text(raw), is_folded=False))
    reading.open_calls[_call_id(event)] = reading.next_place
    item = _item(
        event,
        "call",
        _text(data.get("tool")) or "call",
        brief=brief(arguments) if arguments is not None else one_line(_text(raw)),
        retyped=retyped(_text(raw), arguments) if is_other else (),
        sections=tuple(sections),
        is_answered=False,
    )
    reading.items.append(item)


def _answer(reading: _Reading, event: RunEvent) -> None:
    data = event.data
    answer = _answered(event)
    sections = [answer]
    if data.get("content"):
        sections.append(_section(event, "content", "content", pretty(data["content"])))
    if data.get("traceback"):
        sections.append(_section(event, "traceback", "traceback", _text(data["traceback"])))
    place = reading.open_calls.pop(_call_id(event), None)
    if place is None:
        tool = _text(data.get("tool")) or "answer"
        reading.items.append(_item(event, "call", tool, sections=tuple(sections), **_outcome(event)))
        return
    sections = [*reading.item(place).sections, *sections]
    reading.change(place, sections=tuple(sections), is_answered=True, **_outcome(event))


def _answered(event: RunEvent) -> Section:
    is_error = bool(event.data.get("is_error"))
    title = "error" if is_error else "answer"
    return _section(event, "answer", title, _text(event.data.get("text")), is_folded=False, is_error=is_error)


def _outcome(event: RunEvent) -> dict[str, Any]:
    """What a call's answer says of the call."""
    data = event.data
    kind = data.get("error_kind") or data.get("refusal")
    return {
        "said": one_line(
            next((line for line in _text(data.get("text"))[:2000].splitlines() if line.strip()), ""), _SAID_CHARS
        ),
        "error_kind": _text(kind).replace("_", " "),
        "is_error": bool(data.get("is_error")),
        "duration_s": _duration_s(event),
    }


def _end_turn(reading: _Reading, event: RunEvent) -> None:
    # The reply was a message already, unless the caller only ended the turn with it.
    reply = _text(event.data.get("reply"))
    if reply and reply != reading.last_text:
        reading.items.append(_item(event, "assistant", "assistant", text=reply))
    reading.last_text = ""


def _score(event: RunEvent) -> Item:
    data = event.data
    metrics = _mapping(data.get("metrics"))
    sections = [_section(event, "metrics", "metrics", pretty(metrics), is_folded=False)] if metrics else []
    judge = _mapping(data.get("judge"))
    if judge:
        answers = "\n\n".join(_text(answer) for answer in _list(judge.get("answers")))
        asked = f"what the judge {short_model(_text(judge.get('model')))} was asked"
        sections.append(_section(event, "judge-prompt", asked, _text(judge.get("prompt"))))
        sections.append(_section(event, "judge-answers", "what it answered", answers, is_folded=False))
    value = data.get("value")
    note = f"{value:.6g}" if isinstance(value, int | float) else _text(value)
    return _item(event, "score", event.step, text=_text(data.get("explanation")), note=note, sections=tuple(sections))


def _agent_said(event: RunEvent) -> Item:
    data = event.data
    message = _mapping(data.get("message"))
    text, sections = _content(event, message.get("content"))
    if data.get("system_prompt"):
        sections.append(_section(event, "system-prompt", "its system prompt", _text(data["system_prompt"])))
    names = [_text(_mapping(call).get("name")) for call in _list(message.get("tool_calls"))]
    note = " · ".join(
        filter(None, (short_model(_text(data.get("model"))), f"calls {', '.join(names)}" if names else ""))
    )
    title = _text(data.get("agent")) or "another agent"
    duration_s = _duration_s(event)
    return _item(event, "agent", title, text=text, sections=tuple(sections), note=note, duration_s=duration_s)


def _agent_called(event: RunEvent) -> Item:
    data = event.data
    arguments = data.get("arguments")
    sections = (
        _section(event, "arguments", "arguments", pretty(arguments), is_folded=False),
        _answered(event),
    )
    title = f"{_text(data.get('agent'))}: {_text(data.get('tool'))}"
    return _item(event, "call", title, brief=brief(arguments), sections=sections, **_outcome(event))


def _state(event: RunEvent) -> Item:
    data = event.data
    title = f"state of {_text(data.get('env'))}"
    if "error" in data:
        return _item(
            event, "state", title, text=_text(data["error"]), note="what changed cannot be told", is_error=True
        )
    changes = tuple(StateChange(kept=_mapping(change)) for change in _list(data.get("changes")))
    left_out = _count(data.get("left_out")) or 0
    count = len(changes) + left_out
    note = counted(count, "change") if count else "unchanged"
    return _item(event, "state", title, note=note, changes=changes, left_out=left_out)


def _skipped(event: RunEvent) -> Item:
    return _item(event, "other", f"{event.step} skipped", text=_text(event.data.get("reason")))


def _failure(event: RunEvent) -> Item:
    data = event.data
    trace = _text(data.get("traceback"))
    place = _mapping(data.get("place"))
    where = f"{_text(place.get('path'))}:{_text(place.get('line'))}" if place else ""
    return _item(
        event,
        "failure",
        f"failed in {event.step}" if event.step else "failed",
        text=_text(data.get("message")),
        note=" · ".join(filter(None, (_text(data.get("kind")).replace("_", " "), where))),
        sections=(_section(event, "traceback", "traceback", trace),) if trace else (),
        is_error=True,
    )


def _damaged(event: RunEvent) -> Item:
    count = _count(event.data.get("events")) or 1
    last = event.seq + count - 1
    which = f"event {event.seq}" if count == 1 else f"events {event.seq} to {last}"
    return _item(event, "failure", f"{which} cannot be read", text=_text(event.data.get("why")), is_error=True)


_CHANGES: Mapping[str, Callable[[_Reading, RunEvent], None]] = {
    "step_started": _start_step,
    "step_ended": lambda _, __: None,
    "turn_started": _start_turn,
    "message": _message,
    "call": _call,
    "answer": _answer,
    "turn_ended": _end_turn,
}
_ITEMS: Mapping[str, Callable[[RunEvent], Item]] = {
    "cut": _cut,
    "agent_said": _agent_said,
    "agent_called": _agent_called,
    "state": _state,
    "score": _score,
    "skipped": _skipped,
    "failure": _failure,
    "damaged": _damaged,
}


def _content(event: RunEvent, content: object) -> tuple[str, list[Section]]:
    if content is None or isinstance(content, str):
        return content or "", []
    texts: list[str] = []
    sections: list[Section] = []
    for number, part in enumerate(map(_mapping, _list(content))):
        kind = _text(part.get("type"))
        if kind == "text":
            texts.append(_text(part.get("text")))
        elif kind in {"thinking", "reasoning"}:
            said = _text(part.get(kind) or part.get("text"))
            sections.append(_section(event, f"part-{number}", "thinking", said))
        else:
            sections.append(_section(event, f"part-{number}", kind or "part", pretty(part)))
    return "\n".join(texts), sections


def _tools(tools: Iterable[object]) -> str:
    lines: list[str] = []
    for tool in map(_mapping, tools):
        properties = _mapping(_mapping(tool.get("parameters")).get("properties"))
        lines.append(f"{_text(tool.get('name'))}({', '.join(properties)})")
        lines += [f"    {line}" for line in _text(tool.get("description")).splitlines()]
    return "\n".join(lines)


def _call_id(event: RunEvent) -> str:
    return _text(event.data.get("call_id")) or f"by tool {_text(event.data.get('tool'))}"


def _says(raw: str, arguments: object) -> bool:
    """Whether the raw text is those arguments, so that showing it tells a reader nothing."""
    try:
        return json.dumps(json.loads(raw)) == json.dumps(arguments)
    except (ValueError, RecursionError):
        return False


def _duration_s(event: RunEvent) -> float | None:
    seconds = event.data.get("duration_s")
    return float(seconds) if isinstance(seconds, int | float) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _text(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else pretty(value)


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[Any]:
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else ()
