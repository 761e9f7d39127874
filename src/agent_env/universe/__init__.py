"""A private copy of an env's state for each episode, and what an episode changed in it.

Covers JSON files, SQLite databases and directories. Not network services: an env reaches those itself.
"""

from agent_env.universe.apply import apply
from agent_env.universe.change import MISSING, Change, ChangeLimits, Missing, StateChanges
from agent_env.universe.diff import Lists, differences
from agent_env.universe.directory_diff import is_unread
from agent_env.universe.fingerprint import fingerprint
from agent_env.universe.holders import sweep_left_copies
from agent_env.universe.on_disk import changes_on_disk, open_universe_on_disk
from agent_env.universe.plain import plain
from agent_env.universe.private_copy import PrivateCopy, compare, open_universe

__all__ = [
    "MISSING",
    "Change",
    "ChangeLimits",
    "Lists",
    "Missing",
    "PrivateCopy",
    "StateChanges",
    "apply",
    "changes_on_disk",
    "compare",
    "differences",
    "fingerprint",
    "is_unread",
    "open_universe",
    "open_universe_on_disk",
    "plain",
    "sweep_left_copies",
]
