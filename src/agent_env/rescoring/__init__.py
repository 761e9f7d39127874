"""Scoring recorded runs again, without playing them.

Covers what `agent-env rescore` does. What a verifier is shown of a recorded episode is what it was shown when it was played.
"""

from agent_env.rescoring.scoring import Rescored, rescore

__all__ = ["Rescored", "rescore"]
