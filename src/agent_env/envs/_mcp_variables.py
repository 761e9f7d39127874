"""`${NAME}` in what a bundle says of an MCP server: a variable of the caller's environment, so that no key is in a bundle."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from agent_env.errors import EnvBrokenError

__all__ = ["Variables"]

_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET_CHARS = 6
"""A shorter value is found in too many other words to be hidden."""


class Variables:
    """Puts variables in their places, and keeps their values out of what is said and recorded."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self._used: dict[str, str] = {}
        self._missing: dict[str, str] = {}
        """Variables that are not set, and where they are asked for."""

    def fill(self, text: str, where: str) -> str:
        """Return `text` with its variables' values; `$${` stands for `${`."""

        def value(found: re.Match[str]) -> str:
            name = found.group(1)
            if name is None:
                return "${"
            known = self._environment.get(name)
            if known is None:
                self._missing.setdefault(name, where)
                return ""
            self._used[name] = known
            return known

        return _VARIABLE.sub(value, text)

    def check(self, env: str) -> None:
        """Check that all that was asked for is set.

        Raises:
            EnvBrokenError: When it is not.
        """
        if self._missing:
            asked = ", ".join(f"{name} (in {where})" for name, where in self._missing.items())
            raise EnvBrokenError(
                f"the MCP server of env '{env}' needs what is not set in the environment: {asked}: set it and start again"
            )

    def hide(self, text: str) -> str:
        """Return `text` with the name of a variable in place of its value."""
        for name, value in sorted(self._used.items(), key=lambda used: -len(used[1])):
            if len(value) >= _SECRET_CHARS:
                text = text.replace(value, f"${{{name}}}")
        return text
