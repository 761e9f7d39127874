"""What happens in an episode: told to its sink as it happens, and kept for verifiers and players."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, cast

from agent_env.bundle import Task
from agent_env.envs import ToolAnswer, ToolSpec
from agent_env.episode.heard import Heard
from agent_env.episode.sink import EpisodeSink, Event, EventKind, RunHeader
from agent_env.outcome import CutReason, Failure, Score, Skipped
from agent_env.verify import Message
from agent_env.verify.verdict import JudgeRecord

__all__ = ["EpisodeLog"]

_MOST_TOKENS = 10**12
"""A message that says it took more is mistaken."""


class EpisodeLog:
    """Every method that tells the sink raises what the sink raises."""

    __slots__ = ("_sink", "_task", "heard", "judges", "left_out", "said", "scores", "step", "turn", "turns")

    def __init__(self, task: Task, sink: EpisodeSink) -> None:
        self._task = task
        self._sink = sink
        self.heard = Heard(task)
        self.step = ""
        """The id of the step under way."""
        self.turn: int | None = None
        """The turn under way."""
        self.turns = 0
        """How many turns were started."""
        self.said = 0
        """How many messages the agent wrote."""
        self.scores: dict[str, Score] = {}
        self.judges: dict[str, JudgeRecord] = {}
        """What judges were asked and answered, by verify step."""
        self.left_out: dict[str, Skipped] = {}
        """Verifiers that were not run."""

    @property
    def counts(self) -> dict[str, float]:
        """What `EpisodeResult.metrics` has."""
        return {
            "messages": float(self.said),
            "tool_calls": float(len(self.heard.calls)),
            "tool_errors": float(sum(call.is_error for call in self.heard.calls)),
            "turns": float(self.turns),
        }

    def opened(self) -> None:
        """Say what the episode is of."""
        task = self._task
        header = RunHeader(
            task_id=task.id,
            bundle_name=task.bundle.name,
            bundle_version=task.bundle.version,
            params=task.params,
            tags=task.tags,
            bundle_root=str(task.bundle.root),
        )
        self._sink.opened(header)

    def step_started(self, step: str, kind: str) -> None:
        """A step begins."""
        self.step = step
        self._tell(EventKind.STEP_STARTED, {"kind": kind})

    def step_ended(self, duration_s: float) -> None:
        """The step is over."""
        self._tell(EventKind.STEP_ENDED, {"duration_s": duration_s})

    def turn_started(self, agent: str, system_prompt: str, prompt: str, tools: tuple[ToolSpec, ...]) -> None:
        """An agent is prompted."""
        self.turn = self.turns
        self.turns += 1
        kind = self._task.bundle.agents[agent].kind
        shown = [{"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in tools]
        self._tell(
            EventKind.TURN_STARTED,
            {"agent": agent, "kind": str(kind), "system_prompt": system_prompt, "prompt": prompt, "tools": shown},
        )

    def message(
        self, message: Message, *, prompt_tokens: int | None = None, sampled_tokens: int | None = None
    ) -> int | None:
        """The agent says something; return which of its messages it is, or None where it is somebody else's.

        Without counts, those of the message's own `usage` are told: a model behind an endpoint has that.
        """
        data: dict[str, Any] = {"message": message}
        if message["role"] != "assistant":
            self._tell(EventKind.MESSAGE, data)
            return None
        index = data["index"] = self.said
        self.said += 1
        counts = {"prompt_tokens": prompt_tokens, "sampled_tokens": sampled_tokens}
        if prompt_tokens is None and sampled_tokens is None:
            counts = _used(message.get("usage"))
        data.update((name, count) for name, count in counts.items() if count is not None)
        self._tell(EventKind.MESSAGE, data)
        return index

    def call(self, call_id: str, tool: str, arguments: Mapping[str, Any] | None, raw: str | None) -> None:
        """A tool call is about to run."""
        self._tell(EventKind.CALL, {"call_id": call_id, "tool": tool, "arguments": arguments, "raw": raw})

    def answer(self, call_id: str, tool: str, answer: ToolAnswer, duration_s: float) -> None:
        """The call has come to something."""
        data: dict[str, Any] = {
            "call_id": call_id,
            "tool": tool,
            "text": answer.text,
            "is_error": answer.is_error,
            "ends_turn": answer.ends_turn,
            "duration_s": duration_s,
        }
        if answer.content:
            data["content"] = list(answer.content)
        if answer.refusal is not None:
            data["error_kind"] = str(answer.refusal)
        if answer.traceback:
            data["traceback"] = answer.traceback
        if answer.raised_at is not None:
            data["raised_at"] = answer.raised_at.as_json()
        self._tell(EventKind.ANSWER, data)

    def agent_said(self, agent: str, message: Message, *, duration_s: float, more: Mapping[str, Any]) -> None:
        """An agent that is not the played one says something."""
        self._tell(EventKind.AGENT_SAID, {"agent": agent, "message": message, "duration_s": duration_s, **more})

    def agent_called(
        self,
        agent: str,
        call_id: str,
        tool: str,
        arguments: Mapping[str, Any] | None,
        answer: ToolAnswer,
        duration_s: float,
    ) -> None:
        """A tool that such an agent called has come to something."""
        data: dict[str, Any] = {
            "agent": agent,
            "call_id": call_id,
            "tool": tool,
            "arguments": arguments,
            "text": answer.text,
            "is_error": answer.is_error,
            "duration_s": duration_s,
        }
        if answer.refusal is not None:
            data["error_kind"] = str(answer.refusal)
        self._tell(EventKind.AGENT_CALLED, data)

    def turn_ended(self, reply: str | None) -> None:
        """The agent's turn is over, with what it said at last; None where it was cut, or a failure ended it."""
        self._tell(EventKind.TURN_ENDED, {"reply": reply})
        self.turn = None

    def cut(self, reason: CutReason) -> None:
        """The trainer ends the episode."""
        self._tell(EventKind.CUT, {"reason": str(reason)})

    def state(self, env: str, data: Mapping[str, Any]) -> None:
        """What the agents left of an env's universe: its changes, or the `error` that kept them from being told."""
        self._tell(EventKind.STATE, {"env": env, **data})

    def skipped(self, skipped: Skipped) -> None:
        """A verifier was left out."""
        self.left_out[skipped.step] = skipped
        self._tell(EventKind.SKIPPED, {"reason": skipped.reason})

    def score(self, score: Score, judge: JudgeRecord | None) -> None:
        """A verifier has scored; `judge` is what a model was asked for it, and answered."""
        self.scores[score.step] = score
        data: dict[str, Any] = {
            "value": score.value,
            "explanation": score.explanation,
            "metrics": dict(score.metrics),
        }
        if judge is not None:
            self.judges[score.step] = judge
            data["judge"] = judge.as_json()
        self._tell(EventKind.SCORE, data)

    def failure(self, failure: Failure) -> None:
        """Something broke."""
        data: dict[str, Any] = {
            "kind": str(failure.kind),
            "message": failure.message,
            "traceback": failure.traceback,
        }
        if failure.place is not None:
            data["place"] = failure.place.as_json()
        self._tell(EventKind.FAILURE, data)

    def _tell(self, kind: EventKind, data: Mapping[str, Any]) -> None:
        event = Event(kind, time.time(), self.step, self.turn, data)
        self.heard.take(event)
        self._sink.event(event)


def _used(usage: object) -> dict[str, int | None]:
    """The counts of a message's `usage`; none where it is something else, for a player may put anything there."""
    if not isinstance(usage, Mapping):
        return {}
    said = cast("Mapping[str, object]", usage)
    return {"prompt_tokens": _count(said.get("prompt_tokens")), "sampled_tokens": _count(said.get("completion_tokens"))}


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value <= _MOST_TOKENS else None
