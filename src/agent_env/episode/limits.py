"""What an episode's steps may take where the bundle does not say."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEFAULT_LIMITS", "Limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds for steps that have no `timeout_s` of their own; vary it with `dataclasses.replace`.

    A turn has no bound here: how long an agent may take is its player's to say, with a cut.
    """

    deploy_s: float = 300.0
    """Seconds that an env may take to start."""
    run_s: float = 600.0
    """Seconds that a `run` step's function may take."""
    verify_s: float = 600.0
    """Seconds that a verifier may take; waiting for its turn does not count."""
    judges: bool | None = None
    """Whether model judges may be asked; None leaves it to the environment variable `AGENT_ENV_JUDGES`."""
    close_s: float = 30.0
    """Seconds that closing the envs may take, after which they are left and logged."""


DEFAULT_LIMITS = Limits()
