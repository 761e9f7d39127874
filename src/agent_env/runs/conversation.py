"""A run's events as a conversation to read: prompts, messages, calls with their answers, scores, failures.

For the explorer and `agent-env show`. What an event lacks is left out; an event of an unknown kind is shown as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from agent_env._wording import counted
from agent_env.runs.record import RunEvent

__all__ = ["Item", "Section", "conversation", "pretty"]


_LINE_CHARS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A titled text inside an item, folded at first where it is not what a reader came for."""

    title: str
    text: str
    is_folded: bool = True
    is_error: bool = False


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
    """Beside the title: a duration, a reason."""
    sections: tuple[Section, ...] = ()
    at_s: float
    """Unix seconds."""
    turn: int | None
    is_error: bool = False


@dataclass(slots=True)
class _Reading:
    items: list[Item] = field(default_factory=list[Item])
    open_calls: dict[str, int] = field(default_factory=dict[str, int])
    """Where in `items` the calls without an answer are, by call id."""
    last_text: str = ""
    shown: dict[str, str] = field(default_factory=dict[str, str])
    """What each agent was shown before its last prompt, by agent and title: said again only where it has changed."""


def conversation(events: Sequence[RunEvent], *, is_whole: bool) -> list[Item]:
    """Turn events into what a reader sees.

    Args:
        events: A page of a run, in order.
        is_whole: Nothing follows them: a call that a message asks for and that is not among them was never made.
    """
    reading = _Reading()
    for index, event in enumerate(events):
        if event.kind == "message":
            not_made = _calls_not_made(events, index, is_whole=is_whole)
            reading.items.append(_message(event, not_made, _unreadable_calls(events, index)))
            reading.last_text = reading.items[-1].text
        elif event.kind in _CHANGES:
            _CHANGES[event.kind](reading, event)
        else:
            make = _ITEMS.get(event.kind, _other)
            reading.items.append(make(event))
    return reading.items


def pretty(value: object, indent: int = 0) -> str:
    """Write JSON for people: what fits in a line is in one."""
    line = json.dumps(value, ensure_ascii=False)
    if len(line) + indent <= _LINE_CHARS or not value or not isinstance(value, Mapping | list):
        return line
    inner = " " * (indent + 2)
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        parts = [f"{inner}{json.dumps(key, ensure_ascii=False)}: {pretty(item, indent + 2)}" for key, item in items]
        opening, closing = "{", "}"
    else:
        parts = [inner + pretty(item, indent + 2) for item in cast("Sequence[object]", value)]
        opening, closing = "[", "]"
    return "\n".join([opening, ",\n".join(parts), " " * indent + closing])


def _item(event: RunEvent, look: str, title: str, **more: Any) -> Item:
    return Item(seq=event.seq, look=look, title=title, at_s=event.at_s, turn=event.turn, **more)


def _other(event: RunEvent) -> Item:
    return _item(event, "other", event.kind, text=pretty(event.data))


def _start_step(event: RunEvent) -> Item:
    kind = _text(event.data.get("kind"))
    return _item(event, "step", event.step, note="" if kind == event.step else kind)


def _cut(event: RunEvent) -> Item:
    return _item(event, "cut", "cut", note=_text(event.data.get("reason")).replace("_", " "))


def _end_step(reading: _Reading, event: RunEvent) -> None:
    duration = _duration(event.data.get("duration_s"))
    for index, item in enumerate(reading.items):
        if item.look == "step" and item.title == event.step:
            reading.items[index] = replace(item, note=" · ".join(filter(None, (item.note, duration))))
            return


def _start_turn(reading: _Reading, event: RunEvent) -> None:
    data = event.data
    agent, prompt = _text(data.get("agent")), _text(data.get("prompt"))
    tools = _list(data.get("tools"))
    shown = {"system prompt": _text(data.get("system_prompt")), counted(len(tools), "tool"): _tools(tools)}
    sections: list[Section] = []
    for title, text in shown.items():
        key = f"{agent} {title}"
        if text and reading.shown.get(key) != text:
            sections.append(Section(title=title, text=text))
        reading.shown[key] = text
    note = f"to {agent}" if agent else ""
    last = reading.items[-1] if reading.items else None
    if last is not None and last.look == "agent" and last.text == prompt:
        # What another agent has said is the prompt: once is enough.
        note = " · ".join(filter(None, (f"by {last.title} {note}", last.note)))
        sections = [*last.sections, *sections]
        reading.items.pop()
    reading.items.append(_item(event, "prompt", "prompt", text=prompt, note=note, sections=tuple(sections)))


