"""The last of what a server said beside the protocol: its standard error, its log messages, what does not belong on its
standard output. It goes with the failure into the run.
"""

from __future__ import annotations

import re

from agent_env._wording import clipped
from agent_env.envs.result_text import clean_text

__all__ = ["Tail"]

_KEPT_BYTES = 16_384
_LINE_CHARS = 300
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CONTROL = re.compile(r"[\x01-\x08\x0b-\x1f\x7f]")


class Tail:
    """Keeps the end of what is written to it, in bounded memory."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._left_out = 0

    def write(self, data: bytes) -> None:
        self._kept += data[-_KEPT_BYTES:]
        self._left_out += max(len(data) - _KEPT_BYTES, 0)
        if len(self._kept) > 2 * _KEPT_BYTES:
            self._clip()

    def line(self, text: str) -> None:
        """Add a line of our own, below what is there."""
        start = "" if not self._kept or self._kept.endswith(b"\n") else "\n"
        self.write(f"{start}{text}\n".encode("utf-8", "replace"))

    def text(self) -> str:
        """Return the end of what was written, as text that any store can hold."""
        text = self._cleaned().strip("\n")
        return f"[... {self._left_out:,} bytes before this ...]\n{text}" if self._left_out else text

    def last_line(self) -> str:
        """Return the last line that says anything, clipped, or nothing."""
        lines = self._cleaned().splitlines()
        last = next((line for line in (" ".join(line.split()) for line in reversed(lines)) if line), "")
        return clipped(last, _LINE_CHARS)

    def _cleaned(self) -> str:
        self._clip()
        text = _COLOUR.sub("", self._kept.decode("utf-8", "replace")).replace("\r", "\n")
        return clean_text(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", text))

    def _clip(self) -> None:
        over = len(self._kept) - _KEPT_BYTES
        if over > 0:
            del self._kept[:over]
            self._left_out += over
