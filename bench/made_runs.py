"""Runs that nobody played, written through the run index as a training writes them: the data of `explorer.py` and `index.py`.

Of those of a training one in fifty fails, and one in thirty is cut.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from agent_env.episode import EpisodeSink, Event, EventKind, RunHeader
from agent_env.outcome import CutReason, EpisodeResult, Failure, FailureKind, Outcome, Score
from agent_env.runs import RunIndex, RunSink

TASKS = 64
ROLLOUTS = 8
TOOLS = ("find_order", "find_user", "list_items", "change_address", "cancel_order", "return_items", "calculate")
LABELS = {"policy_step": 3, "model": "Qwen/Qwen3-8B", "renderer": "qwen3"}


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
    words = Words(random.Random(2))
    text = words.text(chars)
    with RunIndex.open(folder) as index:
        sink = index.run(group)
        sink.opened(_header("task-00"))
        _say_prompt(sink, words)
        for at in range((events - 2) // 3):
            _say(sink, at, text)
            _call(sink, f"c{at}", {"order_id": f"#W{at}"}, answer=text)
        sink.ended(EpisodeResult(outcome=Outcome.COMPLETED, run_id=sink.run_id, scores={}))
        return sink.run_id


class Words:
    """Texts of about 200 characters: words as often as a language has them, and numbers that no other text has."""

    def __init__(self, dice: random.Random) -> None:
        known = [f"{stem}{end}" for stem in _STEMS for end in _ENDS]
        weights = [1 / (place + 2) for place in range(len(known))]
        self._dice = dice
        self._texts = [
            f"{' '.join(dice.choices(known, weights, k=32))[:175].capitalize()}"
            f" #W{dice.randrange(10**7)} {dice.random() * 100:.2f}"
            for _ in range(4000)
        ]

    def line(self) -> str:
        """One of them."""
        return self._dice.choice(self._texts)

    def text(self, chars: int) -> str:
        """Some of them, a line each, so many characters in all."""
        lines: list[str] = []
        size = 0
        while size < chars:
            lines.append(self.line())
            size += len(lines[-1]) + 1
        return "\n".join(lines)[: max(chars, 1)]


def play(
    sink: EpisodeSink,
    task_id: str,
    words: Words,
    dice: random.Random,
    *,
    reward: float,
    cut: CutReason | None = None,
    failure: Failure | None = None,
) -> None:
    """Tell a sink of one whole episode: a prompt, ten messages, five calls with answers, a score and the reward.

    Args:
        sink: What is told; one of the run index is given the reward too.
        task_id: What is played.
        words: What is said.
        dice: What is drawn from.
        reward: The score, and the reward.
        cut: Why it was cut.
        failure: What broke it; there is no score then.
    """
    sink.opened(_header(task_id))
    sink.event(_event(EventKind.STEP_STARTED, {"kind": "prompt"}))
    _say_prompt(sink, words)
    for number in range(5):
        call_id, tool = f"call-{number}", dice.choice(TOOLS)
        arguments = {"order_id": f"#W{dice.randrange(10**7)}"}
        call = {"id": call_id, "name": tool, "arguments": json.dumps(arguments)}
        _say(sink, 2 * number, words.line(), tool_calls=[call])
        _call(sink, call_id, arguments, answer=words.line(), tool=tool, is_error=number == 4)
        _say(sink, 2 * number + 1, words.line())
    sink.event(_event(EventKind.TURN_ENDED, {"reply": "Done."}))
    sink.event(_event(EventKind.STEP_ENDED, {"duration_s": 1.0}))
    if failure is not None:
        data = {"kind": str(failure.kind), "message": failure.message, "traceback": ""}
        sink.event(_event(EventKind.FAILURE, data, "check"))
        sink.ended(EpisodeResult(outcome=Outcome.FAILED, run_id=sink.run_id, scores={}, failure=failure))
        return
    score = Score(step="check", value=reward, explanation=words.line())
    sink.event(_event(EventKind.STEP_STARTED, {"kind": "verify"}, "check"))
    sink.event(_event(EventKind.SCORE, {"value": reward, "explanation": score.explanation, "metrics": {}}, "check"))
    sink.event(_event(EventKind.STEP_ENDED, {"duration_s": 0.1}, "check"))
    sink.ended(EpisodeResult(outcome=Outcome.COMPLETED, run_id=sink.run_id, scores={"check": score}, cut=cut))
    if isinstance(sink, RunSink):
        sink.set_reward(reward)


class _Process:
    """What a writing process has."""

    def __init__(self, folder: Path) -> None:
        self.index = RunIndex.open(folder)
        self.words = Words(random.Random(1))


_process: _Process | None = None


def _open(folder: Path) -> None:
    global _process  # a pool's process is handed nothing but arguments
    _process = _Process(folder)


def _write_step(step: Step) -> None:
    assert _process is not None
    dice = random.Random(f"{step.training}/{step.step}")
    progress = step.step / max(1, step.of - 1)
    for task in range(TASKS):
        ease = dice.random()
        for _ in range(ROLLOUTS):
            sink = _process.index.run(step.group, labels={**LABELS, "policy_step": step.step})
            play(
                sink,
                f"task-{task:02d}",
                _process.words,
                dice,
                reward=round(min(1.0, max(0.0, dice.gauss(0.2 + 0.6 * progress * ease, 0.3))), 3),
                cut=CutReason.TOKEN_LIMIT if dice.random() < 0.03 else None,
                failure=_DIED if dice.random() < 0.02 else None,
            )
    _process.index.flush()


def _header(task_id: str) -> RunHeader:
    return RunHeader(
        task_id=task_id,
        bundle_name="retail",
        bundle_version="1.0.0",
        params={"order": "#W1234567"},
        tags=("short",),
        bundle_root="/bundles/retail",
    )


def _say_prompt(sink: EpisodeSink, words: Words) -> None:
    parameters = {"type": "object", "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]}
    shown = [
        {"name": name, "description": "Read or change one thing of the shop.", "parameters": parameters}
        for name in TOOLS
    ]
    data = {"agent": "agent", "kind": "played", "system_prompt": words.line(), "prompt": words.line(), "tools": shown}
    sink.event(_event(EventKind.TURN_STARTED, data))


def _say(sink: EpisodeSink, at: int, text: str, **more: Any) -> None:
    message = {"role": "assistant", "content": text, **more}
    counts = {"prompt_tokens": 400 + 80 * at, "sampled_tokens": 60}
    sink.event(_event(EventKind.MESSAGE, {"message": message, "index": at, **counts}))


def _call(
    sink: EpisodeSink,
    call_id: str,
    arguments: dict[str, Any],
    *,
    answer: str,
    tool: str = TOOLS[0],
    is_error: bool = False,
) -> None:
    call = {"call_id": call_id, "tool": tool}
    sink.event(_event(EventKind.CALL, {**call, "arguments": arguments, "raw": json.dumps(arguments)}))
    more = {"text": answer, "is_error": is_error, "ends_turn": False, "duration_s": 0.01}
    sink.event(_event(EventKind.ANSWER, {**call, **more}))


def _event(kind: EventKind, data: dict[str, Any], step: str = "prompt") -> Event:
    return Event(kind, time.time(), step, 0 if step == "prompt" else None, data)


_DIED = Failure(kind=FailureKind.MCP_DIED, step="check", message="the server ended with status 1")
_STEMS = [a + b + c for a in "bdfgklmnprstvz" for b in "aeiou" for c in ("l", "n", "r", "s", "t", "m", "ck", "sh")]
_ENDS = ("", "a", "e", "ing", "ed", "er", "s", "ly", "or", "ist", "um", "en", "ful", "ism", "ive", "ous")