def _message(event: RunEvent, not_made: Sequence[Mapping[str, Any]], unreadable: Sequence[Mapping[str, Any]]) -> Item:
    message = _mapping(event.data.get("message"))
    text, sections = _content(message.get("content"))
    for call in not_made:
        title = f"call not made: {_text(call.get('name'))}"
        sections.append(Section(title=title, text=_text(call.get("arguments")), is_folded=False))
    for call in unreadable:
        title = f"call that could not be read: {_text(call.get('error'))}"
        sections.append(Section(title=title, text=_text(call.get("raw")), is_folded=False))
    role = _text(message.get("role")) or "message"
    names = [_text(_mapping(call).get("name")) for call in _list(message.get("tool_calls"))]
    note = f"calls {', '.join(names)}" if names else _text(message.get("name"))
    return _item(event, role, role, text=text, sections=tuple(sections), note=note)


def _calls_not_made(events: Sequence[RunEvent], index: int, *, is_whole: bool) -> list[Mapping[str, Any]]:
    message = _mapping(events[index].data.get("message"))
    asked = [_mapping(call) for call in _list(message.get("tool_calls"))]
    made = 0
    for event in events[index + 1 :]:
        if event.kind in {"message", "turn_ended", "turn_started", "failure"}:
            return asked[made:]
        made += event.kind == "call"
    return asked[made:] if is_whole else []


def _unreadable_calls(events: Sequence[RunEvent], index: int) -> list[Mapping[str, Any]]:
    """The calls that could not be read, where none of the message's was answered: else each is shown with its answer."""
    after = events[index + 1] if index + 1 < len(events) else None
    if after is not None and after.kind == "call":
        return []
    message = _mapping(events[index].data.get("message"))
    return [_mapping(call) for call in _list(message.get("unreadable_calls"))]


def _call(reading: _Reading, event: RunEvent) -> None:
    data = event.data
    arguments = data.get("arguments")
    sections = [Section(title="arguments", text=pretty(arguments), is_folded=False)]
    raw = data.get("raw")
    if isinstance(raw, str) and raw and not _says(raw, arguments):
        sections.append(Section(title="as the model wrote them", text=raw, is_folded=False))
    reading.open_calls[_call_id(event)] = len(reading.items)
    reading.items.append(_item(event, "call", _text(data.get("tool")) or "call", sections=tuple(sections)))


def _answer(reading: _Reading, event: RunEvent) -> None:
    data = event.data
    is_error = bool(data.get("is_error"))
    answer = Section(
        title="error" if is_error else "answer", text=_text(data.get("text")), is_folded=False, is_error=is_error
    )
    sections = [answer]
    if data.get("content"):
        sections.append(Section(title="content", text=pretty(data["content"])))
    if data.get("traceback"):
        sections.append(Section(title="traceback", text=_text(data["traceback"])))
    note = _duration(data.get("duration_s"))
    at = reading.open_calls.pop(_call_id(event), None)
    if at is None:
        tool = _text(data.get("tool")) or "answer"
        reading.items.append(_item(event, "call", tool, sections=tuple(sections), note=note, is_error=is_error))
        return
    call = reading.items[at]
    reading.items[at] = replace(call, sections=(*call.sections, *sections), note=note, is_error=is_error)


def _end_turn(reading: _Reading, event: RunEvent) -> None:
    # The reply was a message already, unless the caller only ended the turn with it.
    reply = _text(event.data.get("reply"))
    if reply and reply != reading.last_text:
        reading.items.append(_item(event, "assistant", "assistant", text=reply))
    reading.last_text = ""


