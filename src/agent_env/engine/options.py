"""How an engine runs: the options of `serve`, `start_engine` and the command line."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from agent_env.errors import EngineError

__all__ = ["EngineOptions", "Training"]


class Training(StrEnum):
    """What a training run changes."""

    LORA = "lora"
    """Adapters of the rank that the client asks for; the base model stays as it is."""
    FULL = "full"
    """Every weight. The client's LoRA settings are not used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How an engine runs; the defaults suit a small model on a laptop."""

    training: Training = Training.LORA
    """What training runs change."""
    threads: int = 1
    """Threads of one tensor operation. One leaves the other cores to the trainer, whose rollouts keep one busy;
    with two cores, two threads made sampling four times slower."""
    wave_s: float = 0.003
    """How long to wait for more requests before an idle engine begins to sample."""
    prefix_cache_bytes: int = 128 * 2**20
    """Keys and values that are kept for prompts that begin alike."""
    row_cache_bytes: int = 2 * 2**30
    """Keys and values of sequences under way; more requests wait."""
    snapshot_bytes: int = 2**30
    """Weights that samplers keep in memory alone; of more, those used longest ago go."""
    result_ttl_s: float = 600.0
    """How long an answer that nobody fetched is kept."""
    session_ttl_s: float = 3600.0
    """How long the training runs and samplers of a client are kept after its last sign of life."""
    max_body_bytes: int = 64 * 2**20
    """The largest request."""

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise EngineError(f"threads {self.threads}: must be at least 1")
