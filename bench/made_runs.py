"""Runs that nobody played, written through the run index as a training writes them: the data of `explorer.py`.

A run has a prompt, ten messages with a call and an answer in every second one, a score and a reward; one in fifty fails, one in
thirty is cut. Words are drawn as a language has them: a few often, most seldom.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from agent_env.episode import Event, EventKind, RunHeader
from agent_env.outcome import CutReason, EpisodeResult, Failure, FailureKind, Outcome, Score
from agent_env.runs import RunIndex, RunSink

TASKS = 64
ROLLOUTS = 8
TOOLS = ("find_order", "find_user", "list_items", "change_address", "cancel_order", "return_items", "calculate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a training that is to be written."""

    training: str
    step: int
    of: int
    """How many steps the training has."""

    @property
    def group(self) -> str:
        """Where its runs are filed."""
        return f"{self.training}/train/step-{self.step:04d}"


def write_steps(folder: Path, steps: Iterable[Step], *, processes: int, report: Callable[[], None]) -> float:
    """Write every step's runs, from some processes at once.

    Args:
        folder: The runs folder.
        steps: What to write, in order.
        processes: How many write at once.
        report: Called after each step.

    Returns:
        How many seconds it took.
    """
    began = time.perf_counter()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_open, initargs=(folder,)) as pool:
        for _ in pool.map(_write_step, steps):
            report()
    return time.perf_counter() - began


def write_long_run(folder: Path, group: str, *, events: int, chars: int) -> str:
    """Write one run of many events, or of long ones.

    Returns:
        Its id.
    """
    words = _Words(random.Random(2))
    text = words.text(chars)
    with RunIndex.open(folder) as index:
        sink = index.run(group)
        sink.opened(_header("task-00"))
        _say_prompt(sink, words)
        for at in range((events - 2) // 3):
            _say(sink, at, text)
            _call(sink, words, f"c{at}", answer=text)
        sink.ended(EpisodeResult(outcome=Outcome.COMPLETED, run_id=sink.run_id, scores={}))
        return sink.run_id


class _Words:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._known = [f"{stem}{end}" for stem in _STEMS for end in _ENDS]
        self._weights = [1 / (place + 2) for place in range(len(self._known))]
        self._texts = [" ".join(chance.choices(self._known, self._weights, k=32)) for _ in range(4000)]

    def line(self) -> str:
        """About 200 characters."""
        return self._chance.choice(self._texts)

    def text(self, chars: int) -> str:
        lines: list[str] = []
        size = 0
        while size < chars:
            lines.append(self.line())
            size += len(lines[-1]) + 1
        return "\n".join(lines)[: max(chars, 1)]


class _Process:
    """What a writing process has."""

    def __init__(self, folder: Path) -> None:
        self.index = RunIndex.open(folder)
        self.words = _Words(random.Random(1))


_process: _Process | None = None


def _open(folder: Path) -> None:
    global _process  # a pool's process is handed nothing but arguments
    _process = _Process(folder)


def _write_step(step: Step) -> None:
    assert _process is not None
    chance = random.Random(f"{step.training}/{step.step}")
    progress = step.step / max(1, step.of - 1)
    for task in range(TASKS):
        ease = chance.random()
        for _ in range(ROLLOUTS):
            sink = _process.index.run(
                step.group, labels={"policy_step": step.step, "model": "tiny", "renderer": "qwen3"}
            )
            _write_run(sink, f"task-{task:02d}", _process.words, chance, hope=0.2 + 0.6 * progress * ease)
    _process.index.flush()


def _write_run(sink: RunSink, task_id: str, words: _Words, chance: random.Random, *, hope: float) -> None:
    sink.opened(_header(task_id))
    _say_prompt(sink, words)
    for at in range(10):
        _say(sink, at, words.line())
        if at % 2 == 0:
            _call(
                sink, words, f"c{at}", answer=words.line(), tool=chance.choice(TOOLS), is_error=chance.random() < 0.05
            )
    if chance.random() < 0.02:
        failure = Failure(kind=FailureKind.MCP_DIED, step="check", message="the server ended with status 1")
        data = {"kind": str(failure.kind), "message": failure.message, "traceback": ""}
        sink.event(_event(EventKind.FAILURE, data))
        sink.ended(EpisodeResult(outcome=Outcome.FAILED, run_id=sink.run_id, scores={}, failure=failure))
        return
    cut = CutReason.TOKEN_LIMIT if chance.random() < 0.03 else None
    value = round(min(1.0, max(0.0, chance.gauss(hope, 0.3))), 3)
    score = Score(step="check", value=value, explanation=words.line())
    data: dict[str, Any] = {"value": value, "explanation": score.explanation, "metrics": {}}
    sink.event(_event(EventKind.SCORE, data))
    sink.ended(EpisodeResult(outcome=Outcome.COMPLETED, run_id=sink.run_id, scores={"check": score}, cut=cut))
    sink.set_reward(value)


def _header(task_id: str) -> RunHeader:
    return RunHeader(task_id=task_id, bundle_name="made", bundle_version="1", params={"seed": 1}, tags=("made",))


def _say_prompt(sink: RunSink, words: _Words) -> None:
    shown = [{"name": name, "description": f"Tool {name}.", "parameters": {"type": "object"}} for name in TOOLS]
    data = {"agent": "agent", "kind": "played", "system_prompt": words.line(), "prompt": words.line(), "tools": shown}
    sink.event(_event(EventKind.TURN_STARTED, data))


def _say(sink: RunSink, at: int, text: str) -> None:
    message = {"role": "assistant", "content": text}
    data = {"message": message, "index": at, "prompt_tokens": 400 + 80 * at, "sampled_tokens": 60}
    sink.event(_event(EventKind.MESSAGE, data))


def _call(
    sink: RunSink, words: _Words, call_id: str, *, answer: str, tool: str = TOOLS[0], is_error: bool = False
) -> None:
    arguments = {"id": call_id, "note": words.line()[:60]}
    call = {"call_id": call_id, "tool": tool}
    sink.event(_event(EventKind.CALL, {**call, "arguments": arguments, "raw": None}))
    more = {"text": answer, "is_error": is_error, "ends_turn": False, "duration_s": 0.001}
    sink.event(_event(EventKind.ANSWER, {**call, **more}))


def _event(kind: EventKind, data: dict[str, Any]) -> Event:
    return Event(kind, time.time(), "check" if kind in {EventKind.SCORE, EventKind.FAILURE} else "prompt", 0, data)


_STEMS = [a + b + c for a in "bdfgklmnprstvz" for b in "aeiou" for c in ("l", "n", "r", "s", "t", "m", "ck", "sh")]
_ENDS = ("", "a", "e", "ing", "ed", "er", "s", "ly", "or", "ist", "um", "en", "ful", "ism", "ive", "ous")
