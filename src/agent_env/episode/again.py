"""Scoring an episode again: the steps after its agents' part, done once more on what is recorded of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from agent_env.bundle import DeployEnv, RunPython, Task, Verify
from agent_env.envs import EnvSession
from agent_env.episode._core import Core
from agent_env.episode._episode import held
from agent_env.episode.heard import Heard
from agent_env.episode.limits import Limits
from agent_env.episode.sink import NullSink
from agent_env.outcome import CutReason, EpisodeResult, Score
from agent_env.verify.verdict import JudgeRecord

__all__ = ["AgentsPart", "ScoredAgain", "score_again"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentsPart:
    """An episode up to the end of its last turn."""

    run_id: str
    """Of the run that has it."""
    heard: Heard
    """What was said and called."""
    scores: Mapping[str, Score]
    """Of verify steps between turns, by step."""
    cut: CutReason | None
    """Why it was cut, if it was."""
    envs: Mapping[str, EnvSession]
    """Those that were deployed, in the state in which they were left. They stay the caller's to close."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredAgain:
    """What came of it."""

    result: EpisodeResult
    """With the scores between turns too; `failed` where a step has failed."""
    judges: Mapping[str, JudgeRecord]
    """What judges were asked and answered, by verify step."""


async def score_again(task: Task, part: AgentsPart, *, limits: Limits) -> ScoredAgain:
    """Do the steps after a task's last prompt: its verifiers, and the Python that runs before them. Nothing is recorded.

    Args:
        task: The task that was played.
        part: What was played of it.
        limits: Bounds for steps that have none of their own, and whether judges may be asked.
    """
    steps = [step for step in task.after_the_agents if isinstance(step, DeployEnv | RunPython | Verify)]
    core = Core(replace(task, steps=tuple(steps)), NullSink(part.run_id), limits)
    core.log.heard = part.heard
    core.log.scores.update(part.scores)
    core.envs.update(part.envs)
    core.cut = part.cut
    async with held(core) as episode:
        await episode.start()
        return ScoredAgain(result=await episode.result(), judges=core.log.judges)