def _score(event: RunEvent) -> Item:
    data = event.data
    metrics = _mapping(data.get("metrics"))
    sections = [Section(title="metrics", text=pretty(metrics), is_folded=False)] if metrics else []
    judge = _mapping(data.get("judge"))
    if judge:
        answers = "\n\n".join(_text(answer) for answer in _list(judge.get("answers")))
        sections.append(
            Section(title=f"what the judge {_text(judge.get('model'))} was asked", text=_text(judge.get("prompt")))
        )
        sections.append(Section(title="what it answered", text=answers, is_folded=False))
    value = data.get("value")
    note = f"{value:.6g}" if isinstance(value, int | float) else _text(value)
    return _item(event, "score", event.step, text=_text(data.get("explanation")), note=note, sections=tuple(sections))


def _agent_said(event: RunEvent) -> Item:
    data = event.data
    message = _mapping(data.get("message"))
    text, sections = _content(message.get("content"))
    names = [_text(_mapping(call).get("name")) for call in _list(message.get("tool_calls"))]
    notes = (_text(data.get("model")), f"calls {', '.join(names)}" if names else "", _duration(data.get("duration_s")))
    title = _text(data.get("agent")) or "another agent"
    return _item(event, "agent", title, text=text, sections=tuple(sections), note=" · ".join(filter(None, notes)))


def _agent_called(event: RunEvent) -> Item:
    data = event.data
    is_error = bool(data.get("is_error"))
    answer = Section(
        title="error" if is_error else "answer", text=_text(data.get("text")), is_folded=False, is_error=is_error
    )
    sections = (Section(title="arguments", text=pretty(data.get("arguments")), is_folded=False), answer)
    title = f"{_text(data.get('agent'))}: {_text(data.get('tool'))}"
    return _item(event, "call", title, sections=sections, note=_duration(data.get("duration_s")), is_error=is_error)


def _state(event: RunEvent) -> Item:
    data = event.data
    changes = _list(data.get("changes"))
    left_out = data.get("left_out")
    more = left_out if isinstance(left_out, int) else 0
    count = len(changes) + more
    lines = [_change(_mapping(change)) for change in changes]
    if more:
        lines.append(f"and {more} more")
    note = counted(count, "change") if count else "unchanged"
    return _item(event, "state", f"state of {_text(data.get('env'))}", text="\n".join(lines), note=note)


def _change(change: Mapping[str, Any]) -> str:
    path = _text(change.get("path")) or "/"
    if "before" not in change:
        return f"+ {path}: {pretty(change.get('after'))}"
    if "after" not in change:
        return f"- {path}: {pretty(change.get('before'))}"
    return f"{path}: {pretty(change.get('before'))} → {pretty(change.get('after'))}"


def _skipped(event: RunEvent) -> Item:
    return _item(event, "other", f"{event.step} skipped", text=_text(event.data.get("reason")))


def _failure(event: RunEvent) -> Item:
    data = event.data
    trace = _text(data.get("traceback"))
    return _item(
        event,
        "failure",
        f"failed in {event.step}" if event.step else "failed",
        text=_text(data.get("message")),
        note=_text(data.get("kind")),
        sections=(Section(title="traceback", text=trace),) if trace else (),
        is_error=True,
    )


_CHANGES: Mapping[str, Callable[[_Reading, RunEvent], None]] = {
    "step_ended": _end_step,
    "turn_started": _start_turn,
    "call": _call,
    "answer": _answer,
    "turn_ended": _end_turn,
}
_ITEMS: Mapping[str, Callable[[RunEvent], Item]] = {
    "step_started": _start_step,
    "cut": _cut,
    "agent_said": _agent_said,
    "agent_called": _agent_called,
    "state": _state,
    "score": _score,
    "skipped": _skipped,
    "failure": _failure,
}


def _content(content: object) -> tuple[str, list[Section]]:
    if content is None or isinstance(content, str):
        return content or "", []
    texts: list[str] = []
    sections: list[Section] = []
    for part in map(_mapping, _list(content)):
        kind = _text(part.get("type"))
        if kind == "text":
            texts.append(_text(part.get("text")))
        elif kind in {"thinking", "reasoning"}:
            sections.append(Section(title="thinking", text=_text(part.get(kind) or part.get("text"))))
        else:
            sections.append(Section(title=kind or "part", text=pretty(part)))
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


def _duration(seconds: object) -> str:
    if not isinstance(seconds, int | float):
        return ""
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.1f} s"


def _text(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else pretty(value)


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _list(value: object) -> Sequence[Any]:
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else ()
