"""What two episodes did, move beside move: where they went together, and where they parted.

A move is a call, or what the agent said where it made none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from enum import StrEnum
from typing import Any, cast

from agent_env.errors import UniverseError
from agent_env.runs.conversation import conversation
from agent_env.runs.json_text import brief, pretty
from agent_env.runs.record import RunEvent
from agent_env.universe import MISSING, differences

__all__ = ["Difference", "Likeness", "Move", "Row", "align", "is_move", "moves_of"]

_DIFFERENCES = 20


class Likeness(StrEnum):
    """How two moves in a row compare."""

    SAME = "same"
    CHANGED = "changed"
    """The same tool with other arguments, or both say something else."""
    LEFT = "only left"
    RIGHT = "only right"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A call with its answer, or a reply."""

    seq: int
    """The place of its event in its run."""
    tool: str
    """Empty for a reply."""
    arguments: Any
    """What the tool got; None where it got nothing that could be read."""
    raw: str
    """What the model wrote, where that is all there is."""
    text: str
    """The answer, or the reply."""
    is_error: bool = False
    error_kind: str = ""
    is_answered: bool = True
    """False for a call whose answer is not among the events."""

    @property
    def key(self) -> tuple[str, str]:
        """Equal for the same move."""
        if not self.tool:
            return "", self.text
        return self.tool, self.raw if self.arguments is None else json.dumps(self.arguments, sort_keys=True)

    @property
    def brief(self) -> str:
        """The arguments in one line."""
        return self.raw if self.arguments is None else brief(self.arguments)

    @property
    def written(self) -> str:
        """The arguments, laid out."""
        return self.raw if self.arguments is None else pretty(self.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A value in the arguments of two calls that is not the same."""

    path: str
    left: str | None
    """JSON; None where it is not there."""
    right: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Two moves beside each other, or one alone."""

    likeness: Likeness
    left: Move | None
    right: Move | None

    @property
    def answers_differ(self) -> bool:
        """Whether the same call was answered in another way."""
        if self.likeness is not Likeness.SAME or self.left is None or self.right is None:
            return False
        one, other = self.left, self.right
        return (one.text, one.is_error, one.is_answered) != (other.text, other.is_error, other.is_answered)

    @property
    def differences(self) -> list[Difference]:
        """Where the arguments of a changed call differ; some of them where they are very many."""
        left, right = self.left, self.right
        if self.likeness is not Likeness.CHANGED or left is None or right is None:
            return []
        if left.arguments is None or right.arguments is None:
            return []
        try:
            found = differences(left.arguments, right.arguments)
        except (UniverseError, RecursionError):
            return []
        return [
            Difference(
                path=change.path.lstrip("/").replace("/", "."),
                left=None if change.before is MISSING else pretty(change.before),
                right=None if change.after is MISSING else pretty(change.after),
            )
            for change in found[:_DIFFERENCES]
        ]


def moves_of(events: Sequence[RunEvent]) -> list[Move]:
    """The played agent's moves among some events of its run."""
    by_seq = {event.seq: event for event in events}
    moves: list[Move] = []
    for item in conversation(events, is_whole=False):
        event = by_seq[item.seq]
        if event.kind == "call":
            answer = item.section("answer")
            raw = item.section("raw")
            moves.append(
                Move(
                    seq=item.seq,
                    tool=item.title,
                    arguments=event.data.get("arguments"),
                    raw="" if raw is None else raw.text,
                    text="" if answer is None else answer.text,
                    is_error=item.is_error,
                    error_kind=item.error_kind,
                    is_answered=item.is_answered,
                )
            )
        elif item.look == "assistant" and item.text and is_move(event):
            moves.append(Move(seq=item.seq, tool="", arguments=None, raw="", text=item.text))
    return moves


def is_move(event: RunEvent) -> bool:
    """Whether an event is a call, or a message that asks for none."""
    if event.kind == "call":
        return True
    message = event.data.get("message")
    asks = isinstance(message, Mapping) and bool(cast("Mapping[str, Any]", message).get("tool_calls"))
    return event.kind in {"message", "turn_ended"} and not asks


def align(left: Sequence[Move], right: Sequence[Move]) -> list[Row]:
    """Put moves beside each other: the same ones, and between them calls of the same tool."""
    first = _common(left, right)
    last = _common(left[first:][::-1], right[first:][::-1])
    rows = _same(left[:first], right[:first])
    middle_left, middle_right = left[first : len(left) - last], right[first : len(right) - last]
    matcher = SequenceMatcher(
        None, [move.key for move in middle_left], [move.key for move in middle_right], autojunk=False
    )
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            rows += _same(middle_left[a:b], middle_right[c:d])
        else:
            rows += _changed(middle_left[a:b], middle_right[c:d])
    return rows + _same(left[len(left) - last :], right[len(right) - last :])


def _common(left: Sequence[Move], right: Sequence[Move]) -> int:
    count = 0
    for one, other in zip(left, right, strict=False):
        if one.key != other.key:
            break
        count += 1
    return count


def _same(left: Iterable[Move], right: Iterable[Move]) -> list[Row]:
    return [Row(likeness=Likeness.SAME, left=one, right=other) for one, other in zip(left, right, strict=True)]


def _changed(left: Sequence[Move], right: Sequence[Move]) -> list[Row]:
    """Moves that are not the same: those of one tool beside each other, in order."""
    rows: list[Row] = []
    matcher = SequenceMatcher(None, [move.tool for move in left], [move.tool for move in right], autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            pairs = zip(left[a:b], right[c:d], strict=True)
            rows += [Row(likeness=Likeness.CHANGED, left=one, right=other) for one, other in pairs]
        else:
            rows += [Row(likeness=Likeness.LEFT, left=move, right=None) for move in left[a:b]]
            rows += [Row(likeness=Likeness.RIGHT, left=None, right=move) for move in right[c:d]]
    return rows
