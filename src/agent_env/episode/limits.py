"""What an episode's steps may take where the bundle does not say."""

from __future__ import annotations

from dataclasses import dataclass

from agent_env.bundle import DeployEnv, Step, Verify

__all__ = ["DEFAULT_LIMITS", "Limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds for steps that have no `timeout_s` of their own; vary it with `dataclasses.replace`.

    A turn has no bound here: how long an agent may take is its player's to say, with a cut.
    """

    deploy_s: float = 300.0
    """Seconds that an env may take to start."""
    run_s: float = 600.0
    """Seconds that a `run` step may take, and a function that prompts or is an agent."""
    verify_s: float = 600.0
    """Seconds that a verifier may take; waiting for its turn does not count."""
    judges: bool | None = None
    """Whether model judges may be asked; None leaves it to the environment variable `AGENT_ENV_JUDGES`."""
    close_s: float = 30.0
    """Seconds that closing the envs may take, after which they are left and logged."""

    def bound_s(self, step: Step) -> float:
        """Return the seconds that a step may take: its own bound, or else the one for steps of its kind."""
        if step.timeout_s is not None:
            return step.timeout_s
        match step:
            case DeployEnv():
                return self.deploy_s
            case Verify():
                return self.verify_s
            case _:
                return self.run_s


DEFAULT_LIMITS = Limits()
