"""A private copy of an env's state for each episode.

Covers JSON files, SQLite databases and directories. Not network services: an env reaches those itself.
"""

from agent_env.universe.plain import plain
from agent_env.universe.private_copy import open_universe

__all__ = ["open_universe", "plain"]
