"""Which values are secret: those of environment variables that are named like keys, tokens or passwords.

For whatever keeps what an episode said: a tool that prints its environment must not have a key recorded. A value that is
secret and stands in no environment variable is not known here.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from functools import lru_cache

__all__ = ["is_secret_name", "note_secret_name", "secret_values"]

_SHORTEST = 8
"""A shorter value is no secret worth the name, and would be found in innocent words."""
_PART = re.compile(
    r"(API)?KEYS?|SECRETS?|PASS|PASSPHRASE|PWD|CREDENTIALS?|O?AUTH|AUTHORI[SZ]ATION|AUTHENTICATION|BEARER|COOKIE"
    r"|.*(PASSWORD|PASSWD|APIKEY|SECRET|TOKEN)"
)
_FOLDERS = frozenset({"PWD", "OLDPWD"})
_SEPARATOR = re.compile(r"[^A-Z0-9]+")

_lock = threading.Lock()
_noted: frozenset[str] = frozenset()


def note_secret_name(name: str) -> None:
    """Have the value of the environment variable `name` count as secret, whatever it is named like."""
    global _noted
    with _lock:
        _noted |= {name}


def secret_values(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The secret values there are now, each with the name of its variable; longer ones first.

    Args:
        environment: Where to look; `os.environ` when None.
    """
    found: dict[str, str] = {}
    for name, text in (os.environ if environment is None else environment).items():
        value = text.strip()
        if len(value) >= _SHORTEST and (name in _noted or is_secret_name(name)):
            found.setdefault(value, name)
    # A value may be part of another one: the longer is replaced first.
    return dict(sorted(found.items(), key=lambda item: len(item[0]), reverse=True))


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether a variable of this name holds something secret."""
    upper = name.upper()
    if upper in _FOLDERS:
        return False
    return any(_PART.fullmatch(part) for part in _SEPARATOR.split(upper))
