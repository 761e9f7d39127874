"""A run as a file of turns, for `agent-env play BUNDLE TASK --script FILE` to play again.

Covers what the played agent did: its calls and its replies. Not what others did: the bundle has those.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from agent_env._wording import counted
from agent_env.runs.record import RunEvent, RunState, RunSummary
from agent_env.runs.visible import one_line, visible

__all__ = ["play_script"]

_LINE_CHARS = 100
_DEEPEST = 90
"""Lists and mappings inside one another in one call's arguments: `play` reads a file of at most 100."""
_LONG_KEY = 400
"""A longer key is written after a `?`: YAML looks no further than 1,024 characters for a colon."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./@-]*")
_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
"""What one YAML or another reads as something else than text."""
_NOT_YAML = re.compile("[\ufffe\uffff]")
_HALF = re.compile("[\ud800-\udfff]")
_ODD = re.compile("[^ -~]")


@dataclass(slots=True)
class _Turn:
    calls: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list[tuple[str, Mapping[str, Any]]])
    reply: str | None = None
    is_over: bool = False
    """Whether an answer has ended it."""


@dataclass(slots=True)
class _Played:
    turns: list[_Turn] = field(default_factory=list[_Turn])
    turn: _Turn | None = None
    """The one under way."""
    unreadable: int = 0
    """Calls whose arguments were no JSON object."""
    too_deep: int = 0
    cut: str = ""


def play_script(run: RunSummary, events: Iterable[RunEvent], *, bundle_root: str = "") -> str:
    """Write the turns of a run as YAML, under comments that say which run it is and how it is played.

    A call whose arguments were no JSON object cannot be played and is left out, which is said.

    Args:
        run: The run.
        events: All of its events.
        bundle_root: Its bundle's folder, for the command; `BUNDLE` where nothing is known.
    """
    played = _Played()
    for event in events:
        _take(played, event)
    lines = [f"# {line}" for line in _about(run, played, bundle_root)]
    for turn in played.turns:
        lines += _turn(turn)
    if not played.turns:
        lines.append("[]")
    return "\n".join(lines) + "\n"


def _take(played: _Played, event: RunEvent) -> None:
    data = event.data
    match event.kind:
        case "turn_started":
            is_played = data.get("kind", "played") == "played"
            played.turn = _Turn() if is_played else None
            if played.turn is not None:
                played.turns.append(played.turn)
        case "call" if played.turn is not None and not played.turn.is_over:
            _take_call(played, played.turn, data)
        case "answer" if played.turn is not None:
            played.turn.is_over |= bool(data.get("ends_turn"))
        case "turn_ended" if played.turn is not None:
            reply = data.get("reply")
            if isinstance(reply, str) and not played.turn.is_over:
                played.turn.reply = reply
            played.turn = None
        case "cut":
            played.cut = str(data.get("reason") or "")
        case _:
            pass


def _take_call(played: _Played, turn: _Turn, data: Mapping[str, Any]) -> None:
    arguments = data.get("arguments")
    if not isinstance(arguments, Mapping):
        played.unreadable += 1
    elif _depth(cast("Mapping[str, Any]", arguments)) > _DEEPEST:
        played.too_deep += 1
    else:
        turn.calls.append((str(data.get("tool") or ""), cast("Mapping[str, Any]", arguments)))


def _about(run: RunSummary, played: _Played, bundle_root: str) -> list[str]:
    came_to = [str(run.state), *(f"{name} {_number(score)}" for name, score in run.scores.items())]
    if run.reward is not None:
        came_to.append(f"reward {_number(run.reward)}")
    bundle = shlex.quote(visible(bundle_root)) if bundle_root else "BUNDLE"
    lines = [
        f"task {run.task_id} of bundle {run.bundle_name} {run.bundle_version}, as it was played in run {run.run_id}",
        f"it came to: {', '.join(came_to)}",
        f"agent-env play {bundle} {shlex.quote(run.task_id)} --script turns.yaml",
    ]
    if run.state is RunState.RUNNING:
        lines.append("it was still under way")
    if played.cut:
        lines.append(f"it was cut ({played.cut.replace('_', ' ')}): played again, it ends with a reply instead")
    if played.unreadable:
        lines.append(f"left out: {counted(played.unreadable, 'call')} whose arguments were no JSON object")
    if played.too_deep:
        lines.append(f"left out: {counted(played.too_deep, 'call')} with arguments nested too deeply for a file")
    if any(_has_half(turn) for turn in played.turns):
        lines.append("a half of a surrogate pair, which no file can hold, is written as U+FFFD")
    return [one_line(line, 1000) for line in lines]


def _turn(turn: _Turn) -> list[str]:
    lines: list[str] = []
    if turn.calls:
        lines.append("- calls:")
        for tool, arguments in turn.calls:
            lines += [f"    - tool: {_text(tool)}", *_arguments(arguments)]
    else:
        lines.append("- calls: []")
    if turn.reply is not None:
        lines += _reply(turn.reply)
    return lines


def _arguments(arguments: Mapping[str, Any]) -> list[str]:
    line = f"      arguments: {_flow(arguments)}"
    if len(line) <= _LINE_CHARS or not arguments:
        return [line]
    lines = ["      arguments:"]
    for name, value in arguments.items():
        key = _text(name)
        lines += (
            [f"        ? {key}", f"        : {_flow(value)}"]
            if len(key) > _LONG_KEY
            else [f"        {key}: {_flow(value)}"]
        )
    return lines


def _reply(text: str) -> list[str]:
    quoted = _text(text)
    body = text.split("\n")
    is_block = (
        len(body) > 1
        and quoted.startswith('"')
        and visible(text) == text
        and not _NOT_YAML.search(text)
        and not text.startswith(("\n", " ", "\t"))
        and not text.endswith("\n")
        and all(line == line.rstrip() and not line.startswith("\t") for line in body)
    )
    if not is_block:
        return [f"  reply: {quoted}"]
    return ["  reply: |-", *(f"    {line}" if line else "" for line in body)]


def _flow(value: Any) -> str:
    """Write a value in one line."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return "{" + ", ".join(f"{_key(str(key))}: {_flow(item)}" for key, item in items) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, cast("list[Any]", value))) + "]"
    return json.dumps(value)


def _key(key: str) -> str:
    text = _text(key)
    return f"? {text} " if len(text) > _LONG_KEY else text


def _text(text: str) -> str:
    """Write a text so that no YAML reads it as something else; what cannot be seen is written by its number."""
    if _PLAIN.fullmatch(text) and text.casefold() not in _WORDS:
        return text
    quoted = json.dumps(_HALF.sub("\ufffd", text), ensure_ascii=False)
    return _ODD.sub(_escaped, quoted)


def _escaped(found: re.Match[str]) -> str:
    char = found[0]
    if visible(char) == char and not _NOT_YAML.match(char):
        return char
    return f"\\u{ord(char):04x}" if ord(char) <= 0xFFFF else f"\\U{ord(char):08x}"


def _has_half(turn: _Turn) -> bool:
    texts = [turn.reply or "", *(json.dumps(call, ensure_ascii=False) for call in turn.calls)]
    return any(_HALF.search(text) for text in texts)


def _depth(value: object) -> int:
    level: list[object] = [value]
    depth = 0
    while level and depth <= _DEEPEST:
        depth += 1
        below: list[object] = []
        for item in level:
            if isinstance(item, Mapping):
                below += cast("Mapping[str, object]", item).values()
            elif isinstance(item, list):
                below += cast("list[object]", item)
        level = below
    return depth


def _number(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) else str(value)
