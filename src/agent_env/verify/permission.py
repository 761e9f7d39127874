"""Whether model judges may be asked. They cost money and send what was said to somebody else, so they are off by default."""

from __future__ import annotations

import os

__all__ = ["JUDGES_OFF", "JUDGES_VARIABLE", "judges_allowed"]

JUDGES_VARIABLE = "AGENT_ENV_JUDGES"
"""The environment variable that allows judges: 1, true, yes or on."""
JUDGES_OFF = f"model judges are off: set {JUDGES_VARIABLE}=1 to allow them"
"""Why a judge was not asked, and how to have it asked."""

_YES = frozenset({"1", "true", "yes", "on"})


def judges_allowed(said: bool | None = None) -> bool:  # noqa: FBT001 - what a caller has passes through as it is
    """Say whether model judges may be asked.

    Args:
        said: What whoever plays the task says; None leaves it to the environment variable.
    """
    if said is not None:
        return said
    return os.environ.get(JUDGES_VARIABLE, "").strip().lower() in _YES
